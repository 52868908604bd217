//! The fold: recorded changes of the counters are added to their totals every second, so that few rows of changes exist
//! at any time and reads of the counters stay short. No result depends on it.

use std::{sync::Arc, time::Duration};

use weir_store::{CountChanges, FOLDED_AT_ONCE, StoreError};

use crate::run_every::{Agent, run_every};

/// The time between two passes. The changes of a second are at most some thousand rows.
const INTERVAL: Duration = Duration::from_secs(1);

/// Folds the changes of the counters. Any number of processes may run this; the store lets one at a time fold.
pub struct Folder {
    store: Arc<dyn CountChanges>,
}

impl Folder {
    pub fn new(store: Arc<dyn CountChanges>) -> Self {
        Self { store }
    }

    /// Makes a pass at once and then every second until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(INTERVAL, shutdown, self).await;
    }
}

impl Agent for Folder {
    async fn make_pass(&mut self) {
        if let Err(error) = pass(&*self.store).await {
            tracing::warn!(%error, "could not fold the changes of the counters; the next pass tries again");
        }
    }
}

/// Folds everything recorded so far, in steps.
async fn pass<C: CountChanges + Sync + ?Sized>(store: &C) -> Result<(), StoreError> {
    while store.fold_changes().await? >= u64::from(FOLDED_AT_ONCE) {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

    use async_trait::async_trait;
    use weir_store::StoreResult;

    use super::*;

    /// Changes that are not folded yet.
    struct Changes(AtomicU64);

    #[async_trait]
    impl CountChanges for Changes {
        async fn fold_changes(&self) -> StoreResult<u64> {
            let folded = self.0.load(SeqCst).min(FOLDED_AT_ONCE.into());
            self.0.fetch_sub(folded, SeqCst);
            Ok(folded)
        }
    }

    #[tokio::test]
    async fn a_pass_folds_until_no_full_step_is_left() {
        let changes = Changes(AtomicU64::new(u64::from(FOLDED_AT_ONCE) * 2 + 3));
        pass(&changes).await.unwrap();
        assert_eq!(changes.0.load(SeqCst), 0);
    }
}
