//! The replay share: how many of a run's permits go to replayed deliveries.
//!
//! Live traffic goes first. Replays get the permits that live deliveries leave unused. While both have a backlog,
//! replays get at least one permit in [`MIN_SHARE_DIVISOR`], so neither starves. Permits above that minimum are
//! published only a short time ahead ([`HORIZON`]) and leave half of `max_in_flight` free: a live event that arrives
//! while a replay uses the whole limit gets a slot within that time.

use std::time::Duration;

use crate::{
    plan::{self, Allowance, LEAD, NextRun, Observed, SHARES},
    time::Timestamp,
};

/// The minimum share of replays is one permit in this many: a replay moves, and live traffic keeps nine tenths.
pub const MIN_SHARE_DIVISOR: u32 = 10;
/// How far ahead replays may take slots that live deliveries leave unused.
pub const HORIZON: Duration = LEAD;
/// The shortest time between two runs while only replays have a backlog. Shorter than [`HORIZON`], so that the next run
/// comes before the slots of this one are used up.
pub const REPLAY_CADENCE: Duration = Duration::from_millis(10);

/// The part of the minimum share that replays have not received yet, in units of 1 / [`MIN_SHARE_DIVISOR`] permit. With
/// one slot a run, replays get one permit in ten runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Credit(u32);

/// How a run's permits are split between live and replayed deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Split {
    /// The most permits for live deliveries.
    pub live: u32,
    /// The permits reserved for replays, however many live deliveries there are.
    pub replay_min: u32,
    /// The most permits for both together when replays take more than `replay_min`.
    pub combined: u32,
}

impl Split {
    /// How many permits replays get when live deliveries have taken `live`.
    pub fn replay(self, live: u32) -> u32 {
        self.replay_min.max(self.combined.saturating_sub(live))
    }
}

impl Credit {
    /// Splits the `allow` permits of a run, given the permits that are already queued or in flight.
    pub fn split(self, allow: u32, observed: &Observed<'_>) -> Split {
        let &Observed { now, preparation, run_time, queued, in_flight, max_in_flight, .. } = observed;
        let replay_min = self.replay_min(allow);
        let room = max_in_flight.div_ceil(SHARES).saturating_sub(queued + in_flight).min(allow);
        let open = observed.slots_before(now + HORIZON + preparation + run_time, room.saturating_add(queued));
        Split { live: allow - replay_min, replay_min, combined: open.saturating_sub(queued).min(room) }
    }

    fn replay_min(self, allow: u32) -> u32 {
        (self.0.saturating_add(allow) / MIN_SHARE_DIVISOR).min(allow)
    }

    /// The credit after a run that has published `live` and `replay` permits. When the replays are exhausted, no credit
    /// is kept.
    #[must_use]
    pub fn after(self, live: u32, replay: u32, replay_is_exhausted: bool) -> Self {
        if replay_is_exhausted {
            return Self::default();
        }
        let earned = self.0.saturating_add(live).saturating_add(replay);
        Self(earned.saturating_sub(replay.saturating_mul(MIN_SHARE_DIVISOR)).min(MIN_SHARE_DIVISOR))
    }
}

/// The result of one claim of a run, either of live or of replayed deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClaimResult {
    /// The claim returned fewer deliveries than its limit: nothing more is due.
    pub exhausted: bool,
    /// When the next delivery is due.
    pub next_due: Option<Timestamp>,
}

/// When a job with replays runs next. `next_start` is the start of the first slot that no outstanding permit will take;
/// the permits of this run count as outstanding.
///
/// While live deliveries have a backlog, the job runs as it does without replays. While only replays have a backlog, it
/// runs at [`REPLAY_CADENCE`], and a wake pulls the next run forward.
pub fn next_run(
    allowance: Allowance,
    live: ClaimResult,
    replay: ClaimResult,
    next_start: Timestamp,
    now: Timestamp,
) -> NextRun {
    if !live.exhausted {
        return plan::next_run(allowance, false, None);
    }
    if !replay.exhausted {
        return NextRun::Soon((next_start - HORIZON).max(now + REPLAY_CADENCE));
    }
    let next_due = [live.next_due, replay.next_due].into_iter().flatten().min();
    plan::next_run(allowance, true, next_due)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        limit::RateLimits,
        limiter::Limiter,
        plan::{
            AllowanceReason,
            tests::{NOW, per_second},
        },
    };

    fn unlimited() -> Limiter {
        Limiter::new(&RateLimits::UNLIMITED)
    }

    fn observed(cursors: &Limiter, max_in_flight: u32, in_flight: u32) -> Observed<'_> {
        Observed { max_in_flight, in_flight, ..plan::tests::observed(cursors) }
    }

    #[test]
    fn live_goes_first_and_replays_get_the_permits_it_leaves() {
        let split = Credit::default().split(70, &observed(&per_second(1_000), 1_000, 0));
        assert_eq!(split, Split { live: 63, replay_min: 7, combined: 20 });
        assert_eq!([0, 5, 20, 63].map(|live| split.replay(live)), [20, 15, 7, 7]);
    }

    #[test]
    fn replays_leave_half_of_max_in_flight_free() {
        let split = |outstanding| Credit::default().split(16, &observed(&unlimited(), 64, outstanding));
        assert_eq!(split(0).combined, 16);
        assert_eq!(split(20).combined, 12);
        assert_eq!(split(32).combined, 0);
        assert_eq!(split(40).replay_min, 1, "the minimum share does not depend on the room");
        assert_eq!(Credit::default().split(1, &observed(&unlimited(), 1, 0)).combined, 1);
    }

    #[test]
    fn with_one_slot_a_run_replays_get_one_permit_in_ten() {
        let limiter = per_second(1);
        let mut credit = Credit::default();
        let replays: Vec<u32> = (0..30)
            .map(|_| {
                let split = credit.split(1, &observed(&limiter, 64, 0));
                let replay = split.replay(split.live);
                credit = credit.after(split.live, replay, false);
                assert_eq!(split.live + replay, 1);
                replay
            })
            .collect();
        assert_eq!(replays.iter().sum::<u32>(), 3);
        assert_eq!([replays[9], replays[19], replays[29]], [1, 1, 1]);
    }

    #[test]
    fn the_next_run_depends_on_which_backlog_is_left() {
        let allowance = Allowance { allow: 10, reason: AllowanceReason::Slots };
        let backlog = ClaimResult { exhausted: false, next_due: None };
        let at = |seconds| ClaimResult { exhausted: true, next_due: Some(Timestamp::from_secs(seconds)) };
        let none = ClaimResult { exhausted: true, next_due: None };
        assert_eq!(next_run(allowance, backlog, backlog, NOW, NOW), NextRun::Paced);
        assert_eq!(next_run(allowance, at(2_000), backlog, NOW, NOW), NextRun::Soon(NOW + REPLAY_CADENCE));
        assert_eq!(next_run(allowance, at(2_000), at(1_500), NOW, NOW), NextRun::At(Timestamp::from_secs(1_500)));
        assert_eq!(next_run(allowance, none, none, NOW, NOW), NextRun::Stop);
        let mut slow = per_second(1);
        slow.take(NOW);
        let NextRun::Soon(at) = next_run(allowance, none, backlog, slow.next_start(NOW), NOW) else {
            panic!("replays have a backlog")
        };
        assert!(at > NOW + Duration::from_millis(900), "the job does not run before a slot is near");
    }

    proptest! {
        #[test]
        fn while_both_have_a_backlog_each_gets_its_share(allows in proptest::collection::vec(0u32..200, 1..80)) {
            let limiter = unlimited();
            let mut credit = Credit::default();
            let mut runs = Vec::new();
            for allow in allows {
                // `max_in_flight` is 0, so `combined` is 0; the live backlog takes all permits that it may.
                let split = credit.split(allow, &observed(&limiter, 0, 0));
                let replay = split.replay(split.live);
                prop_assert_eq!(split.live + replay, allow);
                credit = credit.after(split.live, replay, false);
                runs.push((split.live, replay));
            }
            for first in 0..runs.len() {
                let (mut live, mut replay) = (0, 0);
                for run in &runs[first..] {
                    (live, replay) = (live + run.0, replay + run.1);
                    let sum = f64::from(live + replay);
                    prop_assert!(f64::from(replay) > 0.1 * sum - 1.0, "replay {} of {}", replay, sum);
                    prop_assert!(f64::from(live) > 0.9 * sum - 1.0, "live {} of {}", live, sum);
                }
            }
        }

        #[test]
        fn no_run_exceeds_its_allowance_and_replays_get_the_permits_that_live_leaves(
            allow in 0u32..600, rate in 1u32..20_000, outstanding in 0u32..200, live_waiting in 0u32..700,
            replay_waiting in 0u32..700, earned in 0u32..=MIN_SHARE_DIVISOR,
        ) {
            let limiter = per_second(rate);
            let split = Credit(earned).split(allow, &observed(&limiter, 128, outstanding));
            let live = live_waiting.min(split.live);
            let replay = replay_waiting.min(split.replay(live));
            prop_assert!(live + replay <= allow);
            let slots = limiter.slots_before(NOW, NOW + HORIZON, allow);
            let room = slots.min(64u32.saturating_sub(outstanding));
            if replay_waiting > allow {
                prop_assert!(live + replay >= room, "replays get the permits that live leaves");
            }
            if live_waiting > allow {
                prop_assert!(live >= allow - split.replay_min);
            }
        }
    }
}
