//! Replays: what has ended sent again, beside live traffic.

use std::time::Duration;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;
use weir_core::{DeliveryState, DestinationId, ReplayId, Timestamp, pattern::EventPattern};
use weir_store::{DeliveryFilter, NewReplay, REPLAYABLE, Replay, ReplayFilter, ReplayPhase};

use crate::{
    extract::{self, PathId},
    fields::{Errors, Object},
    page::Listing,
    problem::{Answer, Problem},
    query::Query,
    settings::check_tenant,
    state::{Api, ApiState},
    views::{CountView, List},
};

const NO_BODY: &str = "is required: `{}` sends again everything that is dead or failed, and its fields narrow that";

/// Send again what has ended
///
/// Everything that is `dead` or `failed` by default (send `{}` for that); the fields narrow it. Events are sent as they were,
/// under the same `webhook-id`, and each delivery has all its retries anew, counted from the replay on. A replay has a lane of
/// its own within its destinations' limits: live traffic goes first, the replay gets what that leaves, and a tenth of the sends
/// while both wait. What was deleted with its destination, what has expired, and what another replay still has in hand is left
/// out. `dry_run=true` counts and does nothing.
#[utoipa::path(
    post, path = "/v1/replays", operation_id = "create_replay", tag = "replays",
    params(("dry_run" = Option<bool>, Query, description = "Only count what would be sent again")),
    request_body = crate::openapi::ReplayRequest,
    responses(
        (status = 200, description = "How many deliveries would be sent again (`dry_run`)", body = CountView),
        (status = 202, description = "The replay has begun", body = ReplayView),
    )
)]
pub(crate) async fn create(State(api): State<Api>, mut query: Query, request: Request) -> Answer<Response> {
    let dry_run = query.dry_run();
    query.close()?;
    // Nothing would be everything, which must be said.
    let body = extract::json_or_nothing(&api, request).await?;
    let filter = read(body.ok_or_else(|| Problem::invalid_field("", NO_BODY))?)?;
    if let Some(id) = filter.deliveries.destination_id
        && api.store.destination(id).await?.is_none()
    {
        return Err(Problem::invalid_field("/destination", format!("there is no destination {id}")));
    }
    let created_at = api.clock.now();
    let total = api.store.count_replay(&filter, created_at).await?;
    if dry_run {
        return Ok(Json(CountView { total }).into_response());
    }
    let id = ReplayId::new(created_at, rand::random());
    api.store.create_replay(NewReplay { id, filter, created_at }, total).await?;
    tracing::info!(replay = %id, total, "a replay has begun");
    Ok((StatusCode::ACCEPTED, Json(find(&api, id).await?)).into_response())
}

/// List replays
#[utoipa::path(
    get, path = "/v1/replays", operation_id = "list_replays", tag = "replays",
    params(crate::openapi::PageParameters),
    responses((status = 200, description = "One page, newest first", body = List<ReplayView>))
)]
pub(crate) async fn list(State(api): State<Api>, mut query: Query) -> Answer<Json<List<ReplayView>>> {
    let page = Listing::Replays.request(&mut query);
    query.close()?;
    let (page, now) = (api.store.list_replays(page).await?, api.clock.now());
    Ok(Listing::Replays.page(page, |replay| ReplayView::of(replay, now)))
}

/// Show how far a replay has got
#[utoipa::path(
    get, path = "/v1/replays/{id}", operation_id = "show_replay", tag = "replays",
    params(("id" = String, Path, description = "`rpl_…`")),
    responses((status = 200, description = "The replay", body = ReplayView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    PathId(id): PathId<ReplayId>,
    query: Query,
) -> Answer<Json<ReplayView>> {
    query.close()?;
    find(&api, id).await.map(Json)
}

/// Cancel a replay
///
/// What it has not sent yet is again what it was before, `dead` or `failed` for instance, so that another replay finds it. What
/// is being delivered ends by itself.
#[utoipa::path(
    post, path = "/v1/replays/{id}/cancel", operation_id = "cancel_replay", tag = "replays",
    params(("id" = String, Path, description = "`rpl_…`")),
    responses(
        (status = 200, description = "Cancelled", body = ReplayView),
        (status = 409, response = inline(crate::openapi::Refused)),
    )
)]
pub(crate) async fn cancel(
    State(api): State<Api>,
    PathId(id): PathId<ReplayId>,
    query: Query,
) -> Answer<Json<ReplayView>> {
    query.close()?;
    match api.store.cancel_replay(id, api.clock.now()).await? {
        None => return Err(missing(id)),
        Some(ReplayPhase::Completed) => {
            return Err(Problem::conflict("the replay is completed and cannot be cancelled"));
        }
        // Nobody waits for the steps to come: the less is sent after the answer, the better.
        Some(_) => while api.store.step_replay(id, api.clock.now()).await?.more {},
    }
    tracing::info!(replay = %id, "cancelled a replay");
    find(&api, id).await.map(Json)
}

async fn find(api: &ApiState, id: ReplayId) -> Answer<ReplayView> {
    let replay = api.store.replay(id).await?.ok_or_else(|| missing(id))?;
    Ok(ReplayView::of(replay, api.clock.now()))
}

fn missing(id: ReplayId) -> Problem {
    Problem::not_found(format!("there is no replay {id}"))
}

/// A replay and how far it has got. `total` is the sum of the four counts after it; it may change a little until everything is
/// in the lane.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Replay)]
pub(crate) struct ReplayView {
    #[schema(value_type = String, example = "rpl_01h2xcejqtf2nbrexx3vqjhp41")]
    id: ReplayId,
    /// `running`, `completed` or `cancelled`.
    #[schema(value_type = String, example = "running")]
    state: &'static str,
    /// What it was asked for.
    #[schema(value_type = Vec<String>)]
    states: Vec<&'static str>,
    #[schema(value_type = Option<String>)]
    destination: Option<DestinationId>,
    tenant: Option<String>,
    event_type: Option<String>,
    error: Option<String>,
    #[schema(value_type = Option<String>, format = DateTime)]
    from: Option<Timestamp>,
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    total: u64,
    delivered: u64,
    /// `failed` or `dead` once more.
    failed: u64,
    /// Cancelled one by one, purged, superseded or expired meanwhile.
    cancelled: u64,
    /// What has not ended yet; of a cancelled replay, what it left as it was.
    remaining: u64,
    /// At the pace up to now; null while that cannot be told.
    eta_s: Option<u64>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = Option<String>, format = DateTime)]
    ended_at: Option<Timestamp>,
}

impl ReplayView {
    fn of(replay: Replay, now: Timestamp) -> Self {
        let Replay { id, filter, phase, figures, created_at, ended_at } = replay;
        let state = match phase {
            ReplayPhase::Moving | ReplayPhase::Moved => "running",
            ReplayPhase::Completed => "completed",
            ReplayPhase::Cancelling | ReplayPhase::Cancelled => "cancelled",
        };
        let remaining = figures.remaining();
        Self {
            id,
            state,
            states: filter.states.iter().map(|state| state.as_str()).collect(),
            destination: filter.deliveries.destination_id,
            tenant: filter.deliveries.tenant,
            event_type: filter.deliveries.event_type.map(|pattern| pattern.to_string()),
            error: filter.deliveries.error.map(|error| error.to_string()),
            from: filter.deliveries.from,
            to: filter.deliveries.to,
            total: figures.total,
            delivered: figures.delivered,
            failed: figures.failed,
            cancelled: figures.cancelled,
            remaining,
            eta_s: if state == "running" { eta_s(figures.ended(), remaining, now.since(created_at)) } else { None },
            created_at,
            ended_at,
        }
    }
}

/// How long the rest takes at the pace of what has ended, rounded up.
fn eta_s(ended: u64, remaining: u64, passed: Duration) -> Option<u64> {
    if remaining == 0 {
        return Some(0);
    }
    (ended > 0).then(|| (passed.as_secs_f64() * remaining as f64 / ended as f64).ceil() as u64)
}

/// What a request asks for.
fn read(body: Value) -> Answer<ReplayFilter> {
    let mut errors = Errors::default();
    let filter = Object::open(body, "", &mut errors).map(|mut body| {
        let states = states(&mut body);
        let deliveries = DeliveryFilter {
            destination_id: body.parsed("destination"),
            tenant: tenant(&mut body),
            event_type: body.parsed::<EventPattern>("event_type"),
            error: body.parsed("error"),
            from: body.parsed("from"),
            to: body.parsed("to"),
            ..DeliveryFilter::default()
        };
        if let (Some(from), Some(to)) = (deliveries.from, deliveries.to)
            && from > to
        {
            body.refuse("to", "must not be before `from`");
        }
        body.close(&[]);
        ReplayFilter { states, deliveries }
    });
    match filter {
        Some(filter) if errors.is_empty() => Ok(filter),
        _ => Err(Problem::invalid(errors.into_vec())),
    }
}

fn states(body: &mut Object<'_>) -> Vec<DeliveryState> {
    let Some(named) = body.array("states") else { return vec![DeliveryState::Dead, DeliveryState::Failed] };
    let allowed = REPLAYABLE.map(|state| format!("`{}`", state.as_str())).join(", ");
    if named.is_empty() {
        body.refuse("states", format!("must name some of {allowed}"));
    }
    let pointer = body.pointer_to("states");
    let mut states = Vec::new();
    for (index, state) in named.iter().enumerate() {
        match state.as_str().and_then(DeliveryState::parse).filter(|state| REPLAYABLE.contains(state)) {
            Some(state) if states.contains(&state) => {}
            Some(state) => states.push(state),
            None => body.errors().add(format!("{pointer}/{index}"), format!("must be one of {allowed}")),
        }
    }
    states
}

fn tenant(body: &mut Object<'_>) -> Option<String> {
    let tenant = body.string("tenant")?;
    if let Err(detail) = check_tenant(&tenant) {
        body.refuse("tenant", detail);
    }
    Some(tenant)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn without_fields_what_is_dead_or_failed_is_sent_again() {
        let filter = read(json!({})).unwrap();
        assert_eq!(filter.states, [DeliveryState::Dead, DeliveryState::Failed]);
        assert_eq!(filter.deliveries, DeliveryFilter::default());
    }

    #[test]
    fn the_time_left_follows_from_the_pace() {
        let passed = Duration::from_secs(10);
        assert_eq!(eta_s(0, 5, passed), None);
        assert_eq!(eta_s(0, 0, passed), Some(0));
        assert_eq!(eta_s(100, 1_001, passed), Some(101));
    }
}
