//! The catalogue of event types. It belongs to the installation, as its producers do, and not to a tenant.

use axum::{Json, extract::State, response::Response};
use http::StatusCode;
use serde_json::{Value, json};
use weir_api_types as types;
use weir_core::{activity::Action, event_types::EventType};
use weir_store::EventTypeChange;

use super::{
    activity::{Author, differences},
    edit::Edit,
};
use crate::{
    auth::Caller,
    errors::Errors,
    event_types::check_schema,
    problem::{ApiResult, Changed, Problem, Refused},
    readers::{
        body::{Body, PathId},
        depth::{MAX_DEPTH, is_too_deep},
        fields::object,
        if_match::{self, Preconditions, ROUNDS, crowded},
        page::{DEFAULT_LIMIT, List, Room},
        query::{Query, parameters},
        texts::{NewEventTypeText, SearchText, check_visible, text},
    },
    state::{Api, ApiState},
};

/// How messages name the resource.
const RESOURCE: &str = "event type";
const MAX_DESCRIPTION: usize = 4_096;
/// Larger values are named by their size in the activity log, which keeps rows for a year.
const LARGEST_IN_ACTIVITY: usize = 2_048;

text! {
    /// A text for people: at most 4096 characters, with line breaks but without other control characters.
    #[schema(
        as = Description, example = "A customer has placed an order.",
        pattern = "^[^\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200e\\u200f\\u202a-\\u202e\\u2066-\\u2069]{0,4096}$"
    )]
    pub(crate) struct DescriptionText(String);
    parse = |text| {
        // Forms of browsers end lines so.
        let text = text.replace("\r\n", "\n");
        match text.chars().count() {
            ..=MAX_DESCRIPTION => check_visible(&text.replace(['\n', '\t'], " ")).map(|()| text),
            _ => Err(format!("must be at most {MAX_DESCRIPTION} characters long")),
        }
    };
}

object! {
    /// A type of the catalogue. The path names it.
    pub(crate) struct EventTypeRequest {
        /// What the event means, for people.
        description: Option<DescriptionText>,
        /// The `data` of such an event. It must fit the schema. Null: none.
        #[schema(value_type = Value, required = false)]
        example: Option<Value>,
        /// What the `data` must be: JSON Schema 2020-12, with the keywords and bounds that the guide to event types
        /// lists. `$ref` leads only to places in the same schema. Null: any data.
        #[schema(value_type = Value, required = false)]
        schema: Option<Value>,
    }
    check = Self::check;
    read_only = &["name", "created_at", "updated_at"];
}

impl EventTypeRequest {
    fn check(&self, _: &str, errors: &mut Errors) {
        let is_deep = |example: &Value| is_too_deep(example.to_string().as_bytes());
        if self.example.as_ref().is_some_and(is_deep) {
            errors.add("/example", format!("must be nested at most {MAX_DEPTH} levels deep"));
        }
        check_schema(given(&self.schema), given(&self.example), errors);
    }
}

/// `null` is as if it were left out.
fn given(value: &Option<Value>) -> Option<&Value> {
    value.as_ref().filter(|value| !value.is_null())
}

parameters! {
    /// The page of the list.
    pub(crate) struct EventTypePage {
        /// Only types with this text in the name, in upper or lower case
        q: Option<SearchText>,
        /// The maximum number of rows of the page.
        #[param(minimum = 1, maximum = 200, default = json!(DEFAULT_LIMIT))]
        limit: Option<u32>,
        /// The `next_cursor` of the previous page of the same list.
        cursor: Option<NewEventTypeText>,
    }
}

/// List the catalogue of event types
///
/// In the order of their names. Every key may read the catalogue: it belongs to the installation.
#[utoipa::path(
    get, path = "/v1/event-types", operation_id = "list_event_types", tag = "event types", params(EventTypePage),
    responses((status = 200, description = "One page, in the order of the names", body = List<types::EventType>))
)]
pub(crate) async fn list(
    State(api): State<Api>,
    Query(page): Query<EventTypePage>,
) -> ApiResult<Json<List<types::EventType>>> {
    let limit = page.limit.unwrap_or(DEFAULT_LIMIT);
    let (q, after) = (page.q.map(|q| q.0), page.cursor.map(|after| after.0));
    let found = api.store.event_types(q.as_deref(), after.as_deref(), limit + 1).await?;
    let more = found.len() > limit as usize;
    let mut room = Room::default();
    let mut data = Vec::with_capacity(found.len());
    let count = found.len().min(limit as usize);
    for found in found.into_iter().take(count) {
        let view = view(found);
        if !room.takes(json!(view).to_string().len()) {
            break;
        }
        data.push(view);
    }
    let is_cut = more || data.len() < count;
    let next_cursor = data.last().filter(|_| is_cut).map(|last| last.name.clone());
    Ok(Json(List { data, next_cursor }))
}

/// Show an event type
#[utoipa::path(
    get, path = "/v1/event-types/{name}", operation_id = "show_event_type", tag = "event types",
    params(("name" = NewEventTypeText, Path, description = "The type, such as `order.created`")),
    responses((status = 200, description = "The type", body = types::EventType,
        headers(("etag" = String, description = "The version of the type"))))
)]
pub(crate) async fn show(
    State(api): State<Api>,
    PathId(NewEventTypeText(name)): PathId<NewEventTypeText>,
    _: Query<()>,
) -> ApiResult<Response> {
    let found = api.store.event_type(&name).await?.ok_or_else(|| missing(&name))?;
    Ok(shown(StatusCode::OK, found))
}

/// Add an event type to the catalogue, or replace it
///
/// With `WEIR_EVENT_TYPES=strict` an event is accepted only if its type is in the catalogue and its `data` fits the schema
/// of the type; a change is in effect within a second in every process. Otherwise the catalogue is for people. The example
/// must fit the schema.
///
/// With `If-None-Match: *` the request only adds, with `If-Match` and the `etag` of an earlier answer it only replaces that
/// version; otherwise the answer is 412. This needs a key that is not bound to tenants.
#[utoipa::path(
    put, path = "/v1/event-types/{name}", operation_id = "put_event_type", tag = "event types",
    params(("name" = NewEventTypeText, Path, description = "The type, such as `order.created`")),
    request_body = EventTypeRequest,
    responses(
        (status = 200, description = "Replaced", body = types::EventType,
            headers(("etag" = String, description = "The new version of the type"))),
        (status = 201, description = "Added", body = types::EventType, headers(
            ("etag" = String, description = "The version of the type"),
            ("location" = String, description = "The path of the type"),
        )),
        (status = 409, response = inline(Refused)),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn put(
    State(api): State<Api>,
    caller: Caller,
    PathId(NewEventTypeText(name)): PathId<NewEventTypeText>,
    author: Author,
    preconditions: Preconditions,
    _: Query<()>,
    Body(request): Body<EventTypeRequest>,
) -> ApiResult<Response> {
    caller.check_unbound()?;
    let EventTypeRequest { description, example, schema } = request;
    let description = description.map_or_else(String::new, |text| text.0);
    for _ in 0..ROUNDS {
        let current = api.store.event_type(&name).await?;
        preconditions.check(current.as_ref().map(etag))?;
        let now = api.clock.now();
        let event_type = EventType {
            name: name.clone(),
            description: description.clone(),
            example: given(&example).cloned(),
            schema: given(&schema).cloned(),
            created_at: current.as_ref().map_or(now, |current| current.created_at),
            updated_at: now,
            version: 0,
        };
        let (before, after) = match &current {
            None => (None, Some(recorded(&event_type))),
            Some(current) => differences(recorded(current), recorded(&event_type)),
        };
        if let Some(current) = &current
            && (&current.description, &current.example, &current.schema)
                == (&event_type.description, &event_type.example, &event_type.schema)
        {
            return Ok(shown(StatusCode::OK, current.clone()));
        }
        let action = author.does(Action::EventTypeSet, now).of_event_type(&name).changing(before, after);
        let expected = current.as_ref().map(|current| current.version);
        match api.store.set_event_type(expected, event_type, action).await? {
            EventTypeChange::Made(made) => {
                refresh(&api).await;
                let status = if expected.is_none() { StatusCode::CREATED } else { StatusCode::OK };
                return Ok(shown(status, *made));
            }
            EventTypeChange::Outdated => {}
            EventTypeChange::Full => {
                return Err(Problem::conflict(
                    "the catalogue has as many types or as many bytes of schemas as it may have: delete some first",
                ));
            }
        }
    }
    Err(crowded(RESOURCE))
}

/// Delete an event type
///
/// With `WEIR_EVENT_TYPES=strict`, events of this type are refused within a second in every process. Events that were
/// accepted before are delivered. With `If-Match` only this version is deleted. This needs a key that is not bound to
/// tenants.
#[utoipa::path(
    delete, path = "/v1/event-types/{name}", operation_id = "delete_event_type", tag = "event types",
    params(("name" = NewEventTypeText, Path, description = "The type, such as `order.created`")),
    responses(
        (status = 204, description = "Deleted"),
        (status = 409, response = inline(Refused)),
        (status = 412, response = inline(Changed)),
    )
)]
pub(crate) async fn delete(edit: Edit<NewEventTypeText>) -> ApiResult<StatusCode> {
    let Edit { api, id: NewEventTypeText(name), caller, author, if_match } = edit;
    caller.check_unbound()?;
    for _ in 0..ROUNDS {
        let current = api.store.event_type(&name).await?.ok_or_else(|| missing(&name))?;
        if_match.check(&etag(&current))?;
        let activity = author.does(Action::EventTypeDeleted, api.clock.now()).of_event_type(&name);
        let activity = activity.changing(Some(recorded(&current)), None);
        if api.store.delete_event_type(&name, current.version, activity).await? {
            refresh(&api).await;
            return Ok(StatusCode::NO_CONTENT);
        }
    }
    Err(crowded(RESOURCE))
}

/// The change is in effect at once in this process. If it cannot be read now, a later refresh does.
async fn refresh(api: &ApiState) {
    if let Err(error) = api.event_types.refresh(&*api.store).await {
        tracing::warn!(%error, "could not read the catalogue of event types; it is read again");
    }
}

fn missing(name: &str) -> Problem {
    Problem::not_found(format!("the catalogue has no event type `{name}`"))
}

fn etag(event_type: &EventType) -> String {
    if_match::etag(event_type.version)
}

fn shown(status: StatusCode, event_type: EventType) -> Response {
    let path = format!("/v1/event-types/{}", event_type.name);
    if_match::versioned(status, etag(&event_type), path, view(event_type))
}

fn view(event_type: EventType) -> types::EventType {
    let EventType { name, description, example, schema, created_at, updated_at, version: _ } = event_type;
    types::EventType { name, description, example, schema, created_at, updated_at }
}

/// The values for the activity log.
fn recorded(event_type: &EventType) -> Value {
    let short = |value: &Value| match value.to_string().len() {
        ..=LARGEST_IN_ACTIVITY => value.clone(),
        bytes => json!(format!("{bytes} bytes")),
    };
    let [example, schema] = [&event_type.example, &event_type.schema].map(|value| value.as_ref().map(short));
    json!({"description": event_type.description, "example": example, "schema": schema})
}
