//! What a worker does with one permit, step by step. A worker makes thousands of attempts side by side and they share
//! nothing, so each permit has a worker of its own here; one that dies with several permits is several crashes.

use crate::{
    permit::{Entry, Kept, Permit, Stage},
    queue::SlotAnswer,
    scenario::Scenario,
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
        permit.slot = None;
        true
    }

    /// Whether a worker that stands ready has a slot to ask for: it has none, or has missed it.
    pub(crate) fn needs_slot(&self, scenario: &Scenario, permit: usize) -> bool {
        let Permit { stage, slot, .. } = self.permits[permit];
        stage == Stage::Taken && slot.is_none_or(|start| start < 0 && scenario.remedies.slot_gate)
    }

    /// Asks for a slot, unless its claim may expire before an answer is recorded.
    pub(crate) fn worker_takes_slot(&mut self, scenario: &Scenario, permit: usize) -> bool {
        if !self.needs_slot(scenario, permit) {
            return false;
        }
        match self.take_slot(scenario, permit) {
            SlotAnswer::Granted(start) => self.permits[permit].slot = Some(start),
            SlotAnswer::Later => return false,
            SlotAnswer::Withdrawn => self.permits[permit].stage = Stage::Withdrawn,
        }
        true
    }

    /// The request passes the gate.
    pub(crate) fn worker_sends(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        let opens = permit.slot.is_some_and(|start| start == 0 || (start < 0 && !scenario.remedies.slot_gate));
        if permit.stage != Stage::Taken || !opens {
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
        self.pull_pace(scenario);
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
