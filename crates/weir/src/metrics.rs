//! The Prometheus exporter: what each metric is for, and the gauges read at scrape time.

mod busy;

use std::{sync::Arc, time::Duration};

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::{
    sync::Mutex,
    time::{Instant, sleep, timeout},
};
use weir_api::RenderMetrics;
use weir_worker::Load;

use crate::{
    backends::{Backends, Depths, StoreUse},
    config::Role,
    listener,
};

use busy::Busy;

/// From 250 µs to a minute, each about twice the one before.
const LATENCY_BUCKETS: [f64; 18] =
    [0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0];
/// The same, and on to a quarter of an hour: five minutes is what the objective of the alerts is about.
const LAG_BUCKETS: [f64; 20] = [
    0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    300.0, 900.0,
];
const SIZE_BUCKETS: [f64; 7] = [1.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 4_096.0];
/// Histograms are folded this often, so that an unscraped process does not grow.
const UPKEEP: Duration = Duration::from_secs(5);
/// How often store and queue are asked whether they answer, and how long they may take.
const CHECK_EVERY: Duration = Duration::from_secs(5);
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// What is counted in the queue is counted anew after this time at the earliest, however often and by whomever it is scraped.
const DEPTHS_KEPT: Duration = Duration::from_secs(1);

/// Counters of each role that are there from the start: what has never happened is 0 then, and its first time a rise.
const OF_SCHEDULERS: [&str; 6] = [
    "weir_scheduler_runs_total",
    "weir_permits_published_total",
    "weir_permits_declined_total",
    "weir_stale_publishes_total",
    "weir_processes_lost_total",
    "weir_claims_recovered_total",
];
const OF_WORKERS: [&str; 4] = [
    "weir_permits_taken_total",
    "weir_permits_unused_total",
    "weir_permits_crowded_out_total",
    "weir_claims_lost_total",
];
const OF_THE_API: [&str; 2] = ["weir_permits_admitted_total", "weir_permits_declined_total"];

/// The process's metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    handle: PrometheusHandle,
    busy: Arc<Busy>,
}

/// What the gauges are read from.
#[derive(Clone)]
pub(crate) struct Sources {
    pub(crate) role: Role,
    pub(crate) backends: Backends,
    /// Of the worker, where there is one.
    pub(crate) load: Option<Load>,
}

impl Metrics {
    /// Installs the recorder of the process. At most once.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full("weir_start_lag_seconds".to_owned()), &LAG_BUCKETS)?
            .set_buckets_for_metric(Matcher::Full("weir_store_commit_size".to_owned()), &SIZE_BUCKETS)?
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &LATENCY_BUCKETS)?
            .install_recorder()?;
        describe();
        let (upkeep, busy) = (handle.clone(), Arc::new(Busy::start()));
        let sampled = busy.clone();
        tokio::spawn(async move {
            loop {
                sleep(UPKEEP).await;
                upkeep.run_upkeep();
                sampled.sample();
            }
        });
        Ok(Self { handle, busy })
    }

    /// Renders the metrics, with the gauges as they are at that moment; those of the queue, while it cannot be reached, as they were.
    pub(crate) fn renderer(&self, sources: Sources) -> RenderMetrics {
        let Self { handle, busy } = self.clone();
        gauge!("weir_build_info", "version" => env!("CARGO_PKG_VERSION"), "role" => sources.role.name()).set(1.0);
        gauge!(listener::CONNECTIONS).increment(0.0);
        let counted_by = [
            (sources.role.schedules(), &OF_SCHEDULERS[..]),
            (sources.role.works(), &OF_WORKERS[..]),
            (sources.role.serves_api(), &OF_THE_API[..]),
        ];
        for name in counted_by.into_iter().filter(|(counts, _)| *counts).flat_map(|(_, names)| names) {
            counter!(*name).increment(0);
        }
        let depths = Arc::new(Mutex::new(None));
        Arc::new(move || {
            let (handle, busy, sources, depths) = (handle.clone(), busy.clone(), sources.clone(), depths.clone());
            Box::pin(async move {
                sources.read_process(busy.share());
                if sources.role.schedules() {
                    sources.read_queue(&depths).await;
                }
                handle.render()
            })
        })
    }
}

impl Sources {
    /// Asks store and queue again and again whether they answer, until `shutdown` resolves.
    pub(crate) async fn check_backends(self, shutdown: impl Future<Output = ()>) {
        let checks = async {
            let (store, queue) = (self.backends.store(), self.backends.queue());
            loop {
                let (store, queue) =
                    tokio::join!(timeout(CHECK_TIMEOUT, store.check()), timeout(CHECK_TIMEOUT, queue.check()));
                set_up("weir_store_up", matches!(store, Ok(Ok(()))));
                set_up("weir_queue_up", matches!(queue, Ok(Ok(()))));
                sleep(CHECK_EVERY).await;
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = checks => {}
        }
    }

    /// What this process knows by itself.
    fn read_process(&self, busy: f64) {
        metrics_process::Collector::default().collect();
        gauge!("weir_runtime_busy_ratio").set(busy);
        if let Some(load) = &self.load {
            let (under_way, capacity) = (load.under_way() as f64, load.capacity() as f64);
            gauge!("weir_attempts_under_way").set(under_way);
            gauge!("weir_worker_capacity").set(capacity);
            gauge!("weir_worker_busy_ratio").set((under_way / capacity).max(busy));
            let (in_use, idle) = load.connections();
            gauge!("weir_outbound_connections", "state" => "in_use").set(in_use as f64);
            gauge!("weir_outbound_connections", "state" => "idle").set(idle as f64);
        }
        match self.backends.store_use() {
            StoreUse::Sqlite { wal_bytes } => gauge!("weir_sqlite_wal_bytes").set(wal_bytes as f64),
            StoreUse::Postgres(pool) => {
                gauge!("weir_postgres_pool_connections", "state" => "in_use").set(f64::from(pool.in_use));
                gauge!("weir_postgres_pool_connections", "state" => "idle").set(f64::from(pool.idle));
                gauge!("weir_postgres_pool_max_connections").set(f64::from(pool.most));
            }
        }
    }

    /// What all processes share.
    async fn read_queue(&self, read_at: &Mutex<Option<Instant>>) {
        let mut read_at = read_at.lock().await;
        if read_at.is_some_and(|at| at.elapsed() < DEPTHS_KEPT) {
            return;
        }
        let Ok(Some(depths)) = timeout(CHECK_TIMEOUT, self.backends.depths()).await else { return };
        let Depths { ready, oldest_waited, queued, in_flight, jobs } = depths;
        gauge!("weir_delivery_queue_depth").set(ready as f64);
        gauge!("weir_delivery_queue_oldest_seconds").set(oldest_waited.as_secs_f64());
        gauge!("weir_queued_permits").set(queued as f64);
        gauge!("weir_in_flight_sends").set(in_flight as f64);
        gauge!("weir_scheduled_jobs").set(jobs as f64);
        *read_at = Some(Instant::now());
    }
}

fn set_up(name: &'static str, is_up: bool) {
    gauge!(name).set(f64::from(u8::from(is_up)));
}

fn describe() {
    metrics_process::Collector::default().describe();
    describe_gauge!("weir_build_info", "Always 1; the labels tell what runs");
    describe_gauge!("weir_store_up", "1 while the database answers; at 0 nothing is accepted or recorded");
    describe_gauge!("weir_queue_up", "1 while the queue answers; at 0 events are accepted and nothing is sent");
    describe_gauge!(
        "weir_runtime_busy_ratio",
        "How much of the last ten seconds the threads of this process worked; near 1 it needs more CPU"
    );
    describe_gauge!(
        "weir_worker_busy_ratio",
        "How much of the worker is taken, places or threads, whichever is more; scale workers on it"
    );
    describe_gauge!("weir_worker_capacity", "Attempts that the worker makes at one time at most");
    describe_gauge!(
        "weir_delivery_queue_depth",
        "Permitted attempts that no worker has taken, over all processes: take the max of it, not the sum; scale workers on it"
    );
    describe_gauge!(
        "weir_delivery_queue_oldest_seconds",
        Unit::Seconds,
        "For how long the oldest of those has waited, over all processes; workers are behind when it grows"
    );
    describe_gauge!(
        "weir_backlog_deliveries",
        "Deliveries that wait in the store, over all processes, counted every ten seconds or so; most wait for their limits"
    );
    describe_gauge!(
        "weir_http_connections",
        "Connections that clients have open; more than the limit wait to be accepted"
    );
    describe_gauge!(
        "weir_outbound_connections",
        "Connections to destinations that are open, by whether they are in use"
    );
    describe_gauge!("weir_postgres_pool_connections", "Connections for edits and reads, by whether they are in use");
    describe_gauge!(
        "weir_postgres_pool_max_connections",
        "How many of those there may be; when all are in use, reads wait"
    );
    describe_gauge!(
        "weir_sqlite_wal_bytes",
        Unit::Bytes,
        "The write-ahead log of the SQLite file; it is copied into the file every few MiB, so it grows when that fails"
    );
    describe_histogram!(
        "weir_store_commit_seconds",
        Unit::Seconds,
        "Group commits, by what they store; when they are slow, look at the disk of the database"
    );
    describe_histogram!("weir_store_commit_size", "Operations that were committed together");
    describe_histogram!(
        "weir_start_lag_seconds",
        Unit::Seconds,
        "From when a send may start, by its limit, to when it does, without connecting; add workers when it grows"
    );
    describe_counter!("weir_slots_used_total", "Sends that left in their slots");
    describe_counter!(
        "weir_permits_crowded_out_total",
        "Permits that found no place because others of their destination hang; they come again"
    );
    describe_counter!("weir_deliveries_total", "Deliveries that ended with an attempt, by how they ended");
    describe_counter!("weir_breaker_changes_total", "Circuit breakers that changed, by their new state");
    describe_counter!("weir_alerts_total", "Operational events that were told to destinations, by type");
    describe_gauge!("weir_queued_permits", "Permits published whose sends have not started, over all processes");
    describe_gauge!("weir_in_flight_sends", "Sends started and not yet settled, over all processes");
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
