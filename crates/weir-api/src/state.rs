//! What the API needs from the process that serves it.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU8, Ordering},
    },
    time::Duration,
};

use weir_core::{Clock, DestinationId, address::AddressPolicy};
use weir_queue::{Edit, QueueError, QueueResult, SharedQueue, Terms, Wake};
use weir_store::SharedStore;

use crate::{auth::ApiKeys, extract::BodyBudget, hosts::Hosts, spans::RequestSpans};

/// The largest event, when nobody configures another size.
pub const DEFAULT_MAX_EVENT_BYTES: usize = 1024 * 1024;
/// The bytes of request bodies in memory, when nobody configures another budget: eight of the largest batches.
pub const DEFAULT_BODY_BUDGET_BYTES: usize = 256 * 1024 * 1024;

/// How long a request waits for the queue to hear of what is committed already. A queue that hangs instead of failing must not
/// keep producers waiting.
const QUEUE_PATIENCE: Duration = Duration::from_millis(250);

/// What the API needs from the process that serves it.
pub struct ApiState {
    pub store: SharedStore,
    pub queue: SharedQueue,
    pub clock: Arc<dyn Clock>,
    /// Empty: everyone may ask. Such a server listens on loopback only.
    pub api_keys: ApiKeys,
    /// Which addresses a destination may have.
    pub addresses: AddressPolicy,
    /// The hosts this server answers for.
    pub hosts: Hosts,
    /// The largest request body of one event, in bytes.
    pub max_event_bytes: usize,
    /// The request bodies that the process holds at one time.
    pub bodies: BodyBudget,
    pub operations: Operations,
    /// `None`: requests are not traced.
    pub spans: Option<Arc<dyn RequestSpans>>,
}

/// What a process of any role tells about itself: whether it lives, whether it can do its work, its metrics.
#[derive(Clone)]
pub struct Operations {
    pub store: SharedStore,
    /// The queue, where the work cannot be done without it. The API goes on accepting events while the queue is away,
    /// because the store is the truth.
    pub queue: Option<SharedQueue>,
    pub readiness: Readiness,
    /// `None`: the metrics have a listener of their own.
    pub render_metrics: Option<RenderMetrics>,
}

/// Renders the metrics of this process in Prometheus' text format.
pub type RenderMetrics = Arc<dyn Fn() -> Pin<Box<dyn Future<Output = String> + Send>> + Send + Sync>;

/// The state as handlers share it.
pub(crate) type Api = Arc<ApiState>;

impl ApiState {
    /// Tells the queue that deliveries are due. They are committed by now, so a failure delays them to the next sweep at
    /// most and is not the caller's business.
    pub(crate) async fn wake(&self, wakes: &[Wake]) {
        if wakes.is_empty() {
            return;
        }
        let (queue, due) = (self.queue.clone(), wakes.to_vec());
        if let Err(error) = in_time(async move { queue.wake(&due).await }).await {
            tracing::warn!(%error, destinations = wakes.len(), "destinations are not woken yet; at worst the sweep wakes them");
        }
    }

    /// Tells the queue that a destination has changed, so that the change is in effect at once, for permits that are out as well. It is
    /// committed by now, and every run reads it from the store.
    pub(crate) async fn announce_edit(&self, destination_id: DestinationId, terms: Terms) {
        let queue = self.queue.clone();
        if let Err(error) = in_time(async move { queue.edited(&[Edit { destination_id, terms }]).await }).await {
            tracing::warn!(%error, %destination_id, "an edit is not announced yet; at worst the next run sees it");
        }
    }
}

/// What is told to the queue is told to the end, as a task of its own; who asked for it does not wait as long.
async fn in_time(told: impl Future<Output = QueueResult<()>> + Send + 'static) -> QueueResult<()> {
    match tokio::time::timeout(QUEUE_PATIENCE, tokio::spawn(told)).await {
        Ok(Ok(told)) => told,
        Ok(Err(ended)) => Err(QueueError(ended.to_string())),
        Err(_) => Err(QueueError("it does not answer in time".to_owned())),
    }
}

/// Whether the process takes requests, shared with whoever starts and stops it. A clone is the same flag.
#[derive(Debug, Clone)]
pub struct Readiness(Arc<AtomicU8>);

const STARTING: u8 = 0;
const READY: u8 = 1;
const STOPPING: u8 = 2;

impl Readiness {
    /// Not ready yet.
    pub fn starting() -> Self {
        Self(Arc::new(AtomicU8::new(STARTING)))
    }

    /// Everything runs.
    pub fn set_ready(&self) {
        self.0.store(READY, Ordering::Release);
    }

    /// Shutting down: requests are still answered, but load balancers should send them elsewhere.
    pub fn set_stopping(&self) {
        self.0.store(STOPPING, Ordering::Release);
    }

    /// Why the process is not ready; `None` when it is.
    pub(crate) fn obstacle(&self) -> Option<&'static str> {
        match self.0.load(Ordering::Acquire) {
            READY => None,
            STARTING => Some("the server is starting"),
            _ => Some("the server is stopping"),
        }
    }
}
