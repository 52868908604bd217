//! Replays: ended deliveries sent again in bulk, beside live traffic.

use std::{collections::HashMap, sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::json;
use weir_api_types as types;
use weir_core::{
    DeliveryState, Destination, DestinationId, LimitKey, ReplayId, Timestamp, access::TenantScope, activity::Action,
};
use weir_store::{
    Created, DeliveryFilter, NewReplay, Page, PageRequest, Replay, ReplayFigures, ReplayFilter, ReplayPhase,
};

use super::{activity::Author, deliveries::destinations_wait_for, destinations, dry_run::DryRun, edit::Edit};
use crate::{
    auth::Caller,
    errors::Errors,
    figures::Reason,
    overview::{Row, Sample},
    problem::{ApiResult, Problem, Refused},
    readers::{
        body::PathId,
        fields::object,
        idempotency::{FirstAnswer, Idempotency, IdempotencyParameters, Keyed},
        page::{self, List, Listing, PageParameters},
        query::Query,
        texts::{
            AttemptErrorText, DestinationIdText, EventPatternText, LimitKeyText, ReplayIdText, ReplayableStateText,
            TenantText, TimeText,
        },
    },
    state::{Api, ApiState},
};

/// The list of replays.
pub(crate) enum Replays {}

impl Listing for Replays {
    const TAG: u8 = b'r';
}

type ReplayPage = PageParameters<Replays>;

object! {
    /// The deliveries to send again; by default all dead and failed ones.
    pub(crate) struct ReplayRequest {
        /// One or more of `failed`, `dead`, `cancelled` and `delivered`.
        #[schema(min_items = 1, default = json!(["dead", "failed"]))]
        states: Option<Vec<ReplayableStateText>>,
        /// Only deliveries to this destination: `dst_…`.
        destination: Option<DestinationIdText>,
        /// Only this tenant.
        tenant: Option<TenantText>,
        /// Only events of this type: exact (`video.created`), a prefix (`video.*`) or `*`.
        event_type: Option<EventPatternText>,
        /// Only deliveries whose last attempt had this error, as in the list of deliveries: `timeout`, `5xx`, `503`.
        error: Option<AttemptErrorText>,
        /// Only deliveries with this limit key; needs `destination`. `""`: of events without a key.
        limit_key: Option<LimitKeyText>,
        /// Only events created at or after this instant (RFC 3339).
        from: Option<TimeText>,
        /// Only events created before this instant (RFC 3339), which must not be before `from`.
        to: Option<TimeText>,
    }
    check = Self::check;
}

impl ReplayRequest {
    fn check(&self, at: &str, errors: &mut Errors) {
        if let (Some(TimeText(from)), Some(TimeText(to))) = (&self.from, &self.to)
            && from > to
        {
            errors.add(format!("{at}/to"), "must not be before `from`");
        }
        let has_destination = self.destination.is_some() || errors.has(&format!("{at}/destination"));
        if self.limit_key.is_some() && !has_destination {
            errors.add(format!("{at}/limit_key"), "needs `destination`, to which the key belongs: name it too");
        }
    }
}

impl From<ReplayRequest> for ReplayFilter {
    fn from(request: ReplayRequest) -> Self {
        let mut states = Vec::new();
        match request.states {
            // By default the replay selects the dead letters.
            None => states.extend([DeliveryState::Dead, DeliveryState::Failed]),
            Some(named) => {
                // A state that is named twice counts once.
                for ReplayableStateText(state) in named {
                    if !states.contains(&state) {
                        states.push(state);
                    }
                }
            }
        }
        let deliveries = DeliveryFilter {
            destination_id: request.destination.map(|id| id.0),
            tenants: request.tenant.map_or(TenantScope::All, |tenant| TenantScope::one(tenant.0)),
            event_type: request.event_type.map(|pattern| pattern.0),
            error: request.error.map(|error| error.0),
            limit_key: request.limit_key.map(|key| key.0),
            from: request.from.map(|from| from.0),
            to: request.to.map(|to| to.0),
            ..DeliveryFilter::default()
        };
        Self { states, deliveries }
    }
}

const NO_BODY: &str = "is required: `{}` replays every dead and failed delivery, and its fields are filters";

/// Send ended deliveries again
///
/// By default (with the body `{}`) it replays every `dead` and `failed` delivery; the fields are filters. Events are
/// sent unchanged, with the same `webhook-id`, and each delivery gets all its retries again, counted from the start of
/// the replay. A replay has its own share of each destination's limits: live traffic goes first, the replay uses the
/// sends that live traffic leaves, and it gets a tenth of the sends while both wait. Deliveries of deleted
/// destinations, expired deliveries and deliveries of another open replay are left out. `dry_run=true` only counts.
#[utoipa::path(
    post, path = "/v1/replays", operation_id = "create_replay", tag = "replays",
    params(DryRun, IdempotencyParameters),
    request_body = ReplayRequest,
    responses(
        (status = 200, description = "The number of deliveries that would be sent again (`dry_run`)", body = types::Count),
        (status = 202, description = "The replay has started", body = types::Replay),
    )
)]
pub(crate) async fn create(
    State(api): State<Api>,
    caller: Caller,
    author: Author,
    Query(dry_run): Query<DryRun>,
    Keyed { body: request, idempotency }: Keyed<Option<ReplayRequest>>,
) -> ApiResult<Response> {
    if !dry_run.only_counts()
        && let Some(first) = idempotency.first_answer(&api).await?
    {
        return Ok(first.into_response());
    }
    let selection = Selection::of(&api, &caller, request).await?;
    // The answer of a dry run, or the first total of the replay.
    let created_at = api.clock.now();
    let total = api.store.count_replay(&selection.filter, created_at).await?;
    match dry_run.only_counts() {
        true => Ok(Json(types::Count { total }).into_response()),
        false => selection.replay(&api, author, &idempotency, total, created_at).await,
    }
}

/// What a request selects.
struct Selection {
    filter: ReplayFilter,
    /// The only tenant, and the only destination.
    tenant: Option<String>,
    destination: Option<Arc<Destination>>,
}

impl Selection {
    async fn of(api: &ApiState, caller: &Caller, request: Option<ReplayRequest>) -> ApiResult<Self> {
        // A missing body would mean every dead and failed delivery. A client must state this explicitly.
        let mut filter = ReplayFilter::from(request.ok_or_else(|| Problem::invalid_field("", NO_BODY))?);
        filter.deliveries.tenants = caller.scope(filter.only_tenant().map(str::to_owned))?;
        let Some(id) = filter.deliveries.destination_id else {
            let tenant = filter.only_tenant().map(str::to_owned);
            return Ok(Self { filter, tenant, destination: None });
        };
        // An unknown destination would select nothing, so it is refused.
        let found = api.store.destination(id).await?.filter(|found| caller.sees(&found.settings.tenant));
        let found = found.ok_or_else(|| {
            let detail = format!("there is no destination {id}: name another one, or leave it out");
            Problem::invalid_field("/destination", detail)
        })?;
        let tenant = found.settings.tenant.clone();
        // A replay of one destination is of one tenant, so the keys of this tenant see it.
        if filter.only_tenant().is_none() {
            filter.deliveries.tenants = TenantScope::one(tenant.clone());
        }
        Ok(Self { filter, tenant: Some(tenant), destination: Some(found) })
    }

    /// Stores only the replay. The scheduler moves the deliveries into it, step by step.
    async fn replay(
        self,
        api: &ApiState,
        author: Author,
        idempotency: &Idempotency,
        total: u64,
        created_at: Timestamp,
    ) -> ApiResult<Response> {
        let Self { filter, tenant, destination } = self;
        let id = ReplayId::new(created_at, rand::random());
        let selected = &filter.deliveries;
        let after = json!({
            "states": filter.states.iter().map(|state| state.as_str()).collect::<Vec<_>>(),
            "event_type": selected.event_type.as_ref().map(ToString::to_string),
            "error": selected.error.map(|error| error.to_string()),
            "limit_key": selected.limit_key.as_ref().map(LimitKey::as_str),
            "from": selected.from,
            "to": selected.to,
            "total": total,
        });
        let activity = author.does(Action::ReplayCreated, created_at).of_replay(id, selected.destination_id, tenant);
        let activity = activity.changing(None, Some(after));
        let figures = ReplayFigures { total, ..ReplayFigures::default() };
        let shown =
            Replay { id, filter: filter.clone(), phase: ReplayPhase::Moving, figures, created_at, ended_at: None };
        let waits_for = destinations_wait_for(api, destination.as_deref().into_iter(), created_at).await?;
        let view = view(shown, &waits_for, &*api.live.sample().await?, created_at);
        let creation = idempotency.creation(activity, &FirstAnswer::new(StatusCode::ACCEPTED, &view)?, created_at)?;
        let replay = NewReplay { id, filter, created_at };
        if let Created::Before(stored) = api.store.create_replay(replay, total, creation).await? {
            return Ok(idempotency.read(stored)?.into_response());
        }
        tracing::info!(replay = %id, total, "replay started");
        Ok((StatusCode::ACCEPTED, Json(view)).into_response())
    }
}

/// List replays
#[utoipa::path(
    get, path = "/v1/replays", operation_id = "list_replays", tag = "replays",
    params(ReplayPage),
    responses((status = 200, description = "One page, newest first", body = List<types::Replay>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(page): Query<ReplayPage>,
) -> ApiResult<Json<List<types::Replay>>> {
    let page = visible_page(&api, &caller, page.request).await?;
    let found =
        destinations::by_id(&api, page.rows.iter().filter_map(|replay| replay.filter.deliveries.destination_id))
            .await?;
    let now = api.clock.now();
    let waits_for = destinations_wait_for(&api, found.values().map(AsRef::as_ref), now).await?;
    let sample = api.live.sample().await?;
    let view = |replay: Replay| view(replay, &waits_for, &sample, now);
    Ok(page::view::<Replays, _, _>(page, |replay| *replay.id.as_bytes(), view))
}

/// Show the progress of a replay
#[utoipa::path(
    get, path = "/v1/replays/{id}", operation_id = "show_replay", tag = "replays",
    params(("id" = ReplayIdText, Path, description = "`rpl_…`")),
    responses((status = 200, description = "The replay", body = types::Replay))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(ReplayIdText(id)): PathId<ReplayIdText>,
    _: Query<()>,
) -> ApiResult<Json<types::Replay>> {
    find(&api, &caller, id).await.map(Json)
}

/// Cancel a replay
///
/// Its unsent deliveries return to their previous state, such as `dead` or `failed`, so another replay can select them.
/// Deliveries in state `delivering` end as usual.
#[utoipa::path(
    post, path = "/v1/replays/{id}/cancel", operation_id = "cancel_replay", tag = "replays",
    params(("id" = ReplayIdText, Path, description = "`rpl_…`")),
    responses(
        (status = 200, description = "Cancelled", body = types::Replay),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn cancel(
    Edit { api, id: ReplayIdText(id), caller, author, .. }: Edit<ReplayIdText>,
) -> ApiResult<Json<types::Replay>> {
    let (filter, now) = (found(&api, &caller, id).await?.filter, api.clock.now());
    let destination_id = filter.deliveries.destination_id;
    let tenant = match (filter.only_tenant(), destination_id) {
        (None, Some(id)) => api.store.destination(id).await?.map(|found| found.settings.tenant.clone()),
        (tenant, _) => tenant.map(str::to_owned),
    };
    let activity = author.does(Action::ReplayCancelled, now).of_replay(id, destination_id, tenant);
    match api.store.cancel_replay(id, now, activity).await? {
        None => return Err(missing(id)),
        Some(ReplayPhase::Completed) => {
            return Err(Problem::conflict("the replay is completed and cannot be cancelled"));
        }
        // The scheduler would do the cancellation a moment later. The API does it before it answers, so that few
        // deliveries are sent after the answer.
        Some(_) => while api.store.step_replay(id, api.clock.now()).await?.more {},
    }
    tracing::info!(replay = %id, "replay cancelled");
    find(&api, &caller, id).await.map(Json)
}

/// A page of the replays that the caller sees. The id of a hidden replay never becomes a cursor.
async fn visible_page(api: &ApiState, caller: &Caller, mut request: PageRequest) -> ApiResult<Page<Replay>> {
    if caller.sees_all() {
        return Ok(api.store.list_replays(request).await?);
    }
    let mut rows: Vec<Replay> = Vec::new();
    // `Page::of` needs one row more than the page has.
    while rows.len() <= request.limit as usize {
        let read = api.store.list_replays(request).await?;
        rows.extend(read.rows.into_iter().filter(|replay| is_visible(replay, caller)));
        let Some(before) = read.next else { break };
        request.before = Some(before);
    }
    Ok(Page::of(rows, request, |replay| *replay.id.as_bytes()))
}

/// Whether the caller sees every tenant of the replay. A replay without a tenant takes deliveries of all.
fn is_visible(replay: &Replay, caller: &Caller) -> bool {
    caller.sees_scope(&replay.filter.deliveries.tenants)
}

/// A replay that the caller sees.
async fn found(api: &ApiState, caller: &Caller, id: ReplayId) -> ApiResult<Replay> {
    api.store.replay(id).await?.filter(|replay| is_visible(replay, caller)).ok_or_else(|| missing(id))
}

async fn find(api: &ApiState, caller: &Caller, id: ReplayId) -> ApiResult<types::Replay> {
    let replay = found(api, caller, id).await?;
    let destination = match replay.filter.deliveries.destination_id {
        Some(id) => api.store.destination(id).await?,
        None => None,
    };
    let now = api.clock.now();
    let waits_for = destinations_wait_for(api, destination.as_deref().into_iter(), now).await?;
    Ok(view(replay, &waits_for, &*api.live.sample().await?, now))
}

fn missing(id: ReplayId) -> Problem {
    Problem::not_found(format!("there is no replay {id}"))
}

/// `waits_for`: what destinations wait for, that of the replay among them if it has only one.
fn view(
    replay: Replay,
    waits_for: &HashMap<DestinationId, types::WaitsFor>,
    sample: &Sample,
    now: Timestamp,
) -> types::Replay {
    let Replay { id, filter, phase, figures, created_at, ended_at } = replay;
    // Clients do not see whether the deliveries are still being moved.
    let state = match phase {
        ReplayPhase::Moving | ReplayPhase::Moved => "running",
        ReplayPhase::Completed => "completed",
        ReplayPhase::Cancelling | ReplayPhase::Cancelled => "cancelled",
    };
    let remaining = figures.remaining();
    let destination = filter.deliveries.destination_id.filter(|_| state == "running");
    types::Replay {
        id: id.to_string(),
        state: state.to_owned(),
        states: filter.states.iter().map(|state| state.as_str().to_owned()).collect(),
        destination: filter.deliveries.destination_id.map(|id| id.to_string()),
        tenant: filter.only_tenant().map(str::to_owned),
        tenants: filter.deliveries.tenants.tenants().map(|tenants| tenants.iter().cloned().collect()),
        event_type: filter.deliveries.event_type.map(|pattern| pattern.to_string()),
        error: filter.deliveries.error.map(|error| error.to_string()),
        from: filter.deliveries.from,
        to: filter.deliveries.to,
        total: figures.total,
        delivered: figures.delivered,
        failed: figures.failed,
        cancelled: figures.cancelled,
        remaining,
        // Only a running replay has an estimated end.
        eta_s: if state == "running" {
            // What has been moved is in the backlog.
            let more = if phase == ReplayPhase::Moving { remaining } else { 0 };
            let at_most = destination.and_then(|id| with_backlog(sample.row(id)?, more));
            let so_far = eta_s(figures.ended(), remaining, now.since(created_at));
            [so_far, at_most].into_iter().flatten().min()
        } else {
            None
        },
        waits_for: destination.and_then(|id| waits_for.get(&id).cloned()),
        created_at,
        ended_at,
    }
}

/// The time until a destination has sent its backlog and as many more, which may be a part of it. While
/// live deliveries wait, the replay gets a small part of the rate; this is when both are done. `None`: it sends nothing now,
/// more arrives than it may send, or a part of it may take longer than the rest.
fn with_backlog(Row { destination, figures }: &Row, more: u64) -> Option<u64> {
    let bounded = [Reason::Limit, Reason::Group, Reason::Adaptive, Reason::Slow];
    if destination.settings.key_limits.is_some() || !figures.reason.is_none_or(|reason| bounded.contains(&reason)) {
        return None;
    }
    let per_s = figures.effective_per_s? - figures.inflow_per_s;
    let waiting = (figures.counts.waiting() + more) as f64;
    (per_s > 0.0).then(|| (waiting / per_s).ceil() as u64)
}

/// The time for the remaining deliveries at the average rate so far, rounded up.
fn eta_s(ended: u64, remaining: u64, elapsed: Duration) -> Option<u64> {
    if remaining == 0 {
        return Some(0);
    }
    (ended > 0).then(|| (elapsed.as_secs_f64() * remaining as f64 / ended as f64).ceil() as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::readers::fields;

    #[test]
    fn an_empty_body_selects_dead_and_failed_deliveries() {
        let filter = ReplayFilter::from(fields::read::<ReplayRequest>(json!({})).unwrap());
        assert_eq!(filter.states, [DeliveryState::Dead, DeliveryState::Failed]);
        assert_eq!(filter.deliveries, DeliveryFilter::default());
    }

    #[test]
    fn the_remaining_time_follows_from_the_average_rate() {
        let elapsed = Duration::from_secs(10);
        assert_eq!(eta_s(0, 5, elapsed), None);
        assert_eq!(eta_s(0, 0, elapsed), Some(0));
        assert_eq!(eta_s(100, 1_001, elapsed), Some(101));
    }
}
