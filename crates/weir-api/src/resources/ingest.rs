//! Accepts events: the hot path of the API.
//!
//! A body is parsed in one pass without a copy of `data`; the only copy is made for the frozen body ([`read`]). A body
//! that does not parse is read a second time ([`diagnosis`]) to report all its errors.

mod diagnosis;
mod parts;
mod read;
mod repeated;
mod request;

use std::{collections::HashMap, sync::Arc};

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::value::RawValue;
use utoipa::IntoParams;
use weir_api_types as types;
use weir_core::{DestinationId, Timestamp, TraceParent, event::Event};
use weir_queue::Wake;
use weir_store::{IngestRefusal, Ingested, NewEvent};

use self::{
    parts::Parts,
    read::KEY_HEADER,
    request::{BorrowedBatch, EventRequest, MAX_BATCH},
};
use crate::{
    auth::Caller,
    event_types::Checks,
    fair_share::Seat,
    meters,
    problem::{self, ApiResult, Problem, ProblemKind},
    readers::{
        body::{event_bytes, too_large},
        query::Query,
        texts::IdempotencyKeyText,
    },
    spans::{self, AcceptedEvents, TraceParameters},
    state::{Api, ApiState},
};

/// A larger body is parsed on a thread of its own.
const PARSED_AT_ONCE: usize = 64 * 1024;
/// The same for an event whose data is checked by a schema, which may take ten times as long.
const CHECKED_AT_ONCE: usize = 8 * 1024;
/// The largest body of a batch, unless the limit of one event is larger.
const MAX_BATCH_BYTES: usize = 32 * 1024 * 1024;

/// The idempotency key as a header.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
#[expect(dead_code, reason = "describes the header, which `read::header_key` reads")]
struct KeyParameters {
    /// The same as the field `idempotency_key`
    #[param(rename = "Idempotency-Key", value_type = IdempotencyKeyText, required = false)]
    key: Option<String>,
}

/// Send an event
///
/// The event goes to the destinations in `destinations`, or to every destination of the tenant whose `event_types`
/// and `filter` match. The answer is sent after the commit, so an accepted event is not lost.
#[utoipa::path(
    post, path = "/v1/events", operation_id = "send_event", tag = "events", request_body = EventRequest,
    params(KeyParameters, TraceParameters),
    responses(
        (status = 202, description = "Stored", body = types::AcceptedEvent),
        (status = 200, description = "This event was stored before, under the same idempotency key; nothing was stored now", body = types::AcceptedEvent),
    )
)]
pub(crate) async fn post(
    State(api): State<Api>,
    caller: Caller,
    _: Query<()>,
    request: Request,
) -> ApiResult<Response> {
    let parent = spans::parent(request.headers());
    let handle = async |trace, accepted: &mut AcceptedEvents| accept_one(&api, &caller, request, trace, accepted).await;
    spans::in_span(api.spans.as_deref(), &*api.clock, "/v1/events", parent, handle).await
}

async fn accept_one(
    api: &ApiState,
    caller: &Caller,
    request: Request,
    trace: Option<TraceParent>,
    accepted: &mut AcceptedEvents,
) -> ApiResult<Response> {
    let header_key = read::header_key(request.headers())?;
    // Until the answer, the body counts in the budget: the event that waits for its commit takes as much memory.
    let bytes = Arc::new(event_bytes(&api.bodies, request, api.max_event_bytes).await?);
    let now = api.clock.now();
    let checks = api.event_types.checks(&*api.store).await?;
    let event = if bytes.len() <= read_at_once(checks.as_ref(), CHECKED_AT_ONCE) {
        read::event(&bytes, header_key, caller, now, 0, checks.as_ref())?
    } else {
        let turn = turn(api, caller, checks.as_ref()).await?;
        let (bytes, caller) = (Arc::clone(&bytes), caller.clone());
        let read = move || {
            let _turn = turn;
            read::event(&bytes, header_key, &caller, now, 0, checks.as_ref())
        };
        apart(read).await??
    };
    let event = in_trace(event, trace);
    let view = store_one(api, event).await?;
    *accepted = AcceptedEvents { event_count: 1, event_id: Some(view.id) };
    let status = if view.duplicate { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(view)).into_response())
}

/// Send up to 1000 events
///
/// Each event is handled independently: valid events are stored, and the result of an invalid event is an `error`. A
/// batch with very many deliveries is stored in parts. If storing fails or takes too long after the first part, the
/// events that are not stored have an `error` to say so: send these again.
#[utoipa::path(
    post, path = "/v1/events/batch", operation_id = "send_events", tag = "events", request_body = BorrowedBatch<'static>,
    params(TraceParameters),
    responses(
        (status = 202, description = "At least one event was stored or already existed", body = types::BatchAnswer),
        (status = 422, description = "No event was valid", body = types::BatchProblem,
            content_type = "application/problem+json"),
    )
)]
pub(crate) async fn post_batch(
    State(api): State<Api>,
    caller: Caller,
    _: Query<()>,
    request: Request,
) -> ApiResult<Response> {
    if request.headers().contains_key(KEY_HEADER) {
        return Err(Problem::invalid_field(
            "/idempotency_key",
            "must be a field of each event in a batch, not a header",
        ));
    }
    let parent = spans::parent(request.headers());
    let handle =
        async |trace, accepted: &mut AcceptedEvents| accept_batch(&api, &caller, request, trace, accepted).await;
    spans::in_span(api.spans.as_deref(), &*api.clock, "/v1/events/batch", parent, handle).await
}

async fn accept_batch(
    api: &ApiState,
    caller: &Caller,
    request: Request,
    trace: Option<TraceParent>,
    accepted: &mut AcceptedEvents,
) -> ApiResult<Response> {
    // A body may be as large as a batch. The limit of one event applies to each member, in `read_member`.
    let bytes = Arc::new(event_bytes(&api.bodies, request, MAX_BATCH_BYTES.max(api.max_event_bytes)).await?);
    // All events get the same time. Their ids keep the order of the batch by their index.
    let (now, max_event_bytes) = (api.clock.now(), api.max_event_bytes);
    let checks = api.event_types.checks(&*api.store).await?;
    // Each event of a batch may take as long as one alone.
    let read = if bytes.len() <= read_at_once(checks.as_ref(), 0) {
        read_batch(&bytes, max_event_bytes, caller, now, checks.as_ref())?
    } else {
        let turn = turn(api, caller, checks.as_ref()).await?;
        let (bytes, caller) = (Arc::clone(&bytes), caller.clone());
        let read = move || {
            let _turn = turn;
            read_batch(&bytes, max_event_bytes, &caller, now, checks.as_ref())
        };
        apart(read).await??
    };
    // One entry per event: the refusal, or `None` for an event to store. The results of the store fill the `None`
    // entries.
    let mut events = Vec::with_capacity(read.len());
    let refused: Vec<Option<Problem>> =
        read.into_iter().map(|event| event.map(|event| events.push(in_trace(event, trace))).err()).collect();
    // An error of the store, unlike a refused event, fails the whole batch, unless a part of it is already stored.
    let mut outcomes = store(api, events).await?.into_iter();
    let events: Vec<types::BatchItem> = refused
        .into_iter()
        .filter_map(|refusal| refusal.map(Err).or_else(|| outcomes.next()))
        .map(|outcome| match outcome {
            Ok(accepted) => types::BatchItem::Accepted(accepted),
            Err(refusal) => types::BatchItem::Refused { error: refusal.document() },
        })
        .collect();
    // The span of the request reports how many events were accepted.
    accepted.event_count = events.iter().filter(|item| matches!(item, types::BatchItem::Accepted(_))).count();
    Ok(answer_batch(events))
}

/// The largest body that is read without a thread of its own. `checked`: if data is checked by schemas.
fn read_at_once(checks: Option<&Checks>, checked: usize) -> usize {
    if checks.is_some_and(Checks::have_schemas) { checked } else { PARSED_AT_ONCE }
}

/// The turn to read a body whose data is checked by schemas.
async fn turn(api: &ApiState, caller: &Caller, checks: Option<&Checks>) -> ApiResult<Option<Seat>> {
    match checks.is_some_and(Checks::have_schemas) {
        true => api.event_types.turn(caller.sharer()).await.map(Some),
        false => Ok(None),
    }
}

/// Calls a function that takes long on a thread of its own: on a thread of the runtime, other requests would wait.
async fn apart<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> ApiResult<T> {
    let called = tokio::task::spawn_blocking(call).await;
    called.map_err(|error| problem::internal("a body could not be read", &error))
}

/// The events of a batch, each with its refusal if it is invalid.
fn read_batch(
    bytes: &[u8],
    limit: usize,
    caller: &Caller,
    now: Timestamp,
    checks: Option<&Checks>,
) -> ApiResult<Vec<ApiResult<NewEvent>>> {
    let batch: BorrowedBatch<'_> = serde_json::from_slice(bytes).map_err(|error| diagnosis::batch(bytes, &error))?;
    if !(1..=MAX_BATCH).contains(&batch.events.len()) {
        return Err(Problem::invalid_field("/events", format!("must contain 1 to {MAX_BATCH} events")));
    }
    let members = batch.events.iter().enumerate();
    Ok(members.map(|(index, raw)| read_member(raw, limit, caller, now, index, checks)).collect())
}

fn in_trace(mut new: NewEvent, trace: Option<TraceParent>) -> NewEvent {
    if trace.is_some() {
        new.event.body = new.event.body.traced(trace);
    }
    new
}

fn read_member(
    raw: &RawValue,
    limit: usize,
    caller: &Caller,
    now: Timestamp,
    index: usize,
    checks: Option<&Checks>,
) -> ApiResult<NewEvent> {
    let bytes = raw.get().as_bytes();
    if bytes.len() > limit {
        return Err(too_large(limit));
    }
    read::event(bytes, None, caller, now, index, checks)
}

/// 202 if any event was accepted. Otherwise a problem that lists every error by its index in the batch and contains the
/// results as an additional member.
fn answer_batch(events: Vec<types::BatchItem>) -> Response {
    if events.iter().any(|item| matches!(item, types::BatchItem::Accepted(_))) {
        return (StatusCode::ACCEPTED, Json(types::BatchAnswer { events })).into_response();
    }
    let mut errors = Vec::new();
    for (index, item) in events.iter().enumerate() {
        let types::BatchItem::Refused { error } = item else { continue };
        let of_event = |pointer: &str, detail: &str| types::FieldError {
            pointer: format!("/events/{index}{pointer}"),
            detail: detail.to_owned(),
        };
        match &*error.errors {
            [] => errors.push(of_event("", &error.detail)),
            some => errors.extend(some.iter().map(|error| of_event(&error.pointer, &error.detail))),
        }
    }
    // The results of the events have the remaining errors.
    errors.truncate(MAX_BATCH);
    let problem = Problem::invalid(errors);
    problem::response(ProblemKind::Invalid, &types::BatchProblem { problem: problem.document(), events })
}

/// Stores one event and wakes its destinations.
pub(crate) async fn store_one(api: &ApiState, event: NewEvent) -> ApiResult<types::AcceptedEvent> {
    let outcome = store(api, vec![event]).await?.pop();
    outcome.ok_or_else(|| problem::internal("the store returned no result", &"for one event"))?
}

/// Stores the events and wakes their destinations.
async fn store(api: &ApiState, events: Vec<NewEvent>) -> ApiResult<Vec<ApiResult<types::AcceptedEvent>>> {
    let events: Arc<[NewEvent]> = events.into();
    let mut parts = Parts::of(events.len());
    while let Some(from) = parts.next() {
        parts.add(store_part(api, &events, from).await)?;
    }
    Ok(parts.into_results())
}

/// Stores the events that fit in one commit, and wakes their destinations.
async fn store_part(
    api: &ApiState,
    events: &Arc<[NewEvent]>,
    from: usize,
) -> ApiResult<Vec<ApiResult<types::AcceptedEvent>>> {
    let storing = api.shedding.storing();
    let place = api.shedding.turns().enter(events[from].client, events.len() - from).await?;
    let outcomes = api.store.ingest_part(events, from).await;
    storing.finish();
    drop(place);
    let outcomes = outcomes.inspect_err(|error| {
        if from > 0 {
            tracing::warn!(%error, stored = from, events = events.len(), "only the first events of a batch were stored");
        }
    })?;
    let mut dues: HashMap<DestinationId, Timestamp> = HashMap::new();
    let (mut stored, mut filtered, mut unwanted) = (0, 0, 0);
    for ingested in outcomes.iter().flatten() {
        if !ingested.duplicate {
            stored += 1;
            filtered += u64::from(ingested.event.filtered);
            unwanted += u64::from(ingested.event.filtered > 0 && ingested.deliveries == 0);
        }
        let due = ingested.event.due();
        for &destination_id in &ingested.wake {
            dues.entry(destination_id).and_modify(|first| *first = due.min(*first)).or_insert(due);
        }
    }
    meters::ingested(stored);
    meters::filtered(filtered, unwanted);
    let wakes: Vec<_> = dues.into_iter().map(|(destination_id, due)| Wake { destination_id, due }).collect();
    api.wake(&wakes).await;
    let posted = events[from..].iter().map(|new| &new.event);
    Ok(outcomes.into_iter().zip(posted).map(|(outcome, posted)| view(outcome, posted)).collect())
}

fn view(outcome: Result<Ingested, IngestRefusal>, posted: &Event) -> ApiResult<types::AcceptedEvent> {
    match outcome {
        Ok(Ingested { event, duplicate: true, .. }) if !repeated::is_same(&event, posted) => {
            Err(repeated::another_event())
        }
        Ok(Ingested { event, deliveries, duplicate, .. }) => Ok(types::AcceptedEvent {
            id: event.id,
            event_type: event.event_type,
            tenant: event.tenant,
            created_at: event.created_at,
            deliver_at: event.options.deliver_at,
            expires_at: event.options.expires_at,
            deliveries,
            filtered: event.filtered,
            duplicate,
        }),
        Err(IngestRefusal::UnknownDestination { index }) => Err(Problem::invalid_field(
            format!("/destinations/{index}"),
            "is not a destination of this tenant: name one of the event's tenant, or leave it out",
        )),
        Err(IngestRefusal::CostAboveLimit { destination_id, limit }) => Err(Problem::invalid_field(
            "/cost",
            format!(
                "must be at most {0}, the limit of {0} per {1} of {destination_id}: split the event, or raise the limit",
                limit.limit, limit.period
            ),
        )),
        Err(IngestRefusal::CostAboveGroupLimit { destination_id, group, limit }) => {
            // A key of the tenant does not see the name of a group for all tenants.
            let name = group.tenant.as_ref().map(|_| format!("`{}`, ", group.name)).unwrap_or_default();
            Err(Problem::invalid_field(
                "/cost",
                format!(
                    "must be at most {0}, the limit of {0} per {1} of the limit group {name}{2} of {destination_id}: split \
                     the event, or raise the limit",
                    limit.limit, limit.period, group.id
                ),
            ))
        }
        Err(IngestRefusal::TooManyDestinations { destinations, most }) => Err(Problem::invalid_field(
            "/destinations",
            format!(
                "would be {destinations}, more than the {most} of the setting `WEIR_MAX_DESTINATIONS_PER_EVENT` of the \
                 server: name fewer, or send events to fewer destinations by their types"
            ),
        )),
    }
}
