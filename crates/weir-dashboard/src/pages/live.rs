//! The live stream of a page: the events of `GET /v1/stream` by name, without their data.
//!
//! A page has live regions, and each names the fragment that replaces it. So the stream only has to say when something
//! may have changed, and a browser gets HTML from one place.

use axum::{body::Body, extract::Query, response::IntoResponse};
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderName, StatusCode, header};
use serde::Deserialize;

use crate::{
    client::{ApiPath, Call},
    refusal::Refusal,
    visit::{Answered, Visit},
};

/// Without this header nginx would hold the events back.
const UNBUFFERED: (HeaderName, &str) = (HeaderName::from_static("x-accel-buffering"), "no");
/// The stream of a reader whose session has ended. A page that reconnects reads only the body of the answer: the event
/// makes it ask for its live regions, and these lead it to the login.
const SESSION_ENDED: &str = "retry: 30000\nevent: snapshot\ndata: 1\n\n";
/// The events that pages know.
const EVENTS: [&str; 4] = ["snapshot", "edit", "breaker", "replay"];

#[derive(Deserialize)]
pub(crate) struct Watched {
    #[serde(default)]
    tenant: String,
    #[serde(default)]
    destination: String,
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
    let mut names = EventNames::default();
    let named = response.into_body().into_data_stream().map(move |chunk| chunk.map(|chunk| names.forward(&chunk)));
    let headers = [(header::CONTENT_TYPE, "text/event-stream"), UNBUFFERED];
    Ok((StatusCode::OK, headers, Body::from_stream(named)).into_response())
}

/// Reads the names of events from a stream that arrives in chunks of any size. It keeps only the beginning of the line
/// that is not complete, because lines of data are long.
#[derive(Default)]
struct EventNames {
    line: Vec<u8>,
}

/// Longer than `event: ` and the longest name.
const KEPT: usize = 32;

impl EventNames {
    /// What the page gets for this chunk: the events that it names, or a comment that keeps the connection open.
    fn forward(&mut self, chunk: &[u8]) -> Bytes {
        let mut out = String::new();
        for &byte in chunk {
            if byte != b'\n' {
                if self.line.len() < KEPT {
                    self.line.push(byte);
                }
                continue;
            }
            let line = std::mem::take(&mut self.line);
            let name = line.strip_prefix(b"event:").map(<[u8]>::trim_ascii);
            let known = name.and_then(|name| EVENTS.into_iter().find(|known| known.as_bytes() == name));
            if let Some(name) = known {
                // An event without data is not dispatched.
                out.extend(["event: ", name, "\ndata: 1\n\n"]);
            }
        }
        if out.is_empty() { Bytes::from_static(b":\n\n") } else { out.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_forwarded_by_name_whatever_the_chunks() {
        let stream = b"event: snapshot\ndata: {\"event: edit\": 1}\n\n: keep\n\nevent:edit\r\ndata: {}\n\nevent: x\n\n";
        let expected = "event: snapshot\ndata: 1\n\nevent: edit\ndata: 1\n\n";
        for size in 1..stream.len() {
            let mut names = EventNames::default();
            let out: Vec<u8> = stream.chunks(size).flat_map(|chunk| names.forward(chunk)).collect();
            assert_eq!(String::from_utf8(out).unwrap().replace(":\n\n", ""), expected, "{size}");
        }
    }
}
