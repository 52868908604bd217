//! The express way past the schedule: a new delivery of a destination that has nothing else to do needs no run.
//!
//! The store asks for room while it stores an event, and hands over what it claimed once that is committed. What the queue
//! cannot publish after all, because its destination was paused or woken in between, goes back to wait for a run.

use std::{sync::Arc, time::Duration};

use metrics::counter;
use weir_core::{Clock, Destination, DestinationId, Timestamp, claim::ClaimedDelivery};
use weir_queue::{Room, SharedQueue};
use weir_store::SharedStore;

use crate::{
    Scheduler,
    ahead::Ahead,
    returns::{Returner, START_WITHIN},
};

/// The queue, as the store sees it.
pub struct Express {
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
    /// Where new deliveries wait for room, in a process that runs jobs.
    ahead: Option<Arc<Ahead>>,
}

impl Express {
    pub fn new(queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self { queue, clock, ahead: None }
    }

    /// In a process where `scheduler` runs the jobs, new deliveries of a busy destination without a limit can wait for its runs in
    /// memory.
    #[must_use]
    pub fn beside(self, scheduler: &Scheduler) -> Self {
        Self { ahead: Some(scheduler.ahead()), ..self }
    }
}

impl weir_store::Express for Express {
    fn reserve(&self, destination: &Destination) -> Option<Timestamp> {
        let settings = &destination.settings;
        if settings.paused {
            return None;
        }
        let now = self.clock.now();
        let expires_at = now + START_WITHIN + Duration::from_millis(settings.timeout_ms.into());
        let room = self.queue.reserve(destination, expires_at);
        // Under a limit it is not only room that is short.
        let ahead = self.ahead.as_ref().filter(|_| settings.rate_limits.is_unlimited());
        let joins = |ahead: &Arc<Ahead>| ahead.reserve(destination.id, expires_at, room == Room::Full, now);
        (room.is_kept() || ahead.is_some_and(joins)).then_some(expires_at)
    }

    fn cancel(&self, destination_id: DestinationId) {
        if !self.ahead.as_ref().is_some_and(|ahead| ahead.unreserve(destination_id)) {
            self.queue.unreserve(destination_id);
        }
    }

    fn admit(&self, mut deliveries: Vec<ClaimedDelivery>) {
        if let Some(ahead) = &self.ahead {
            deliveries = ahead.feed(deliveries);
        }
        if deliveries.is_empty() {
            return;
        }
        counter!("weir_permits_admitted_total").increment(deliveries.len() as u64);
        self.queue.admit(deliveries);
    }
}

/// Gives back what the express could not take after all.
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
                tracing::warn!(%error, "could not give back what the express could not take; the sweep finds it");
            }
        }
    }
}
