//! The memory of an autoscaler: its recommendations and its changes. Windows and policies depend on both.

use std::time::Duration;

use super::{Amount, Blocked, Bounds, Decision, Reading, Replicas, Rules, Select, largest, proposal};

/// A number and its time.
type Dated = (Duration, u32);

#[derive(Debug, Clone, Default)]
pub(crate) struct History {
    /// The largest proposals, before windows and policies.
    pub(super) recommendations: Vec<Dated>,
    /// The number of replicas added by each change.
    pub(super) added: Vec<Dated>,
    pub(super) removed: Vec<Dated>,
}

impl History {
    /// Decides and remembers the decision.
    pub(crate) fn decide(
        &mut self,
        readings: &[Reading],
        replicas: Replicas,
        bounds: &Bounds,
        now: Duration,
    ) -> Decision {
        // A failed metric has no proposal.
        let propose = |reading: &Reading| Some(proposal(reading.target, reading.value?, replicas, bounds));
        let proposals: Vec<_> = readings.iter().map(propose).collect();
        let wanted = replicas.wanted;
        // A number outside the bounds is corrected at once, without windows and policies.
        let (desired, decided) = if wanted > bounds.max {
            (Err(Blocked::OutOfBounds), bounds.max)
        } else if wanted < bounds.min {
            (Err(Blocked::OutOfBounds), bounds.min)
        } else {
            // Otherwise: the largest proposal, then the windows, then the policies and bounds. This is the order of
            // Kubernetes.
            match largest(&proposals, wanted) {
                Ok(desired) => {
                    let stabilised = self.stabilise(desired, wanted, bounds, now);
                    (Ok(desired), self.limit(stabilised, wanted, bounds, now))
                }
                Err(blocked) => (Err(blocked), wanted),
            }
        };
        // Later decisions limit their changes by the changes of the last periods.
        self.remember(wanted, decided, bounds, now);
        Decision { proposals, desired, replicas: decided }
    }

    /// Moves towards the desired number only as far as all recommendations of the window agree: up to the lowest, down
    /// to the highest.
    pub(super) fn stabilise(&mut self, desired: u32, wanted: u32, bounds: &Bounds, now: Duration) -> u32 {
        let within = |window: Duration| {
            let recent = self.recommendations.iter().filter(move |(at, _)| *at + window > now);
            recent.map(|(_, recommended)| *recommended).chain([desired])
        };
        let lowest = within(bounds.up.window).min().unwrap_or(desired);
        let highest = within(bounds.down.window).max().unwrap_or(desired);
        let oldest = bounds.up.window.max(bounds.down.window);
        self.recommendations.retain(|(at, _)| *at + oldest > now);
        self.recommendations.push((now, desired));
        // `clamp` would panic when windows of different lengths have the lowest above the highest. The order is that of
        // Kubernetes.
        wanted.max(lowest).min(highest)
    }

    /// Limits a change by the policies and bounds.
    pub(super) fn limit(&self, desired: u32, wanted: u32, bounds: &Bounds, now: Duration) -> u32 {
        if desired > wanted {
            let most = self.allowed(&bounds.up, wanted, Direction::Up, now).max(wanted);
            desired.min(most.min(bounds.max))
        } else if desired < wanted {
            let least = self.allowed(&bounds.down, wanted, Direction::Down, now).min(wanted);
            desired.max(least.max(bounds.min))
        } else {
            desired
        }
    }

    /// The furthest number that the policies allow. The base is the number at the beginning of a policy's period,
    /// before the changes within the period.
    fn allowed(&self, rules: &Rules, wanted: u32, direction: Direction, now: Duration) -> u32 {
        // This direction is forbidden.
        if rules.select == Select::Disabled {
            return wanted;
        }
        let of = |policy: &super::Policy| {
            let sum = |events: &[Dated]| {
                let recent = events.iter().filter(|(at, _)| *at + policy.period > now);
                recent.map(|(_, change)| i64::from(*change)).sum::<i64>()
            };
            // The base: undo the changes within the period.
            let before = i64::from(wanted) - sum(&self.added) + sum(&self.removed);
            match (direction, policy.amount) {
                (Direction::Up, Amount::Pods(pods)) => before + i64::from(pods),
                (Direction::Down, Amount::Pods(pods)) => before - i64::from(pods),
                // Rounded up; otherwise one replica would never become two.
                (Direction::Up, Amount::Percent(percent)) => {
                    (before as f64 * (1.0 + f64::from(percent) / 100.0)).ceil() as i64
                }
                (Direction::Down, Amount::Percent(percent)) => {
                    (before as f64 * (1.0 - f64::from(percent) / 100.0)) as i64
                }
            }
        };
        let allowed = rules.policies.iter().map(of);
        // The largest change is the largest number when scaling up, and the smallest when scaling down.
        let chosen =
            if (direction == Direction::Up) == (rules.select == Select::Max) { allowed.max() } else { allowed.min() };
        chosen.map_or(wanted, |replicas| replicas.clamp(0, i64::from(i32::MAX)) as u32)
    }

    fn remember(&mut self, wanted: u32, decided: u32, bounds: &Bounds, now: Duration) {
        let longest = |rules: &Rules| rules.policies.iter().map(|policy| policy.period).max().unwrap_or_default();
        // Both directions use both lists.
        let longest = longest(&bounds.up).max(longest(&bounds.down));
        for events in [&mut self.added, &mut self.removed] {
            events.retain(|(at, _)| *at + longest > now);
        }
        match decided.cmp(&wanted) {
            std::cmp::Ordering::Greater => self.added.push((now, decided - wanted)),
            std::cmp::Ordering::Less => self.removed.push((now, wanted - decided)),
            std::cmp::Ordering::Equal => {}
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}
