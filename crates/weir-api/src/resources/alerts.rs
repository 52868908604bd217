//! The alert thresholds: of all destinations, and of one destination as part of its settings.

use axum::{Json, extract::State};
use serde_json::json;
use weir_core::{
    activity::Action,
    alert::{AlertOverrides, AlertPolicy},
};

use super::activity::{Author, differences};
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem, Refused},
    readers::{body::Body, fields::object, query::Query},
    state::Api,
};

/// How often a change is tried while other requests change the thresholds. In each round one of them succeeds.
const ROUNDS: usize = 64;

object! {
    /// The thresholds above which a destination raises alerts; `null` disables a threshold.
    pub(crate) struct Alerts {
        /// The number of waiting deliveries.
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000_000_000)]
        backlog_depth: Option<Option<u32>>,
        /// The age of the oldest waiting delivery.
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 31_536_000)]
        oldest_age_s: Option<Option<u32>>,
        /// Raise an alert if the backlog, at the destination's limit, drains only after some of its deliveries have
        /// expired (by `ttl_s`, or without one by `retry.max_age_s`).
        #[schema(default = true)]
        drain_beyond_ttl: Option<bool>,
        /// The number of dead letters since the last alert about dead letters.
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000_000_000, default = 1)]
        dead_letters: Option<Option<u32>>,
    }
}

impl From<Alerts> for AlertOverrides {
    fn from(alerts: Alerts) -> Self {
        let Alerts { backlog_depth, oldest_age_s, drain_beyond_ttl, dead_letters } = alerts;
        Self { backlog_depth, oldest_age_s, drain_beyond_ttl, dead_letters }
    }
}

/// Show the thresholds of all destinations
#[utoipa::path(
    get, path = "/v1/alerts", operation_id = "show_alerts", tag = "alerts",
    responses((status = 200, description = "The thresholds", body = Alerts))
)]
pub(crate) async fn show(State(api): State<Api>, caller: Caller, _: Query<()>) -> ApiResult<Json<AlertPolicy>> {
    caller.check_unbound()?;
    Ok(Json(api.store.alert_policy().await?))
}

/// Set the thresholds of all destinations
///
/// An omitted threshold gets its default; `null` disables a threshold. The `alerts` of a destination override these
/// thresholds. An alert is an event: `weir.backlog.high`, `weir.backlog.cleared`, `weir.breaker.opened`,
/// `weir.breaker.closed`, `weir.destination.paused`, `weir.destination.refused`, `weir.destination.admitted`,
/// `weir.destination.stalled`, `weir.destination.recovered` or `weir.delivery.dead`. It goes to the destinations of the tenant
/// whose `event_types` match it (`weir.*`), but not to the destination that it is about. A backlog counts as cleared
/// below 80 % of each threshold. A destination raises at most one alert about dead letters per minute. Changes take
/// effect within ten seconds.
#[utoipa::path(
    put, path = "/v1/alerts", operation_id = "set_alerts", tag = "alerts",
    request_body = Alerts,
    responses(
        (status = 200, description = "The new thresholds", body = Alerts),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn set(
    State(api): State<Api>,
    caller: Caller,
    author: Author,
    _: Query<()>,
    Body(alerts): Body<Alerts>,
) -> ApiResult<Json<AlertPolicy>> {
    caller.check_unbound()?;
    let policy = AlertOverrides::from(alerts).apply_to(&AlertPolicy::default());
    for _ in 0..ROUNDS {
        let current = api.store.alert_policy().await?;
        if policy == current {
            return Ok(Json(policy));
        }
        let (before, after) = differences(json!(current), json!(policy));
        let activity = author.does(Action::AlertsChanged, api.clock.now()).changing(before, after);
        // The store replaces only the policy that the activity names.
        if api.store.set_alert_policy(current, policy, activity).await? {
            tracing::info!(?policy, "alert thresholds set");
            return Ok(Json(policy));
        }
    }
    Err(Problem::conflict("other requests keep changing the thresholds; try again"))
}
