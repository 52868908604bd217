//! Takes permits from the delivery queue and makes an attempt with each, thousands concurrently.
//!
//! ```text
//! delivery queue ──take──▶ Worker ──one task per permit──▶ attempt ──ended──▶ Recorder ──▶ queue, then store
//! ```
//!
//! On shutdown the worker stops taking permits, waits a grace period for the sends in flight, and hands back the other
//! permits unsent.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use metrics::counter;
use tokio::task::JoinSet;
use weir_core::{Clock, claim::ClaimedBody, event::EventBody};
use weir_queue::{Permit, SharedQueue};
use weir_store::{StoreError, Unopened, WorkerStore};

use crate::{
    attempt::{AttemptEnd, Attempter, UnusedPermit},
    held_claims::HeldClaims,
    meters::Meters,
    outbound::Outbound,
    places::{NoPlace, Place, Places},
    recorder::{Recorded, Recorder, RecorderHandle},
    spans::AttemptSpans,
    targets::{DestinationTarget, Targets},
};

/// Permits taken in one call. A queue with many shards divides this number among them, and one destination is in one
/// shard.
const BATCH: usize = 1_024;
/// The default number of concurrent attempts in one process. Each may hold a connection. The limit of open files lowers
/// it: three quarters of the files are for attempts.
pub const DEFAULT_CAPACITY: usize = 8_192;
/// While fewer permits wait for places than this part of all places, the worker takes more: others may find places at
/// once. An eighth, so that most of a backlog stays in the delivery queue, where other workers find it and the autoscaler
/// counts it.
const WAITING_PART: usize = 8;
/// How long a permit waits for a place before the worker checks again whether its destination still answers quickly. A
/// tenth of the time within which an attempt counts as quick.
const PLACE_WAIT: Duration = Duration::from_millis(100);
/// The pause after the queue or the store failed. The pause does not become longer with further failures, because
/// permits in the delivery queue expire meanwhile. A lasting failure costs four calls a second.
const RETRY: Duration = Duration::from_millis(250);

/// Delivers permitted attempts.
pub struct Worker {
    store: Arc<dyn WorkerStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    outbound: Arc<Outbound>,
    /// How long attempts in flight may take to finish at shutdown.
    grace: Duration,
    places: Arc<Places>,
    spans: Option<Arc<dyn AttemptSpans>>,
    recorded: Option<Recorded>,
    user_agent: Option<String>,
}

/// A permit with its destination and the body to send.
struct ResolvedPermit {
    permit: Permit,
    target: Arc<DestinationTarget>,
    /// `None` if the body, or the secrets of the destination, cannot be opened.
    body: Option<EventBody>,
}

/// How busy a worker is, for gauges. Clones refer to the same worker.
#[derive(Clone)]
pub struct WorkerLoad {
    places: Arc<Places>,
    outbound: Arc<Outbound>,
}

impl WorkerLoad {
    /// The maximum number of concurrent attempts.
    pub fn capacity(&self) -> usize {
        self.places.capacity()
    }

    /// Attempts under way, including those that wait for their slots.
    pub fn under_way(&self) -> usize {
        self.places.taken()
    }

    /// The sum of the times of all attempts since the worker began, also of those under way.
    pub fn spent(&self) -> Duration {
        self.places.held()
    }

    /// Ended attempts that the store does not have yet.
    pub fn unrecorded(&self) -> usize {
        self.places.unrecorded()
    }

    /// Connections to destinations: how many are in use, and how many are idle.
    pub fn connections(&self) -> (usize, usize) {
        let (open, idle) = self.outbound.connections();
        (open - idle, idle)
    }
}

impl Worker {
    pub fn new(
        store: Arc<dyn WorkerStore>,
        queue: SharedQueue,
        clock: Arc<dyn Clock>,
        outbound: Arc<Outbound>,
        grace: Duration,
    ) -> Self {
        Self {
            store,
            queue,
            clock,
            outbound,
            grace,
            places: Places::new(DEFAULT_CAPACITY),
            spans: None,
            recorded: None,
            user_agent: None,
        }
    }

    /// Sets the maximum number of concurrent attempts.
    #[must_use]
    pub fn with_capacity(self, capacity: usize) -> Self {
        Self { places: Places::new(capacity), ..self }
    }

    /// Records a span for each attempt.
    #[must_use]
    pub fn with_spans(self, spans: Option<Arc<dyn AttemptSpans>>) -> Self {
        Self { spans, ..self }
    }

    /// Calls `recorded` after each commit of results, with the shortest time that one of them has waited for it.
    #[must_use]
    pub fn with_recorded(self, recorded: Recorded) -> Self {
        Self { recorded: Some(recorded), ..self }
    }

    /// Sends this `user-agent` to destinations that name none; `None`: that of the program.
    #[must_use]
    pub fn with_user_agent(self, user_agent: Option<String>) -> Self {
        Self { user_agent, ..self }
    }

    /// How busy the worker is. The values are read when they are asked for.
    pub fn load(&self) -> WorkerLoad {
        WorkerLoad { places: self.places.clone(), outbound: self.outbound.clone() }
    }

    /// Delivers until `shutdown` resolves. Then finishes the sends in flight, hands back the other permits, and returns
    /// when all ended attempts are recorded.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        let stopping = Arc::new(AtomicBool::new(false));
        // The claims of this worker's permits are renewed until the end of this function, which drops the set.
        let held_claims = HeldClaims::new(self.store.clone(), self.queue.clone(), self.clock.clone());
        let mut renewal = JoinSet::new();
        let renewed = held_claims.clone();
        renewal.spawn(async move { renewed.keep().await });
        // The recorder runs in a task of its own, until the last attempt is recorded.
        let (recorder_handle, recorder) =
            Recorder::new(self.store.clone(), self.queue.clone(), self.clock.clone(), held_claims.clone());
        let recorder = tokio::spawn(recorder.reporting_to(self.recorded.clone()).run());
        let attempter = Arc::new(Attempter {
            queue: self.queue.clone(),
            clock: self.clock.clone(),
            outbound: self.outbound.clone(),
            meters: Meters::new(),
            spans: self.spans.clone(),
            stopping: stopping.clone(),
        });
        let mut pipeline = Pipeline {
            worker: self,
            targets: Targets::new(self.store.clone(), self.user_agent.clone()),
            attempter,
            recorder: recorder_handle.clone(),
            held_claims,
        };
        pipeline.take_until(shutdown).await;

        // Permits without a slot go back unsent: those of attempts that wait, and those that the queue has fetched.
        stopping.store(true, Ordering::Relaxed);
        pipeline.give_back(self.queue.stop_taking().await.iter().map(UnusedPermit::from));
        // Sends in flight may end within the grace period.
        if tokio::time::timeout(self.grace, self.places.wait_for_all()).await.is_err() {
            let unfinished = self.places.taken();
            tracing::warn!(unfinished, "attempts did not finish within the grace period; their outcome is unknown");
        }
        // Tasks that exceed the grace period still hold clones of the sender, so the recorder needs an explicit end. It
        // ends when the store has everything.
        recorder_handle.finish();
        if recorder.await.is_err() {
            tracing::error!("the recorder ended with a panic; unrecorded attempts count as unknown");
        }
    }
}

/// Takes permits and starts attempts.
struct Pipeline<'w> {
    worker: &'w Worker,
    targets: Targets,
    attempter: Arc<Attempter>,
    recorder: RecorderHandle,
    held_claims: Arc<HeldClaims>,
}

impl Pipeline<'_> {
    /// Takes permits and starts attempts until `shutdown` resolves. Hands back what waits for a place then.
    async fn take_until(&mut self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let Worker { queue, places, .. } = self.worker;
        let mut without_place = Vec::new();
        loop {
            // Register first: a place that is freed during the try below would be missed.
            let freed = places.next_freed();
            tokio::pin!(freed);
            freed.as_mut().enable();
            without_place = self.start_all(without_place);
            // Take no more permits than there are free places: the others stay in the delivery queue for other workers.
            // A permit that waits for a place of its own destination does not keep those of others waiting.
            let takes_more = without_place.len() <= places.capacity() / WAITING_PART;
            let most = if takes_more { places.free().min(BATCH) } else { 0 };
            let taken = tokio::select! {
                biased;
                () = &mut shutdown => break,
                taken = queue.take(most), if most > 0 => taken,
                // Check the waiting permits again soon: a destination that has become slow gets its permits handed back.
                _ = tokio::time::timeout(PLACE_WAIT, freed), if most == 0 || !without_place.is_empty() => continue,
            };
            match taken {
                Ok(permits) => without_place.extend(self.next_ready(permits).await),
                Err(error) => {
                    tracing::warn!(%error, "could not take permits; trying again");
                    tokio::time::sleep(RETRY).await;
                }
            }
        }
        self.give_back(without_place.iter().map(|ready| UnusedPermit::from(&ready.permit)));
    }

    /// Reads what the attempts need. If that fails, the permits go back instead of holding their claims here.
    async fn next_ready(&mut self, permits: Vec<Permit>) -> Vec<ResolvedPermit> {
        self.held_claims.add(&permits);
        counter!("weir_permits_taken_total").increment(permits.len() as u64);
        let resolved = self.targets.resolve(&permits).await;
        let bodies = self.bodies(&permits).await;
        let (resolved, bodies) = match (resolved, bodies) {
            (Ok(resolved), Ok(bodies)) => (resolved, bodies),
            (Err(error), _) | (_, Err(error)) => {
                tracing::warn!(%error, "could not read destinations; permits go back unsent");
                self.give_back(permits.iter().map(UnusedPermit::from));
                tokio::time::sleep(RETRY).await;
                return Vec::new();
            }
        };
        let mut ready = Vec::with_capacity(permits.len());
        for ((permit, target), body) in permits.into_iter().zip(resolved).zip(bodies) {
            match (target, body) {
                (Some(target), Ok(Some(body))) if target.destination.unreadable.is_none() => {
                    ready.push(ResolvedPermit { permit, target, body: Some(body) });
                }
                (Some(target), Ok(Some(_))) => ready.push(ResolvedPermit { permit, target, body: None }),
                (Some(target), Err(error)) => {
                    let delivery = permit.delivery.claim.delivery_id;
                    tracing::error!(%delivery, %error, "cannot open the body of a delivery; it waits");
                    ready.push(ResolvedPermit { permit, target, body: None });
                }
                // The destination was deleted: the release cancels the delivery.
                _ => self.give_back([UnusedPermit::from(&permit)]),
            }
        }
        ready
    }

    /// Starts an attempt for each permit that gets a place. Returns the permits that must wait for one.
    fn start_all(&self, ready: Vec<ResolvedPermit>) -> Vec<ResolvedPermit> {
        let mut without_place = Vec::new();
        for ready in ready {
            let began = self.worker.clock.now();
            // Take a place. Without one the permit waits, or goes back if the attempts of its destination take long.
            let tenant = &ready.target.destination.settings.tenant;
            match self.worker.places.take(ready.target.destination.id, tenant, began) {
                Ok(place) => self.start(ready, place),
                Err(NoPlace::Wait) => without_place.push(ready),
                Err(NoPlace::Crowded) => {
                    counter!("weir_permits_crowded_out_total").increment(1);
                    self.give_back([UnusedPermit { crowded: true, ..UnusedPermit::from(&ready.permit) }]);
                }
            }
        }
        without_place
    }

    fn start(&self, ready: ResolvedPermit, place: Place) {
        let (attempter, recorder) = (self.attempter.clone(), self.recorder.clone());
        // Not in a function that takes the permit by value: its future would contain the permit twice, and copy it.
        tokio::spawn(async move {
            let ResolvedPermit { permit, target, body } = ready;
            let end = match &body {
                Some(body) => attempter.make(&permit, body, &target).await,
                None => attempter.wait_unread(&permit).await,
            };
            match end {
                // Whether this attempt was quick decides about the next places of its destination.
                AttemptEnd::Recorded(finished) => {
                    let unrecorded = place.ended(finished.began, finished.result.now);
                    recorder.finished(finished, unrecorded);
                }
                AttemptEnd::Unused(permit) => recorder.unused(permit, place.unused()),
            }
        });
    }

    /// Hands back permits that got no place.
    fn give_back(&self, unused: impl IntoIterator<Item = UnusedPermit>) {
        for permit in unused {
            self.recorder.unused(permit, self.worker.places.unused());
        }
    }

    /// The body of each permit. Most permits contain it; the others are large, and read one by one.
    async fn bodies(&self, permits: &[Permit]) -> Result<Vec<Result<Option<EventBody>, Unopened>>, StoreError> {
        let mut bodies = Vec::with_capacity(permits.len());
        for permit in permits {
            bodies.push(match &permit.delivery.body {
                ClaimedBody::Inline(body) => Ok(Some(body.clone())),
                ClaimedBody::InStore => match self.worker.store.event(permit.delivery.event_id).await {
                    Ok(event) => Ok(event.map(|event| event.body)),
                    Err(StoreError::Sealed(unopened)) => Err(unopened),
                    Err(error) => return Err(error),
                },
            });
        }
        Ok(bodies)
    }
}
