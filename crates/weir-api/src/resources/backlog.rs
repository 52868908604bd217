//! The backlog of a destination: its size, its rates, and the estimated time until it is drained. A preview of the
//! current limits gives the same estimate.

use std::time::Duration;

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{Destination, breaker::BreakerState};
use weir_store::DestinationCounts;

use super::{
    destinations,
    load::{Load, millis},
};
use crate::{
    auth::Caller,
    problem::ApiResult,
    readers::{body::PathId, query::Query, texts::DestinationIdText},
    state::Api,
};

/// The time over which `achieved_per_s` is measured.
const RECENT: Duration = Duration::from_secs(10);

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
    /// The rate that the limits, their margins and the minimum interval allow; null if unlimited.
    configured_per_s: Option<f64>,
    /// The rate at which it can send now, as in a preview: the slots of the strictest limit, or what `max_in_flight`
    /// and the recent answer time allow. 0 while the destination is paused or held or its breaker is not closed, and a
    /// growing share after the breaker has closed; null if there is no limit and no recent answer.
    effective_per_s: Option<f64>,
    /// The sends of the last ten seconds, per second.
    achieved_per_s: f64,
    /// The new deliveries of the last minute, per second.
    inflow_per_s: f64,
    /// The estimated time until nothing waits, with the deliveries that arrive meanwhile; null if that never happens or
    /// is unknown, or while the destination is paused or its breaker is not closed.
    drain_eta_s: Option<f64>,
    /// Whether the backlog gets empty at the current inflow; null if unknown. Deliveries that arrived all at once are
    /// no inflow.
    drains: Option<bool>,
}

/// Show a destination's backlog
#[utoipa::path(
    get, path = "/v1/destinations/{id}/backlog", operation_id = "show_backlog", tag = "destinations",
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
    let load = Load::read(&api, &destination, &counts, now).await?;
    Ok(Json(view(&destination, counts, sends, &load)))
}

fn view(destination: &Destination, counts: DestinationCounts, recent_sends: u64, load: &Load) -> BacklogView {
    let (settings, now) = (&destination.settings, load.now);
    let forecast = load.forecast(&settings.rate_limits, settings.max_in_flight);
    let drain = load.drain(&forecast);

    // A hold delays the drain by a known time. A pause, or a breaker that is not closed, lasts for an unknown time.
    let is_stopped = settings.paused || destination.breaker.state(now) != BreakerState::Closed;
    let is_held = destination.held_until.is_some_and(|until| until > now);
    BacklogView {
        pending: counts.pending,
        retrying: counts.retrying,
        delivering: counts.delivering,
        oldest_age_s: counts.oldest_created_at.map(|at| millis(now.since(at).as_secs_f64())),
        configured_per_s: settings.rate_limits.per_second(),
        effective_per_s: match forecast.per_second() {
            _ if is_stopped || is_held => Some(0.0),
            // After the breaker has closed, a growing share is allowed.
            rate => rate.map(|rate| millis(rate * destination.breaker.share(now))),
        },
        achieved_per_s: recent_sends as f64 / RECENT.as_secs_f64(),
        inflow_per_s: millis(load.arrivals_per_s),
        drain_eta_s: drain.after().filter(|_| !is_stopped).map(|time| millis(time.as_secs_f64())),
        drains: match load.waiting {
            0 => Some(true),
            _ if is_stopped => Some(false),
            _ => drain.is_expected(),
        },
    }
}

#[cfg(test)]
mod tests {
    use weir_core::{
        DestinationId, Period, RateLimit, RateLimits, Timestamp, address::AddressPolicy, breaker::Breaker,
    };

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
            released_at: None,
            breaker: Breaker::default(),
        }
    }

    /// The backlog of a destination that sent just now, with this many waiting deliveries and this steady inflow.
    fn shown(destination: &Destination, pending: u64, inflow_per_s: f64, answer_time: Option<Duration>) -> BacklogView {
        let oldest_created_at = (pending > 0).then(|| NOW - Duration::from_millis(2_500));
        let counts = DestinationCounts { pending, oldest_created_at, ..DestinationCounts::default() };
        let load = Load {
            now: NOW,
            waiting: pending,
            arrivals_per_s: inflow_per_s,
            inflow_per_s,
            last_sent_at: Some(NOW),
            held_until: destination.held_until,
            answer_time,
        };
        view(destination, counts, 0, &load)
    }

    #[test]
    fn the_eta_and_the_rate_follow_the_slots_of_the_limit() {
        let shown = shown(&destination(Some(120), false), 30, 0.0, None);
        // Slots are (60 s + 0.1 s) / 120 apart.
        assert_eq!((shown.configured_per_s, shown.effective_per_s), (Some(2.0), Some(1.997)));
        assert_eq!((shown.drain_eta_s, shown.drains, shown.oldest_age_s), (Some(15.025), Some(true), Some(2.5)));
    }

    #[test]
    fn without_a_limit_the_eta_follows_the_answer_time() {
        let unlimited = destination(None, false);
        let unknown = shown(&unlimited, 30, 0.0, None);
        assert_eq!((unknown.effective_per_s, unknown.drain_eta_s, unknown.drains), (None, None, None));
        // 64 in flight, each for 6.4 s: ten a second.
        let known = shown(&unlimited, 30, 0.0, Some(Duration::from_millis(6_400)));
        assert_eq!((known.effective_per_s, known.drain_eta_s, known.drains), (Some(10.0), Some(3.0), Some(true)));
    }

    #[test]
    fn the_eta_includes_a_hold_and_is_unknown_during_a_pause() {
        let mut held = destination(Some(60), false);
        held.held_until = Some(NOW + Duration::from_secs(5));
        let eta = shown(&held, 10, 0.0, None).drain_eta_s.unwrap();
        // The first of ten is sent when the hold ends.
        assert!((14.0..15.1).contains(&eta), "{eta}");
        assert_eq!(shown(&destination(Some(60), true), 10, 0.0, None).drain_eta_s, None);
    }

    #[test]
    fn a_backlog_drains_if_the_inflow_is_below_the_rate() {
        let limited = destination(Some(60), false);
        for (inflow_per_s, expected) in [(0.0, true), (0.9, true), (1.0, false), (10.0, false)] {
            let shown = shown(&limited, 10, inflow_per_s, None);
            assert_eq!((shown.drains, shown.drain_eta_s.is_some()), (Some(expected), expected), "{inflow_per_s}/s");
        }
        assert_eq!(shown(&limited, 0, 10.0, None).drains, Some(true), "nothing waits");
        assert_eq!(shown(&destination(Some(60), true), 10, 0.0, None).drains, Some(false));
    }

    #[test]
    fn the_effective_rate_is_zero_during_a_pause_or_hold() {
        let effective = |destination: &Destination| shown(destination, 1, 0.0, None).effective_per_s;
        assert_eq!(effective(&destination(Some(60), false)), Some(0.998));
        assert_eq!(effective(&destination(Some(60), true)), Some(0.0));
        assert_eq!(effective(&destination(None, false)), None);
        let held = |until| Destination { held_until: Some(until), ..destination(Some(60), false) };
        assert_eq!(effective(&held(NOW + Duration::from_secs(1))), Some(0.0));
        assert_eq!(effective(&held(NOW)), Some(0.998), "it is over");
    }

    #[test]
    fn an_empty_backlog_is_drained_and_has_no_age() {
        let shown = shown(&destination(None, false), 0, 0.0, None);
        assert_eq!((shown.oldest_age_s, shown.drain_eta_s), (None, Some(0.0)));
    }
}
