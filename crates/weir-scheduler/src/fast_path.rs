//! The fast path: a new delivery to a destination without a backlog needs no run.
//!
//! The store reserves room in the queue while it stores an event, and admits the claimed deliveries after the commit.
//! If the queue then cannot publish a delivery, because its destination was paused or woken in between, the claim is
//! released and the delivery waits for a run.

use std::{sync::Arc, time::Duration};

use metrics::counter;
use weir_core::{Clock, Destination, DestinationId, Timestamp, claim::ClaimedDelivery};
use weir_queue::SharedQueue;
use weir_store::RunStore;

use crate::release::{ClaimReleaser, START_WITHIN};

/// The interface of the queue for the store.
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
    fn reserve(&self, destination: &Destination, flow: DestinationId) -> Option<Timestamp> {
        let settings = &destination.settings;
        if settings.paused || !self.queue.reserve(destination, flow) {
            return None;
        }
        Some(self.clock.now() + START_WITHIN + Duration::from_millis(settings.timeout_ms.into()))
    }

    fn note_flow(&self, flow: DestinationId, destination: &Destination) {
        self.queue.learn_group(flow, destination.settings.limit_group);
    }

    fn cancel(&self, flow: DestinationId) {
        self.queue.unreserve(flow);
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        counter!("weir_permits_admitted_total").increment(deliveries.len() as u64);
        self.queue.admit(deliveries);
    }
}

/// Releases the claims of deliveries that the queue declined to admit.
pub struct DeclinedAdmissions {
    queue: SharedQueue,
    releaser: ClaimReleaser,
}

impl DeclinedAdmissions {
    pub fn new(store: Arc<dyn RunStore>, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        let releaser = ClaimReleaser::new(store, queue.clone(), clock);
        Self { queue, releaser }
    }

    /// Releases claims until `shutdown` resolves, and then those that have been declined by that time.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        let mut stopping = false;
        loop {
            // In this order: at the shutdown everything that is declined by then is taken before the loop ends.
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
            if let Err(error) = self.releaser.release_and_wake(declined).await {
                tracing::warn!(%error, "could not release declined deliveries; the sweep recovers them");
            }
        }
    }
}
