//! The composition root: starts the roles of a process on its backends, and stops them in order.

use std::{net::SocketAddr, path::Path, pin::Pin, sync::Arc, time::Duration};

use axum::Router;
use tokio::{net::TcpListener, runtime::Handle, sync::watch, task::JoinHandle};
use weir_api::{
    ApiState, BodyBudget, EventTypes, Hosts, Installation, KeyRing, LiveOverview, Operations, PublicUrl, QueueDepths,
    Readiness, RemoteAddress, SettingKeys, Shedding, TrustedProxies,
};
use weir_core::{retention::Retention, stall::StallReport};
use weir_dashboard::DashboardSettings;
use weir_scheduler::{
    AbandonedDeadLetters, AlertPublisher, BacklogMeter, DeadLetterMeter, DeclinedAdmissions, EditWatcher, FastPath,
    Folder, ProcessWatcher, Pruner, Replayer, ReservationDesk, Scheduler, StallWatch, Sweeper,
};
use weir_store::ProcessProfile;
use weir_worker::{
    Worker, WorkerLoad,
    outbound::{Outbound, TlsRoots},
};

use crate::{
    backends::{Backends, Depths},
    config::{DatabaseUrl, ProcessRole, Settings},
    exit::Misuse,
    heartbeat::Heartbeat,
    intake::Intake,
    listener::{self, ConnectionLimits},
    logs,
    metrics::{self, GaugeSources, Metrics},
    stage::Stage,
    traces::{TraceSettings, Traces},
};

/// The number of scheduler loops in a process: while one waits for a commit, the other can claim.
const SCHEDULERS: usize = 2;
/// How long open API requests may take to finish on shutdown.
const API_GRACE: Duration = Duration::from_secs(5);
/// How long the recording of results may take on shutdown: an unreachable store must not keep the process from ending.
/// An attempt that is not recorded by then counts as unknown.
const RECORDING_GRACE: Duration = Duration::from_secs(30);

/// A running engine.
pub(crate) struct Engine {
    address: SocketAddr,
    metrics_address: Option<SocketAddr>,
    backends: Backends,
    readiness: Readiness,
    /// How long attempts in flight may take to finish on shutdown.
    grace: Duration,
    /// The tasks, by the stages of the shutdown, in order.
    working: Stage,
    serving: Stage,
    admitting: Stage,
    heartbeat: JoinHandle<()>,
    traces: Option<Arc<Traces>>,
    /// Which requests are let in; and in every process that delivers, how long results wait to be recorded.
    shedding: Shedding,
    /// `None` without the API.
    keys: Option<KeyRing>,
    /// What the watch over stalls of this process finds. Without a watch it finds nothing.
    stalls: watch::Receiver<Arc<StallReport>>,
    /// `None` in a process that only takes requests, or only delivers.
    intake: Option<Intake>,
}

impl Engine {
    pub(crate) async fn start(
        role: ProcessRole,
        settings: &Settings,
        traces: Option<TraceSettings>,
        metrics: Metrics,
    ) -> anyhow::Result<Self> {
        let backing = settings.backing(role)?;
        // Bind the port first: a second server on the same port must fail before it opens the database.
        let listener = bind("listen", settings.listen).await?;
        let metrics_listener = match settings.metrics_listen {
            Some(listen) => Some(bind("metrics_listen", listen).await?),
            None => None,
        };
        // A process with only the scheduler makes no spans.
        let traces = traces.filter(|_| role.serves_api() || role.works()).map(Traces::start).transpose()?;
        // Boxed, because this future is large and would enlarge every future around it.
        let backends = Box::pin(Backends::open(&backing, role.name(), settings.keyring())).await?;
        backends.store().limit_destinations(settings.destination_limits());
        // Register the process before any role starts: its claims and permits carry its id.
        let profile = ProcessProfile {
            role: role.name().to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            host: logs::host(),
            started_at: backends.clock().now(),
        };
        let heartbeat = Heartbeat::begin(backends.clone(), profile).await?;

        let readiness = Readiness::starting().with_warnings(settings.warnings(role));
        let shedding = Shedding::new(settings.shed, backends.is_shared(), backends.clock());
        let shedding = if role.serves_api() { shedding } else { shedding.without_requests() };
        let (stall_watch, stalls) = StallWatch::new(backends.store(), backends.queue(), backends.clock());
        let mut engine = Self {
            address: listener.local_addr()?,
            metrics_address: metrics_listener.as_ref().map(TcpListener::local_addr).transpose()?,
            backends,
            readiness: readiness.clone(),
            grace: settings.shutdown_grace(),
            working: Stage::new(),
            serving: Stage::new(),
            admitting: Stage::new(),
            heartbeat: tokio::spawn(heartbeat.keep(readiness)),
            traces,
            shedding,
            keys: None,
            stalls,
            intake: (role.serves_api() && role.works()).then(Intake::start).transpose()?,
        };
        // Not in workers: there may be many, they end and begin with the load, and it is their work that is watched.
        if role.schedules() || role.serves_api() {
            let stopped = engine.working.stopped();
            engine.working.spawn(async move { stall_watch.run(stopped).await });
        }
        // Other processes see what this one lets in and records, until it ends.
        if role.serves_api() || role.works() {
            let (shedding, stopped) = (engine.shedding.clone(), engine.serving.stopped());
            let store = role.serves_api().then(|| engine.backends.store());
            engine.serving.spawn(shedding.keep_fresh(store, engine.backends.queue(), stopped));
        }
        if let Some(intake) = &engine.intake {
            metrics.watch_threads(intake.handle());
        }
        let load = engine.start_role(role, settings);
        let sources = GaugeSources { role, backends: engine.backends.clone(), load };
        engine.serve(settings, listener, metrics_listener, metrics, sources).await?;
        // The process is ready only now: it listens, and its backends are open.
        engine.readiness.set_ready();
        Ok(engine)
    }

    /// Starts the background tasks of the role. Returns the load of its worker, which autoscalers read in the metrics.
    fn start_role(&mut self, role: ProcessRole, settings: &Settings) -> Option<WorkerLoad> {
        let (store, queue, clock) = (self.backends.store(), self.backends.queue(), self.backends.clock());
        if role.schedules() {
            schedule(&self.backends, settings.retention(), self.stalls.clone(), &mut self.working);
        }
        let load = role.works().then(|| {
            let mut outbound = Outbound::new(settings.addresses(), TlsRoots::system(), clock.clone());
            if let Some(proxy) = settings.egress_proxy.clone() {
                outbound = outbound.with_egress_proxy(proxy, settings.egress_direct.clone());
            }
            let shedding = self.shedding.clone();
            let worker = Worker::new(store.clone(), queue.clone(), clock.clone(), outbound.into(), self.grace)
                .with_recorded(Arc::new(move |waited| shedding.recorded(waited)))
                .with_capacity(settings.worker_capacity.unwrap_or_else(crate::open_files::capacity))
                .with_user_agent(settings.user_agent.clone())
                .with_spans(self.traces.clone().map(|traces| traces as _));
            let (load, stopped) = (worker.load(), self.working.stopped());
            self.working.spawn(async move { worker.run(stopped).await });
            load
        });
        if role.serves_api() {
            // From now on new deliveries may use the fast path.
            store.connect(Arc::new(FastPath::new(queue.clone(), clock.clone())));
        }
        // This task runs until the API has stopped, because until then the API admits deliveries.
        let declined_admissions = DeclinedAdmissions::new(store, queue, clock);
        let stopped = self.admitting.stopped();
        self.admitting.spawn(async move { declined_admissions.run(stopped).await });
        load
    }

    /// Serves health, metrics and, with the role, the API.
    async fn serve(
        &mut self,
        settings: &Settings,
        listener: TcpListener,
        metrics_listener: Option<TcpListener>,
        metrics: Metrics,
        sources: GaugeSources,
    ) -> anyhow::Result<()> {
        let serves_api = sources.role.serves_api();
        // Checks whether store and queue answer, for the metrics.
        sources.check_clock(&self.readiness);
        self.working.spawn(sources.clone().check_backends(self.readiness.clone(), self.working.stopped()));
        let render = metrics.renderer(sources);
        let operations = Operations {
            store: self.backends.store(),
            // A process with the API is ready without the queue, because it can still accept events.
            queue: (!serves_api).then(|| self.backends.queue()),
            readiness: self.readiness.clone(),
            render_metrics: metrics_listener.is_none().then(|| render.clone()),
        };
        // Each of the two listeners may have this many connections.
        let limits = ConnectionLimits::new(settings.max_connections, settings.max_connections_per_address);
        if let Some(listener) = metrics_listener {
            // This port serves nothing that needs protection, so any host name is accepted.
            let hosts = Hosts::default().any_for_probes(true);
            let operations = Operations { render_metrics: Some(render), ..operations.clone() };
            let router = weir_api::operations_router(operations, hosts).layer(metrics::compressed());
            self.serving.spawn(listener::serve(listener, router, limits, self.serving.stops()));
        }

        // Whoever names the public URL means its host too. Beyond loopback, the probes of an orchestrator may name any
        // host.
        let public_host = settings.public_url.as_ref().map(PublicUrl::host);
        let hosts = Hosts::new(settings.hosts.iter().chain(public_host).cloned())
            .any_for_probes(!settings.listen.ip().to_canonical().is_loopback());
        let router = if serves_api {
            self.api(settings, hosts, operations).await
        } else {
            weir_api::operations_router(operations, hosts)
        };
        let router = router.layer(metrics::compressed());
        let threads = self.intake.as_ref().map_or_else(Handle::current, |intake| intake.handle().clone());
        // The threads that wait for a listener are those that open it.
        let listener = {
            let (listener, _entered) = (listener.into_std()?, threads.enter());
            TcpListener::from_std(listener)?
        };
        let served = listener::serve(listener, router, limits, self.serving.stops());
        self.serving.spawn_on(served, &threads);
        Ok(())
    }

    /// The API, with the dashboard in front of it if it is on.
    async fn api(&mut self, settings: &Settings, hosts: Hosts, operations: Operations) -> Router {
        let (store, clock) = (self.backends.store(), self.backends.clock());
        let keys = KeyRing::new(SettingKeys::new(&settings.api_keys));
        // Before the first request. If it fails, requests with stored keys are answered 503 until a later one
        // succeeds.
        if let Err(error) = keys.refresh(&*store).await {
            tracing::warn!(%error, "could not read the API keys");
        }
        self.serving.spawn(keys.clone().keep_fresh(store.clone(), self.serving.stopped()));
        self.keys = Some(keys.clone());
        let event_types = EventTypes::new(settings.event_types);
        if let Err(error) = event_types.refresh(&*store).await {
            tracing::warn!(%error, "could not read the catalogue of event types");
        }
        self.serving.spawn(event_types.clone().keep_fresh(store.clone(), self.serving.stopped()));
        let api = weir_api::router(ApiState {
            live: LiveOverview::new(
                store.clone(),
                self.backends.queue(),
                clock.clone(),
                self.stalls.clone(),
                self.serving.stops(),
            ),
            reserver: Arc::new(ReservationDesk::new(store.clone(), self.backends.queue(), clock.clone())),
            store,
            queue: self.backends.queue(),
            clock: clock.clone(),
            keys,
            addresses: settings.addresses(),
            hosts,
            public_url: settings.public_url.clone(),
            proxies: TrustedProxies::new(settings.trusted_proxies.clone()),
            max_event_bytes: settings.max_event_bytes,
            shedding: self.shedding.clone(),
            event_types,
            bodies: BodyBudget::new(settings.body_budget_bytes),
            operations,
            installation: installation(&self.backends, &settings.database_url),
            spans: self.traces.clone().map(|traces| traces as _),
        });
        if !settings.dashboard {
            return api;
        }
        let public_url = settings.public_url.as_ref();
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

    /// Uses the API keys of settings that were read again.
    pub(crate) fn set_keys(&self, settings: &Settings) {
        if let Some(keys) = &self.keys {
            keys.configure(SettingKeys::new(&settings.api_keys));
        }
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
            () = self.working.task_ended() => {}
            () = self.serving.task_ended() => {}
            () = self.admitting.task_ended() => {}
            _ = &mut self.heartbeat => {}
        }
        self.readiness.set_stopping();
    }

    /// Stops in order: no new sends start, attempts in flight finish and are recorded, the API ends, the store closes.
    pub(crate) async fn stop(self) {
        // `/readyz` refuses from now on, so that a load balancer sends no new clients.
        self.readiness.set_stopping();
        // No new send starts. Wait until the attempts in flight have ended and are recorded.
        if !self.working.stop(self.grace + RECORDING_GRACE).await {
            tracing::error!("the store did not record all results in time; unrecorded attempts count as unknown");
        }

        // Only now stop the API, so that it accepts events during the wait above. Open requests may finish.
        if !self.serving.stop(API_GRACE).await {
            tracing::warn!("API requests were still open after the grace period");
        }
        // No more events come in. Release the last fast-path deliveries that no worker has taken.
        if !self.admitting.stop(RECORDING_GRACE).await {
            tracing::error!("the store did not release all unsent deliveries in time; they count as unknown attempts");
        }
        // Export the last spans, which belong to the attempts and requests that have just ended.
        if let Some(traces) = self.traces {
            traces.stop().await;
        }
        // End the heartbeat last: without it, other processes would resolve claims that are still recorded or released
        // above.
        self.heartbeat.abort();
        Heartbeat::end(&self.backends.store()).await;
        self.backends.close().await;
        drop(self.intake);
    }
}

/// Starts the background tasks of a scheduler.
fn schedule(backends: &Backends, retention: Retention, stalls: watch::Receiver<Arc<StallReport>>, working: &mut Stage) {
    let (store, queue, clock) = (|| backends.store(), || backends.queue(), || backends.clock());
    macro_rules! run {
        ($agent:expr) => {{
            let (agent, stopped) = ($agent, working.stopped());
            working.spawn(async move { agent.run(stopped).await });
        }};
    }
    let scheduler = Arc::new(Scheduler::new(store(), queue(), clock()));
    for _ in 0..SCHEDULERS {
        run!(scheduler.clone());
    }
    // Moves deliveries into replays, and ends replays.
    run!(Replayer::new(store(), queue(), clock(), &scheduler));
    // Finds in the store what needs a wake or a repair, and what has expired.
    run!(Sweeper::new(store(), queue(), clock()));
    // Resolves the claims of dead processes.
    run!(ProcessWatcher::new(store(), queue(), clock()));
    // Announces each edit again, because the first announcement may be lost.
    run!(EditWatcher::new(store(), queue(), clock()));
    // Deletes what the retention no longer keeps.
    run!(Pruner::new(store(), clock(), retention));
    // Adds the recorded changes of the counters to their totals.
    run!(Folder::new(store()));
    // Measures the backlog in the store, for the metrics.
    run!(BacklogMeter::new(store()));
    // Finds destinations whose deliveries end as dead letters, for the metrics.
    run!(DeadLetterMeter::new(store(), clock()));
    // Settles the dead letters that a deleted destination has left.
    run!(AbandonedDeadLetters::new(store(), clock()));
    // Publishes alerts as events.
    run!(AlertPublisher::new(store(), queue(), clock(), stalls));
}

/// What the API says of the backends.
fn installation(backends: &Backends, database: &DatabaseUrl) -> Installation {
    let (store, queue) = backends.names();
    let folder = match database {
        DatabaseUrl::Sqlite(file) => {
            Some(file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new(".")).to_owned())
        }
        DatabaseUrl::Postgres(_) => None,
    };
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
    Installation {
        store,
        queue,
        queue_depths: Arc::new(read),
        free_bytes: Arc::new(move || free_bytes(folder.as_deref()?)),
    }
}

/// The space that is left on the disk of a folder.
fn free_bytes(folder: &Path) -> Option<u64> {
    let disk = nix::sys::statvfs::statvfs(folder).ok()?;
    Some(disk.blocks_available() as u64 * disk.fragment_size() as u64)
}

async fn bind(setting: &str, listen: SocketAddr) -> anyhow::Result<TcpListener> {
    let refused =
        |error| Misuse(format!("{setting}: cannot listen on {listen} ({error}); choose another address or port"));
    Ok(TcpListener::bind(listen).await.map_err(refused)?)
}
