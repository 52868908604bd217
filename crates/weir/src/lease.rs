//! The lease of this process: it registers, and raises its beat as long as it lives.
//!
//! A beat that the store took lets the queue be used for some seconds more. A process that is cut off from the store thus stops by
//! itself, before others declare it dead and resolve what it had under way.

use std::time::Duration;

use tokio::time::Instant;
use weir_core::claim::ProcessId;
use weir_queue::SharedQueue;
use weir_store::{BEAT_EVERY, LEASE_VALID, SharedStore, StoreResult};

/// How long the last word may take.
const LAST_WORD: Duration = Duration::from_secs(2);

pub(crate) struct ProcessLease {
    store: SharedStore,
    queue: SharedQueue,
    process: ProcessId,
}

impl ProcessLease {
    pub(crate) async fn begin(store: SharedStore, queue: SharedQueue) -> StoreResult<Self> {
        let asked = Instant::now();
        let process = store.register_process().await?;
        queue.renew_lease(process, asked + LEASE_VALID);
        Ok(Self { store, queue, process })
    }

    /// Keeps the lease, for ever.
    pub(crate) async fn keep(mut self) {
        loop {
            tokio::time::sleep(BEAT_EVERY).await;
            if let Err(error) = self.beat().await {
                tracing::warn!(%error, "the store does not hear of this process; it sends nothing until it does");
            }
        }
    }

    async fn beat(&mut self) -> StoreResult<()> {
        let asked = Instant::now();
        if !self.store.beat().await? {
            tracing::warn!(process = self.process.0, "this process was taken for dead; it goes on as another");
            self.process = self.store.register_process().await?;
        }
        self.queue.renew_lease(self.process, asked + LEASE_VALID);
        Ok(())
    }

    /// What the process has left, others may take at once.
    pub(crate) async fn end(store: &SharedStore) {
        if !matches!(tokio::time::timeout(LAST_WORD, store.deregister()).await, Ok(Ok(()))) {
            tracing::warn!("could not tell the store that this process ends; others find out");
        }
    }
}
