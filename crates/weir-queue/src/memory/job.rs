//! The job of one destination: its phase in the schedule, its cursors, and its permits.

use std::time::Duration;

use weir_core::{
    Destination, LimitGroupId, Limiter, Timestamp,
    adaptive::{AdaptiveRate, Sample},
    budget,
    limiter::GRANT_AHEAD,
    plan::{self, SHARES},
    stall::Progress,
};

use super::{
    budget::{Budget, Outstanding},
    group::{Group, Tag, tag_of_permit},
    held::Held,
};
use crate::{
    MOST_REPORTS, Pace, PacedGrant, PermitId, REPORTS_OF_A_RUN, SLOT_HORIZON, SLOW_PACE, SlotAnswer, SlotRequest, Terms,
};

/// The phase of a job.
///
/// ```text
/// Idle ──wake, edit──▶ Scheduled ──claim──▶ Leased ──publish──▶ Scheduled | Idle
///                          ▲                  │
///                          └──lease expired───┘
/// ```
///
/// A job of a group that is due waits for its turn first, and returns to the turn queue if it has a backlog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The job is not scheduled. Cursors and permits remain.
    Idle,
    /// The job runs at `due`. A wake makes it due earlier, but not before `floor`.
    Scheduled { due: Timestamp, floor: Timestamp, on_settle: bool },
    /// The job waits in the turn queue of its group.
    Turn { group: LimitGroupId, tag: Tag },
    /// A scheduler runs the job, in a turn of this group. It is due again when the lease expires.
    Leased { expires: Timestamp, turn_of: Option<LimitGroupId> },
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
    pub(super) budget: Budget,
    /// Where the job's next turn begins, in the virtual time of its group.
    pub(super) tag: Tag,
    /// Its own limits have delayed it: its next permit asks for a slot when they allow one, although others have permits for
    /// the slots of its group until then.
    pub(super) in_time: bool,
    /// The pace of an adaptive destination, once a run has set it.
    pub(super) pace: Option<Box<Pace>>,
    /// The permit that got the last slot, and the start of this slot.
    last_grant: Option<(u64, Timestamp)>,
    pub(super) held: Held,
    /// When the run under way was due, if its job was paced.
    pub(super) run_since: Option<Timestamp>,
    /// The maximum of outstanding permits while workers have no places for more.
    pub(super) max_outstanding: Option<u32>,
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
            budget: Budget::default(),
            tag: 0,
            in_time: false,
            pace: None,
            last_grant: None,
            held: Held::default(),
            run_since: None,
            max_outstanding: None,
            fast_path_ahead: None,
        }
    }

    /// The group whose budget the job shares.
    pub(super) fn group(&self) -> Option<LimitGroupId> {
        self.terms.as_ref()?.group
    }

    pub(super) fn weight(&self) -> u16 {
        self.terms.as_ref().map_or(1, |terms| terms.weight)
    }

    /// Adds a published permit whose claim expires at `expires`.
    pub(super) fn queue(&mut self, serial: u64, expires: Timestamp) {
        self.budget.queue(serial, expires);
        self.tag += tag_of_permit(self.weight());
    }

    /// Applies these terms.
    pub(super) fn follow(&mut self, terms: &Terms, now: Timestamp) {
        if let Some(cursors) = &mut self.budget.cursors {
            cursors.reconfigure(&terms.limits);
        }
        if !terms.is_adaptive {
            self.pace = None;
        }
        self.held.follow(terms, now, self.budget.cursors.as_mut());
        // What was expected under other limits says nothing.
        if self.terms.as_ref().is_none_or(|known| known.version != terms.version) {
            self.budget.last_expected = Timestamp::MIN;
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

    /// Decides about a slot for one of the job's permits. `groups`: those whose budgets the job shares, as far as the queue
    /// knows them, the inner one first.
    pub(super) fn take_slot(&mut self, now: Timestamp, request: SlotRequest, groups: &mut [&mut Group]) -> SlotAnswer {
        let SlotRequest { id: PermitId { serial, .. }, preparation, missed, cost } = request;
        // The job must know the permit, and its claim must not have expired. A permit in flight asks again after a
        // missed slot.
        let permit = self.budget.permit(serial).filter(|permit| permit.expires > now);
        let Some(Outstanding { expires, is_in_flight }) = permit else {
            return SlotAnswer::Withdrawn;
        };
        // Later permits are published earlier by the time that the worker took.
        if let Some(time) = preparation {
            self.budget.prepared_in(time);
            groups.iter_mut().for_each(|group| group.budget.prepared_in(time));
        }
        // A permit in flight has its room already. A queued one needs room below the maxima. During a hold its slot is
        // what it waits for, and nothing can be granted.
        let sending = self.budget.in_flight();
        let soon = now + GRANT_AHEAD;
        let is_open = groups.iter().all(|group| group.has_room() || group.is_held(soon));
        let has_room = is_in_flight || self.held.is_held(soon) || (sending < self.allowed_outstanding() && is_open);
        // No slot while the terms or the cursors are unknown or over, because the next run finds them; and none while
        // suspended.
        let may_send = self.terms.as_ref().is_some_and(|terms| {
            let shared = usize::from(terms.group.is_some());
            let shared = shared + usize::from(groups.first().is_some_and(|group| group.outer().is_some()));
            let all_are_known = groups.len() == shared;
            !terms.suspended
                && terms.are_valid(now)
                && all_are_known
                && groups.iter().all(|group| group.lets_send(now, terms))
        });
        let (Some(cursors), true) = (&mut self.budget.cursors, may_send) else {
            return SlotAnswer::Withdrawn;
        };
        let mut pace = self.pace.as_mut().map(|pace| &mut pace.cursor);
        if !has_room {
            if let Some(pace) = pace {
                pace.was_full |= sending >= pace.window;
            }
            return SlotAnswer::NoRoom;
        }
        // A slot is taken from every budget, or from none.
        let (mut one, mut two, mut three);
        let mut shared = groups.iter_mut().filter_map(|group| group.budget.cursors.as_mut());
        let budgets: &mut [&mut Limiter] = match (shared.next(), shared.next()) {
            (Some(inner), Some(outer)) => {
                three = [cursors, inner, outer];
                &mut three
            }
            (Some(inner), None) => {
                two = [cursors, inner];
                &mut two
            }
            (None, _) => {
                one = [cursors];
                &mut one
            }
        };
        // The missed slot is unused. If it is still the last one, its spacing is given back first.
        if let Some((_, start)) = self.last_grant.filter(|&(permit, _)| missed && permit == serial) {
            budget::give_back(budgets, cost, start, now);
            if let Some(pace) = &mut pace {
                pace.give_back(start);
            }
        }
        // The pace can only delay. Only a granted slot changes the permit.
        let from = pace.as_ref().map_or(now, |pace| pace.start_after(0, now));
        let latest = now + GRANT_AHEAD;
        let slot = match budget::take(budgets, cost, from, latest) {
            Ok(slot) => slot,
            Err(start) => {
                budget::wait(budgets, cost, from, now, latest);
                return match start {
                    Timestamp::MAX => SlotAnswer::AboveLimit,
                    _ if start > now + SLOT_HORIZON => SlotAnswer::Withdrawn,
                    _ => SlotAnswer::Later(start),
                };
            }
        };
        let paced = pace.as_mut().map(|pace| {
            pace.take(slot.start, !is_in_flight);
            PacedGrant { generation: pace.generation, in_flight: sending + u32::from(!is_in_flight) }
        });
        self.last_grant = Some((serial, slot.start));
        self.budget.start(serial, expires);
        groups.iter_mut().for_each(|group| group.budget.start(serial, expires));
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
        let of_limits = self.budget.start_after(others, now);
        self.pace.as_ref().map_or(of_limits, |pace| pace.cursor.start_after(others, now).max(of_limits))
    }

    /// The same behind queued permits, if the last of them has its slot when it is expected.
    pub(super) fn start_behind(&self, others: u32, now: Timestamp) -> Timestamp {
        let of_limits = self.budget.start_behind(others, now);
        self.pace.as_ref().map_or(of_limits, |pace| pace.cursor.start_after(others, now).max(of_limits))
    }

    /// How far the destination has come. Permits that have expired do not count. `of_groups`: the next start by the budgets
    /// that it shares.
    pub(super) fn progress(&self, now: Timestamp, of_groups: Option<Timestamp>) -> Progress {
        let of_pace = self.pace.as_ref().map_or(Timestamp::MIN, |pace| pace.cursor.next_start());
        let of_job = self.budget.progress(now, self.held.until().max(of_pace));
        Progress {
            lowered_maximum: self.lowered_maximum().into_iter().chain(self.window()).min(),
            next_start: of_job.next_start.map(|start| of_groups.map_or(start, |of| start.max(of))),
            ..of_job
        }
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
        self.max_outstanding.into_iter().chain(self.held.slow_start()).min()
    }

    /// Limits the outstanding permits to the present number, because a worker had no place for one that was just
    /// removed.
    pub(super) fn lower_max_outstanding(&mut self) {
        self.max_outstanding = Some(self.budget.outstanding().max(1));
    }

    /// Raises the lowered maxima by one, because an attempt has ended and its place is free. The slow start goes on only
    /// with an answer to a send that started at `answered`, after the hold.
    pub(super) fn raise_maxima(&mut self, answered: Option<Timestamp>) {
        let max_in_flight = self.terms.as_ref().map_or(u32::MAX, |terms| terms.max_in_flight);
        self.max_outstanding = self.max_outstanding.map(|most| most + 1).filter(|most| *most < max_in_flight);
        if let Some(sent_at) = answered {
            self.held.answered(sent_at, max_in_flight);
        }
    }

    /// Before when the slot of a new delivery that needs no run begins; `None` if a run is needed. Four conditions: the last
    /// run found less than it was allowed to claim, so that at most a few deliveries are waiting; the terms are those of the
    /// destination; a slot is free now, or soon during a replay; and there is room.
    pub(super) fn admits_until(&self, now: Timestamp, destination: &Destination) -> Option<Timestamp> {
        let (ahead, terms, cursors) = (self.fast_path_ahead?, self.terms.as_ref()?, self.budget.cursors.as_ref()?);
        // A run that is under way may publish its share of `max_in_flight`.
        let promised = match self.phase {
            Phase::Leased { .. } => terms.max_in_flight.div_ceil(SHARES),
            Phase::Idle | Phase::Scheduled { .. } => 0,
            Phase::Turn { .. } => return None,
        };
        // The slot of this delivery comes after those of the queued permits.
        let (taken, until) = (self.budget.queued() + 1, now + ahead + Duration::from_nanos(1));
        let admits = !terms.suspended
            && terms.version == destination.version(now)
            && cursors.slots_before(now, until, taken) == taken
            && self.pace.as_ref().is_none_or(|pace| pace.cursor.slots_before(now, until, taken) == taken)
            && self.budget.outstanding() + promised < self.allowed_outstanding();
        admits.then_some(until)
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
        let start = self.start_after(self.budget.queued(), now);
        self.budget.cursors.as_ref().map_or(now, |_| due(start, self.budget.ahead(), now))
    }

    /// [`JobLease::ahead`](crate::JobLease::ahead).
    pub(super) fn ended_meanwhile(&mut self, now: Timestamp) -> u32 {
        self.budget.ended_meanwhile(now, self.terms.as_ref().map_or(0, |terms| terms.max_in_flight))
    }

    /// Whether the job can be dropped, because its cursors can be recovered from the store.
    pub(super) fn is_forgettable(&self, now: Timestamp) -> bool {
        self.phase == Phase::Idle && !self.held.is_held(now) && self.budget.is_forgettable(now)
    }

    /// The cursors; where they are unknown, these. A hold from before applies to them.
    pub(super) fn know_cursors(&mut self, recovered: impl FnOnce() -> Limiter) {
        let held_until = self.held.until();
        self.budget.cursors.get_or_insert_with(|| {
            let mut cursors = recovered();
            cursors.hold(held_until);
            cursors
        });
    }
}
