//! The alert thresholds of all destinations.

use axum::{
    Json,
    extract::{Request, State},
};
use weir_core::alert::AlertPolicy;

use crate::{extract, openapi::Alerts, problem::ApiResult, query::Query, settings, state::Api};

/// Show the thresholds of all destinations
#[utoipa::path(
    get, path = "/v1/alerts", operation_id = "show_alerts", tag = "alerts",
    responses((status = 200, description = "The thresholds", body = Alerts))
)]
pub(crate) async fn show(State(api): State<Api>, query: Query) -> ApiResult<Json<AlertPolicy>> {
    query.close()?;
    Ok(Json(api.store.alert_policy().await?))
}

/// Set the thresholds of all destinations
///
/// An omitted threshold gets its default; `null` disables a threshold. The `alerts` of a destination override these
/// thresholds. An alert is an event: `weir.backlog.high`, `weir.backlog.cleared`, `weir.breaker.opened`,
/// `weir.breaker.closed`, `weir.destination.paused` or `weir.delivery.dead`. It goes to the destinations of the tenant
/// whose `event_types` match it (`weir.*`), but not to the destination that it is about. A backlog counts as cleared
/// below 80 % of each threshold. A destination raises at most one alert about dead letters per minute. Changes take
/// effect within ten seconds.
#[utoipa::path(
    put, path = "/v1/alerts", operation_id = "set_alerts", tag = "alerts",
    request_body = Alerts,
    responses((status = 200, description = "The new thresholds", body = Alerts))
)]
pub(crate) async fn set(State(api): State<Api>, query: Query, request: Request) -> ApiResult<Json<AlertPolicy>> {
    query.close()?;
    let policy = settings::alert_policy(extract::json(&api, request).await?)?;
    api.store.set_alert_policy(policy).await?;
    tracing::info!(?policy, "alert thresholds set");
    Ok(Json(policy))
}
