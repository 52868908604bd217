//! The steps of those around schedulers and workers: the producer, the operator, and what befalls the queue's memory.

use crate::{
    Scenario,
    permit::Permit,
    state::{Scheduler, State},
};

impl State {
    /// One event is ingested; its wake is a step of its own.
    pub(crate) fn producer_commits(&mut self, scenario: &Scenario) -> bool {
        let ready = !self.wake_owed;
        self.wake_owed = true;
        ready && self.ingest(scenario)
    }

    pub(crate) fn producer_wakes(&mut self, scenario: &Scenario) -> bool {
        self.wake(scenario, 0);
        std::mem::take(&mut self.wake_owed)
    }

    pub(crate) fn rate_is_edited(&mut self, scenario: &Scenario) -> bool {
        let Some(rate) = scenario.edited_rate.filter(|_| self.edits_left > 0) else { return false };
        self.store.rate = rate;
        self.edits_left -= 1;
        self.edit_owed = true;
        true
    }

    pub(crate) fn edit_is_noticed(&mut self, scenario: &Scenario) -> bool {
        self.edited(scenario);
        std::mem::take(&mut self.edit_owed)
    }

    /// Everything but the store is gone. At the start no other process can hold a claim, so all are resolved.
    pub(crate) fn process_restarts(&mut self, scenario: &Scenario) {
        let unrecorded = self.permits.iter().filter(|permit| permit.awaits_record()).count();
        self.witness.crashed_after_send += unrecorded as u8;
        self.lose_queue(scenario, None);
        self.permits.fill(Permit::FREE);
        self.schedulers.fill(Scheduler::Idle);
        self.wake_owed = false;
        self.edit_owed = false;
        self.recover_claims(true);
    }

    pub(crate) fn save_queue(&mut self) -> bool {
        let first = self.snapshot.is_none();
        self.snapshot = Some(self.queue);
        self.permits.iter_mut().for_each(|permit| permit.saved = permit.kept);
        first
    }
}
