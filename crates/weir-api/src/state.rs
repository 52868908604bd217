//! The state of the API: the backends and the settings that it gets from its process.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU8, Ordering},
    },
};

use axum::extract::FromRef;
use weir_api_types::QueueDepths;
use weir_core::{Clock, Destination, LimitGroup, Timestamp, address::AddressPolicy};
use weir_queue::{Edits, ReserveSlots, SharedQueue, Wake};
use weir_store::SharedStore;

use crate::{
    auth::{KeyRing, PublicUrl, TrustedProxies},
    event_types::EventTypes,
    hosts::Hosts,
    overview::LiveOverview,
    readers::body::BodyBudget,
    shedding::Shedding,
    spans::RequestSpans,
};

/// The default size limit of an event.
pub const DEFAULT_MAX_EVENT_BYTES: usize = 1024 * 1024;
/// The default budget for request bodies in memory: eight of the largest batches.
pub const DEFAULT_BODY_BUDGET_BYTES: usize = 256 * 1024 * 1024;

/// The backends and the settings of the API.
pub struct ApiState {
    pub store: SharedStore,
    pub queue: SharedQueue,
    /// Takes slots of limit groups for callers outside Weir.
    pub reserver: Arc<dyn ReserveSlots>,
    pub clock: Arc<dyn Clock>,
    /// Without configured keys requests need none. Such a server listens only on loopback.
    pub keys: KeyRing,
    /// The addresses that a destination may have.
    pub addresses: AddressPolicy,
    /// The hosts that this server serves.
    pub hosts: Hosts,
    /// Where browsers reach this server. `None`: at its listener, over plain http.
    pub public_url: Option<PublicUrl>,
    /// The reverse proxies before this server.
    pub proxies: TrustedProxies,
    /// What viewers see of all destinations.
    pub live: LiveOverview,
    /// The largest request body of one event, in bytes.
    pub max_event_bytes: usize,
    /// Which requests are let in.
    pub shedding: Shedding,
    /// Which types of events are accepted.
    pub event_types: EventTypes,
    /// The budget for the request bodies in memory.
    pub bodies: BodyBudget,
    pub operations: Operations,
    pub installation: Installation,
    /// `None`: requests are not traced.
    pub spans: Option<Arc<dyn RequestSpans>>,
}

/// The state of the operational endpoints, which every role serves: health, readiness and metrics.
#[derive(Clone)]
pub struct Operations {
    pub store: SharedStore,
    /// The queue, if the role cannot work without it. The API still accepts events while the queue is unreachable,
    /// because the store is the source of truth.
    pub queue: Option<SharedQueue>,
    pub readiness: Readiness,
    /// `None`: the metrics are served by a separate listener.
    pub render_metrics: Option<RenderMetrics>,
}

/// What this process runs on, for people who look at the installation.
#[derive(Clone)]
pub struct Installation {
    /// `sqlite` or `postgres`.
    pub store: &'static str,
    /// `memory` or `redis`.
    pub queue: &'static str,
    pub queue_depths: ReadQueueDepths,
    /// The space that is left on the disk of the store; `None` if this process does not see the disk.
    pub free_bytes: Arc<dyn Fn() -> Option<u64> + Send + Sync>,
}

/// Reads the depths of the queue; `None` while the queue cannot be reached.
pub type ReadQueueDepths = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = Option<QueueDepths>> + Send>> + Send + Sync>;

/// Renders the metrics of this process in the Prometheus text format.
pub type RenderMetrics = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = String> + Send>> + Send + Sync>;

/// The state, shared by the handlers.
pub(crate) type Api = Arc<ApiState>;

/// Lets `readers::body::Body` read the body of a request within the budget.
impl FromRef<Api> for BodyBudget {
    fn from_ref(api: &Api) -> Self {
        api.bodies.clone()
    }
}

impl ApiState {
    /// Tells the queue that deliveries are due. The deliveries are already committed, so an error only delays them, at
    /// most until the next sweep, and is not returned to the caller.
    pub(crate) async fn wake(&self, wakes: &[Wake]) {
        if wakes.is_empty() {
            return;
        }
        let (queue, due) = (self.queue.clone(), wakes.to_vec());
        if let Some(Err(error)) = self.shedding.in_time(async move { queue.wake(&due).await }).await {
            tracing::warn!(%error, destinations = wakes.len(), "cannot wake destinations now; the next sweep wakes them");
        }
    }

    /// Tells the queue that a destination has changed, so that the change takes effect at once, also for published
    /// permits. The change is already committed, and every run reads it from the store.
    pub(crate) async fn announce_edit(&self, destination: &Destination) {
        self.announce(destination, Edits::of(destination, self.clock.now())).await;
    }

    /// The same for a deletion; `destination` as it was before.
    pub(crate) async fn announce_deletion(&self, destination: &Destination, deleted_at: Timestamp) {
        self.announce(destination, Edits::of_deleted(destination, deleted_at)).await;
    }

    async fn announce(&self, destination: &Destination, edits: Edits) {
        let queue = self.queue.clone();
        let call = async move { edits.announce(&*queue).await };
        if let Some(Err(error)) = self.shedding.in_time(call).await {
            tracing::warn!(%error, destination = %destination.id, "cannot announce an edit now; the next run reads it");
        }
    }

    /// The same for a limit group, whose edit takes effect for all members.
    pub(crate) async fn announce_group(&self, group: &Arc<LimitGroup>) {
        let (queue, edits) = (self.queue.clone(), [Arc::clone(group)]);
        let call = async move { queue.edited_groups(&edits).await };
        if let Some(Err(error)) = self.shedding.in_time(call).await {
            tracing::warn!(%error, group = %group.id, "cannot announce an edit now; the next run reads it");
        }
    }
}

/// Whether the process is ready for requests. Clones share one state.
#[derive(Debug, Clone)]
pub struct Readiness {
    phase: Arc<AtomicU8>,
    has_wrong_clock: Arc<AtomicBool>,
    lacks_key: Arc<AtomicBool>,
    warnings: Arc<[String]>,
}

const STARTING: u8 = 0;
const READY: u8 = 1;
const STOPPING: u8 = 2;

impl Readiness {
    /// Not ready yet.
    pub fn starting() -> Self {
        Self {
            phase: Arc::new(AtomicU8::new(STARTING)),
            has_wrong_clock: Arc::default(),
            lacks_key: Arc::default(),
            warnings: Arc::default(),
        }
    }

    /// With what an operator should know of the settings.
    #[must_use]
    pub fn with_warnings(self, warnings: Vec<String>) -> Self {
        Self { warnings: warnings.into(), ..self }
    }

    pub(crate) fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// All parts of the process run.
    pub fn set_ready(&self) {
        self.phase.store(READY, Ordering::Release);
    }

    /// The process shuts down: it still answers requests, but load balancers should stop sending them.
    pub fn set_stopping(&self) {
        self.phase.store(STOPPING, Ordering::Release);
    }

    /// Whether the clock of this machine or that of the queue's server must be wrong, because they differ by far.
    pub fn set_wrong_clock(&self, is_wrong: bool) {
        self.has_wrong_clock.store(is_wrong, Ordering::Release);
    }

    /// Whether this process lacks a key of sealed rows, so that it sends nothing.
    pub fn set_lacks_key(&self, lacks_key: bool) {
        self.lacks_key.store(lacks_key, Ordering::Release);
    }

    /// Why the process is not ready; `None` when it is.
    pub(crate) fn not_ready_reason(&self) -> Option<&'static str> {
        match self.phase.load(Ordering::Acquire) {
            READY if self.has_wrong_clock.load(Ordering::Acquire) => {
                Some("the clocks of this machine and of Redis differ by more than 30 seconds")
            }
            READY if self.lacks_key.load(Ordering::Acquire) => {
                Some("rows of the database are sealed with a key that WEIR_ENCRYPTION_KEYS does not have; see the log")
            }
            READY => None,
            STARTING => Some("the server is starting"),
            _ => Some("the server is stopping"),
        }
    }
}
