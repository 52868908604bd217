//! The release of a held destination.

use axum::{Json, response::IntoResponse};
use weir_api_types as types;

use super::{
    edits::{Ends, change},
    etag_header, view,
};
use crate::{
    problem::{ApiResult, Changed},
    readers::texts::DestinationIdText,
    resources::edit::Edit,
};

/// Lift the hold of a destination
///
/// Ends the wait that a receiver has asked for (`Retry-After`, a used-up quota), within 100 ms. Deliveries that wait for
/// it are due at once; those that wait for their own retry go on to do so. First one send is in flight, and one more with
/// each that is answered and not refused. A destination that is not held stays as it is. An answer to a send that
/// started before the release holds the destination no more. `If-Match` works as for an edit.
#[utoipa::path(
    post, path = "/v1/destinations/{id}/release", operation_id = "release_destination", tag = "destinations",
    params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses(
        (status = 200, description = "The destination, without a hold", body = types::Destination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn release(edit: Edit<DestinationIdText>) -> ApiResult<impl IntoResponse> {
    let api = &edit.api;
    let destination = change(api, edit.requested(Ends::Hold), |current| Ok(current.settings.clone())).await?;
    Ok((etag_header(&destination), Json(view::view(&destination, api.clock.now(), &api.event_types))))
}
