//! The Prometheus exporter: what each metric is for, and the gauges read at scrape time.

use std::{sync::Arc, time::Duration};

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use weir_api::RenderMetrics;

use crate::backends::Backends;

/// From 250 µs to a minute, each about twice the one before.
const LATENCY_BUCKETS: [f64; 18] =
    [0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0];
/// Histograms are folded this often, so that an unscraped process does not grow.
const UPKEEP: Duration = Duration::from_secs(5);

/// The process's metrics.
#[derive(Clone)]
pub(crate) struct Metrics(PrometheusHandle);

impl Metrics {
    /// Installs the recorder of the process. At most once.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &LATENCY_BUCKETS)?
            .install_recorder()?;
        describe();
        let upkeep = handle.clone();
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        });
        Ok(Self(handle))
    }

    /// Renders the metrics, with the queue's gauges as they are at that moment; while it cannot be reached, as they were.
    pub(crate) fn renderer(&self, backends: Backends) -> RenderMetrics {
        let handle = self.0.clone();
        Arc::new(move || {
            let (handle, backends) = (handle.clone(), backends.clone());
            Box::pin(async move {
                if let Some(depths) = backends.depths().await {
                    gauge!("weir_delivery_queue_depth").set(depths.ready as f64);
                    gauge!("weir_queued_permits").set(depths.queued as f64);
                    gauge!("weir_in_flight_sends").set(depths.in_flight as f64);
                    gauge!("weir_scheduled_jobs").set(depths.jobs as f64);
                }
                handle.render()
            })
        })
    }
}

fn describe() {
    describe_gauge!("weir_delivery_queue_depth", "Permitted attempts that no worker has taken; scale workers on it");
    describe_gauge!("weir_queued_permits", "Permits published whose sends have not started");
    describe_gauge!("weir_in_flight_sends", "Sends started and not yet settled");
    describe_gauge!("weir_scheduled_jobs", "Destinations with a job in the schedule: those with something to send");
    describe_gauge!("weir_attempts_under_way", "Attempts in the worker's hands, waiting for their slots included");
    describe_counter!("weir_scheduler_runs_total", "Runs of rate-limiter jobs; the scheduler's work");
    describe_counter!("weir_permits_published_total", "Attempts permitted by the scheduler");
    describe_counter!(
        "weir_permits_admitted_total",
        "New deliveries claimed as they were stored and sent without a run"
    );
    describe_counter!(
        "weir_permits_declined_total",
        "Admitted deliveries that had to wait for a run after all; each costs the store two writes"
    );
    describe_counter!("weir_permits_taken_total", "Permits taken by workers");
    describe_counter!("weir_permits_unused_total", "Permits handed back unsent (paused, held, deleted, shutting down)");
    describe_counter!("weir_slots_missed_total", "Slots that passed unused; each costs a destination one spacing");
    describe_counter!("weir_stale_publishes_total", "Runs that came too late and published nothing");
    describe_counter!("weir_processes_lost_total", "Processes whose leases ended without a word; look why they died");
    describe_counter!("weir_claims_recovered_total", "Claims whose sender died; each counts as an unknown attempt");
    describe_counter!(
        "weir_claims_lost_total",
        "Attempts that ended after their claim was recovered: likely duplicates"
    );
    describe_counter!(
        "weir_retention_deleted_total",
        "What was deleted because it was kept long enough, by what it was; days are dropped whole, with their events"
    );
    describe_counter!("weir_attempts_total", "Attempts by outcome and by what they met; alert on the failing share");
    describe_histogram!(
        "weir_scheduler_lateness_seconds",
        Unit::Seconds,
        "From a batch's earliest due time to its run; the scheduler is overloaded when it grows"
    );
    describe_histogram!("weir_attempt_duration_seconds", Unit::Seconds, "From the send start to the end of the answer");
    describe_histogram!(
        "weir_delivery_latency_seconds",
        Unit::Seconds,
        "From an event's creation, or its deliver_at, to its delivery, waiting for its rate included"
    );
}
