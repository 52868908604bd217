//! Releases claims that cannot be published.

use std::{collections::HashSet, sync::Arc, time::Duration};

use weir_core::{
    Backoff, Clock, DestinationId, Timestamp,
    claim::{Claim, ClaimedDelivery},
};
use weir_queue::{QueueError, SharedQueue, Wake};
use weir_store::{RunStore, StoreError};

/// How long a claimed delivery may wait for its send start before its claim expires. Longer than the 40 s for which
/// Redis keeps permits that no worker reads: the claims of such permits are released before they expire. So a claim
/// expires only when its holder is lost.
pub(crate) const START_WITHIN: Duration = Duration::from_secs(60);

/// The store or the queue failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Queue(#[from] QueueError),
}

/// Releases claims.
pub(crate) struct ClaimReleaser {
    store: Arc<dyn RunStore>,
    queue: SharedQueue,
    clock: Arc<dyn Clock>,
}

impl ClaimReleaser {
    pub(crate) fn new(store: Arc<dyn RunStore>, queue: SharedQueue, clock: Arc<dyn Clock>) -> Self {
        Self { store, queue, clock }
    }

    /// Releases claims and wakes their flows: a run in between may have found nothing due because of these
    /// claims, and stopped the job.
    pub(crate) async fn release_and_wake(&self, deliveries: Vec<ClaimedDelivery>) -> Result<(), Failure> {
        let now = self.clock.now();
        let wakes = wakes_of(deliveries.iter().map(|delivery| delivery.flow_id), now);
        let claims: Vec<Claim> = deliveries.into_iter().map(|delivery| delivery.claim).collect();
        self.release(claims, now).await?;
        Ok(self.queue.wake(&wakes).await?)
    }

    /// Retries until the claims would have expired. An expired claim counts as an attempt, and these were not
    /// published.
    async fn release(&self, claims: Vec<Claim>, now: Timestamp) -> Result<(), StoreError> {
        let mut backoff = Backoff::default();
        loop {
            match self.store.release(claims.clone(), now).await {
                Err(error) if error.is_transient() && self.clock.now().since(now) < START_WITHIN => {
                    tracing::warn!(%error, claims = claims.len(), "could not release claims; trying again");
                    tokio::time::sleep(backoff.fail()).await;
                }
                released => return released.map(drop),
            }
        }
    }
}

/// One wake for each of these destinations or flows.
pub(crate) fn wakes_of(ids: impl Iterator<Item = DestinationId>, due: Timestamp) -> Vec<Wake> {
    let ids: HashSet<_> = ids.collect();
    ids.into_iter().map(|destination_id| Wake { destination_id, due }).collect()
}
