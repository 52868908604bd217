//! Deliveries: show, retry and cancel. Discards, lists, counts and groups have a file each.

pub(crate) mod discard;
pub(crate) mod groups;
pub(crate) mod list;
mod waits;

use axum::{Json, extract::State};
use http::StatusCode;
use serde_json::json;
use weir_api_types as types;
use weir_core::{
    DeliveryId, LimitKey, Timestamp,
    activity::{Action, Activity},
    delivery::{Attempt, Delivery},
};
use weir_queue::Wake;
use weir_store::{DeliveryAction, DeliveryDetail};

use self::waits::Outlooks;
pub(crate) use self::waits::{of_destination as destination_waits_for, of_destinations as destinations_wait_for};
use super::edit::Edit;
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem, Refused},
    readers::{body::PathId, query::Query, texts::DeliveryIdText},
    state::{Api, ApiState},
};

/// Show a delivery with its attempts
#[utoipa::path(
    get, path = "/v1/deliveries/{id}", operation_id = "show_delivery", tag = "deliveries", params(("id" = DeliveryIdText, Path, description = "`dlv_…`")),
    responses((status = 200, description = "The delivery", body = types::DeliveryDetail))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DeliveryIdText(id)): PathId<DeliveryIdText>,
    _: Query<()>,
) -> ApiResult<Json<types::DeliveryDetail>> {
    find(&api, &caller, id).await.map(Json)
}

/// Retry a delivery
///
/// Makes the delivery due at once, under the usual limits. If its destination is paused, held or has an open breaker, the
/// delivery still waits, and `waits_for` says for what and until when, as for every delivery that waits. A delivery that waits for the `deliver_at` of its event
/// becomes due too. A delivery without attempts left gets one more attempt. After its `expires_at` a delivery cannot be
/// retried. At an `ordered` destination, a delivery that waits for an earlier one continues to wait, and an ended
/// delivery becomes the next one of its key after the current one.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/retry", operation_id = "retry_delivery", tag = "deliveries", params(("id" = DeliveryIdText, Path, description = "`dlv_…`")),
    responses(
        (status = 202, description = "Due now", body = types::DeliveryDetail),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn retry(
    Edit { api, id: DeliveryIdText(id), caller, author, .. }: Edit<DeliveryIdText>,
) -> ApiResult<(StatusCode, Json<types::DeliveryDetail>)> {
    let now = api.clock.now();
    let activity = about(&api, &caller, id, author.does(Action::DeliveryRetried, now)).await?;
    let action = api.store.retry_delivery(id, now, activity).await?;
    answer(&api, &caller, id, action, "retried", now).await
}

/// Cancel a delivery
///
/// Only a waiting delivery (`pending` or `retrying`) can be cancelled.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/cancel", operation_id = "cancel_delivery", tag = "deliveries", params(("id" = DeliveryIdText, Path, description = "`dlv_…`")),
    responses(
        (status = 202, description = "Cancelled", body = types::DeliveryDetail),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn cancel(
    Edit { api, id: DeliveryIdText(id), caller, author, .. }: Edit<DeliveryIdText>,
) -> ApiResult<(StatusCode, Json<types::DeliveryDetail>)> {
    let now = api.clock.now();
    let activity = about(&api, &caller, id, author.does(Action::DeliveryCancelled, now)).await?;
    let action = api.store.cancel_delivery(id, now, activity).await?;
    answer(&api, &caller, id, action, "cancelled", now).await
}

/// Answers a retry or a cancellation; `verb` is "retried" or "cancelled". The delivery is due now, or the next one of
/// its message group may have become due, so the destination, or the flow of the limit key, is woken.
async fn answer(
    api: &ApiState,
    caller: &Caller,
    id: DeliveryId,
    action: DeliveryAction,
    verb: &str,
    now: Timestamp,
) -> ApiResult<(StatusCode, Json<types::DeliveryDetail>)> {
    let DeliveryAction::Done { destination_id } = action else { return Err(refusal(id, action, verb)) };
    let shown = find(api, caller, id).await?;
    let flow = shown.delivery.limit_key.as_ref().map(|key| LimitKey::new(key).flow_id(destination_id));
    api.wake(&[Wake { destination_id: flow.unwrap_or(destination_id), due: now }]).await;
    Ok((StatusCode::ACCEPTED, Json(shown)))
}

/// Why the delivery cannot be `verb` ("retried", "cancelled").
fn refusal(id: DeliveryId, action: DeliveryAction, verb: &str) -> Problem {
    match action {
        DeliveryAction::Refused(state) => {
            Problem::conflict(format!("the delivery is {} and cannot be {verb}", state.as_str()))
        }
        DeliveryAction::Expired => {
            Problem::conflict(format!("the delivery has expired (`expires_at`) and cannot be {verb}"))
        }
        DeliveryAction::DestinationGone => {
            Problem::conflict(format!("the destination is deleted, so the delivery cannot be {verb}"))
        }
        DeliveryAction::NotFound | DeliveryAction::Done { .. } => missing(id),
    }
}

/// An activity about a delivery that the caller sees, with the state of the delivery before it.
async fn about(api: &ApiState, caller: &Caller, id: DeliveryId, activity: Activity) -> ApiResult<Activity> {
    let delivery = found(api, caller, id).await?.delivery;
    let destination = api.store.destination(delivery.destination_id).await?;
    let tenant = destination.map(|destination| destination.settings.tenant.clone());
    let before = json!({"state": delivery.state.as_str()});
    Ok(activity.of_delivery(id, delivery.destination_id, tenant).changing(Some(before), None))
}

/// A delivery that the caller sees.
async fn found(api: &ApiState, caller: &Caller, id: DeliveryId) -> ApiResult<DeliveryDetail> {
    let found = api.store.delivery(id).await?.ok_or_else(|| missing(id))?;
    if !caller.sees_all() {
        let event = api.store.event(found.delivery.event_id).await?;
        event.filter(|event| caller.sees(&event.tenant)).ok_or_else(|| missing(id))?;
    }
    Ok(found)
}

pub(crate) async fn find(api: &ApiState, caller: &Caller, id: DeliveryId) -> ApiResult<types::DeliveryDetail> {
    let DeliveryDetail { delivery, attempts } = found(api, caller, id).await?;
    let attempts = attempts.into_iter().map(attempt).collect();
    let outlooks = Outlooks::of(api, std::slice::from_ref(&delivery), true).await?;
    Ok(types::DeliveryDetail { delivery: view(delivery, &outlooks), attempts })
}

/// Deliveries as the API shows them, with what those that wait are waiting for; if it `is_measured`, also when they are sent.
pub(crate) async fn views(
    api: &ApiState,
    deliveries: Vec<Delivery>,
    is_measured: bool,
) -> ApiResult<Vec<types::Delivery>> {
    let outlooks = Outlooks::of(api, &deliveries, is_measured).await?;
    Ok(deliveries.into_iter().map(|delivery| view(delivery, &outlooks)).collect())
}

fn missing(id: DeliveryId) -> Problem {
    Problem::not_found(format!("there is no delivery {id}"))
}

fn view(delivery: Delivery, outlooks: &Outlooks) -> types::Delivery {
    let wait = outlooks.wait(&delivery);
    let (waits_for, expected_at) = wait.map(|wait| (wait.waits_for, wait.expected_at)).unzip();
    let earliest = |due| waits_for.as_ref().map_or(due, |waits_for| waits::earliest(waits_for, due));
    let next_attempt_at = delivery.next_attempt_at.map(earliest);
    let last = delivery.last_attempt;
    types::Delivery {
        id: delivery.id.to_string(),
        event_id: delivery.event_id.to_string(),
        event_type: delivery.event_type,
        destination_id: delivery.destination_id.to_string(),
        state: delivery.state.as_str().to_owned(),
        attempt_count: delivery.attempts,
        next_attempt_at,
        waits_for,
        expected_at: expected_at.flatten(),
        expires_at: delivery.expires_at,
        cost: delivery.cost,
        limit_key: delivery.limit_key.map(|key| key.to_string()),
        created_at: delivery.created_at,
        updated_at: delivery.updated_at,
        last_status_code: last.as_ref().and_then(|last| last.status_code),
        last_error_kind: last.as_ref().and_then(|last| last.error_kind).map(|kind| kind.to_string()),
        last_error: last.and_then(|last| last.error),
    }
}

pub(crate) fn attempt(attempt: Attempt) -> types::Attempt {
    let connection = attempt.details.connection;
    types::Attempt {
        id: attempt.id.to_string(),
        number: attempt.number,
        sent_at: attempt.sent_at,
        status_code: attempt.status_code,
        duration_ms: attempt.duration_ms,
        error_kind: attempt.error_kind().map(|kind| kind.to_string()),
        error: attempt.error,
        outcome: attempt.outcome.as_str().to_owned(),
        response_body: attempt.response_body,
        signed_at: attempt.details.signed_at,
        response_headers: attempt.details.response_headers,
        remote_address: connection.map(|connection| connection.remote_address),
        connect_ms: connection.and_then(|connection| connection.connect_ms),
        tls_ms: connection.and_then(|connection| connection.tls_ms),
    }
}
