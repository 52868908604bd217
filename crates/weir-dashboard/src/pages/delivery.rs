//! One delivery: its timeline, every attempt with request and response, retry and cancel.

use askama::Template;
use axum::extract::Query;
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use weir_api_types::{Attempt, Body, DeliveryDetail, Destination, Event};
use weir_core::{
    Timestamp,
    body::{BINARY_HEADERS, BodyFormat, BodySettings},
    signing::{self, TimestampFormat},
};

use super::{
    deliveries::state_tone,
    discard_plan::reason_at,
    events::{self, EventText as _, SentBody},
};
use crate::{
    client::{ApiPath, append},
    example::quoted,
    extend::extend,
    faults::Refused,
    fields::Fields,
    frame::{Frame, Section},
    names::label,
    path_id::PathId,
    refusal::Refusal,
    units::Units as _,
    views::{WaitsForText as _, accepted},
    visit::{Answered, Visit},
};

/// Another text after each change that the page shows. Of the deliveries ahead and of the expected time only a coarse value
/// counts, so that the page does not change every second while the delivery moves up.
fn version(DeliveryDetail { delivery, attempts }: &DeliveryDetail) -> String {
    let waits_for = delivery.waits_for.as_ref();
    let reason = waits_for.map_or("", |waits_for| &*waits_for.reason);
    let ahead = waits_for.and_then(|waits_for| waits_for.ahead.as_ref()).map_or(0, |ahead| coarse(ahead.value));
    let until = waits_for.filter(|_| reason != "turn").and_then(|waits_for| waits_for.until);
    let expected = delivery.expected_at.map_or(0, |at| at.as_secs() / COARSE_S);
    let until = until.map_or(0, Timestamp::as_millis);
    format!("{}.{}.{}.{reason}.{until}.{ahead}.{expected}", delivery.state, attempts.len(), delivery.updated_at)
}

/// The expected time is shown again when it moves by about as much.
const COARSE_S: i64 = 10;

/// With one digit that is not zero.
fn coarse(value: u64) -> u64 {
    let unit = 10_u64.pow(value.max(1).ilog10());
    value / unit * unit
}

extend! {
    trait AttemptText for Attempt {
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
}

#[derive(Template)]
#[template(path = "delivery.html")]
struct DeliveryPage {
    frame: Frame,
    found: DeliveryDetail,
    /// `None`: the event is no longer kept.
    event: Option<Event>,
    /// `None`: the destination is deleted.
    destination: Option<Destination>,
    discarding: Refused,
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
        let mut link = format!("{}/fragments/deliveries/{}", self.frame.base(), self.found.delivery.id);
        append(&mut link, "seen", &version(&self.found));
        link
    }

    fn tone(&self) -> &'static str {
        state_tone(&self.found.delivery.state)
    }

    fn destination_label(&self) -> &str {
        match &self.destination {
            Some(found) => label(&found.settings.name, &found.settings.url),
            None => &self.found.delivery.destination_id,
        }
    }

    fn target(&self) -> &str {
        self.destination.as_ref().map_or("(the destination is deleted)", |found| &found.settings.url)
    }

    fn can_cancel(&self) -> bool {
        matches!(&*self.found.delivery.state, "pending" | "retrying")
    }

    /// Whether it is a dead letter, which can be settled.
    fn can_discard(&self) -> bool {
        matches!(&*self.found.delivery.state, "dead" | "failed")
    }

    fn can_retry(&self) -> bool {
        let refused = ["delivering", "expired", "superseded", "delivered"];
        self.destination.is_some() && !refused.contains(&&*self.found.delivery.state)
    }

    fn has_ended(&self) -> bool {
        !matches!(&*self.found.delivery.state, "pending" | "retrying" | "delivering")
    }

    fn ending(&self) -> &'static str {
        match &*self.found.delivery.state {
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
        let id = || self.found.delivery.event_id.clone();
        let seconds = attempt.signed_at.or(attempt.sent_at).map(|at| at.as_secs());
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
            headers.extend(destination.settings.headers.keys().map(|name| fixed(name, "•••".to_owned())));
        }
        headers
    }

    /// The settings of the body; those of a deleted destination are unknown.
    fn body_settings(&self) -> BodySettings {
        let body = self.destination.as_ref().map(|destination| &destination.settings.body);
        body.map_or_else(BodySettings::default, |Body { format, content_type, source }| BodySettings {
            format: BodyFormat::parse(format).unwrap_or_default(),
            content_type: Some(content_type.clone()),
            source: source.clone(),
        })
    }

    fn body(&self, event: &Event) -> SentBody {
        event.body_for(&self.body_settings())
    }

    /// The headers that depend on the form of the body.
    fn body_headers(&self) -> Vec<(String, String)> {
        let settings = self.body_settings();
        let mut headers = vec![("content-type".to_owned(), settings.content_type().to_owned())];
        if settings.format == BodyFormat::CloudeventsBinary
            && let Some(event) = &self.event
        {
            let created_at = event.created_at.to_string();
            let source = settings.source(&event.tenant);
            let values = ["1.0".to_owned(), event.id.clone(), source, event.event_type.clone(), created_at];
            headers.extend(BINARY_HEADERS.iter().map(|name| (*name).to_owned()).zip(values));
        }
        headers
    }

    fn curl(&self, event: &Event) -> String {
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

async fn find(visit: &Visit, id: &str) -> Result<DeliveryDetail, Refusal> {
    visit.api.get(&ApiPath::of(["deliveries", id])).await
}

/// The page of a delivery, with what is still kept of its event and its destination.
async fn page_of(visit: &Visit, found: DeliveryDetail) -> Result<DeliveryPage, Refusal> {
    let delivery = &found.delivery;
    let path = ApiPath::of(["destinations", &delivery.destination_id]);
    let (me, event, destination) = tokio::try_join!(
        visit.me(),
        if_kept(events::read(visit, &delivery.event_id)),
        if_kept(visit.api.get::<Destination>(&path))
    )?;
    let frame = visit.frame(me, Section::Deliveries, format!("{} · delivery", delivery.event_type));
    // A deleted destination has no stream, and its deliveries do not change any more.
    let frame = match &destination {
        Some(_) => frame.live(format!("?destination={}", delivery.destination_id)),
        None => frame,
    };
    Ok(DeliveryPage {
        frame,
        found,
        event: event.map(|found| found.event),
        destination,
        discarding: Refused::default(),
    })
}

pub(crate) async fn show(visit: Visit, PathId(id): PathId) -> Answered {
    let page = page_of(&visit, find(&visit, &id).await?).await?;
    visit.page(&page)
}

#[derive(Deserialize)]
pub(crate) struct Seen {
    /// The [`version`] of what the page shows.
    #[serde(default)]
    seen: String,
}

/// The delivery for live updates. Without a change there is no content: so what the reader has unfolded or selected
/// stays.
pub(crate) async fn fragment(visit: Visit, PathId(id): PathId, Query(Seen { seen }): Query<Seen>) -> Answered {
    let delivery = find(&visit, &id).await?;
    if version(&delivery) == seen {
        return visit.unchanged();
    }
    let page = page_of(&visit, delivery).await?;
    visit.fragment(&DeliveryLive(page))
}

pub(crate) async fn retry(visit: Visit, PathId(id): PathId) -> Answered {
    let path = ApiPath::of(["deliveries", &id, "retry"]);
    let answer = visit.api.post::<DeliveryDetail>(&path, &json!({})).await;
    let text = |retried: DeliveryDetail| {
        let unless_waiting = "It is sent under the limit of its destination.";
        accepted(retried.delivery.waits_for.as_ref(), "It is due now.", unless_waiting)
    };
    visit.after(&format!("/deliveries/{id}"), answer, text)
}

pub(crate) async fn cancel(visit: Visit, PathId(id): PathId) -> Answered {
    let path = ApiPath::of(["deliveries", &id, "cancel"]);
    let answer = visit.api.post::<serde_json::Value>(&path, &json!({})).await;
    visit.after(&format!("/deliveries/{id}"), answer, |_| "The delivery is cancelled.".to_owned())
}

pub(crate) async fn discard(visit: Visit, PathId(id): PathId, fields: Fields) -> Answered {
    let path = ApiPath::of(["deliveries", &id, "discard"]);
    let reason = Some(fields.text("reason")).filter(|reason| !reason.is_empty());
    let answer = visit.api.post::<serde_json::Value>(&path, &json!({ "reason": reason })).await;
    if let Some(discarding) = Refused::by(&answer, &fields, reason_at) {
        let page = DeliveryPage { discarding, ..page_of(&visit, find(&visit, &id).await?).await? };
        return visit.page_with(StatusCode::UNPROCESSABLE_ENTITY, &page);
    }
    visit.after(&format!("/deliveries/{id}"), answer, |_| "The dead letter is discarded.".to_owned())
}
