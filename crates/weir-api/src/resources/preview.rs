//! Previews of limits: how other limits would send a destination's backlog. Nothing is changed.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    DeliveryState, Destination, RateLimit, RateLimits, Timestamp,
    limit_key::KeyLimits,
    preview::{Bound, Expiries, Forecast},
};
use weir_store::{DeliveryFilter, KEYS_LOOKED_AT, PageRequest};

use super::{
    backlog,
    destinations::{
        self,
        key_limits::{KeyLimitsRequest, check_alone},
        rates::{self, Limits, RateLimitRequest},
    },
    shares::share_of,
};
use crate::{
    auth::Caller,
    figures::{KeyFigures, KeysTogether, Measured, millis},
    problem::ApiResult,
    readers::{
        body::{Body, PathId},
        fields::object,
        query::Query,
        texts::DestinationIdText,
    },
    state::{Api, ApiState},
};

/// How many keys a preview has: as many as a person reads.
const KEYS_SHOWN: usize = 20;
/// How many of the newest waiting deliveries are asked when they expire.
const ASKED_FOR_EXPIRY: u32 = 20;

object! {
    /// The settings to preview. An absent one keeps its current value.
    pub(crate) struct PreviewRequest {
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4)]
        rate_limits: Option<Limits>,
        /// `null` is none.
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 60_000)]
        min_interval_ms: Option<Option<u32>>,
        #[schema(minimum = 1, maximum = 10_000)]
        max_in_flight: Option<u32>,
        /// The limits of each limit key as a whole; without `overrides`, those of single keys stay. `null` is none.
        #[schema(value_type = Option<KeyLimitsRequest>)]
        key_limits: Option<Option<KeyLimitsRequest>>,
    }
}

impl PreviewRequest {
    /// Each period has at most one limit.
    pub(crate) fn keywords() -> Value {
        // In `allOf`, because `properties` would replace the described properties.
        json!({"allOf": [{"properties": {"rate_limits": Limits::keywords()}}]})
    }
}

/// Preview other limits
///
/// Calculates by the scheduler's own arithmetic how a destination would send its backlog. Nothing is changed. A hold
/// counts; a pause or an open breaker does not: the figures are those from the instant at which the destination sends
/// again. The limits of single limit keys count as far as `key_limits` says; with proposed ones, `keys` has what they would
/// allow the keys that wait.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/preview", operation_id = "preview_limits", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")), request_body = PreviewRequest,
    responses((status = 200, description = "The proposed settings, and the current ones as `now`", body = types::Preview))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    _: Query<()>,
    Body(request): Body<PreviewRequest>,
) -> ApiResult<Json<types::Preview>> {
    let destination = destinations::find(&api, &caller, id).await?;
    let counts = api.store.destination_counts(id).await?;
    let now = api.clock.now();
    let mut measured = backlog::measure(&api, &destination, &counts, now).await?;
    let expiries = expiries(&api, &destination, counts.oldest_created_at).await?;
    let current = &destination.at(now).settings;
    let proposed_limits = rates::proposed(&current.rate_limits, request.rate_limits, request.min_interval_ms);
    let (rings, usual_cost) = backlog::rings(&api, id, &proposed_limits, now).await?;
    measured.rings.extend(rings);
    measured.usual_cost = measured.usual_cost.max(usual_cost);
    let proposed_keys = match request.key_limits {
        Some(asked) => {
            let limits = asked.and_then(|asked| asked.keeping_overrides(current.key_limits.as_deref()));
            Some(with_keys(&api, &destination, limits, &proposed_limits, now).await?)
        }
        None => None,
    };
    let proposed_measured = match &proposed_keys {
        Some(keys) => Measured { keys: keys.together, ..measured.clone() },
        None => measured.clone(),
    };
    let view = |measured: &Measured, limits: &RateLimits, max_in_flight: u32| {
        let forecast = |limits: &RateLimits| measured.forecast(&destination, limits, max_in_flight, now);
        view(measured, expiries, limits, forecast)
    };
    let in_words = match &proposed_keys {
        Some(keys) => key_limits(keys.limits.as_deref(), &proposed_measured),
        None => key_limits(destination.settings.key_limits.as_deref(), &measured),
    };
    Ok(Json(types::Preview {
        proposed: view(&proposed_measured, &proposed_limits, request.max_in_flight.unwrap_or(current.max_in_flight)),
        now: view(&measured, &current.rate_limits, current.max_in_flight),
        fault: measured.fault.map(|fault| fault.as_str().to_owned()),
        key_limits: in_words,
        keys: proposed_keys.map(|keys| keys.shown),
    }))
}

/// Proposed limits of keys, and what they would allow.
struct ProposedKeys {
    limits: Option<Arc<KeyLimits>>,
    together: Option<KeysTogether>,
    shown: Vec<types::KeyPreview>,
}

/// What waits keeps its keys, also under another pointer.
async fn with_keys(
    api: &ApiState,
    destination: &Destination,
    limits: Option<Arc<KeyLimits>>,
    proposed_limits: &RateLimits,
    now: Timestamp,
) -> ApiResult<ProposedKeys> {
    let present = destination.at(now).into_owned();
    let mut proposed = present.clone();
    proposed.settings.key_limits.clone_from(&limits);
    proposed.settings.rate_limits = proposed_limits.clone();
    // The proposed limits are in these settings already.
    proposed.temporary.overridden = None;
    check_alone(&proposed.settings, destination.keyed_at.is_some())?;
    let backlogs = api.store.key_backlogs(destination.id, None, KEYS_LOOKED_AT).await?;
    let together = limits.as_ref().filter(|limits| limits.may_bind());
    let together = together.and_then(|_| KeysTogether::of(&proposed, &backlogs));
    let of_group = share_of(api, destination).await?.map(|share| share.most_per_s);
    let figures = |destination| KeyFigures::all(destination, of_group, backlogs.keys.clone(), now);
    let [with, now] = [&proposed, &present].map(figures);
    let forecast = |figures: &KeyFigures| types::KeyForecast {
        share_per_s: figures.share.map(millis),
        binding: figures.binding.map(|binding| binding.as_str().to_owned()),
        drain_eta_s: figures.drain_eta_s().map(millis),
    };
    let shown = with.iter().filter(|figures| figures.waiting > 0).take(KEYS_SHOWN).map(|figures| types::KeyPreview {
        key: figures.key.to_string(),
        waiting: figures.waiting,
        proposed: forecast(figures),
        now: now.iter().find(|one| one.key == figures.key).map_or_else(|| forecast(figures), forecast),
    });
    Ok(ProposedKeys { together, shown: shown.collect(), limits })
}

/// What a forecast knows of the limits of single limit keys.
fn key_limits(limits: Option<&KeyLimits>, measured: &Measured) -> Option<String> {
    limits.filter(|limits| limits.may_bind())?;
    let waiting = measured.counts.waiting();
    let now = match measured.keys {
        Some(keys) if keys.longest.is_none() => {
            let per_s = millis(keys.per_s);
            format!(
                "The limits of the keys that wait allow {per_s} per second together. A paused key waits, so nobody knows when all are sent."
            )
        }
        Some(keys) => format!("The limits of the keys that wait allow {} per second together.", millis(keys.per_s)),
        None if waiting == 0 => "Nothing waits.".to_owned(),
        None if waiting > KEYS_LOOKED_AT.into() => format!(
            "More than {KEYS_LOOKED_AT} deliveries wait, so the limits of their keys are not in the forecast: it may take longer."
        ),
        None => "A key without limits of its own waits; the others may take longer than the forecast says.".to_owned(),
    };
    Some(format!(
        "{now} An edit of the limits of keys acts within 100 ms and resets no window; another place of the key is for the events from \
         then on."
    ))
}

pub(crate) fn view(
    measured: &Measured,
    expiries: Option<Expiries>,
    limits: &RateLimits,
    forecast_of: impl Fn(&RateLimits) -> Forecast,
) -> types::Forecast {
    let forecast = forecast_of(limits);
    let drain = measured.drain(&forecast);
    let first_expiry_at = expiries.and_then(|expiries| forecast.first_expiry(measured.counts.waiting(), expiries));
    // What each of them takes from the rate that is left without it.
    let per_second = |limits: &RateLimits| forecast_of(limits).per_second();
    let unspaced = limits.clone().with_min_interval(None);
    let (plain_per_s, unspaced_per_s) = (per_second(&unspaced.without_margins()), per_second(&unspaced));
    let cost = |before: Option<f64>, after: Option<f64>| Some(millis(before? - after?));
    types::Forecast {
        margins_cost_per_s: cost(plain_per_s, unspaced_per_s),
        min_interval_costs_per_s: cost(unspaced_per_s, forecast.per_second()),
        effective_per_s: forecast.per_second().map(millis),
        binding: forecast.bound().map(binding),
        drain_eta_s: drain.after().map(|time| millis(time.as_secs_f64())),
        drains: drain.is_expected(),
        would_expire: first_expiry_at.is_some(),
        first_expiry_at,
    }
}

/// When the oldest and the newest waiting delivery expire; `None` if the newest ones never do. The oldest one is taken
/// to wait as long as the newest one may, unless it waits for longer already.
async fn expiries(
    api: &ApiState,
    destination: &Destination,
    oldest_created_at: Option<Timestamp>,
) -> ApiResult<Option<Expiries>> {
    let Some(oldest_created_at) = oldest_created_at else { return Ok(None) };
    let filter = DeliveryFilter {
        destination_id: Some(destination.id),
        states: vec![DeliveryState::Pending],
        ..DeliveryFilter::default()
    };
    let newest = api.store.list_deliveries(&filter, PageRequest { before: None, limit: ASKED_FOR_EXPIRY }).await?;
    let first = newest.rows.iter().filter_map(|delivery| Some((delivery.expires_at?, delivery.created_at))).min();
    Ok(first.map(|(newest, created_at)| {
        let oldest = oldest_created_at + newest.since(created_at);
        // One that had expired would wait no longer, so the oldest one never does: only some have a `ttl_s`.
        Expiries { oldest: if oldest < api.clock.now() { newest } else { oldest }, newest }
    }))
}

pub(crate) fn binding(bound: Bound) -> types::Binding {
    match bound {
        Bound::Limit(limit) => types::Binding::Limit(binding_limit(limit)),
        Bound::MinInterval(_) => types::Binding::Other(types::OtherBinding::MinInterval),
        Bound::MaxInFlight => types::Binding::Other(types::OtherBinding::MaxInFlight),
        Bound::Group => types::Binding::Other(types::OtherBinding::Group),
        Bound::Key => types::Binding::Other(types::OtherBinding::Key),
        Bound::Adaptive => types::Binding::Other(types::OtherBinding::Adaptive),
    }
}

pub(crate) fn binding_limit(limit: RateLimit) -> types::BindingLimit {
    types::BindingLimit { limit: limit.limit.get(), period: limit.period.to_string(), unit: limit.unusual_unit() }
}
