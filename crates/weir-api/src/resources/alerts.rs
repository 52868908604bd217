//! The alert thresholds: of all destinations, and of one destination as part of its settings. And what is wrong now.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{
    Destination,
    activity::Action,
    alert::{Alert, AlertOverrides, AlertPolicy, BEHIND, DestinationStatus, GroupAlert, Measure},
    alert_data::{alert_data, group_alert_data},
    destination::ALL_TENANTS,
    stall::Outage,
};
use weir_store::{Condition, GroupBacklog, GroupBacklogs, GroupTraffic, PaceWatch, Rates, tenant_code};

use super::{activity::Author, policies::replace};
use crate::{
    auth::Caller,
    overview::{Order, Sample},
    problem::{ApiResult, Refused},
    readers::{
        body::Body,
        fields::object,
        page::{Listing, PageParameters},
        query::{Query, parameters},
        texts::{AnyTenantText, one_of, text},
    },
    state::Api,
};

object! {
    /// The thresholds above which a destination raises alerts; `null` disables a threshold.
    pub(crate) struct Alerts {
        /// The number of waiting deliveries.
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000_000_000)]
        backlog_depth: Option<Option<u32>>,
        /// The age of the oldest waiting delivery.
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 31_536_000)]
        oldest_age_s: Option<Option<u32>>,
        /// Raise an alert if the backlog, at the destination's limit, drains only after some of its deliveries have
        /// expired (by `ttl_s`, or without one by `retry.max_age_s`).
        #[schema(default = true)]
        drain_beyond_ttl: Option<bool>,
        /// The number of dead letters (`dead` or `failed`) since the last alert about dead letters.
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 1_000_000_000, default = 1)]
        dead_letters: Option<Option<u32>>,
    }
}

impl From<Alerts> for AlertOverrides {
    fn from(alerts: Alerts) -> Self {
        let Alerts { backlog_depth, oldest_age_s, drain_beyond_ttl, dead_letters } = alerts;
        Self { backlog_depth, oldest_age_s, drain_beyond_ttl, dead_letters }
    }
}

/// Show the thresholds of all destinations
#[utoipa::path(
    get, path = "/v1/alerts", operation_id = "show_alerts", tag = "alerts",
    responses((status = 200, description = "The thresholds", body = Alerts))
)]
pub(crate) async fn show(State(api): State<Api>, caller: Caller, _: Query<()>) -> ApiResult<Json<AlertPolicy>> {
    caller.check_unbound()?;
    Ok(Json(api.store.alert_policy().await?))
}

/// Set the thresholds of all destinations
///
/// An omitted threshold gets its default; `null` disables a threshold. The `alerts` of a destination override these
/// thresholds. An alert is an event: `weir.backlog.high`, `weir.backlog.cleared`, `weir.breaker.opened`,
/// `weir.breaker.closed`, `weir.destination.paused`, `weir.destination.refused`, `weir.destination.admitted`,
/// `weir.destination.refusing`, `weir.destination.accepting`, `weir.destination.stalled`, `weir.destination.recovered`,
/// `weir.installation.stalled`, `weir.installation.recovered`,
/// `weir.rate.lowered`, `weir.rate.restored`, `weir.delivery.dead`, `weir.limit_group.behind` or
/// `weir.limit_group.caught_up`. It goes to the destinations of the tenant
/// whose `event_types` match it (`weir.*`), and to the destinations with the tenant `*`, but not to the destination that
/// it is about, nor to the members of a group that it is about. Without any recipient it is only in the list of events. A backlog counts as cleared
/// below 80 % of each threshold. A destination raises at most one alert about dead letters per minute. Changes take
/// effect within ten seconds.
#[utoipa::path(
    put, path = "/v1/alerts", operation_id = "set_alerts", tag = "alerts",
    request_body = Alerts,
    responses(
        (status = 200, description = "The new thresholds", body = Alerts),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn set(
    State(api): State<Api>,
    caller: Caller,
    author: Author,
    _: Query<()>,
    Body(alerts): Body<Alerts>,
) -> ApiResult<Json<AlertPolicy>> {
    caller.check_unbound()?;
    let policy = AlertOverrides::from(alerts).apply_to(&AlertPolicy::default());
    let read = || api.store.alert_policy();
    let set = |current, activity| api.store.set_alert_policy(current, policy, activity);
    replace(&api, &author, Action::AlertsChanged, &policy, read, set).await?;
    tracing::info!(?policy, "alert thresholds set");
    Ok(Json(policy))
}

/// The list of what is wrong now. Its rows move, so a cursor is a number of rows.
pub(crate) enum ActiveAlerts {}

impl Listing for ActiveAlerts {
    const TAG: u8 = b'w';
}

type ActivePage = PageParameters<ActiveAlerts>;

/// The types of alerts about something that lasts, the worst first.
const LASTING: [&str; 10] = [
    Outage::STALLED,
    "weir.destination.stalled",
    "weir.breaker.opened",
    "weir.destination.paused",
    "weir.delivery.dead",
    BEHIND,
    "weir.backlog.high",
    "weir.destination.refusing",
    "weir.destination.refused",
    "weir.rate.lowered",
];

text! {
    /// The type of an alert about something that lasts.
    #[schema(
        as = ActiveAlertType, value_type = String, example = "weir.breaker.opened",
        pattern = "^weir\\.(breaker\\.opened|installation\\.stalled|destination\\.(stalled|paused|refusing|refused)|delivery\\.dead|limit_group\\.behind|backlog\\.high|rate\\.lowered)$"
    )]
    pub(crate) struct ActiveAlertText(String);
    parse = |text| one_of(text, LASTING.into_iter());
}

parameters! {
    /// The filter of what is wrong now.
    pub(crate) struct ActiveFilter {
        /// Only this tenant
        tenant: Option<AnyTenantText>,
        /// Only alerts of this type
        r#type: Option<ActiveAlertText>,
    }
}

/// List what is wrong now
///
/// Each destination that Weir does not send to although it may, with an open breaker, a pause by Weir, dead letters, a high
/// backlog, a receiver that answers many sends with 429, refusals within its limit or an adaptive pace far below what it was,
/// each limit group that is behind, and a fault of Weir itself that stalls destinations or keeps the database from writing, by
/// the same thresholds as the alerts, in all tenants of the key. It is read from the state itself: no destination needs to
/// subscribe to alerts. The worst comes first.
#[utoipa::path(
    get, path = "/v1/alerts/active", operation_id = "list_active_alerts", tag = "alerts",
    params(ActiveFilter, ActivePage),
    responses((status = 200, description = "One page", body = types::ActiveAlerts))
)]
pub(crate) async fn active(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, page)): Query<(ActiveFilter, ActivePage)>,
) -> ApiResult<Json<types::ActiveAlerts>> {
    let scope = caller.scope(filter.tenant.map(|tenant| tenant.0))?;
    let policy = api.store.alert_policy().await?;
    let mut conditions = api.store.conditions(&scope).await?;
    // Refusals within the limit are known from the sample of the overview.
    let sample = api.live.sample().await?;
    let refused = sample.refused().filter(|destination| scope.includes(&destination.settings.tenant));
    Condition::add_missing(&mut conditions, refused.map(|destination| destination.id));
    Condition::add_missing(&mut conditions, sample.refusing());
    let stalls = api.live.stalls();
    Condition::add_missing(&mut conditions, stalls.stalled_alone());
    let mut paces = PaceWatch::default();
    paces.look(&*api.store, api.clock.now()).await?;
    Condition::add_missing(&mut conditions, paces.fallen());
    let ids: Vec<_> = conditions.iter().map(|condition| condition.destination_id).collect();
    let destinations = api.store.destinations(&ids).await?;
    let now = api.clock.now();
    let (mut found, everywhere) = (Vec::new(), String::new());
    let mut counts = BTreeMap::new();
    let mut is_listed = |alert_type: &str| {
        *counts.entry(alert_type.to_owned()).or_insert(0) += 1;
        filter.r#type.as_ref().is_none_or(|wanted| wanted.0 == alert_type)
    };
    // Which limit groups are behind.
    let figures_of = |id| sample.row(id).map(|row| &row.figures);
    let pace_of = |id| figures_of(id).and_then(|it| it.pace.as_ref()).map(|pace| pace.per_s);
    let members = conditions.iter().zip(&destinations);
    let members = members.filter_map(|(of, destination)| Some((of, destination.as_ref()?, pace_of(of.destination_id))));
    let traffic = group_traffic(&sample);
    let groups = GroupBacklogs::read(&*api.store, members, &traffic, &mut sample.costs(), &policy, now).await?;
    for backlog in groups.iter().filter(|of| scope.includes(tenant_code(of.group.tenant.as_deref()))) {
        let Some(measures) = backlog.record.history().group_is_behind(&backlog.status, now) else { continue };
        if is_listed(BEHIND) {
            found.push((BEHIND, &backlog.group.name, *backlog.group.id.as_bytes(), Found::Group(backlog, measures)));
        }
    }
    // A fault of Weir itself is one alert, however many destinations it stalls. A store that takes no writes lets no event in.
    if let Some(Some(outage)) = stalls.outage(now) {
        let is_seen = |id| sample.row(id).is_some_and(|row| scope.includes(&row.destination.settings.tenant));
        let destinations = stalls.stalled_by_outage().filter(|(id, _)| is_seen(*id)).count() as u64;
        if (destinations > 0 || outage.obstacle.is_some()) && is_listed(Outage::STALLED) {
            found.push((Outage::STALLED, &everywhere, [0; 16], Found::Installation(outage, destinations)));
        }
    }
    // What is wrong with each destination.
    for (condition, destination) in conditions.iter().zip(&destinations) {
        let Some(destination) = destination.as_ref().filter(|it| scope.includes(&it.settings.tenant)) else { continue };
        let policy = destination.settings.alerts.apply_to(&policy);
        let figures = figures_of(destination.id);
        let (refused, stalled) = (figures.map(|it| it.refusals), stalls.stall_of(destination.id, now));
        let (pace_per_s, share) = (pace_of(destination.id), figures.and_then(|it| it.share));
        let status = DestinationStatus {
            drains_in: condition.drains_in(
                destination,
                pace_per_s,
                share.map(|share| share.per_s),
                groups.cost_of(destination.id),
                now,
            ),
            pace: paces.of(destination),
            refusing: sample.answered(destination.id),
            ..condition.status(destination, refused, stalled, pace_per_s, now)
        };
        let status = sample.keys().add_to(status, destination.id);
        for alert in condition.record.history().problems(&policy, &status, now) {
            // The alert about its limit group says so.
            let is_told = matches!(alert, Alert::BacklogHigh(_)) && groups.speaks_for(destination);
            if !is_told && is_listed(alert.event_type()) {
                let (alert_type, name) = (alert.event_type(), &destination.settings.name);
                let found_of = Found::Destination(destination, alert, Box::new(status.clone()), policy);
                found.push((alert_type, name, *destination.id.as_bytes(), found_of));
            }
        }
    }
    found.sort_by_key(|(alert_type, name, id, _)| (severity(alert_type), *name, *id));
    // Only the rows of the page are written.
    let skipped =
        page.request.before.map_or(0, |before| usize::try_from(u128::from_be_bytes(before)).unwrap_or(usize::MAX));
    let end = skipped.saturating_add(page.request.limit as usize);
    let next_cursor = (found.len() > end).then(|| ActiveAlerts::cursor((end as u128).to_be_bytes()));
    let rows = found.iter().skip(skipped).take(page.request.limit as usize);
    let data = rows.map(|(alert_type, .., of)| match of {
        Found::Destination(destination, alert, status, policy) => types::ActiveAlert {
            alert_type: (*alert_type).to_owned(),
            destination_id: Some(destination.id.to_string()),
            destination_name: Some(destination.settings.name.clone()),
            limit_group_id: None,
            limit_group_name: None,
            tenant: destination.settings.tenant.clone(),
            data: alert_data(destination, alert, status, policy),
        },
        Found::Group(GroupBacklog { group, status, .. }, measures) => types::ActiveAlert {
            alert_type: (*alert_type).to_owned(),
            destination_id: None,
            destination_name: None,
            limit_group_id: Some(group.id.to_string()),
            limit_group_name: Some(group.name.clone()),
            tenant: tenant_code(group.tenant.as_deref()).to_owned(),
            data: group_alert_data(group, &GroupAlert::Behind(measures.clone()), status, &policy, now),
        },
        Found::Installation(outage, destinations) => types::ActiveAlert {
            alert_type: (*alert_type).to_owned(),
            destination_id: None,
            destination_name: None,
            limit_group_id: None,
            limit_group_name: None,
            tenant: ALL_TENANTS.to_owned(),
            data: outage.data(ALL_TENANTS, *destinations),
        },
    });
    Ok(Json(types::ActiveAlerts { as_of: now, counts, data: data.collect(), next_cursor }))
}

/// What something that is wrong is about.
enum Found<'a> {
    Destination(&'a Arc<Destination>, Alert, Box<DestinationStatus>, AlertPolicy),
    Group(&'a GroupBacklog, Vec<Measure>),
    /// With the number of destinations that it stalls.
    Installation(Outage, u64),
}

/// The traffic of limit groups, as the sample has it.
fn group_traffic(sample: &Sample) -> GroupTraffic {
    let mut traffic = GroupTraffic::default();
    for row in sample.rows(Order::Trouble, |row| row.destination.settings.limit_group.is_some()) {
        let (arrivals_per_s, sends_per_s) = (row.figures.arrivals_per_s, row.figures.achieved_per_s);
        traffic.add(&row.destination, Rates { arrivals_per_s, sends_per_s });
    }
    traffic
}

/// The place of a type of alerts among [`LASTING`].
fn severity(alert_type: &str) -> usize {
    LASTING.iter().position(|name| *name == alert_type).unwrap_or(LASTING.len())
}
