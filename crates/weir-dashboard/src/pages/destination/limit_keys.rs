//! The tab *Limit keys*: the limit keys of a destination, the busiest first, what each may send, and their limits.

use askama::Template;
use axum::extract::Query;
use http::{HeaderMap, Method, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use weir_api_types::{Audit, KeyForecast, KeyLimits, KeyPreview, LimitKeyList, LimitKeyRow, Preview};
use weir_core::access::Role;

use super::{
    Head, Tab,
    limits_form::{ForecastText as _, Typed},
    proof::{AuditText as _, IntervalText as _, JudgedText as _},
    temporary::number,
};
use crate::{
    client::{ApiPath, Call, append},
    example::Example,
    extend::extend,
    faults::{Faults, Refused},
    fields::Fields,
    frame::{Also, Frame, Me, Section},
    path_id::PathId,
    refusal::Refusal,
    units::Units as _,
    views::{DestinationText as _, LimitText as _},
    visit::{Answered, Visit},
};

/// The keys that the page lists.
const ROWS: &str = "100";

/// What is searched, and in which order.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct ListQuery {
    q: String,
    sort: String,
    /// The key whose proof is shown.
    proof: Option<String>,
}

fn label(key: &str) -> &str {
    if key.is_empty() { "(no key)" } else { key }
}

extend! {
    trait KeyText for LimitKeyRow {
        fn label(&self) -> &str {
            label(&self.key)
        }

        fn limits(&self) -> String {
            let limits: Vec<String> = self.rate_limits.iter().map(|limit| limit.short()).collect();
            if limits.is_empty() { "only turns".to_owned() } else { limits.join(", ") }
        }

        fn why(&self) -> &'static str {
            bound_by(self.binding.as_deref())
        }
    }
}

fn bound_by(binding: Option<&str>) -> &'static str {
    match binding {
        Some("key") => "Its own limit",
        Some("destination") => "It takes turns in the limits of the destination",
        Some("group") => "It takes turns in the limit group of the destination",
        Some("paused") => "It is paused",
        Some("destination_paused") => "The destination is paused",
        Some("destination_held") => "The destination is held",
        Some("destination_breaker") => "The breaker of the destination is not closed",
        _ => "",
    }
}

extend! {
    trait KeyPreviewText for KeyPreview {
        fn label(&self) -> &str {
            label(&self.key)
        }
    }
}

extend! {
    trait KeyForecastText for KeyForecast {
        fn rate(&self) -> String {
            self.share_per_s.map_or_else(|| "no limit".to_owned(), |share| share.per_s().to_string())
        }

        fn drain(&self) -> String {
            self.drain_eta_s.map_or_else(|| "unknown".to_owned(), |eta| format!("in {}", eta.seconds()))
        }

        fn why(&self) -> &'static str {
            bound_by(self.binding.as_deref())
        }
    }
}

/// The form of the limits of each key, with what was typed.
struct Editor {
    pointer: String,
    weight: String,
    typed: Typed,
    faults: Faults,
}

impl Editor {
    fn of(limits: Option<&KeyLimits>) -> Self {
        let rates = limits.map_or(&[][..], |limits| &limits.rate_limits);
        Self {
            pointer: limits.map(|limits| limits.key.clone()).unwrap_or_default(),
            weight: limits.map(|limits| limits.weight.to_string()).unwrap_or_default(),
            typed: Typed::of_limits(rates, None, limits.and_then(|limits| limits.max_in_flight)),
            faults: Faults::default(),
        }
    }

    fn read(fields: &Fields) -> Self {
        Self {
            pointer: fields.text("pointer").to_owned(),
            weight: fields.text("weight").to_owned(),
            typed: Typed::read(fields),
            faults: Faults::default(),
        }
    }

    /// As the API takes it.
    fn body(&self) -> Value {
        let mut typed = self.typed.body();
        let mut body = json!({"key": self.pointer, "rate_limits": typed["rate_limits"].take()});
        body["max_in_flight"] = typed["max_in_flight"].take();
        if !self.weight.is_empty() {
            body["weight"] = number(&self.weight);
        }
        json!({ "key_limits": body })
    }

    /// What the API refused, beside the fields that have it.
    fn refused(mut self, refusal: &Refusal) -> Self {
        let mut refusal = refusal.clone();
        for error in &mut refusal.errors {
            if let Some(of_keys) = error.pointer.strip_prefix("/key_limits") {
                error.pointer = if of_keys == "/key" { "/pointer".to_owned() } else { of_keys.to_owned() };
            }
        }
        self.faults = self.typed.faults_beside(&refusal, &[("pointer", "Where the key is"), ("weight", "Weight")]);
        self
    }
}

/// The field of the limits of one key that has the value at a JSON pointer: `/key_limits/overrides/cus_1/weight`.
fn field_of_one(pointer: &str) -> Option<(String, String)> {
    let (name, label) = match pointer.strip_prefix("/key_limits/overrides")?.split('/').nth(2) {
        None => ("key", "Key"),
        Some("rate_limits") => ("one_limit", "At most"),
        Some("weight") => ("one_weight", "Weight of the key"),
        Some(_) => return None,
    };
    Some((name.to_owned(), label.to_owned()))
}

/// The figures, which live updates replace.
struct Live {
    head: Head,
    query: ListQuery,
    keys: LimitKeyList,
    example: Example,
}

impl Live {
    fn fragment(&self) -> String {
        let mut path = format!("{}/fragments/destinations/{}/keys", self.head.base, self.head.destination.id);
        append(&mut path, "q", &self.query.q);
        append(&mut path, "sort", &self.query.sort);
        path
    }

    /// The limits of each key, if the destination has limit keys.
    fn limits(&self) -> Option<&KeyLimits> {
        self.head.destination.settings.key_limits.as_ref()
    }

    /// How an event with a key is sent.
    fn event(&self) -> String {
        self.example.post("/v1/events", r#"{"type": "order.paid", "data": {"customer": {"id": "cus_1"}}}"#)
    }

    /// Whether the list is in the order of use.
    fn is_by_use(&self) -> bool {
        self.query.sort == "use"
    }

    /// The same page with the proof of a key.
    fn proof(&self, key: &str) -> String {
        let mut link = format!("{}/keys", self.head.path());
        append(&mut link, "q", &self.query.q);
        append(&mut link, "sort", &self.query.sort);
        append(&mut link, "proof", key);
        link
    }

    /// The list of the deliveries of a key that wait.
    fn waiting(&self, key: &str) -> String {
        let Head { base, destination, .. } = &self.head;
        let mut link = format!("{base}/deliveries?destination={}&state=pending,retrying&order=oldest", destination.id);
        append(&mut link, "limit_key", key);
        link
    }
}

/// The proof of one key. Without an audit, the API has refused it.
struct Proof {
    label: String,
    audit: Option<Audit>,
}

#[derive(Template)]
#[template(path = "destination_keys.html")]
struct KeysPage {
    frame: Frame,
    live: Live,
    editor: Editor,
    of_one: Refused,
    preview: Option<Preview>,
    proof: Option<Proof>,
}

/// What the limits in the form would do.
#[derive(Template)]
#[template(path = "destination_keys_preview.html")]
struct PreviewPart {
    preview: Preview,
}

#[derive(Template)]
#[template(path = "destination_keys_live.html")]
struct KeysLive {
    live: Live,
}

async fn read(visit: &Visit, id: &str, query: ListQuery) -> Result<(Me, Live), Refusal> {
    let keys = ApiPath::of(["destinations", id, "keys"]).with("q", &query.q).with("sort", &query.sort);
    let keys = keys.with("limit", ROWS);
    let (me, (destination, etag), keys) =
        tokio::try_join!(visit.me(), super::read(visit, id), visit.api.get::<LimitKeyList>(&keys))?;
    let (base, can_operate) = (visit.site.base.clone(), me.role.includes(Role::Operate));
    let head = Head { base, destination, etag, tab: Tab::Keys, can_operate };
    let example = Example::new(visit, &me);
    Ok((me, Live { head, query, keys, example }))
}

async fn proof_of(visit: &Visit, id: &str, key: Option<&str>) -> Result<Option<Proof>, Refusal> {
    // The empty key would be the audit of the destination.
    let Some(key) = key.filter(|key| !key.is_empty()) else { return Ok(None) };
    let audit = match visit.api.get(&ApiPath::of(["destinations", id, "audit"]).with("key", key)).await {
        Ok(audit) => Some(audit),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => None,
        Err(refusal) => return Err(refusal),
    };
    Ok(Some(Proof { label: label(key).to_owned(), audit }))
}

fn page(visit: &Visit, me: Me, live: Live, editor: Editor) -> KeysPage {
    let frame = visit.frame(me, Section::None, format!("Keys of {}", live.head.destination.label()));
    KeysPage {
        frame: frame.live(Also::Time.query()),
        live,
        editor,
        of_one: Refused::default(),
        preview: None,
        proof: None,
    }
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId, Query(query): Query<ListQuery>) -> Answered {
    let (me, live) = read(&visit, &id, query).await?;
    let (editor, proof) = (Editor::of(live.limits()), proof_of(&visit, &id, live.query.proof.as_deref()).await?);
    visit.page(&KeysPage { proof, ..page(&visit, me, live, editor) })
}

pub(crate) async fn fragment(visit: Visit, PathId(id): PathId, Query(query): Query<ListQuery>) -> Answered {
    let (_, live) = read(&visit, &id, query).await?;
    visit.fragment(&KeysLive { live })
}

/// What the limits in the form would do: a part of the page for the script, or the page with it.
pub(crate) async fn preview(visit: Visit, PathId(id): PathId, headers: HeaderMap, fields: Fields) -> Answered {
    let editor = Editor::read(&fields);
    let is_part = headers.contains_key("hx-request");
    // Nothing is wrong yet with a form that nobody has filled in.
    if is_part && editor.pointer.is_empty() {
        return visit.unchanged();
    }
    let path = ApiPath::of(["destinations", &id, "preview"]);
    let answer = visit.api.post::<Preview>(&path, &editor.body()).await;
    if is_part {
        return match answer {
            Ok(preview) => visit.fragment(&PreviewPart { preview }),
            Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
                let detail = editor.refused(&refusal).faults.text();
                Err(Refusal { detail, errors: Vec::new(), ..refusal })
            }
            Err(refusal) => Err(refusal),
        };
    }
    let (me, live) = read(&visit, &id, ListQuery::default()).await?;
    match answer {
        Ok(preview) => visit.page(&KeysPage { preview: Some(preview), ..page(&visit, me, live, editor) }),
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
            visit.page_with(refusal.status, &page(&visit, me, live, editor.refused(&refusal)))
        }
        Err(refusal) => Err(refusal),
    }
}

/// Sets the limits of each key, or removes all limit keys.
pub(crate) async fn save(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let editor = Editor::read(&fields);
    let is_removed = fields.has("remove");
    let body = if is_removed { json!({"key_limits": null}) } else { editor.body() };
    let path = ApiPath::of(["destinations", &id]);
    let edit = Call::new(Method::PATCH, &path).json(&body)?.if_match(fields.text("etag"))?;
    let to = format!("/destinations/{id}/keys");
    match visit.api.send(&edit).await {
        Err(refusal) if !is_removed && refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
            let (me, live) = read(&visit, &id, ListQuery::default()).await?;
            let page = page(&visit, me, live, editor.refused(&refusal));
            visit.page_with(refusal.status, &page)
        }
        answer => visit.after(&to, answer, |_| {
            let text =
                if is_removed { REMOVED } else { "Saved. Each key has these limits, unless its own say otherwise." };
            text.to_owned()
        }),
    }
}

const REMOVED: &str = "The limit keys are removed. The limits of the destination alone are in effect.";

/// Pauses or resumes one key.
pub(crate) async fn pause(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let is_paused = fields.text("paused") == "true";
    let verb = if is_paused { "pause" } else { "resume" };
    let call = Call::new(Method::POST, &ApiPath::of(["destinations", &id, "keys", fields.raw("key"), verb]));
    visit.after(&format!("/destinations/{id}/keys"), visit.api.send(&call).await, |_| {
        let key = fields.raw("key");
        if is_paused { format!("{key} is paused. Its deliveries wait.") } else { format!("{key} is sent again.") }
    })
}

/// Gives one key limits of its own, or takes them away.
pub(crate) async fn override_key(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let key = fields.text("key").to_owned();
    let mut special = Map::new();
    if !fields.text("one_limit").is_empty() {
        let limit = json!({"limit": number(fields.text("one_limit")), "period": fields.text("one_period")});
        special.insert("rate_limits".to_owned(), json!([limit]));
    }
    if !fields.text("one_weight").is_empty() {
        special.insert("weight".to_owned(), number(fields.text("one_weight")));
    }
    let is_ended = fields.has("end");
    let value = if is_ended { Value::Null } else { Value::Object(special) };
    let body = json!({"key_limits": {"overrides": {&*key: value}}});
    let edit = Call::new(Method::PATCH, &ApiPath::of(["destinations", &id])).json(&body)?;
    let answer = visit.api.send(&edit).await;
    if let Some(of_one) = Refused::by(&answer, &fields, field_of_one) {
        let (me, live) = read(&visit, &id, ListQuery::default()).await?;
        let editor = Editor::of(live.limits());
        let page = KeysPage { of_one, ..page(&visit, me, live, editor) };
        return visit.page_with(StatusCode::UNPROCESSABLE_ENTITY, &page);
    }
    visit.after(&format!("/destinations/{id}/keys"), answer, |_| {
        if is_ended {
            format!("{key} has the limits of the other keys.")
        } else {
            format!("{key} has limits of its own.")
        }
    })
}
