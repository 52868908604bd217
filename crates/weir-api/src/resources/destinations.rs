//! Destinations: create, list, show, edit and delete. The settings have a file each, with their request and their view.

pub(crate) mod adaptive;
pub(crate) mod body;
mod breaker;
mod by_name;
mod edits;
pub(crate) mod egress;
pub(crate) mod filter;
mod headers;
pub(crate) mod health;
pub(crate) mod key_limits;
mod limit_group;
mod patch;
pub(crate) mod rates;
mod release;
pub(crate) mod request;
pub(crate) mod retry;
pub(crate) mod settings;
pub(crate) mod signature;
pub(crate) mod temporary;
pub(crate) mod view;

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse, Response},
};
use http::{HeaderName, HeaderValue, StatusCode, header};
use serde_json::{Value, json};
use url::Url;
use weir_api_types as types;
use weir_core::{
    Destination, DestinationId, Timestamp,
    activity::{Action, Activity},
    destination::Settings,
    egress::ProxyChoice,
};
use weir_queue::known_paces;
use weir_store::{Created, DISCARDABLE, Deletion, DeliveryFilter, DestinationDeletion, discard};

pub(crate) use self::{
    by_name::{__path_put, PathName, put},
    edits::{Change, Ends, Requested, change, commit},
    limit_group::check_may_change_group,
    release::{__path_release, release},
};
use self::{
    edits::{check_may_change, check_may_route},
    limit_group::check_may_move,
    patch::DestinationPatch as Patch,
    request::DestinationRequest,
};
use crate::{
    auth::Caller,
    problem::{self, ApiResult, Changed, Problem, ProblemKind, Refused},
    readers::{
        body::{Body, PathId},
        idempotency::{FirstAnswer, IdempotencyParameters, Keyed, secret_digest},
        if_match::{self, ROUNDS, crowded, later},
        page::{self, List, Listing, PageParameters},
        query::{Query, parameters},
        texts::{AnyTenantText, DestinationConditionText, DestinationIdText, NewEventTypeText, SearchText},
    },
    resources::{
        activity::{Author, destination_changes},
        edit::Edit,
    },
    state::{Api, ApiState},
};

/// The list of destinations.
pub(crate) enum Destinations {}

impl Listing for Destinations {
    const TAG: u8 = b'd';
}

type DestinationPage = PageParameters<Destinations>;

parameters! {
    /// The filter of the list.
    pub(crate) struct DestinationFilter {
        /// Only this tenant; `*`: those of operators
        tenant: Option<AnyTenantText>,
        /// Only destinations with exactly this name
        name: Option<SearchText>,
        /// Only destinations with exactly this URL
        url: Option<SearchText>,
        /// `paused`, `held` (by `Retry-After` or a used-up quota), `breaker` (open or half open), or `active`: none of
        /// these
        state: Option<DestinationConditionText>,
        /// Only destinations with this text in the name or the URL, in upper or lower case
        q: Option<SearchText>,
        /// Only destinations that take events of this type by their `event_types`
        event_type: Option<NewEventTypeText>,
    }
}

/// Create a destination
///
/// Only `url` is required. `errors` lists every invalid field.
#[utoipa::path(
    post, path = "/v1/destinations", operation_id = "create_destination", tag = "destinations", request_body = DestinationRequest,
    params(IdempotencyParameters),
    responses(
        (status = 201, description = "Created; shows the secret, which otherwise only `/secret` and `/rotate-secret` show", body = types::CreatedDestination,
        headers(("location" = String, description = "The path of the destination"))),
        (status = 409, response = inline(Refused)),
    )
)]
pub(crate) async fn create(
    State(api): State<Api>,
    caller: Caller,
    author: Author,
    _: Query<()>,
    Keyed { mut body, idempotency }: Keyed<Value>,
) -> ApiResult<Response> {
    if let Some(first) = idempotency.first_answer(&api).await? {
        return created_before(&api, &caller, &author, first).await;
    }
    name_tenant(&mut body, &caller)?;
    let settings = settings::read(body, &api.addresses)?;
    check_may_change(&caller, &settings.tenant)?;
    check_may_route(&caller, &ProxyChoice::default(), &settings.egress.proxy)?;
    check_may_move(&api, &caller, (None, settings.limit_group), &settings.tenant).await?;
    let now = api.clock.now();
    let (group, tenant) = (settings.limit_group, settings.tenant.clone());
    let destination = new_destination(settings, now);
    let activity = creation_of(&destination, &author)?;
    let mut first = FirstAnswer::new(StatusCode::CREATED, &view::view(&destination, now, &api.event_types))?;
    (first.location, first.etag) = (Some(path(destination.id)), Some(etag(&destination)));
    first.secret_digest = Some(secret_digest(&destination.settings.signing.secret.reveal()));
    match api.store.create_destination(destination, idempotency.creation(activity, &first, now)?).await? {
        Created::New(destination) => Ok(created(&api, &destination, now)),
        // Another request with the same idempotency key has created a destination first.
        Created::Before(stored) => created_before(&api, &caller, &author, idempotency.read(stored)?).await,
        Created::Full => {
            // Perhaps the group is gone or full by now.
            check_may_move(&api, &caller, (None, group), &tenant).await?;
            Err(full())
        }
    }
}

/// The tenant has as many destinations as it may.
fn full() -> Problem {
    Problem::conflict(
        "the tenant has as many destinations as the setting `WEIR_MAX_DESTINATIONS` of the server allows: delete one, or \
         raise the setting",
    )
}

/// Answers the creation of a destination.
fn created(api: &ApiState, destination: &Destination, now: Timestamp) -> Response {
    let view = Json(view::created(destination, now, &api.event_types));
    let location = [(header::LOCATION, path(destination.id))];
    unstored((StatusCode::CREATED, etag_header(destination), location, view).into_response())
}

/// The first answer again. It has no secret, so the secret is read from the destination, if it is still the same: the
/// caller of a creation may not learn a later one.
async fn created_before(
    api: &ApiState,
    caller: &Caller,
    author: &Author,
    mut first: FirstAnswer,
) -> ApiResult<Response> {
    let id = first.body["id"].as_str().and_then(|id| id.parse().ok());
    let id = id.ok_or_else(|| problem::internal("a stored answer has no id", &first.body))?;
    let gone = || Problem::conflict(format!("this idempotency key has created {id}, which is deleted"));
    let found = api.store.destination(id).await?.filter(|found| caller.sees(&found.settings.tenant));
    let destination = found.ok_or_else(gone)?;
    let secret = destination.settings.signing.secret.reveal();
    if first.secret_digest != Some(secret_digest(&secret)) {
        let detail = format!("this idempotency key has created {id}, whose secret was replaced since");
        return Err(Problem::conflict(detail));
    }
    let activity = author.does(Action::SecretShown, api.clock.now()).of_destination(&destination);
    api.store.record_activity(activity.into()).await?;
    first.body["secret"] = secret.into();
    Ok(unstored(first.into_response()))
}

fn path(id: DestinationId) -> String {
    format!("/v1/destinations/{id}")
}

fn new_destination(settings: Settings, now: Timestamp) -> Destination {
    Destination::new(DestinationId::new(now, rand::random()), settings, now)
}

fn creation_of(destination: &Destination, author: &Author) -> ApiResult<Activity> {
    let (before, after) = destination_changes(None, Some(destination))?;
    let created = author.does(Action::DestinationCreated, destination.created_at);
    Ok(created.of_destination(destination).changing(before, after))
}

/// Without a tenant in its body, the new destination belongs to the only tenant of the caller.
fn name_tenant(body: &mut Value, caller: &Caller) -> ApiResult<()> {
    if let Value::Object(fields) = body
        && fields.get("tenant").is_none_or(Value::is_null)
    {
        fields.extend(caller.limit_to(None)?.map(|tenant| ("tenant".to_owned(), tenant.into())));
    }
    Ok(())
}

/// List destinations
///
/// With the filters `state`, `q` and `event_type`, a page may be short or empty and still have a `next_cursor`.
#[utoipa::path(
    get, path = "/v1/destinations", operation_id = "list_destinations", tag = "destinations",
    params(DestinationFilter, DestinationPage),
    responses((status = 200, description = "One page, newest first", body = List<types::Destination>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    caller: Caller,
    Query((filter, page)): Query<(DestinationFilter, DestinationPage)>,
) -> ApiResult<Json<List<types::Destination>>> {
    let now = api.clock.now();
    let filter = weir_store::DestinationFilter {
        tenants: caller.scope(filter.tenant.map(|tenant| tenant.0))?,
        name: filter.name.map(|name| name.0),
        // A URL is stored in its normal form.
        url: filter.url.map(|SearchText(url)| Url::parse(&url).map_or(url, String::from)),
        condition: filter.state.map(|condition| condition.0),
        text: filter.q.map(|text| text.0),
        event_type: filter.event_type.map(|kind| kind.0),
        now,
    };
    let page = api.store.list_destinations(&filter, page.request).await?;
    let paces = known_paces(&api.queue, page.rows.iter().map(|destination| &**destination)).await;
    let shown = |destination: Arc<Destination>| {
        let adaptive_rate = paces.get(&destination.id).map(adaptive::rate_view);
        types::Destination { adaptive_rate, ..view::view(&destination, now, &api.event_types) }
    };
    Ok(page::view::<Destinations, _, _>(page, |destination| *destination.id.as_bytes(), shown))
}

/// Show a destination
#[utoipa::path(
    get, path = "/v1/destinations/{id}", operation_id = "show_destination", tag = "destinations", params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses((status = 200, description = "The destination", body = types::Destination,
        headers(("etag" = String, description = "The version of the destination, for `If-Match`"))))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    caller: Caller,
    PathId(DestinationIdText(id)): PathId<DestinationIdText>,
    _: Query<()>,
) -> ApiResult<impl IntoResponse> {
    let destination = find(&api, &caller, id).await?;
    Ok((etag_header(&destination), Json(shown(&api, &destination).await?)))
}

/// The view of a destination with its pace.
pub(crate) async fn shown(api: &ApiState, destination: &Destination) -> ApiResult<types::Destination> {
    let adaptive_rate = adaptive::pace_of(api, destination).await?.as_ref().map(adaptive::rate_view);
    Ok(types::Destination { adaptive_rate, ..view::view(destination, api.clock.now(), &api.event_types) })
}

/// Edit a destination
///
/// A JSON merge patch (RFC 7396): only the given fields change, and `null` restores the default. Members of `retry`,
/// `breaker`, `headers`, `signature` and `tls` are merged one by one; arrays are replaced as a whole. New limits and `paused`
/// take effect within 100 ms and do not reset the windows. A `secret` replaces the old secret at once; `rotate-secret`
/// replaces it with an overlap. `"paused": false` and another URL also close an open breaker and lift a hold. A URL with another origin (scheme, host
/// or port) removes the headers that the same patch does not set, and the client certificate: they were meant for the
/// previous origin. Another `proxy` needs the role `admin` and a key that is not bound to tenants.
///
/// With the header `If-Match` and the `etag` of an earlier answer, the edit is made only if nobody has edited the
/// destination since; otherwise the answer is 412. A destination cannot change its tenant.
#[utoipa::path(
    patch, path = "/v1/destinations/{id}", operation_id = "edit_destination", tag = "destinations", params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    request_body = Patch,
    responses(
        (status = 200, description = "The edited destination", body = types::Destination,
            headers(("etag" = String, description = "The new version of the destination"))),
        (status = 409, response = inline(Refused)),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn edit(edit: Edit<DestinationIdText>, Body(patch): Body<Value>) -> ApiResult<impl IntoResponse> {
    let api = &edit.api;
    // `"paused": false` closes an open breaker and lifts a hold even if the destination is not paused.
    let resumes = patch.get("paused") == Some(&Value::Bool(false));
    let ends = if resumes { Ends::BreakerAndHold } else { Ends::Nothing };
    let destination = change(api, edit.requested(ends), |current| {
        let shown = view::settings_value(&current.settings)?;
        let settings = settings::merge(&current.settings, shown, patch.clone(), &api.addresses)?;
        if settings.tenant != current.settings.tenant {
            return Err(Problem::conflict("a destination cannot change its tenant: create one for the other tenant"));
        }
        Ok(settings)
    })
    .await?;
    Ok((etag_header(&destination), Json(shown(api, &destination).await?)))
}

/// Delete a destination
///
/// Cancels its waiting deliveries, settles its dead letters (they become `cancelled`), and keeps the history. `If-Match` works as for an edit.
#[utoipa::path(
    delete, path = "/v1/destinations/{id}", operation_id = "delete_destination", tag = "destinations", params(("id" = DestinationIdText, Path, description = "`dst_…`")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn delete(edit: Edit<DestinationIdText>) -> ApiResult<StatusCode> {
    let Edit { api, id: DestinationIdText(id), caller, author, if_match } = edit;
    for _ in 0..ROUNDS {
        let (destination, now) = (find(&api, &caller, id).await?, api.clock.now());
        if_match.check(&etag(&destination))?;
        check_may_change(&caller, &destination.settings.tenant)?;
        // The store compares the version again, in the transaction of the deletion.
        let expected_updated_at = if_match.is_given().then_some(destination.updated_at);
        let (before, after) = destination_changes(Some(&destination), None)?;
        let activity = author.does(Action::DestinationDeleted, now).of_destination(&destination);
        let deletion = DestinationDeletion { id, expected_updated_at, now };
        match api.store.delete_destination(deletion, activity.changing(before, after)).await? {
            Deletion::Deleted => {
                api.announce_deletion(&destination, later(destination.updated_at, now)).await;
                settle_dead_letters(&api, &destination, &author).await;
                return Ok(StatusCode::NO_CONTENT);
            }
            Deletion::Missing => return Err(missing(id)),
            Deletion::Changed => {}
        }
    }
    Err(crowded("destination"))
}

/// Settles the dead letters of a destination that is deleted: nobody can send them again. The destination is deleted in
/// any case; what is left is settled by the scheduler.
async fn settle_dead_letters(api: &ApiState, deleted: &Destination, author: &Author) {
    let now = api.clock.now();
    let filter =
        DeliveryFilter { destination_id: Some(deleted.id), states: DISCARDABLE.to_vec(), ..DeliveryFilter::default() };
    let activity = author.does(Action::DeadLettersDiscarded, now).of_destination(deleted);
    let activity = activity.changing(None, Some(json!({"reason": "the destination is deleted"})));
    if let Err(error) = discard(&*api.store, filter, now, activity).await {
        tracing::warn!(%error, destination = %deleted.id, "cannot settle the dead letters of a deleted destination now");
    }
}

/// The destination, or a 404 problem. The destination of a tenant that the caller does not see does not exist for it.
pub(crate) async fn find(api: &ApiState, caller: &Caller, id: DestinationId) -> ApiResult<Arc<Destination>> {
    let found = api.store.destination(id).await?;
    found.filter(|destination| caller.sees(&destination.settings.tenant)).ok_or_else(|| missing(id))
}

/// Refuses what needs the secrets of a destination if this process cannot open them.
pub(crate) fn check_readable(destination: &Destination) -> ApiResult<()> {
    match (&destination.unreadable, &destination.paused_reason) {
        (None, _) => Ok(()),
        (Some(_), reason) => {
            let reason = reason.as_deref().unwrap_or_default();
            Err(Problem::new(ProblemKind::Unavailable, format!("the destination stays as it is: {reason}")))
        }
    }
}

/// Those of these destinations that are not deleted, in one look-up.
pub(crate) async fn by_id(
    api: &ApiState,
    ids: impl Iterator<Item = DestinationId>,
) -> ApiResult<HashMap<DestinationId, Arc<Destination>>> {
    let ids: HashSet<DestinationId> = ids.collect();
    let found = api.store.destinations(&ids.into_iter().collect::<Vec<_>>()).await?;
    Ok(found.into_iter().flatten().map(|destination| (destination.id, destination)).collect())
}

/// Whether a filter names a destination of a tenant that the caller does not see. A list with such a filter must be
/// answered as empty without a read of deliveries. Otherwise its cursors and counts would show how many deliveries were
/// examined.
pub(crate) async fn is_of_others(api: &ApiState, caller: &Caller, named: Option<DestinationId>) -> ApiResult<bool> {
    let Some(id) = named.filter(|_| !caller.sees_all()) else { return Ok(false) };
    let found = api.store.destination(id).await?;
    Ok(found.is_some_and(|destination| !caller.sees(&destination.settings.tenant)))
}

pub(crate) fn missing(id: DestinationId) -> Problem {
    Problem::not_found(format!("there is no destination {id}"))
}

/// The same for a destination that a field of a request names.
pub(crate) fn missing_in_body(id: DestinationId) -> Problem {
    Problem::invalid_field("/destination", format!("there is no destination {id}: name another one, or leave it out"))
}

/// The entity tag of a destination: its version, which every edit changes.
pub(crate) fn etag(destination: &Destination) -> String {
    if_match::etag(destination.updated_at.as_nanos())
}

pub(crate) fn etag_header(destination: &Destination) -> [(HeaderName, String); 1] {
    [(header::ETAG, etag(destination))]
}

/// Keeps a response with a secret out of caches.
pub(crate) fn unstored(mut response: Response) -> Response {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}
