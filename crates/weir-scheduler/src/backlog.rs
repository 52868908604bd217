//! How much waits in the store, for a gauge.

use std::time::Duration;

use metrics::gauge;
use tokio::time::Instant;
use weir_store::SharedStore;

/// The time between two counts.
const INTERVAL: Duration = Duration::from_secs(10);
/// A count of many millions takes seconds: it rests so many times as long as it took.
const REST: u32 = 60;

/// Counts what waits.
pub struct BacklogMeter {
    store: SharedStore,
}

impl BacklogMeter {
    pub fn new(store: SharedStore) -> Self {
        Self { store }
    }

    /// Counts again and again until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                rest = self.count() => tokio::select! {
                    () = &mut shutdown => return,
                    () = tokio::time::sleep(rest) => {}
                }
            }
        }
    }

    /// Sets the gauge and answers how long to rest.
    async fn count(&self) -> Duration {
        let began = Instant::now();
        match self.store.backlog().await {
            Ok(waiting) => gauge!("weir_backlog_deliveries").set(waiting as f64),
            Err(error) => tracing::debug!(%error, "could not count what waits; the gauge stays as it is"),
        }
        INTERVAL.max(began.elapsed() * REST)
    }
}
