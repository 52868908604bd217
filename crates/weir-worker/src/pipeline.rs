//! Takes permits from the delivery queue and makes an attempt of each, thousands side by side.
//!
//! ```text
//! delivery queue ──take──▶ Worker ──one task per permit──▶ attempt ──ended──▶ Recorder ──▶ store, then queue
//! ```
//!
//! On shutdown the worker stops taking, lets what is in flight finish within a grace period, and hands the rest back unsent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use metrics::counter;
use weir_core::{Clock, claim::ClaimedBody, event::EventBody};
use weir_queue::{Permit, SharedQueue};
use weir_store::{SharedStore, StoreError};

use crate::{
    attempt::{Attempter, Ended, Unsent},
    meters::Meters,
    outbound::Outbound,
    places::{NoPlace, Places},
    recorder::{Recorder, Recording},
    spans::AttemptSpans,
    targets::{DestinationTarget, Targets},
};

/// Permits taken in one call. A queue of many shards divides it among them, and one destination lives in one of those.
const BATCH: usize = 1_024;
/// Attempts under way at one time in one process, unless its owner says otherwise. Each may hold a connection.
pub const DEFAULT_CAPACITY: usize = 8_192;
/// How long a permit waits for a place before it is looked at anew whether its destination still answers.
const PLACE_PATIENCE: Duration = Duration::from_millis(100);
/// How long to wait after the queue or the store failed.
const RETRY: Duration = Duration::from_millis(250);

/// Delivers permitted attempts.
pub struct Worker {
    store: SharedStore,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    outbound: Arc<Outbound>,
    /// How long attempts in flight may take to finish at shutdown.
    grace: Duration,
    places: Arc<Places>,
    spans: Option<Arc<dyn AttemptSpans>>,
}

/// A permit with all that it takes to send.
struct Ready {
    permit: Permit,
    target: Arc<DestinationTarget>,
    body: EventBody,
}

/// How busy a worker is, for gauges. A clone tells of the same worker.
#[derive(Clone)]
pub struct Load {
    places: Arc<Places>,
    outbound: Arc<Outbound>,
}

impl Load {
    /// How many attempts the worker makes at one time at most.
    pub fn capacity(&self) -> usize {
        self.places.capacity()
    }

    /// Attempts in its hands, those that wait for their slots included.
    pub fn under_way(&self) -> usize {
        self.places.taken()
    }

    /// Connections to destinations: how many are in use, and how many stand unused.
    pub fn connections(&self) -> (usize, usize) {
        let (open, unused) = self.outbound.connections();
        (open - unused, unused)
    }
}

impl Worker {
    pub fn new(
        store: SharedStore,
        queue: SharedQueue,
        clock: Arc<dyn Clock>,
        outbound: Arc<Outbound>,
        grace: Duration,
    ) -> Self {
        Self { store, queue, clock, outbound, grace, places: Places::new(DEFAULT_CAPACITY), spans: None }
    }

    /// Makes so many attempts at one time at most.
    #[must_use]
    pub fn with_capacity(self, capacity: usize) -> Self {
        Self { places: Places::new(capacity), ..self }
    }

    /// Tells a tracer of each attempt.
    #[must_use]
    pub fn with_spans(self, spans: Option<Arc<dyn AttemptSpans>>) -> Self {
        Self { spans, ..self }
    }

    /// How busy it is, now and later.
    pub fn load(&self) -> Load {
        Load { places: self.places.clone(), outbound: self.outbound.clone() }
    }

    /// Delivers until `shutdown` resolves; then finishes what is in flight, hands back the rest, and returns once everything
    /// that ended is recorded.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let stopping = Arc::new(AtomicBool::new(false));
        let (recording, recorder) = Recorder::new(self.store.clone(), self.queue.clone(), self.clock.clone());
        let recorder = tokio::spawn(recorder.run());
        let attempter = Arc::new(Attempter {
            queue: self.queue.clone(),
            clock: self.clock.clone(),
            outbound: self.outbound.clone(),
            meters: Meters::new(),
            spans: self.spans.clone(),
            stopping: stopping.clone(),
        });
        self.take_until(shutdown, &attempter, &recording).await;

        stopping.store(true, Ordering::Relaxed);
        recording.unsent(self.queue.stop_taking().await.iter().map(Unsent::from));
        if tokio::time::timeout(self.grace, self.places.wait_for_all()).await.is_err() {
            let left = self.places.taken();
            tracing::warn!(left, "attempts did not finish within the grace period; their outcome is unknown");
        }
        // Tasks beyond the grace period hold clones of the sender, so the recorder is told to end rather than waited for.
        recording.finish();
        if recorder.await.is_err() {
            tracing::error!("the recorder ended with a panic; unrecorded attempts count as unknown");
        }
    }

    async fn take_until(&self, shutdown: impl Future<Output = ()>, attempter: &Arc<Attempter>, recording: &Recording) {
        tokio::pin!(shutdown);
        let mut targets = Targets::new(self.store.clone());
        loop {
            // What cannot be started now stays in the delivery queue, where another worker can have it.
            let free = tokio::select! {
                biased;
                () = &mut shutdown => return,
                free = self.places.wait_for_one() => free,
            };
            let taken = tokio::select! {
                biased;
                () = &mut shutdown => return,
                taken = self.queue.take(free.min(BATCH)) => taken,
            };
            let permits = match taken {
                Ok(permits) => permits,
                Err(error) => {
                    tracing::warn!(%error, "could not take permits; trying again");
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            let mut waiting = match self.resolve(permits, &mut targets, recording).await {
                Ok(ready) => ready,
                Err((error, permits)) => {
                    tracing::warn!(%error, "could not read destinations; permits go back unsent");
                    recording.unsent(permits.iter().map(Unsent::from));
                    tokio::time::sleep(RETRY).await;
                    continue;
                }
            };
            // No more are taken before these have their places: what waits is in the queue, where it is counted and others can have it.
            loop {
                let freed = self.places.next_freed();
                tokio::pin!(freed);
                freed.as_mut().enable();
                waiting = self.start(waiting, attempter, recording);
                if waiting.is_empty() {
                    break;
                }
                tokio::select! {
                    biased;
                    () = &mut shutdown => {
                        recording.unsent(waiting.iter().map(|ready| Unsent::from(&ready.permit)));
                        return;
                    }
                    _ = tokio::time::timeout(PLACE_PATIENCE, freed) => {}
                }
            }
        }
    }

    /// What each permit needs to be sent. Those of destinations that are gone go back.
    async fn resolve(
        &self,
        permits: Vec<Permit>,
        targets: &mut Targets,
        recording: &Recording,
    ) -> Result<Vec<Ready>, (StoreError, Vec<Permit>)> {
        counter!("weir_permits_taken_total").increment(permits.len() as u64);
        let resolved = targets.resolve(&permits).await;
        let bodies = self.bodies(&permits).await;
        let (resolved, bodies) = match (resolved, bodies) {
            (Ok(resolved), Ok(bodies)) => (resolved, bodies),
            (Err(error), _) | (_, Err(error)) => return Err((error, permits)),
        };
        let mut ready = Vec::with_capacity(permits.len());
        for ((permit, target), body) in permits.into_iter().zip(resolved).zip(bodies) {
            match (target, body) {
                (Some(target), Some(body)) => ready.push(Ready { permit, target, body }),
                // Deleted: the release makes it cancelled.
                _ => recording.unsent([Unsent::from(&permit)]),
            }
        }
        Ok(ready)
    }

    /// Starts what there are places for, and answers what has to wait for one.
    fn start(&self, ready: Vec<Ready>, attempter: &Arc<Attempter>, recording: &Recording) -> Vec<Ready> {
        let mut waiting = Vec::new();
        for ready in ready {
            let began = self.clock.now();
            let place = match self.places.take(ready.permit.id.destination_id, began) {
                Ok(place) => place,
                Err(NoPlace::Soon) => {
                    waiting.push(ready);
                    continue;
                }
                Err(NoPlace::Crowded) => {
                    counter!("weir_permits_crowded_out_total").increment(1);
                    recording.unsent([Unsent { crowded: true, ..Unsent::from(&ready.permit) }]);
                    continue;
                }
            };
            let (attempter, recording) = (attempter.clone(), recording.clone());
            // Not by a function that takes the attempt: its future would hold it twice, and be copied as often.
            tokio::spawn(async move {
                let Ready { permit, target, body } = ready;
                match attempter.make(&permit, &body, &target).await {
                    Ended::Recorded(finished) => {
                        place.ended(finished.began, finished.result.now);
                        recording.finished(finished);
                    }
                    Ended::Unsent(unsent) => recording.unsent([unsent]),
                }
            });
        }
        waiting
    }

    /// What each permit sends: most bring it with them, the rest are read in one call.
    async fn bodies(&self, permits: &[Permit]) -> Result<Vec<Option<EventBody>>, StoreError> {
        let in_store = permits.iter().filter(|permit| permit.delivery.body == ClaimedBody::InStore);
        let ids: Vec<_> = in_store.map(|permit| permit.delivery.event_id).collect();
        let mut read = if ids.is_empty() { Vec::new() } else { self.store.bodies(&ids).await? }.into_iter();
        let body = |permit: &Permit| match &permit.delivery.body {
            ClaimedBody::Inline(body) => Some(body.clone()),
            ClaimedBody::InStore => read.next().flatten(),
        };
        Ok(permits.iter().map(body).collect())
    }
}
