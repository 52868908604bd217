//! The steps of the producer and the operator, and the faults of the whole process and of the queue.

use crate::{
    Scenario,
    permit::Permit,
    state::{Scheduler, State},
};

impl State {
    /// Ingests one event. The wake is a separate step.
    pub(crate) fn producer_commits(&mut self, scenario: &Scenario) -> bool {
        let ready = !self.wake_owed;
        self.wake_owed = true;
        ready && self.ingest(scenario)
    }

    pub(crate) fn producer_wakes(&mut self, scenario: &Scenario) -> bool {
        self.wake(scenario, 0);
        std::mem::take(&mut self.wake_owed)
    }

    /// The operator changes the terms. The announcement is a separate step.
    pub(crate) fn terms_are_edited(&mut self, scenario: &Scenario) -> bool {
        if usize::from(self.store.version) == scenario.edits.len() {
            return false;
        }
        self.store.version += 1;
        self.edits_owed |= 1 << self.store.version;
        true
    }

    pub(crate) fn edit_is_announced(&mut self, scenario: &Scenario, version: u8) -> bool {
        let owed = self.editor_crashes(version);
        if owed {
            self.edited(scenario, version);
        }
        owed
    }

    /// The editor dies: the edit is never announced.
    pub(crate) fn editor_crashes(&mut self, version: u8) -> bool {
        let owed = self.edits_owed;
        self.edits_owed &= !(1 << version);
        self.edits_owed != owed
    }

    /// Records that the terms are in force because they were announced to the queue.
    pub(crate) fn announce_terms(&mut self, scenario: &Scenario, version: u8) {
        let witness = &mut self.witness;
        witness.announced = witness.announced.max(version);
        witness.limits[0] = witness.limits[0].max(scenario.limit(witness.announced));
    }

    /// The only process restarts. Only the store survives. No other process can hold a claim, so all claims are
    /// resolved.
    pub(crate) fn process_restarts(&mut self, scenario: &Scenario) {
        let unrecorded = self.permits.iter().filter(|permit| permit.awaits_record()).count();
        self.witness.crashed_after_send += unrecorded as u8;
        self.lose_queue(scenario, None);
        self.permits.fill(Permit::FREE);
        self.schedulers.fill(Scheduler::Idle);
        self.wake_owed = false;
        self.edits_owed = 0;
        self.recover_claims(true);
    }

    pub(crate) fn save_queue(&mut self) -> bool {
        let first = self.snapshot.is_none();
        self.snapshot = Some(self.queue);
        self.permits.iter_mut().for_each(|permit| permit.in_snapshot = permit.in_queue);
        first
    }
}
