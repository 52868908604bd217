//! The conditions of destinations: their holds, pauses and breakers go to the store, all of a batch in one statement
//! for each kind. Thousands of destinations may refuse at one time, and a commit for each would delay all others.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::mpsc;
use weir_core::{Clock, DestinationId, outcome::Effect, time::InWords};
use weir_queue::{Edits, SharedQueue};
use weir_store::{BreakerChange, Hold, Pause, WorkerStore};

use super::{BATCH, EndedAttempt, Report, latest, persist};
use crate::{breakers::BreakerUpdate, meters};

/// An ended attempt that changes the condition of its destination, or keeps its room until another has changed it.
pub(super) struct NewCondition {
    pub(super) ended: EndedAttempt,
    pub(super) breaker: Option<BreakerUpdate>,
}

impl NewCondition {
    pub(super) fn destination_id(&self) -> DestinationId {
        self.ended.attempt.result.claim.destination_id
    }

    /// Whether it pauses the destination or changes its breaker.
    pub(super) fn changes_terms(&self) -> bool {
        self.breaker.is_some() || self.ended.attempt.effect == Effect::Pause
    }
}

/// The destinations whose pauses and breakers are on their way to the store, with the number of such attempts.
#[derive(Default)]
pub(super) struct Changing(Mutex<HashMap<DestinationId, usize>>);

impl Changing {
    pub(super) fn begin(&self, id: DestinationId) {
        *self.0.lock().entry(id).or_default() += 1;
    }

    pub(super) fn contains(&self, id: DestinationId) -> bool {
        self.0.lock().contains_key(&id)
    }

    fn end(&self, id: DestinationId) {
        let mut counts = self.0.lock();
        if let Some(count) = counts.get_mut(&id) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&id);
            }
        }
    }
}

/// Records conditions, and frees the room that waits for pauses and breakers.
pub(super) struct ConditionStage {
    pub(super) store: Arc<dyn WorkerStore>,
    pub(super) queue: SharedQueue,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) changing: Arc<Changing>,
    pub(super) conditions: mpsc::UnboundedReceiver<NewCondition>,
    pub(super) to_results: mpsc::UnboundedSender<Report>,
}

impl ConditionStage {
    pub(super) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH);
        // Conditions that come during a commit share the next one.
        while self.conditions.recv_many(&mut batch, BATCH).await > 0 {
            self.record_holds(&batch).await;
            let changed = self.record_breakers_and_pauses(&batch).await;
            self.announce(changed).await;
            self.free_room(&batch).await;
            for condition in batch.iter().filter(|condition| condition.changes_terms()) {
                self.changing.end(condition.destination_id());
            }
            for condition in batch.drain(..) {
                // Cannot fail: the stage of the results ends after this one.
                let _ = self.to_results.send(Report::Finished(condition.ended));
            }
        }
    }

    /// Records holds, which apply in the queue already. If the process dies before, the store does not know of the last
    /// holds: with an in-process queue, their `Retry-After` is then ignored once.
    async fn record_holds(&self, batch: &[NewCondition]) {
        let mut reasons = BTreeMap::new();
        let held = latest(batch.iter().filter_map(|NewCondition { ended, .. }| {
            let (id, hold) = (ended.attempt.result.claim.destination_id, ended.attempt.hold()?);
            reasons.insert((id, hold), ended.attempt.reason.as_str());
            Some((id, hold))
        }));
        let now = self.clock.now();
        let hold = |(id, times)| {
            let reason = reasons.get(&(id, times)).copied().unwrap_or_default().to_owned();
            let (until, sent_at) = times;
            Hold { id, until, reason, sent_at, now }
        };
        let holds: Vec<_> = held.into_iter().map(hold).collect();
        if !holds.is_empty() {
            persist("hold destinations", || self.store.hold_destinations(holds.clone())).await;
        }
    }

    /// Records changes of breakers, and pauses. Returns the destinations that they concern.
    async fn record_breakers_and_pauses(&self, batch: &[NewCondition]) -> BTreeSet<DestinationId> {
        let now = self.clock.now();
        // The first change and the first pause of each destination. A later change of the same batch expects the state
        // from before the first one, so it would be refused.
        let (mut changes, mut pauses) = (BTreeMap::new(), BTreeMap::new());
        for NewCondition { ended, breaker } in batch {
            let id = ended.attempt.result.claim.destination_id;
            if let Some(BreakerUpdate { change, failed_for }) = breaker {
                changes.entry(id).or_insert_with(|| change.clone());
                if let &Some(failed_for) = failed_for {
                    let reason = format!("every attempt has failed for {}", InWords(failed_for));
                    pauses.entry(id).or_insert(Pause { id, reason, now });
                }
            }
            if ended.attempt.effect == Effect::Pause {
                pauses.entry(id).or_insert_with(|| Pause { id, reason: ended.attempt.reason.clone(), now });
            }
        }
        let concerned = changes.keys().chain(pauses.keys()).copied().collect();
        let (changes, pauses): (Vec<_>, Vec<_>) = (changes.into_values().collect(), pauses.into_values().collect());
        if !changes.is_empty() {
            let changed = persist("change breakers", || self.store.change_breakers(changes.clone())).await;
            // Another worker may have changed a breaker before.
            changes.iter().zip(changed).filter(|(_, changed)| *changed).for_each(|(change, _)| log_change(change));
        }
        if !pauses.is_empty() {
            let paused = persist("pause destinations", || self.store.pause_destinations(pauses.clone())).await;
            for (Pause { id, reason, .. }, _) in pauses.iter().zip(paused).filter(|(_, paused)| *paused) {
                tracing::warn!(destination = %id, reason, "paused a destination");
            }
        }
        concerned
    }

    /// Sends the current terms of destinations to the queue, so that no slot is granted under older terms.
    async fn announce(&self, ids: BTreeSet<DestinationId>) {
        if ids.is_empty() {
            return;
        }
        let ids: Vec<_> = ids.into_iter().collect();
        let Ok(destinations) = self.store.destinations(&ids).await else {
            // The next runs read the destinations.
            return;
        };
        let now = self.clock.now();
        let mut edits = Edits::default();
        destinations.iter().flatten().for_each(|destination| edits.add(destination, now));
        if let Err(error) = edits.announce(&*self.queue).await {
            tracing::warn!(%error, "could not announce changes of destinations to the queue");
        }
    }

    /// Frees the room that the first stage has not freed.
    async fn free_room(&self, batch: &[NewCondition]) {
        let kept = batch.iter().filter(|condition| condition.ended.ahead.is_none());
        let settled: Vec<_> = kept.map(|condition| condition.ended.attempt.settled()).collect();
        if settled.is_empty() {
            return;
        }
        if let Err(error) = self.queue.settle(&settled).await {
            tracing::warn!(%error, "could not settle permits in the queue; they expire by themselves");
        }
    }
}

/// Counts and logs a change of a breaker.
fn log_change(change: &BreakerChange) {
    let (id, state) = (change.id, change.changed.state(change.now).as_str());
    meters::breaker_changes(state).increment(1);
    match change.changed.reason() {
        Some(reason) if change.expected.reason().is_none() => {
            tracing::warn!(destination = %id, reason, "a breaker has opened");
        }
        Some(_) => tracing::debug!(destination = %id, "a probe has failed, and the breaker stays open"),
        None => tracing::info!(destination = %id, "a breaker has closed"),
    }
}
