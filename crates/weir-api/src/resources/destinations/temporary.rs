//! An override of a destination's limits, and a hold, both with an end.

use axum::response::IntoResponse;
use weir_api_types as types;
use weir_core::temporary::Temporary;

use super::{
    edits::{Ends, change_temporary},
    etag, view,
};
use crate::{
    problem::{ApiResult, Changed},
    readers::{body::Body, texts::DestinationIdText},
    resources::{
        edit::Edit,
        temporary::{Change, HoldRequest, Holdable, LimitsOverrideRequest},
    },
};

type EditDestination = Edit<DestinationIdText>;

impl Holdable for DestinationIdText {
    type View = types::Destination;

    async fn change(edit: &EditDestination, change: Change) -> ApiResult<(Temporary, String, types::Destination)> {
        let api = &edit.api;
        let edit = edit.requested(Ends::Nothing);
        let (before, destination) = change_temporary(api, edit, |current| change.applied_to(current)).await?;
        Ok((before, etag(&destination), view::view(&destination, api.clock.now(), &api.event_types)))
    }
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
    edit.begin(request, |destination, replaced| types::OverriddenDestination { destination, replaced }).await
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
    edit.end(Change::Override(None)).await
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
    edit.begin(request, |destination, replaced| types::HeldDestination { destination, replaced }).await
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
    edit.end(Change::Hold(None)).await
}
