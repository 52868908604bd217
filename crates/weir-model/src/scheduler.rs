//! The steps of a scheduler, and the sweep. Between two steps the scheduler may stall or die.

use crate::{
    permit::Stage,
    queue::next_start,
    scenario::{CADENCE, GRANT_AHEAD, LEAD, Remedy, Scenario},
    state::{NextRun, Phase, Plan, Scheduler, State, Ticks},
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

    /// Reads the destination, decides, and claims deliveries in the store.
    pub(crate) fn scheduler_decides(&mut self, scenario: &Scenario, scheduler: usize) -> bool {
        let Scheduler::Leased(lease) = self.schedulers[scheduler] else { return false };
        // Read the terms, and recover the cursor if the lease has none.
        let version = self.store.version;
        let recovered = if lease.cursor.is_none() { Some(self.recovered_cursor(scenario)) } else { None };
        let Some(last) = lease.cursor.or(recovered) else { return false };
        // Decide, and claim that many deliveries.
        let terms = scenario.terms(version);
        let allow = if terms.suspended { 0 } else { allowance(scenario, terms.rate, lease.queued, last) };
        let Some(claimed) = self.claim(scenario, scheduler, allow) else { return false };
        // Fewer than allowed were due: the job waits for the next due time, or stops.
        let next = match self.next_due() {
            _ if terms.suspended => NextRun::Stop,
            _ if claimed == allow => NextRun::Paced,
            None => NextRun::Stop,
            Some(due) => NextRun::At(due),
        };
        self.schedulers[scheduler] = Scheduler::Planned(lease, Plan { version, recovered, next });
        true
    }

    /// The start from which a lost cursor continues: the last slot in which a send can have started or may still start.
    fn recovered_cursor(&self, scenario: &Scenario) -> Ticks {
        let recorded = self.store.last_sent;
        if !self.has_unsettled_claims() {
            return recorded;
        }
        let last_old_start = GRANT_AHEAD - self.queue.generation_age - scenario.resume_early;
        recorded.max(if scenario.has(Remedy::LastOldStart) { last_old_start } else { 0 })
    }

    pub(crate) fn scheduler_publishes(&mut self, scenario: &Scenario, scheduler: usize, reply_lost: bool) -> bool {
        let Scheduler::Planned(lease, plan) = self.schedulers[scheduler] else { return false };
        let of_run = self.permits.map(|permit| permit.stage == Stage::Claimed { scheduler: scheduler as u8 });
        let published = self.publish(scenario, scheduler, (lease, plan));
        self.schedulers[scheduler] = if published { Scheduler::Idle } else { Scheduler::Stale };
        // With the remedies a lost reply changes nothing: a repetition is recognised by its name, and claims that may
        // have been published are not released.
        if reply_lost && !published {
            return false;
        }
        let issued = || (0..of_run.len()).filter(|&permit| of_run[permit]);
        // Without the remedy, the repetition publishes the same deliveries again.
        if reply_lost
            && !scenario.has(Remedy::PublishOnce)
            && !issued().all(|permit| self.issue_again(scenario, permit))
        {
            return false;
        }
        // Without the remedy, claims are released although their permits are published.
        if reply_lost && !scenario.has(Remedy::NeverUnclaim) {
            issued().for_each(|permit| self.release(scenario, permit));
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
        // A run in between may have found nothing due because of these claims, and stopped the job.
        if released && scenario.has(Remedy::ReleaseWakes) {
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

    /// Recovers expired claims, and wakes the job when deliveries are waiting. A wake of a job that runs in time anyway
    /// would make no difference, so the model leaves it out.
    pub(crate) fn sweeps(&mut self, scenario: &Scenario) -> bool {
        if !scenario.has(Remedy::Sweep) {
            return false;
        }
        let recovered = self.recover_claims(false);
        let Some(due) = self.next_due() else { return recovered };
        let has_a_run = match self.queue.phase {
            Phase::Idle => false,
            Phase::Scheduled { due: runs, floor } => runs <= due.max(floor),
            Phase::Leased { .. } => !recovered,
        };
        if !has_a_run {
            self.wake(scenario, due);
        }
        recovered || !has_a_run
    }
}

/// allow = min(slots that open before the next run, R) − queued: outstanding permits take the first slots.
fn allowance(scenario: &Scenario, rate: u8, queued: u8, last: Ticks) -> u8 {
    let starts = |others: &u8| next_start(last, scenario.spacing(rate)) + *others as Ticks * scenario.spacing(rate);
    let open = (0..rate).take_while(|others| starts(others) < CADENCE + LEAD).count() as u8;
    open.saturating_sub(queued)
}
