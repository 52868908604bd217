//! The overview: destinations with their backlog, their rates, and why they are not faster.

use std::{collections::HashMap, sync::Arc};

use axum::{Extension, Json, extract::State};
use weir_api_types as types;
use weir_core::{Condition, DeliveryState, DestinationId, Timestamp, limit::MinInterval};
use weir_store::Traffic;

use super::destinations::{self, adaptive::rate_view, rates, view::override_view};
use crate::{
    auth::Caller,
    fair_share::Turn,
    figures::{Figures, Measured, Reason, millis},
    overview::{Minutes, Order, Row, Sample, Standing, Totals},
    problem::ApiResult,
    readers::{
        body::PathId,
        page::{Listing, PageParameters},
        query::{Query, parameters},
        texts::{AnyTenantText, DestinationIdText, parsed, text},
    },
    resources::{advice::advice, backlog, deliveries::destination_waits_for, failures, preview, refusals},
    state::Api,
};

/// The list of the overview. Its rows move between samples, so a cursor is a number of rows.
pub(crate) enum Overviews {}

impl Listing for Overviews {
    const TAG: u8 = b'o';
}

/// As many as a page has rows.
const MAX_IDS: usize = 200;

type OverviewPage = PageParameters<Overviews>;

text! {
    /// The order of the rows: `trouble` begins with what needs a person, `name` with A, and the others with the largest
    /// figure. `drain_eta` begins with what never drains.
    #[schema(
        as = OverviewOrder, value_type = String, example = "trouble",
        pattern = "^(trouble|name|backlog|oldest_age|utilisation|arrivals|sends|drain_eta)$"
    )]
    pub(crate) struct OrderText(Order);
    parse = |text| match text {
        "trouble" => Ok(Order::Trouble),
        "name" => Ok(Order::Name),
        "backlog" => Ok(Order::Backlog),
        "oldest_age" => Ok(Order::OldestAge),
        "utilisation" => Ok(Order::Utilisation),
        "arrivals" => Ok(Order::Arrivals),
        "sends" => Ok(Order::Sends),
        "drain_eta" => Ok(Order::DrainEta),
        _ => {
            let orders = "`trouble`, `name`, `backlog`, `oldest_age`, `utilisation`, `arrivals`, `sends` or `drain_eta`";
            Err(format!("must be {orders}"))
        }
    };
}

text! {
    /// `active`: nothing stops it; `waiting`: it has a backlog; `never_drains`: more arrives than may be sent.
    #[schema(
        as = Standing, value_type = String, example = "waiting",
        pattern = "^(active|waiting|never_drains|paused|held|breaker)$"
    )]
    pub(crate) struct StandingText(Standing);
    parse = |text| match text {
        "waiting" => Ok(Standing::Waiting),
        "never_drains" => Ok(Standing::NeverDrains),
        _ => {
            let condition = Condition::ALL.into_iter().find(|condition| condition.as_str() == text);
            let expected = || "must be `active`, `waiting`, `never_drains`, `paused`, `held` or `breaker`".to_owned();
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

text! {
    /// Ids of destinations, separated by commas: 1 to 200.
    #[schema(as = OverviewIds, value_type = String, pattern = "^dst_[0-7][0-9a-hjkmnp-tv-z]{25}(,dst_[0-7][0-9a-hjkmnp-tv-z]{25}){0,199}$", example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    pub(crate) struct OverviewIdsText(Vec<DestinationId>);
    parse = |text| match text.split(',').count() {
        1..=MAX_IDS => text.split(',').map(parsed).collect(),
        _ => Err(format!("must name at most {MAX_IDS} destinations")),
    };
}

parameters! {
    /// The filter and the order of the overview.
    pub(crate) struct OverviewFilter {
        /// Only this tenant; `*`: the destinations of operators.
        tenant: Option<AnyTenantText>,
        /// Only destinations in this state.
        state: Option<StandingText>,
        /// Only destinations whose name or URL contains this text, in any case.
        q: Option<OverviewSearchText>,
        /// Only these destinations, in this order, without those that are gone: to read the rows of a page again.
        ids: Option<OverviewIdsText>,
        #[param(default = "trouble")]
        sort: Option<OrderText>,
        /// Show what happened at each destination in the last half hour, by minute.
        #[param(default = false)]
        recent: Option<bool>,
        /// The order turned round: the smallest first.
        #[param(default = false)]
        reverse: Option<bool>,
    }
}

/// Show all destinations with their backlogs and rates
///
/// The figures are those of one instant, `as_of`, at most two seconds ago. The totals are of the tenant, or of all that
/// the key sees, and do not depend on the other filters. `matches` counts what the filters keep.
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
    let totals = Totals::of(visible.iter().copied(), sample.as_of);
    let mut rows = visible;
    if filter.reverse == Some(true) {
        rows.reverse();
    }
    if let Some(OverviewIdsText(ids)) = &filter.ids {
        let by_id: HashMap<DestinationId, &Row> = rows.iter().map(|row| (row.destination.id, *row)).collect();
        rows = ids.iter().filter_map(|id| by_id.get(id).copied()).collect();
    }
    rows.retain(|row| {
        let settings = &row.destination.settings;
        let contains = |text: &OverviewSearchText| {
            settings.name.to_lowercase().contains(&text.0) || settings.url.as_str().to_lowercase().contains(&text.0)
        };
        filter.state.as_ref().is_none_or(|state| row.is(state.0, sample.as_of))
            && filter.q.as_ref().is_none_or(contains)
    });
    let skipped =
        page.request.before.map_or(0, |before| usize::try_from(u128::from_be_bytes(before)).unwrap_or(usize::MAX));
    let end = skipped.saturating_add(page.request.limit as usize);
    let cursor = |place: usize| Overviews::cursor((place as u128).to_be_bytes());
    let next_cursor = (rows.len() > end).then(|| cursor(end));
    let previous_cursor =
        (skipped > 0).then(|| cursor(skipped.min(rows.len()).saturating_sub(page.request.limit as usize)));
    let matches = rows.len() as u64;
    let rows: Vec<&Row> = rows.into_iter().skip(skipped).take(page.request.limit as usize).collect();
    let mut data: Vec<types::OverviewRow> = rows.iter().map(|row| row_view(row, sample.as_of)).collect();
    if filter.recent == Some(true) {
        let ids: Vec<DestinationId> = rows.iter().map(|row| row.destination.id).collect();
        let recent = api.live.recent.of(&*api.store, &ids, api.clock.now()).await?;
        for (row, minutes) in data.iter_mut().zip(recent) {
            row.recent = recent_view(&minutes);
        }
    }
    let (as_of, totals, skipped) = (sample.as_of, totals_view(totals), skipped as u64);
    Ok(Json(types::Overview { as_of, totals, matches, skipped, data, next_cursor, previous_cursor }))
}

parameters! {
    /// Whose history to show.
    pub(crate) struct OverviewHistoryFilter {
        /// Only this tenant.
        tenant: Option<AnyTenantText>,
    }
}

/// Show what happened at all destinations
///
/// By minute, for the last half hour: of the tenant, or of all that the key sees. The last minute has not ended. The first
/// answers of a process may begin later, while older minutes are read.
#[utoipa::path(
    get, path = "/v1/overview/history", operation_id = "show_overview_history", tag = "destinations",
    params(OverviewHistoryFilter),
    responses((status = 200, description = "The minutes, oldest first", body = types::OverviewHistory))
)]
pub(crate) async fn history(
    State(api): State<Api>,
    caller: Caller,
    Query(filter): Query<OverviewHistoryFilter>,
) -> ApiResult<Json<types::OverviewHistory>> {
    let tenant = filter.tenant.map(|tenant| tenant.0);
    if let Some(tenant) = &tenant {
        caller.check_sees(tenant)?;
    }
    let is_seen = |of: &str| tenant.as_deref().is_none_or(|tenant| tenant == of) && caller.sees(of);
    let picture = api.live.recent.all(&*api.store, api.live.new_sample(), is_seen).await?;
    let data = minutes_view(&picture.minutes, picture.waiting);
    Ok(Json(types::OverviewHistory { as_of: picture.as_of, data }))
}

/// The minutes with the backlog at the end of each: the present one without the changes since. `backlog` is that of now.
fn minutes_view(minutes: &Minutes, backlog: u64) -> Vec<types::OverviewMinute> {
    let mut backlog = i64::try_from(backlog).unwrap_or(i64::MAX);
    let mut views: Vec<types::OverviewMinute> = Vec::with_capacity(minutes.len());
    for &(at, traffic) in minutes.iter().rev() {
        views.push(types::OverviewMinute {
            at,
            sends: traffic.sends,
            delivered: traffic.delivered,
            failed: traffic.failed,
            arrivals: traffic.arrivals,
            // Both were not read at the same instant, so the difference may be below zero.
            backlog: u64::try_from(backlog).unwrap_or_default(),
        });
        backlog -= traffic.backlog_change;
    }
    views.reverse();
    views
}

/// `None`: unknown.
fn recent_view(minutes: &Minutes) -> Option<types::RecentMinutes> {
    let (from, _) = *minutes.first()?;
    let each = |figure: fn(&Traffic) -> u64| minutes.iter().map(|(_, traffic)| figure(traffic)).collect();
    Some(types::RecentMinutes {
        from,
        sends: each(|traffic| traffic.sends),
        failed: each(|traffic| traffic.failed),
        arrivals: each(|traffic| traffic.arrivals),
    })
}

/// Show one destination with its backlog and rates
///
/// The figures are measured anew, and agree with those of a preview. The other fields explain them: what the destination
/// waits for, which setting would let it send faster, and how its deliveries failed while its breaker is not closed or no
/// attempt succeeds.
#[utoipa::path(
    get, path = "/v1/destinations/{id}/overview", operation_id = "show_destination_overview", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 200, description = "The row of the overview", body = types::DestinationOverview))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    Extension(turn): Extension<Turn>,
    _: Query<()>,
) -> ApiResult<Json<types::DestinationOverview>> {
    let destination = destinations::find(&api, &caller, id).await?;
    let _seat = backlog::seat_to_read_keys(&destination, &turn).await?;
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
        fails: row.figures.reason == Some(Reason::Failing),
        ..backlog::measure(&api, &row.destination, &counts, now).await?
    };
    let destination = Arc::clone(&row.destination);
    let row = Row { figures: Figures::of(&destination, &measured, now), destination: Arc::clone(&destination) };
    let (last_failure, failures) = match (destination.breaker.reason(), row.figures.reason) {
        (Some(_), _) | (_, Some(Reason::Failing)) => failures::recent(&api, id).await?,
        _ => (None, Vec::new()),
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
    types::OverviewTotals {
        destinations: totals.destinations,
        backlog: totals.backlog,
        undelivered: totals.undelivered,
        achieved_per_s: millis(totals.achieved_per_s),
        arrivals_per_s: millis(totals.arrivals_per_s),
        paused: totals.paused,
        held: totals.held,
        breaker: totals.broken,
        never_drains: totals.never_drain,
    }
}

pub(crate) fn row_view(Row { destination, figures }: &Row, now: Timestamp) -> types::OverviewRow {
    let overridden = destination.temporary.override_at(now).map(override_view);
    let destination = destination.at(now);
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
        overridden,
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
        adaptive_rate: figures.pace.as_ref().map(rate_view),
        refused_within_limit: figures.refusals.map(refusals::view),
        recent: None,
    }
}
