//! The algorithm of Kubernetes' HorizontalPodAutoscaler (`autoscaling/v2`, metrics of type `External`), as decisions without effects.
//!
//! Every function takes the time as an argument, counted from whatever the caller likes. The order is upstream's:
//!
//! ```text
//! metrics ─► a proposal each ─► the largest ─► stabilised (windows) ─► limited (policies, min, max) ─► the number of replicas
//!                └ one that failed: its proposal is missing, and nothing is scaled in
//! ```
//!
//! `tests.rs` holds the cases of upstream's own tests against it.

mod history;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use history::History;

/// What Kubernetes computes with: quantities in thousandths.
pub(crate) type Milli = i64;

/// How far a ratio may be from 1 without any change, where nothing else is said.
pub(crate) const TOLERANCE: f64 = 0.1;

/// What a metric is to come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// The metric divided by the replicas.
    AverageValue(Milli),
    /// The metric itself.
    Value(Milli),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Select {
    /// The policy that allows the largest change.
    Max,
    Min,
    Disabled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    Pods(u32),
    Percent(u32),
}

/// At most so much in any such period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) amount: Amount,
    pub(crate) period: Duration,
}

/// One direction of `behavior`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rules {
    /// Recommendations of this long are looked at together.
    pub(crate) window: Duration,
    pub(crate) select: Select,
    pub(crate) policies: Vec<Policy>,
    pub(crate) tolerance: f64,
}

impl Rules {
    /// What Kubernetes fills in for `behavior.scaleUp`.
    pub(crate) fn default_up() -> Self {
        let period = Duration::from_secs(15);
        let policies =
            vec![Policy { amount: Amount::Pods(4), period }, Policy { amount: Amount::Percent(100), period }];
        Self { window: Duration::ZERO, select: Select::Max, policies, tolerance: TOLERANCE }
    }

    /// What Kubernetes fills in for `behavior.scaleDown`.
    pub(crate) fn default_down() -> Self {
        let policies = vec![Policy { amount: Amount::Percent(100), period: Duration::from_secs(15) }];
        Self { window: Duration::from_secs(300), select: Select::Max, policies, tolerance: TOLERANCE }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) up: Rules,
    pub(crate) down: Rules,
}

/// What the Deployment is at this moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replicas {
    /// How many it is to have.
    pub(crate) wanted: u32,
    /// How many it has, ready or not.
    pub(crate) current: u32,
    pub(crate) ready: u32,
}

/// A metric that was asked for. `None`: it could not be had.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) target: Target,
    pub(crate) value: Option<Milli>,
}

/// What a moment's decision was made of, and the decision.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// Each metric's own, in their order.
    pub(crate) proposals: Vec<Option<u32>>,
    /// The largest of them, or why there is none.
    pub(crate) desired: Result<u32, Blocked>,
    /// How many replicas there are to be.
    pub(crate) replicas: u32,
}

/// Why metrics had no say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// None could be had.
    NoMetric,
    /// One could not be had, and the others would have scaled in.
    MissingMetric,
    /// The number was outside of the bounds, which is set right at once.
    OutOfBounds,
}

/// How many replicas one metric asks for.
pub(crate) fn proposal(target: Target, value: Milli, replicas: Replicas, bounds: &Bounds) -> u32 {
    let is_near = |ratio: f64| 1.0 - bounds.down.tolerance <= ratio && ratio <= 1.0 + bounds.up.tolerance;
    match target {
        Target::AverageValue(average) => {
            let ratio = value as f64 / (average as f64 * f64::from(replicas.current));
            if is_near(ratio) { replicas.current } else { count(value as f64 / average as f64) }
        }
        Target::Value(wanted) => {
            let ratio = value as f64 / wanted as f64;
            match replicas.wanted {
                // From nothing there is nobody to multiply.
                0 => count(ratio),
                wanted if is_near(ratio) => wanted,
                _ => count(ratio * f64::from(replicas.ready)),
            }
        }
    }
}

/// Rounded up. What is not a number is none.
fn count(replicas: f64) -> u32 {
    replicas.ceil().clamp(0.0, f64::from(i32::MAX)) as u32
}

/// The largest of the proposals. A metric that is missing may have asked for more: without it nothing is scaled in.
pub(crate) fn largest(proposals: &[Option<u32>], wanted: u32) -> Result<u32, Blocked> {
    let largest = proposals.iter().flatten().copied().max().ok_or(Blocked::NoMetric)?;
    let is_missing = proposals.contains(&None);
    if is_missing && largest < wanted { Err(Blocked::MissingMetric) } else { Ok(largest) }
}
