//! Limit groups by tenant and name, for tools that declare what should be there (Terraform, GitOps).

use axum::{extract::State, response::Response};
use http::StatusCode;
use weir_api_types as types;
use weir_core::{LimitGroup, destination::ALL_TENANTS};
use weir_store::GroupChange;

use super::{
    READ_ONLY, RESOURCE,
    edits::{full, save, unkeyed},
    etag, new_group, shown,
};
use crate::{
    auth::Caller,
    problem::{ApiResult, Changed, Refused},
    readers::{
        body::Body,
        fields::object,
        if_match::{Preconditions, ROUNDS, crowded},
        query::Query,
        texts::AnyTenantText,
    },
    resources::{
        activity::Author,
        destinations::{
            PathName, check_may_change_group,
            rates::{Limits, RateLimitRequest},
        },
    },
    state::Api,
};

object! {
    /// All settings of a limit group except those in the path; an omitted field gets its default.
    pub(crate) struct LimitGroupReplacement {
        #[schema(value_type = Option<Vec<RateLimitRequest>>, max_items = 4, default = json!([]))]
        rate_limits: Option<Limits>,
        #[schema(minimum = 1, maximum = 10_000)]
        max_in_flight: Option<u32>,
    }
    read_only = &READ_ONLY;
}

/// Create or replace a limit group by its name
///
/// An omitted field gets its default. The tenant `*` stands for groups whose members may be of any tenant. With
/// `If-None-Match: *` the request only creates, with `If-Match` and the `etag` of an earlier answer it only replaces that
/// version; otherwise the answer is 412.
#[utoipa::path(
    put, path = "/v1/limit-groups/by-name/{tenant}/{name}", operation_id = "put_limit_group", tag = "limit groups",
    params(
        ("tenant" = AnyTenantText, Path, description = "The tenant of the group; `*`: any tenant"),
        (
            "name" = String, Path, description = "The name of the group", min_length = 1, max_length = 200,
            pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*[^\\x00-\\x1f\\x7f-\\x9f\\s][^\\x00-\\x1f\\x7f-\\x9f]*$",
        ),
    ),
    request_body = LimitGroupReplacement,
    responses(
        (status = 200, description = "Replaced", body = types::LimitGroup,
            headers(("etag" = String, description = "The new version of the group"))),
        (status = 201, description = "Created", body = types::LimitGroup, headers(
            ("etag" = String, description = "The version of the group"),
            ("location" = String, description = "The path of the group"),
        )),
        (status = 409, response = inline(Refused)),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn put(
    State(api): State<Api>,
    caller: Caller,
    PathName { tenant, name }: PathName,
    author: Author,
    preconditions: Preconditions,
    _: Query<()>,
    Body(request): Body<LimitGroupReplacement>,
) -> ApiResult<Response> {
    let tenant = Some(tenant).filter(|tenant| tenant != ALL_TENANTS);
    let group = new_group(&api, tenant, name, request.rate_limits, request.max_in_flight);
    // Whoever may not see the group does not learn whether it exists.
    check_may_change_group(&caller, group.tenant.as_deref())?;
    for _ in 0..ROUNDS {
        let current = api.store.limit_group_named(group.tenant.as_deref(), &group.name).await?;
        preconditions.check(current.as_deref().map(etag))?;
        let (status, replacement) = match &current {
            None => (StatusCode::CREATED, group.clone()),
            Some(current) => {
                let (rate_limits, max_in_flight) = (group.rate_limits.clone(), group.max_in_flight);
                (StatusCode::OK, LimitGroup { rate_limits, max_in_flight, ..(**current).clone() })
            }
        };
        match save(&api, &caller, &author, current.as_deref(), replacement, unkeyed).await? {
            GroupChange::Made(made) => return Ok(shown(status, &made, api.clock.now())),
            GroupChange::Full => return Err(full()),
            GroupChange::Before(_) | GroupChange::Taken | GroupChange::Outdated => {}
        }
    }
    Err(crowded(RESOURCE))
}
