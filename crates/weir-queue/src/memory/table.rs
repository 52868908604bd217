//! The queue as a state machine without threads or clocks: every job, the schedule over them, and the delivery queue.
//!
//! Invariants: a job is in `schedule` exactly while it is Scheduled or Leased, at its due time or its lease's end; a permit
//! is in at most one of `queued` and `in_flight`; slots are granted by [`Job::take_slot`] only.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use weir_core::{
    Destination, DestinationId, IdMap, Limiter, Timestamp,
    claim::ClaimedDelivery,
    plan::{LAG_DEPTH, NextRun},
};

use super::job::{Job, Meanwhile, Phase};
use crate::{
    Edit, HandedBack, Lease, Permit, PermitId, Publication, Published, RUN_FALLBACK, SlotAnswer, SlotRequest, Wake,
};

/// Idle jobs are kept, so that their next run needs nothing from the store, until there are so many more than busy ones.
const IDLE_KEPT: usize = 20_000;

/// How much of everything there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depths {
    /// Permits that no worker has taken.
    pub ready: usize,
    /// When the oldest of them was published.
    pub oldest_published_at: Option<Timestamp>,
    /// Permits that have no slot, taken or not.
    pub queued: usize,
    /// Sends started and not settled.
    pub in_flight: usize,
    /// Jobs scheduled or leased.
    pub jobs: usize,
}

/// Every job of the process.
#[derive(Debug, Default)]
pub struct JobTable {
    known_since: Timestamp,
    jobs: IdMap<DestinationId, Job>,
    schedule: BTreeSet<(Timestamp, DestinationId)>,
    ready: VecDeque<Permit>,
    last_serial: u64,
    /// Prune when there are more jobs than this.
    prune_above: usize,
    /// Nobody takes permits any more.
    closed: bool,
}

impl JobTable {
    /// An empty table, as at the start of a process.
    pub fn new(now: Timestamp) -> Self {
        Self { known_since: now, ..Self::default() }
    }

    /// When the next job is due or the next lease ends.
    pub fn next_due(&self) -> Option<Timestamp> {
        self.schedule.first().map(|&(due, _)| due)
    }

    /// Permits that no worker has taken.
    pub fn depth(&self) -> usize {
        self.ready.len()
    }

    /// Counted over every job: for gauges and tests, not for the hot path.
    pub fn depths(&self) -> Depths {
        let count = |of: fn(&Job) -> usize| self.jobs.values().map(of).sum();
        Depths {
            ready: self.ready.len(),
            oldest_published_at: self.ready.front().map(|permit| permit.published_at),
            queued: count(|job| job.queued.len()),
            in_flight: count(|job| job.in_flight.len()),
            jobs: self.schedule.len(),
        }
    }

    pub fn wake(&mut self, wake: Wake) {
        let job = self.jobs.entry(wake.destination_id).or_insert_with(Job::new);
        job.version += 1;
        match job.phase {
            Phase::Idle => self.schedule(wake.destination_id, wake.due, Timestamp::MIN, false),
            Phase::Scheduled { due, floor, on_settle } => {
                let sooner = wake.due.max(floor);
                if sooner < due {
                    self.schedule(wake.destination_id, sooner, floor, on_settle);
                }
            }
            Phase::Leased { .. } => {
                job.meanwhile.wake = Some(job.meanwhile.wake.map_or(wake.due, |due| due.min(wake.due)));
            }
        }
    }

    /// The destination follows these terms from now on, unless these or newer ones are known, and its job runs.
    pub fn edited(&mut self, now: Timestamp, edit: &Edit) {
        let job = self.jobs.entry(edit.destination_id).or_insert_with(Job::new);
        if job.knows(&edit.terms) {
            return;
        }
        job.version += 1;
        job.follow(&edit.terms);
        // The next run tells anew whether there is a backlog.
        job.fast_path_ahead = None;
        if !matches!(job.phase, Phase::Leased { .. }) {
            self.schedule(edit.destination_id, now, Timestamp::MIN, false);
        } else {
            job.meanwhile.wake = Some(now);
        }
    }

    pub fn hold(&mut self, destination_id: DestinationId, until: Timestamp) {
        self.jobs.entry(destination_id).or_insert_with(Job::new).hold(until);
    }

    /// Claims due jobs and leases that have ended, earliest first.
    pub fn claim_due(&mut self, now: Timestamp, max: usize, lease_for: Duration) -> Vec<Lease> {
        self.prune(now);
        let mut leases = Vec::new();
        while leases.len() < max {
            let Some(&(due, destination_id)) = self.schedule.first() else { break };
            if due > now {
                break;
            }
            let expires = now + lease_for;
            self.move_to(destination_id, Phase::Leased { expires });
            let Some(job) = self.jobs.get_mut(&destination_id) else { continue };
            job.epoch += 1;
            job.meanwhile = Meanwhile::default();
            job.drop_expired(now);
            leases.push(Lease {
                destination_id,
                epoch: job.epoch,
                version: job.version,
                due,
                queued: job.queued(),
                in_flight: job.in_flight.len() as u32,
                cursors: job.cursors.clone(),
                preparation: job.preparation,
                window: job.window,
                known_since: self.known_since,
            });
        }
        leases
    }

    /// Publishes what a run claimed and ends it, unless it continues. A stale epoch publishes nothing, and nothing is published
    /// that nobody takes any more.
    pub fn publish(&mut self, now: Timestamp, publication: Publication) -> Published {
        let Publication { lease, terms, recovered, deliveries, next } = publication;
        let destination_id = lease.destination_id;
        let Some(job) = self.jobs.get_mut(&destination_id) else { return Published::Stale(deliveries) };
        if job.epoch != lease.epoch || !matches!(job.phase, Phase::Leased { .. }) {
            return Published::Stale(deliveries);
        }
        // The run read the destination before it was edited.
        if terms.as_ref().is_some_and(|terms| job.is_newer_than(terms)) {
            self.schedule(destination_id, now, Timestamp::MIN, false);
            return Published::Stale(deliveries);
        }
        // A run that was under way when the worker stopped: nobody would take its permits, nor give them back.
        if self.closed && !deliveries.is_empty() {
            return Published::Stale(deliveries);
        }
        if let Some(terms) = &terms {
            let held_until = job.held_until;
            job.cursors.get_or_insert_with(|| {
                let mut cursors = recovered.unwrap_or_else(|| Limiter::recovered(&terms.limits, Some(now)));
                cursors.hold(held_until);
                cursors
            });
            job.follow(terms);
        }
        for delivery in deliveries {
            let others = self.jobs.get(&destination_id).map_or(0, Job::queued);
            self.issue(now, delivery, Some(others));
        }
        self.requeue(now, &lease, next);
        Published::Done
    }

    /// Publishes one permit of a job whose cursors are known, which takes its slot after so many others, or as soon as it can.
    fn issue(&mut self, now: Timestamp, delivery: ClaimedDelivery, others: Option<u32>) {
        let destination_id = delivery.claim.destination_id;
        let Some(job) = self.jobs.get_mut(&destination_id) else { return };
        let Some(cursors) = &job.cursors else { return };
        self.last_serial += 1;
        let id = PermitId { destination_id, serial: self.last_serial };
        let expected_at = others.map(|others| cursors.start_after(others, now));
        job.queue(id.serial, delivery.expires_at);
        self.ready.push_back(Permit { id, published_at: now, expected_at, delivery });
    }

    /// Keeps room for a permit without a run, if there is room and a slot now.
    pub fn reserve(&mut self, now: Timestamp, destination: &Destination) -> bool {
        if self.closed || self.depth() > LAG_DEPTH {
            return false;
        }
        let Some(job) = self.jobs.get_mut(&destination.id) else { return false };
        let has_room = job.has_room(now, destination);
        job.reserved += u32::from(has_room);
        has_room
    }

    /// The room is free again; a job that waits for room runs.
    pub fn unreserve(&mut self, now: Timestamp, destination_id: DestinationId) {
        if let Some(job) = self.jobs.get_mut(&destination_id)
            && job.reserved > 0
        {
            job.reserved -= 1;
            self.room_came(now, destination_id);
        }
    }

    /// Publishes a permit for which room was kept. Answers the delivery back when its destination was suspended or held
    /// meanwhile, or nobody takes permits any more.
    pub fn admit(&mut self, now: Timestamp, delivery: ClaimedDelivery) -> Option<ClaimedDelivery> {
        let destination_id = delivery.claim.destination_id;
        let closed = self.closed;
        let open = |job: &&mut Job| {
            job.terms.as_ref().is_some_and(|terms| !terms.suspended) && job.held_until <= now && job.cursors.is_some()
        };
        match self.jobs.get_mut(&destination_id).filter(open).filter(|job| job.reserved > 0 && !closed) {
            Some(job) => {
                job.reserved -= 1;
                self.issue(now, delivery, None);
                None
            }
            None => {
                self.unreserve(now, destination_id);
                Some(delivery)
            }
        }
    }

    /// Takes everything that is published. Nothing more is.
    pub fn close(&mut self) -> Vec<Permit> {
        self.closed = true;
        self.take(usize::MAX)
    }

    fn requeue(&mut self, now: Timestamp, lease: &Lease, next: NextRun) {
        let id = lease.destination_id;
        let Some(job) = self.jobs.get_mut(&id) else { return };
        if next == NextRun::Continue {
            return;
        }
        job.fast_path_ahead = next.fast_path_ahead();
        let meanwhile = job.meanwhile;
        match (next, meanwhile.wake) {
            (NextRun::Continue, _) => {}
            (NextRun::Stop, None) if job.version == lease.version => self.move_to(id, Phase::Idle),
            (NextRun::Stop, wake) => self.schedule(id, wake.unwrap_or(now), Timestamp::MIN, false),
            (NextRun::At(due) | NextRun::Soon(due), wake) => {
                self.schedule(id, wake.map_or(due, |wake| wake.min(due)), Timestamp::MIN, false);
            }
            (NextRun::Now, _) => self.schedule(id, now, now, false),
            (NextRun::Paced, _) => {
                let due = job.paced_due(now);
                self.schedule(id, due, due, false);
            }
            // Room may have come since the lease was given.
            (NextRun::OnSettle, _) if meanwhile.settled || !job.has_permits() => self.schedule(id, now, now, false),
            (NextRun::OnSettle, _) => {
                let fallback = now + RUN_FALLBACK;
                self.schedule(id, fallback, fallback, true);
            }
        }
    }

    /// Takes published permits in their order.
    pub fn take(&mut self, max: usize) -> Vec<Permit> {
        let count = max.min(self.ready.len());
        self.ready.drain(..count).collect()
    }

    pub fn take_slot(&mut self, now: Timestamp, SlotRequest { id, preparation }: SlotRequest) -> SlotAnswer {
        let job = self.jobs.get_mut(&id.destination_id);
        job.map_or(SlotAnswer::Withdrawn, |job| job.take_slot(now, id.serial, preparation))
    }

    /// Forgets a permit whose attempt has ended; a job that waits for room runs.
    pub fn settle(&mut self, now: Timestamp, id: PermitId) {
        let Some(job) = self.jobs.get_mut(&id.destination_id) else { return };
        if job.in_flight.remove(&id.serial).or_else(|| job.queued.remove(&id.serial)).is_some() {
            job.widen_window();
            self.room_came(now, id.destination_id);
        }
    }

    /// Forgets a permit that was not used. The slot that it would have taken is another's: a run that waits for the slot after it
    /// comes sooner. Not when its worker had no place: a run at once would find none either, and so on without an end.
    pub fn hand_back(&mut self, now: Timestamp, HandedBack { id, crowded }: HandedBack) {
        let Some(job) = self.jobs.get_mut(&id.destination_id) else { return };
        if job.queued.remove(&id.serial).or_else(|| job.in_flight.remove(&id.serial)).is_none() {
            return;
        }
        if crowded {
            job.narrow_window();
            return;
        }
        let pace = job.paced_due(now);
        match job.phase {
            Phase::Scheduled { due, floor, on_settle: false } if due == floor && pace < due => {
                self.schedule(id.destination_id, pace, pace, false);
            }
            _ => self.room_came(now, id.destination_id),
        }
    }

    fn room_came(&mut self, now: Timestamp, id: DestinationId) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        match job.phase {
            Phase::Scheduled { on_settle: true, .. } => self.schedule(id, now, now, false),
            Phase::Leased { .. } => job.meanwhile.settled = true,
            Phase::Idle | Phase::Scheduled { .. } => {}
        }
    }

    fn schedule(&mut self, id: DestinationId, due: Timestamp, floor: Timestamp, on_settle: bool) {
        self.move_to(id, Phase::Scheduled { due, floor, on_settle });
    }

    /// The only place that changes a phase: job and schedule stay in step.
    fn move_to(&mut self, id: DestinationId, phase: Phase) {
        let Some(job) = self.jobs.get_mut(&id) else { return };
        let place = |phase| match phase {
            Phase::Idle => None,
            Phase::Scheduled { due, .. } => Some((due, id)),
            Phase::Leased { expires } => Some((expires, id)),
        };
        if let Some(place) = place(job.phase) {
            self.schedule.remove(&place);
        }
        if let Some(place) = place(phase) {
            self.schedule.insert(place);
        }
        job.phase = phase;
    }

    fn prune(&mut self, now: Timestamp) {
        if self.jobs.len() > self.prune_above.max(IDLE_KEPT) {
            self.jobs.retain(|_, job| !job.is_forgettable(now));
            self.prune_above = self.jobs.len() * 2;
        }
    }
}
