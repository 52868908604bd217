//! Health, readiness and metrics of the process.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::header;
use tokio::time::Instant;

use crate::{
    problem::{ApiResult, Problem, ProblemKind},
    readers::query::Query,
    state::Operations,
};
use weir_api_types as types;

/// How long store and queue may take to answer the readiness check.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// The round trips for which limits are used to nine tenths and more, with a margin for a busy machine. Longer ones are
/// reported; a process that is slow is more useful than none.
const STORE_BUDGET: Duration = Duration::from_millis(60);
const QUEUE_BUDGET: Duration = Duration::from_millis(15);

/// Check that the process runs
#[utoipa::path(
    get, path = "/healthz", operation_id = "health", tag = "operation",
    responses((status = 200, description = "The process runs", body = types::Status))
)]
pub(crate) async fn live(_: Query<()>) -> ApiResult<Json<types::Status>> {
    Ok(Json(types::Status { status: "ok".to_owned() }))
}

/// Check that the process is ready for requests
///
/// A process is ready when it has started, is not stopping, its clock and that of Redis agree within 30 seconds, and the
/// store answers and takes writes. A scheduler or worker also needs the queue. If the store or the queue answers too
/// slowly for the limits to be used, or the API can be reached from other machines and stores secrets in clear, `warnings`
/// says so.
#[utoipa::path(
    get, path = "/readyz", operation_id = "readiness", tag = "operation",
    responses((status = 200, description = "The process is ready", body = types::Readiness))
)]
pub(crate) async fn ready(
    State(operations): State<Arc<Operations>>,
    _: Query<()>,
) -> ApiResult<Json<types::Readiness>> {
    if let Some(reason) = operations.readiness.not_ready_reason() {
        return Err(Problem::new(ProblemKind::Unavailable, reason));
    }
    let mut warnings = operations.readiness.warnings().to_vec();
    let began = Instant::now();
    in_time("store", operations.store.check()).await??;
    warnings.extend(slow("store", began.elapsed(), STORE_BUDGET));
    if let Some(queue) = &operations.queue {
        let began = Instant::now();
        if let Err(error) = in_time("queue", queue.check()).await? {
            tracing::warn!(%error, "not ready: the queue check failed");
            return Err(Problem::new(ProblemKind::Unavailable, "the queue cannot be reached"));
        }
        warnings.extend(slow("queue", began.elapsed(), QUEUE_BUDGET));
    }
    Ok(Json(types::Readiness { status: "ready".to_owned(), warnings }))
}

/// The warning about a backend whose check took longer than its budget.
fn slow(backend: &str, took: Duration, budget: Duration) -> Option<String> {
    let (took, budget) = (took.as_millis(), budget.as_millis());
    (took > budget)
        .then(|| format!("the {backend} took {took} ms to answer; above {budget} ms, limits are not used in full"))
}

async fn in_time<T>(backend: &str, check: impl Future<Output = T>) -> ApiResult<T> {
    let timed_out = |_| Problem::new(ProblemKind::Unavailable, format!("the {backend} does not answer in time"));
    tokio::time::timeout(CHECK_TIMEOUT, check).await.map_err(timed_out)
}

/// Show the metrics in the Prometheus text format
///
/// Needs no key. No metric names a tenant or a destination. Answers 404 if a separate listener serves the metrics
/// (`WEIR_METRICS_LISTEN`).
#[utoipa::path(
    get, path = "/metrics", operation_id = "metrics", tag = "operation",
    responses((status = 200, description = "The metrics of this process", body = String, content_type = "text/plain"))
)]
pub(crate) async fn metrics(State(operations): State<Arc<Operations>>, _: Query<()>) -> ApiResult<Response> {
    let Some(render) = &operations.render_metrics else {
        return Err(Problem::not_found("the metrics are served on the address in `WEIR_METRICS_LISTEN`"));
    };
    let rendered = render().await;
    Ok(([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], rendered).into_response())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_backend_beyond_its_latency_budget_is_reported() {
        assert_eq!(slow("queue", QUEUE_BUDGET, QUEUE_BUDGET), None);
        let warning = slow("queue", Duration::from_millis(42), QUEUE_BUDGET).unwrap();
        assert_eq!(warning, "the queue took 42 ms to answer; above 15 ms, limits are not used in full");
    }
}
