//! An override of a limit group's limits, and a hold, both with an end.

use axum::response::IntoResponse;
use weir_api_types as types;
use weir_core::{LimitGroup, temporary::Temporary};

use super::{EditGroup, edits::change, etag, view};
use crate::{
    problem::{ApiResult, Changed},
    readers::{body::Body, texts::LimitGroupIdText},
    resources::temporary::{Change, HoldRequest, Holdable, LimitsOverrideRequest},
};

impl Holdable for LimitGroupIdText {
    type View = types::LimitGroup;

    async fn change(edit: &EditGroup, made: Change) -> ApiResult<(Temporary, String, types::LimitGroup)> {
        let now = edit.api.clock.now();
        let (before, group) = change(edit, |current| {
            Ok(LimitGroup { temporary: made.applied_to(current.temporary.at(now)), ..current.clone() })
        })
        .await?;
        Ok((before.temporary.at(now), etag(&group), view(&group, now)))
    }
}

/// Override the limits of a limit group for a while
///
/// Until the end, these limits hold in place of those of the settings for all members together. The settings stay as they are
/// and may be edited meanwhile. Begin and end take effect within 100 ms and reset no window; nobody needs to do anything at
/// the end. A group has one override: another one replaces it, and is named in the answer. `If-Match` works as for an edit.
#[utoipa::path(
    post, path = "/v1/limit-groups/{id}/override", operation_id = "override_group_limits", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")), request_body = LimitsOverrideRequest,
    responses(
        (status = 200, description = "The group with its override", body = types::OverriddenLimitGroup,
            headers(("etag" = String, description = "The new version of the group"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn override_limits(
    edit: EditGroup,
    Body(request): Body<LimitsOverrideRequest>,
) -> ApiResult<impl IntoResponse> {
    edit.begin(request, |limit_group, replaced| types::OverriddenLimitGroup { limit_group, replaced }).await
}

/// End the override of a limit group
///
/// Before its end. The limits of the settings hold within 100 ms. A group without an override stays as it is.
#[utoipa::path(
    delete, path = "/v1/limit-groups/{id}/override", operation_id = "end_group_override", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")),
    responses(
        (status = 200, description = "The group, without an override", body = types::LimitGroup,
            headers(("etag" = String, description = "The new version of the group"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn end_override(edit: EditGroup) -> ApiResult<impl IntoResponse> {
    edit.end(Change::Override(None)).await
}

/// Hold a limit group for a while
///
/// A pause with an end: no member starts a send before it, and events wait. It begins within 100 ms, and at its end all members
/// go on within the limits. A group has one hold: another one replaces it, and is named in the answer. `If-Match` works as for
/// an edit.
#[utoipa::path(
    post, path = "/v1/limit-groups/{id}/hold", operation_id = "hold_limit_group", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")), request_body = HoldRequest,
    responses(
        (status = 200, description = "The group with its hold", body = types::HeldLimitGroup,
            headers(("etag" = String, description = "The new version of the group"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn hold(edit: EditGroup, Body(request): Body<HoldRequest>) -> ApiResult<impl IntoResponse> {
    edit.begin(request, |limit_group, replaced| types::HeldLimitGroup { limit_group, replaced }).await
}

/// End the hold of a limit group
///
/// Before its end, within 100 ms. A group without a hold stays as it is.
#[utoipa::path(
    delete, path = "/v1/limit-groups/{id}/hold", operation_id = "end_group_hold", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")),
    responses(
        (status = 200, description = "The group, without the hold", body = types::LimitGroup,
            headers(("etag" = String, description = "The new version of the group"))),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn end_hold(edit: EditGroup) -> ApiResult<impl IntoResponse> {
    edit.end(Change::Hold(None)).await
}
