//! The state of the installation: processes, store and queue.

use std::time::{Duration, Instant};

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{Timestamp, claim::ProcessId};
use weir_store::{ProcessProfile, RunningProcess};

use crate::{
    auth::Caller,
    problem::ApiResult,
    readers::query::Query,
    state::{Api, QueueDepths},
};

/// How long store and queue may take to answer. A page that shows that one of them is away must not wait for it.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// The state of the installation.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = InstallationStatus)]
pub(crate) struct StatusView {
    #[schema(value_type = String, format = DateTime)]
    as_of: Timestamp,
    /// The version of the process that answers.
    version: &'static str,
    store: BackendView,
    queue: BackendView,
    /// Null while the queue cannot be reached.
    queue_depths: Option<QueueDepths>,
    /// The registered processes. Null while the store cannot be reached.
    processes: Option<Vec<ProcessView>>,
}

/// A store or a queue.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Backend)]
pub(crate) struct BackendView {
    /// `sqlite`, `postgres`, `memory` or `redis`.
    #[schema(value_type = String, example = "postgres")]
    kind: &'static str,
    is_reachable: bool,
    /// How long its answer took; null if there was none within two seconds.
    answered_in_ms: Option<f64>,
}

/// A process. A process of an older version says nothing of itself.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Process)]
pub(crate) struct ProcessView {
    #[schema(value_type = i32)]
    id: i32,
    /// `serve`, `api`, `scheduler` or `worker`.
    role: Option<String>,
    version: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    started_at: Option<Timestamp>,
}

/// Show the state of the installation
///
/// For keys that are not bound to tenants. It is answered also while the store or the queue cannot be reached.
#[utoipa::path(
    get, path = "/v1/status", operation_id = "show_status", tag = "operation",
    responses((status = 200, description = "The processes, the store and the queue", body = StatusView))
)]
pub(crate) async fn show(State(api): State<Api>, caller: Caller, _: Query<()>) -> ApiResult<Json<StatusView>> {
    caller.check_unbound()?;
    let installation = &api.installation;
    let (store, queue, queue_depths, processes) = tokio::join!(
        probe(installation.store, api.store.check()),
        probe(installation.queue, api.queue.check()),
        tokio::time::timeout(ANSWERS_WITHIN, (installation.queue_depths)()),
        tokio::time::timeout(ANSWERS_WITHIN, api.store.running_processes()),
    );
    let processes = processes.ok().and_then(Result::ok);
    Ok(Json(StatusView {
        as_of: api.clock.now(),
        version: env!("CARGO_PKG_VERSION"),
        store,
        queue,
        queue_depths: queue_depths.ok().flatten(),
        processes: processes.map(|processes| processes.into_iter().map(ProcessView::from).collect()),
    }))
}

async fn probe<E>(kind: &'static str, check: impl Future<Output = Result<(), E>>) -> BackendView {
    #[expect(clippy::disallowed_methods, reason = "it measures an answer, and decides nothing about sends")]
    let asked = Instant::now();
    let is_reachable = matches!(tokio::time::timeout(ANSWERS_WITHIN, check).await, Ok(Ok(())));
    let answered_in_ms = is_reachable.then(|| (asked.elapsed().as_secs_f64() * 1_000_000.0).round() / 1_000.0);
    BackendView { kind, is_reachable, answered_in_ms }
}

impl From<RunningProcess> for ProcessView {
    fn from(process: RunningProcess) -> Self {
        let RunningProcess { id: ProcessId(id), profile } = process;
        match profile {
            Some(ProcessProfile { role, version, started_at }) => {
                Self { id, role: Some(role), version: Some(version), started_at: Some(started_at) }
            }
            None => Self { id, role: None, version: None, started_at: None },
        }
    }
}
