//! Test events: an event that goes to one destination, so that a person can check its receiver.

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde_json::json;
use weir_api_types as types;
use weir_core::{
    Destination, EventId, Timestamp,
    activity::Action,
    event::{DeliveryOptions, Event, EventBody},
};
use weir_store::{Created, NewEvent};

use super::{activity::Author, deliveries, destinations, ingest};
use crate::{
    auth::Caller,
    problem::{self, ApiResult},
    readers::{
        body::PathId,
        idempotency::{FirstAnswer, Idempotency, IdempotencyParameters, replayed},
        query::Query,
        texts::DestinationIdText,
    },
    state::{Api, ApiState},
};

/// Producers cannot send events of this type: `weir.` is reserved.
const TYPE: &str = "weir.test";

/// Send a test event
///
/// The event has the type `weir.test` and goes only to this destination, whatever its `event_types` are. It is delivered
/// like every other event: within the limits, in its turn, with retries, and only when the destination is not paused. If
/// it must wait for a pause, a hold or an open breaker, `waits_for` says so.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/test", operation_id = "test_destination", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`"), IdempotencyParameters),
    responses((status = 202, description = "The delivery of the test event", body = types::DeliveryDetail))
)]
pub(crate) async fn send(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    author: Author,
    idempotency: Idempotency,
    _: Query<()>,
) -> ApiResult<Response> {
    let destination = destinations::find(&api, &caller, id).await?;
    if let Some(first) = idempotency.first_answer(&api).await? {
        return sent_before(&api, &caller, &destination, &first).await;
    }
    let now = api.clock.now();
    let event_id = EventId::new(now, rand::random());
    let event = json!({"event": event_id});
    // Recorded first, because the ingest stores nothing but events. It also reserves the idempotency key for the event.
    let activity = author.does(Action::DestinationTested, now).of_destination(&destination);
    let activity = activity.changing(None, Some(event.clone()));
    let creation = idempotency.creation(activity, &FirstAnswer::new(StatusCode::ACCEPTED, &event)?, now)?;
    if let Created::Before(stored) = api.store.record_activity(creation).await? {
        return sent_before(&api, &caller, &destination, &idempotency.read(stored)?).await;
    }
    store(&api, &destination, event_id, now).await?;
    answer(&api, &caller, event_id).await
}

/// The delivery of the event for which the key is reserved. If the process died before it stored the event, this stores
/// it.
async fn sent_before(
    api: &ApiState,
    caller: &Caller,
    destination: &Destination,
    first: &FirstAnswer,
) -> ApiResult<Response> {
    let event_id = first.body["event"].as_str().and_then(|id| id.parse::<EventId>().ok());
    let event_id = event_id.ok_or_else(|| problem::internal("a stored answer has no event", &first.body))?;
    if api.store.event(event_id).await?.is_none() {
        store(api, destination, event_id, event_id.made_at()).await?;
    }
    Ok(replayed(answer(api, caller, event_id).await?))
}

async fn store(api: &ApiState, destination: &Destination, event_id: EventId, now: Timestamp) -> ApiResult<()> {
    let data = json!({"destination": destination.id, "message": "This is a test event of Weir."}).to_string();
    let event = Event {
        id: event_id,
        tenant: destination.settings.tenant.clone(),
        event_type: TYPE.to_owned(),
        created_at: now,
        // Two requests may both find that the event is missing: one of them stores it.
        idempotency_key: Some(format!("weir.test {event_id}")),
        options: DeliveryOptions::default(),
        body: EventBody::freeze(event_id, TYPE, now, &data),
        filtered: 0,
    };
    // The destination may be deleted meanwhile: then the event is refused.
    let new = NewEvent::new(event, Some(vec![destination.id]), rand::random());
    ingest::store_one(api, new).await.map(drop)
}

async fn answer(api: &ApiState, caller: &Caller, event_id: EventId) -> ApiResult<Response> {
    let sent = api.store.event_deliveries(event_id).await?.pop();
    let sent = sent.ok_or_else(|| problem::internal("a test event has no delivery", &event_id))?;
    Ok((StatusCode::ACCEPTED, Json(deliveries::find(api, caller, sent.id).await?)).into_response())
}
