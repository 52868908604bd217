//! An override of a limit group's limits, and a hold, both with an end.

use axum::{Json, response::IntoResponse};
use http::HeaderName;
use weir_api_types as types;
use weir_core::{LimitGroup, temporary::Temporary};
use weir_store::GroupChange;

use super::{RESOURCE, etag, find, save, unkeyed, view};
use crate::{
    problem::{ApiResult, Changed},
    readers::{
        body::Body,
        if_match::{ROUNDS, crowded},
        texts::LimitGroupIdText,
    },
    resources::{
        destinations::view::{hold_view, override_view},
        temporary::{Change, Edit, HoldRequest, LimitsOverrideRequest},
    },
};

type EditGroup = Edit<LimitGroupIdText>;

/// Makes the change, and shows the group beside what held before.
async fn make<T>(
    edit: &EditGroup,
    change: Change,
    shown: impl FnOnce(types::LimitGroup, Temporary) -> T,
) -> ApiResult<([(HeaderName, String); 1], Json<T>)> {
    let Edit { api, id: LimitGroupIdText(id), caller, author, if_match } = edit;
    for _ in 0..ROUNDS {
        let current = find(api, caller, *id).await?;
        if_match.check(&etag(&current))?;
        let before = current.temporary.at(api.clock.now());
        let edited = LimitGroup { temporary: change.applied_to(before.clone()), ..(*current).clone() };
        if let GroupChange::Made(made) = save(api, caller, author, Some(&current), edited, unkeyed).await? {
            let etag = [(http::header::ETAG, etag(&made))];
            return Ok((etag, Json(shown(view(&made, api.clock.now()), before))));
        }
    }
    Err(crowded(RESOURCE))
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
    let change = request.begin(edit.api.clock.now())?;
    make(&edit, change, |limit_group, before| types::OverriddenLimitGroup {
        limit_group,
        replaced: before.overridden.as_ref().map(override_view),
    })
    .await
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
    make(&edit, Change::Override(None), |group, _| group).await
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
    let change = request.begin(edit.api.clock.now())?;
    make(&edit, change, |limit_group, before| types::HeldLimitGroup {
        limit_group,
        replaced: before.hold.as_ref().map(hold_view),
    })
    .await
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
    make(&edit, Change::Hold(None), |group, _| group).await
}
