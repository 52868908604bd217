//! The queue's operations, each atomic: what the in-process queue does under its lock and Redis in one script.

use crate::{
    permit::{Entry, Kept, Permit, Set, Stage},
    scenario::{CADENCE, Express, LEAD, LEASE, Scenario},
    state::{Cursors, Lease, NextRun, Phase, Plan, Queue, Scheduler, State, Ticks},
};

impl State {
    pub(crate) fn wake(&mut self, scenario: &Scenario, wake: Ticks) {
        match &mut self.queue.phase {
            Phase::Idle => self.queue.phase = Phase::Scheduled { due: wake, floor: 0 },
            Phase::Scheduled { due, floor } => {
                if scenario.remedies.wake_pulls_forward {
                    *due = wake.max(*floor).min(*due);
                }
            }
            Phase::Leased { woken, .. } => *woken = Some(woken.map_or(wake, |due| due.min(wake))),
        }
    }

    /// The job runs at once, whatever it waits for.
    pub(crate) fn edited(&mut self, scenario: &Scenario) {
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

    pub(crate) fn claim_due(&mut self, scenario: &Scenario) -> Lease {
        self.queue.phase = Phase::Leased { expires: LEASE, woken: None };
        if scenario.remedies.permit_deadlines {
            for permit in self.permits.iter_mut().filter(|permit| permit.expires < 0) {
                permit.kept = Kept { entry: permit.kept.entry, ..Kept::NOTHING };
            }
        }
        for scheduler in &mut self.schedulers {
            if let Scheduler::Leased(lease) | Scheduler::Planned(lease, _) = scheduler {
                lease.current = false;
            }
        }
        let keeps_room = |permit: &Permit| permit.is_boarded() && scenario.express == Express::KeepsRoom;
        let is_queued = |permit: &&Permit| permit.kept.set == Set::Queued || keeps_room(permit);
        let queued = self.permits.iter().filter(is_queued).count();
        Lease {
            current: true,
            foreign: false,
            queued: queued as u8,
            issued: self.queue.cursors.map(|cursors| cursors.issued),
        }
    }

    /// Publishes the claims of a scheduler and re-queues the job; `false` when the lease is stale.
    pub(crate) fn publish(
        &mut self,
        scenario: &Scenario,
        scheduler: usize,
        (lease, plan): (Lease, Plan),
        warm: bool,
    ) -> bool {
        let Phase::Leased { woken, .. } = self.queue.phase else { return false };
        let matches = if lease.foreign {
            // Epochs begin anew with the queue; only the generation tells that these are not the same.
            !scenario.remedies.generation
        } else {
            lease.current || !scenario.remedies.publish_epoch
        };
        if !matches {
            return false;
        }
        self.witness.stale_published |= lease.foreign || !lease.current;
        if self.queue.rate != plan.rate {
            self.queue.rate = plan.rate;
            self.forget_last();
        }
        let recovered = plan.recovered.map(|start| Cursors { issued: start, slots: start });
        self.queue.cursors = self.queue.cursors.or(recovered);
        for permit in 0..self.permits.len() {
            if self.permits[permit].stage == (Stage::Claimed { scheduler: scheduler as u8 }) {
                self.issue(scenario, permit, warm);
            }
        }
        self.queue.requeue(scenario, plan.next, woken);
        true
    }

    /// Publishes the claim of a producer without a run; `false` when it has to wait for one.
    pub(crate) fn admit(&mut self, scenario: &Scenario, permit: usize, warm: bool) -> bool {
        let Stage::Boarded { rate } = self.permits[permit].stage else { return false };
        if scenario.remedies.admit_in_force && rate != self.queue.rate {
            return false;
        }
        let idle = Cursors { issued: scenario.long_ago(), slots: scenario.long_ago() };
        if !scenario.remedies.admit_knows && self.queue.cursors.is_none() {
            self.queue.cursors = Some(idle);
            self.queue.dry = true;
        }
        let runs_use = self.queue.cursors;
        if !scenario.remedies.admit_paces {
            self.queue.cursors = runs_use.and(Some(idle));
        }
        let open = match scenario.express {
            Express::KeepsRoom => self.queue.cursors.is_some(),
            Express::Closed | Express::Guesses => self.queue.has_room_now(scenario),
        };
        if open {
            self.witness.old_limits_admitted |= rate == self.store.rate && rate != self.queue.rate;
            self.issue(scenario, permit, warm);
        }
        if !scenario.remedies.admit_paces {
            self.queue.cursors = runs_use;
        }
        open
    }

    /// Another slot, in exchange for the one that was missed if there was one; `None` when the permit is not good any more.
    pub(crate) fn take_slot(&mut self, scenario: &Scenario, permit: usize) -> Option<Ticks> {
        let Permit { kept, expires, slot: missed, .. } = &mut self.permits[permit];
        if kept.set == Set::InFlight {
            kept.set = Set::Queued;
        }
        if kept.set != Set::Queued || *expires <= 0 {
            return None;
        }
        let in_exchange = missed.is_some() && (kept.has_last || !scenario.remedies.exchange_last);
        let slot = self.queue.take_slot(scenario, in_exchange);
        match slot {
            Some(_) => self.gave_last(permit),
            None => self.queue.take_back_issued(scenario),
        }
        slot
    }

    /// Publishes one permit.
    fn issue(&mut self, scenario: &Scenario, permit: usize, warm: bool) {
        self.queue.publish(scenario, &mut self.permits[permit], warm);
        if self.permits[permit].slot.is_some() {
            self.gave_last(permit);
        }
    }

    fn gave_last(&mut self, permit: usize) {
        self.forget_last();
        self.permits[permit].kept.has_last = true;
    }

    fn forget_last(&mut self) {
        self.permits.iter_mut().for_each(|permit| permit.kept.has_last = false);
    }

    /// Redis is gone, and comes back as it was at the snapshot or, without one, empty.
    pub(crate) fn lose_queue(&mut self, scenario: &Scenario, snapshot: Option<Queue>) {
        let restored = snapshot.filter(|_| !scenario.remedies.generation);
        for permit in &mut self.permits {
            permit.kept = if restored.is_some() { permit.saved } else { Kept::NOTHING };
            permit.saved = Kept::NOTHING;
            if permit.stage == Stage::Published && permit.kept.entry != Entry::Ready {
                permit.stage = Stage::Gone;
            }
        }
        for scheduler in &mut self.schedulers {
            if let Scheduler::Leased(lease) | Scheduler::Planned(lease, _) = scheduler {
                lease.foreign = true;
            }
        }
        self.snapshot = None;
        let empty = Queue { phase: Phase::Idle, cursors: None, rate: self.store.rate, dry: false, generation_age: 0 };
        self.queue = restored.unwrap_or(empty);
    }
}

impl Queue {
    /// Nothing keeps a new delivery from being sent at once: next to nothing waits, and a slot is free.
    pub(crate) fn has_room_now(&self, scenario: &Scenario) -> bool {
        let is_free = |last: Ticks| last + scenario.spacing(self.rate) <= 0;
        self.dry && self.cursors.is_some_and(|cursors| is_free(cursors.issued) && is_free(cursors.slots))
    }

    fn publish(&mut self, scenario: &Scenario, permit: &mut Permit, warm: bool) {
        permit.stage = Stage::Published;
        permit.kept = Kept { entry: Entry::Ready, set: Set::Queued, has_last: false };
        permit.slot = self.issue(scenario, warm);
    }

    /// Paces one more permit; a warm one gets its slot, a cold one takes it once it is connected.
    fn issue(&mut self, scenario: &Scenario, warm: bool) -> Option<Ticks> {
        let spacing = scenario.spacing(self.rate);
        take(&mut self.cursors.as_mut()?.issued, spacing);
        if !warm {
            return None;
        }
        let slot = self.take_slot(scenario, false);
        self.pace_by_slots();
        slot
    }

    /// The next slot, unless it is too far ahead to be granted: then the pace waits for the slots.
    /// In exchange for the last, it is as if that had not been.
    fn take_slot(&mut self, scenario: &Scenario, in_exchange: bool) -> Option<Ticks> {
        let spacing = scenario.spacing(self.rate);
        let last = &mut self.cursors.as_mut()?.slots;
        let mut trial = if in_exchange { *last - spacing } else { *last };
        let slot = take(&mut trial, spacing);
        if scenario.remedies.slot_horizon && slot > scenario.horizon() {
            self.pace_by_slots();
            return None;
        }
        *last = trial;
        Some(slot)
    }

    /// As if a permit had not been issued that found no slot: what it was the pace of comes sooner.
    fn take_back_issued(&mut self, scenario: &Scenario) {
        let spacing = scenario.spacing(self.rate);
        if let Some(cursors) = &mut self.cursors {
            cursors.issued = cursors.slots.max(cursors.issued - spacing);
        }
        let pace = self.paced_due(scenario);
        if let Phase::Scheduled { due, floor } = &mut self.phase
            && due == floor
        {
            (*due, *floor) = (pace.min(*due), pace.min(*floor));
        }
    }

    fn paced_due(&self, scenario: &Scenario) -> Ticks {
        let opens = self.cursors.map_or(0, |cursors| cursors.issued + scenario.spacing(self.rate));
        (opens - LEAD).max(CADENCE)
    }

    /// The pace follows slots that were missed and replaced.
    fn pace_by_slots(&mut self) {
        if let Some(cursors) = &mut self.cursors {
            cursors.issued = cursors.issued.max(cursors.slots);
        }
    }

    fn requeue(&mut self, scenario: &Scenario, next: NextRun, woken: Option<Ticks>) {
        let remedies = &scenario.remedies;
        self.dry = scenario.express != Express::Closed && matches!(next, NextRun::Stop | NextRun::At(_));
        self.phase = match (next, woken) {
            (NextRun::Stop, Some(due)) if remedies.wake_version => Phase::Scheduled { due, floor: 0 },
            (NextRun::Stop, _) => {
                if !remedies.cursors_outlive_stop {
                    self.cursors = None;
                }
                Phase::Idle
            }
            (NextRun::At(due), Some(wake)) if remedies.wake_pulls_forward => {
                Phase::Scheduled { due: due.min(wake), floor: 0 }
            }
            (NextRun::At(due), _) => Phase::Scheduled { due, floor: 0 },
            (NextRun::Later, _) => Phase::Scheduled { due: CADENCE, floor: CADENCE },
            (NextRun::Paced, _) => {
                let due = self.paced_due(scenario);
                Phase::Scheduled { due, floor: due }
            }
        };
    }
}

/// The start of the next slot after the last.
pub(crate) fn take(last: &mut Ticks, spacing: Ticks) -> Ticks {
    *last = (*last + spacing).max(0);
    *last
}
