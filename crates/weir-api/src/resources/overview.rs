//! The overview: destinations with their backlog, their rates, and why they are not faster.

use axum::{Json, extract::State};
use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{DeliveryState, DestinationId, Timestamp, limit::MinInterval};

use super::destinations::{self, rates::RateLimitView};
use crate::{
    auth::Caller,
    overview::{Figures, Order, Row, Sample, Standing, Totals},
    problem::ApiResult,
    readers::{
        body::PathId,
        page::{Listing, PageParameters},
        query::{Query, parameters},
        texts::{DestinationIdText, TenantText, text},
    },
    resources::{preview::BindingView, refusals::RefusalsView},
    state::Api,
};

/// The list of the overview. Its rows move between samples, so a cursor is a number of rows.
pub(crate) enum Overviews {}

impl Listing for Overviews {
    const TAG: u8 = b'o';
}

type OverviewPage = PageParameters<Overviews>;

text! {
    /// The order of the rows: `trouble` begins with what needs a person.
    #[schema(as = OverviewOrder, value_type = String, pattern = "^(trouble|name|backlog|oldest_age)$", example = "trouble")]
    pub(crate) struct OrderText(Order);
    parse = |text| match text {
        "trouble" => Ok(Order::Trouble),
        "name" => Ok(Order::Name),
        "backlog" => Ok(Order::Backlog),
        "oldest_age" => Ok(Order::OldestAge),
        _ => Err("must be `trouble`, `name`, `backlog` or `oldest_age`".to_owned()),
    };
}

text! {
    /// `active`: nothing stops it; `waiting`: it has a backlog.
    #[schema(as = Standing, value_type = String, pattern = "^(active|waiting|paused|held|breaker)$", example = "waiting")]
    pub(crate) struct StandingText(Standing);
    parse = |text| match text {
        "active" => Ok(Standing::Active),
        "waiting" => Ok(Standing::Waiting),
        "paused" => Ok(Standing::Paused),
        "held" => Ok(Standing::Held),
        "breaker" => Ok(Standing::Breaker),
        _ => Err("must be `active`, `waiting`, `paused`, `held` or `breaker`".to_owned()),
    };
}

text! {
    /// A part of a name or URL.
    #[schema(as = OverviewSearch, value_type = String, example = "acme")]
    pub(crate) struct SearchText(String);
    parse = |text| Ok(text.to_lowercase());
}

parameters! {
    /// The filter and the order of the overview.
    pub(crate) struct OverviewFilter {
        /// Only this tenant.
        tenant: Option<TenantText>,
        /// Only destinations in this state.
        state: Option<StandingText>,
        /// Only destinations whose name or URL contains this text, in any case.
        q: Option<SearchText>,
        #[param(default = "trouble")]
        sort: Option<OrderText>,
    }
}

/// Show all destinations with their backlogs and rates
///
/// The figures are those of one instant, `as_of`, at most two seconds ago. The totals are of the tenant, or of all that
/// the key sees, and do not depend on the other filters.
#[utoipa::path(
    get, path = "/v1/overview", operation_id = "show_overview", tag = "destinations",
    params(OverviewFilter, OverviewPage),
    responses((status = 200, description = "One page", body = OverviewView))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, page)): Query<(OverviewFilter, OverviewPage)>,
) -> ApiResult<Json<OverviewView>> {
    let tenant = filter.tenant.map(|tenant| tenant.0);
    if let Some(tenant) = &tenant {
        caller.check_sees(tenant)?;
    }
    let sample = api.live.sample().await?;
    let order = filter.sort.as_ref().map_or(Order::Trouble, |sort| sort.0);
    let visible = visible(&sample, &caller, tenant.as_deref(), order);
    let totals = visible.iter().copied().collect();
    let mut rows = visible;
    rows.retain(|row| {
        let settings = &row.destination.settings;
        let contains = |text: &SearchText| {
            settings.name.to_lowercase().contains(&text.0) || settings.url.as_str().to_lowercase().contains(&text.0)
        };
        filter.state.as_ref().is_none_or(|state| state.0.is_of(row, sample.as_of))
            && filter.q.as_ref().is_none_or(contains)
    });
    let skipped =
        page.request.before.map_or(0, |before| usize::try_from(u128::from_be_bytes(before)).unwrap_or(usize::MAX));
    let end = skipped.saturating_add(page.request.limit as usize);
    let next_cursor = (rows.len() > end).then(|| Overviews::cursor((end as u128).to_be_bytes()));
    let rows = rows.into_iter().skip(skipped).take(page.request.limit as usize);
    let data = rows.map(|row| RowView::of(row, sample.as_of)).collect();
    Ok(Json(OverviewView { as_of: sample.as_of, totals: totals_view(totals), data, next_cursor }))
}

/// Show one destination with its backlog and rates
#[utoipa::path(
    get, path = "/v1/destinations/{id}/overview", operation_id = "show_destination_overview", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 200, description = "The row of the overview", body = OneRowView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    _: Query<()>,
) -> ApiResult<Json<OneRowView>> {
    let destination = destinations::find(&api, &caller, id).await?;
    let is_current = |row: &Row| row.destination.updated_at >= destination.updated_at;
    let mut sample = api.live.sample().await?;
    if !sample.row(id).is_some_and(is_current) {
        // It was created or edited since.
        sample = api.live.new_sample().await?;
    }
    let row = sample.row(id).ok_or_else(|| destinations::missing(id))?;
    Ok(Json(OneRowView { as_of: sample.as_of, row: RowView::of(row, sample.as_of) }))
}

/// The rows that a caller sees, of one tenant or of all.
pub(crate) fn visible<'a>(sample: &'a Sample, caller: &Caller, tenant: Option<&str>, order: Order) -> Vec<&'a Row> {
    sample.rows(order, |row| {
        let of = &row.destination.settings.tenant;
        tenant.is_none_or(|tenant| tenant == of) && caller.sees(of)
    })
}

/// Rounded to three digits after the point.
fn millis(value: f64) -> f64 {
    (value * 1_000.0).round() / 1_000.0
}

/// One page of the overview.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Overview)]
pub(crate) struct OverviewView {
    #[schema(value_type = String, format = DateTime)]
    as_of: Timestamp,
    totals: TotalsView,
    data: Vec<RowView>,
    /// The `cursor` of the next page; null on the last page. Rows may move between two pages.
    next_cursor: Option<String>,
}

/// The sums over all destinations of the tenant, or of all that the key sees.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OverviewTotals)]
pub(crate) struct TotalsView {
    destinations: u64,
    backlog: u64,
    dead: u64,
    achieved_per_s: f64,
    arrivals_per_s: f64,
}

/// A destination of the overview.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = OverviewRow)]
pub(crate) struct RowView {
    destination: BriefView,
    pending: u64,
    retrying: u64,
    delivering: u64,
    /// Dead and failed deliveries that were not sent again.
    dead: u64,
    /// Pending and retrying deliveries.
    backlog: u64,
    /// The age of the oldest of them; null if there is none.
    oldest_age_s: Option<f64>,
    /// The rate that the limits, their margins and the minimum interval allow; null if unlimited.
    configured_per_s: Option<f64>,
    /// The rate that is allowed now: 0 while the destination is paused or held or its breaker is not closed; null if
    /// unlimited.
    effective_per_s: Option<f64>,
    /// The sends of the last 10 to 20 seconds, per second.
    achieved_per_s: f64,
    /// The new deliveries of the last minute, per second.
    arrivals_per_s: f64,
    /// The share of this rate that is used, 0 to 1; null if unlimited.
    #[serde(rename = "use")]
    usage: Option<f64>,
    /// The strictest limit, or the minimum interval.
    binding: Option<BindingView>,
    /// The estimated time until nothing waits, with the deliveries that arrive meanwhile; null if that never happens or
    /// is unknown, or while the destination is paused or its breaker is not closed.
    drain_eta_s: Option<f64>,
    /// Whether the backlog gets empty at the current inflow; null if unknown, or while nothing is sent.
    drains: Option<bool>,
    /// Why the backlog is not sent faster: it is paused, its breaker is not closed, the receiver refuses sends that keep
    /// the limit, it is held, deliveries wait for
    /// earlier ones of their key, it answers slowly (`max_in_flight`), or its limit. Null: nothing waits, or only for
    /// its retry.
    #[schema(value_type = Option<String>, pattern = "^(paused|breaker|refused_within_limit|held|ordered|slow|limit)$", example = "limit")]
    reason: Option<&'static str>,
    /// Refusals within the limit, also while nothing waits; null if none are known.
    refused_within_limit: Option<RefusalsView>,
}

/// The row of one destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DestinationOverview)]
pub(crate) struct OneRowView {
    #[schema(value_type = String, format = DateTime)]
    as_of: Timestamp,
    #[serde(flatten)]
    row: RowView,
}

/// What the overview shows of a destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = BriefDestination)]
pub(crate) struct BriefView {
    #[schema(value_type = String, example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    id: DestinationId,
    name: String,
    #[schema(format = "uri", example = "https://example.com/hooks")]
    url: String,
    tenant: String,
    rate_limits: Vec<RateLimitView>,
    /// Null: none.
    #[schema(minimum = 1, maximum = 60_000)]
    min_interval_ms: Option<u32>,
    max_in_flight: u32,
    ordered: bool,
    paused: bool,
    paused_reason: Option<String>,
    #[schema(value_type = String, pattern = "^(closed|open|half_open)$", example = "closed")]
    breaker_state: &'static str,
    breaker_reason: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    next_probe_at: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    held_until: Option<Timestamp>,
    held_reason: Option<String>,
}

pub(crate) fn totals_view(totals: Totals) -> TotalsView {
    let Totals { destinations, backlog, dead, achieved_per_s, arrivals_per_s } = totals;
    let (achieved_per_s, arrivals_per_s) = (millis(achieved_per_s), millis(arrivals_per_s));
    TotalsView { destinations, backlog, dead, achieved_per_s, arrivals_per_s }
}

impl RowView {
    pub(crate) fn of(Row { destination, figures }: &Row, now: Timestamp) -> Self {
        let settings = &destination.settings;
        let held_until = destination.held_until.filter(|until| *until > now);
        let brief = BriefView {
            id: destination.id,
            name: settings.name.clone(),
            url: settings.url.to_string(),
            tenant: settings.tenant.clone(),
            rate_limits: settings.rate_limits.as_slice().iter().map(RateLimitView::from).collect(),
            min_interval_ms: settings.rate_limits.min_interval().map(MinInterval::as_millis),
            max_in_flight: settings.max_in_flight,
            ordered: settings.order.is_by_key(),
            paused: settings.paused,
            paused_reason: destination.paused_reason.clone(),
            breaker_state: destination.breaker.state(now).as_str(),
            breaker_reason: destination.breaker.reason().map(str::to_owned),
            next_probe_at: destination.breaker.next_probe_at(),
            held_until,
            held_reason: held_until.and_then(|_| destination.held_reason.clone()),
        };
        let Figures { counts, .. } = figures;
        Self {
            destination: brief,
            pending: counts.of(DeliveryState::Pending),
            retrying: counts.of(DeliveryState::Retrying),
            delivering: counts.of(DeliveryState::Delivering),
            dead: counts.dead_letters(),
            backlog: counts.waiting(),
            oldest_age_s: figures.oldest_age.map(|age| millis(age.as_secs_f64())),
            configured_per_s: figures.configured_per_s.map(millis),
            effective_per_s: figures.effective_per_s.map(millis),
            achieved_per_s: millis(figures.achieved_per_s),
            arrivals_per_s: millis(figures.arrivals_per_s),
            usage: figures.usage.map(millis),
            binding: figures.binding.map(BindingView::from),
            drain_eta_s: figures.drain_eta.map(|eta| millis(eta.as_secs_f64())),
            drains: figures.drains,
            reason: figures.reason.map(|reason| reason.as_str()),
            refused_within_limit: figures.refusals.map(RefusalsView::from),
        }
    }
}
