//! Whether the process lives, whether it can serve, and its metrics.

use std::time::Duration;

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
    state::Api,
};

/// A store that takes longer than this to answer is not ready.
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
pub(crate) async fn live() -> Json<Status> {
    Json(Status { status: "ok" })
}

/// Whether requests should be sent here
///
/// The process has started, is not stopping, and its store can read and write.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readiness", tag = "operation", security(()),
    responses((status = 200, description = "They should", body = Status))
)]
pub(crate) async fn ready(State(api): State<Api>) -> Answer<Json<Status>> {
    if let Some(obstacle) = api.readiness.obstacle() {
        return Err(Problem::new(Kind::Unavailable, obstacle));
    }
    match tokio::time::timeout(CHECK_TIMEOUT, api.store.check()).await {
        Ok(checked) => checked?,
        Err(_) => return Err(Problem::new(Kind::Unavailable, "the store does not answer in time")),
    }
    Ok(Json(Status { status: "ready" }))
}

/// Metrics in Prometheus' text format
///
/// Open without a key, as scrapers expect; nothing in it names a tenant or a destination.
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "operation", security(()),
    responses((status = 200, description = "The metrics of this process", body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(api): State<Api>) -> Response {
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], (api.render_metrics)()).into_response()
}
