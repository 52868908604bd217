//! What a worker does with one permit, step by step. A worker makes thousands of attempts side by side and they share
//! nothing, so each permit has a worker of its own here; one that dies with several permits is several crashes.

use crate::{
    permit::{Entry, Kept, Permit, Set, Stage},
    scenario::{Scenario, TIMEOUT},
    state::{Delivery, State},
};

impl Permit {
    /// Sent, and the store does not know it yet.
    pub(crate) fn awaits_record(&self) -> bool {
        matches!(self.stage, Stage::Sent | Stage::Answered { .. })
    }
}

impl State {
    pub(crate) fn worker_takes(&mut self, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        if permit.kept.entry != Entry::Ready || !matches!(permit.stage, Stage::Published | Stage::Gone) {
            return false;
        }
        permit.stage = Stage::Taken;
        permit.kept.entry = Entry::Pending;
        true
    }

    /// The entry of a worker that died goes to another, if the protocol allows it.
    pub(crate) fn worker_reclaims(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        if scenario.remedies.at_most_once || permit.stage != Stage::Gone || permit.kept.entry != Entry::Pending {
            return false;
        }
        permit.stage = Stage::Taken;
        true
    }

    /// Asks for a slot when there is none, or it has passed.
    pub(crate) fn worker_takes_slot(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let Permit { stage, slot, .. } = self.permits[permit];
        let needs_slot = match stage {
            Stage::Taken => slot.is_none_or(|start| start < 0),
            Stage::Started => scenario.remedies.slot_gate && slot != Some(0),
            _ => false,
        };
        if !needs_slot {
            return false;
        }
        let slot = self.take_slot(scenario, permit).filter(|start| *start <= scenario.horizon());
        self.permits[permit].slot = slot;
        self.permits[permit].stage = if slot.is_some() { Stage::Taken } else { Stage::Withdrawn };
        true
    }

    /// Marks the permit as started, unless its claim may expire before an answer is recorded.
    pub(crate) fn worker_starts(&mut self, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        if permit.stage != Stage::Taken || permit.slot != Some(0) {
            return false;
        }
        if permit.expires <= TIMEOUT {
            permit.stage = Stage::Withdrawn;
            return true;
        }
        permit.stage = Stage::Started;
        if permit.kept.set == Set::Queued {
            permit.kept.set = Set::InFlight;
        }
        true
    }

    /// The request passes the gate.
    pub(crate) fn worker_sends(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        let opens = permit.slot == Some(0) || !scenario.remedies.slot_gate;
        if permit.stage != Stage::Started || !opens {
            return false;
        }
        self.witness.permit_used_twice |= permit.sent.is_some();
        self.witness.sends[0] += 1;
        self.witness.accepted[usize::from(permit.delivery)] += 1;
        permit.stage = Stage::Sent;
        permit.sent = Some(0);
        true
    }

    /// The answer is in: the destination has its room back at once.
    pub(crate) fn worker_is_answered(&mut self, permit: usize, refused: bool) -> bool {
        let permit = &mut self.permits[permit];
        if permit.stage != Stage::Sent {
            return false;
        }
        if refused {
            self.witness.accepted[usize::from(permit.delivery)] -= 1;
        }
        permit.stage = Stage::Answered { refused };
        permit.kept = Kept::NOTHING;
        true
    }

    pub(crate) fn worker_records(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let Stage::Answered { refused } = self.permits[permit].stage else { return false };
        let wakes = self.settle(scenario, permit, refused);
        self.permits[permit].stage = if wakes { Stage::Waking } else { Stage::Gone };
        true
    }

    pub(crate) fn worker_wakes(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let Permit { stage, delivery, .. } = self.permits[permit];
        if stage != Stage::Waking {
            return false;
        }
        self.permits[permit].stage = Stage::Gone;
        let due = match self.store.deliveries[usize::from(delivery)] {
            Delivery::Waiting { due } => due,
            // Another run had it meanwhile, and the wake is late.
            Delivery::Absent | Delivery::Claimed { .. } | Delivery::Delivered => 0,
        };
        self.wake(scenario, due);
        true
    }

    pub(crate) fn worker_releases(&mut self, scenario: &Scenario, permit: usize) -> bool {
        if self.permits[permit].stage != Stage::Withdrawn {
            return false;
        }
        self.release(scenario, permit);
        self.permits[permit].stage = Stage::Released;
        true
    }

    pub(crate) fn worker_hands_back(&mut self, scenario: &Scenario, permit: usize) -> bool {
        if self.permits[permit].stage != Stage::Released {
            return false;
        }
        self.permits[permit].stage = Stage::Gone;
        self.permits[permit].kept = Kept::NOTHING;
        self.wake(scenario, 0);
        true
    }

    pub(crate) fn worker_crashes(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        let of_others = matches!(permit.stage, Stage::Claimed { .. } | Stage::Boarded { .. } | Stage::Declined);
        if of_others || matches!(permit.stage, Stage::Published | Stage::Gone) {
            return false;
        }
        self.witness.crashed_after_send += u8::from(permit.awaits_record());
        permit.stage = Stage::Gone;
        if scenario.remedies.at_most_once {
            // Dropped once its worker is known to be dead; nothing depends on when.
            permit.kept.entry = Entry::None;
        }
        true
    }
}
