//! The lane of replays: what of a run's permits goes to it.
//!
//! Live traffic goes first. The lane gets what live leaves, and at least one permit of [`ONE_OF`] while both wait, so that
//! neither starves. What the lane gets beyond that is published a short time ahead only ([`HORIZON`]) and leaves half of
//! `max_in_flight` free: a live event that comes while a replay fills the cap finds a slot within that time.

use std::time::Duration;

use crate::{
    plan::{self, Allowance, LEAD, NextRun, Observed, SHARES},
    time::Timestamp,
};

/// The lane's least share: one permit of so many.
pub const ONE_OF: u32 = 10;
/// How far ahead slots are given to the lane when live has left them.
pub const HORIZON: Duration = LEAD;
/// How far ahead the slot of a live delivery may be that goes without a run. Permits of the lane ask for theirs as their time comes,
/// so a live one that is ready goes first.
pub const FAST_PATH_AHEAD: Duration = HORIZON.saturating_mul(2);
/// The shortest time between two runs that the lane brings.
pub const BEAT: Duration = Duration::from_millis(10);

/// What the lane has not had of its least share, in parts of a permit: at a slot a second it is one permit in ten runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit(u32);

/// How a run's permits are split between what is live and the lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Split {
    /// For live traffic.
    pub live: u32,
    /// For the lane, whatever live takes.
    pub least: u32,
    /// For live and lane together, where the lane takes more than its least.
    pub spare: u32,
}

impl Split {
    /// How much the lane gets when live has taken so much.
    pub fn lane(self, live: u32) -> u32 {
        self.least.max(self.spare.saturating_sub(live))
    }
}

impl Credit {
    /// Splits what a run may publish, with permits that are queued or in flight already.
    pub fn split(self, allow: u32, observed: &Observed<'_>) -> Split {
        let &Observed { cursors, now, preparation, queued, in_flight, max_in_flight, .. } = observed;
        let least = self.least(allow);
        let room = max_in_flight.div_ceil(SHARES).saturating_sub(queued + in_flight).min(allow);
        let open = cursors.slots_before(now, now + HORIZON + preparation, room.saturating_add(queued));
        Split { live: allow - least, least, spare: open.saturating_sub(queued).min(room) }
    }

    fn least(self, allow: u32) -> u32 {
        (self.0.saturating_add(allow) / ONE_OF).min(allow)
    }

    /// A run has published so many of each. A lane that came short has nothing to catch up with.
    #[must_use]
    pub fn after(self, live: u32, lane: u32, replay_is_short: bool) -> Self {
        if replay_is_short {
            return Self::default();
        }
        let earned = self.0.saturating_add(live).saturating_add(lane);
        Self(earned.saturating_sub(lane.saturating_mul(ONE_OF)).min(ONE_OF))
    }
}

/// What one of the two brought of a run's claim.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Brought {
    /// Less than was asked for: nothing more waits.
    pub short: bool,
    /// When the next is due.
    pub next_due: Option<Timestamp>,
}

/// What follows a run of a destination with a lane; `next_start` is that of the first slot that no permit is out for, after what
/// the run publishes. While live has a backlog, runs follow as ever; while only the lane has one, they follow [`BEAT`] by beat and
/// let a wake pull them forward.
pub fn next_run(allowance: Allowance, live: Brought, lane: Brought, next_start: Timestamp, now: Timestamp) -> NextRun {
    if !live.short {
        return plan::next_run(allowance, false, None);
    }
    if !lane.short {
        return NextRun::Soon((next_start - HORIZON).max(now + BEAT));
    }
    let next_due = [live.next_due, lane.next_due].into_iter().flatten().min();
    plan::next_run(allowance, true, next_due)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        breaker::Breaker,
        limit::{Period, RateLimit, RateLimits},
        limiter::Limiter,
        plan::Binding,
    };

    const NOW: Timestamp = Timestamp::from_secs(1_000);

    fn per_second(rate: u32) -> Limiter {
        Limiter::new(&RateLimits::new(vec![RateLimit::new(rate, Period::Second).unwrap()]).unwrap())
    }

    fn unlimited() -> Limiter {
        Limiter::new(&RateLimits::UNLIMITED)
    }

    static CLOSED: std::sync::LazyLock<Breaker> = std::sync::LazyLock::new(Breaker::default);

    fn observed(cursors: &Limiter, max_in_flight: u32, in_flight: u32) -> Observed<'_> {
        Observed {
            now: NOW,
            cursors,
            preparation: Duration::ZERO,
            queued: 0,
            in_flight,
            max_in_flight,
            max_queued: None,
            suspended: false,
            breaker: &CLOSED,
            lagging: false,
        }
    }

    #[test]
    fn live_goes_first_and_the_lane_gets_what_it_leaves() {
        let split = Credit::default().split(70, &observed(&per_second(1_000), 1_000, 0));
        assert_eq!(split, Split { live: 63, least: 7, spare: 20 });
        assert_eq!([0, 5, 20, 63].map(|live| split.lane(live)), [20, 15, 7, 7]);
    }

    #[test]
    fn the_lane_leaves_half_of_the_room_free() {
        let split = |out| Credit::default().split(16, &observed(&unlimited(), 64, out));
        assert_eq!(split(0).spare, 16);
        assert_eq!(split(20).spare, 12);
        assert_eq!(split(32).spare, 0);
        assert_eq!(split(40).least, 1, "its least share is its own");
        assert_eq!(Credit::default().split(1, &observed(&unlimited(), 1, 0)).spare, 1);
    }

    #[test]
    fn at_one_slot_a_run_the_lane_gets_one_in_ten() {
        let limiter = per_second(1);
        let mut credit = Credit::default();
        let lane: Vec<u32> = (0..30)
            .map(|_| {
                let split = credit.split(1, &observed(&limiter, 64, 0));
                let lane = split.lane(split.live);
                credit = credit.after(split.live, lane, false);
                assert_eq!(split.live + lane, 1);
                lane
            })
            .collect();
        assert_eq!(lane.iter().sum::<u32>(), 3);
        assert_eq!([lane[9], lane[19], lane[29]], [1, 1, 1]);
    }

    #[test]
    fn what_follows_a_run_depends_on_who_waits() {
        let allowance = Allowance { allow: 10, binding: Binding::Slots };
        let waits = Brought { short: false, next_due: None };
        let at = |seconds| Brought { short: true, next_due: Some(Timestamp::from_secs(seconds)) };
        let none = Brought { short: true, next_due: None };
        assert_eq!(next_run(allowance, waits, waits, NOW, NOW), NextRun::Paced);
        assert_eq!(next_run(allowance, at(2_000), waits, NOW, NOW), NextRun::Soon(NOW + BEAT));
        assert_eq!(next_run(allowance, at(2_000), at(1_500), NOW, NOW), NextRun::At(Timestamp::from_secs(1_500)));
        assert_eq!(next_run(allowance, none, none, NOW, NOW), NextRun::Stop);
        let mut slow = per_second(1);
        slow.take(NOW);
        let NextRun::Soon(at) = next_run(allowance, none, waits, slow.next_start(NOW), NOW) else {
            panic!("the lane waits")
        };
        assert!(at > NOW + Duration::from_millis(900), "no runs without a slot");
    }

    proptest! {
        #[test]
        fn while_both_wait_each_has_its_share_over_every_stretch(allows in proptest::collection::vec(0u32..200, 1..80)) {
            let limiter = unlimited();
            let mut credit = Credit::default();
            let mut runs = Vec::new();
            for allow in allows {
                // Nothing to spare: a long backlog of live traffic takes all it may.
                let split = credit.split(allow, &observed(&limiter, 0, 0));
                let lane = split.lane(split.live);
                prop_assert_eq!(split.live + lane, allow);
                credit = credit.after(split.live, lane, false);
                runs.push((split.live, lane));
            }
            for first in 0..runs.len() {
                let (mut live, mut lane) = (0, 0);
                for run in &runs[first..] {
                    (live, lane) = (live + run.0, lane + run.1);
                    let sum = f64::from(live + lane);
                    prop_assert!(f64::from(lane) > 0.1 * sum - 1.0, "lane {} of {}", lane, sum);
                    prop_assert!(f64::from(live) > 0.9 * sum - 1.0, "live {} of {}", live, sum);
                }
            }
        }

        #[test]
        fn no_run_publishes_more_than_it_may_and_what_one_leaves_goes_to_the_other(
            allow in 0u32..600, rate in 1u32..20_000, out in 0u32..200, live_waits in 0u32..700, lane_waits in 0u32..700,
            earned in 0u32..=ONE_OF,
        ) {
            let limiter = per_second(rate);
            let split = Credit(earned).split(allow, &observed(&limiter, 128, out));
            let live = live_waits.min(split.live);
            let lane = lane_waits.min(split.lane(live));
            prop_assert!(live + lane <= allow);
            let slots = limiter.slots_before(NOW, NOW + HORIZON, allow);
            let room = slots.min(64u32.saturating_sub(out));
            if lane_waits > allow {
                prop_assert!(live + lane >= room, "the lane takes what live leaves");
            }
            if live_waits > allow {
                prop_assert!(live >= allow - split.least);
            }
        }
    }
}
