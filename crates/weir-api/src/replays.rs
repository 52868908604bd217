//! Replays: ended deliveries sent again in bulk, beside live traffic.

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
    problem::{ApiResult, Problem},
    query::Query,
    settings::check_tenant,
    state::{Api, ApiState},
    views::{CountView, List},
};

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
    params(("dry_run" = Option<bool>, Query, description = "Only count the deliveries that would be sent again")),
    request_body = crate::openapi::ReplayRequest,
    responses(
        (status = 200, description = "The number of deliveries that would be sent again (`dry_run`)", body = CountView),
        (status = 202, description = "The replay has started", body = ReplayView),
    )
)]
pub(crate) async fn create(State(api): State<Api>, mut query: Query, request: Request) -> ApiResult<Response> {
    let dry_run = query.dry_run();
    query.close()?;
    // A missing body would mean every dead and failed delivery. A client must state this explicitly.
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
    tracing::info!(replay = %id, total, "replay started");
    Ok((StatusCode::ACCEPTED, Json(find(&api, id).await?)).into_response())
}

/// List replays
#[utoipa::path(
    get, path = "/v1/replays", operation_id = "list_replays", tag = "replays",
    params(crate::openapi::PageParameters),
    responses((status = 200, description = "One page, newest first", body = List<ReplayView>))
)]
pub(crate) async fn list(State(api): State<Api>, mut query: Query) -> ApiResult<Json<List<ReplayView>>> {
    let page = Listing::Replays.request(&mut query);
    query.close()?;
    let (page, now) = (api.store.list_replays(page).await?, api.clock.now());
    Ok(Listing::Replays.page(page, |replay| ReplayView::of(replay, now)))
}

/// Show the progress of a replay
#[utoipa::path(
    get, path = "/v1/replays/{id}", operation_id = "show_replay", tag = "replays",
    params(("id" = crate::openapi::ReplayIdText, Path, description = "`rpl_…`")),
    responses((status = 200, description = "The replay", body = ReplayView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    PathId(id): PathId<ReplayId>,
    query: Query,
) -> ApiResult<Json<ReplayView>> {
    query.close()?;
    find(&api, id).await.map(Json)
}

/// Cancel a replay
///
/// Its unsent deliveries return to their previous state, such as `dead` or `failed`, so another replay can select them.
/// Deliveries in state `delivering` end as usual.
#[utoipa::path(
    post, path = "/v1/replays/{id}/cancel", operation_id = "cancel_replay", tag = "replays",
    params(("id" = crate::openapi::ReplayIdText, Path, description = "`rpl_…`")),
    responses(
        (status = 200, description = "Cancelled", body = ReplayView),
        (status = 409, response = inline(crate::openapi::Refused)),
    )
)]
pub(crate) async fn cancel(
    State(api): State<Api>,
    PathId(id): PathId<ReplayId>,
    query: Query,
) -> ApiResult<Json<ReplayView>> {
    query.close()?;
    match api.store.cancel_replay(id, api.clock.now()).await? {
        None => return Err(missing(id)),
        Some(ReplayPhase::Completed) => {
            return Err(Problem::conflict("the replay is completed and cannot be cancelled"));
        }
        // The scheduler would do the cancellation a moment later. The API does it before it answers, so that few
        // deliveries are sent after the answer.
        Some(_) => while api.store.step_replay(id, api.clock.now()).await?.more {},
    }
    tracing::info!(replay = %id, "replay cancelled");
    find(&api, id).await.map(Json)
}

async fn find(api: &ApiState, id: ReplayId) -> ApiResult<ReplayView> {
    let replay = api.store.replay(id).await?.ok_or_else(|| missing(id))?;
    Ok(ReplayView::of(replay, api.clock.now()))
}

fn missing(id: ReplayId) -> Problem {
    Problem::not_found(format!("there is no replay {id}"))
}

/// A replay and its progress. `total` is the sum of the four counts after it. It may change slightly until every
/// delivery has been moved into the replay.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Replay)]
pub(crate) struct ReplayView {
    #[schema(value_type = String, example = "rpl_01h2xcejqtf2nbrexx3vqjhp41")]
    id: ReplayId,
    /// `running`, `completed` or `cancelled`.
    #[schema(value_type = String, example = "running")]
    state: &'static str,
    /// The filter of the replay, here and in the next fields.
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
    /// Deliveries that are `failed` or `dead` again.
    failed: u64,
    /// Deliveries that were cancelled individually, purged, superseded or expired meanwhile.
    cancelled: u64,
    /// Deliveries that have not ended; for a cancelled replay, deliveries returned to their previous state.
    remaining: u64,
    /// The estimated time until the end, at the average rate so far; null if unknown.
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

/// The time for the remaining deliveries at the average rate so far, rounded up.
fn eta_s(ended: u64, remaining: u64, elapsed: Duration) -> Option<u64> {
    if remaining == 0 {
        return Some(0);
    }
    (ended > 0).then(|| (elapsed.as_secs_f64() * remaining as f64 / ended as f64).ceil() as u64)
}

/// Reads the filter of a request.
fn read(body: Value) -> ApiResult<ReplayFilter> {
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
        body.refuse("states", format!("must name one or more of {allowed}"));
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
    fn an_empty_body_selects_dead_and_failed_deliveries() {
        let filter = read(json!({})).unwrap();
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
