//! Destinations by tenant and name, for tools that declare what should be there (Terraform, GitOps).

use std::sync::Arc;

use axum::{
    Json,
    extract::{FromRequestParts, Path, State},
    response::{IntoResponse, Response},
};
use http::request::Parts;
use serde_json::Value;
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{RefOr, Schema},
};
use weir_api_types as types;
use weir_core::{Destination, egress::ProxyChoice};
use weir_store::NamedCreation;

use super::{
    created, creation_of,
    edits::{Change, check_may_change, check_may_route, commit},
    etag, etag_header, full,
    limit_group::check_may_move,
    new_destination,
    request::{DestinationRequest, NameText},
    settings, shown,
};
use crate::{
    auth::Caller,
    errors::{Errors, type_name},
    problem::{ApiResult, Changed, Problem, Refused},
    readers::{
        body::Body,
        fields::{Read, object_schema},
        if_match::{Preconditions, ROUNDS, crowded},
        query::Query,
        texts::{AnyTenantText, Text as _},
    },
    resources::activity::Author,
    state::{Api, ApiState},
};

/// The fields that the path gives.
const IN_PATH: [&str; 2] = ["name", "tenant"];

/// The settings of a destination except those in the path. They are read as a [`DestinationRequest`].
pub(crate) struct DestinationReplacement(Value);

impl Read for DestinationReplacement {
    fn read(value: Value, _: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let Value::Object(fields) = &value else {
            errors.add(at, format!("must be an object, not {}", type_name(&value)));
            return None;
        };
        for field in IN_PATH.into_iter().filter(|field| fields.contains_key(*field)) {
            errors.add(format!("/{field}"), "must not be given: the path names it");
        }
        Some(Self(value))
    }
}

impl ToSchema for DestinationReplacement {
    fn schemas(schemas: &mut Vec<(String, RefOr<Schema>)>) {
        DestinationRequest::schemas(schemas);
    }
}

impl PartialSchema for DestinationReplacement {
    fn schema() -> RefOr<Schema> {
        let mut replacement = object_schema::<DestinationRequest>();
        for field in IN_PATH {
            replacement.properties.remove(field);
        }
        replacement.description =
            Some("All settings of a destination; an omitted field gets its default, and the secret stays.".to_owned());
        RefOr::T(Schema::Object(replacement))
    }
}

/// The tenant and the name in a path. A text that is no tenant or no name is answered with 404.
pub(crate) struct PathName {
    pub(crate) tenant: String,
    pub(crate) name: String,
}

impl<S: Send + Sync> FromRequestParts<S> for PathName {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path((tenant, name)) = Path::<(String, String)>::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::not_found("the path is not valid UTF-8"))?;
        let AnyTenantText(tenant) = AnyTenantText::parse(&tenant)
            .map_err(|error| Problem::not_found(format!("the tenant in the path {error}")))?;
        let NameText(name) =
            NameText::parse(&name).map_err(|error| Problem::not_found(format!("the name in the path {error}")))?;
        Ok(Self { tenant, name })
    }
}

/// Create or replace a destination by its name
///
/// Creates the destination, or replaces all its settings: an omitted field gets its default. The secret stays unless
/// the body has another one, which needs the role `admin`, and so does the value of a header, the password of the `proxy` and
/// the `client_key` of `tls` that the body gives as `***`. Two requests at once
/// create one destination. Names are not unique: if several destinations of the tenant have this name, the answer is
/// 409.
///
/// With `If-None-Match: *` the request only creates, with `If-Match` and the `etag` of an earlier answer it only
/// replaces that version; otherwise the answer is 412.
#[utoipa::path(
    put, path = "/v1/destinations/by-name/{tenant}/{name}", operation_id = "put_destination", tag = "destinations",
    params(
        ("tenant" = AnyTenantText, Path, description = "The tenant of the destination"),
        (
            "name" = String, Path, description = "The name of the destination", min_length = 1, max_length = 200,
            pattern = "^[^\\x00-\\x1f\\x7f-\\x9f]*[^\\x00-\\x1f\\x7f-\\x9f\\s][^\\x00-\\x1f\\x7f-\\x9f]*$",
        ),
    ),
    request_body = DestinationReplacement,
    responses(
        (status = 200, description = "Replaced", body = types::Destination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 201, description = "Created; shows the secret", body = types::CreatedDestination, headers(
            ("etag" = String, description = "The version of the destination"),
            ("location" = String, description = "The path of the destination"),
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
    Body(DestinationReplacement(mut body)): Body<DestinationReplacement>,
) -> ApiResult<Response> {
    check_may_change(&caller, &tenant)?;
    body["tenant"] = tenant.as_str().into();
    body["name"] = name.as_str().into();
    for _ in 0..ROUNDS {
        let named = api.store.named_destinations(&tenant, &name).await?;
        if named.len() > 1 {
            let detail = format!("several destinations of the tenant are named `{name}`: rename all but one");
            return Err(Problem::conflict(detail));
        }
        preconditions.check(named.first().map(|current| etag(current)))?;
        if let Some(current) = named.first() {
            if let Some(destination) = replace(&api, &caller, &author, current, body.clone()).await? {
                let view = shown(&api, &destination).await?;
                return Ok((etag_header(&destination), Json(view)).into_response());
            }
        } else if let Some(response) = create(&api, &caller, &author, body.clone()).await? {
            return Ok(response);
        }
    }
    Err(crowded("destination"))
}

/// `None` if another request has created the destination meanwhile.
async fn create(api: &ApiState, caller: &Caller, author: &Author, body: Value) -> ApiResult<Option<Response>> {
    let settings = settings::read(body, &api.addresses)?;
    check_may_route(caller, &ProxyChoice::default(), &settings.egress.proxy)?;
    check_may_move(api, caller, (None, settings.limit_group), &settings.tenant).await?;
    let now = api.clock.now();
    let (group, tenant) = (settings.limit_group, settings.tenant.clone());
    let destination = new_destination(settings, now);
    let activity = creation_of(&destination, author)?;
    match api.store.create_named_destination(destination, activity).await? {
        NamedCreation::New(destination) => Ok(Some(created(api, &destination, now))),
        NamedCreation::Taken => Ok(None),
        NamedCreation::Full => {
            check_may_move(api, caller, (None, group), &tenant).await?;
            Err(full())
        }
    }
}

/// `None` if another request has edited or deleted the destination meanwhile.
async fn replace(
    api: &ApiState,
    caller: &Caller,
    author: &Author,
    current: &Arc<Destination>,
    body: Value,
) -> ApiResult<Option<Arc<Destination>>> {
    let settings = settings::replace(&current.settings, body, &api.addresses)?;
    let edited = match settings == current.settings {
        true => Some(Arc::clone(current)),
        false => {
            let change = Change::from(settings);
            let edited = commit(api, caller, current, change, author, |activity, _| Ok(activity.into())).await?;
            edited.into_new().flatten()
        }
    };
    if let Some(destination) = &edited {
        api.announce_edit(destination).await;
    }
    Ok(edited)
}
