//! The live stream of a page: the events of `GET /v1/stream` by name, without their data.
//!
//! A page has live regions, and each names the fragment that replaces it. So the stream only has to say when something
//! has changed, and a browser gets HTML from one place. The API sends a snapshot each second. The page gets it as
//! `snapshot` if something that it shows has changed, and otherwise as `still`, for which no page asks for anything. Both
//! carry the instant of the snapshot.

use axum::{
    body::{Body, BodyDataStream},
    extract::Query,
    response::IntoResponse,
};
use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use http::{HeaderName, StatusCode, header};
use serde::Deserialize;

use crate::{
    client::{ApiPath, Call, Client},
    fingerprint::fingerprint,
    frame::Also,
    refusal::Refusal,
    visit::{Answered, Visit},
};

/// Without this header nginx would hold the events back.
const UNBUFFERED: (HeaderName, &str) = (HeaderName::from_static("x-accel-buffering"), "no");
/// The stream of a reader whose session has ended. A page that reconnects reads only the body of the answer: the event
/// makes it ask for its live regions, and these lead it to the login.
const SESSION_ENDED: &str = "retry: 30000\nevent: snapshot\ndata: 1\n\n";
/// The events that pages know besides snapshots.
const EVENTS: [&str; 3] = ["edit", "breaker", "replay"];
/// What a page shows of the last hour changes for an hour after the last change of a figure: meanwhile the page asks
/// again once in this many snapshots, so about once a minute, and then no more.
const ASKS_EVERY: u32 = 60;
const ASKS_AT_MOST: u32 = 60;
/// For a key that is bound to tenants the store examines thousands of rows to find the newest one, so it is asked for at
/// every tenth snapshot only.
const EVERY_IF_BOUND: u32 = 10;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Watched {
    tenant: String,
    destination: String,
    also: Also,
}

pub(crate) async fn stream(visit: Visit, Query(watched): Query<Watched>) -> Answered {
    let path = ApiPath::of(["stream"]).with("tenant", &watched.tenant).with("destination", &watched.destination);
    let response = visit.api.open(&Call::get(&path)).await?;
    if response.status() == StatusCode::UNAUTHORIZED {
        let login = format!("{}/login", visit.site.base);
        let headers = [
            (header::CONTENT_TYPE, "text/event-stream"),
            // A script that reads the headers follows this one.
            (HeaderName::from_static("hx-redirect"), login.as_str()),
        ];
        return Ok((headers, SESSION_ENDED).into_response());
    }
    if !response.status().is_success() {
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, 64 * 1024).await.map_err(|error| Refusal::broken(&error))?;
        return Err(Refusal::of_answer(parts.status, &parts.headers, &body));
    }
    let every = match watched.also {
        Also::Nothing | Also::Pictures | Also::Time => 1,
        Also::Events | Also::Activity => visit.me().await.map(|me| if me.is_bound() { EVERY_IF_BOUND } else { 1 })?,
    };
    let page = Page {
        chunks: response.into_body().into_data_stream(),
        lines: Lines::default(),
        api: visit.api,
        also: watched.also,
        every,
        has_pictures: watched.also == Also::Pictures || !watched.destination.is_empty(),
        snapshots: 0,
        still: 0,
        newest: String::new(),
        shown: None,
    };
    let told = stream::unfold(page, |mut page| async move {
        let chunk = page.chunks.next().await?;
        let told = match chunk {
            Ok(chunk) => Ok(page.forward(&chunk).await),
            Err(error) => Err(error),
        };
        Some((told, page))
    });
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), UNBUFFERED];
    Ok((StatusCode::OK, headers, Body::from_stream(told)).into_response())
}

/// The stream of one open page.
struct Page {
    chunks: BodyDataStream,
    lines: Lines,
    api: Client,
    also: Also,
    /// At how many snapshots the newest row is asked for once.
    every: u32,
    /// Whether the page shows what happened of late.
    has_pictures: bool,
    snapshots: u32,
    /// How many snapshots without a change came one after the other.
    still: u32,
    newest: String,
    /// What the page has been told of: the version of its figures and the newest row.
    shown: Option<(String, String)>,
}

impl Page {
    /// What the page gets for this chunk: the events that it names, or a comment that keeps the connection open.
    async fn forward(&mut self, chunk: &[u8]) -> Bytes {
        let mut out = String::new();
        for event in self.lines.read(chunk) {
            // An event without data is not dispatched.
            match event {
                Event::Snapshot { as_of, version } => {
                    let name = if self.is_changed(version).await { "snapshot" } else { "still" };
                    out.extend(["event: ", name, "\ndata: ", &as_of, "\n\n"]);
                }
                Event::Other(name) => out.extend(["event: ", name, "\ndata: 1\n\n"]),
            }
        }
        if out.is_empty() { Bytes::from_static(b":\n\n") } else { out.into() }
    }

    async fn is_changed(&mut self, version: String) -> bool {
        if self.snapshots.is_multiple_of(self.every) {
            self.newest = newest(&self.api, self.also).await;
        }
        self.snapshots = self.snapshots.wrapping_add(1);
        let now = Some((version, self.newest.clone()));
        let is_changed = self.shown != now;
        self.shown = now;
        self.still = if is_changed { 0 } else { self.still.saturating_add(1) };
        let moves =
            self.has_pictures && self.still.is_multiple_of(ASKS_EVERY) && self.still / ASKS_EVERY <= ASKS_AT_MOST;
        is_changed || moves || self.also == Also::Time
    }
}

/// The newest row of the list that no counter counts. If it cannot be read, the page asks and is told why.
async fn newest(api: &Client, also: Also) -> String {
    let list = match also {
        Also::Nothing | Also::Pictures | Also::Time => return String::new(),
        Also::Events => "events",
        Also::Activity => "activity",
    };
    let newest = api.send(&Call::get(&ApiPath::of([list]).with("limit", "1"))).await;
    newest.map(|answer| fingerprint(&answer.body)).unwrap_or_default()
}

/// An event of the API.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Snapshot { as_of: String, version: String },
    Other(&'static str),
}

/// Reads events from a stream that arrives in chunks of any size. It keeps only the beginning of the line that is not
/// complete, because lines of data are long.
#[derive(Default)]
struct Lines {
    line: Vec<u8>,
    /// The next line of data is that of a snapshot.
    is_snapshot: bool,
}

/// Longer than the longest name, and than the beginning of a snapshot with its instant and its version.
const KEPT: usize = 128;

impl Lines {
    fn read(&mut self, chunk: &[u8]) -> Vec<Event> {
        let mut events = Vec::new();
        for &byte in chunk {
            if byte != b'\n' {
                if self.line.len() < KEPT {
                    self.line.push(byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            if let Some(name) = line.strip_prefix(b"event:").map(<[u8]>::trim_ascii) {
                self.is_snapshot = name == b"snapshot";
                let known = EVENTS.into_iter().find(|known| known.as_bytes() == name);
                events.extend(known.map(Event::Other));
            } else if line.starts_with(b"data:") && std::mem::take(&mut self.is_snapshot) {
                let text = String::from_utf8_lossy(&line);
                let [as_of, version] = ["as_of", "version"].map(|field| value(&text, field).to_owned());
                events.push(Event::Snapshot { as_of, version });
            }
        }
        events
    }
}

/// The text of a field at the beginning of an object. The fields that are asked for have no escaped characters.
fn value<'t>(json: &'t str, field: &str) -> &'t str {
    let rest = json.split_once(&format!("\"{field}\":\"")).map_or("", |(_, rest)| rest);
    rest.split_once('"').map_or("", |(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_read_by_name_whatever_the_chunks() {
        let stream = b"event: snapshot\ndata: {\"as_of\":\"2026-11-21T07:30:00.000Z\",\"version\":\"0a1b\",\"x\":\"event: edit\"}\n\n\
            : keep\n\nevent:edit\r\ndata: {}\n\nevent: x\n\n";
        let snapshot = Event::Snapshot { as_of: "2026-11-21T07:30:00.000Z".to_owned(), version: "0a1b".to_owned() };
        let expected = [snapshot, Event::Other("edit")];
        for size in 1..stream.len() {
            let mut lines = Lines::default();
            let events: Vec<Event> = stream.chunks(size).flat_map(|chunk| lines.read(chunk)).collect();
            assert_eq!(events, expected, "{size}");
        }
    }
}
