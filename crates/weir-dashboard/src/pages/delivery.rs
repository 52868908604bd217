//! One delivery: its timeline, every attempt with request and response, retry and cancel.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::Query;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use weir_core::{
    body::{BINARY_HEADERS, BodyFormat, BodySettings},
    signing::{self, TimestampFormat},
};

use super::{
    deliveries::state_tone,
    events::{EventView, SentBody},
};
use crate::{
    client::{ApiPath, append},
    example::quoted,
    frame::{Frame, Section},
    names::label,
    path_id::PathId,
    refusal::Refusal,
    units::{At, Count},
    views::{Accepted, WaitsFor},
    visit::{Answered, Visit},
};

#[derive(Debug, Deserialize)]
struct Delivery {
    id: String,
    event_id: String,
    event_type: String,
    destination_id: String,
    state: String,
    attempt_count: Count,
    next_attempt_at: Option<At>,
    #[serde(default)]
    waits_for: Option<WaitsFor>,
    expires_at: Option<At>,
    created_at: At,
    updated_at: At,
    attempts: Vec<Attempt>,
}

impl Delivery {
    /// Another text after each change that the page shows.
    fn version(&self) -> String {
        let next = self.next_attempt_at.map(|at| at.0.to_string()).unwrap_or_default();
        format!("{}.{}.{}.{next}", self.state, self.attempts.len(), self.updated_at.0)
    }
}

/// One request to the receiver.
#[derive(Debug, Deserialize)]
struct Attempt {
    number: u32,
    sent_at: Option<At>,
    signed_at: Option<At>,
    status_code: Option<u16>,
    duration_ms: Count,
    connect_ms: Option<f64>,
    tls_ms: Option<f64>,
    remote_address: Option<String>,
    error: Option<String>,
    outcome: String,
    #[serde(default, deserialize_with = "or_none")]
    response_headers: Vec<(String, String)>,
    response_body: Option<String>,
}

/// An absent or null list reads as an empty one.
fn or_none<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Vec<(String, String)>, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

impl Attempt {
    fn tone(&self) -> &'static str {
        match self.outcome.as_str() {
            "delivered" => "good",
            "unknown" => "warn",
            _ => "bad",
        }
    }

    /// What came of it, in a word.
    fn result(&self) -> String {
        match (self.status_code, self.outcome.as_str()) {
            (Some(status), _) => format!("HTTP {status}"),
            (None, "unknown") => "unknown outcome".to_owned(),
            (None, _) if self.sent_at.is_none() => "not sent".to_owned(),
            (None, _) => "no answer".to_owned(),
        }
    }
}

/// What a request has of its destination.
#[derive(Debug, Deserialize)]
struct Destination {
    name: String,
    url: String,
    headers: BTreeMap<String, String>,
    #[serde(default)]
    signature_format: SignatureFormat,
    #[serde(default)]
    body: BodySettings,
}

/// The headers of a signature.
#[derive(Debug, Deserialize)]
struct SignatureFormat {
    header: String,
    timestamp_header: Option<String>,
    timestamp_format: String,
    id_header: Option<String>,
}

impl Default for SignatureFormat {
    fn default() -> Self {
        let header = signing::DEFAULT_HEADER.to_owned();
        Self { header, timestamp_header: None, timestamp_format: String::new(), id_header: None }
    }
}

#[derive(Template)]
#[template(path = "delivery.html")]
struct DeliveryPage {
    frame: Frame,
    delivery: Delivery,
    /// `None`: the event is no longer kept.
    event: Option<EventView>,
    /// `None`: the destination is deleted.
    destination: Option<Destination>,
}

/// What live updates replace.
#[derive(Template)]
#[template(path = "delivery_live.html")]
struct DeliveryLive(DeliveryPage);

impl std::ops::Deref for DeliveryLive {
    type Target = DeliveryPage;

    fn deref(&self) -> &DeliveryPage {
        &self.0
    }
}

impl DeliveryPage {
    /// The fragment that replaces the delivery once it is another than the page has.
    fn fragment(&self) -> String {
        let mut link = format!("{}/fragments/deliveries/{}", self.frame.base(), self.delivery.id);
        append(&mut link, "seen", &self.delivery.version());
        link
    }

    fn tone(&self) -> &'static str {
        state_tone(&self.delivery.state)
    }

    fn destination_label(&self) -> &str {
        match &self.destination {
            Some(found) => label(&found.name, &found.url),
            None => &self.delivery.destination_id,
        }
    }

    fn target(&self) -> &str {
        self.destination.as_ref().map_or("(the destination is deleted)", |found| &found.url)
    }

    fn can_cancel(&self) -> bool {
        matches!(&*self.delivery.state, "pending" | "retrying")
    }

    fn can_retry(&self) -> bool {
        let refused = ["delivering", "expired", "superseded", "delivered"];
        self.destination.is_some() && !refused.contains(&&*self.delivery.state)
    }

    fn has_ended(&self) -> bool {
        !matches!(&*self.delivery.state, "pending" | "retrying" | "delivering")
    }

    fn ending(&self) -> &'static str {
        match &*self.delivery.state {
            "delivered" => "Delivered",
            "failed" => "Failed: the receiver refused it for good",
            "dead" => "Dead: every attempt failed",
            "cancelled" => "Cancelled",
            "superseded" => "Superseded by a newer event of the same key",
            "expired" => "Expired before it could be sent",
            _ => "Ended",
        }
    }

    /// The headers as they were sent. Values that the API never shows are masked.
    fn request_headers(&self, attempt: &Attempt) -> Vec<(String, String)> {
        let fixed = |name: &str, value: String| (name.to_owned(), value);
        let id = || self.delivery.event_id.clone();
        let seconds = attempt.signed_at.or(attempt.sent_at).map(|At(at)| at.as_secs());
        let mut headers = self.body_headers();
        headers.push(fixed(signing::ID_HEADER, id()));
        headers.extend(seconds.map(|seconds| fixed(signing::TIMESTAMP_HEADER, seconds.to_string())));
        headers.push(fixed("weir-attempt", attempt.number.to_string()));
        if let Some(destination) = &self.destination {
            let format = &destination.signature_format;
            let is_known = |name: &&String| *name != signing::ID_HEADER && *name != signing::TIMESTAMP_HEADER;
            headers.extend(format.id_header.iter().filter(is_known).map(|name| fixed(name, id())));
            let time = TimestampFormat::parse(&format.timestamp_format).zip(seconds);
            let time = format.timestamp_header.iter().filter(is_known).zip(time);
            headers.extend(time.map(|(name, (format, seconds))| fixed(name, format.write(seconds))));
            headers.push(fixed(&format.header, "•••".to_owned()));
            headers.extend(destination.headers.keys().map(|name| fixed(name, "•••".to_owned())));
        }
        headers
    }

    /// The settings of the body; those of a deleted destination are unknown.
    fn body_settings(&self) -> BodySettings {
        self.destination.as_ref().map(|destination| destination.body.clone()).unwrap_or_default()
    }

    fn body(&self, event: &EventView) -> SentBody {
        event.body_for(&self.body_settings())
    }

    /// The headers that depend on the form of the body.
    fn body_headers(&self) -> Vec<(String, String)> {
        let settings = self.body_settings();
        let mut headers = vec![("content-type".to_owned(), settings.content_type().to_owned())];
        if settings.format == BodyFormat::CloudeventsBinary
            && let Some(event) = &self.event
        {
            let created_at = event.created_at.0.to_string();
            let source = settings.source(&event.tenant);
            let values = ["1.0".to_owned(), event.id.clone(), source, event.event_type.clone(), created_at];
            headers.extend(BINARY_HEADERS.iter().map(|name| (*name).to_owned()).zip(values));
        }
        headers
    }

    fn curl(&self, event: &EventView) -> String {
        let mut lines = vec![format!("curl {}", quoted(self.target()))];
        let headers = self.body_headers().into_iter().chain([(signing::ID_HEADER.to_owned(), event.id.clone())]);
        lines.extend(headers.map(|(name, value)| format!("-H {}", quoted(&format!("{name}: {value}")))));
        lines.push(format!("--data-binary {}", quoted(self.body(event).raw())));
        lines.join(" \\\n  ")
    }
}

/// A part of a page that may be gone.
async fn if_kept<T>(read: impl Future<Output = Result<T, Refusal>>) -> Result<Option<T>, Refusal> {
    match read.await {
        Ok(found) => Ok(Some(found)),
        Err(refusal) if refusal.status == StatusCode::NOT_FOUND => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

async fn find(visit: &Visit, id: &str) -> Result<Delivery, Refusal> {
    visit.api.get(&ApiPath::of(["deliveries", id])).await
}

/// The page of a delivery, with what is still kept of its event and its destination.
async fn page_of(visit: &Visit, delivery: Delivery) -> Result<DeliveryPage, Refusal> {
    let path = ApiPath::of(["destinations", &delivery.destination_id]);
    let (me, event, destination) = tokio::try_join!(
        visit.me(),
        if_kept(EventView::read(visit, &delivery.event_id)),
        if_kept(visit.api.get::<Destination>(&path))
    )?;
    let frame = visit.frame(me, Section::Deliveries, format!("{} · delivery", delivery.event_type));
    // A deleted destination has no stream, and its deliveries do not change any more.
    let frame = match &destination {
        Some(_) => frame.live(format!("?destination={}", delivery.destination_id)),
        None => frame,
    };
    Ok(DeliveryPage { frame, delivery, event, destination })
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId) -> Answered {
    let page = page_of(&visit, find(&visit, &id).await?).await?;
    visit.page(&page)
}

#[derive(Deserialize)]
pub(crate) struct Seen {
    /// [`Delivery::version`] of what the page shows.
    #[serde(default)]
    seen: String,
}

/// The delivery for live updates. Without a change there is no content: so what the reader has unfolded or selected
/// stays.
pub(crate) async fn fragment(visit: Visit, PathId(id): PathId, Query(Seen { seen }): Query<Seen>) -> Answered {
    let delivery = find(&visit, &id).await?;
    if delivery.version() == seen {
        return visit.unchanged();
    }
    let page = page_of(&visit, delivery).await?;
    visit.fragment(&DeliveryLive(page))
}

pub(crate) async fn retry(visit: Visit, PathId(id): PathId) -> Answered {
    let path = ApiPath::of(["deliveries", &id, "retry"]);
    let answer = visit.api.post::<Accepted>(&path, &json!({})).await;
    let text = |retried: Accepted| retried.text("It is due now.", "It is sent under the limit of its destination.");
    visit.after(&format!("/deliveries/{id}"), answer, text)
}

pub(crate) async fn cancel(visit: Visit, PathId(id): PathId) -> Answered {
    let path = ApiPath::of(["deliveries", &id, "cancel"]);
    let answer = visit.api.post::<serde_json::Value>(&path, &json!({})).await;
    visit.after(&format!("/deliveries/{id}"), answer, |_| "The delivery is cancelled.".to_owned())
}
