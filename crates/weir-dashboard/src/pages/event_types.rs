//! The catalogue of event types: the list with a form for a new type, and one type with the destinations that take it.

use askama::Template;
use axum::extract::{Path, Query};
use http::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use weir_api_types::{Destination, EventType, List};
use weir_core::event::valid_type;

use crate::{
    client::{ApiPath, Call, append},
    faults::Faults,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Me, Section},
    refusal::Refusal,
    units::Units as _,
    views::DestinationText as _,
    visit::{Answered, Visit},
};

const PATH: &str = "/event-types";
/// The destinations that the page of a type names. The list of destinations has the others.
const NAMED: &str = "50";

/// The form of a type, with what was typed.
struct Form {
    typed: Fields,
    faults: Faults,
    /// Whether the caller may change the catalogue, which belongs to the installation.
    may_change: bool,
}

impl Form {
    fn value(&self, name: &str) -> &str {
        self.typed.raw(name)
    }

    fn empty(me: &Me) -> Self {
        let may_change = me.role.includes(weir_core::access::Role::Operate) && !me.is_bound();
        Self { typed: Fields::default(), faults: Faults::default(), may_change }
    }

    fn of(me: &Me, found: &EventType, etag: String) -> Self {
        let json = |value: &Option<Value>| value.as_ref().map_or_else(String::new, |value| format!("{value:#}"));
        let typed = Fields::of([
            ("description", found.description.clone()),
            ("example", json(&found.example)),
            ("schema", json(&found.schema)),
            ("etag", etag),
        ]);
        Self { typed, ..Self::empty(me) }
    }
}

#[derive(Template)]
#[template(path = "event_types.html")]
struct ListPage {
    frame: Frame,
    page: List<EventType>,
    query: ListQuery,
    form: Form,
}

impl ListPage {
    fn link(&self, cursor: &str) -> String {
        let mut link = format!("{}{PATH}", self.frame.base());
        append(&mut link, "q", &self.query.q);
        append(&mut link, "cursor", cursor);
        link
    }

    fn first(&self) -> Option<String> {
        (!self.query.cursor.is_empty()).then(|| self.link(""))
    }

    fn next(&self) -> Option<String> {
        self.page.next_cursor.as_deref().map(|cursor| self.link(cursor))
    }
}

#[derive(Template)]
#[template(path = "event_type.html")]
struct TypePage {
    frame: Frame,
    found: EventType,
    destinations: List<Destination>,
    form: Form,
}

impl TypePage {
    fn path(&self) -> String {
        format!("{}{PATH}/{}", self.frame.base(), self.found.name)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListQuery {
    q: String,
    cursor: String,
}

pub(crate) async fn list(visit: Visit, Query(query): Query<ListQuery>) -> Answered {
    let page = read_list(&visit, query).await?;
    visit.page(&page)
}

async fn read_list(visit: &Visit, query: ListQuery) -> Result<ListPage, Refusal> {
    let path = ApiPath::of(["event-types"]).with("q", query.q.trim()).with("cursor", &query.cursor);
    let (me, page) = tokio::try_join!(visit.me(), visit.api.get(&path))?;
    let form = Form::empty(&me);
    Ok(ListPage { frame: visit.frame(me, Section::EventTypes, "Event types"), page, query, form })
}

pub(crate) async fn show(visit: Visit, Path(name): Path<String>) -> Answered {
    let page = read_type(&visit, &name).await?;
    visit.page(&page)
}

async fn read_type(visit: &Visit, name: &str) -> Result<TypePage, Refusal> {
    if !valid_type(name) {
        return Err(Refusal::not_found("There is no such page."));
    }
    let taking = ApiPath::of(["destinations"]).with("event_type", name).with("limit", NAMED);
    let call = Call::get(&ApiPath::of(["event-types", name]));
    let (me, answer, destinations) = tokio::try_join!(visit.me(), visit.api.send(&call), visit.api.get(&taking))?;
    let found: EventType = answer.read()?;
    let form = Form::of(&me, &found, answer.etag().unwrap_or_default());
    Ok(TypePage { frame: visit.frame(me, Section::EventTypes, &found.name), found, destinations, form })
}

/// Adds a type. A form whose name is taken does not replace the other type.
pub(crate) async fn create(visit: Visit, fields: Fields) -> Answered {
    let name = fields.text("name").to_owned();
    let faults = if valid_type(&name) {
        match put(&visit, &name, &fields).await? {
            Ok(()) => return visit.redirect(&format!("{PATH}/{name}"), Some(Flash::done(format!("{name} is added.")))),
            Err(faults) => faults,
        }
    } else {
        let mut faults = Faults::default();
        let form = "Must be words of letters, digits, _ and -, with dots between them, such as order.created.";
        faults.add("name", "Name", form.to_owned());
        faults
    };
    let page = read_list(&visit, ListQuery::default()).await?;
    let form = Form { typed: fields, faults, ..page.form };
    visit.page_with(StatusCode::UNPROCESSABLE_ENTITY, &ListPage { form, ..page })
}

pub(crate) async fn save(visit: Visit, Path(name): Path<String>, fields: Fields) -> Answered {
    let page = read_type(&visit, &name).await?;
    match put(&visit, &name, &fields).await? {
        Ok(()) => visit.redirect(&format!("{PATH}/{name}"), Some(Flash::done("Saved."))),
        Err(faults) => {
            let form = Form { typed: fields, faults, ..page.form };
            visit.page_with(StatusCode::UNPROCESSABLE_ENTITY, &TypePage { form, ..page })
        }
    }
}

pub(crate) async fn delete(visit: Visit, Path(name): Path<String>, fields: Fields) -> Answered {
    if !fields.is_ticked("sure") {
        return visit
            .redirect(&format!("{PATH}/{name}"), Some(Flash::error("Nothing was deleted: tick the box first.")));
    }
    let answer = visit.api.send(&Call::new(Method::DELETE, &ApiPath::of(["event-types", &name]))).await;
    visit.after(PATH, answer, |_| format!("{name} is deleted."))
}

/// Sends a form: over the version that was read, or if there is none, only if there is no such type.
async fn put(visit: &Visit, name: &str, fields: &Fields) -> Result<Result<(), Faults>, Refusal> {
    let mut faults = Faults::default();
    let mut json = |field: &str, label: &str| match fields.text(field) {
        "" => Value::Null,
        text => serde_json::from_str(text).unwrap_or_else(|error| {
            faults.add(field, label, format!("This is no JSON: {error}."));
            Value::Null
        }),
    };
    let body = json!({
        "description": fields.raw("description"),
        "example": json("example", "Example"),
        "schema": json("schema", "Schema"),
    });
    if !faults.is_empty() {
        return Ok(Err(faults));
    }
    let call = Call::new(Method::PUT, &ApiPath::of(["event-types", name])).json(&body)?;
    let call = match fields.text("etag") {
        "" => call.if_none_match()?,
        etag => call.if_match(etag)?,
    };
    match visit.api.send(&call).await {
        Ok(_) => Ok(Ok(())),
        Err(refusal) if refusal.status == StatusCode::PRECONDITION_FAILED => {
            match fields.text("etag") {
                "" => faults.add("name", "Name", "There is a type with this name.".to_owned()),
                _ => faults.add_other("somebody else has changed the type meanwhile: load the page again"),
            }
            Ok(Err(faults))
        }
        Err(refusal) if [StatusCode::UNPROCESSABLE_ENTITY, StatusCode::CONFLICT].contains(&refusal.status) => {
            Ok(Err(faults_of(&refusal)))
        }
        Err(refusal) => Err(refusal),
    }
}

fn faults_of(refusal: &Refusal) -> Faults {
    let mut faults = Faults::default();
    if refusal.errors.is_empty() {
        faults.add_other(&refusal.detail);
    }
    for error in &refusal.errors {
        let (field, rest) = error.pointer.trim_start_matches('/').split_once('/').unzip();
        let (field, rest) = (field.unwrap_or(error.pointer.trim_start_matches('/')), rest.unwrap_or_default());
        let detail = error.detail.replace('`', "");
        // A place in the JSON that was typed.
        let text = if rest.is_empty() { format!("It {detail}.") } else { format!("/{rest} {detail}.") };
        match field {
            "description" => faults.add("description", "Description", text),
            "example" => faults.add("example", "Example", text),
            "schema" => faults.add("schema", "Schema", text),
            _ => faults.add_other(&error.detail),
        }
    }
    faults
}
