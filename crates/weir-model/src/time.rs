//! A tick passes: every future instant is one tick nearer, and every past instant ages until it no longer matters.

use crate::{
    permit::{Entry, Stage},
    queue::SlotAnswer,
    scenario::{GRANT_AHEAD, Remedy, Scenario, TIMEOUT},
    state::{Delivery, NextRun, Phase, Queue, Scheduler, State, Ticks},
};

/// Ages an instant by one tick, down to `least`: older instants make no difference.
fn age(instant: &mut Ticks, least: Ticks) {
    *instant = (*instant - 1).max(least);
}

/// The least value of a due time. It means: due. Since when makes no difference.
const DUE: Ticks = 0;
/// The least value of an expiry or an end. It means: over. How long ago makes no difference.
const OVER: Ticks = -1;

impl State {
    /// Whether a process could take a step now. A tick that passes then is a stall.
    pub(crate) fn a_process_could_act(&self, scenario: &Scenario) -> bool {
        // First the step of an idle scheduler that could claim the job, then the steps of the other processes.
        let job_waits = self.job_is_due() && self.idle_scheduler(scenario).is_some();
        job_waits
            || self.wake_owed
            || self.edits_owed != 0
            || self.schedulers.iter().any(|scheduler| *scheduler != Scheduler::Idle)
            || self.permits.iter().enumerate().any(|(place, permit)| match permit.stage {
                Stage::Published => true,
                // A restored queue may have an entry again whose permit has ended. A worker can take it.
                Stage::Gone => permit.in_queue.entry == Entry::Ready,
                // A worker that is told "later" waits for time to pass, and so does one whose slot has not begun.
                Stage::Taken if self.needs_slot(scenario, place) => {
                    self.slot_answer(scenario, place) != SlotAnswer::Later
                }
                Stage::Taken => permit.slot.is_some_and(|start| start <= 0),
                // A sent request waits for the receiver's answer. The claims of a scheduler are covered by the
                // scheduler itself.
                Stage::Sent | Stage::Claimed { .. } => false,
                Stage::FastPathClaimed { .. }
                | Stage::Declined
                | Stage::Answered { .. }
                | Stage::Waking
                | Stage::Withdrawn
                | Stage::Released => true,
            })
    }

    /// Lets a tick pass, unless a worker has to record a result first: a worker that takes longer counts as crashed.
    pub(crate) fn tick(&mut self, scenario: &Scenario) -> bool {
        if self.permits.iter().any(|permit| permit.awaits_record() && permit.sent == Some(-TIMEOUT)) {
            return false;
        }
        // The store. Without the remedy, claims never expire.
        let long_ago = scenario.long_ago();
        for delivery in &mut self.store.deliveries {
            match delivery {
                Delivery::Waiting { due } => age(due, DUE),
                Delivery::Claimed { expires } if scenario.has(Remedy::ClaimExpiry) => age(expires, OVER),
                Delivery::Claimed { .. } | Delivery::Absent | Delivery::Delivered => {}
            }
        }
        age(&mut self.store.last_sent, long_ago);
        // The queue. A snapshot ages too: a restore does not set the time back.
        for queue in [Some(&mut self.queue), self.snapshot.as_mut()].into_iter().flatten() {
            queue.tick(scenario);
        }
        // What the runs have read: cursors, and when the job runs next.
        for scheduler in &mut self.schedulers {
            match scheduler {
                Scheduler::Leased(lease) => lease.cursor.iter_mut().for_each(|start| age(start, long_ago)),
                Scheduler::Planned(lease, plan) => {
                    lease.cursor.iter_mut().chain(&mut plan.recovered).for_each(|start| age(start, long_ago));
                    if let NextRun::At(due) = &mut plan.next {
                        age(due, DUE);
                    }
                }
                Scheduler::Idle | Scheduler::Stale => {}
            }
        }
        // The deadlines, slots and sends of permits.
        for permit in &mut self.permits {
            age(&mut permit.expires, OVER);
            permit.slot.iter_mut().for_each(|start| age(start, OVER));
            permit.sent.iter_mut().for_each(|start| age(start, -TIMEOUT));
        }
        // The history moves by one tick. The part that no property reads any more is cleared, so that fewer states
        // differ.
        self.witness.sends.rotate_right(1);
        self.witness.sends[0] = 0;
        self.witness.sends[scenario.window as usize + 1..].fill(0);
        // The new tick begins with the terms in force. An edit in it may raise this value.
        self.witness.limits.rotate_right(1);
        self.witness.limits[0] = scenario.limit(self.witness.announced);
        self.witness.limits[(scenario.window + 1 + GRANT_AHEAD) as usize..].fill(0);
        true
    }
}

impl Queue {
    fn tick(&mut self, scenario: &Scenario) {
        match &mut self.phase {
            Phase::Idle => {}
            Phase::Scheduled { due, floor } => {
                age(due, DUE);
                age(floor, DUE);
            }
            Phase::Leased { expires, woken } => {
                age(expires, DUE);
                woken.iter_mut().for_each(|due| age(due, DUE));
            }
        }
        self.cursor.iter_mut().chain(&mut self.before_last).for_each(|last| age(last, scenario.long_ago()));
        self.generation_age = (self.generation_age + 1).min(scenario.old_age());
    }
}
