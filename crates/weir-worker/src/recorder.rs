//! Records ended attempts and releases unused permits, in batches.
//!
//! ```text
//!             ┌──▶ queue: holds, then room is freed ──┬──────────────────────────▶ ┐
//! reports ────┤                                       └─ holds ─▶ store:           ├─▶ store: results ──▶ recorded
//!             └─────── pauses, breakers ────────────────────────▶ conditions ────▶ ┘
//! ```
//!
//! An ended attempt frees its room below `max_in_flight` at once: the time of a commit must not count against it. While
//! one batch commits, the next one gathers. But room is freed only for a few thousand attempts that the store does not
//! have yet: if the store is slower than the receivers, `max_in_flight` slows each destination by itself, and the others
//! keep their places.
//!
//! If the store fails, the recorder keeps the attempts and records them when the store is back: no attempt is forgotten
//! while the process lives. The places of the worker bound how many it keeps.

mod conditions;
mod results;
mod samples;

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use weir_core::{Backoff, Clock, DestinationId, Timestamp, outcome::Effect};
use weir_queue::{Hold, SharedQueue};
use weir_store::WorkerStore;

use self::{
    conditions::{Changing, ConditionStage, NewCondition},
    results::ResultStage,
    samples::Samples,
};
use crate::{
    attempt::{FinishedAttempt, UnusedPermit},
    breakers::Breakers,
    held_claims::HeldClaims,
    places::Unrecorded,
};

/// Reports recorded in one commit, as many as [`Worker`](crate::Worker) takes permits in one call.
const BATCH: usize = 1_024;
/// How many attempts may have free room before the store has them: one batch commits, and two gather, so that the store
/// never waits for attempts.
const AHEAD: usize = 3 * BATCH;

/// Is told how long results waited for their commit.
pub type Recorded = Arc<dyn Fn(Duration) + Send + Sync>;

/// A report to the recorder.
enum Report {
    Finished(EndedAttempt),
    Unused(UnusedPermit, Unrecorded),
}

/// An ended attempt that is not recorded.
struct EndedAttempt {
    attempt: FinishedAttempt,
    /// Dropped with the attempt, once it is recorded.
    _unrecorded: Unrecorded,
    /// Its part of [`AHEAD`], once its room is free.
    ahead: Option<OwnedSemaphorePermit>,
}

/// Sends reports to the recorder.
#[derive(Clone)]
pub(crate) struct RecorderHandle(mpsc::UnboundedSender<Option<Report>>);

impl RecorderHandle {
    // The places of the worker bound the channel. It is closed only after the last attempt was recorded or given up as
    // unknown, so a failed send needs no handling.
    pub(crate) fn finished(&self, attempt: FinishedAttempt, unrecorded: Unrecorded) {
        let _ = self.0.send(Some(Report::Finished(EndedAttempt { attempt, _unrecorded: unrecorded, ahead: None })));
    }

    pub(crate) fn unused(&self, permit: UnusedPermit, unrecorded: Unrecorded) {
        let _ = self.0.send(Some(Report::Unused(permit, unrecorded)));
    }

    /// Says that no report follows.
    pub(crate) fn finish(&self) {
        let _ = self.0.send(None);
    }
}

/// Settles attempts and releases unused permits, in stages that run side by side.
pub(crate) struct Recorder {
    reports: mpsc::UnboundedReceiver<Option<Report>>,
    queue_stage: QueueStage,
    condition_stage: ConditionStage,
    result_stage: ResultStage,
}

impl Recorder {
    pub(crate) fn new(
        store: Arc<dyn WorkerStore>,
        queue: SharedQueue,
        clock: Arc<dyn Clock>,
        held_claims: Arc<HeldClaims>,
    ) -> (RecorderHandle, Self) {
        let (handle, reports) = mpsc::unbounded_channel();
        let (to_conditions, conditions) = mpsc::unbounded_channel();
        let (to_results, results) = mpsc::unbounded_channel();
        let changing = Arc::<Changing>::default();
        let queue_stage = QueueStage {
            queue: queue.clone(),
            clock: clock.clone(),
            breakers: Breakers::default(),
            samples: Samples::default(),
            ahead: Arc::new(Semaphore::new(AHEAD)),
            waiting: VecDeque::new(),
            changing: changing.clone(),
            to_conditions,
            to_results: to_results.clone(),
        };
        let condition_stage = ConditionStage {
            store: store.clone(),
            queue: queue.clone(),
            clock: clock.clone(),
            changing,
            conditions,
            to_results,
        };
        let result_stage = ResultStage::new(store, queue, clock, held_claims, results);
        (RecorderHandle(handle), Self { reports, queue_stage, condition_stage, result_stage })
    }

    pub(crate) fn reporting_to(mut self, recorded: Option<Recorded>) -> Self {
        self.result_stage.recorded = recorded;
        self
    }

    /// Records until [`RecorderHandle::finish`]. When this returns, every earlier report is recorded.
    pub(crate) async fn run(self) {
        // Each stage ends when the stages before it have ended, because these own the senders of its channel.
        tokio::join!(self.queue_stage.run(self.reports), self.condition_stage.run(), self.result_stage.run());
    }
}

/// The first stage: applies holds in the queue, frees the room of ended attempts, and passes every report on.
struct QueueStage {
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    breakers: Breakers,
    samples: Samples,
    ahead: Arc<Semaphore>,
    /// Ended attempts whose room is not free yet, in the order of their reports.
    waiting: VecDeque<EndedAttempt>,
    changing: Arc<Changing>,
    to_conditions: mpsc::UnboundedSender<NewCondition>,
    to_results: mpsc::UnboundedSender<Report>,
}

impl QueueStage {
    async fn run(mut self, mut reports: mpsc::UnboundedReceiver<Option<Report>>) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut is_open = true;
        while is_open || !self.waiting.is_empty() {
            let most = self.waiting.len().clamp(1, BATCH);
            let count = self.ahead.available_permits().clamp(1, most);
            let report_in = self.samples.due_in(self.clock.now());
            tokio::select! {
                // Also while the store is slow: a hold must not wait for it.
                _ = reports.recv_many(&mut batch, BATCH), if is_open => {
                    is_open = !batch.is_empty() && batch.iter().all(Option::is_some);
                    self.accept(batch.drain(..).flatten()).await;
                }
                Ok(ahead) = self.ahead.clone().acquire_many_owned(count as u32), if !self.waiting.is_empty() => {
                    self.free_room(ahead).await;
                }
                () = tokio::time::sleep(report_in.unwrap_or_default()), if report_in.is_some() => {
                    self.samples.send(&*self.queue).await;
                }
            }
        }
    }

    /// Sorts reports. Holds apply in the queue when this returns, and so before any of this room is freed: freed room
    /// could start the next send at once.
    async fn accept(&mut self, reports: impl Iterator<Item = Report>) {
        let mut held = Vec::new();
        for report in reports {
            let ended = match report {
                Report::Finished(ended) => ended,
                // It is handed back after its claim is released.
                Report::Unused(..) => {
                    self.pass_on(report);
                    continue;
                }
            };
            let attempt = &ended.attempt;
            self.samples.add(attempt);
            if let Some(hold) = attempt.hold() {
                self.queue.learn_group(attempt.held_id(), attempt.destination.settings.limit_group);
                held.push((attempt.held_id(), hold));
            }
            // Attempts that ended because the server closed a reused connection do not count for its breaker.
            let breaker = if attempt.ignored_by_breaker { None } else { self.breakers.observe(attempt) };
            let condition = NewCondition { ended, breaker };
            if condition.changes_terms() {
                self.changing.begin(condition.destination_id());
                self.record_condition(condition);
            } else {
                self.waiting.push_back(condition.ended);
            }
        }
        self.breakers.tidy(self.clock.now());
        let hold = |(destination_id, (until, sent_at))| Hold { destination_id, until, sent_at };
        let holds: Vec<_> = latest(held).into_iter().map(hold).collect();
        if !holds.is_empty()
            && let Err(error) = self.queue.hold(&holds).await
        {
            tracing::warn!(holds = holds.len(), %error, "could not hold destinations in the queue");
        }
    }

    /// Frees the room of the first waiting attempts, as many as `ahead` allows, in one call. They are recorded later: if
    /// the process dies before, their claims remain and resolve as unknown.
    async fn free_room(&mut self, mut ahead: OwnedSemaphorePermit) {
        // While a destination is about to be paused, or its breaker to change, all its room waits for that: freed room
        // could start a send that must not be. The room of other destinations does not wait.
        let (kept, freed): (Vec<_>, Vec<_>) = self
            .waiting
            .drain(..ahead.num_permits())
            .partition(|ended| self.changing.contains(ended.attempt.result.claim.destination_id));
        for ended in kept {
            self.record_condition(NewCondition { ended, breaker: None });
        }
        if freed.is_empty() {
            return;
        }
        let settled: Vec<_> = freed.iter().map(|ended| ended.attempt.settled()).collect();
        if let Err(error) = self.queue.settle(&settled).await {
            tracing::warn!(%error, "could not settle permits in the queue; they expire by themselves");
        }
        for mut ended in freed {
            ended.ahead = ahead.split(1);
            if let Effect::Hold(_) = ended.attempt.effect {
                self.record_condition(NewCondition { ended, breaker: None });
            } else {
                self.pass_on(Report::Finished(ended));
            }
        }
    }

    // These sends cannot fail: the other stages end after this one.
    fn record_condition(&self, condition: NewCondition) {
        let _ = self.to_conditions.send(condition);
    }

    fn pass_on(&self, report: Report) {
        let _ = self.to_results.send(report);
    }
}

/// The end of a hold, and the start of the send that asked for it.
type HoldTimes = (Timestamp, Timestamp);

/// The latest hold of each destination. Answers in one batch ask for similar holds, and only the longest matters.
fn latest(holds: impl IntoIterator<Item = (DestinationId, HoldTimes)>) -> HashMap<DestinationId, HoldTimes> {
    let mut latest = HashMap::new();
    for (id, hold) in holds {
        latest.entry(id).and_modify(|known: &mut HoldTimes| *known = hold.max(*known)).or_insert(hold);
    }
    latest
}

/// Repeats a write until it succeeds. Each write names the state that it expects, so a repeated write changes nothing
/// twice.
async fn persist<T, F, Fut>(what: &'static str, mut write: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = weir_store::StoreResult<T>>,
{
    let mut backoff = Backoff::default();
    loop {
        match write().await {
            Ok(answer) => return answer,
            Err(error) => tracing::error!(%error, what, "the store failed; trying again"),
        }
        tokio::time::sleep(backoff.fail()).await;
    }
}
