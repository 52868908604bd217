//! Whether the process lives, whether it can serve, and its metrics.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::header;
use serde::Serialize;
use utoipa::ToSchema;

use crate::{
    problem::{Answer, Kind, Problem},
    query::Query,
    state::Operations,
};

/// A store or queue that takes longer than this to answer is not ready.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// A state in one word.
#[derive(Serialize, ToSchema)]
pub(crate) struct Status {
    #[schema(value_type = String, example = "ok")]
    status: &'static str,
}

/// Whether the process serves at all
#[utoipa::path(
    get, path = "/healthz", operation_id = "health", tag = "operation", security(()),
    responses((status = 200, description = "It does", body = Status))
)]
pub(crate) async fn live(query: Query) -> Answer<Json<Status>> {
    query.close()?;
    Ok(Json(Status { status: "ok" }))
}

/// Whether requests should be sent here
///
/// The process has started, is not stopping, and what its role needs answers: the store, and for scheduler and worker the
/// queue too.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readiness", tag = "operation", security(()),
    responses((status = 200, description = "They should", body = Status))
)]
pub(crate) async fn ready(State(operations): State<Arc<Operations>>, query: Query) -> Answer<Json<Status>> {
    query.close()?;
    if let Some(obstacle) = operations.readiness.obstacle() {
        return Err(Problem::new(Kind::Unavailable, obstacle));
    }
    in_time("store", operations.store.check()).await??;
    if let Some(queue) = &operations.queue
        && let Err(error) = in_time("queue", queue.check()).await?
    {
        tracing::warn!(%error, "not ready");
        return Err(Problem::new(Kind::Unavailable, "the queue cannot be reached"));
    }
    Ok(Json(Status { status: "ready" }))
}

async fn in_time<T>(what: &str, check: impl Future<Output = T>) -> Answer<T> {
    let late = |_| Problem::new(Kind::Unavailable, format!("the {what} does not answer in time"));
    tokio::time::timeout(CHECK_TIMEOUT, check).await.map_err(late)
}

/// Metrics in Prometheus' text format
///
/// Open without a key, as scrapers expect; nothing in it names a tenant or a destination. Not found where the metrics have a
/// listener of their own (`WEIR_METRICS_LISTEN`).
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "operation", security(()),
    responses((status = 200, description = "The metrics of this process", body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(operations): State<Arc<Operations>>, query: Query) -> Answer<Response> {
    query.close()?;
    let Some(render) = &operations.render_metrics else {
        return Err(Problem::not_found("the metrics are not here but where `WEIR_METRICS_LISTEN` says"));
    };
    let rendered = render().await;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], rendered).into_response())
}
