//! Limit groups: create, list, show, edit and delete. `edits` stores changes, and `figures` explains a group.

pub(crate) mod audit;
pub(crate) mod by_name;
mod edits;
pub(crate) mod figures;
pub(crate) mod history;
pub(crate) mod reservations;
pub(crate) mod temporary;

use std::sync::Arc;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use http::StatusCode;
use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{
    LimitGroup, LimitGroupId, RateLimits, Timestamp,
    activity::{Action, Activity},
    destination::DEFAULT_TENANT,
};
use weir_store::{GroupChange, GroupDeletion, tenant_code};

use self::edits::{change, full, recorded, save, values};
use super::{
    activity::Author,
    destinations::{
        check_may_change_group,
        rates::{self, Limits, RateLimitRequest},
        request::NameText,
        view::{hold_view, override_view},
    },
    edit::Edit,
};
use crate::{
    auth::Caller,
    errors::Errors,
    problem::{ApiResult, Changed, Problem, Refused},
    readers::{
        body::{Body, PathId},
        fields::object,
        idempotency::{FirstAnswer, IdempotencyParameters, Keyed},
        if_match::{self, ROUNDS, crowded},
        page::{self, List, Listing, PageParameters},
        query::Query,
        texts::{LimitGroupIdText, TenantText},
    },
    state::{Api, ApiState},
};

/// How messages name the resource.
const RESOURCE: &str = "limit group";

object! {
    /// A new limit group.
    pub(crate) struct LimitGroupRequest {
        /// Not empty, and of no other group of the tenant.
        #[schema(min_length = 1)]
        name: NameText,
        /// Null: its members may be of any tenant, and only a key with the role `admin` that is not bound to tenants changes
        /// the group or its members.
        #[schema(value_type = Option<TenantText>, default = json!(DEFAULT_TENANT))]
        tenant: Option<Option<TenantText>>,
        /// Of the sends of all members together, beside the limits of each. At most one limit per period; `[]` means
        /// unlimited.
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4, default = json!([]))]
        rate_limits: Option<Limits>,
        /// The maximum number of sends of all members that are started and not yet settled. Null: only theirs.
        #[schema(minimum = 1, maximum = 10_000)]
        max_in_flight: Option<u32>,
    }
    check = Self::check;
    read_only = &READ_ONLY;
}

object! {
    /// A JSON merge patch: only the given fields change, and `null` restores the default.
    pub(crate) struct LimitGroupPatch {
        /// Not empty, and of no other group of the tenant.
        #[schema(min_length = 1)]
        name: Option<NameText>,
        /// A group cannot change its tenant.
        #[schema(value_type = Option<TenantText>)]
        tenant: Option<Option<TenantText>>,
        /// Replaces the whole array. Takes effect within 100 ms and does not reset the windows.
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4)]
        rate_limits: Option<Option<Limits>>,
        #[schema(value_type = Option<u32>, minimum = 1, maximum = 10_000)]
        max_in_flight: Option<Option<u32>>,
    }
    check = Self::check;
    read_only = &READ_ONLY;
}

const READ_ONLY: [&str; 5] = ["id", "created_at", "updated_at", "override", "hold"];

impl LimitGroupRequest {
    fn check(&self, at: &str, errors: &mut Errors) {
        check_name(Some(&self.name), at, errors);
    }
}

impl LimitGroupPatch {
    fn check(&self, at: &str, errors: &mut Errors) {
        check_name(self.name.as_ref(), at, errors);
    }
}

fn check_name(name: Option<&NameText>, at: &str, errors: &mut Errors) {
    if name.is_some_and(|name| name.0.is_empty()) {
        errors.add(format!("{at}/name"), "must not be empty: destinations and people name the group by it");
    }
}

/// Each period has at most one limit.
pub(crate) fn keywords() -> Value {
    json!({"allOf": [{"properties": {"rate_limits": Limits::keywords()}}]})
}

/// The list of limit groups.
pub(crate) enum LimitGroups {}

impl Listing for LimitGroups {
    const TAG: u8 = b'g';
}

type LimitGroupPage = PageParameters<LimitGroups>;
type EditGroup = Edit<LimitGroupIdText>;

/// Create a limit group
///
/// A budget that several destinations share, because the receiver counts them as one account. A destination joins with its
/// `limit_group`.
#[utoipa::path(
    post, path = "/v1/limit-groups", operation_id = "create_limit_group", tag = "limit groups",
    params(IdempotencyParameters), request_body = LimitGroupRequest,
    responses(
        (status = 201, description = "Created", body = types::LimitGroup, headers(
            ("etag" = String, description = "The version of the group"),
            ("location" = String, description = "The path of the group"),
        )),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn create(
    State(api): State<Api>,
    caller: Caller,
    author: Author,
    _: Query<()>,
    Keyed { body: request, idempotency }: Keyed<LimitGroupRequest>,
) -> ApiResult<Response> {
    if let Some(first) = idempotency.first_answer(&api).await? {
        return Ok(first.into_response());
    }
    let tenant = match request.tenant {
        Some(given) => given.map(|tenant| tenant.0),
        None => Some(caller.limit_to(None)?.unwrap_or_else(|| DEFAULT_TENANT.to_owned())),
    };
    let group = new_group(&api, tenant, request.name.0, request.rate_limits, request.max_in_flight);
    let recorded = |activity: Activity, group: &LimitGroup| {
        let mut first = FirstAnswer::new(StatusCode::CREATED, &view(group, group.created_at))?;
        (first.location, first.etag) = (Some(path(group)), Some(etag(group)));
        idempotency.creation(activity, &first, group.created_at)
    };
    match save(&api, &caller, &author, None, group, recorded).await? {
        GroupChange::Made(made) => Ok(shown(StatusCode::CREATED, &made, api.clock.now())),
        // Another request with the same idempotency key has created a group first.
        GroupChange::Before(stored) => Ok(idempotency.read(stored)?.into_response()),
        GroupChange::Full => Err(full()),
        GroupChange::Taken | GroupChange::Outdated => {
            Err(Problem::conflict("a limit group of the tenant has this name: choose another one"))
        }
    }
}

/// List limit groups
///
/// With a key that is bound to tenants, a page may be short or empty and still have a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/limit-groups", operation_id = "list_limit_groups", tag = "limit groups", params(LimitGroupPage),
    responses((status = 200, description = "One page, newest first", body = List<types::LimitGroupRow>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query(page): Query<LimitGroupPage>,
) -> ApiResult<Json<List<types::LimitGroupRow>>> {
    let page = api.store.list_limit_groups(&caller.scope(None)?, page.request).await?;
    let sample = api.live.sample().await?;
    let ids: Vec<LimitGroupId> = page.rows.iter().map(|group| group.id).collect();
    let mut members = figures::members(&sample, &ids);
    let shown =
        |group: Arc<LimitGroup>| figures::row(&group, &members.remove(&group.id).unwrap_or_default(), sample.as_of);
    Ok(page::view::<LimitGroups, _, _>(page, |group| *group.id.as_bytes(), shown))
}

/// Show a limit group
#[utoipa::path(
    get, path = "/v1/limit-groups/{id}", operation_id = "show_limit_group", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")),
    responses((status = 200, description = "The group", body = types::LimitGroup,
        headers(("etag" = String, description = "The version of the group"))))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(LimitGroupIdText(id)): PathId<LimitGroupIdText>,
    _: Query<()>,
) -> ApiResult<Response> {
    let group = find(&api, &caller, id).await?;
    Ok(shown(StatusCode::OK, &group, api.clock.now()))
}

/// Edit a limit group
///
/// New limits take effect within 100 ms for all members, and do not reset the windows. With `If-Match` the edit is made only
/// over that version; otherwise the answer is 412.
#[utoipa::path(
    patch, path = "/v1/limit-groups/{id}", operation_id = "edit_limit_group", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")),
    request_body = LimitGroupPatch,
    responses(
        (status = 200, description = "The edited group", body = types::LimitGroup,
            headers(("etag" = String, description = "The new version of the group"))),
        (status = 409, response = inline(Refused)),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn edit(edit: EditGroup, Body(patch): Body<LimitGroupPatch>) -> ApiResult<Response> {
    let limits = patch.rate_limits.map(|limits| RateLimits::from(limits.unwrap_or_default()));
    let (_, made) = change(&edit, |current| {
        let tenant = patch.tenant.as_ref().map(|tenant| tenant.as_ref().map(|tenant| &tenant.0));
        if tenant.is_some_and(|tenant| tenant != current.tenant.as_ref()) {
            return Err(Problem::conflict("a limit group cannot change its tenant: create one for the other tenant"));
        }
        let mut edited = current.clone();
        if let Some(name) = &patch.name {
            edited.name.clone_from(&name.0);
        }
        if let Some(limits) = &limits {
            edited.rate_limits.clone_from(limits);
        }
        if let Some(max_in_flight) = patch.max_in_flight {
            edited.max_in_flight = max_in_flight;
        }
        Ok(edited)
    })
    .await?;
    Ok(shown(StatusCode::OK, &made, edit.api.clock.now()))
}

/// Delete a limit group
///
/// Refused while it has members. With `If-Match` only this version is deleted.
#[utoipa::path(
    delete, path = "/v1/limit-groups/{id}", operation_id = "delete_limit_group", tag = "limit groups",
    params(("id" = LimitGroupIdText, Path, description = "`lgr_…`")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 409, response = inline(Refused)),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn delete(edit: EditGroup) -> ApiResult<StatusCode> {
    let Edit { api, id: LimitGroupIdText(id), caller, author, if_match } = edit;
    for _ in 0..ROUNDS {
        let current = find(&api, &caller, id).await?;
        if_match.check(&etag(&current))?;
        check_may_change_group(&caller, current.tenant.as_deref())?;
        let activity = author.does(Action::LimitGroupDeleted, api.clock.now());
        let activity = recorded(activity, &current).changing(Some(values(&current, api.clock.now())), None);
        match api.store.delete_limit_group(id, current.updated_at, activity).await? {
            GroupDeletion::Deleted => return Ok(StatusCode::NO_CONTENT),
            GroupDeletion::HasMembers => {
                return Err(Problem::conflict(
                    "the limit group has members: set their `limit_group` to null or to another one first",
                ));
            }
            GroupDeletion::Outdated => {}
        }
    }
    Err(crowded(RESOURCE))
}

fn new_group(
    api: &ApiState,
    tenant: Option<String>,
    name: String,
    limits: Option<Limits>,
    max_in_flight: Option<u32>,
) -> LimitGroup {
    let now = api.clock.now();
    LimitGroup {
        keys_of: None,
        id: LimitGroupId::new(now, rand::random()),
        tenant,
        name,
        rate_limits: RateLimits::from(limits.unwrap_or_default()),
        max_in_flight,
        temporary: Default::default(),
        created_at: now,
        updated_at: now,
    }
}

/// The group, or a 404 problem. The group of a tenant that the caller does not see does not exist for it.
pub(crate) async fn find(api: &ApiState, caller: &Caller, id: LimitGroupId) -> ApiResult<Arc<LimitGroup>> {
    let found = api.store.limit_groups(&[id]).await?.pop().flatten();
    let found = found.filter(|group| caller.sees(tenant_code(group.tenant.as_deref())));
    found.ok_or_else(|| Problem::not_found(format!("there is no limit group {id}")))
}

fn etag(group: &LimitGroup) -> String {
    if_match::etag(group.updated_at.as_nanos())
}

fn path(group: &LimitGroup) -> String {
    format!("/v1/limit-groups/{}", group.id)
}

fn shown(status: StatusCode, group: &LimitGroup, now: Timestamp) -> Response {
    if_match::versioned(status, etag(group), path(group), view(group, now))
}

pub(crate) fn view(group: &LimitGroup, now: Timestamp) -> types::LimitGroup {
    types::LimitGroup {
        id: group.id.to_string(),
        name: group.name.clone(),
        tenant: group.tenant.clone(),
        rate_limits: group.rate_limits.as_slice().iter().map(rates::view).collect(),
        max_in_flight: group.max_in_flight,
        overridden: group.temporary.override_at(now).map(override_view),
        hold: group.temporary.hold_at(now).map(hold_view),
        created_at: group.created_at,
        updated_at: group.updated_at,
    }
}
