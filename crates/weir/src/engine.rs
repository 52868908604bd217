//! The composition root: the whole engine in one process, on SQLite and the in-process queue.
//!
//! Start-up order matters: the store is opened (alone on its file), claims that a dead process left are resolved, and only
//! then do scheduler and worker run, so that cursors are recovered from a complete history.

use std::{net::SocketAddr, path::Path, sync::Arc, time::Duration};

use anyhow::Context as _;
use tokio::{net::TcpListener, sync::watch, task::JoinHandle};
use weir_api::{ApiKeys, ApiState, Readiness};
use weir_core::{Clock, Timestamp, address::AddressPolicy};
use weir_queue::{SharedQueue, memory::MemoryQueue};
use weir_scheduler::{Scheduler, Sweeper};
use weir_store::SharedStore;
use weir_store_sqlite::SqliteStore;
use weir_worker::{
    Worker,
    outbound::{Outbound, TlsRoots},
};

use crate::{cli::Misuse, clock::SystemClock, metrics::Metrics};

/// How many scheduler loops run side by side: while one waits for a commit, another can claim.
const SCHEDULERS: usize = 2;
/// How long open API requests may take to finish at shutdown.
const API_GRACE: Duration = Duration::from_secs(5);

/// What the engine is started with.
pub(crate) struct EngineSettings<'a> {
    pub(crate) database: &'a Path,
    pub(crate) listen: SocketAddr,
    pub(crate) api_keys: ApiKeys,
    pub(crate) addresses: AddressPolicy,
    pub(crate) max_event_bytes: usize,
    pub(crate) shutdown_grace: Duration,
}

/// A running engine.
pub(crate) struct Engine {
    address: SocketAddr,
    store: Arc<SqliteStore>,
    readiness: Readiness,
    /// Each stage of the shutdown, in order.
    stop_scheduling: watch::Sender<bool>,
    stop_serving: watch::Sender<bool>,
    background: Vec<JoinHandle<()>>,
    server: JoinHandle<()>,
}

impl Engine {
    pub(crate) async fn start(settings: EngineSettings<'_>, metrics: Metrics) -> anyhow::Result<Self> {
        // The port first: a second server on it must not get as far as the database.
        let listener = TcpListener::bind(settings.listen).await.map_err(|error| {
            Misuse(format!("listen: cannot listen on {} ({error}); choose another address or port", settings.listen))
        })?;
        let address = listener.local_addr()?;
        let sqlite = Arc::new(SqliteStore::open(settings.database).await?);
        let store: SharedStore = sqlite.clone();
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::start());
        resolve_abandoned_claims(&store, clock.now()).await?;

        let memory = Arc::new(MemoryQueue::new(clock.clone()));
        let queue: SharedQueue = memory.clone();
        let outbound = Arc::new(Outbound::new(settings.addresses.clone(), TlsRoots::system(), clock.clone()));
        let (stop_scheduling, scheduling_stops) = watch::channel(false);
        let (stop_serving, serving_stops) = watch::channel(false);
        let mut background = Vec::new();
        for _ in 0..SCHEDULERS {
            let scheduler = Scheduler::new(store.clone(), queue.clone(), clock.clone());
            let stops = stopped(scheduling_stops.clone());
            background.push(tokio::spawn(async move { scheduler.run(stops).await }));
        }
        let sweeper = Sweeper::new(store.clone(), queue.clone(), clock.clone());
        let stops = stopped(scheduling_stops.clone());
        background.push(tokio::spawn(async move { sweeper.run(stops).await }));
        let worker = Worker::new(store.clone(), queue.clone(), clock.clone(), outbound, settings.shutdown_grace);
        let stops = stopped(scheduling_stops);
        background.push(tokio::spawn(async move { worker.run(stops).await }));

        let readiness = Readiness::starting();
        let router = weir_api::router(ApiState {
            store,
            queue,
            clock,
            api_keys: settings.api_keys,
            addresses: settings.addresses,
            max_event_bytes: settings.max_event_bytes,
            readiness: readiness.clone(),
            render_metrics: metrics.renderer(memory),
        });
        let server = tokio::spawn(async move {
            let served = axum::serve(listener, router).with_graceful_shutdown(stopped(serving_stops)).await;
            if let Err(error) = served {
                tracing::error!(%error, "the API server ended");
            }
        });
        readiness.set_ready();
        Ok(Self { address, store: sqlite, readiness, stop_scheduling, stop_serving, background, server })
    }

    /// Where the API listens.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Stops in order: no new sends, what is in flight finishes and is recorded, the API ends, the store closes.
    pub(crate) async fn stop(self) {
        self.readiness.set_stopping();
        let _ = self.stop_scheduling.send(true);
        for task in self.background {
            if task.await.is_err() {
                tracing::error!("a background task ended with a panic");
            }
        }
        let _ = self.stop_serving.send(true);
        if tokio::time::timeout(API_GRACE, self.server).await.is_err() {
            tracing::warn!("API requests were still open after the grace period");
        }
        self.store.close().await;
    }
}

async fn resolve_abandoned_claims(store: &SharedStore, now: Timestamp) -> anyhow::Result<()> {
    let recovered = weir_scheduler::recover_all(store, now).await.context("cannot resolve claims left by a crash")?;
    let count = recovered.retried + recovered.dead + recovered.cancelled;
    if count > 0 {
        tracing::warn!(count, "deliveries were under way when the last process died; their attempts count as unknown");
    }
    Ok(())
}

async fn stopped(mut stop: watch::Receiver<bool>) {
    // A dropped sender means that the engine is gone: stop as well.
    let _ = stop.wait_for(|stop| *stop).await;
}
