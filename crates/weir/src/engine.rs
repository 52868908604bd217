//! The composition root: starts the roles of a process on its backends, and stops them in order.

use std::{net::SocketAddr, pin::Pin, sync::Arc, time::Duration};

use axum::Router;
use tokio::{
    net::TcpListener,
    sync::watch,
    task::{JoinHandle, JoinSet},
};
use weir_api::{
    ApiKeys, ApiState, BodyBudget, Hosts, Installation, KeyRing, LiveOverview, Operations, PublicUrl, QueueDepths,
    Readiness, RemoteAddress, TrustedProxies,
};
use weir_core::{Clock, address::AddressPolicy, retention::Retention};
use weir_dashboard::DashboardSettings;
use weir_scheduler::{
    AlertPublisher, BacklogMeter, DeclinedAdmissions, EditWatcher, FastPath, Folder, ProcessWatcher, Pruner, Replayer,
    Scheduler, Sweeper,
};
use weir_store::{DestinationLimits, ProcessProfile};
use weir_worker::{
    Worker,
    outbound::{Outbound, TlsRoots},
};

use crate::{
    backends::{Backends, Depths},
    cli::Misuse,
    config::{Backing, Key, Role},
    lease::ProcessLease,
    listener::{self, ConnectionLimits},
    metrics::{GaugeSources, Metrics},
    traces::{TraceSettings, Traces},
};

/// The number of scheduler loops in a process: while one waits for a commit, the other can claim.
const SCHEDULERS: usize = 2;
/// How long open API requests may take to finish on shutdown.
const API_GRACE: Duration = Duration::from_secs(5);
/// How long the recording of results may take on shutdown: an unreachable store must not keep the process from ending.
/// An attempt that is not recorded by then counts as unknown.
const RECORDING_GRACE: Duration = Duration::from_secs(30);

/// The settings of an engine.
pub(crate) struct EngineSettings {
    pub(crate) backing: Backing,
    pub(crate) listen: SocketAddr,
    /// `None`: metrics are served on `listen`.
    pub(crate) metrics_listen: Option<SocketAddr>,
    pub(crate) api_keys: ApiKeys,
    pub(crate) hosts: Hosts,
    pub(crate) public_url: Option<PublicUrl>,
    pub(crate) proxies: TrustedProxies,
    pub(crate) dashboard: bool,
    pub(crate) addresses: AddressPolicy,
    pub(crate) max_event_bytes: usize,
    pub(crate) bodies: BodyBudget,
    pub(crate) max_connections: usize,
    /// `None`: a quarter of all connections.
    pub(crate) max_connections_per_address: Option<usize>,
    pub(crate) destination_limits: DestinationLimits,
    /// The maximum number of attempts that a worker makes at one time; `None`: as many as the limit of open files
    /// allows.
    pub(crate) worker_capacity: Option<usize>,
    pub(crate) shutdown_grace: Duration,
    pub(crate) retention: Retention,
    /// `None`: nothing is traced.
    pub(crate) traces: Option<TraceSettings>,
}

/// A running engine.
pub(crate) struct Engine {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    backends: Backends,
    readiness: Readiness,
    /// How long attempts in flight may take to finish on shutdown.
    grace: Duration,
    /// The stages of the shutdown, in order.
    stop_working: watch::Sender<bool>,
    stop_serving: watch::Sender<bool>,
    stop_admitting: watch::Sender<bool>,
    /// The tasks of each stage.
    working: JoinSet<()>,
    serving: JoinSet<()>,
    admitting: JoinSet<()>,
    lease: JoinHandle<()>,
    traces: Option<Arc<Traces>>,
}

impl Engine {
    pub(crate) async fn start(role: Role, settings: EngineSettings, metrics: Metrics) -> anyhow::Result<Self> {
        // Bind the port first: a second server on the same port must fail before it opens the database.
        let listener = bind(Key::Listen, settings.listen).await?;
        let address = listener.local_addr()?;
        let metrics_listener = match settings.metrics_listen {
            Some(listen) => Some(bind(Key::MetricsListen, listen).await?),
            None => None,
        };
        let metrics_address = metrics_listener.as_ref().map(TcpListener::local_addr).transpose()?;
        // A process with only the scheduler makes no spans.
        let traces = settings.traces.filter(|_| role.serves_api() || role.works()).map(Traces::start).transpose()?;
        // Boxed, because this future is large and would enlarge every future around it.
        let backends = Box::pin(Backends::open(&settings.backing)).await?;
        backends.store().limit_destinations(settings.destination_limits);
        // Register the process before any role starts: its claims and permits carry its id.
        let profile = ProcessProfile {
            role: role.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started_at: backends.clock().now(),
        };
        let lease = ProcessLease::begin(backends.store(), backends.queue(), profile).await?;
        let lease = tokio::spawn(lease.keep());

        // Start the background tasks of the roles.
        let (stop_working, working_stops) = watch::channel(false);
        let (stop_serving, serving_stops) = watch::channel(false);
        let (stop_admitting, admitting_stops) = watch::channel(false);
        let (mut working, mut serving, mut admitting) = (JoinSet::new(), JoinSet::new(), JoinSet::new());
        let fast_path = FastPath::new(backends.queue(), backends.clock());
        if role.schedules() {
            schedule(&backends, settings.retention, &working_stops, &mut working);
        }
        let mut load = None;
        if role.works() {
            let capacity = settings.worker_capacity.unwrap_or_else(crate::open_files::capacity);
            let addresses = settings.addresses.clone();
            let worker = worker(&backends, addresses, settings.shutdown_grace, capacity)
                .with_spans(traces.clone().map(|traces| traces as _));
            // Autoscalers read the load of the worker in its metrics.
            load = Some(worker.load());
            let stops = stopped(working_stops.clone());
            working.spawn(async move { worker.run(stops).await });
        }
        if role.serves_api() {
            // From now on new deliveries may use the fast path.
            backends.store().connect(Arc::new(fast_path));
        }
        // This task runs until the API has stopped, because until then the API admits deliveries.
        let declined_admissions = DeclinedAdmissions::new(backends.store(), backends.queue(), backends.clock());
        admitting.spawn(async move { declined_admissions.run(stopped(admitting_stops)).await });

        // Serve health, metrics and, with the role, the API.
        let readiness = Readiness::starting();
        let sources = GaugeSources { role, backends: backends.clone(), load };
        // Checks whether store and queue answer, for the metrics.
        sources.check_clock(&readiness);
        working.spawn(sources.clone().check_backends(readiness.clone(), stopped(working_stops.clone())));
        let render = metrics.renderer(sources);
        let operations = Operations {
            store: backends.store(),
            // A process with the API is ready without the queue, because it can still accept events.
            queue: (!role.serves_api()).then(|| backends.queue()),
            readiness: readiness.clone(),
            render_metrics: metrics_listener.is_none().then(|| render.clone()),
        };
        // Each of the two listeners may have this many connections.
        let limits = ConnectionLimits::new(settings.max_connections, settings.max_connections_per_address);
        if let Some(listener) = metrics_listener {
            // This port serves nothing that needs protection, so any host name is accepted.
            let hosts = Hosts::default().any_for_probes(true);
            let operations = Operations { render_metrics: Some(render), ..operations.clone() };
            let router = weir_api::operations_router(operations, hosts);
            serving.spawn(listener::serve(listener, router, limits, serving_stops.clone()));
        }

        // Beyond loopback, the probes of an orchestrator may name any host.
        let hosts = settings.hosts.any_for_probes(!settings.listen.ip().to_canonical().is_loopback());
        let router = if role.serves_api() {
            let keys = KeyRing::new(settings.api_keys);
            // Before the first request. If it fails, requests with stored keys are answered 503 until a later one
            // succeeds.
            if let Err(error) = keys.refresh(&*backends.store()).await {
                tracing::warn!(%error, "could not read the API keys");
            }
            serving.spawn(keys.clone().keep_fresh(backends.store(), stopped(serving_stops.clone())));
            let public_url = settings.public_url.clone();
            let api = weir_api::router(ApiState {
                store: backends.store(),
                queue: backends.queue(),
                clock: backends.clock(),
                keys,
                addresses: settings.addresses,
                hosts,
                public_url: settings.public_url,
                proxies: settings.proxies,
                live: LiveOverview::new(backends.store(), backends.clock(), serving_stops.clone()),
                max_event_bytes: settings.max_event_bytes,
                bodies: settings.bodies,
                operations,
                installation: installation(&backends),
                spans: traces.clone().map(|traces| traces as _),
            });
            if settings.dashboard { dashboard(api, public_url.as_ref(), backends.clock()) } else { api }
        } else {
            weir_api::operations_router(operations, hosts)
        };
        serving.spawn(listener::serve(listener, router, limits, serving_stops));
        // The process is ready only now: it listens, and its backends are open.
        readiness.set_ready();
        let grace = settings.shutdown_grace;
        Ok(Self {
            address,
            metrics_address,
            backends,
            readiness,
            grace,
            stop_working,
            stop_serving,
            stop_admitting,
            working,
            serving,
            admitting,
            lease,
            traces,
        })
    }

    /// The address of the main listener.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// The address of the separate metrics listener, if there is one.
    pub(crate) fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// Resolves when a task has ended by itself, which happens only after a panic. Without this task the process would
    /// seem healthy but not do its work.
    pub(crate) async fn task_failed(&mut self) {
        tokio::select! {
            Some(_) = self.working.join_next() => {}
            Some(_) = self.serving.join_next() => {}
            Some(_) = self.admitting.join_next() => {}
            _ = &mut self.lease => {}
        }
        self.readiness.set_stopping();
    }

    /// Stops in order: no new sends start, attempts in flight finish and are recorded, the API ends, the store closes.
    pub(crate) async fn stop(self) {
        // `/readyz` refuses from now on, so that a load balancer sends no new clients.
        self.readiness.set_stopping();
        // No new send starts. Wait until the attempts in flight have ended and are recorded.
        let _ = self.stop_working.send(true);
        if tokio::time::timeout(self.grace + RECORDING_GRACE, all_ended(self.working)).await.is_err() {
            tracing::error!("the store did not record all results in time; unrecorded attempts count as unknown");
        }

        // Only now stop the API, so that it accepts events during the wait above. Open requests may finish.
        let _ = self.stop_serving.send(true);
        if tokio::time::timeout(API_GRACE, all_ended(self.serving)).await.is_err() {
            tracing::warn!("API requests were still open after the grace period");
        }
        // No more events come in. Release the last fast-path deliveries that no worker has taken.
        let _ = self.stop_admitting.send(true);
        if tokio::time::timeout(RECORDING_GRACE, all_ended(self.admitting)).await.is_err() {
            tracing::error!("the store did not release all unsent deliveries in time; they count as unknown attempts");
        }
        // Export the last spans, which belong to the attempts and requests that have just ended.
        if let Some(traces) = self.traces {
            traces.stop().await;
        }
        // End the lease last: without it, other processes would resolve claims that are still recorded or released
        // above.
        self.lease.abort();
        ProcessLease::end(&self.backends.store()).await;
        self.backends.close().await;
    }
}

/// Starts the background tasks of a scheduler: the scheduler loops, replays, the sweep, the watchers of processes and
/// edits, retention, the fold of the counters, the backlog meter and alerts.
fn schedule(backends: &Backends, retention: Retention, stops: &watch::Receiver<bool>, background: &mut JoinSet<()>) {
    let scheduler = Arc::new(Scheduler::new(backends.store(), backends.queue(), backends.clock()));
    for _ in 0..SCHEDULERS {
        let (scheduler, stops) = (scheduler.clone(), stopped(stops.clone()));
        background.spawn(async move { scheduler.run(stops).await });
    }

    // Moves deliveries into replays, and ends replays.
    let replayer = Replayer::new(backends.store(), backends.queue(), backends.clock(), &scheduler);
    let replay_stops = stopped(stops.clone());
    background.spawn(async move { replayer.run(replay_stops).await });

    // Finds in the store what needs a wake or a repair, and what has expired.
    let sweeper = Sweeper::new(backends.store(), backends.queue(), backends.clock());
    let sweep_stops = stopped(stops.clone());
    background.spawn(async move { sweeper.run(sweep_stops).await });

    // Resolves the claims of dead processes.
    let processes = ProcessWatcher::new(backends.store(), backends.queue(), backends.clock());
    let processes_stop = stopped(stops.clone());
    background.spawn(async move { processes.run(processes_stop).await });

    // Announces each edit again, because the first announcement may be lost.
    let edits = EditWatcher::new(backends.store(), backends.queue(), backends.clock());
    let edits_stop = stopped(stops.clone());
    background.spawn(async move { edits.run(edits_stop).await });

    // Deletes what the retention no longer keeps.
    let pruner = Pruner::new(backends.store(), backends.clock(), retention);
    let prune_stops = stopped(stops.clone());
    background.spawn(async move { pruner.run(prune_stops).await });

    // Adds the recorded changes of the counters to their totals.
    let folder = Folder::new(backends.store());
    let fold_stops = stopped(stops.clone());
    background.spawn(async move { folder.run(fold_stops).await });

    // Measures the backlog in the store, for the metrics.
    let backlog = BacklogMeter::new(backends.store());
    let backlog_stops = stopped(stops.clone());
    background.spawn(async move { backlog.run(backlog_stops).await });

    // Publishes alerts as events.
    let alerts = AlertPublisher::new(backends.store(), backends.queue(), backends.clock());
    let alert_stops = stopped(stops.clone());
    background.spawn(async move { alerts.run(alert_stops).await });
}

/// What the API says of the backends.
fn installation(backends: &Backends) -> Installation {
    let (store, queue) = backends.names();
    let backends = backends.clone();
    let read = move || -> Pin<Box<dyn Future<Output = Option<QueueDepths>> + Send>> {
        let backends = backends.clone();
        Box::pin(async move {
            let Depths { ready, oldest_waited, queued, in_flight, jobs } = backends.depths().await?;
            Some(QueueDepths {
                jobs: jobs as u64,
                ready: ready as u64,
                oldest_waited_ms: oldest_waited.as_millis() as u64,
                queued: queued as u64,
                in_flight: in_flight as u64,
            })
        })
    };
    Installation { store, queue, queue_depths: Arc::new(read) }
}

fn worker(backends: &Backends, addresses: AddressPolicy, grace: Duration, capacity: usize) -> Worker {
    let outbound = Outbound::new(addresses, TlsRoots::system(), backends.clock());
    let worker = Worker::new(backends.store(), backends.queue(), backends.clock(), outbound.into(), grace);
    worker.with_capacity(capacity)
}

/// The API with the dashboard in front of it.
fn dashboard(api: Router, public_url: Option<&PublicUrl>, clock: Arc<dyn Clock>) -> Router {
    weir_dashboard::router(DashboardSettings {
        api,
        base: public_url.map(|url| url.path().to_owned()).unwrap_or_default(),
        public_url: public_url.map(PublicUrl::to_string),
        clock,
        // The API bounds the failed logins of an address.
        carry: |from, to| {
            if let Some(address) = from.get::<RemoteAddress>() {
                to.insert(*address);
            }
        },
    })
}

async fn bind(setting: Key, listen: SocketAddr) -> anyhow::Result<TcpListener> {
    let refused = |error| {
        let name = setting.name();
        Misuse(format!("{name}: cannot listen on {listen} ({error}); choose another address or port"))
    };
    Ok(TcpListener::bind(listen).await.map_err(refused)?)
}

async fn all_ended(mut tasks: JoinSet<()>) {
    while let Some(ended) = tasks.join_next().await {
        if ended.is_err() {
            tracing::error!("a background task panicked");
        }
    }
}

pub(crate) async fn stopped(mut stop: watch::Receiver<bool>) {
    // The sender is dropped with the engine: stop then, too.
    let _ = stop.wait_for(|stop| *stop).await;
}
