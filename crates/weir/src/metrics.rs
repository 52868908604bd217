//! The Prometheus exporter, and the gauges that are read at scrape time.

mod busy;
mod descriptions;

use std::{sync::Arc, time::Duration};

use axum::{
    body::HttpBody,
    http::{Response, header::CONTENT_TYPE},
};
use metrics::{counter, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::{
    runtime::Handle,
    sync::Mutex,
    time::{Instant, sleep, timeout},
};
use tower_http::compression::{CompressionLayer, predicate::Predicate};
use weir_api::{Readiness, RenderMetrics};
use weir_worker::WorkerLoad;

use crate::{
    backends::{Backends, Depths, StoreSize, StoreUse},
    config::ProcessRole,
    listener,
};

use busy::{BusyMeter, SAMPLE_EVERY};

/// From 250 µs to a minute; each bound is about twice the previous one.
const LATENCY_BUCKETS: [f64; 18] =
    [0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0];
/// The same bounds and two more, up to 15 minutes: the objective of the alerts is five minutes.
const LAG_BUCKETS: [f64; 20] = [
    0.000_25, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0,
    300.0, 900.0,
];
/// From a quarter of a microsecond to a millisecond: a decision costs less than a microsecond.
const OVERHEAD_BUCKETS: [f64; 8] = [2.5e-7, 5e-7, 1e-6, 2.5e-6, 5e-6, 1e-5, 1e-4, 1e-3];
const SIZE_BUCKETS: [f64; 7] = [1.0, 4.0, 16.0, 64.0, 256.0, 1_024.0, 4_096.0];
/// Histograms are aggregated this often, so that the memory of a process that is not scraped does not grow.
const UPKEEP: Duration = Duration::from_secs(5);
/// How often store and queue are checked, and how long they may take to answer.
const CHECK_EVERY: Duration = Duration::from_secs(5);
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Larger offsets between the clocks of this process and of Redis, in seconds, are logged. Clocks that are kept agree
/// within milliseconds.
const WARN_OFFSET: f64 = 1.0;
/// With larger offsets the process is not ready. One of the two clocks is wrong, and receivers refuse signatures whose
/// time is wrong by minutes.
const MAX_OFFSET: f64 = 30.0;
/// A lasting offset is logged this often: with every twelfth check, once a minute.
const WARN_EVERY_CHECKS: u32 = 12;
/// Whether the database's address leads to another server is looked at with every second check: each look is a new
/// connection.
const SERVER_EVERY_CHECKS: u32 = 2;
/// Sizes on disk are read with every twelfth check, once a minute: they change slowly, and PostgreSQL adds up all files.
const SIZES_EVERY_CHECKS: u32 = 12;
/// The depths of the queue are counted at most once in this time, however often the process is scraped.
const DEPTHS_MAX_AGE: Duration = Duration::from_secs(1);

/// Counters that each role exports from the start: with an initial 0, the first event shows as an increase.
const SCHEDULER_COUNTERS: [&str; 6] = [
    "weir_scheduler_runs_total",
    "weir_permits_published_total",
    "weir_permits_declined_total",
    "weir_stale_publishes_total",
    "weir_processes_lost_total",
    "weir_claims_recovered_total",
];
const WORKER_COUNTERS: [&str; 4] = [
    "weir_permits_taken_total",
    "weir_permits_unused_total",
    "weir_permits_crowded_out_total",
    "weir_claims_lost_total",
];
const API_COUNTERS: [&str; 2] = ["weir_permits_admitted_total", "weir_permits_declined_total"];

/// The process's metrics.
#[derive(Clone)]
pub(crate) struct Metrics {
    handle: PrometheusHandle,
    busy: Arc<BusyMeter>,
}

/// Where the gauges are read from.
#[derive(Clone)]
pub(crate) struct GaugeSources {
    pub(crate) role: ProcessRole,
    pub(crate) backends: Backends,
    /// The load of the worker, if this process runs one.
    pub(crate) load: Option<WorkerLoad>,
}

impl Metrics {
    /// Installs the recorder of the process. Call it at most once.
    pub(crate) fn install() -> anyhow::Result<Self> {
        let handle = PrometheusBuilder::new()
            .set_buckets_for_metric(Matcher::Full("weir_start_lag_seconds".to_owned()), &LAG_BUCKETS)?
            .set_buckets_for_metric(Matcher::Full("weir_store_commit_size".to_owned()), &SIZE_BUCKETS)?
            .set_buckets_for_metric(Matcher::Full("weir_shed_overhead_seconds".to_owned()), &OVERHEAD_BUCKETS)?
            .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &LATENCY_BUCKETS)?
            .install_recorder()?;
        descriptions::describe();
        let (upkeep, busy) = (handle.clone(), Arc::new(BusyMeter::start()));
        tokio::spawn(async move {
            loop {
                sleep(UPKEEP).await;
                upkeep.run_upkeep();
            }
        });
        let sampled = busy.clone();
        tokio::spawn(async move {
            loop {
                sleep(SAMPLE_EVERY).await;
                sampled.sample();
            }
        });
        Ok(Self { handle, busy })
    }

    /// Counts these threads for requests to those of the process.
    pub(crate) fn watch_threads(&self, intake: &Handle) {
        self.busy.watch_threads(intake);
    }

    /// Renders the metrics with the current values of the gauges. While the queue cannot be reached, its gauges keep
    /// their last values.
    pub(crate) fn renderer(&self, sources: GaugeSources) -> RenderMetrics {
        let Self { handle, busy } = self.clone();
        // Export these series from the start. A counter that begins with 0 shows its first event as an increase.
        gauge!("weir_build_info", "version" => env!("CARGO_PKG_VERSION"), "role" => sources.role.name()).set(1.0);
        gauge!(listener::CONNECTIONS).increment(0.0);
        let counters_by_role = [
            (sources.role.schedules(), &SCHEDULER_COUNTERS[..]),
            (sources.role.works(), &WORKER_COUNTERS[..]),
            (sources.role.serves_api(), &API_COUNTERS[..]),
        ];
        for name in counters_by_role.into_iter().filter(|(counts, _)| *counts).flat_map(|(_, names)| names) {
            counter!(*name).increment(0);
        }

        if let Some(load) = &sources.load {
            busy.watch(load.clone());
        }
        // Concurrent scrapes share the time at which the depths were last read.
        let depths_read_at = Arc::new(Mutex::new(None));
        // Each scrape sets the gauges anew.
        Arc::new(move || {
            let (handle, busy, sources, depths_read_at) =
                (handle.clone(), busy.clone(), sources.clone(), depths_read_at.clone());
            Box::pin(async move {
                sources.set_process_gauges(&busy);
                // The depths are those of all processes, so it is enough that schedulers export them.
                if sources.role.schedules() {
                    sources.set_queue_gauges(&depths_read_at).await;
                }
                handle.render()
            })
        })
    }
}

/// Compresses the metrics for those who ask for it, as Prometheus does: they are a tenth as large then.
pub(crate) fn compressed() -> CompressionLayer<OnlyMetrics> {
    CompressionLayer::new().gzip(true).compress_when(OnlyMetrics)
}

/// Of the answers of a process, only the metrics are such a text. Others decide for themselves.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OnlyMetrics;

impl Predicate for OnlyMetrics {
    fn should_compress<B: HttpBody>(&self, response: &Response<B>) -> bool {
        let content_type = response.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
        content_type.is_some_and(|text| text.starts_with("text/plain; version="))
    }
}

/// Runs a check, and exports how long it took.
async fn timed<T>(name: &'static str, check: impl Future<Output = T>) -> T {
    let began = Instant::now();
    let checked = check.await;
    gauge!(name).set(began.elapsed().as_secs_f64());
    checked
}

impl GaugeSources {
    /// Checks store, queue and clock periodically until `shutdown` resolves.
    pub(crate) async fn check_backends(self, readiness: Readiness, shutdown: impl Future<Output = ()>) {
        let checks = async {
            let (store, queue) = (self.backends.store(), self.backends.queue());
            let mut checks_with_offset = 0;
            let (mut sizes_due, mut server_due) = (0, 0);
            loop {
                if server_due == 0 {
                    let _ = timeout(CHECK_TIMEOUT, self.backends.watch_server()).await;
                }
                server_due = (server_due + 1) % SERVER_EVERY_CHECKS;
                if self.role.schedules() && sizes_due == 0 {
                    self.set_sizes().await;
                }
                sizes_due = (sizes_due + 1) % SIZES_EVERY_CHECKS;
                let is_large = self.check_clock(&readiness).is_some_and(|offset| offset.abs() > WARN_OFFSET);
                if is_large && checks_with_offset % WARN_EVERY_CHECKS == 0 {
                    tracing::warn!(
                        offset_seconds = self.backends.clock_offset(),
                        "the clocks of this machine and of Redis differ; keep both with NTP"
                    );
                }
                checks_with_offset = if is_large { checks_with_offset + 1 } else { 0 };
                let (store, queue) = tokio::join!(
                    timed("weir_store_round_trip_seconds", timeout(CHECK_TIMEOUT, store.check())),
                    timed("weir_queue_round_trip_seconds", timeout(CHECK_TIMEOUT, queue.check()))
                );
                // Only the API reads from it.
                if self.role.serves_api() {
                    self.backends.check_replica().await;
                }
                set_availability("weir_store_up", matches!(store, Ok(Ok(()))));
                set_availability("weir_queue_up", matches!(queue, Ok(Ok(()))));
                sleep(CHECK_EVERY).await;
            }
        };
        tokio::select! {
            () = shutdown => {}
            () = checks => {}
        }
    }

    /// Sets the gauges of the sizes on disk. While the store does not answer, they keep their values.
    async fn set_sizes(&self) {
        let Ok(Some(size)) = timeout(CHECK_TIMEOUT, self.backends.store_size()).await else { return };
        let (StoreSize::Sqlite { bytes, .. } | StoreSize::Postgres { bytes, .. }) = size;
        gauge!("weir_store_bytes").set(bytes as f64);
        match size {
            StoreSize::Sqlite { disk: Some((size, free)), .. } => {
                gauge!("weir_disk_bytes").set(size as f64);
                gauge!("weir_disk_free_bytes").set(free as f64);
            }
            StoreSize::Sqlite { disk: None, .. } => {}
            StoreSize::Postgres { kept_log, .. } => gauge!("weir_postgres_slot_bytes").set(kept_log as f64),
        }
    }

    /// Compares the clock of Redis with that of this process, and returns the offset.
    pub(crate) fn check_clock(&self, readiness: &Readiness) -> Option<f64> {
        let offset = self.backends.clock_offset();
        readiness.set_wrong_clock(offset.is_some_and(|offset| offset.abs() > MAX_OFFSET));
        offset
    }

    /// Sets the gauges that need no request to the queue.
    fn set_process_gauges(&self, busy: &BusyMeter) {
        metrics_process::Collector::default().collect();
        let of_threads = busy.of_threads();
        gauge!("weir_runtime_busy_ratio").set(of_threads);
        if let Some(load) = &self.load {
            gauge!("weir_attempts_under_way").set(load.under_way() as f64);
            gauge!("weir_attempts_unrecorded").set(load.unrecorded() as f64);
            gauge!("weir_worker_capacity").set(load.capacity() as f64);
            gauge!("weir_worker_busy_ratio").set(busy.of_places().max(of_threads));
            let (in_use, idle) = load.connections();
            gauge!("weir_outbound_connections", "state" => "in_use").set(in_use as f64);
            gauge!("weir_outbound_connections", "state" => "idle").set(idle as f64);
        }
        if let Some(offset) = self.backends.clock_offset() {
            gauge!("weir_clock_offset_seconds").set(offset);
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

    /// Sets the gauges of the queue, which all processes share.
    async fn set_queue_gauges(&self, read_at: &Mutex<Option<Instant>>) {
        let mut read_at = read_at.lock().await;
        if read_at.is_some_and(|at| at.elapsed() < DEPTHS_MAX_AGE) {
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

fn set_availability(name: &'static str, is_up: bool) {
    gauge!(name).set(f64::from(u8::from(is_up)));
}
