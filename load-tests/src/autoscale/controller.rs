//! The controller: at each sync it reads the metrics, decides as the HPA does, and scales the Deployment.

use std::{sync::Arc, time::Duration};

use serde::Serialize;
use tokio::sync::{Mutex, watch};
use weir_core::Timestamp;

use super::{
    hpa::{Blocked, History, Milli, Reading, Replicas, Target},
    manifest::{Fallback, FallbackBehavior, Metric, Scaling},
    pods::Deployment,
    prometheus::Client,
};
use crate::clock::Timeline;

/// One sync: its inputs and its decision.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Tick {
    pub(crate) at: Timestamp,
    /// The number of replicas before the decision.
    pub(crate) wanted: u32,
    pub(crate) ready: u32,
    /// Each metric's value in its own unit; `None` when the query failed.
    pub(crate) values: Vec<Option<f64>>,
    /// The number of replicas that each metric proposes.
    pub(crate) proposals: Vec<Option<u32>>,
    pub(crate) blocked: Option<&'static str>,
    /// The decision.
    pub(crate) replicas: u32,
}

pub(crate) struct Controller {
    pub(crate) scaling: Scaling,
    pub(crate) prometheus: Client,
    pub(crate) deployment: Arc<Mutex<Deployment>>,
    pub(crate) timeline: Timeline,
}

impl Controller {
    /// Runs until `stop` is true. Returns all syncs.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) -> anyhow::Result<Vec<Tick>> {
        let mut history = History::default();
        // How often each metric has failed in a row, for KEDA's fallback.
        let mut failures = vec![0; self.scaling.metrics.len()];
        let mut ticks = Vec::new();
        let mut sync = tokio::time::interval(self.scaling.sync);
        // A late sync moves the following ones, so that two syncs are never close together.
        sync.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                _ = stop.wait_for(|stopped| *stopped) => return Ok(ticks),
                _ = sync.tick() => {}
            }
            // Hold the lock only for the numbers: the queries below may take long.
            let replicas = {
                let deployment = self.deployment.lock().await;
                Replicas { wanted: deployment.wanted(), current: deployment.wanted(), ready: deployment.ready() }
            };
            let mut readings = Vec::new();
            for (metric, failures) in self.scaling.metrics.iter().zip(&mut failures) {
                let value = self.read(metric, failures, replicas).await;
                readings.push(Reading { target: metric.target, value });
            }
            let now = self.timeline.now();
            // The algorithm accepts times since any origin.
            let since = now.since(Timestamp::MIN);
            let decision = history.decide(&readings, replicas, &self.scaling.bounds, since);
            if decision.replicas != replicas.wanted {
                self.deployment.lock().await.scale(decision.replicas)?;
            }
            // Keep the inputs with the decision, for the trace.
            ticks.push(Tick {
                at: now,
                wanted: replicas.wanted,
                ready: replicas.ready,
                values: readings.iter().map(|reading| Some(reading.value? as f64 / 1_000.0)).collect(),
                proposals: decision.proposals,
                blocked: decision.desired.err().map(describe),
                replicas: decision.replicas,
            });
        }
    }

    /// The value of a metric now, or KEDA's fallback value when the query fails.
    async fn read(&self, metric: &Metric, failures: &mut u32, replicas: Replicas) -> Option<Milli> {
        let value = match self.prometheus.value(&metric.query).await {
            Ok(None) if metric.is_null_zero => Some(0.0),
            Ok(value) => value,
            Err(_) => None,
        };
        match value {
            Some(value) => {
                *failures = 0;
                Some((value * 1_000.0) as Milli)
            }
            None => {
                *failures += 1;
                self.scaling.fallback.and_then(|fallback| fall_back(fallback, *failures, metric.target, replicas))
            }
        }
    }
}

/// The value that makes the HPA ask for the fallback's replicas; `None` while the metric has not failed often enough.
fn fall_back(fallback: Fallback, failures: u32, target: Target, replicas: Replicas) -> Option<Milli> {
    if failures <= fallback.failures {
        return None;
    }
    let (fixed, current) = (fallback.replicas, replicas.current);
    let to = match fallback.behavior {
        FallbackBehavior::Static => fixed,
        FallbackBehavior::CurrentReplicas => current,
        FallbackBehavior::CurrentReplicasIfHigher => fixed.max(current),
        FallbackBehavior::CurrentReplicasIfLower => fixed.min(current),
    };
    match target {
        Target::AverageValue(average) => Some(average * Milli::from(to)),
        Target::Value(_) if replicas.ready == 0 => None,
        Target::Value(value) => Some((value as f64 * f64::from(to) / f64::from(replicas.ready)) as Milli),
    }
}

fn describe(blocked: Blocked) -> &'static str {
    match blocked {
        Blocked::NoMetric => "no metric",
        Blocked::MissingMetric => "a metric is missing",
        Blocked::OutOfBounds => "out of bounds",
    }
}

/// The delay of the first sync: until Prometheus has scraped every pod.
pub(crate) fn first_sync_delay(scrape_every: Duration) -> Duration {
    scrape_every * 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keda_falls_back_after_enough_failures_in_a_row() {
        let fallback = Fallback { failures: 3, replicas: 4, behavior: FallbackBehavior::CurrentReplicasIfHigher };
        let replicas = |current| Replicas { wanted: current, current, ready: current };
        let average = Target::AverageValue(700);
        assert_eq!(fall_back(fallback, 3, average, replicas(9)), None);
        assert_eq!(fall_back(fallback, 4, average, replicas(9)), Some(6_300));
        assert_eq!(fall_back(fallback, 4, average, replicas(2)), Some(2_800));
        assert_eq!(fall_back(fallback, 4, Target::Value(1_000), replicas(2)), Some(2_000));
        let below = Fallback { behavior: FallbackBehavior::CurrentReplicasIfLower, ..fallback };
        assert_eq!(fall_back(below, 4, average, replicas(2)), Some(1_400));
    }
}
