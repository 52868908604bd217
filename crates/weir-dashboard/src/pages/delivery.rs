//! One delivery: its timeline, every attempt with request and response, retry and cancel.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::Query;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;

use super::{deliveries::state_tone, events::EventView};
use crate::{
    client::{ApiPath, append},
    example::quoted,
    frame::{Frame, Section},
    names::label,
    path_id::PathId,
    refusal::Refusal,
    units::{At, Count},
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
    signature: Signature,
}

#[derive(Debug, Deserialize)]
struct Signature {
    header: Option<String>,
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
        let mut headers = vec![
            fixed("content-type", "application/json".to_owned()),
            fixed("webhook-id", self.delivery.event_id.clone()),
        ];
        if let Some(At(at)) = attempt.signed_at.or(attempt.sent_at) {
            headers.push(fixed("webhook-timestamp", (at.as_nanos() / 1_000_000_000).to_string()));
        }
        headers.push(fixed("weir-attempt", attempt.number.to_string()));
        if let Some(destination) = &self.destination {
            let signature = destination.signature.header.as_deref().unwrap_or("webhook-signature");
            headers.push(fixed(signature, "•••".to_owned()));
            headers.extend(destination.headers.keys().map(|name| fixed(name, "•••".to_owned())));
        }
        headers
    }

    fn curl(&self, event: &EventView) -> String {
        let lines = [
            format!("curl {}", quoted(self.target())),
            "-H 'content-type: application/json'".to_owned(),
            format!("-H {}", quoted(&format!("webhook-id: {}", event.id))),
            format!("--data-binary {}", quoted(&event.sent_body())),
        ];
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
    act(visit, &id, "retry", "It is due now, under the limit of its destination.").await
}

pub(crate) async fn cancel(visit: Visit, PathId(id): PathId) -> Answered {
    act(visit, &id, "cancel", "The delivery is cancelled.").await
}

async fn act(visit: Visit, id: &str, action: &str, done: &str) -> Answered {
    let path = ApiPath::of(["deliveries", id, action]);
    let answer = visit.api.post::<serde_json::Value>(&path, &json!({})).await;
    visit.after(&format!("/deliveries/{id}"), answer, |_| done.to_owned())
}
