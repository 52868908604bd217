//! Test events: an event that goes to one destination, so that a person can check its receiver.

use axum::{Json, extract::State};
use http::StatusCode;
use serde_json::json;
use weir_core::{
    EventId,
    activity::Action,
    event::{DeliveryOptions, Event, EventBody},
};
use weir_store::NewEvent;

use super::{
    activity::Author,
    deliveries::{self, DeliveryDetailView},
    destinations, ingest,
};
use crate::{
    auth::Caller,
    problem::{self, ApiResult},
    readers::{body::PathId, query::Query, texts::DestinationIdText},
    state::Api,
};

/// Producers cannot send events of this type: `weir.` is reserved.
const TYPE: &str = "weir.test";

/// Send a test event
///
/// The event has the type `weir.test` and goes only to this destination, whatever its `event_types` are. It is delivered
/// like every other event: within the limits, in its turn, with retries, and only when the destination is not paused.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/test", operation_id = "test_destination", tag = "destinations", security(("api_key" = ["operate"])),
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 202, description = "The delivery of the test event", body = DeliveryDetailView))
)]
pub(crate) async fn send(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    author: Author,
    _: Query<()>,
) -> ApiResult<(StatusCode, Json<DeliveryDetailView>)> {
    let destination = destinations::find(&api, &caller, id).await?;
    let now = api.clock.now();
    let random = rand::random();
    let event_id = EventId::new(now, random);
    let data = json!({"destination": id, "message": "This is a test event of Weir."}).to_string();
    let event = Event {
        id: event_id,
        tenant: destination.settings.tenant.clone(),
        event_type: TYPE.to_owned(),
        created_at: now,
        idempotency_key: None,
        options: DeliveryOptions::default(),
        body: EventBody::freeze(event_id, TYPE, now, &data),
    };
    // Recorded first, because the ingest stores nothing but events.
    let activity = author.does(Action::DestinationTested, now).of_destination(&destination);
    let activity = activity.changing(None, Some(json!({"event": event_id})));
    api.store.record_activity(activity.into()).await?;
    // The destination may be deleted meanwhile: then the event is refused.
    ingest::store_one(&api, NewEvent { event, destinations: Some(vec![id]), random }).await?;
    let sent = api.store.event_deliveries(event_id).await?.pop();
    let sent = sent.ok_or_else(|| problem::internal("a test event has no delivery", &event_id))?;
    Ok((StatusCode::ACCEPTED, Json(deliveries::find(&api, &caller, sent.id).await?)))
}
