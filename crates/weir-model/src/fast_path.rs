//! The fast path: a new delivery is stored as claimed, and the queue asked to admit it after the commit. What it does not
//! admit goes back to the store, and its job is woken. Between the two the process may stall or die.

use crate::{
    Scenario,
    permit::{Permit, Stage},
    scenario::FastPath,
    state::State,
};

impl Permit {
    pub(crate) fn is_boarded(&self) -> bool {
        matches!(self.stage, Stage::Boarded { .. })
    }
}

impl State {
    /// One event is ingested, its delivery as claimed.
    pub(crate) fn producer_commits_claimed(&mut self, scenario: &Scenario) -> bool {
        let boards = match scenario.fast_path {
            FastPath::Closed => false,
            // Under a limit one at a time: the slot after the next is not free.
            FastPath::KeepsRoom => {
                let kept = self.permits.iter().any(|permit| permit.is_boarded());
                !kept && self.has_room_now(scenario, self.store.version)
            }
            FastPath::Guesses => true,
        };
        boards && self.ingest_claimed(scenario)
    }

    /// The queue is asked. A lost answer matters only if the call is repeated without a name: it would be decided anew, and
    /// declined because of the permit that is out. A call that did not arrive is a crash before it.
    pub(crate) fn fast_path_admits(&mut self, scenario: &Scenario, permit: usize, reply_lost: bool) -> bool {
        if !self.permits[permit].is_boarded() {
            return false;
        }
        if !self.admit(scenario, permit) {
            self.permits[permit].stage = Stage::Declined;
            return !reply_lost;
        }
        if reply_lost && !scenario.remedies.admit_once {
            self.release(scenario, permit);
            self.wake(scenario, 0);
        }
        true
    }

    /// The claim of what was not admitted goes back; the wake is a step of its own.
    pub(crate) fn fast_path_releases(&mut self, scenario: &Scenario, permit: usize) -> bool {
        if self.permits[permit].stage != Stage::Declined {
            return false;
        }
        if scenario.remedies.decline_releases {
            self.release(scenario, permit);
        }
        self.permits[permit].stage = if scenario.remedies.decline_wakes { Stage::Waking } else { Stage::Gone };
        true
    }

    /// The process dies that stored a claim and has not had it admitted, or not given it back.
    pub(crate) fn fast_path_crashes(&mut self, permit: usize) -> bool {
        let stage = &mut self.permits[permit].stage;
        matches!(std::mem::replace(stage, Stage::Gone), Stage::Boarded { .. } | Stage::Declined)
    }
}
