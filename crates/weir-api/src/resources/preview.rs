//! Previews of limits: how other limits would send a destination's backlog. Nothing is changed.

use axum::{Json, extract::State};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;
use weir_core::{
    DeliveryState, Destination, RateLimit, RateLimits, Timestamp,
    preview::{Bound, Expiries},
};
use weir_store::{DeliveryFilter, PageRequest};

use super::{
    destinations::{
        self,
        rates::{self, Limits, RateLimitRequest},
    },
    load::{Load, millis},
};
use crate::{
    auth::Caller,
    problem::ApiResult,
    readers::{
        body::{Body, PathId},
        fields::object,
        query::Query,
        texts::{DestinationIdText, PeriodText},
    },
    state::{Api, ApiState},
};

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
/// again.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/preview", operation_id = "preview_limits", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")), request_body = PreviewRequest,
    responses((status = 200, description = "The proposed settings, and the current ones as `now`", body = PreviewView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    _: Query<()>,
    Body(request): Body<PreviewRequest>,
) -> ApiResult<Json<PreviewView>> {
    let destination = destinations::find(&api, &caller, id).await?;
    let counts = api.store.destination_counts(id).await?;
    let load = Load::read(&api, &destination, &counts, api.clock.now()).await?;
    let expiries = expiries(&api, &destination, counts.oldest_created_at).await?;
    let current = &destination.settings;
    let min_interval = request.min_interval_ms.map_or(current.rate_limits.min_interval(), rates::min_interval);
    let proposed_limits = request.rate_limits.map_or_else(|| current.rate_limits.clone(), RateLimits::from);
    let proposed = view(
        &load,
        expiries,
        &proposed_limits.with_min_interval(min_interval),
        request.max_in_flight.unwrap_or(current.max_in_flight),
    );
    let now = view(&load, expiries, &current.rate_limits, current.max_in_flight);
    Ok(Json(PreviewView { proposed, now }))
}

fn view(load: &Load, expiries: Option<Expiries>, limits: &RateLimits, max_in_flight: u32) -> ForecastView {
    let forecast = load.forecast(limits, max_in_flight);
    let drain = load.drain(&forecast);
    let first_expiry_at = expiries.and_then(|expiries| forecast.first_expiry(load.waiting, expiries));
    // What each of them takes from the rate that is left without it.
    let per_second = |limits: &RateLimits| load.forecast(limits, max_in_flight).per_second();
    let unspaced = limits.clone().with_min_interval(None);
    let (plain_per_s, unspaced_per_s) = (per_second(&unspaced.without_margins()), per_second(&unspaced));
    let cost = |before: Option<f64>, after: Option<f64>| Some(millis(before? - after?));
    ForecastView {
        margins_cost_per_s: cost(plain_per_s, unspaced_per_s),
        min_interval_costs_per_s: cost(unspaced_per_s, forecast.per_second()),
        effective_per_s: forecast.per_second().map(millis),
        binding: forecast.bound().map(BindingView::from),
        drain_eta_s: drain.after().map(|time| millis(time.as_secs_f64())),
        drains: drain.is_expected(),
        would_expire: first_expiry_at.is_some(),
        first_expiry_at,
    }
}

/// When the oldest and the newest waiting delivery expire; `None` if the newest ones never do. The oldest one is taken
/// to wait as long as the newest one may.
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
    Ok(first.map(|(newest, created_at)| Expiries { oldest: oldest_created_at + newest.since(created_at), newest }))
}

/// How a destination would send its backlog with the proposed settings, and with the current ones.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Preview)]
pub(crate) struct PreviewView {
    #[serde(flatten)]
    proposed: ForecastView,
    now: ForecastView,
}

/// How a destination would send its backlog.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Forecast)]
pub(crate) struct ForecastView {
    /// The sustained rate: slots of a limit are (window + slot width + margin) / limit apart, those of a minimum interval
    /// the interval and a slot width, and `max_in_flight` allows as many sends as there are answers. Null if there is no limit and no recent answer.
    effective_per_s: Option<f64>,
    /// What bounds this rate.
    binding: Option<BindingView>,
    /// How many sends per second the margins of the limits take from the rate; null if nothing else bounds it.
    margins_cost_per_s: Option<f64>,
    /// How many sends per second the minimum interval takes from the rate that is left; null if nothing else bounds it.
    min_interval_costs_per_s: Option<f64>,
    /// The estimated time until nothing waits, with the deliveries that arrive meanwhile; null if that never happens or
    /// is unknown.
    drain_eta_s: Option<f64>,
    /// Whether the backlog gets empty at the current inflow; null if unknown.
    drains: Option<bool>,
    /// Whether deliveries expire before they are sent, judged by the newest of them.
    would_expire: bool,
    /// When the first of them expires.
    #[schema(value_type = Option<String>, format = DateTime)]
    first_expiry_at: Option<Timestamp>,
}

/// What bounds a rate: a limit, the minimum interval, or `max_in_flight`.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = Binding)]
#[serde(untagged)]
pub(crate) enum BindingView {
    Limit(BindingLimitView),
    Other(OtherBinding),
}

/// The limit that bounds a rate.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = BindingLimit)]
pub(crate) struct BindingLimitView {
    #[schema(minimum = 1, maximum = 1_000_000)]
    limit: u32,
    #[schema(value_type = PeriodText)]
    period: &'static str,
}

/// `max_in_flight`: the destination answers too slowly for it. `min_interval`: its `min_interval_ms`.
#[derive(Debug, PartialEq, Serialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum OtherBinding {
    MaxInFlight,
    MinInterval,
}

impl From<Bound> for BindingView {
    fn from(bound: Bound) -> Self {
        match bound {
            Bound::Limit(limit) => Self::Limit(limit.into()),
            Bound::MinInterval(_) => Self::Other(OtherBinding::MinInterval),
            Bound::MaxInFlight => Self::Other(OtherBinding::MaxInFlight),
        }
    }
}

impl From<RateLimit> for BindingLimitView {
    fn from(limit: RateLimit) -> Self {
        Self { limit: limit.limit.get(), period: limit.period.as_str() }
    }
}
