//! The fast path: a new delivery is stored as claimed, and after the commit the queue is asked to admit it. If the
//! queue declines, the claim is released in the store and the job is woken. Between these steps the process may stall
//! or die.

use crate::{
    Scenario,
    permit::{Permit, Stage},
    scenario::{FastPath, Remedy},
    state::State,
};

impl Permit {
    pub(crate) fn is_fast_path_claim(&self) -> bool {
        matches!(self.stage, Stage::FastPathClaimed { .. })
    }
}

impl State {
    /// Ingests one event and stores its delivery as claimed.
    pub(crate) fn producer_commits_claimed(&mut self, scenario: &Scenario) -> bool {
        let uses_fast_path = match scenario.fast_path {
            FastPath::Closed => false,
            // Room for one delivery at a time: only the next slot is free now.
            FastPath::KeepsRoom => {
                let is_reserved = self.permits.iter().any(|permit| permit.is_fast_path_claim());
                !is_reserved && self.has_room_now(scenario, self.store.version)
            }
            FastPath::Guesses => true,
        };
        uses_fast_path && self.ingest_claimed(scenario)
    }

    /// Asks the queue to admit the delivery. A lost answer matters only when the call is repeated without a name: the
    /// queue would decide again, and decline because the permit is already out. A call that does not arrive is modelled
    /// as a crash before it.
    pub(crate) fn fast_path_admits(&mut self, scenario: &Scenario, permit: usize, reply_lost: bool) -> bool {
        if !self.permits[permit].is_fast_path_claim() {
            return false;
        }
        if !self.admit(scenario, permit) {
            self.permits[permit].stage = Stage::Declined;
            return !reply_lost;
        }
        // Without a name the repetition is declined, because the permit is out. So the claim is released although it
        // may be used.
        if reply_lost && !scenario.has(Remedy::AdmitOnce) {
            self.release(scenario, permit);
            self.wake(scenario, 0);
        }
        true
    }

    /// Gives back the claim of a declined delivery. The wake is a separate step.
    pub(crate) fn fast_path_releases(&mut self, scenario: &Scenario, permit: usize) -> bool {
        if self.permits[permit].stage != Stage::Declined {
            return false;
        }
        if scenario.has(Remedy::DeclineReleases) {
            self.release(scenario, permit);
        }
        self.permits[permit].stage = if scenario.has(Remedy::DeclineWakes) { Stage::Waking } else { Stage::Gone };
        true
    }

    /// The process that stored the claim dies before the admission, or before it releases the claim.
    pub(crate) fn fast_path_crashes(&mut self, permit: usize) -> bool {
        let stage = &mut self.permits[permit].stage;
        matches!(std::mem::replace(stage, Stage::Gone), Stage::FastPathClaimed { .. } | Stage::Declined)
    }
}
