//! Destinations: create, list, show, edit and delete.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::{HeaderValue, StatusCode, header};
use std::time::Duration;
use weir_core::{Destination, DestinationId, Timestamp, breaker::Breaker, destination::Settings};
use weir_queue::Terms;
use weir_store::DestinationPatch;

use crate::{
    extract::{self, PathId},
    page::Listing,
    problem::{self, ApiResult, Problem},
    query::Query,
    settings,
    state::{Api, ApiState},
    views::{CreatedView, DestinationView, List, SettingsView},
};

/// How often an edit is tried while other requests edit the same destination. In each round one of these requests
/// succeeds.
const EDIT_ROUNDS: usize = 64;
/// `updated_at` is shown in milliseconds, and two versions of a destination must show different values.
const TICK: Duration = Duration::from_millis(1);

/// Create a destination
///
/// Only `url` is required. `errors` lists every invalid field.
#[utoipa::path(
    post, path = "/v1/destinations", operation_id = "create_destination", tag = "destinations", request_body = crate::openapi::DestinationRequest,
    responses((status = 201, description = "Created; shows the secret, which otherwise only `/secret` and `/rotate-secret` show", body = CreatedView,
        headers(("location" = String, description = "The path of the destination"))))
)]
pub(crate) async fn create(State(api): State<Api>, query: Query, request: Request) -> ApiResult<Response> {
    query.close()?;
    let body = extract::json(&api, request).await?;
    let settings = settings::read(body, &api.addresses)?;
    let now = api.clock.now();
    let destination = Destination {
        id: DestinationId::new(now, rand::random()),
        created_at: now,
        updated_at: now,
        settings,
        paused_reason: None,
        held_until: None,
        held_reason: None,
        breaker: Breaker::default(),
    };
    let destination = api.store.create_destination(destination).await?;
    let mut response = (StatusCode::CREATED, Json(CreatedView::new(&destination, now))).into_response();
    let location = HeaderValue::try_from(format!("/v1/destinations/{}", destination.id));
    if let Ok(location) = location {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(unstored(response))
}

/// List destinations
#[utoipa::path(
    get, path = "/v1/destinations", operation_id = "list_destinations", tag = "destinations",
    params(
        ("tenant" = Option<crate::openapi::TenantText>, Query, description = "Only this tenant"),
        crate::openapi::PageParameters,
    ),
    responses((status = 200, description = "One page, newest first", body = List<DestinationView>))
)]
pub(crate) async fn list(State(api): State<Api>, mut query: Query) -> ApiResult<Json<List<DestinationView>>> {
    let tenant = query.tenant();
    let page = Listing::Destinations.request(&mut query);
    query.close()?;
    let now = api.clock.now();
    let page = api.store.list_destinations(tenant.as_deref(), page).await?;
    Ok(Listing::Destinations.page(page, |destination| DestinationView::new(&destination, now)))
}

/// Show a destination
#[utoipa::path(
    get, path = "/v1/destinations/{id}", operation_id = "show_destination", tag = "destinations", params(("id" = crate::openapi::DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 200, description = "The destination", body = DestinationView))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    PathId(id): PathId<DestinationId>,
    query: Query,
) -> ApiResult<Json<DestinationView>> {
    query.close()?;
    let destination = find(&api, id).await?;
    Ok(Json(DestinationView::new(&destination, api.clock.now())))
}

/// Edit a destination
///
/// A JSON merge patch (RFC 7396): only the given fields change, and `null` restores the default. Members of `retry`,
/// `breaker`, `headers` and `signature` are merged one by one; arrays are replaced as a whole. New limits and `paused`
/// take effect within 100 ms and do not reset the windows. A `secret` replaces the old secret at once; `rotate-secret`
/// replaces it with an overlap. A URL with another origin (scheme, host or port) removes the headers that the same
/// patch does not set: their values are write-only and were meant for the previous origin.
#[utoipa::path(
    patch, path = "/v1/destinations/{id}", operation_id = "edit_destination", tag = "destinations", params(("id" = crate::openapi::DestinationIdText, Path, description = "`dst_…`")),
    request_body = crate::openapi::DestinationPatchRequest,
    responses(
        (status = 200, description = "The edited destination", body = DestinationView),
        (status = 409, response = inline(crate::openapi::Refused)),
    )
)]
pub(crate) async fn edit(
    State(api): State<Api>,
    PathId(id): PathId<DestinationId>,
    query: Query,
    request: Request,
) -> ApiResult<Json<DestinationView>> {
    query.close()?;
    let patch = extract::json(&api, request).await?;
    let destination = change(&api, id, |current| {
        let shown = shown(&current.settings)?;
        settings::merge(&current.settings, shown, patch.clone(), &api.addresses)
    })
    .await?;
    Ok(Json(DestinationView::new(&destination, api.clock.now())))
}

/// Applies `edit` to a destination and announces the change. If another request changed the destination meanwhile, it
/// starts again from the new state.
pub(crate) async fn change(
    api: &ApiState,
    id: DestinationId,
    edit: impl Fn(&Destination) -> ApiResult<Settings>,
) -> ApiResult<Arc<Destination>> {
    for _ in 0..EDIT_ROUNDS {
        let current = find(api, id).await?;
        let settings = edit(&current)?;
        // An edit without a change is announced too: it may repeat an edit whose announcement was lost.
        let edited = if settings == current.settings { Some(current) } else { commit(api, &current, settings).await? };
        if let Some(destination) = edited {
            api.announce_edit(id, Terms::of(&destination, api.clock.now())).await;
            return Ok(destination);
        }
    }
    Err(Problem::conflict("other requests keep editing this destination; try again"))
}

async fn commit(api: &ApiState, current: &Destination, settings: Settings) -> ApiResult<Option<Arc<Destination>>> {
    let patch = DestinationPatch {
        id: current.id,
        expected_updated_at: current.updated_at,
        settings,
        now: later(current.updated_at, api.clock.now()),
    };
    Ok(api.store.patch_destination(patch).await?)
}

fn later(updated_at: Timestamp, now: Timestamp) -> Timestamp {
    now.max(updated_at + TICK)
}

fn shown(settings: &Settings) -> ApiResult<serde_json::Value> {
    serde_json::to_value(SettingsView::from(settings))
        .map_err(|error| problem::internal("cannot serialise the settings of a destination", &error))
}

/// Delete a destination
///
/// Cancels its waiting deliveries and keeps the history.
#[utoipa::path(
    delete, path = "/v1/destinations/{id}", operation_id = "delete_destination", tag = "destinations", params(("id" = crate::openapi::DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 204, description = "Deleted"))
)]
pub(crate) async fn delete(
    State(api): State<Api>,
    PathId(id): PathId<DestinationId>,
    query: Query,
) -> ApiResult<StatusCode> {
    query.close()?;
    let (destination, now) = (find(&api, id).await?, api.clock.now());
    if !api.store.delete_destination(id, now).await? {
        return Err(missing(id));
    }
    api.announce_edit(id, Terms::deleted(later(destination.updated_at, now))).await;
    Ok(StatusCode::NO_CONTENT)
}

/// The destination, or a 404 problem.
pub(crate) async fn find(api: &ApiState, id: DestinationId) -> ApiResult<Arc<Destination>> {
    api.store.destination(id).await?.ok_or_else(|| missing(id))
}

pub(crate) fn missing(id: DestinationId) -> Problem {
    Problem::not_found(format!("there is no destination {id}"))
}

/// Keeps a response with a secret out of caches.
pub(crate) fn unstored(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
