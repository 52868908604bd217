//! The gauge of the backlog in the store.

use std::{sync::Arc, time::Duration};

use metrics::gauge;
use tokio::time::Instant;
use weir_store::Alerting;

/// The time between two counts: autoscalers read the gauge every 15 s or less often.
const INTERVAL: Duration = Duration::from_secs(10);
/// The pause after a count is at least this many times the duration of the count: counting many millions takes seconds,
/// and must not take more than a sixtieth of a connection's time.
const PAUSE_FACTOR: u32 = 60;

/// Counts the waiting deliveries.
pub struct BacklogMeter {
    store: Arc<dyn Alerting>,
}

impl BacklogMeter {
    pub fn new(store: Arc<dyn Alerting>) -> Self {
        Self { store }
    }

    /// Counts repeatedly until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        tokio::pin!(shutdown);
        loop {
            tokio::select! {
                () = &mut shutdown => return,
                pause = self.count() => tokio::select! {
                    () = &mut shutdown => return,
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    }

    /// Sets the gauge. Returns how long to pause.
    async fn count(&self) -> Duration {
        let began = Instant::now();
        match self.store.backlog().await {
            Ok(waiting) => gauge!("weir_backlog_deliveries").set(waiting as f64),
            Err(error) => tracing::debug!(%error, "could not count the backlog; the gauge keeps its value"),
        }
        INTERVAL.max(began.elapsed() * PAUSE_FACTOR)
    }
}
