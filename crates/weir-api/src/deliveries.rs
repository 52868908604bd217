//! Deliveries: list, show, retry and cancel.

use axum::{Json, extract::State};
use http::StatusCode;
use weir_core::{DeliveryId, DeliveryState};
use weir_queue::Wake;
use weir_store::{DeliveryAction, DeliveryDetail, DeliveryFilter};

use crate::{
    extract::PathId,
    page::Listing,
    problem::{ApiResult, Problem},
    query::Query,
    state::{Api, ApiState},
    views::{AttemptView, DeliveryDetailView, DeliveryView, List},
};

/// List deliveries
///
/// With the filters `tenant`, `event_type`, `error` and some states, a page examines at most 5000 deliveries, so that a
/// long history costs no more than a short one. Such a page may be short or empty and still have a `next_cursor`: the
/// list ends only when `next_cursor` is null. `from`, `to`, `destination` and the states `failed`, `dead`, `cancelled`,
/// `superseded` and `expired` reduce the number of deliveries to examine.
#[utoipa::path(
    get, path = "/v1/deliveries", operation_id = "list_deliveries", tag = "deliveries",
    params(
        ("destination" = Option<crate::openapi::DestinationIdText>, Query, description = "Only deliveries to this destination: `dst_…`"),
        ("event" = Option<crate::openapi::EventIdText>, Query, description = "Only deliveries of this event: `evt_…`"),
        ("state" = Option<crate::openapi::DeliveryStateText>, Query,
            description = "`pending`, `delivering`, `retrying`, `delivered`, `failed`, `dead`, `cancelled`, `superseded` or `expired`"),
        ("tenant" = Option<crate::openapi::TenantText>, Query, description = "Only this tenant"),
        ("event_type" = Option<crate::openapi::EventPatternText>, Query, description = "Only events of this type: exact (`video.created`), a prefix (`video.*`) or `*`"),
        ("error" = Option<crate::openapi::AttemptErrorText>, Query,
            description = "Only deliveries whose last attempt had this error: `dns`, `connect`, `tls`, `timeout`, `broken`, `forbidden`, `unknown`, a class of statuses (`3xx`, `4xx`, `5xx`) or one status (`503`)"),
        crate::openapi::RangeParameters,
        crate::openapi::PageParameters,
    ),
    responses((status = 200, description = "One page, newest first", body = List<DeliveryView>))
)]
pub(crate) async fn list(State(api): State<Api>, mut query: Query) -> ApiResult<Json<List<DeliveryView>>> {
    let destination_id = query.parse("destination", str::parse);
    let event_id = query.parse("event", str::parse);
    let state = query.parse("state", |text| DeliveryState::parse(text).ok_or_else(unknown_state));
    let tenant = query.tenant();
    let event_type = query.event_pattern("event_type");
    let error = query.parse("error", str::parse);
    let (from, to) = query.range();
    let page = Listing::Deliveries.request(&mut query);
    query.close()?;
    let filter = DeliveryFilter { destination_id, event_id, state, tenant, event_type, error, from, to };
    let page = api.store.list_deliveries(&filter, page).await?;
    Ok(Listing::Deliveries.page(page, DeliveryView::from))
}

fn unknown_state() -> String {
    format!("must be one of {}", DeliveryState::ALL.map(DeliveryState::as_str).join(", "))
}

/// Show a delivery with its attempts
#[utoipa::path(
    get, path = "/v1/deliveries/{id}", operation_id = "show_delivery", tag = "deliveries", params(("id" = crate::openapi::DeliveryIdText, Path, description = "`dlv_…`")),
    responses((status = 200, description = "The delivery", body = DeliveryDetailView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    PathId(id): PathId<DeliveryId>,
    query: Query,
) -> ApiResult<Json<DeliveryDetailView>> {
    query.close()?;
    find(&api, id).await.map(Json)
}

/// Retry a delivery
///
/// Makes the delivery due at once, under the usual limits. A delivery that waits for the `deliver_at` of its event
/// becomes due too. A delivery without attempts left gets one more attempt. After its `expires_at` a delivery cannot be
/// retried. At an `ordered` destination, a delivery that waits for an earlier one continues to wait, and an ended
/// delivery becomes the next one of its key after the current one.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/retry", operation_id = "retry_delivery", tag = "deliveries", params(("id" = crate::openapi::DeliveryIdText, Path, description = "`dlv_…`")),
    responses(
        (status = 202, description = "Due now", body = DeliveryDetailView),
        (status = 409, response = inline(crate::openapi::Refused)),
    )
)]
pub(crate) async fn retry(
    State(api): State<Api>,
    PathId(id): PathId<DeliveryId>,
    query: Query,
) -> ApiResult<(StatusCode, Json<DeliveryDetailView>)> {
    query.close()?;
    let now = api.clock.now();
    match api.store.retry_delivery(id, now).await? {
        DeliveryAction::Done { destination_id } => {
            let due = now;
            api.wake(&[Wake { destination_id, due }]).await;
        }
        other => return Err(refusal(id, other, "retried")),
    }
    Ok((StatusCode::ACCEPTED, Json(find(&api, id).await?)))
}

/// Cancel a delivery
///
/// Only a waiting delivery (`pending` or `retrying`) can be cancelled.
#[utoipa::path(
    post, path = "/v1/deliveries/{id}/cancel", operation_id = "cancel_delivery", tag = "deliveries", params(("id" = crate::openapi::DeliveryIdText, Path, description = "`dlv_…`")),
    responses(
        (status = 202, description = "Cancelled", body = DeliveryDetailView),
        (status = 409, response = inline(crate::openapi::Refused)),
    )
)]
pub(crate) async fn cancel(
    State(api): State<Api>,
    PathId(id): PathId<DeliveryId>,
    query: Query,
) -> ApiResult<(StatusCode, Json<DeliveryDetailView>)> {
    query.close()?;
    let now = api.clock.now();
    match api.store.cancel_delivery(id, now).await? {
        DeliveryAction::Done { destination_id } => {
            // The next delivery of its message group may have become due.
            api.wake(&[Wake { destination_id, due: now }]).await;
            Ok((StatusCode::ACCEPTED, Json(find(&api, id).await?)))
        }
        other => Err(refusal(id, other, "cancelled")),
    }
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

async fn find(api: &ApiState, id: DeliveryId) -> ApiResult<DeliveryDetailView> {
    let DeliveryDetail { delivery, attempts } = api.store.delivery(id).await?.ok_or_else(|| missing(id))?;
    let attempts = attempts.into_iter().map(AttemptView::from).collect();
    Ok(DeliveryDetailView { delivery: delivery.into(), attempts })
}

fn missing(id: DeliveryId) -> Problem {
    Problem::not_found(format!("there is no delivery {id}"))
}
