//! The fast path past the schedule: a new delivery of a destination that has nothing else to do needs no run.
//!
//! The store asks for room while it stores an event, and hands over what it claimed once that is committed. What the queue
//! cannot publish after all, because its destination was paused or woken in between, goes back to wait for a run.

use std::{sync::Arc, time::Duration};

use metrics::counter;
use weir_core::{Clock, Destination, DestinationId, Timestamp, claim::ClaimedDelivery};
use weir_queue::SharedQueue;
use weir_store::SharedStore;

use crate::returns::{Returner, START_WITHIN};

/// The queue, as the store sees it.
pub struct FastPath {
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
}

impl FastPath {
    pub fn new(queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self { queue, clock }
    }
}

impl weir_store::FastPath for FastPath {
    fn reserve(&self, destination: &Destination) -> Option<Timestamp> {
        let settings = &destination.settings;
        if settings.paused || !self.queue.reserve(destination) {
            return None;
        }
        Some(self.clock.now() + START_WITHIN + Duration::from_millis(settings.timeout_ms.into()))
    }

    fn cancel(&self, destination_id: DestinationId) {
        self.queue.unreserve(destination_id);
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        counter!("weir_permits_admitted_total").increment(deliveries.len() as u64);
        self.queue.admit(deliveries);
    }
}

/// Gives back what the fast path could not take after all.
pub struct Declines {
    queue: SharedQueue,
    returner: Returner,
}

impl Declines {
    pub fn new(store: SharedStore, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        let returner = Returner::new(store, queue.clone(), clock);
        Self { queue, returner }
    }

    /// Gives back until `shutdown` resolves, and then what has been declined by then.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let mut stopping = false;
        loop {
            let declined = tokio::select! {
                biased;
                declined = self.queue.declined() => declined,
                () = &mut shutdown, if !stopping => {
                    stopping = true;
                    continue;
                }
                () = std::future::ready(()), if stopping => return,
            };
            counter!("weir_permits_declined_total").increment(declined.len() as u64);
            if let Err(error) = self.returner.give_back(declined).await {
                tracing::warn!(%error, "could not give back what the fast path could not take; the sweep finds it");
            }
        }
    }
}
