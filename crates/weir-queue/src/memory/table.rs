//! The queue as a state machine without threads or clocks: every job, the schedule over them, and the delivery queue.
//!
//! Invariants: a job is in `schedule` exactly while it is Scheduled or Leased, at its due time or its lease's end; a permit
//! is in at most one of `queued` and `in_flight`; slots are handed out by [`Cursors`] only.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use weir_core::{
    Destination, DestinationId, IdMap, Limiter, Timestamp,
    claim::ClaimedDelivery,
    plan::{LAG_DEPTH, NextRun, paced_due},
};

use super::job::{Cursors, Job, Meanwhile, Phase};
use crate::{Edit, Lease, Permit, PermitId, Publication, Published, RUN_FALLBACK, Room, SlotAnswer, SlotRequest, Wake};

/// Idle jobs are kept, so that their next run needs nothing from the store, until there are so many more than busy ones.
const IDLE_KEPT: usize = 20_000;

/// How much of everything there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depths {
    /// Permits that no worker has taken.
    pub ready: usize,
    /// Permits whose sends have not started, taken or not.
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

    pub fn edited(&mut self, now: Timestamp, edit: Edit) {
        let job = self.jobs.entry(edit.destination_id).or_insert_with(Job::new);
        job.version += 1;
        job.suspended_at = edit.suspended.then_some(job.version);
        // The next run follows the edit, and tells anew whether there is a backlog.
        job.express_ahead = None;
        match job.phase {
            Phase::Leased { .. } => job.meanwhile.edited = true,
            Phase::Idle | Phase::Scheduled { .. } => self.schedule(edit.destination_id, now, Timestamp::MIN, false),
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
                issued: job.cursors.as_ref().map(|cursors| cursors.issued.clone()),
                known_since: self.known_since,
            });
        }
        leases
    }

    /// Publishes what a run claimed and ends it, unless it continues. A stale epoch publishes nothing, and nothing is published
    /// that nobody takes any more.
    pub fn publish(&mut self, now: Timestamp, publication: Publication) -> Published {
        let Publication { lease, limits, recovered, deliveries, next } = publication;
        let destination_id = lease.destination_id;
        let Some(job) = self.jobs.get_mut(&destination_id) else { return Published::Stale(deliveries) };
        if job.epoch != lease.epoch || !matches!(job.phase, Phase::Leased { .. }) {
            return Published::Stale(deliveries);
        }
        // The run may have read the destination before the edit: its limits, or that it was not paused.
        if job.meanwhile.edited {
            self.schedule(destination_id, now, Timestamp::MIN, false);
            return Published::Stale(deliveries);
        }
        // A run that was under way when the worker stopped: nobody would take its permits, nor give them back.
        if self.closed && !deliveries.is_empty() {
            return Published::Stale(deliveries);
        }
        if !deliveries.is_empty() {
            // The run read the destination after its last edit and found it neither paused nor deleted.
            job.suspended_at = None;
        }
        let held_until = job.held_until;
        let cursors = job.cursors.get_or_insert_with(|| {
            let mut cursors = Cursors::new(recovered.unwrap_or_else(|| Limiter::recovered(&limits, Some(now))));
            cursors.hold(held_until);
            cursors
        });
        cursors.follow(&limits);
        deliveries.into_iter().for_each(|delivery| self.issue(now, delivery));
        self.requeue(now, &lease, next);
        Published::Done
    }

    /// Publishes one permit of a job whose cursors are known.
    fn issue(&mut self, now: Timestamp, delivery: ClaimedDelivery) {
        let destination_id = delivery.claim.destination_id;
        let Some(job) = self.jobs.get_mut(&destination_id) else { return };
        let warm = job.is_warm(now);
        let Some(cursors) = &mut job.cursors else { return };
        self.last_serial += 1;
        let id = PermitId { destination_id, serial: self.last_serial };
        let slot = cursors.issue(now, id.serial, warm);
        job.queue(id.serial, delivery.expires_at);
        self.ready.push_back(Permit { id, slot, delivery });
    }

    /// Keeps room for a permit without a run, if there is room and a slot now.
    pub fn reserve(&mut self, now: Timestamp, destination: &Destination) -> Room {
        if self.closed || self.depth() > LAG_DEPTH {
            return Room::Closed;
        }
        let Some(job) = self.jobs.get_mut(&destination.id) else { return Room::Closed };
        let room = job.room(now, &destination.settings);
        if room.is_kept() {
            job.reserved += 1;
        }
        room
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
        let open = |job: &&mut Job| job.suspended_at.is_none() && job.held_until <= now && job.cursors.is_some();
        match self.jobs.get_mut(&destination_id).filter(open).filter(|job| job.reserved > 0 && !closed) {
            Some(job) => {
                job.reserved -= 1;
                self.issue(now, delivery);
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
        job.express_ahead = next.express_ahead();
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
                let due = job.cursors.as_ref().map_or(now, |cursors| paced_due(&cursors.issued, now));
                self.schedule(id, due, due, false);
            }
            (NextRun::OnWake, wake) => {
                self.schedule(id, wake.unwrap_or(now + RUN_FALLBACK), Timestamp::MIN, false);
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

    pub fn take_slot(&mut self, now: Timestamp, id: PermitId, request: SlotRequest) -> SlotAnswer {
        let Some(job) = self.jobs.get_mut(&id.destination_id) else { return SlotAnswer::Withdrawn };
        if let Some(expires) = job.in_flight.remove(&id.serial) {
            job.queued.insert(id.serial, expires);
        }
        if job.suspended_at.is_some() || job.queued.get(&id.serial).is_none_or(|expires| *expires <= now) {
            return SlotAnswer::Withdrawn;
        }
        job.set_warm(now, request.warm);
        let Some(cursors) = &mut job.cursors else { return SlotAnswer::Withdrawn };
        if request.in_exchange {
            cursors.give_back(now, id.serial);
        }
        if let Some(slot) = cursors.take_slot(now, id.serial) {
            return SlotAnswer::Granted(slot);
        }
        // The permit goes back. Another is issued in its place when that slot is near: the run that this one was the pace of comes
        // sooner.
        cursors.take_back_issued();
        let pace = paced_due(&cursors.issued, now);
        if let Phase::Scheduled { due, floor, on_settle: false } = job.phase
            && due == floor
            && pace < due
        {
            self.schedule(id.destination_id, pace, pace, false);
        }
        SlotAnswer::Withdrawn
    }

    pub fn start(&mut self, now: Timestamp, id: PermitId) -> bool {
        let Some(job) = self.jobs.get_mut(&id.destination_id) else { return false };
        if job.suspended_at.is_some() || job.held_until > now {
            return false;
        }
        if job.is_warm(now) {
            job.set_warm(now, true);
        }
        match job.queued.remove(&id.serial) {
            Some(expires) if expires > now => job.in_flight.insert(id.serial, expires).is_none(),
            _ => false,
        }
    }

    /// Forgets a permit, used or not; a job that waits for room runs.
    pub fn settle(&mut self, now: Timestamp, id: PermitId) {
        let Some(job) = self.jobs.get_mut(&id.destination_id) else { return };
        if job.in_flight.remove(&id.serial).or_else(|| job.queued.remove(&id.serial)).is_none() {
            return;
        }
        self.room_came(now, id.destination_id);
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
