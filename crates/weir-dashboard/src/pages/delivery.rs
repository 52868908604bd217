//! One delivery: its timeline, every attempt with request and response, retry and cancel.

use std::collections::BTreeMap;

use askama::Template;
use axum::extract::Path;
use serde::Deserialize;
use serde_json::json;

use super::{deliveries::state_tone, events::EventView};
use crate::{
    client::ApiPath,
    example::quoted,
    frame::{Frame, Section},
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

impl DeliveryPage {
    fn tone(&self) -> &'static str {
        state_tone(&self.delivery.state)
    }

    fn destination_label(&self) -> &str {
        match &self.destination {
            Some(found) if found.name.is_empty() => &found.url,
            Some(found) => &found.name,
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
        Err(refusal) if refusal.status == http::StatusCode::NOT_FOUND => Ok(None),
        Err(refusal) => Err(refusal),
    }
}

pub(crate) async fn show(visit: Visit, Path(id): Path<String>) -> Answered {
    let path = ApiPath::of(["deliveries", &id]);
    let (me, delivery) = tokio::try_join!(visit.me(), visit.api.get::<Delivery>(&path))?;
    let path = ApiPath::of(["destinations", &delivery.destination_id]);
    let (event, destination) =
        tokio::try_join!(if_kept(EventView::read(&visit, &delivery.event_id)), if_kept(visit.api.get(&path)))?;
    let frame = visit.frame(me, Section::Deliveries, format!("{} · delivery", delivery.event_type));
    visit.page(&DeliveryPage { frame, delivery, event, destination })
}

pub(crate) async fn retry(visit: Visit, Path(id): Path<String>) -> Answered {
    act(visit, &id, "retry", "It is due now, under the limit of its destination.").await
}

pub(crate) async fn cancel(visit: Visit, Path(id): Path<String>) -> Answered {
    act(visit, &id, "cancel", "The delivery is cancelled.").await
}

async fn act(visit: Visit, id: &str, action: &str, done: &str) -> Answered {
    let path = ApiPath::of(["deliveries", id, action]);
    let answer = visit.api.post::<serde_json::Value>(&path, &json!({})).await;
    visit.after(&format!("/deliveries/{id}"), answer, |_| done.to_owned())
}
