//! Deliveries: show, retry and cancel. Lists, counts and groups have a file each.

pub(crate) mod groups;
pub(crate) mod list;
mod waits;

use std::net::SocketAddr;

use axum::{Json, extract::State};
use http::StatusCode;
use serde::Serialize;
use serde_json::json;
use utoipa::ToSchema;
use weir_core::{
    AttemptId, DeliveryId, Destination, DestinationId, EventId, Timestamp,
    activity::{Action, Activity},
    delivery::{Attempt, Delivery},
};
use weir_queue::Wake;
use weir_store::{DeliveryAction, DeliveryDetail};

pub(crate) use self::waits::WaitsForView;
use super::{activity::Author, destinations};
use crate::{
    auth::Caller,
    problem::{ApiResult, Problem, Refused},
    readers::{body::PathId, query::Query, texts::DeliveryIdText},
    state::{Api, ApiState},
};

/// Show a delivery with its attempts
#[utoipa::path(
    get, path = "/v1/deliveries/{id}", operation_id = "show_delivery", tag = "deliveries", params(("id" = DeliveryIdText, Path, description = "`dlv_…`")),
    responses((status = 200, description = "The delivery", body = DeliveryDetailView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DeliveryIdText(id)): PathId<DeliveryIdText>,
    _: Query<()>,
) -> ApiResult<Json<DeliveryDetailView>> {
    find(&api, &caller, id).await.map(Json)
}

/// Retry a delivery
///
/// Makes the delivery due at once, under the usual limits. If its destination is paused, held or has an open breaker, the
/// delivery still waits, and `waits_for` says for what and until when. A delivery that waits for the `deliver_at` of its event
/// becomes due too. A delivery without attempts left gets one more attempt. After its `expires_at` a delivery cannot be
/// retried. At an `ordered` destination, a delivery that waits for an earlier one continues to wait, and an ended
/// delivery becomes the next one of its key after the current one.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/retry", operation_id = "retry_delivery", tag = "deliveries", params(("id" = DeliveryIdText, Path, description = "`dlv_…`")),
    responses(
        (status = 202, description = "Due now", body = DeliveryDetailView),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn retry(
    State(api): State<Api>,
    caller: Caller,
    PathId(DeliveryIdText(id)): PathId<DeliveryIdText>,
    author: Author,
    _: Query<()>,
) -> ApiResult<(StatusCode, Json<DeliveryDetailView>)> {
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
        (status = 202, description = "Cancelled", body = DeliveryDetailView),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn cancel(
    State(api): State<Api>,
    caller: Caller,
    PathId(DeliveryIdText(id)): PathId<DeliveryIdText>,
    author: Author,
    _: Query<()>,
) -> ApiResult<(StatusCode, Json<DeliveryDetailView>)> {
    let now = api.clock.now();
    let activity = about(&api, &caller, id, author.does(Action::DeliveryCancelled, now)).await?;
    let action = api.store.cancel_delivery(id, now, activity).await?;
    answer(&api, &caller, id, action, "cancelled", now).await
}

/// Answers a retry or a cancellation; `verb` is "retried" or "cancelled". The delivery is due now, or the next one of
/// its message group may have become due, so the destination is woken.
async fn answer(
    api: &ApiState,
    caller: &Caller,
    id: DeliveryId,
    action: DeliveryAction,
    verb: &str,
    now: Timestamp,
) -> ApiResult<(StatusCode, Json<DeliveryDetailView>)> {
    let DeliveryAction::Done { destination_id } = action else { return Err(refusal(id, action, verb)) };
    api.wake(&[Wake { destination_id, due: now }]).await;
    Ok((StatusCode::ACCEPTED, Json(find(api, caller, id).await?)))
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
    let delivery = find(api, caller, id).await?.delivery;
    let destination = api.store.destination(delivery.destination_id).await?;
    let tenant = destination.map(|destination| destination.settings.tenant.clone());
    let before = json!({"state": delivery.state});
    Ok(activity.of_delivery(id, delivery.destination_id, tenant).changing(Some(before), None))
}

pub(crate) async fn find(api: &ApiState, caller: &Caller, id: DeliveryId) -> ApiResult<DeliveryDetailView> {
    let DeliveryDetail { delivery, attempts } = api.store.delivery(id).await?.ok_or_else(|| missing(id))?;
    if !caller.sees_all() {
        let event = api.store.event(delivery.event_id).await?;
        event.filter(|event| caller.sees(&event.tenant)).ok_or_else(|| missing(id))?;
    }
    let attempts = attempts.into_iter().map(AttemptView::from).collect();
    let destination = api.store.destination(delivery.destination_id).await?;
    let delivery = DeliveryView::new(delivery, destination.as_deref(), api.clock.now());
    Ok(DeliveryDetailView { delivery, attempts })
}

/// Deliveries as the API shows them. One look-up finds what those that wait are waiting for.
pub(crate) async fn views(api: &ApiState, deliveries: Vec<Delivery>) -> ApiResult<Vec<DeliveryView>> {
    let waiting = deliveries.iter().filter(|delivery| delivery.state.is_waiting());
    let found = destinations::by_id(api, waiting.map(|delivery| delivery.destination_id)).await?;
    let now = api.clock.now();
    let view = |delivery: Delivery| {
        let destination = found.get(&delivery.destination_id).map(AsRef::as_ref);
        DeliveryView::new(delivery, destination, now)
    };
    Ok(deliveries.into_iter().map(view).collect())
}

fn missing(id: DeliveryId) -> Problem {
    Problem::not_found(format!("there is no delivery {id}"))
}

/// One event owed to one destination.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Delivery)]
pub(crate) struct DeliveryView {
    #[schema(value_type = String, example = "dlv_01h2xcejqtf2nbrexx3vqjhp41")]
    id: DeliveryId,
    #[schema(value_type = String)]
    event_id: EventId,
    event_type: String,
    #[schema(value_type = String)]
    destination_id: DestinationId,
    #[schema(
        value_type = String,
        pattern = "^(pending|delivering|retrying|delivered|failed|dead|cancelled|superseded|expired)$"
    )]
    state: &'static str,
    /// The number of counted attempts.
    attempt_count: u32,
    /// The due time of a waiting delivery, not before the end of a hold that its destination has asked for. Null while
    /// it waits for an earlier delivery of its `ordering_key`.
    #[schema(value_type = Option<String>, format = DateTime)]
    next_attempt_at: Option<Timestamp>,
    /// What keeps a due delivery from being sent: a pause, a hold or an open breaker of its destination. Null if nothing
    /// does but its due time and the limits.
    waits_for: Option<WaitsForView>,
    /// The delivery becomes `expired` if it is not claimed by this instant.
    #[schema(value_type = Option<String>, format = DateTime)]
    expires_at: Option<Timestamp>,
    #[schema(value_type = String, format = DateTime)]
    created_at: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    updated_at: Timestamp,
    /// The error of the last attempt; null if it had none.
    last_error: Option<String>,
    /// The error in one word, as in the filter `error`: `dns`, `connect`, `tls`, `timeout`, `broken`, `forbidden`,
    /// `unknown`, or the class of the status (`5xx`).
    #[schema(example = "timeout")]
    last_error_kind: Option<String>,
    /// The HTTP status of the last attempt.
    last_status_code: Option<u16>,
}

/// A delivery with its attempts, oldest first.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = DeliveryDetail)]
pub(crate) struct DeliveryDetailView {
    #[serde(flatten)]
    pub(crate) delivery: DeliveryView,
    pub(crate) attempts: Vec<AttemptView>,
}

/// One outbound HTTP request.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Attempt)]
pub(crate) struct AttemptView {
    #[schema(value_type = String)]
    id: AttemptId,
    /// 1 for the first attempt.
    number: u32,
    /// When the send started. For an unknown outcome, the latest instant at which it may have started. Null if no send
    /// started.
    #[schema(value_type = Option<String>, format = DateTime)]
    sent_at: Option<Timestamp>,
    status_code: Option<u16>,
    /// From the send start to the end of the answer; if no send started, how long Weir tried to connect.
    duration_ms: u32,
    error: Option<String>,
    /// The error in one word, or the class of a status that is not 2xx.
    #[schema(example = "timeout")]
    error_kind: Option<String>,
    #[schema(value_type = String, pattern = "^(delivered|retryable|rejected|unknown)$")]
    outcome: &'static str,
    /// The body of the response, truncated to 16 KiB; to 1 KiB for a 2xx response. A compressed one (`gzip`, `deflate`) is
    /// decoded.
    response_body: Option<String>,
    /// The time that was signed: the `webhook-timestamp` of the request.
    #[schema(value_type = Option<String>, format = DateTime)]
    signed_at: Option<Timestamp>,
    /// The first 16 headers of the response as `[name, value]`; values are truncated to 256 bytes. Headers that may
    /// hold credentials, such as `set-cookie`, are left out.
    response_headers: Vec<(String, String)>,
    /// The address and port that the request was sent to.
    #[schema(value_type = Option<String>, example = "203.0.113.7:443")]
    remote_address: Option<SocketAddr>,
    /// How long the name look-up and the TCP connection took; null if the connection had been used before.
    connect_ms: Option<u32>,
    /// How long the TLS handshake took; null if the connection had been used before.
    tls_ms: Option<u32>,
}

impl DeliveryView {
    /// `destination`: its destination, unless that is deleted or the delivery does not wait.
    fn new(delivery: Delivery, destination: Option<&Destination>, now: Timestamp) -> Self {
        let waits_for = WaitsForView::of_delivery(&delivery, destination, now);
        let earliest = |due| waits_for.as_ref().map_or(due, |waits_for| waits_for.earliest(due));
        let next_attempt_at = delivery.next_attempt_at.map(earliest);
        let last = delivery.last_attempt;
        Self {
            id: delivery.id,
            event_id: delivery.event_id,
            event_type: delivery.event_type,
            destination_id: delivery.destination_id,
            state: delivery.state.as_str(),
            attempt_count: delivery.attempts,
            next_attempt_at,
            waits_for,
            expires_at: delivery.expires_at,
            created_at: delivery.created_at,
            updated_at: delivery.updated_at,
            last_status_code: last.as_ref().and_then(|last| last.status_code),
            last_error_kind: last.as_ref().and_then(|last| last.error_kind).map(|kind| kind.to_string()),
            last_error: last.and_then(|last| last.error),
        }
    }
}

impl From<Attempt> for AttemptView {
    fn from(attempt: Attempt) -> Self {
        let connection = attempt.details.connection;
        Self {
            id: attempt.id,
            number: attempt.number,
            sent_at: attempt.sent_at,
            status_code: attempt.status_code,
            duration_ms: attempt.duration_ms,
            error_kind: attempt.error_kind().map(|kind| kind.to_string()),
            error: attempt.error,
            outcome: attempt.outcome.as_str(),
            response_body: attempt.response_body,
            signed_at: attempt.details.signed_at,
            response_headers: attempt.details.response_headers,
            remote_address: connection.map(|connection| connection.remote_address),
            connect_ms: connection.and_then(|connection| connection.connect_ms),
            tls_ms: connection.and_then(|connection| connection.tls_ms),
        }
    }
}
