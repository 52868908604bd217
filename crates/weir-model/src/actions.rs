//! Every step of the model, and the model as the checker sees it.
//!
//! A step is one atomic operation on the store or the queue, or a send. Between two steps of a process anything else
//! may happen, also the passing of time: this is how processes stall.

use stateright::{Model, Property};

use crate::{
    Scenario,
    drained::Drained,
    properties,
    scenario::FastPath,
    state::{MAX_EDITS, MAX_PERMITS, MAX_SCHEDULERS, State},
};

/// A step. Permits and schedulers are named by their index in the state before the step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    WorkerWakes(usize),
    WorkerHandsBack(usize),
    WorkerReleases(usize),
    WorkerRecords(usize),
    WorkerIsAnswered { permit: usize, refused: bool },
    WorkerSends(usize),
    WorkerTakesSlot(usize),
    WorkerReclaims(usize),
    WorkerTakes(usize),
    SchedulerGivesBack(usize),
    SchedulerPublishes { scheduler: usize, reply_lost: bool },
    SchedulerDecides(usize),
    SchedulerClaimsJob,
    FastPathReleases(usize),
    FastPathAdmits { permit: usize, reply_lost: bool },
    ProducerWakes,
    ProducerCommits,
    ProducerCommitsClaimed,
    EditIsAnnounced(u8),
    TermsAreEdited,
    Sweep,
    Tick,
    WorkerCrashes(usize),
    SchedulerCrashes(usize),
    ProducerCrashes,
    EditorCrashes(u8),
    FastPathCrashes(usize),
    QueueIsSaved,
    QueueIsLost,
    QueueIsRestored,
    ProcessRestarts,
}

/// The model of a scenario.
#[derive(Debug)]
pub struct Protocol {
    pub(crate) scenario: Scenario,
    pub(crate) drained: Drained,
}

impl Protocol {
    pub fn new(scenario: Scenario) -> Self {
        Self { scenario, drained: Drained::default() }
    }

    /// The most urgent step that is possible without a fault: ends come before beginnings, and time passes last.
    pub(crate) fn quiet_step(&self, state: &State) -> Option<State> {
        steps(&self.scenario).find_map(|action| self.next_state(state, action))
    }

    fn apply(&self, next: &mut State, action: Action) -> bool {
        let scenario = &self.scenario;
        // Each fault takes one from its budget. The caller discards `next` when this returns `false`, so the order of
        // the two conditions does not matter.
        match action {
            Action::WorkerWakes(permit) => next.worker_wakes(scenario, permit),
            Action::WorkerHandsBack(permit) => next.worker_hands_back(scenario, permit),
            Action::WorkerReleases(permit) => next.worker_releases(scenario, permit),
            Action::WorkerRecords(permit) => next.worker_records(scenario, permit),
            Action::WorkerIsAnswered { permit, refused } => {
                spend(&mut next.faults.refusals, refused) && next.worker_is_answered(permit, refused)
            }
            Action::WorkerSends(permit) => next.worker_sends(scenario, permit),
            Action::WorkerTakesSlot(permit) => next.worker_takes_slot(scenario, permit),
            Action::WorkerReclaims(permit) => next.worker_reclaims(scenario, permit),
            Action::WorkerTakes(permit) => next.worker_takes(permit),
            Action::SchedulerGivesBack(scheduler) => next.scheduler_gives_back(scenario, scheduler),
            Action::SchedulerPublishes { scheduler, reply_lost } => {
                spend(&mut next.faults.lost_replies, reply_lost)
                    && next.scheduler_publishes(scenario, scheduler, reply_lost)
            }
            Action::SchedulerDecides(scheduler) => next.scheduler_decides(scenario, scheduler),
            Action::SchedulerClaimsJob => next.scheduler_claims_job(scenario),
            Action::FastPathReleases(permit) => next.fast_path_releases(scenario, permit),
            Action::FastPathAdmits { permit, reply_lost } => {
                spend(&mut next.faults.lost_replies, reply_lost) && next.fast_path_admits(scenario, permit, reply_lost)
            }
            Action::ProducerWakes => next.producer_wakes(scenario),
            Action::ProducerCommits => next.producer_commits(scenario),
            Action::ProducerCommitsClaimed => next.producer_commits_claimed(scenario),
            Action::EditIsAnnounced(version) => next.edit_is_announced(scenario, version),
            Action::TermsAreEdited => next.terms_are_edited(scenario),
            Action::Sweep => next.sweeps(scenario),
            Action::Tick => {
                // A tick while a process could act is a stall of that process.
                let stalled = next.a_process_could_act(scenario);
                spend(&mut next.faults.stalls, stalled) && next.tick(scenario)
            }
            Action::WorkerCrashes(permit) => {
                spend(&mut next.faults.crashes, true) && next.worker_crashes(scenario, permit)
            }
            Action::SchedulerCrashes(scheduler) => {
                spend(&mut next.faults.crashes, true) && next.scheduler_crashes(scheduler)
            }
            Action::ProducerCrashes => spend(&mut next.faults.crashes, true) && std::mem::take(&mut next.wake_owed),
            Action::FastPathCrashes(permit) => spend(&mut next.faults.crashes, true) && next.fast_path_crashes(permit),
            Action::EditorCrashes(version) => spend(&mut next.faults.crashes, true) && next.editor_crashes(version),
            // A snapshot matters only while it can still be restored.
            Action::QueueIsSaved => next.faults.restores > 0 && next.save_queue(),
            Action::QueueIsLost => {
                next.lose_queue(scenario, None);
                spend(&mut next.faults.losses, true)
            }
            Action::ProcessRestarts => {
                next.process_restarts(scenario);
                spend(&mut next.faults.restarts, true)
            }
            Action::QueueIsRestored => {
                let snapshot = next.snapshot;
                next.lose_queue(scenario, snapshot);
                snapshot.is_some() && spend(&mut next.faults.restores, true)
            }
        }
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::initial(&self.scenario)]
    }

    fn actions(&self, _: &State, actions: &mut Vec<Action>) {
        // All steps in every state: `apply` refuses those that are not possible. First the steps without a fault.
        actions.extend(steps(&self.scenario));
        // Then the faults of schedulers, of workers and of the fast path.
        for scheduler in 0..MAX_SCHEDULERS {
            actions.push(Action::SchedulerPublishes { scheduler, reply_lost: true });
            actions.push(Action::SchedulerCrashes(scheduler));
        }
        for permit in 0..MAX_PERMITS {
            actions.push(Action::WorkerIsAnswered { permit, refused: true });
            actions.push(Action::WorkerCrashes(permit));
            if self.scenario.fast_path != FastPath::Closed {
                actions.push(Action::FastPathAdmits { permit, reply_lost: true });
                actions.push(Action::FastPathCrashes(permit));
            }
        }
        // The faults of editors, of the producer, of the queue and of the whole process.
        actions.extend((1..=MAX_EDITS).map(Action::EditorCrashes));
        actions.extend([
            Action::ProducerCommitsClaimed,
            Action::ProducerCrashes,
            Action::QueueIsSaved,
            Action::QueueIsLost,
            Action::QueueIsRestored,
            Action::ProcessRestarts,
        ]);
    }

    /// The state after the action; `None` when the action is not possible or changes nothing.
    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        if !self.apply(&mut next, action) {
            return None;
        }
        let next = next.canonical();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all()
    }
}

/// The steps without a fault, the most urgent first.
fn steps(scenario: &Scenario) -> impl Iterator<Item = Action> + use<> {
    // The steps of a worker, the end of a permit's life first.
    let of_permits = [
        Action::WorkerWakes as fn(usize) -> Action,
        Action::WorkerHandsBack,
        Action::WorkerReleases,
        Action::WorkerRecords,
        |permit| Action::WorkerIsAnswered { permit, refused: false },
        Action::WorkerSends,
        Action::WorkerTakesSlot,
        Action::WorkerReclaims,
        Action::WorkerTakes,
    ];
    // Without the fast path its steps are never possible.
    let fast_path_permits = if scenario.fast_path == FastPath::Closed { 0 } else { MAX_PERMITS };
    let admits = |permit| Action::FastPathAdmits { permit, reply_lost: false };
    let publishes = |scheduler| Action::SchedulerPublishes { scheduler, reply_lost: false };
    // In each group of steps the later steps of a process come first. `Tick` is last, so in a quiet course time passes
    // only when no other step is possible.
    of_permits
        .into_iter()
        .flat_map(|of_permit| (0..MAX_PERMITS).map(of_permit))
        .chain((0..fast_path_permits).map(Action::FastPathReleases))
        .chain((0..fast_path_permits).map(admits))
        .chain((0..MAX_SCHEDULERS).map(Action::SchedulerGivesBack))
        .chain((0..MAX_SCHEDULERS).map(publishes))
        .chain((0..MAX_SCHEDULERS).map(Action::SchedulerDecides))
        .chain([Action::SchedulerClaimsJob, Action::ProducerWakes, Action::ProducerCommits])
        .chain((1..=MAX_EDITS).map(Action::EditIsAnnounced))
        .chain([Action::TermsAreEdited, Action::Sweep, Action::Tick])
}

/// Takes one fault from the budget if `fault`; `false` when the budget is exhausted.
fn spend(budget: &mut u8, fault: bool) -> bool {
    let remaining = budget.checked_sub(u8::from(fault));
    *budget = remaining.unwrap_or(0);
    remaining.is_some()
}
