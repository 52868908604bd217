//! The backlog of a destination: its size, its rates, and the estimated time until it is drained. A preview of the
//! current limits gives the same estimate.

use std::time::Duration;

use axum::{Extension, Json, extract::State};
use weir_api_types as types;
use weir_core::{DeliveryState, Destination, DestinationId, RateLimits, Timestamp, limit::Shape, limiter::Ring};
use weir_store::{DestinationCounts, KEYS_LOOKED_AT, MINUTE, SentCounts, StateCounts};

use super::{
    destinations::{self, adaptive::pace_of},
    limit_keys,
    shares::share_of,
};
use crate::{
    auth::Caller,
    fair_share::{Seat, Turn},
    figures::{Figures, KeysTogether, Measured, flood_began, is_slow, millis, per_second},
    problem::ApiResult,
    readers::{
        body::PathId,
        query::{Query, parameters},
        texts::{DestinationIdText, LimitKeyText},
    },
    state::{Api, ApiState},
};

/// The time over which sends are measured; a minute where the limit is slow.
const SENDS: Duration = Duration::from_secs(10);
/// The time over which arrivals are measured, in two halves; it is shorter in the first minute of a flood. A batch that
/// takes a few seconds is no inflow that goes on, so it is never shorter than this.
const ARRIVALS: Duration = Duration::from_secs(60);
const ARRIVALS_SHORTEST: Duration = Duration::from_secs(10);
/// The time over which answer times are measured, rounded to minutes: a short one, so that a change shows soon, or a longer
/// one if there were only a few answers.
const ANSWERS: Duration = MINUTE;
const FEW_ANSWERS: u64 = 20;
const ANSWERS_IF_FEW: Duration = Duration::from_secs(5 * 60);

parameters! {
    /// Of what to show the backlog.
    pub(crate) struct BacklogParameters {
        /// Only this limit key, with the figures that the list of keys has. `""`: the events without a key. Only for
        /// destinations with `key_limits`.
        key: Option<LimitKeyText>,
    }
}

/// Show a destination's backlog
///
/// With `key` that of one limit key: its own rates and its part of the rate of the destination.
#[utoipa::path(
    get, path = "/v1/destinations/{id}/backlog", operation_id = "show_backlog", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`"), BacklogParameters),
    responses((status = 200, description = "The current backlog", body = types::Backlog))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    Extension(turn): Extension<Turn>,
    Query(asked): Query<BacklogParameters>,
) -> ApiResult<Json<types::Backlog>> {
    let destination = destinations::find(&api, &caller, id).await?;
    let _seat = seat_to_read_keys(&destination, &turn).await?;
    if let Some(LimitKeyText(key)) = asked.key {
        return limit_keys::backlog(&api, &destination, key).await.map(Json);
    }
    let counts = api.store.destination_counts(id).await?;
    let now = api.clock.now();
    let measured = measure(&api, &destination, &counts, now).await?;
    Ok(Json(view(&counts, Figures::of(&destination, &measured, now), now)))
}

/// The seat of a heavy read for one that reads which keys of a destination wait.
pub(crate) async fn seat_to_read_keys(destination: &Destination, turn: &Turn) -> ApiResult<Option<Seat>> {
    match destination.settings.key_limits {
        Some(_) => Ok(Some(turn.seat().await?)),
        None => Ok(None),
    }
}

/// Measures a destination anew.
pub(crate) async fn measure(
    api: &ApiState,
    destination: &Destination,
    counted: &DestinationCounts,
    now: Timestamp,
) -> ApiResult<Measured> {
    let (store, id) = (&api.store, destination.id);
    let arrivals = store.recent_arrivals(id, now, ARRIVALS).await?;
    let began = flood_began(arrivals.count, arrivals.first_at, now.before(ARRIVALS));
    let half = now.since(began).max(ARRIVALS_SHORTEST) / 2;
    let newer = store.recent_arrivals(id, now, half).await?;
    let per_s = |arrivals: u64| arrivals as f64 / half.as_secs_f64();
    Ok(Measured {
        arrivals_per_s: per_second(arrivals.count, began, now),
        older_arrivals_per_s: per_s(arrivals.count.saturating_sub(newer.count)),
        newer_arrivals_per_s: per_s(newer.count),
        keys: keys_of(api, destination, counted).await?,
        ..measure_sends(api, destination, counted, now).await?
    })
}

/// The same without the arrivals and the keys: enough to say when what waits is sent.
pub(crate) async fn measure_sends(
    api: &ApiState,
    destination: &Destination,
    counted: &DestinationCounts,
    now: Timestamp,
) -> ApiResult<Measured> {
    let (store, id) = (&api.store, destination.id);
    let limits = destination.temporary.limits(&destination.settings.rate_limits, now);
    let group = match destination.settings.limit_group {
        Some(id) => store.limit_groups(&[id]).await?.pop().flatten(),
        None => None,
    };
    // The members of a group send as unevenly as it does.
    let is_uneven = is_slow(&limits) || group.is_some_and(|group| is_slow(&group.at(now).rate_limits));
    let recently = if is_uneven { MINUTE } else { SENDS };
    let sends = store.recent_sends(id, now, recently).await?;
    let last_sent_at = store.send_history(&[id]).await?.first().and_then(|history| history.last_sent_at);
    let mut latencies = store.health(id, now.before(ANSWERS)).await?.latencies;
    if latencies.total() < FEW_ANSWERS {
        latencies = store.health(id, now.before(ANSWERS_IF_FEW)).await?.latencies;
    }
    let (rings, usual_cost) = rings(api, id, &limits, now).await?;
    let mut counts = StateCounts::default();
    counts.add(DeliveryState::Pending, counted.pending);
    counts.add(DeliveryState::Retrying, counted.retrying);
    counts.add(DeliveryState::Delivering, counted.delivering);
    Ok(Measured {
        rings,
        usual_cost,
        counts,
        oldest_at: counted.oldest_created_at,
        achieved_per_s: sends as f64 / recently.as_secs_f64(),
        last_sent_at,
        answer_time: latencies.mean().map(|ms| Duration::from_secs_f64(ms / 1_000.0)),
        fault: api.live.stalls().fault_of(id, now),
        pace: pace_of(api, destination).await?,
        share: share_of(api, destination).await?,
        ..Measured::default()
    })
}

/// What the limits of the keys that wait allow together. Only for a destination whose keys may wait for limits of their own.
async fn keys_of(
    api: &ApiState,
    destination: &Destination,
    counted: &DestinationCounts,
) -> ApiResult<Option<KeysTogether>> {
    let may_bind = destination.settings.key_limits.as_ref().is_some_and(|limits| limits.may_bind());
    if !may_bind || counted.pending + counted.retrying == 0 {
        return Ok(None);
    }
    let backlogs = api.store.key_backlogs(destination.id, None, KEYS_LOOKED_AT).await?;
    Ok(KeysTogether::of(destination, &backlogs))
}

/// What is recorded for those of these limits that have the window shape; and the usual cost of what waits, or 0.
pub(crate) async fn rings(
    api: &ApiState,
    id: DestinationId,
    limits: &RateLimits,
    now: Timestamp,
) -> ApiResult<(Vec<Ring>, u32)> {
    let (mut rings, mut usual_cost) = (Vec::new(), 0);
    for limit in limits.of_shape(Shape::Window) {
        let sent = api.store.sent_counts(&[id], now - (limit.span() + limit.bucket()), *limit).await?;
        usual_cost = usual_cost.max(sent.usual_cost);
        // Claims wait for their slots, and are counted with what waits.
        rings.push(SentCounts { claimed: 0, ..sent }.ring(*limit, now, now));
    }
    Ok((rings, usual_cost))
}

pub(crate) fn view(counts: &DestinationCounts, figures: Figures, now: Timestamp) -> types::Backlog {
    types::Backlog {
        pending: counts.pending,
        retrying: counts.retrying,
        delivering: counts.delivering,
        oldest_age_s: counts.oldest_created_at.map(|at| millis(now.since(at).as_secs_f64())),
        configured_per_s: figures.configured_per_s,
        effective_per_s: figures.effective_per_s.map(millis),
        achieved_per_s: figures.achieved_per_s,
        arrivals_per_s: millis(figures.arrivals_per_s),
        drain_eta_s: figures.drain_eta.map(|time| millis(time.as_secs_f64())),
        drains: figures.drains,
        limit_key: None,
        binding: None,
        is_partial: None,
    }
}

#[cfg(test)]
mod tests {
    use weir_core::{DestinationId, Period, RateLimit, RateLimits, address::AddressPolicy};

    use super::*;
    use crate::resources::destinations::settings;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn destination(per_minute: Option<u32>, paused: bool) -> Destination {
        let body = serde_json::json!({"url": "https://example.com/", "paused": paused});
        let mut settings = settings::read(body, &AddressPolicy::default()).unwrap();
        let limits = per_minute.map(|limit| RateLimit::new(limit, Period::MINUTE).unwrap());
        settings.rate_limits = RateLimits::new(limits.into_iter().collect()).unwrap();
        Destination::new(DestinationId::new(NOW, 1), settings, NOW)
    }

    /// The backlog of a destination that sent just now, with this many waiting deliveries and this steady inflow.
    fn shown(
        destination: &Destination,
        pending: u64,
        inflow_per_s: f64,
        answer_time: Option<Duration>,
    ) -> types::Backlog {
        let oldest_created_at = (pending > 0).then(|| NOW - Duration::from_millis(2_500));
        let counted = DestinationCounts { pending, oldest_created_at, ..DestinationCounts::default() };
        let mut counts = StateCounts::default();
        counts.add(DeliveryState::Pending, pending);
        let measured = Measured {
            counts,
            arrivals_per_s: inflow_per_s,
            older_arrivals_per_s: inflow_per_s,
            newer_arrivals_per_s: inflow_per_s,
            last_sent_at: Some(NOW),
            answer_time,
            ..Measured::default()
        };
        view(&counted, Figures::of(destination, &measured, NOW), NOW)
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
        assert_eq!(shown(&destination(Some(60), true), 10, 0.0, None).drains, None, "nothing is sent at present");
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
