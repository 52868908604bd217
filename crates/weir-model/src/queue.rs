//! The operations of the queue. Each is atomic: the in-process queue holds its lock, and Redis runs one script.

use crate::{
    permit::{Entry, Permit, QueueView, Set, Stage},
    scenario::{CADENCE, FastPath, GRANT_AHEAD, LEAD, LEASE, Remedy, SLOT_HORIZON, Scenario, TIMEOUT},
    state::{JobLease, NextRun, Phase, Plan, Queue, Scheduler, State, Ticks},
};

/// The answer to a worker that asks for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SlotAnswer {
    /// A slot is granted that starts at this tick.
    Granted(Ticks),
    /// The next slot starts too far ahead to be granted now.
    Later,
    /// The worker hands the permit back.
    Withdrawn,
}

impl State {
    pub(crate) fn wake(&mut self, scenario: &Scenario, wake: Ticks) {
        match &mut self.queue.phase {
            Phase::Idle => self.queue.phase = Phase::Scheduled { due: wake, floor: 0 },
            Phase::Scheduled { due, floor } => {
                if scenario.has(Remedy::WakePullsForward) {
                    *due = wake.max(*floor).min(*due);
                }
            }
            Phase::Leased { woken, .. } => *woken = Some(woken.map_or(wake, |due| due.min(wake))),
        }
    }

    /// Applies the terms of an edit, unless the queue knows newer ones. The job runs at once, even if it was parked.
    pub(crate) fn edited(&mut self, scenario: &Scenario, version: u8) {
        // For the properties the terms are in force from here on, even if the queue ignores them.
        self.announce_terms(scenario, version);
        // Announcements may overtake each other, so older terms are ignored.
        if scenario.has(Remedy::EditVersion) && scenario.is_newer(self.queue.version, version) {
            return;
        }
        if scenario.has(Remedy::GrantLimits) {
            self.follow(version);
        }
        self.queue.backlog_ended = false;
        match self.queue.phase {
            Phase::Idle | Phase::Scheduled { .. } => self.queue.phase = Phase::Scheduled { due: 0, floor: 0 },
            Phase::Leased { .. } => self.wake(scenario, 0),
        }
    }

    pub(crate) fn job_is_due(&self) -> bool {
        match self.queue.phase {
            Phase::Idle => false,
            Phase::Scheduled { due, .. } | Phase::Leased { expires: due, .. } => due == 0,
        }
    }

    pub(crate) fn claim_due(&mut self, scenario: &Scenario) -> JobLease {
        self.queue.phase = Phase::Leased { expires: LEASE, woken: None };
        // Expired permits leave their sets. Their entries stay in the delivery queue.
        if scenario.has(Remedy::PermitDeadlines) {
            for permit in self.permits.iter_mut().filter(|permit| permit.expires < 0) {
                permit.in_queue = QueueView { entry: permit.in_queue.entry, ..QueueView::ABSENT };
            }
        }
        // All earlier leases of the job are stale from here on.
        for scheduler in &mut self.schedulers {
            if let Scheduler::Leased(lease) | Scheduler::Planned(lease, _) = scheduler {
                lease.current = false;
            }
        }
        // The room that the fast path has reserved counts as queued.
        let keeps_room = |permit: &Permit| permit.is_fast_path_claim() && scenario.fast_path == FastPath::KeepsRoom;
        let is_queued = |permit: &&Permit| permit.in_queue.set == Set::Queued || keeps_room(permit);
        let queued = self.permits.iter().filter(is_queued).count();
        JobLease { current: true, foreign: false, queued: queued as u8, cursor: self.queue.cursor }
    }

    /// Publishes the claims of a scheduler and re-queues the job; `false` when the lease or the terms are stale.
    pub(crate) fn publish(&mut self, scenario: &Scenario, scheduler: usize, (lease, plan): (JobLease, Plan)) -> bool {
        // Only a leased job has a run whose result can be published.
        let Phase::Leased { woken, .. } = self.queue.phase else { return false };
        // The lease is of this generation, and the job has not been claimed again since.
        let matches = if lease.foreign {
            // Epochs start again with an empty queue, so only the generation shows that the lease is stale.
            !scenario.has(Remedy::Generation)
        } else {
            lease.current || !scenario.has(Remedy::PublishEpoch)
        };
        if !matches {
            return false;
        }
        // The queue knows newer terms than the run has read: another run is needed, with those terms.
        if scenario.has(Remedy::PublishVersion) && scenario.is_newer(self.queue.version, plan.version) {
            self.queue.phase = Phase::Scheduled { due: 0, floor: 0 };
            return false;
        }
        // Without its remedy a stale publication reaches this line. It is noted here, so that a property finds it.
        self.witness.stale_published |= lease.foreign || !lease.current;
        // The terms of the run are in force from here on, even if their edit is never announced.
        self.follow(plan.version);
        self.announce_terms(scenario, plan.version);
        // A recovered cursor counts only while the queue has none.
        self.queue.cursor = self.queue.cursor.or(plan.recovered);
        // The claims become permits, and the job is re-queued in the same step. Its pace counts these permits.
        for permit in &mut self.permits {
            if permit.stage == (Stage::Claimed { scheduler: scheduler as u8 }) {
                permit.issue();
            }
        }
        let pace = self.paced_due(scenario);
        self.queue.requeue(scenario, plan.next, woken, pace);
        true
    }

    /// Publishes the same delivery again; `false` when this world has no room for another permit.
    pub(crate) fn issue_again(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let copy = self.permits[permit];
        self.free_permit(scenario).map(|place| *place = copy).is_some()
    }

    /// Publishes the claim of a producer without a run; `false` when the delivery has to wait for a run.
    pub(crate) fn admit(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let Stage::FastPathClaimed { version } = self.permits[permit].stage else { return false };
        // Without the remedy, an unknown cursor counts as one without recent sends.
        if !scenario.has(Remedy::AdmitNeedsCursor) && self.queue.cursor.is_none() {
            self.queue.cursor = Some(scenario.long_ago());
            self.queue.backlog_ended = true;
        }
        // With reserved room most conditions were checked before the commit. Otherwise all are checked here.
        let open = match scenario.fast_path {
            FastPath::KeepsRoom => self.queue.cursor.is_some() && !scenario.terms(self.queue.version).suspended,
            FastPath::Closed | FastPath::Guesses => self.has_room_now(scenario, version),
        };
        if open {
            self.witness.admitted_under_old_terms |= version == self.store.version && version != self.queue.version;
            self.permits[permit].issue();
        }
        open
    }

    /// Whether a delivery that was stored under these terms can be sent at once: the last run found less than it was
    /// allowed to claim, and a slot is free.
    pub(crate) fn has_room_now(&self, scenario: &Scenario, version: u8) -> bool {
        let knows = version == self.queue.version || !scenario.has(Remedy::AdmitChecksVersion);
        let is_free = self.start_after_queued(scenario).is_some_and(|start| start <= 0);
        self.queue.backlog_ended && knows && is_free && !scenario.terms(self.queue.version).suspended
    }

    /// Applies the terms of this version. A slot from before an edit is not given back.
    fn follow(&mut self, version: u8) {
        if self.queue.version != version {
            self.queue.version = version;
            self.keep_last_slot();
        }
    }

    /// Takes a slot, the only way to send. One step checks all conditions, gives a missed slot back, moves the cursor
    /// and marks the permit in flight.
    pub(crate) fn take_slot(&mut self, scenario: &Scenario, permit: usize) -> SlotAnswer {
        let answer = self.slot_answer(scenario, permit);
        if let SlotAnswer::Granted(start) = answer {
            let before = self.cursor_without_missed(scenario, permit);
            self.keep_last_slot();
            (self.queue.before_last, self.queue.cursor) = (before, Some(start));
            self.permits[permit].has_last_slot = true;
            self.permits[permit].in_queue.set = Set::InFlight;
        }
        answer
    }

    /// The cursor for the next slot of this permit. While the slot that the permit has missed is the last one, the
    /// cursor is as it was before this slot.
    fn cursor_without_missed(&self, scenario: &Scenario, permit: usize) -> Option<Ticks> {
        let Permit { slot, has_last_slot, .. } = self.permits[permit];
        let missed = slot.is_some_and(|start| start < 0);
        if missed && has_last_slot {
            return self.queue.before_last;
        }
        // Without the remedy any missed slot gives a spacing back.
        let spacing = scenario.spacing(scenario.terms(self.queue.version).rate);
        let given_back = if missed && !scenario.has(Remedy::GiveBackLast) { spacing } else { 0 };
        self.queue.cursor.map(|last| (last - given_back).max(scenario.long_ago()))
    }

    /// The last slot was used, or is not given back for another reason.
    pub(crate) fn keep_last_slot(&mut self) {
        self.queue.before_last = None;
        for permit in &mut self.permits {
            permit.has_last_slot = false;
        }
    }

    /// The answer to a worker that asks for a slot. A worker does not ask when its claim may expire before the result
    /// is recorded; the model checks this here.
    pub(crate) fn slot_answer(&self, scenario: &Scenario, permit: usize) -> SlotAnswer {
        let Permit { in_queue, expires, .. } = self.permits[permit];
        let terms = scenario.terms(self.queue.version);
        let is_good = in_queue.set != Set::None && expires > TIMEOUT;
        let is_open = !terms.suspended || !scenario.has(Remedy::GrantSuspension);
        // No slot without a good permit, with suspended terms, or with an unknown cursor.
        let cursor = self.cursor_without_missed(scenario, permit);
        let Some(last) = cursor.filter(|_| is_good && is_open) else { return SlotAnswer::Withdrawn };
        let start = next_start(last, scenario.spacing(terms.rate));
        let ahead = if scenario.has(Remedy::GrantAhead) { GRANT_AHEAD } else { SLOT_HORIZON };
        if start <= ahead {
            SlotAnswer::Granted(start)
        } else if start <= SLOT_HORIZON {
            SlotAnswer::Later
        } else {
            SlotAnswer::Withdrawn
        }
    }

    /// The start of the first slot that no outstanding permit will take.
    fn start_after_queued(&self, scenario: &Scenario) -> Option<Ticks> {
        let queued = self.permits.iter().filter(|permit| permit.in_queue.set == Set::Queued).count();
        let spacing = scenario.spacing(scenario.terms(self.queue.version).rate);
        self.queue.cursor.map(|last| next_start(last, spacing) + queued as Ticks * spacing)
    }

    fn paced_due(&self, scenario: &Scenario) -> Ticks {
        (self.start_after_queued(scenario).unwrap_or(0) - LEAD).max(CADENCE)
    }

    /// An unused permit leaves its slot free, so a paced run that waits for the next slot is due sooner.
    pub(crate) fn pull_pace(&mut self, scenario: &Scenario) {
        let pace = self.paced_due(scenario);
        if let Phase::Scheduled { due, floor } = &mut self.queue.phase
            && due == floor
            && pace < *due
        {
            (*due, *floor) = (pace, pace);
        }
    }

    /// Redis loses its state and comes back with the state of the snapshot, or empty without a snapshot.
    pub(crate) fn lose_queue(&mut self, scenario: &Scenario, snapshot: Option<Queue>) {
        // Generations make the state of a snapshot void, as if the queue had come back empty.
        let restored = snapshot.filter(|_| !scenario.has(Remedy::Generation));
        for permit in &mut self.permits {
            permit.in_queue = if restored.is_some() { permit.in_snapshot } else { QueueView::ABSENT };
            permit.in_snapshot = QueueView::ABSENT;
            // No worker can take a published permit whose entry is lost.
            if permit.stage == Stage::Published && permit.in_queue.entry != Entry::Ready {
                permit.stage = Stage::Gone;
            }
        }
        // No lease from before belongs to the new state.
        for scheduler in &mut self.schedulers {
            if let Scheduler::Leased(lease) | Scheduler::Planned(lease, _) = scheduler {
                lease.foreign = true;
            }
        }
        self.snapshot = None;
        let empty = Queue {
            phase: Phase::Idle,
            cursor: None,
            before_last: None,
            version: 0,
            backlog_ended: false,
            generation_age: 0,
        };
        self.queue = restored.unwrap_or(empty);
        self.keep_last_slot();
    }
}

impl Queue {
    fn requeue(&mut self, scenario: &Scenario, next: NextRun, woken: Option<Ticks>, pace: Ticks) {
        self.backlog_ended = scenario.fast_path != FastPath::Closed && matches!(next, NextRun::Stop | NextRun::At(_));
        // A wake during the lease counts: a stop would lose it, and a later due time would delay it.
        self.phase = match (next, woken) {
            (NextRun::Stop, Some(due)) if scenario.has(Remedy::WakeVersion) => Phase::Scheduled { due, floor: 0 },
            (NextRun::Stop, _) => {
                if !scenario.has(Remedy::CursorOutlivesStop) {
                    self.cursor = None;
                }
                Phase::Idle
            }
            (NextRun::At(due), Some(wake)) if scenario.has(Remedy::WakePullsForward) => {
                Phase::Scheduled { due: due.min(wake), floor: 0 }
            }
            (NextRun::At(due), _) => Phase::Scheduled { due, floor: 0 },
            (NextRun::Paced, _) => Phase::Scheduled { due: pace, floor: pace },
        };
    }
}

/// The earliest start of the next slot after the last one.
pub(crate) fn next_start(last: Ticks, spacing: Ticks) -> Ticks {
    (last + spacing).max(0)
}

impl Permit {
    /// Puts the permit into the delivery queue.
    fn issue(&mut self) {
        self.stage = Stage::Published;
        self.in_queue = QueueView { entry: Entry::Ready, set: Set::Queued };
    }
}
