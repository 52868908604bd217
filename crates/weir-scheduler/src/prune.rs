//! Retention: what ended long ago goes, a little at a time, so that nobody notices.

use std::{sync::Arc, time::Duration};

use metrics::counter;
use weir_core::{
    Clock,
    retention::{Cutoffs, Retention},
};
use weir_store::{PrunePlace, Pruned, SharedStore, StoreError};

/// The time between two passes. Each looks at everything that is old and stays, too.
const INTERVAL: Duration = Duration::from_secs(600);
/// After a step that deleted something. Deliveries have the store for themselves most of the time.
const PAUSE: Duration = Duration::from_millis(50);
/// After a step that only looked.
const SHORT_PAUSE: Duration = Duration::from_millis(5);

/// Deletes what has been kept long enough. Any number may run; the store lets one at a time.
pub struct Pruner {
    store: SharedStore,
    clock: Arc<dyn Clock>,
    retention: Retention,
}

impl Pruner {
    pub fn new(store: SharedStore, clock: Arc<dyn Clock>, retention: Retention) -> Self {
        Self { store, clock, retention }
    }

    /// Makes a pass at once and then every ten minutes until `shutdown` resolves. What a pass has deleted is gone, so it may be
    /// broken off anywhere.
    pub async fn run(&self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                passed = self.pass() => match passed {
                    Ok(Pruned { deliveries: 0, attempts: 0, events: 0, days: 0 }) => {}
                    Ok(Pruned { deliveries, attempts, events, days }) => {
                        tracing::info!(deliveries, attempts, events, days, "deleted what was kept long enough");
                    }
                    Err(error) => tracing::warn!(%error, "could not delete what is too old; the next pass tries again"),
                },
            }
            tokio::select! {
                () = &mut shutdown => return,
                () = tokio::time::sleep(INTERVAL) => {}
            }
        }
    }

    /// Deletes all that is too old now.
    pub async fn pass(&self) -> Result<Pruned, StoreError> {
        let cutoffs: Cutoffs = self.retention.cutoffs(self.clock.now());
        let mut total = Pruned::default();
        let mut place = PrunePlace::START;
        loop {
            let step = self.store.prune_some(&cutoffs, place).await?;
            count(step.pruned);
            total += step.pruned;
            let Some(next) = step.next else { return Ok(total) };
            place = next;
            tokio::time::sleep(if step.pruned == Pruned::default() { SHORT_PAUSE } else { PAUSE }).await;
        }
    }
}

fn count(pruned: Pruned) {
    let Pruned { deliveries, attempts, events, days } = pruned;
    for (what, gone) in [("deliveries", deliveries), ("attempts", attempts), ("events", events), ("days", days)] {
        if gone > 0 {
            counter!("weir_retention_deleted_total", "what" => what).increment(gone);
        }
    }
}
