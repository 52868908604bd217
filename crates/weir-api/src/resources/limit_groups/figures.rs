//! The figures of limit groups: sums over the members in the sample of the overview, and a preview of other limits.

use std::{cmp::Reverse, collections::HashMap, time::Duration};

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{
    DeliveryState, LimitGroup, LimitGroupId, Limiter, RateLimits, Timestamp,
    preview::{Drain, Forecast},
    temporary::Hold,
};

use super::{find, reservations, view};
use crate::{
    auth::Caller,
    figures::{Reason, as_number, mean_cost, millis},
    overview::{Order, Row, Sample},
    problem::ApiResult,
    readers::{
        body::{Body, PathId},
        fields::object,
        query::Query,
        texts::LimitGroupIdText,
    },
    resources::{
        destinations::rates::{Limits, RateLimitRequest},
        preview,
    },
    state::Api,
};

/// The members of these groups in a sample.
pub(crate) fn members<'s>(sample: &'s Sample, ids: &[LimitGroupId]) -> HashMap<LimitGroupId, Vec<&'s Row>> {
    let mut members: HashMap<LimitGroupId, Vec<&Row>> = ids.iter().map(|id| (*id, Vec::new())).collect();
    for row in sample.rows(Order::Backlog, |row| row.destination.settings.limit_group.is_some()) {
        if let Some(of_group) = row.destination.settings.limit_group.and_then(|id| members.get_mut(&id)) {
            of_group.push(row);
        }
    }
    members
}

/// The sums over members.
#[derive(Default)]
struct Sums {
    backlog: u64,
    delivering: u64,
    oldest_age: Option<Duration>,
    achieved_per_s: f64,
    arrivals_per_s: f64,
    inflow_per_s: f64,
    /// The mean of what waits, where limits count costs.
    usual_cost: u32,
}

impl Sums {
    fn of(members: &[&Row]) -> Self {
        let figures = || members.iter().map(|row| &row.figures);
        let usual_cost = mean_cost(figures().map(|figures| (figures.counts.waiting(), figures.usual_cost)));
        figures().fold(Self { usual_cost, ..Self::default() }, |sum, figures| Self {
            backlog: sum.backlog + figures.counts.waiting(),
            delivering: sum.delivering + figures.counts.of(DeliveryState::Delivering),
            oldest_age: sum.oldest_age.max(figures.oldest_age),
            achieved_per_s: sum.achieved_per_s + figures.achieved_per_s,
            arrivals_per_s: sum.arrivals_per_s + figures.arrivals_per_s,
            inflow_per_s: sum.inflow_per_s + figures.inflow_per_s,
            usual_cost,
        })
    }
}

/// How the budget would be used under a backlog. The cursors are in the queue; there they are where the last send left them.
fn forecast(limits: &RateLimits, held: Option<&Hold>, usual_cost: u32, now: Timestamp) -> Forecast {
    let mut limiter = Limiter::recovered(&limits.evenly(), Some(now));
    limiter.expect_cost(usual_cost);
    limiter.hold(held.map_or(Timestamp::MIN, |hold| hold.until));
    Forecast::new(&limiter, None, now)
}

/// By the limits of the group, and no earlier than at members whose own limits bind.
fn drain(limits: &RateLimits, held: Option<&Hold>, members: &[&Row], sums: &Sums, now: Timestamp) -> Drain {
    let own = |row: &&&Row| row.figures.counts.waiting() > 0 && row.figures.reason != Some(Reason::Group);
    let mut drain = forecast(limits, held, sums.usual_cost, now).drain(sums.backlog, sums.inflow_per_s);
    for figures in members.iter().filter(own).map(|row| &row.figures) {
        drain = match (drain, figures.drains, figures.drain_eta) {
            (Drain::Never, ..) | (_, Some(false), _) => Drain::Never,
            (Drain::After(group), _, Some(member)) => Drain::After(group.max(member)),
            (Drain::Unknown, _, Some(member)) => Drain::After(member),
            (_, _, None) => return Drain::Unknown,
        };
    }
    drain
}

pub(crate) fn row(group: &LimitGroup, members: &[&Row], as_of: Timestamp) -> types::LimitGroupRow {
    let sums = Sums::of(members);
    let limits = &group.at(as_of).rate_limits;
    let drain = drain(limits, group.temporary.hold_at(as_of), members, &sums, as_of);
    let (configured_per_s, binding) = limits.strictest_at(as_number(sums.usual_cost)).unzip();
    types::LimitGroupRow {
        limit_group: view(group, as_of),
        members: members.len() as u64,
        backlog: sums.backlog,
        delivering: sums.delivering,
        oldest_age_s: sums.oldest_age.map(|age| millis(age.as_secs_f64())),
        configured_per_s: configured_per_s.map(millis),
        binding: binding.map(preview::binding),
        achieved_per_s: millis(sums.achieved_per_s),
        arrivals_per_s: millis(sums.arrivals_per_s),
        utilisation: configured_per_s.map(|rate| millis((sums.achieved_per_s / rate).min(1.0))),
        drain_eta_s: drain.after().map(|eta| millis(eta.as_secs_f64())),
        drains: drain.is_expected(),
    }
}

fn member(row: &Row, rate: Option<f64>, now: Timestamp) -> types::LimitGroupMember {
    let (settings, figures) = (&row.destination.settings, &row.figures);
    types::LimitGroupMember {
        id: row.destination.id.to_string(),
        name: settings.name.clone(),
        url: settings.url.to_string(),
        tenant: settings.tenant.clone(),
        weight: settings.weight.into(),
        backlog: figures.counts.waiting(),
        achieved_per_s: millis(figures.achieved_per_s),
        share_per_s: figures.share.map(|share| if share.is_held(now) { 0.0 } else { millis(share.per_s) }),
        utilisation: rate.map(|rate| millis((figures.achieved_per_s / rate).min(1.0))),
        drain_eta_s: figures.drain_eta.map(|eta| millis(eta.as_secs_f64())),
        drains: figures.drains,
        reason: figures.reason.map(|reason| reason.as_str().to_owned()),
    }
}

/// Show a limit group with its members
///
/// The figures are those of one instant, `as_of`, at most two seconds ago. The totals are of all members, also of those that
/// the key does not see.
#[utoipa::path(
    get, path = "/v1/limit-groups/{id}/overview", operation_id = "show_limit_group_overview", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")),
    responses((status = 200, description = "The group and its members", body = types::LimitGroupOverview))
)]
pub(crate) async fn overview(
    State(api): State<Api>,
    caller: Caller,
    PathId(LimitGroupIdText(id)): PathId<LimitGroupIdText>,
    _: Query<()>,
) -> ApiResult<Json<types::LimitGroupOverview>> {
    let group = find(&api, &caller, id).await?;
    let sample = api.live.sample().await?;
    let mut all = members(&sample, &[id]).remove(&id).unwrap_or_default();
    let row = row(&group, &all, sample.as_of);
    let rate = row.configured_per_s;
    all.retain(|row| caller.sees(&row.destination.settings.tenant));
    all.sort_by_key(|row| Reverse(row.figures.counts.waiting()));
    let data = all.into_iter().map(|row| member(row, rate, sample.as_of)).collect();
    let reservations = reservations::recent(&api, id).await?;
    Ok(Json(types::LimitGroupOverview { as_of: sample.as_of, row, reservations, data }))
}

object! {
    /// The limits to preview. An absent field keeps its current value.
    pub(crate) struct LimitGroupPreviewRequest {
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4)]
        rate_limits: Option<Limits>,
    }
}

/// Preview other limits of a limit group
///
/// Calculates how the group would send the backlogs of all its members. Nothing is changed.
#[utoipa::path(
    post, path = "/v1/limit-groups/{id}/preview", operation_id = "preview_limit_group", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")), request_body = LimitGroupPreviewRequest,
    responses((status = 200, description = "The proposed limits, and the current ones as `now`", body = types::Preview))
)]
pub(crate) async fn show_preview(
    State(api): State<Api>,
    caller: Caller,
    PathId(LimitGroupIdText(id)): PathId<LimitGroupIdText>,
    _: Query<()>,
    Body(request): Body<LimitGroupPreviewRequest>,
) -> ApiResult<Json<types::Preview>> {
    let group = find(&api, &caller, id).await?;
    let sample = api.live.sample().await?;
    let members = members(&sample, &[id]).remove(&id).unwrap_or_default();
    let sums = Sums::of(&members);
    let shown = |limits: &RateLimits| {
        let (held, as_of) = (group.temporary.hold_at(sample.as_of), sample.as_of);
        let drain = drain(limits, held, &members, &sums, as_of);
        let forecast = |limits: &RateLimits| forecast(limits, held, sums.usual_cost, as_of);
        let (plain_per_s, forecast) = (forecast(&limits.clone().without_margins()).per_second(), forecast(limits));
        types::Forecast {
            effective_per_s: forecast.per_second().map(millis),
            binding: forecast.bound().map(preview::binding),
            margins_cost_per_s: plain_per_s.zip(forecast.per_second()).map(|(plain, with)| millis(plain - with)),
            min_interval_costs_per_s: None,
            drain_eta_s: drain.after().map(|eta| millis(eta.as_secs_f64())),
            drains: drain.is_expected(),
            would_expire: false,
            first_expiry_at: None,
        }
    };
    let in_force = group.at(sample.as_of).rate_limits.clone();
    let proposed = request.rate_limits.map_or_else(|| in_force.clone(), RateLimits::from);
    Ok(Json(types::Preview {
        proposed: shown(&proposed),
        now: shown(&in_force),
        fault: None,
        key_limits: None,
        keys: None,
    }))
}
