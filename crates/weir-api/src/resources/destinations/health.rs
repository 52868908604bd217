//! The health of a destination: how its attempts went.

use std::time::Duration;

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::refusals::Refusals;
use weir_store::{Health, refusals_of};

use super::find;
use crate::{
    auth::Caller,
    problem::ApiResult,
    readers::{
        body::PathId,
        query::{Query, parameters},
        texts::{DestinationIdText, text},
    },
    resources::refusals,
    state::Api,
};

const WINDOWS: [(&str, Duration); 3] = [
    ("1h", Duration::from_secs(3_600)),
    ("24h", Duration::from_secs(24 * 3_600)),
    ("7d", Duration::from_secs(7 * 24 * 3_600)),
];

text! {
    /// A time until now.
    #[schema(as = HealthWindow, value_type = String, pattern = "^(1h|24h|7d)$", example = "1h")]
    pub(crate) struct WindowText(usize);
    parse = |text| WINDOWS.iter().position(|(name, _)| *name == text).ok_or_else(|| {
        "must be `1h`, `24h` or `7d`".to_owned()
    });
}

parameters! {
    /// The time range whose attempts are counted.
    pub(crate) struct HealthParameters {
        /// The length of the time range, which ends now. Its start is rounded down to a minute.
        #[param(default = "1h")]
        window: Option<WindowText>,
    }
}

/// Show a destination's health
#[utoipa::path(
    get, path = "/v1/destinations/{id}/health", operation_id = "show_destination_health", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`"), HealthParameters),
    responses((status = 200, description = "The health", body = types::DestinationHealth))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    Query(HealthParameters { window }): Query<HealthParameters>,
) -> ApiResult<Json<types::DestinationHealth>> {
    let destination = find(&api, &caller, id).await?;
    let (name, window) = WINDOWS[window.map_or(0, |window| window.0)];
    let now = api.clock.now();
    let health = api.store.health(id, now.before(window)).await?;
    let refusals = refusals_of(&*api.store, &destination, now).await?;
    Ok(Json(view(name, &health, refusals)))
}

fn view(window: &'static str, health: &Health, refusals: Option<Refusals>) -> types::DestinationHealth {
    let Health { traffic, latencies, attempts, last_success_at } = health;
    let attempts_made = traffic.delivered + traffic.failed;
    let percentile = |share| latencies.percentile(share).map(|ms: f64| (ms * 10.0).round() / 10.0);
    types::DestinationHealth {
        window: window.to_owned(),
        success_ratio: (attempts_made > 0).then(|| traffic.delivered as f64 / attempts_made as f64),
        latency_ms: types::HealthLatency { p50: percentile(0.5), p95: percentile(0.95), p99: percentile(0.99) },
        attempts: attempts.iter().map(|(&number, &deliveries)| types::HealthAttempts { number, deliveries }).collect(),
        attempts_made,
        delivered: traffic.delivered,
        failed: traffic.failed,
        dead: traffic.dead,
        last_success_at: *last_success_at,
        refused_within_limit: refusals.map(refusals::view),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::readers::texts::tests::assert_pattern_is_accepted;

    #[test]
    fn without_attempts_nothing_is_known() {
        let shown = view("1h", &Health::default(), None);
        assert_eq!((shown.success_ratio, shown.attempts_made, shown.last_success_at), (None, 0, None));
        assert_eq!(shown.latency_ms, types::HealthLatency { p50: None, p95: None, p99: None });
    }

    #[test]
    fn every_window_that_the_pattern_describes_is_accepted() {
        assert_pattern_is_accepted::<WindowText>();
    }
}
