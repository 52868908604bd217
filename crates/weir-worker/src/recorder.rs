//! Records what ended, in batches.
//!
//! An answer gives its destination room at once: how long a commit takes must not count against `max_in_flight`. While some
//! batches commit, the next gathers. What is finished is kept and recorded when a failed store is back; nothing
//! that was sent is forgotten while the process lives.

use std::{collections::HashMap, sync::Arc, time::Duration};

use metrics::counter;
use tokio::sync::mpsc;
use weir_core::{
    Clock, DestinationId, Timestamp,
    outcome::{Effect, Verdict},
};
use weir_queue::{Edit, HandedBack, RUN_FALLBACK, SharedQueue, Terms, Wake};
use weir_store::{BreakerChange, Settlement, SharedStore};

use crate::{
    attempt::{Finished, Unsent},
    breakers::{Breakers, Changed},
    meters::{self, DeliveryMeters},
};

/// Recorded in one commit.
const BATCH: usize = 1_024;
/// How long the first of a batch waits for others: nobody waits for its commit, unless its destination is ordered.
const GATHER: Duration = Duration::from_millis(5);
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(5);

enum Ending {
    Finished(Finished),
    Unsent(Unsent),
    /// Nothing that comes after is recorded.
    Last,
}

impl Ending {
    /// The next of its key waits for this one's commit.
    fn is_waited_for(&self) -> bool {
        matches!(self, Self::Finished(finished) if finished.destination.settings.order.is_by_key())
    }
}

/// Where attempts report how they ended.
#[derive(Clone)]
pub(crate) struct Recording(mpsc::UnboundedSender<Ending>);

impl Recording {
    // The channel is bounded by the number of attempts under way, and closed only after the last of them was recorded or
    // given up as unknown: a failed send needs no handling.
    pub(crate) fn finished(&self, finished: Finished) {
        let _ = self.0.send(Ending::Finished(finished));
    }

    pub(crate) fn unsent(&self, unsent: impl IntoIterator<Item = Unsent>) {
        for unsent in unsent {
            let _ = self.0.send(Ending::Unsent(unsent));
        }
    }

    pub(crate) fn finish(&self) {
        let _ = self.0.send(Ending::Last);
    }
}

/// Settles attempts and releases unused permits, in two stages: the queue hears of an answer at once, the store in as large
/// a batch as gathered during the last commit.
pub(crate) struct Recorder {
    ledger: Ledger,
    endings: mpsc::UnboundedReceiver<Ending>,
}

impl Recorder {
    pub(crate) fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> (Recording, Self) {
        let (sender, endings) = mpsc::unbounded_channel();
        (Recording(sender), Self { ledger: Ledger { store, queue, clock, endings: DeliveryMeters::new() }, endings })
    }

    /// Records until told to finish; what was reported before that is recorded when this returns.
    pub(crate) async fn run(mut self) {
        let (to_store, for_store) = mpsc::unbounded_channel();
        // The first stage owns the sender and drops it at the end, which ends the second.
        tokio::join!(self.ledger.answer(&mut self.endings, to_store), self.ledger.record(for_store));
    }
}

/// The writes of the recorder.
struct Ledger {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    endings: DeliveryMeters,
}

impl Ledger {
    async fn answer(&self, endings: &mut mpsc::UnboundedReceiver<Ending>, to_store: mpsc::UnboundedSender<Ending>) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut breakers = Breakers::default();
        while endings.recv_many(&mut batch, BATCH).await > 0 {
            self.make_room(&batch, &mut breakers).await;
            for ending in batch.drain(..) {
                if matches!(ending, Ending::Last) {
                    return;
                }
                // The second stage ends after this one.
                let _ = to_store.send(ending);
            }
        }
    }

    async fn record(&self, mut endings: mpsc::UnboundedReceiver<Ending>) {
        let mut batch = Vec::with_capacity(BATCH);
        while endings.recv_many(&mut batch, BATCH).await > 0 {
            if batch.len() < BATCH && !endings.is_closed() {
                if !batch.iter().any(Ending::is_waited_for) {
                    tokio::time::sleep(GATHER).await;
                }
                while batch.len() < BATCH
                    && let Ok(ending) = endings.try_recv()
                {
                    batch.push(ending);
                }
            }
            let (mut finished, mut unsent) = (Vec::with_capacity(batch.len()), Vec::new());
            for ending in batch.drain(..) {
                match ending {
                    Ending::Finished(ended) => finished.push(ended),
                    Ending::Unsent(ended) => unsent.push(ended),
                    Ending::Last => {}
                }
            }
            self.settle(finished).await;
            self.release(unsent).await;
        }
    }

    /// The answers are in: restrain what asked for it, then let the destinations have their room back. The store follows;
    /// should the process die first, the claims are still there and resolve as unknown.
    async fn make_room(&self, endings: &[Ending], breakers: &mut Breakers) {
        let finished = || {
            endings.iter().filter_map(|ending| match ending {
                Ending::Finished(finished) => Some(finished),
                Ending::Unsent(_) | Ending::Last => None,
            })
        };
        self.restrain(finished()).await;
        for Changed { change, gives_up } in
            finished().filter(|ended| !ended.ignored_by_breaker).filter_map(|ended| breakers.observe(ended))
        {
            let id = change.id;
            self.change_breaker(change).await;
            if gives_up {
                self.pause(id, "every attempt has failed for days").await;
            }
        }
        breakers.tidy(self.clock.now());
        let ids: Vec<_> = finished().map(|ended| ended.permit).collect();
        if ids.is_empty() {
            return;
        }
        if let Err(error) = self.queue.settle(&ids).await {
            tracing::warn!(%error, "could not settle permits in the queue; they expire by themselves");
        }
    }

    async fn settle(&self, finished: Vec<Finished>) {
        if finished.is_empty() {
            return;
        }
        let retries: Vec<_> = finished.iter().filter_map(retry_wake).collect();
        let destinations: Vec<_> = finished.iter().map(|ended| ended.result.claim.destination_id).collect();
        let permits: Vec<_> = finished.iter().map(|ended| ended.permit).collect();
        let results: Vec<_> = finished.into_iter().map(|ended| ended.result).collect();
        let settlements = persist("record attempts", || self.store.settle(results.clone())).await;
        self.queue.recorded(&permits);
        settlements.iter().filter_map(|settlement| settlement.state()).for_each(|state| self.endings.count(state));
        let lost = settlements.iter().filter(|settlement| **settlement == Settlement::ClaimLost).count();
        if lost > 0 {
            counter!("weir_claims_lost_total").increment(lost as u64);
            tracing::warn!(lost, "attempts ended after their claims had been recovered");
        }
        self.wake(&retries).await;
        self.wake(&advances(&destinations, &settlements)).await;
    }

    async fn release(&self, unsent: Vec<Unsent>) {
        if unsent.is_empty() {
            return;
        }
        let now = self.clock.now();
        let claims: Vec<_> = unsent.iter().map(|ended| ended.claim).collect();
        persist("release claims", || self.store.release(claims.clone(), now)).await;
        let permits: Vec<_> =
            unsent.iter().map(|&Unsent { permit: id, crowded, .. }| HandedBack { id, crowded }).collect();
        if let Err(error) = self.queue.hand_back(&permits).await {
            tracing::warn!(%error, "could not hand permits back; they expire by themselves");
        }
        // What found no place is tried again when one may have become free.
        let due = |crowded| if crowded { now + RUN_FALLBACK } else { now };
        let wakes: Vec<_> = unsent
            .iter()
            .map(|ended| Wake { destination_id: ended.claim.destination_id, due: due(ended.crowded) })
            .collect();
        self.wake(&wakes).await;
    }

    async fn wake(&self, wakes: &[Wake]) {
        if wakes.is_empty() {
            return;
        }
        if let Err(error) = self.queue.wake(wakes).await {
            tracing::warn!(%error, "could not wake destinations; the sweep will");
        }
    }

    async fn pause(&self, id: DestinationId, reason: &str) {
        let now = self.clock.now();
        persist("pause a destination", || self.store.pause_destination(id, reason, now)).await;
        tracing::warn!(destination = %id, reason, "paused a destination");
        self.announce(id).await;
    }

    /// Tells the queue how the destination is now, so that no slot is granted that it would not grant anew.
    async fn announce(&self, id: DestinationId) {
        let Ok(Some(destination)) = self.store.destination(id).await else {
            // The next run reads it.
            return;
        };
        let terms = Terms::of(&destination, self.clock.now());
        if let Err(error) = self.queue.edited(&[Edit { destination_id: id, terms }]).await {
            tracing::warn!(destination = %id, %error, "could not tell the queue of a destination's change");
        }
    }

    /// Opens or closes a breaker, before the destination has its room back. What the store does not take now is found out again by
    /// the attempts that follow.
    async fn change_breaker(&self, change: BreakerChange) {
        match self.store.change_breaker(change.clone()).await {
            Ok(true) => tell_of(&change),
            // Another worker was first.
            Ok(false) => return,
            Err(error) => {
                tracing::warn!(destination = %change.id, %error, "could not record a breaker's change");
                return;
            }
        }
        self.announce(change.id).await;
    }

    /// Holds and pauses at once, before anything is recorded: the next send must not slip through.
    async fn restrain<'f>(&self, finished: impl Iterator<Item = &'f Finished>) {
        // Answers that came together ask for about the same.
        let mut holds: HashMap<DestinationId, (Timestamp, &str)> = HashMap::new();
        for ended in finished {
            let id = ended.result.claim.destination_id;
            match ended.effect {
                Effect::None => {}
                Effect::HoldUntil(until, _) => {
                    let hold = holds.entry(id).or_insert((until, &ended.reason));
                    if hold.0 < until {
                        *hold = (until, &ended.reason);
                    }
                }
                Effect::Pause => self.pause(id, &ended.reason).await,
            }
        }
        for (id, (until, reason)) in holds {
            if let Err(error) = self.queue.hold(id, until).await {
                tracing::warn!(destination = %id, %error, "could not hold the destination in the queue");
            }
            persist("hold a destination", || self.store.hold_destination(id, until, reason)).await;
        }
    }
}

/// What a log says of a breaker that has changed.
fn tell_of(change: &BreakerChange) {
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

fn retry_wake(ended: &Finished) -> Option<Wake> {
    let due: Timestamp = match ended.result.verdict {
        Verdict::Retry { at } => at,
        Verdict::Delivered | Verdict::Failed | Verdict::Dead => return None,
    };
    Some(Wake { destination_id: ended.result.claim.destination_id, due })
}

/// Where the next of a line has come forward: a wake for each destination, at the earliest of their times.
fn advances(destinations: &[DestinationId], settlements: &[Settlement]) -> Vec<Wake> {
    let mut dues: HashMap<DestinationId, Timestamp> = HashMap::new();
    for (&id, settlement) in destinations.iter().zip(settlements) {
        if let &Settlement::Advanced { next_due, .. } = settlement {
            dues.entry(id).and_modify(|due| *due = next_due.min(*due)).or_insert(next_due);
        }
    }
    dues.into_iter().map(|(destination_id, due)| Wake { destination_id, due }).collect()
}

/// Repeats a write until the store takes it. Each of these writes names the claim it expects, so repeating one whose outcome
/// is unknown changes nothing twice.
async fn persist<T, F, Fut>(what: &'static str, mut write: F) -> T
where
    F: FnMut() -> Fut,
    Fut: Future<Output = weir_store::StoreResult<T>>,
{
    let mut delay = FIRST_RETRY;
    loop {
        match write().await {
            Ok(answer) => return answer,
            Err(error) => tracing::error!(%error, what, "the store failed; trying again"),
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(LONGEST_RETRY);
    }
}
