//! Dead letters of deleted destinations: nobody can send them again, so they are settled.
//!
//! A deletion settles those that it finds. A delivery that was in flight then may become a dead letter later, and a
//! process may die in between: this finds them by the counters.

use std::{sync::Arc, time::Duration};

use weir_core::{Clock, activity::Activity};
use weir_store::{AbandonedStore, DISCARDABLE, DeliveryFilter, StoreError, discard};

use crate::run_every::{Agent, run_every};

/// The time between two passes. Each reads the counters of all destinations.
const INTERVAL: Duration = Duration::from_secs(60);

/// Settles dead letters of deleted destinations. Any number of processes may run this.
pub struct AbandonedDeadLetters {
    store: Arc<dyn AbandonedStore>,
    clock: Arc<dyn Clock>,
}

impl AbandonedDeadLetters {
    pub fn new(store: Arc<dyn AbandonedStore>, clock: Arc<dyn Clock>) -> Self {
        Self { store, clock }
    }

    /// Makes a pass at once and then every minute until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(INTERVAL, shutdown, self).await;
    }

    /// Settles all that there are. Returns how many.
    pub async fn pass(&self) -> Result<u64, StoreError> {
        let counts = self.store.all_counts().await?;
        let ids: Vec<_> = counts.iter().filter(|(_, counts)| counts.dead_letters() > 0).map(|(id, _)| *id).collect();
        let mut settled = 0;
        for (id, destination) in ids.iter().zip(self.store.destinations(&ids).await?) {
            // Only a deleted destination is missing.
            if destination.is_none() {
                let (states, now) = (DISCARDABLE.to_vec(), self.clock.now());
                let filter = DeliveryFilter { destination_id: Some(*id), states, ..DeliveryFilter::default() };
                settled += discard(&*self.store, filter, now, Activity::of_abandoned(*id, now)).await?;
            }
        }
        Ok(settled)
    }
}

impl Agent for AbandonedDeadLetters {
    async fn make_pass(&mut self) {
        match self.pass().await {
            Ok(0) => {}
            Ok(settled) => tracing::info!(settled, "settled dead letters of deleted destinations"),
            Err(error) => {
                tracing::warn!(%error, "could not settle dead letters of deleted destinations; the next pass tries again");
            }
        }
    }
}
