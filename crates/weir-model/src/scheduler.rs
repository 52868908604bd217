//! The scheduler's steps, and the sweep. Between any two of them it may stall or die.

use crate::{
    permit::Stage,
    queue::take,
    scenario::{AfterLoss, CADENCE, LEAD, Scenario},
    state::{Lease, NextRun, Phase, Plan, Scheduler, State, Ticks},
};

impl State {
    pub(crate) fn idle_scheduler(&self, scenario: &Scenario) -> Option<usize> {
        let busy = self.schedulers.iter().filter(|scheduler| **scheduler != Scheduler::Idle).count();
        let idle = self.schedulers.iter().position(|scheduler| *scheduler == Scheduler::Idle);
        idle.filter(|_| busy < scenario.schedulers)
    }

    pub(crate) fn scheduler_claims_job(&mut self, scenario: &Scenario) -> bool {
        let Some(idle) = self.idle_scheduler(scenario).filter(|_| self.job_is_due()) else { return false };
        self.schedulers[idle] = Scheduler::Leased(self.claim_due(scenario));
        true
    }

    /// Reads the destination, decides, and claims in the store.
    pub(crate) fn scheduler_decides(&mut self, scenario: &Scenario, scheduler: usize) -> bool {
        let Scheduler::Leased(lease) = self.schedulers[scheduler] else { return false };
        let rate = self.store.rate;
        let recovered = if lease.issued.is_none() { self.recovered_cursors(scenario) } else { None };
        let plan = match lease.issued.or(recovered) {
            None => Plan { rate, recovered, next: NextRun::Later },
            Some(issued) => {
                let allow = allowance(scenario, rate, lease, issued);
                let Some(claimed) = self.claim(scenario, scheduler, allow) else { return false };
                let next =
                    if claimed < allow { self.next_due().map_or(NextRun::Stop, NextRun::At) } else { NextRun::Paced };
                Plan { rate, recovered, next }
            }
        };
        self.schedulers[scheduler] = Scheduler::Planned(lease, plan);
        true
    }

    /// Where cursors that were lost go on from; `None` while that cannot be known.
    fn recovered_cursors(&self, scenario: &Scenario) -> Option<Ticks> {
        let recorded = self.store.last_sent;
        if !self.unsettled() {
            return Some(recorded);
        }
        let age = self.queue.generation_age + scenario.haste;
        match scenario.remedies.after_loss {
            AfterLoss::CountsAsNow => Some(0),
            AfterLoss::Waits => (age >= scenario.quarantine()).then_some(recorded),
            AfterLoss::GoesOn => Some(recorded.max(scenario.horizon() - age)),
        }
    }

    pub(crate) fn scheduler_publishes(
        &mut self,
        scenario: &Scenario,
        scheduler: usize,
        warm: bool,
        reply_lost: bool,
    ) -> bool {
        let Scheduler::Planned(lease, plan) = self.schedulers[scheduler] else { return false };
        let of_run = self.permits.map(|permit| permit.stage == Stage::Claimed { scheduler: scheduler as u8 });
        let published = self.publish(scenario, scheduler, (lease, plan), warm);
        self.schedulers[scheduler] = if published { Scheduler::Idle } else { Scheduler::Stale };
        // With the remedy a lost reply changes nothing: a repeat finds the lease gone, and nothing is given back.
        if reply_lost && !scenario.remedies.never_unclaim {
            if !published {
                return false;
            }
            (0..self.permits.len()).filter(|&permit| of_run[permit]).for_each(|permit| self.release(scenario, permit));
            self.wake(scenario, 0);
        }
        true
    }

    /// Gives the claims of a stale run back.
    pub(crate) fn scheduler_gives_back(&mut self, scenario: &Scenario, scheduler: usize) -> bool {
        if self.schedulers[scheduler] != Scheduler::Stale {
            return false;
        }
        let mut released = false;
        for permit in 0..self.permits.len() {
            if self.permits[permit].stage == (Stage::Claimed { scheduler: scheduler as u8 }) {
                self.release(scenario, permit);
                self.permits[permit].stage = Stage::Gone;
                released = true;
            }
        }
        if released && scenario.remedies.release_wakes {
            self.wake(scenario, 0);
        }
        self.schedulers[scheduler] = Scheduler::Idle;
        true
    }

    pub(crate) fn scheduler_crashes(&mut self, scheduler: usize) -> bool {
        if self.schedulers[scheduler] == Scheduler::Idle {
            return false;
        }
        self.schedulers[scheduler] = Scheduler::Idle;
        for permit in &mut self.permits {
            if permit.stage == (Stage::Claimed { scheduler: scheduler as u8 }) {
                permit.stage = Stage::Gone;
            }
        }
        true
    }

    /// Recovers expired claims and wakes the job of what waits. A sweep that finds a job where it should be changes
    /// nothing that matters, so only the others are looked at.
    pub(crate) fn sweeps(&mut self, scenario: &Scenario) -> bool {
        if !scenario.remedies.sweep {
            return false;
        }
        let recovered = self.recover_claims(false);
        let Some(due) = self.next_due() else { return recovered };
        let looked_after = match self.queue.phase {
            Phase::Idle => false,
            Phase::Scheduled { due: runs, floor } => runs <= due.max(floor),
            Phase::Leased { .. } => !recovered,
        };
        if !looked_after {
            self.wake(scenario, due);
        }
        recovered || !looked_after
    }
}

/// allow = min(slots that open before the next run, R − queued).
fn allowance(scenario: &Scenario, rate: u8, lease: Lease, mut issued: Ticks) -> u8 {
    let spacing = scenario.spacing(rate);
    let unqueued = rate.saturating_sub(lease.queued);
    (0..unqueued).take_while(|_| take(&mut issued, spacing) < CADENCE + LEAD).count() as u8
}
