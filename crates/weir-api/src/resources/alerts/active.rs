//! What is wrong now: every alert that lasts, read from the state itself.

use std::{collections::BTreeMap, sync::Arc};

use axum::{Json, extract::State};
use weir_api_types as types;
use weir_core::{
    Destination, Timestamp,
    access::TenantScope,
    alert::{Alert, AlertPolicy, AlertType, DestinationStatus, GroupAlert, Measure},
    destination::ALL_TENANTS,
    stall::{Outage, StallReport},
};
use weir_store::{Condition, GroupBacklog, GroupBacklogs, GroupTraffic, PaceWatch, Rates, tenant_code};

use crate::{
    auth::Caller,
    overview::{Order, Sample},
    problem::ApiResult,
    readers::{
        page::{Listing, PageParameters},
        query::{Query, parameters},
        texts::{AnyTenantText, one_of, text},
    },
    state::{Api, ApiState},
};

/// The list of what is wrong now. Its rows move, so a cursor is a number of rows.
pub(crate) enum ActiveAlerts {}

impl Listing for ActiveAlerts {
    const TAG: u8 = b'w';
}

type ActivePage = PageParameters<ActiveAlerts>;

/// The types of alerts about something that lasts, the worst first.
const LASTING: [AlertType; 10] = [
    AlertType::InstallationStalled,
    AlertType::Stalled,
    AlertType::BreakerOpened,
    AlertType::Paused,
    AlertType::Dead,
    AlertType::GroupBehind,
    AlertType::BacklogHigh,
    AlertType::Refusing,
    AlertType::Refused,
    AlertType::RateLowered,
];

text! {
    /// The type of an alert about something that lasts.
    #[schema(
        as = ActiveAlertType, value_type = String, example = "weir.breaker.opened",
        pattern = "^weir\\.(breaker\\.opened|installation\\.stalled|destination\\.(stalled|paused|refusing|refused)|delivery\\.dead|limit_group\\.behind|backlog\\.high|rate\\.lowered)$"
    )]
    pub(crate) struct ActiveAlertText(String);
    parse = |text| one_of(text, LASTING.into_iter().map(AlertType::as_str));
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
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, page)): Query<(ActiveFilter, ActivePage)>,
) -> ApiResult<Json<types::ActiveAlerts>> {
    let scope = caller.scope(filter.tenant.map(|tenant| tenant.0))?;
    let policy = api.store.alert_policy().await?;
    // Refusals within the limit are known from the sample of the overview.
    let sample = api.live.sample().await?;
    let stalls = api.live.stalls();
    let mut paces = PaceWatch::default();
    paces.look(&*api.store, api.clock.now()).await?;
    let conditions = conditions(&api, &scope, &sample, &stalls, &paces).await?;
    let now = api.clock.now();
    let members = conditions.iter().map(|(condition, destination)| {
        let pace = sample.row(destination.id).and_then(|row| row.figures.pace.as_ref());
        (condition, destination, pace.map(|pace| pace.per_s))
    });
    let groups =
        GroupBacklogs::read(&*api.store, members, &group_traffic(&sample), &mut sample.costs(), &policy, now).await?;
    let mut wrong = Wrong { wanted: filter.r#type.map(|wanted| wanted.0), counts: BTreeMap::new(), rows: Vec::new() };
    for backlog in groups.iter().filter(|of| scope.includes(tenant_code(of.group.tenant.as_deref()))) {
        if let Some(measures) = backlog.record.history().group_is_behind(&backlog.status, now) {
            let (name, id) = (&*backlog.group.name, *backlog.group.id.as_bytes());
            wrong.add(AlertType::GroupBehind, name, id, || Found::Group(backlog, measures));
        }
    }
    // A fault of Weir itself is one alert, however many destinations it stalls. A store that takes no writes lets no event in.
    if let Some(Some(outage)) = stalls.outage(now) {
        let is_seen = |id| sample.row(id).is_some_and(|row| scope.includes(&row.destination.settings.tenant));
        let destinations = stalls.stalled_by_outage().filter(|(id, _)| is_seen(*id)).count() as u64;
        if destinations > 0 || outage.obstacle.is_some() {
            wrong.add(AlertType::InstallationStalled, "", [0; 16], || Found::Installation(outage, destinations));
        }
    }
    for (condition, destination) in conditions.iter().filter(|(_, of)| scope.includes(&of.settings.tenant)) {
        let policy = destination.settings.alerts.apply_to(&policy);
        let cost = groups.cost_of(destination.id);
        let status = status(condition, destination, cost, (&*sample, &*stalls, &paces), now);
        for alert in condition.record.history().problems(&policy, &status, now) {
            // The alert about its limit group says so.
            let is_told = matches!(alert, Alert::BacklogHigh(_)) && groups.speaks_for(destination);
            if !is_told {
                let (alert_type, id) = (alert.alert_type(), *destination.id.as_bytes());
                let about = || Found::Destination(destination, alert, Box::new(status.clone()), policy);
                wrong.add(alert_type, &destination.settings.name, id, about);
            }
        }
    }
    wrong.rows.sort_by_key(|row| (severity(row.alert_type), row.name, row.id));
    // Only the rows of the page are written.
    let skipped =
        page.request.before.map_or(0, |before| usize::try_from(u128::from_be_bytes(before)).unwrap_or(usize::MAX));
    let end = skipped.saturating_add(page.request.limit as usize);
    let next_cursor = (wrong.rows.len() > end).then(|| ActiveAlerts::cursor((end as u128).to_be_bytes()));
    let rows = wrong.rows.iter().skip(skipped).take(page.request.limit as usize);
    let data = rows.map(|row| row.view(&policy, now)).collect();
    Ok(Json(types::ActiveAlerts { as_of: now, counts: wrong.counts, data, next_cursor }))
}

/// The destinations that may have something wrong, with what the store knows of it.
async fn conditions(
    api: &ApiState,
    scope: &TenantScope,
    sample: &Sample,
    stalls: &StallReport,
    paces: &PaceWatch,
) -> ApiResult<Vec<(Condition, Arc<Destination>)>> {
    let mut conditions = api.store.conditions(scope).await?;
    let refused = sample.refused().filter(|destination| scope.includes(&destination.settings.tenant));
    Condition::add_missing(&mut conditions, refused.map(|destination| destination.id));
    Condition::add_missing(&mut conditions, sample.refusing());
    Condition::add_missing(&mut conditions, stalls.stalled_alone());
    Condition::add_missing(&mut conditions, paces.fallen());
    let ids: Vec<_> = conditions.iter().map(|condition| condition.destination_id).collect();
    let destinations = api.store.destinations(&ids).await?;
    Ok(conditions.into_iter().zip(destinations).filter_map(|(condition, of)| Some((condition, of?))).collect())
}

/// `cost`: the mean cost of its waiting deliveries.
fn status(
    condition: &Condition,
    destination: &Destination,
    cost: f64,
    (sample, stalls, paces): (&Sample, &StallReport, &PaceWatch),
    now: Timestamp,
) -> DestinationStatus {
    let id = destination.id;
    let figures = sample.row(id).map(|row| &row.figures);
    let pace_per_s = figures.and_then(|it| it.pace.as_ref()).map(|pace| pace.per_s);
    let share_per_s = figures.and_then(|it| it.share).map(|share| share.per_s);
    let refused = figures.map(|it| it.refusals);
    let status = DestinationStatus {
        drains_in: condition.drains_in(destination, pace_per_s, share_per_s, cost, now),
        pace: paces.of(destination),
        refusing: sample.answered(id),
        ..condition.status(destination, refused, stalls.stall_of(id, now), pace_per_s, now)
    };
    sample.keys().add_to(status, id)
}

/// What is wrong: counted by type, and listed if the type is wanted.
struct Wrong<'a> {
    wanted: Option<String>,
    counts: BTreeMap<String, u64>,
    rows: Vec<Row<'a>>,
}

struct Row<'a> {
    alert_type: AlertType,
    name: &'a str,
    id: [u8; 16],
    about: Found<'a>,
}

/// What something that is wrong is about.
enum Found<'a> {
    Destination(&'a Destination, Alert, Box<DestinationStatus>, AlertPolicy),
    Group(&'a GroupBacklog, Vec<Measure>),
    /// With the number of destinations that it stalls.
    Installation(Outage, u64),
}

impl<'a> Wrong<'a> {
    fn add(&mut self, alert_type: AlertType, name: &'a str, id: [u8; 16], about: impl FnOnce() -> Found<'a>) {
        *self.counts.entry(alert_type.as_str().to_owned()).or_default() += 1;
        if self.wanted.as_ref().is_none_or(|wanted| wanted == alert_type.as_str()) {
            self.rows.push(Row { alert_type, name, id, about: about() });
        }
    }
}

impl Row<'_> {
    fn view(&self, policy: &AlertPolicy, now: Timestamp) -> types::ActiveAlert {
        let (destination, group, tenant, data) = match &self.about {
            Found::Destination(destination, alert, status, policy) => (
                Some(destination),
                None,
                &*destination.settings.tenant,
                types::AlertData::of_destination(destination, alert, status, policy),
            ),
            Found::Group(GroupBacklog { group, status, .. }, measures) => {
                let alert = GroupAlert::Behind(measures.clone());
                let data = types::AlertData::of_group(group, &alert, status, policy, now);
                (None, Some(group), tenant_code(group.tenant.as_deref()), data)
            }
            Found::Installation(outage, destinations) => {
                (None, None, ALL_TENANTS, types::AlertData::of_outage(Some(*outage), *destinations))
            }
        };
        types::ActiveAlert {
            alert_type: self.alert_type.as_str().to_owned(),
            destination_id: destination.map(|destination| destination.id.to_string()),
            destination_name: destination.map(|destination| destination.settings.name.clone()),
            limit_group_id: group.map(|group| group.id.to_string()),
            limit_group_name: group.map(|group| group.name.clone()),
            tenant: tenant.to_owned(),
            data,
        }
    }
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
fn severity(alert_type: AlertType) -> usize {
    LASTING.iter().position(|known| *known == alert_type).unwrap_or(LASTING.len())
}
