//! An override of a destination's limits, and a hold, both with an end.

use axum::{Json, response::IntoResponse};
use http::HeaderName;
use weir_api_types as types;
use weir_core::temporary::Temporary;

use super::{
    edits::{Ends, Requested, change_temporary},
    etag_header, view,
};
use crate::{
    problem::{ApiResult, Changed},
    readers::{body::Body, texts::DestinationIdText},
    resources::temporary::{Change, Edit, HoldRequest, LimitsOverrideRequest},
};

type EditDestination = Edit<DestinationIdText>;

/// Makes the change, and shows the destination beside what held before.
async fn make<T>(
    edit: &EditDestination,
    change: Change,
    shown: impl FnOnce(types::Destination, Temporary) -> T,
) -> ApiResult<([(HeaderName, String); 1], Json<T>)> {
    let Edit { api, id: DestinationIdText(id), caller, author, if_match } = edit;
    let requested = Requested { id: *id, if_match, caller, author, ends: Ends::Nothing };
    let (before, destination) = change_temporary(api, requested, |current| change.applied_to(current)).await?;
    let view = view::view(&destination, api.clock.now(), &api.event_types);
    Ok((etag_header(&destination), Json(shown(view, before))))
}

/// Override the limits of a destination for a while
///
/// Until the end, these limits hold in place of those of the settings, which stay as they are and may be edited
/// meanwhile. Begin and end take effect within 100 ms and reset no window; nobody needs to do anything at the end. A
/// destination has one override: another one replaces it, and is named in the answer. `If-Match` works as for an edit.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/override", operation_id = "override_limits", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")), request_body = LimitsOverrideRequest,
    responses(
        (status = 200, description = "The destination with its override", body = types::OverriddenDestination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn override_limits(
    edit: EditDestination,
    Body(request): Body<LimitsOverrideRequest>,
) -> ApiResult<impl IntoResponse> {
    let change = request.begin(edit.api.clock.now())?;
    make(&edit, change, |destination, before| types::OverriddenDestination {
        destination,
        replaced: before.overridden.as_ref().map(view::override_view),
    })
    .await
}

/// End the override of a destination
///
/// Before its end. The limits of the settings hold within 100 ms. A destination without an override stays as it is.
#[utoipa::path(
    delete, path = "/v1/destinations/{id}/override", operation_id = "end_override", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses(
        (status = 200, description = "The destination, without an override", body = types::Destination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn end_override(edit: EditDestination) -> ApiResult<impl IntoResponse> {
    make(&edit, Change::Override(None), |destination, _| destination).await
}

/// Hold a destination for a while
///
/// A pause with an end: no send starts before it, and events wait. It begins within 100 ms, and at its end one send goes
/// first, and one more with each that is answered. A destination has one such hold: another one replaces it, and is named
/// in the answer. Where the receiver has asked for a wait too, the later end counts. `If-Match` works as for an edit.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/hold", operation_id = "hold_destination", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")), request_body = HoldRequest,
    responses(
        (status = 200, description = "The destination with its hold", body = types::HeldDestination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn hold(edit: EditDestination, Body(request): Body<HoldRequest>) -> ApiResult<impl IntoResponse> {
    let change = request.begin(edit.api.clock.now())?;
    make(&edit, change, |destination, before| types::HeldDestination {
        destination,
        replaced: before.hold.as_ref().map(view::hold_view),
    })
    .await
}

/// End the hold of a destination
///
/// Before its end, within 100 ms. A wait that the receiver has asked for stays; a release ends both. A destination without a
/// hold stays as it is.
#[utoipa::path(
    delete, path = "/v1/destinations/{id}/hold", operation_id = "end_hold", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses(
        (status = 200, description = "The destination, without the hold", body = types::Destination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn end_hold(edit: EditDestination) -> ApiResult<impl IntoResponse> {
    make(&edit, Change::Hold(None), |destination, _| destination).await
}
