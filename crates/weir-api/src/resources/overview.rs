//! The overview: destinations with their backlog, their rates, and why they are not faster.

use std::sync::Arc;

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{Condition, DeliveryState, Timestamp, limit::MinInterval};

use super::destinations::{self, rates};
use crate::{
    auth::Caller,
    figures::{Figures, Measured, millis},
    overview::{Order, Row, Sample, Standing, Totals},
    problem::ApiResult,
    readers::{
        body::PathId,
        page::{Listing, PageParameters},
        query::{Query, parameters},
        texts::{DestinationIdText, TenantText, text},
    },
    resources::{advice::advice, backlog, deliveries::destination_waits_for, failures, preview, refusals},
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
        "waiting" => Ok(Standing::Waiting),
        _ => {
            let condition = Condition::ALL.into_iter().find(|condition| condition.as_str() == text);
            let expected = || "must be `active`, `waiting`, `paused`, `held` or `breaker`".to_owned();
            condition.map(Standing::In).ok_or_else(expected)
        }
    };
}

text! {
    /// A part of a name or URL.
    #[schema(as = OverviewSearch, value_type = String, example = "acme")]
    pub(crate) struct OverviewSearchText(String);
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
        q: Option<OverviewSearchText>,
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
    responses((status = 200, description = "One page", body = types::Overview))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, page)): Query<(OverviewFilter, OverviewPage)>,
) -> ApiResult<Json<types::Overview>> {
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
        let contains = |text: &OverviewSearchText| {
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
    let data = rows.map(|row| row_view(row, sample.as_of)).collect();
    Ok(Json(types::Overview { as_of: sample.as_of, totals: totals_view(totals), data, next_cursor }))
}

/// Show one destination with its backlog and rates
///
/// The figures are measured anew, and agree with those of a preview. The other fields explain them: what the destination
/// waits for, which setting would let it send faster, and how its deliveries failed while its breaker is not closed.
#[utoipa::path(
    get, path = "/v1/destinations/{id}/overview", operation_id = "show_destination_overview", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 200, description = "The row of the overview", body = types::DestinationOverview))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    _: Query<()>,
) -> ApiResult<Json<types::DestinationOverview>> {
    let destination = destinations::find(&api, &caller, id).await?;
    let is_current = |row: &Row| row.destination.updated_at >= destination.updated_at;
    let mut sample = api.live.sample().await?;
    if !sample.row(id).is_some_and(is_current) {
        // It was created or edited since.
        sample = api.live.new_sample().await?;
    }
    let row = sample.row(id).ok_or_else(|| destinations::missing(id))?;
    // The row with the figures of a preview, which knows more of one destination than a sample does of each.
    let now = api.clock.now();
    let counts = api.store.destination_counts(id).await?;
    let measured = Measured {
        counts: row.figures.counts,
        oldest_at: row.figures.oldest_age.map(|age| sample.as_of.before(age)),
        refusals: row.figures.refusals,
        ..backlog::measure(&api, &row.destination, &counts, now).await?
    };
    let destination = Arc::clone(&row.destination);
    let row = Row { figures: Figures::of(&destination, &measured, now), destination: Arc::clone(&destination) };
    let (last_failure, failures) = match destination.breaker.reason() {
        Some(_) => failures::recent(&api, id).await?,
        None => (None, Vec::new()),
    };
    Ok(Json(types::DestinationOverview {
        as_of: sample.as_of,
        answer_time_ms: row.figures.answer_time.map(|time| millis(time.as_secs_f64() * 1_000.0)),
        waits_for: destination_waits_for(&api, &destination, now).await?,
        advice: advice(&destination, &measured, &row.figures, now),
        last_failure,
        failures,
        row: row_view(&row, now),
    }))
}

/// The rows that a caller sees, of one tenant or of all.
pub(crate) fn visible<'a>(sample: &'a Sample, caller: &Caller, tenant: Option<&str>, order: Order) -> Vec<&'a Row> {
    sample.rows(order, |row| {
        let of = &row.destination.settings.tenant;
        tenant.is_none_or(|tenant| tenant == of) && caller.sees(of)
    })
}

pub(crate) fn totals_view(totals: Totals) -> types::OverviewTotals {
    let Totals { destinations, backlog, undelivered, achieved_per_s, arrivals_per_s } = totals;
    let (achieved_per_s, arrivals_per_s) = (millis(achieved_per_s), millis(arrivals_per_s));
    types::OverviewTotals { destinations, backlog, undelivered, achieved_per_s, arrivals_per_s }
}

pub(crate) fn row_view(Row { destination, figures }: &Row, now: Timestamp) -> types::OverviewRow {
    let settings = &destination.settings;
    let held_until = destination.held_until.filter(|_| destination.is(Condition::Held, now));
    let brief = types::BriefDestination {
        id: destination.id.to_string(),
        name: settings.name.clone(),
        url: settings.url.to_string(),
        tenant: settings.tenant.clone(),
        rate_limits: settings.rate_limits.as_slice().iter().map(rates::view).collect(),
        min_interval_ms: settings.rate_limits.min_interval().map(MinInterval::as_millis),
        max_in_flight: settings.max_in_flight,
        ordered: settings.order.is_by_key(),
        paused: settings.paused,
        paused_reason: destination.paused_reason.clone(),
        breaker_state: destination.breaker.state(now).as_str().to_owned(),
        breaker_reason: destination.breaker.reason().map(str::to_owned),
        next_probe_at: destination.breaker.next_probe_at(),
        held_until,
        held_reason: held_until.and_then(|_| destination.held_reason.clone()),
    };
    let Figures { counts, .. } = figures;
    types::OverviewRow {
        destination: brief,
        pending: counts.of(DeliveryState::Pending),
        retrying: counts.of(DeliveryState::Retrying),
        delivering: counts.of(DeliveryState::Delivering),
        undelivered: counts.dead_letters(),
        backlog: counts.waiting(),
        oldest_age_s: figures.oldest_age.map(|age| millis(age.as_secs_f64())),
        configured_per_s: figures.configured_per_s.map(millis),
        effective_per_s: figures.effective_per_s.map(millis),
        achieved_per_s: millis(figures.achieved_per_s),
        arrivals_per_s: millis(figures.arrivals_per_s),
        utilisation: figures.utilisation.map(millis),
        binding: figures.binding.map(preview::binding),
        drain_eta_s: figures.drain_eta.map(|eta| millis(eta.as_secs_f64())),
        drains: figures.drains,
        reason: figures.reason.map(|reason| reason.as_str().to_owned()),
        refused_within_limit: figures.refusals.map(refusals::view),
    }
}
