//! The job of one destination: its phase in the schedule, its cursors, and its permits.

use std::time::Duration;

use weir_core::{
    Destination, IdMap, Limiter, Slot, Timestamp,
    adaptive::{AdaptiveRate, Sample},
    limiter::GRANT_AHEAD,
    plan::{self, MOST_AHEAD, SHARES},
    stall::Progress,
};

use crate::{
    Hold, LONGEST_PREPARATION, LONGEST_RUN, MOST_REPORTS, Pace, PacedGrant, PermitId, REPORTS_OF_A_RUN, SLOT_HORIZON,
    SLOW_PACE, SlotAnswer, SlotRequest, Terms,
};

/// The phase of a job.
///
/// ```text
/// Idle ──wake, edit──▶ Scheduled ──claim──▶ Leased ──publish──▶ Scheduled | Idle
///                          ▲                  │
///                          └──lease expired───┘
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The job is not scheduled. Cursors and permits remain.
    Idle,
    /// The job runs at `due`. A wake makes it due earlier, but not before `floor`.
    Scheduled { due: Timestamp, floor: Timestamp, on_settle: bool },
    /// A scheduler runs the job. It is due again when the lease expires.
    Leased { expires: Timestamp },
}

/// Events while the job is leased.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct DuringLease {
    /// The earliest due time of the wakes.
    pub(super) wake: Option<Timestamp>,
    /// A permit was settled or handed back.
    pub(super) settled: bool,
}

#[derive(Debug)]
pub(super) struct Job {
    pub(super) phase: Phase,
    pub(super) epoch: u64,
    pub(super) version: u64,
    pub(super) during_lease: DuringLease,
    /// Unknown until the first edit or run.
    pub(super) terms: Option<Terms>,
    /// Where the next slots may begin. Unknown until the first run recovers the cursors from the store.
    pub(super) cursors: Option<Limiter>,
    /// The pace of an adaptive destination, once a run has set it.
    pub(super) pace: Option<Box<Pace>>,
    /// The permit that got the last slot, and the start of this slot.
    last_grant: Option<(u64, Timestamp)>,
    /// The end of the latest hold; kept here because the cursors may be unknown.
    held_until: Timestamp,
    /// [`Terms::released_at`]; kept here because the terms may be unknown.
    released_at: Timestamp,
    /// The maximum of sends in flight after a hold: 1, and one more with each send since the end of the hold that was
    /// answered and not refused, until it is `max_in_flight`.
    slow_start: Option<u32>,
    /// How long workers take to be ready. A longer time counts at once; shorter times reduce the value step by step.
    pub(super) preparation: Duration,
    /// How long runs take, from their due time to their publication. Smoothed in the same way.
    pub(super) run_time: Duration,
    /// When the run under way was due, if its job was paced.
    pub(super) run_since: Option<Timestamp>,
    /// Permits issued so far.
    issued: u64,
    /// The last claim: its time, and the permits that had been issued and were no longer outstanding.
    claimed: Option<(Timestamp, u64)>,
    /// The maximum of outstanding permits while workers have no places for more.
    pub(super) max_outstanding: Option<u32>,
    /// Permits published that have no slot, with the times at which their claims expire.
    pub(super) queued: IdMap<u64, Timestamp>,
    /// Permits that have a slot and are not settled, with the times at which their claims expire.
    pub(super) in_flight: IdMap<u64, Timestamp>,
    /// No permit expires before this time.
    first_expiry: Timestamp,
    /// Room reserved for permits that will be admitted without a run.
    pub(super) reserved: u32,
    /// [`weir_core::plan::NextRun::fast_path_ahead`] of the last run.
    pub(super) fast_path_ahead: Option<Duration>,
}

impl Job {
    pub(super) fn new() -> Self {
        Self {
            phase: Phase::Idle,
            epoch: 0,
            version: 0,
            during_lease: DuringLease::default(),
            terms: None,
            cursors: None,
            pace: None,
            last_grant: None,
            held_until: Timestamp::MIN,
            released_at: Timestamp::MIN,
            slow_start: None,
            preparation: Duration::ZERO,
            run_time: Duration::ZERO,
            run_since: None,
            issued: 0,
            claimed: None,
            max_outstanding: None,
            queued: IdMap::default(),
            in_flight: IdMap::default(),
            first_expiry: Timestamp::MAX,
            reserved: 0,
            fast_path_ahead: None,
        }
    }

    /// Drops permits whose claims have expired. Otherwise they would use up the destination's room permanently.
    pub(super) fn drop_expired(&mut self, now: Timestamp) {
        if now < self.first_expiry {
            return;
        }
        self.queued.retain(|_, expires| *expires > now);
        self.in_flight.retain(|_, expires| *expires > now);
        let expiries = self.queued.values().chain(self.in_flight.values());
        self.first_expiry = expiries.min().copied().unwrap_or(Timestamp::MAX);
    }

    /// Adds a published permit whose claim expires at `expires`.
    pub(super) fn queue(&mut self, serial: u64, expires: Timestamp) {
        self.issued += 1;
        self.queued.insert(serial, expires);
        self.first_expiry = self.first_expiry.min(expires);
    }

    /// Applies these terms.
    pub(super) fn follow(&mut self, terms: &Terms, now: Timestamp) {
        if let Some(cursors) = &mut self.cursors {
            cursors.reconfigure(&terms.limits);
        }
        // A release replaces what the queue knows of holds with what the store knows.
        if terms.released_at > self.released_at {
            self.released_at = terms.released_at;
            self.held_until = self.held_until.min(terms.released_at);
            if let Some(cursors) = &mut self.cursors {
                cursors.lift_hold(terms.released_at);
            }
        }
        if !terms.is_adaptive {
            self.pace = None;
        }
        // Terms from before the release may name a hold that it has lifted.
        if terms.released_at == self.released_at && terms.held_until > now {
            self.hold_until(terms.held_until);
        }
        self.terms = Some(terms.clone());
    }

    /// Whether the job has these terms or newer ones.
    pub(super) fn knows(&self, terms: &Terms) -> bool {
        self.terms.as_ref().is_some_and(|known| known.version >= terms.version)
    }

    /// Whether the job has newer terms than these.
    pub(super) fn is_newer_than(&self, terms: &Terms) -> bool {
        self.terms.as_ref().is_some_and(|known| known.version > terms.version)
    }

    /// Decides about a slot for one of the job's permits.
    pub(super) fn take_slot(&mut self, now: Timestamp, request: SlotRequest) -> SlotAnswer {
        let SlotRequest { id: PermitId { serial, .. }, preparation, missed, cost } = request;
        // The job must know the permit, and its claim must not have expired. A permit in flight asks again after a
        // missed slot.
        let in_flight = self.in_flight.get(&serial).copied();
        let Some(expires) = in_flight.or_else(|| self.queued.get(&serial).copied()).filter(|expires| *expires > now)
        else {
            return SlotAnswer::Withdrawn;
        };
        // A permit in flight has its room already. A queued one needs room below the maximum. During a hold its slot is
        // what it waits for, and nothing can be granted.
        let sending = self.in_flight.len() as u32;
        let has_room = in_flight.is_some() || sending < self.allowed_outstanding() || self.is_held(now + GRANT_AHEAD);
        // No slot while the terms or the cursors are unknown or over, because the next run finds them; and none while
        // suspended.
        let may_send = self.terms.as_ref().is_some_and(|terms| !terms.suspended && terms.are_valid(now));
        let (Some(cursors), true) = (&mut self.cursors, may_send) else {
            return SlotAnswer::Withdrawn;
        };
        let mut pace = self.pace.as_mut().map(|pace| &mut pace.cursor);
        if !has_room {
            if let Some(pace) = pace {
                pace.was_full |= sending >= pace.window;
            }
            return SlotAnswer::NoRoom;
        }
        // Later permits are published earlier by this time.
        if let Some(new) = preparation {
            self.preparation = smoothed(self.preparation, new.min(LONGEST_PREPARATION));
        }
        // The missed slot is unused. If it is still the last one, its spacing is given back first.
        if let Some((_, start)) = self.last_grant.filter(|&(permit, _)| missed && permit == serial) {
            cursors.give_back(start, now);
            if let Some(pace) = &mut pace {
                pace.give_back(start);
            }
        }
        // The pace can only delay. Only a granted slot changes the permit.
        let from = pace.as_ref().map_or(now, |pace| pace.start_after(0, now));
        let start = cursors.next_start_of(cost, from);
        if start > now + GRANT_AHEAD {
            cursors.wait(cost, start, now);
        }
        if start > now + SLOT_HORIZON {
            return SlotAnswer::Withdrawn;
        } else if start > now + GRANT_AHEAD {
            return SlotAnswer::Later(start);
        }
        let slot: Slot = cursors.take_of(cost, from);
        let paced = pace.as_mut().map(|pace| {
            pace.take(slot.start, in_flight.is_none());
            PacedGrant { generation: pace.generation, in_flight: sending + u32::from(in_flight.is_none()) }
        });
        self.last_grant = Some((serial, slot.start));
        self.queued.remove(&serial);
        self.in_flight.insert(serial, expires);
        SlotAnswer::Granted(slot, paced)
    }

    /// Takes a report. Returns whether the job is to run at once.
    pub(super) fn report(&mut self, now: Timestamp, sample: Sample) -> bool {
        let Some(pace) = &mut self.pace else { return false };
        if pace.reports.len() == MOST_REPORTS {
            pace.reports.remove(0);
        }
        pace.reports.push((now, sample));
        sample.is_urgent() || pace.cursor.spacing >= SLOW_PACE || pace.reports.len() >= REPORTS_OF_A_RUN
    }

    /// The pace for a run, with all that was noted since the last one.
    pub(super) fn lend_pace(&mut self) -> Option<Box<Pace>> {
        let pace = self.pace.as_mut()?;
        let (reports, cursor) = (std::mem::take(&mut pace.reports), pace.cursor.lend());
        Some(Box::new(Pace { rate: pace.rate.clone(), cursor, reports }))
    }

    /// Follows the pace of a run, or forgets it.
    pub(super) fn follow_pace(&mut self, rate: Option<Box<AdaptiveRate>>, now: Timestamp) {
        match (rate, &mut self.pace) {
            (Some(rate), Some(pace)) => {
                pace.cursor.follow(&rate.cursor(now));
                pace.rate = *rate;
            }
            (Some(rate), none) => *none = Some(Box::new(Pace::new(*rate, now))),
            (None, pace) => *pace = None,
        }
    }

    /// The expected start of a slot that is taken after `others` further slots.
    pub(super) fn start_after(&self, others: u32, now: Timestamp) -> Timestamp {
        let of_limits = self.cursors.as_ref().map_or(now, |cursors| cursors.start_after(others, now));
        self.pace.as_ref().map_or(of_limits, |pace| pace.cursor.start_after(others, now).max(of_limits))
    }

    /// How far the destination has come. Permits that have expired do not count.
    pub(super) fn progress(&self, now: Timestamp) -> Progress {
        let valid = |permits: &IdMap<u64, Timestamp>| permits.values().filter(|expires| **expires > now).count() as u32;
        Progress {
            queued: valid(&self.queued),
            in_flight: valid(&self.in_flight),
            lowered_maximum: self.lowered_maximum().into_iter().chain(self.window()).min(),
            last_start: self.cursors.as_ref().and_then(Limiter::last_start),
            next_start: self.cursors.as_ref().map(|cursors| {
                let of_pace = self.pace.as_ref().map_or(Timestamp::MIN, |pace| pace.cursor.next_start());
                cursors.owed_start(self.held_until.max(of_pace), now)
            }),
        }
    }

    /// Whether permits are outstanding or reserved.
    pub(super) fn has_permits(&self) -> bool {
        self.outstanding() > 0
    }

    pub(super) fn queued(&self) -> u32 {
        self.queued.len() as u32 + self.reserved
    }

    fn outstanding(&self) -> u32 {
        self.queued() + self.in_flight.len() as u32
    }

    /// The maximum of outstanding permits.
    fn allowed_outstanding(&self) -> u32 {
        let max_in_flight = self.terms.as_ref().map_or(0, |terms| terms.max_in_flight);
        self.lowered_maximum().into_iter().chain(self.window()).fold(max_in_flight, u32::min)
    }

    /// How many requests may be in flight by the pace.
    fn window(&self) -> Option<u32> {
        self.pace.as_ref().map(|pace| pace.cursor.window)
    }

    /// The maximum of outstanding permits where workers have no places for more, or where a hold has ended a moment ago.
    pub(super) fn lowered_maximum(&self) -> Option<u32> {
        self.max_outstanding.into_iter().chain(self.slow_start).min()
    }

    /// Limits the outstanding permits to the present number, because a worker had no place for one that was just
    /// removed.
    pub(super) fn lower_max_outstanding(&mut self) {
        self.max_outstanding = Some(self.outstanding().max(1));
    }

    /// Raises the lowered maxima by one, because an attempt has ended and its place is free. The slow start goes on only
    /// with an answer to a send that started at `answered`, after the hold.
    pub(super) fn raise_maxima(&mut self, answered: Option<Timestamp>) {
        let max_in_flight = self.terms.as_ref().map_or(u32::MAX, |terms| terms.max_in_flight);
        let raised = |most: Option<u32>| most.map(|most| most + 1).filter(|most| *most < max_in_flight);
        self.max_outstanding = raised(self.max_outstanding);
        if answered.is_some_and(|sent_at| sent_at >= self.held_until) {
            self.slow_start = raised(self.slow_start);
        }
    }

    /// Whether a new delivery can be sent without a run. Four conditions: the last run found less than it was allowed
    /// to claim, so that at most a few deliveries are waiting; the terms are those of the destination; a slot is free
    /// now, or soon during a replay; and there is room.
    pub(super) fn has_room(&self, now: Timestamp, destination: &Destination) -> bool {
        let (Some(ahead), Some(terms), Some(cursors)) = (self.fast_path_ahead, &self.terms, &self.cursors) else {
            return false;
        };
        // A run that is under way may publish its share of `max_in_flight`.
        let promised = match self.phase {
            Phase::Leased { .. } => terms.max_in_flight.div_ceil(SHARES),
            Phase::Idle | Phase::Scheduled { .. } => 0,
        };
        // The slot of this delivery comes after those of the queued permits.
        let (taken, until) = (self.queued() + 1, now + ahead + Duration::from_nanos(1));
        !terms.suspended
            && terms.version == destination.version(now)
            && cursors.slots_before(now, until, taken) == taken
            && self.pace.as_ref().is_none_or(|pace| pace.cursor.slots_before(now, until, taken) == taken)
            && self.outstanding() + promised < self.allowed_outstanding()
    }

    /// When a paced job runs.
    pub(super) fn paced_due(&self, now: Timestamp) -> Timestamp {
        self.due_by(plan::paced_due, now)
    }

    /// When a job that has waited for room runs: at once, unless the next slot opens later. An earlier run would find
    /// nothing that it may publish.
    pub(super) fn due_with_room(&self, now: Timestamp) -> Timestamp {
        self.due_by(plan::due_for_next_slot, now)
    }

    fn due_by(&self, due: fn(Timestamp, Duration, Timestamp) -> Timestamp, now: Timestamp) -> Timestamp {
        let ahead = self.preparation + self.run_time;
        self.cursors.as_ref().map_or(now, |_| due(self.start_after(self.queued(), now), ahead, now))
    }

    /// How many permits end in the time of two runs and of the preparation, as measured since the last claim.
    pub(super) fn ended_meanwhile(&mut self, now: Timestamp) -> u32 {
        let ended = self.issued - (self.queued.len() + self.in_flight.len()) as u64;
        let (since, before) = self.claimed.replace((now, ended)).unwrap_or((now, ended));
        let of = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let ahead = ended.saturating_sub(before).saturating_mul(of(self.preparation + 2 * self.run_time))
            / of(now.since(since)).max(1);
        let most = MOST_AHEAD * self.terms.as_ref().map_or(0, |terms| terms.max_in_flight);
        u32::try_from(ahead).map_or(most, |ahead| ahead.min(most))
    }

    /// A run of the job has ended. Later runs begin earlier by the time that it took.
    pub(super) fn run_ended(&mut self, now: Timestamp) {
        if let Some(due) = self.run_since.take() {
            self.run_time = smoothed(self.run_time, now.since(due).min(LONGEST_RUN));
        }
    }

    /// Whether the job can be dropped, because its cursors can be recovered from the store.
    pub(super) fn is_forgettable(&self, now: Timestamp) -> bool {
        self.phase == Phase::Idle
            && !self.has_permits()
            && !self.is_held(now)
            && self.cursors.as_ref().is_none_or(|cursors| cursors.is_fresh(now - cursors.slot_width()))
    }

    /// Whether no slot starts yet because of a hold.
    pub(super) fn is_held(&self, now: Timestamp) -> bool {
        now < self.held_until
    }

    /// Applies a hold, unless the send that asked for it started before the last release.
    pub(super) fn hold(&mut self, hold: Hold) {
        if hold.sent_at >= self.released_at {
            self.hold_until(hold.until);
        }
    }

    /// Extends the hold. The slow start begins again.
    fn hold_until(&mut self, until: Timestamp) {
        if until > self.held_until {
            self.held_until = until;
            self.slow_start = Some(1);
        }
        if let Some(cursors) = &mut self.cursors {
            cursors.hold(self.held_until);
        }
    }

    /// The cursors; where they are unknown, these. A hold from before applies to them.
    pub(super) fn know_cursors(&mut self, recovered: impl FnOnce() -> Limiter) {
        let held_until = self.held_until;
        self.cursors.get_or_insert_with(|| {
            let mut cursors = recovered();
            cursors.hold(held_until);
            cursors
        });
    }
}

/// A longer time counts at once; a shorter one reduces the known time by an eighth of the difference.
fn smoothed(known: Duration, new: Duration) -> Duration {
    if new >= known { new } else { known - (known - new) / 8 }
}
