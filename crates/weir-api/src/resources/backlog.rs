//! The backlog of a destination: its size, its rates, and the estimated time until it is drained.

use std::time::Duration;

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{Destination, Timestamp, breaker::BreakerState};
use weir_store::DestinationCounts;

use super::destinations;
use crate::{
    auth::Caller,
    problem::ApiResult,
    readers::{body::PathId, query::Query, texts::DestinationIdText},
    state::Api,
};

/// The time over which `achieved_per_s` is measured.
const RECENT: Duration = Duration::from_secs(10);
/// The time over which `inflow_per_s` is measured.
const INFLOW: Duration = Duration::from_secs(60);

/// The backlog of a destination.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Backlog)]
pub(crate) struct BacklogView {
    /// Pending deliveries. All fields include deliveries that wait for their `deliver_at`.
    pending: u64,
    retrying: u64,
    delivering: u64,
    /// The age of the oldest of these deliveries; null if there is none.
    oldest_age_s: Option<f64>,
    /// The rate of the strictest limit; null if unlimited.
    configured_per_s: Option<f64>,
    /// The rate that is allowed now: 0 while the destination is paused or held or its breaker is not closed, and a
    /// growing share of the limit after the breaker has closed; null if unlimited.
    effective_per_s: Option<f64>,
    /// The sends of the last ten seconds, per second.
    achieved_per_s: f64,
    /// The new deliveries of the last minute, per second.
    inflow_per_s: f64,
    /// The estimated time until all waiting deliveries are sent; null if unknown, or while the destination is paused or
    /// its breaker is not closed.
    drain_eta_s: Option<f64>,
    /// Whether the backlog gets shorter at the current inflow; null if unknown.
    drains: Option<bool>,
}

/// Show a destination's backlog
#[utoipa::path(
    get, path = "/v1/destinations/{id}/backlog", operation_id = "show_backlog", tag = "destinations", security(("api_key" = ["read"])),
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 200, description = "The current backlog", body = BacklogView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    _: Query<()>,
) -> ApiResult<Json<BacklogView>> {
    let destination = destinations::find(&api, &caller, id).await?;
    let counts = api.store.destination_counts(id).await?;
    let now = api.clock.now();
    let sends = api.store.recent_sends(id, now, RECENT).await?;
    let arrivals = api.store.recent_arrivals(id, now, INFLOW).await?;
    Ok(Json(view(&destination, counts, sends, arrivals, now)))
}

fn view(
    destination: &Destination,
    counts: DestinationCounts,
    recent_sends: u64,
    recent_arrivals: u64,
    now: Timestamp,
) -> BacklogView {
    // The allowed rate and the measured rates.
    let configured_per_s = destination.settings.rate_limits.per_second();
    let achieved_per_s = recent_sends as f64 / RECENT.as_secs_f64();
    let inflow_per_s = recent_arrivals as f64 / INFLOW.as_secs_f64();

    // The backlog shrinks at the rate of the limit; without a limit, the best estimate is the recent rate.
    let waiting = counts.pending + counts.retrying;
    let rate = configured_per_s.unwrap_or(achieved_per_s);
    // A hold delays the drain by a known time. A pause, or a breaker that is not closed, lasts for an unknown time.
    let hold_s = destination.held_until.map_or(0.0, |until| until.since(now).as_secs_f64());
    let is_stopped = destination.settings.paused || destination.breaker.state(now) != BreakerState::Closed;
    let drain_eta_s = match waiting {
        _ if is_stopped => None,
        0 => Some(0.0),
        _ if rate > 0.0 => Some(millis(hold_s + waiting as f64 / rate)),
        _ => None,
    };

    // The rate allowed now. After the breaker has closed, a growing share of the limit is allowed.
    let effective_per_s = match configured_per_s {
        _ if is_stopped || hold_s > 0.0 => Some(0.0),
        configured => configured.map(|rate| millis(rate * destination.breaker.share(now))),
    };

    // The backlog gets shorter if deliveries leave faster than they arrive.
    let drains = match waiting {
        0 => Some(true),
        _ if is_stopped => Some(false),
        // Without a limit the achieved rate may only reflect the inflow, and a higher rate may be possible.
        _ if configured_per_s.is_none() && rate <= inflow_per_s => None,
        _ => Some(rate > inflow_per_s),
    };
    BacklogView {
        pending: counts.pending,
        retrying: counts.retrying,
        delivering: counts.delivering,
        oldest_age_s: counts.oldest_created_at.map(|at| millis(now.since(at).as_secs_f64())),
        configured_per_s,
        effective_per_s,
        achieved_per_s,
        inflow_per_s: millis(inflow_per_s),
        drain_eta_s,
        drains,
    }
}

/// Seconds, rounded to milliseconds.
fn millis(seconds: f64) -> f64 {
    (seconds * 1_000.0).round() / 1_000.0
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::{DestinationId, Period, RateLimit, RateLimits, address::AddressPolicy, breaker::Breaker};

    use super::*;
    use crate::resources::destinations::settings;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn destination(per_minute: Option<u32>, paused: bool) -> Destination {
        let body = serde_json::json!({"url": "https://example.com/", "paused": paused});
        let mut settings = settings::read(body, &AddressPolicy::default()).unwrap();
        let limits = per_minute.map(|limit| RateLimit::new(limit, Period::Minute).unwrap());
        settings.rate_limits = RateLimits::new(limits.into_iter().collect()).unwrap();
        Destination {
            id: DestinationId::new(NOW, 1),
            created_at: NOW,
            updated_at: NOW,
            settings,
            paused_reason: None,
            held_until: None,
            held_reason: None,
            breaker: Breaker::default(),
        }
    }

    fn counts(pending: u64) -> DestinationCounts {
        let oldest = (pending > 0).then(|| NOW - Duration::from_millis(2_500));
        DestinationCounts { pending, oldest_created_at: oldest, ..DestinationCounts::default() }
    }

    #[test]
    fn the_eta_follows_the_configured_rate() {
        let shown = view(&destination(Some(120), false), counts(30), 0, 0, NOW);
        assert_eq!((shown.configured_per_s, shown.drain_eta_s, shown.oldest_age_s), (Some(2.0), Some(15.0), Some(2.5)));
    }

    #[test]
    fn the_eta_of_an_unlimited_destination_follows_what_it_achieved() {
        let unlimited = destination(None, false);
        assert_eq!(view(&unlimited, counts(30), 50, 0, NOW).drain_eta_s, Some(6.0));
        assert_eq!(view(&unlimited, counts(30), 0, 0, NOW).drain_eta_s, None);
    }

    #[test]
    fn the_eta_includes_a_hold_and_is_unknown_during_a_pause() {
        let mut held = destination(Some(60), false);
        held.held_until = Some(NOW + Duration::from_secs(5));
        assert_eq!(view(&held, counts(10), 0, 0, NOW).drain_eta_s, Some(15.0));
        assert_eq!(view(&destination(Some(60), true), counts(10), 0, 0, NOW).drain_eta_s, None);
    }

    #[test]
    fn a_backlog_drains_if_the_inflow_is_below_the_rate() {
        let limited = destination(Some(60), false);
        for (arrivals, expected) in [(0, true), (59, true), (60, false), (600, false)] {
            assert_eq!(view(&limited, counts(10), 0, arrivals, NOW).drains, Some(expected), "{arrivals} in a minute");
        }
        assert_eq!(view(&limited, counts(0), 0, 600, NOW).drains, Some(true), "nothing waits");
        assert_eq!(view(&destination(Some(60), true), counts(10), 0, 0, NOW).drains, Some(false));
        let unlimited = destination(None, false);
        assert_eq!(view(&unlimited, counts(10), 100, 60, NOW).drains, Some(true));
        assert_eq!(view(&unlimited, counts(10), 10, 60, NOW).drains, None);
    }

    #[test]
    fn the_effective_rate_is_zero_during_a_pause_or_hold() {
        let limited = destination(Some(60), false);
        assert_eq!(view(&limited, counts(1), 0, 0, NOW).effective_per_s, Some(1.0));
        assert_eq!(view(&destination(Some(60), true), counts(1), 0, 0, NOW).effective_per_s, Some(0.0));
        assert_eq!(view(&destination(None, false), counts(1), 0, 0, NOW).effective_per_s, None);
        let held = Destination { held_until: Some(NOW + Duration::from_secs(1)), ..limited };
        assert_eq!(view(&held, counts(1), 0, 0, NOW).effective_per_s, Some(0.0));
        let over = NOW + Duration::from_secs(1);
        assert_eq!(view(&held, counts(1), 0, 0, over).effective_per_s, Some(1.0));
    }

    #[test]
    fn an_empty_backlog_is_drained_and_has_no_age() {
        let shown = view(&destination(None, false), counts(0), 0, 0, NOW);
        assert_eq!((shown.oldest_age_s, shown.drain_eta_s), (None, Some(0.0)));
    }
}
