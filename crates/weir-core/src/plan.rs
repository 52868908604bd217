//! The decisions of one run of a job: how many permits it may publish, and when the job runs next.

use std::time::Duration;

use crate::{
    adaptive::PaceCursor,
    breaker::{Breaker, BreakerState},
    limiter::Limiter,
    time::Timestamp,
};

/// The shortest time between two paced runs of one job. Twenty runs a second give a receiver an even stream instead of
/// a burst each second, and the runs of thousands of busy destinations still share a few batches.
pub const CADENCE: Duration = Duration::from_millis(50);
/// A permit is published this long before its slot starts, so that a worker has the permit in time. Workers ask for a
/// slot 15 ms before it starts, so this must be longer.
pub const LEAD: Duration = Duration::from_millis(20);
/// The most permits that one run publishes, so that no destination delays the others of its batch. With a run every 50
/// ms this is still ten thousand a second.
pub const MAX_PER_RUN: u32 = 512;
/// With more permits than this in the delivery queue the workers are behind, and more permits would only wait there.
/// The number equals the places of one worker: with fewer permits, a worker could have free places and no permit.
pub const LAG_DEPTH: usize = 8_192;

/// A run publishes at most `max_in_flight / SHARES` permits, and those that it publishes ahead. Permits that are published
/// together end at about the same time: if a run published all of `max_in_flight`, the workers would be idle during the
/// next claim.
pub const SHARES: u32 = 2;
/// At most `MOST_AHEAD * max_in_flight` permits are published ahead: `max_in_flight` wait for room while as many end
/// during a run. More would only wait longer in the worker.
pub const MOST_AHEAD: u32 = 2;

/// How far ahead the slot of a new delivery on the fast path may be. A worker needs about as long until it asks for the slot.
pub const NEAR_SLOT: Duration = Duration::from_millis(5);
/// The same for a live delivery while only replays have a backlog. Its slot is
/// counted behind those of the replayed permits, which reach about [`LEAD`] ahead. A replayed permit asks for its
/// slot only at its expected time, so a live delivery that is ready goes first.
pub const FAST_PATH_AHEAD: Duration = LEAD.saturating_mul(2);

/// The input of a run's decisions.
#[derive(Debug, Clone, Copy)]
pub struct Observed<'a> {
    pub now: Timestamp,
    /// Where the next slots may begin.
    pub cursors: &'a Limiter,
    /// The pace of an adaptive destination.
    pub pace: Option<&'a PaceCursor>,
    /// How long workers take from the publication of a permit until they are ready to send. Permits are published
    /// earlier by this time.
    pub preparation: Duration,
    /// How long a run takes, from its due time to its publication. Runs begin earlier by this time.
    pub run_time: Duration,
    /// Permits that are published and have no slot yet.
    pub queued: u32,
    /// Sends started and not yet settled.
    pub in_flight: u32,
    pub max_in_flight: u32,
    /// Permits beyond `max_in_flight` that may wait for room: as many as attempts end until this run has published, and
    /// again until the next one has and its permits are ready. Otherwise a fast destination would have nothing to send
    /// in this time.
    pub ahead: u32,
    /// The smallest R + B − 1 of the limits; `None` when unlimited.
    pub max_queued: Option<u64>,
    /// Paused or deleted.
    pub suspended: bool,
    pub breaker: &'a Breaker,
    /// The workers are behind: the delivery queue is longer than [`LAG_DEPTH`].
    pub lagging: bool,
}

impl Observed<'_> {
    /// How many slots start before `until`, at most `max`.
    pub(crate) fn slots_before(&self, until: Timestamp, max: u32) -> u32 {
        let of_limits = self.cursors.slots_before(self.now, until, max);
        self.pace.map_or(of_limits, |pace| pace.slots_before(self.now, until, of_limits))
    }
}

/// How many permits to publish, and why no more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Allowance {
    pub allow: u32,
    pub reason: AllowanceReason,
}

impl Allowance {
    /// The allowance of a destination that may send nothing.
    pub const NOTHING: Self = Self { allow: 0, reason: AllowanceReason::Suspended };
    /// The allowance of a run that only tells the queue what it has read. The next run follows at once.
    pub const NOT_YET: Self = Self { allow: 0, reason: AllowanceReason::Batch };

    /// The allowance of a run whose turn in a shared budget is for `most` permits.
    pub fn within_turn(self, most: u32) -> Self {
        if self.allow > most { Self { allow: most, reason: AllowanceReason::Slots } } else { self }
    }
}

/// Why a run publishes no more than its allowance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllowanceReason {
    /// The slots that open before the next run, `rate − queued`, or a lagging queue. The next run is paced.
    Slots,
    /// `max_in_flight`. The next settle starts the next run.
    InFlight,
    /// [`MAX_PER_RUN`], or the run's share of `max_in_flight`. The next run follows at once.
    Batch,
    /// The destination is suspended: nothing may be sent. An edit starts the next run.
    Suspended,
    /// The breaker is open: nothing may be sent before the next probe.
    Until(Timestamp),
}

/// allow = min(slots that open before the next run, R − queued, max_in_flight − queued − in flight).
///
/// With a half-open breaker a destination has at most one send in flight. During the slow start after that, it gets
/// only a share of its slots and of `max_in_flight`.
pub fn allowance(observed: &Observed<'_>) -> Allowance {
    // A suspended destination gets nothing until an edit wakes its job.
    if observed.suspended {
        return Allowance::NOTHING;
    }
    // The workers are behind, so further permits would only be late. The job tries again at its pace.
    if observed.lagging {
        return Allowance { allow: 0, reason: AllowanceReason::Slots };
    }
    // The breaker lowers `max_in_flight`, or allows nothing at all.
    let share = observed.breaker.share(observed.now);
    let max_in_flight = match (observed.breaker.state(observed.now), observed.breaker.next_probe_at()) {
        (BreakerState::Open, Some(at)) => return Allowance { allow: 0, reason: AllowanceReason::Until(at) },
        (BreakerState::Closed, _) => scaled(observed.max_in_flight, share),
        _ => 1,
    };
    // The bounds that do not depend on slots.
    let ahead = if share < 1.0 || max_in_flight < observed.max_in_flight {
        0
    } else {
        observed.ahead.min(MOST_AHEAD * max_in_flight)
    };
    let outstanding = observed.queued.saturating_add(observed.in_flight);
    let room = max_in_flight.saturating_add(ahead).saturating_sub(outstanding);
    let unqueued = match observed.max_queued {
        Some(max) => u32::try_from(max.saturating_sub(u64::from(observed.queued))).unwrap_or(u32::MAX),
        None => u32::MAX,
    };
    let most = room.min(unqueued).min(MAX_PER_RUN).min(max_in_flight.div_ceil(SHARES) + ahead);
    // The slots that open before the permits of the next run are ready: that run begins once this one has published,
    // and takes as long. Outstanding permits take the first of these slots.
    let until = observed.now + CADENCE + LEAD + observed.preparation + 2 * observed.run_time;
    let open = observed.slots_before(until, most.saturating_add(observed.queued));
    let slots = open.saturating_sub(observed.queued);
    // During the slow start after an outage only a share of these slots is used.
    let allow = scaled(slots, share);
    // The bound that was reached decides what starts the next run.
    let reason = if allow < most || most == unqueued {
        AllowanceReason::Slots
    } else if most == room {
        AllowanceReason::InFlight
    } else {
        AllowanceReason::Batch
    };
    Allowance { allow, reason }
}

/// The share of a count, rounded up.
fn scaled(count: u32, share: f64) -> u32 {
    if share >= 1.0 { count } else { (f64::from(count) * share).ceil() as u32 }
}

/// When a job runs next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextRun {
    /// There is a backlog: shortly before the next slot opens, and no sooner than [`CADENCE`] from now.
    Paced,
    /// There is a backlog, but `max_in_flight` is reached: at the next settle.
    OnSettle,
    /// At once.
    Now,
    /// Nothing is due before this instant.
    At(Timestamp),
    /// Only replays have a backlog: at this instant, or as soon as a live delivery wakes the job.
    Soon(Timestamp),
    /// Nothing is waiting: the job is removed, unless it was woken during the run.
    Stop,
    /// The run continues: it publishes once more under the same lease.
    Continue,
}

impl NextRun {
    /// How far ahead the slot of a new delivery on the fast path may be. `None`: the fast path is closed, because there
    /// is a backlog that the delivery must not overtake.
    pub fn fast_path_ahead(self) -> Option<Duration> {
        match self {
            Self::At(_) | Self::Stop => Some(NEAR_SLOT),
            Self::Soon(_) => Some(FAST_PATH_AHEAD),
            Self::Paced | Self::OnSettle | Self::Now | Self::Continue => None,
        }
    }
}

/// When the job runs next. `exhausted`: the claim returned fewer deliveries than allowed, and `next_due` is the
/// earliest due time of the deliveries that are left.
pub fn next_run(allowance: Allowance, exhausted: bool, next_due: Option<Timestamp>) -> NextRun {
    match allowance.reason {
        AllowanceReason::Suspended => NextRun::Stop,
        AllowanceReason::Until(at) => NextRun::At(at),
        _ if exhausted => next_due.map_or(NextRun::Stop, NextRun::At),
        AllowanceReason::Slots => NextRun::Paced,
        AllowanceReason::InFlight => NextRun::OnSettle,
        AllowanceReason::Batch => NextRun::Now,
    }
}

/// When a run begins for the first slot that no outstanding permit will take: [`LEAD`], the time of a run and the workers'
/// preparation before it, and no sooner than now. `ahead`: run and preparation together.
pub fn due_for_next_slot(slot_start: Timestamp, ahead: Duration, now: Timestamp) -> Timestamp {
    (slot_start - LEAD - ahead).max(now)
}

/// The due time of a paced run at `now`: the run for the next slot, no sooner than [`CADENCE`] from now.
pub fn paced_due(slot_start: Timestamp, ahead: Duration, now: Timestamp) -> Timestamp {
    due_for_next_slot(slot_start, ahead, now).max(now + CADENCE)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::{
        breaker::{AttemptWindow, BreakerPolicy, EndedAttempt},
        delivery::AttemptOutcome,
        limit::{Period, RateLimit, RateLimits},
        outcome::Effect,
    };

    pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_000);

    static CLOSED: std::sync::LazyLock<Breaker> = std::sync::LazyLock::new(Breaker::default);

    pub(crate) fn observed(cursors: &Limiter) -> Observed<'_> {
        Observed {
            now: NOW,
            cursors,
            pace: None,
            preparation: Duration::ZERO,
            run_time: Duration::ZERO,
            queued: 0,
            in_flight: 0,
            max_in_flight: 64,
            ahead: 0,
            max_queued: None,
            suspended: false,
            breaker: &CLOSED,
            lagging: false,
        }
    }

    pub(crate) fn per_second(rate: u32) -> Limiter {
        Limiter::new(&RateLimits::new(vec![RateLimit::new(rate, Period::SECOND).unwrap()]).unwrap())
    }

    #[test]
    fn a_run_publishes_the_slots_that_open_before_the_next_run() {
        let limiter = per_second(1000);
        let allowed = allowance(&Observed { max_in_flight: 1000, max_queued: Some(1000), ..observed(&limiter) });
        assert_eq!(allowed, Allowance { allow: 70, reason: AllowanceReason::Slots });
        assert_eq!(next_run(allowed, false, None), NextRun::Paced);
    }

    #[test]
    fn never_more_than_the_rate_is_queued() {
        let limiter = per_second(1000);
        let preparation = Duration::from_secs(2);
        let many = Observed { queued: 990, max_in_flight: 5000, max_queued: Some(1000), ..observed(&limiter) };
        let allowed = allowance(&Observed { preparation, ..many });
        assert_eq!(allowed, Allowance { allow: 10, reason: AllowanceReason::Slots });
    }

    #[test]
    fn a_slow_destination_is_bounded_by_max_in_flight_and_runs_again_on_a_settle() {
        let limiter = Limiter::new(&RateLimits::UNLIMITED);
        let allowed = allowance(&Observed { queued: 4, in_flight: 50, ..observed(&limiter) });
        assert_eq!(allowed, Allowance { allow: 10, reason: AllowanceReason::InFlight });
        assert_eq!(next_run(allowed, false, None), NextRun::OnSettle);
        let full = allowance(&Observed { in_flight: 64, ..observed(&limiter) });
        assert_eq!(next_run(full, false, None), NextRun::OnSettle);
    }

    #[test]
    fn permits_are_published_ahead_by_the_attempts_that_end_meanwhile() {
        let limiter = Limiter::new(&RateLimits::UNLIMITED);
        let with = |ahead, queued| allowance(&Observed { ahead, queued, in_flight: 64, ..observed(&limiter) }).allow;
        assert_eq!([with(0, 0), with(20, 0), with(20, 15), with(20, 20)], [0, 20, 5, 0]);
        assert_eq!(with(1_000, 127), 1, "at most twice `max_in_flight` more");
        let (breaker, probe_at) = open_breaker();
        let probing = Observed { now: probe_at, in_flight: 1, ahead: 20, breaker: &breaker, ..observed(&limiter) };
        assert_eq!(allowance(&probing).allow, 0, "a probe is alone");
    }

    #[test]
    fn after_an_exhausted_claim_the_job_stops_or_waits_for_the_next_retry() {
        let limiter = per_second(10);
        let allowed = allowance(&Observed { max_queued: Some(10), ..observed(&limiter) });
        assert_eq!(allowed.allow, 1);
        assert_eq!(next_run(allowed, true, None), NextRun::Stop);
        let retry = Timestamp::from_secs(1_030);
        assert_eq!(next_run(allowed, true, Some(retry)), NextRun::At(retry));
    }

    #[test]
    fn a_suspended_job_publishes_nothing_and_stops() {
        let limiter = per_second(10);
        let allowed = allowance(&Observed { suspended: true, ..observed(&limiter) });
        assert_eq!((allowed.allow, next_run(allowed, false, None)), (0, NextRun::Stop));
    }

    /// A breaker that was opened by ten failures, and the instant of its probe.
    fn open_breaker() -> (Breaker, Timestamp) {
        let (mut breaker, mut window) = (Breaker::default(), AttemptWindow::default());
        for _ in 0..10 {
            breaker = window.observe(&breaker, &BreakerPolicy::default(), &ending(false, NOW)).unwrap_or(breaker);
        }
        let probe_at = breaker.next_probe_at().unwrap();
        (breaker, probe_at)
    }

    fn ending(delivered: bool, now: Timestamp) -> EndedAttempt {
        let outcome = if delivered { AttemptOutcome::Delivered } else { AttemptOutcome::Retryable };
        EndedAttempt { outcome, effect: Effect::None, refusal: None, began: now, now }
    }

    #[test]
    fn an_open_breaker_waits_for_its_probe_and_then_allows_one_send_at_a_time() {
        let (breaker, probe_at) = open_breaker();
        let limiter = per_second(1000);
        let open = allowance(&Observed { breaker: &breaker, ..observed(&limiter) });
        assert_eq!((open.allow, next_run(open, false, None)), (0, NextRun::At(probe_at)));
        let half_open = Observed { now: probe_at, breaker: &breaker, ..observed(&limiter) };
        let probe = allowance(&half_open);
        assert_eq!((probe.allow, next_run(probe, false, None)), (1, NextRun::OnSettle));
        let probing = allowance(&Observed { in_flight: 1, ..half_open });
        assert_eq!((probing.allow, next_run(probing, false, None)), (0, NextRun::OnSettle));
    }

    #[test]
    fn after_its_breaker_has_closed_a_destination_returns_to_its_limit_slowly() {
        let (open, probe_at) = open_breaker();
        let policy = BreakerPolicy::default();
        let closed = AttemptWindow::default().observe(&open, &policy, &ending(true, probe_at)).unwrap();
        let limiter = Limiter::new(&RateLimits::UNLIMITED);
        let after =
            |secs| Observed { now: probe_at + Duration::from_secs(secs), breaker: &closed, ..observed(&limiter) };
        let most =
            |secs| (0..64).take_while(|&in_flight| allowance(&Observed { in_flight, ..after(secs) }).allow > 0).count();
        assert_eq!([0, 1, 5, 10].map(most), [4, 7, 32, 64]);
        let limited = per_second(1000);
        let paced = |secs| allowance(&Observed { cursors: &limited, max_in_flight: 1000, ..after(secs) });
        assert_eq!([0, 5, 10].map(|secs| paced(secs).allow), [2, 35, 70]);
        assert_eq!(next_run(paced(0), false, None), NextRun::Paced);
    }

    #[test]
    fn nothing_is_published_while_the_queue_lags() {
        let limiter = per_second(10);
        let allowed = allowance(&Observed { lagging: true, ..observed(&limiter) });
        assert_eq!((allowed.allow, next_run(allowed, false, None)), (0, NextRun::Paced));
    }

    #[test]
    fn permits_that_are_out_take_the_first_slots_and_slow_connections_need_more_permits() {
        let limiter = per_second(10);
        let with = |queued, preparation| {
            let preparation = Duration::from_millis(preparation);
            allowance(&Observed { queued, preparation, max_queued: Some(10), ..observed(&limiter) }).allow
        };
        assert_eq!([with(0, 0), with(1, 0)], [1, 0]);
        assert_eq!([with(0, 500), with(4, 500), with(6, 500)], [6, 2, 0]);
        let due = |queued, preparation| {
            paced_due(limiter.start_after(queued, NOW), Duration::from_millis(preparation), NOW).since(NOW)
        };
        assert_eq!([due(1, 0), due(6, 500)].map(|due| due.as_millis()), [81, 86]);
    }

    #[test]
    fn slow_runs_publish_the_slots_that_open_before_the_next_run_has_published() {
        let limiter = per_second(10);
        let with = |queued, run_time| {
            let run_time = Duration::from_millis(run_time);
            allowance(&Observed { queued, run_time, max_queued: Some(10), ..observed(&limiter) }).allow
        };
        assert_eq!([with(0, 0), with(0, 100), with(2, 100)], [1, 3, 1]);
    }

    #[test]
    fn a_pace_below_the_limits_publishes_fewer_permits_and_brings_no_more_runs() {
        let limiter = per_second(1000);
        let pace = PaceCursor { spacing: Duration::from_millis(20), last_start: NOW, ..PaceCursor::default() };
        let with = |pace| allowance(&Observed { max_in_flight: 1000, pace, ..observed(&limiter) });
        assert_eq!(with(Some(&pace)), Allowance { allow: 3, reason: AllowanceReason::Slots });
        let held = PaceCursor { not_before: NOW + Duration::from_secs(5), ..pace };
        assert_eq!(with(Some(&held)), Allowance { allow: 0, reason: AllowanceReason::Slots });
        assert_eq!(paced_due(held.start_after(0, NOW), Duration::ZERO, NOW), held.not_before - LEAD);
        let faster = PaceCursor { spacing: Duration::from_micros(1), ..pace };
        assert_eq!(with(Some(&faster)), with(None), "a pace gives no more than the limits");
    }

    #[test]
    fn a_held_destination_waits_for_the_end_of_its_hold() {
        let mut limiter = Limiter::new(&RateLimits::UNLIMITED);
        let until = Timestamp::from_secs(1_030);
        limiter.hold(until);
        let allowed = allowance(&observed(&limiter));
        assert_eq!(allowed, Allowance { allow: 0, reason: AllowanceReason::Slots });
        assert_eq!(paced_due(limiter.start_after(0, NOW), Duration::ZERO, NOW), until - LEAD);
    }
}
