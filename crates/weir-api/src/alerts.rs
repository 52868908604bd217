//! When operators are told of destinations.

use axum::{
    Json,
    extract::{Request, State},
};
use weir_core::alert::AlertPolicy;

use crate::{extract, openapi::Alerts, problem::Answer, query::Query, settings, state::Api};

/// Show the thresholds of all destinations
#[utoipa::path(
    get, path = "/v1/alerts", operation_id = "show_alerts", tag = "alerts",
    responses((status = 200, description = "The thresholds", body = Alerts))
)]
pub(crate) async fn show(State(api): State<Api>, query: Query) -> Answer<Json<AlertPolicy>> {
    query.close()?;
    Ok(Json(api.store.alert_policy().await?))
}

/// Set the thresholds of all destinations
///
/// What is not named is as by default; `null` is never. A destination has its own in its `alerts`. What fires is an event:
/// `weir.backlog.high` and `weir.backlog.cleared`, `weir.breaker.opened` and `weir.breaker.closed`, `weir.destination.paused`,
/// `weir.delivery.dead`. It goes to the destinations of the tenant whose `event_types` name it (`weir.*`), except to the one it
/// is about. A backlog counts as cleared below 80 % of each threshold, and dead letters of a destination are told of once a
/// minute at most. In effect within ten seconds.
#[utoipa::path(
    put, path = "/v1/alerts", operation_id = "set_alerts", tag = "alerts",
    request_body = Alerts,
    responses((status = 200, description = "The thresholds as they are now", body = Alerts))
)]
pub(crate) async fn set(State(api): State<Api>, query: Query, request: Request) -> Answer<Json<AlertPolicy>> {
    query.close()?;
    let policy = settings::alert_policy(extract::json(&api, request).await?)?;
    api.store.set_alert_policy(policy).await?;
    tracing::info!(?policy, "set the thresholds of alerts");
    Ok(Json(policy))
}
