//! The gauge of the backlog in the store.

use std::{sync::Arc, time::Duration};

use metrics::gauge;
use weir_store::Alerting;

use crate::run_every::{Agent, run_every};

/// The time between two reads of the counters: autoscalers read the gauge every 15 s or less often.
const INTERVAL: Duration = Duration::from_secs(10);

/// Counts the waiting deliveries.
pub struct BacklogMeter {
    store: Arc<dyn Alerting>,
}

impl BacklogMeter {
    pub fn new(store: Arc<dyn Alerting>) -> Self {
        Self { store }
    }

    /// Sets the gauge at once and then every ten seconds until `shutdown` resolves.
    pub async fn run(self, shutdown: impl Future<Output = ()>) {
        run_every(INTERVAL, shutdown, self).await;
    }
}

impl Agent for BacklogMeter {
    async fn make_pass(&mut self) {
        match self.store.backlog().await {
            Ok(waiting) => gauge!("weir_backlog_deliveries").set(waiting as f64),
            Err(error) => tracing::debug!(%error, "could not read the backlog; the gauge keeps its value"),
        }
    }
}
