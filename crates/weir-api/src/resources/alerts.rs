//! The alert thresholds: of all destinations, and of one destination as part of its settings. `active` is what is wrong now.

pub(crate) mod active;

use axum::{Json, extract::State};
use weir_core::{
    activity::Action,
    alert::{AlertOverrides, AlertPolicy},
};

use super::{activity::Author, policies::replace};
use crate::{
    auth::Caller,
    problem::{ApiResult, Refused},
    readers::{body::Body, fields::object, query::Query},
    state::Api,
};

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
        /// The number of dead letters (`dead` or `failed`) since the last alert about dead letters.
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
/// `weir.destination.refusing`, `weir.destination.accepting`, `weir.destination.stalled`, `weir.destination.recovered`,
/// `weir.installation.stalled`, `weir.installation.recovered`,
/// `weir.rate.lowered`, `weir.rate.restored`, `weir.delivery.dead`, `weir.limit_group.behind` or
/// `weir.limit_group.caught_up`. It goes to the destinations of the tenant
/// whose `event_types` match it (`weir.*`), and to the destinations with the tenant `*`, but not to the destination that
/// it is about, nor to the members of a group that it is about. Without any recipient it is only in the list of events. A backlog counts as cleared
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
    let read = || api.store.alert_policy();
    let set = |current, activity| api.store.set_alert_policy(current, policy, activity);
    replace(&api, &author, Action::AlertsChanged, &policy, read, set).await?;
    tracing::info!(?policy, "alert thresholds set");
    Ok(Json(policy))
}
