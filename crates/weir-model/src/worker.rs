//! The steps of a worker with one permit. A worker makes thousands of concurrent attempts that share no state, so in
//! the model each permit has its own worker. A worker that dies with several permits is several crashes.

use crate::{
    permit::{Entry, Permit, QueueView, Stage},
    queue::SlotAnswer,
    scenario::{Remedy, Scenario},
    state::{Delivery, State},
};

impl Permit {
    /// Whether the permit was sent and the result is not yet in the store.
    pub(crate) fn awaits_record(&self) -> bool {
        matches!(self.stage, Stage::Sent | Stage::Answered { .. })
    }
}

impl State {
    pub(crate) fn worker_takes(&mut self, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        if permit.in_queue.entry != Entry::Ready || !matches!(permit.stage, Stage::Published | Stage::Gone) {
            return false;
        }
        permit.stage = Stage::Taken;
        permit.in_queue.entry = Entry::Pending;
        true
    }

    /// Another worker takes over the entry of a dead worker, if the protocol allows it.
    pub(crate) fn worker_reclaims(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        if scenario.has(Remedy::AtMostOnce) || permit.stage != Stage::Gone || permit.in_queue.entry != Entry::Pending {
            return false;
        }
        permit.stage = Stage::Taken;
        permit.slot = None;
        true
    }

    /// Whether a ready worker has to ask for a slot: it has none, or has missed its slot.
    pub(crate) fn needs_slot(&self, scenario: &Scenario, permit: usize) -> bool {
        let Permit { stage, slot, .. } = self.permits[permit];
        stage == Stage::Taken && slot.is_none_or(|start| start < 0 && scenario.has(Remedy::SlotGate))
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

    /// The request passes the slot gate.
    pub(crate) fn worker_sends(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        let opens = permit.slot.is_some_and(|start| start == 0 || (start < 0 && !scenario.has(Remedy::SlotGate)));
        if permit.stage != Stage::Taken || !opens {
            return false;
        }
        self.witness.permit_used_twice |= permit.sent.is_some();
        self.witness.sends[0] += 1;
        self.witness.accepted[usize::from(permit.delivery)] += 1;
        permit.stage = Stage::Sent;
        permit.sent = Some(0);
        if permit.has_last_slot {
            self.keep_last_slot();
        }
        true
    }

    /// The answer arrives and frees the room below `max_in_flight` at once.
    pub(crate) fn worker_is_answered(&mut self, permit: usize, refused: bool) -> bool {
        let permit = &mut self.permits[permit];
        if permit.stage != Stage::Sent {
            return false;
        }
        if refused {
            self.witness.accepted[usize::from(permit.delivery)] -= 1;
        }
        permit.stage = Stage::Answered { refused };
        permit.in_queue = QueueView::ABSENT;
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
            // The delivery was claimed again before this wake.
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
        self.permits[permit].in_queue = QueueView::ABSENT;
        self.pull_pace(scenario);
        self.wake(scenario, 0);
        true
    }

    pub(crate) fn worker_crashes(&mut self, scenario: &Scenario, permit: usize) -> bool {
        let permit = &mut self.permits[permit];
        let of_others = matches!(permit.stage, Stage::Claimed { .. } | Stage::FastPathClaimed { .. } | Stage::Declined);
        if of_others || matches!(permit.stage, Stage::Published | Stage::Gone) {
            return false;
        }
        self.witness.crashed_after_send += u8::from(permit.awaits_record());
        permit.stage = Stage::Gone;
        if scenario.has(Remedy::AtMostOnce) {
            // The entry is dropped once its worker is known to be dead. No other step depends on the time of this.
            permit.in_queue.entry = Entry::None;
        }
        if permit.has_last_slot {
            self.keep_last_slot();
        }
        true
    }
}
