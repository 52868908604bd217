//! Reads bodies within their limit, as JSON, and ids in paths.

use std::{ops::Deref, sync::Arc, time::Duration};

use axum::{
    body::{Body as Stream, HttpBody},
    extract::{FromRef, FromRequest, FromRequestParts, Path, Request},
};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, header, request::Parts};
use http_body_util::BodyExt;
use serde_json::{Value, error::Category};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{
    fields::{self, Read},
    texts::Text,
};
use crate::{
    meters,
    problem::{Problem, ProblemKind},
};

/// The largest body of requests other than events.
const MAX_CONFIG_BYTES: usize = 256 * 1024;
/// The largest body that needs no key: enough for a login. Otherwise somebody without a key could fill the budget with
/// slow bodies.
const MAX_OPEN_BYTES: usize = 4 * 1024;
/// How many bytes beyond the limit are read and dropped. A client that is still writing when the server closes the
/// connection often loses the response.
const DRAIN_BYTES: usize = 8 * 1024 * 1024;
/// How long a body may take to arrive, so that a stalled client does not hold memory forever.
const BODY_TIMEOUT: Duration = Duration::from_secs(60);

/// The bytes of request bodies that a process may hold at one time. Clones share one budget.
#[derive(Debug, Clone)]
pub struct BodyBudget {
    bytes: usize,
    free: Arc<Semaphore>,
}

impl BodyBudget {
    pub fn new(bytes: usize) -> Self {
        Self { bytes, free: Arc::new(Semaphore::new(bytes)) }
    }

    /// Reserves memory for a body of this size; `None` if there is not enough. A body larger than the budget reserves
    /// the whole budget, because otherwise it would never be accepted.
    fn reserve(&self, bytes: usize) -> Option<OwnedSemaphorePermit> {
        let bytes = bytes.min(self.bytes).try_into().unwrap_or(u32::MAX);
        Arc::clone(&self.free).try_acquire_many_owned(bytes).ok()
    }
}

/// A body in memory. Its drop frees its share of the budget.
pub(crate) struct BudgetedBody {
    bytes: Bytes,
    _reserved: OwnedSemaphorePermit,
}

impl Deref for BudgetedBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body of a request that must be JSON, without parsing it.
pub(crate) async fn json_bytes(budget: &BodyBudget, request: Request, limit: usize) -> Result<BudgetedBody, Problem> {
    let (parts, body) = request.into_parts();
    expect_json(&parts.headers)?;
    // A chunked body has no declared length and reserves the limit.
    let declared = body.size_hint().upper().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let reserved = budget.reserve(declared.map_or(limit, |bytes| bytes.min(limit)));
    // Read the body if the budget has memory for it. Otherwise drop the body as it arrives: if the connection closed at
    // once, a client that is still writing could lose the refusal.
    let received = async {
        match reserved {
            Some(reserved) => Ok(BudgetedBody { bytes: read(body, declared, limit).await?, _reserved: reserved }),
            None => {
                meters::shed("body_budget");
                drain(body, declared, limit).await;
                Err(Problem::new(
                    ProblemKind::Unavailable,
                    "the memory budget for request bodies is used up; try again",
                ))
            }
        }
    };
    // A client that stalls must not keep its share of the budget.
    tokio::time::timeout(BODY_TIMEOUT, received)
        .await
        .unwrap_or_else(|_| Err(Problem::new(ProblemKind::Timeout, "the body did not arrive within 60 s")))
}

/// The body of a request other than events, of at most `MOST` bytes. An empty body counts as `null` for an `Option`.
pub(crate) struct Body<T, const MOST: usize = MAX_CONFIG_BYTES>(pub(crate) T);

/// The body of a request that needs no key.
pub(crate) type OpenBody<T> = Body<T, MAX_OPEN_BYTES>;

impl<T: Read, S: Send + Sync, const MOST: usize> FromRequest<S> for Body<T, MOST>
where
    BodyBudget: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        read_json(&BodyBudget::from_ref(state), request, MOST).await.map(Self)
    }
}

async fn read_json<T: Read>(budget: &BodyBudget, request: Request, limit: usize) -> Result<T, Problem> {
    let bytes = json_bytes(budget, request, limit).await?;
    let body = match &*bytes {
        [] if T::absent().is_some() => Value::Null,
        bytes => serde_json::from_slice(bytes).map_err(|error| not_json(&error))?,
    };
    fields::read(body)
}

/// The refusal of a body that is not valid JSON.
pub(crate) fn not_json(error: &serde_json::Error) -> Problem {
    match error.classify() {
        Category::Data => Problem::invalid_field("", error.to_string()),
        Category::Eof if error.line() <= 1 && error.column() == 0 => {
            Problem::new(ProblemKind::NotJson, "the body is empty; send JSON")
        }
        _ => Problem::new(ProblemKind::NotJson, format!("the body is not valid JSON: {error}")),
    }
}

/// The refusal of a body of more than `limit` bytes.
pub(crate) fn too_large(limit: usize) -> Problem {
    Problem::new(ProblemKind::TooLarge, format!("the body is larger than {limit} bytes"))
}

/// Refuses a body with another media type. A body without a media type counts as JSON, unless a web page sent it.
/// Without a CORS preflight, a page can post such bodies to other sites, among them a server without keys on loopback.
fn expect_json(headers: &HeaderMap) -> Result<(), Problem> {
    let accepted = match headers.get(header::CONTENT_TYPE) {
        Some(value) => value.to_str().is_ok_and(is_json),
        None => !headers.contains_key(header::ORIGIN),
    };
    accepted
        .then_some(())
        .ok_or_else(|| Problem::new(ProblemKind::UnsupportedMediaType, "send `Content-Type: application/json`"))
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim();
    let ends_in_json = |kind: &str| kind.len() > 5 && kind[kind.len() - 5..].eq_ignore_ascii_case("+json");
    essence.eq_ignore_ascii_case("application/json") || (essence.is_ascii() && ends_in_json(essence))
}

/// Reads and drops a body for which the budget has no memory, up to the same length as a body that is too large.
async fn drain(mut body: Stream, declared: Option<usize>, limit: usize) {
    let max_length = limit + DRAIN_BYTES;
    if declared.is_some_and(|bytes| bytes > max_length) {
        return;
    }
    let mut length = 0;
    while let Some(Ok(frame)) = body.frame().await {
        length += frame.data_ref().map_or(0, Bytes::len);
        if length > max_length {
            return;
        }
    }
}

async fn read(mut body: Stream, declared: Option<usize>, limit: usize) -> Result<Bytes, Problem> {
    // A body that is too long even to be dropped is refused unread.
    if declared.is_some_and(|bytes| bytes > limit + DRAIN_BYTES) {
        return Err(too_large(limit));
    }
    // A small body arrives in one frame and is not copied.
    let mut first = Bytes::new();
    let mut whole = BytesMut::new();
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::new(ProblemKind::NotJson, "the body ended before it was complete"))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > limit {
            // Too large: keep no more bytes, but drop the rest as it arrives, so that the client gets the refusal.
            whole = BytesMut::new();
            if length > limit + DRAIN_BYTES {
                break;
            }
        } else if first.is_empty() {
            first = data;
        } else {
            // From the second frame on, the frames are collected in one buffer.
            if whole.is_empty() {
                whole.reserve(declared.unwrap_or(length).min(limit));
                whole.extend_from_slice(&first);
            }
            whole.extend_from_slice(&data);
        }
    }
    match length {
        _ if length > limit => Err(too_large(limit)),
        _ if whole.is_empty() => Ok(first),
        _ => Ok(whole.freeze()),
    }
}

/// The id in a path. A text that is no id of the expected kind is answered with 404.
pub(crate) struct PathId<T>(pub(crate) T);

impl<T: Text, S: Send + Sync> FromRequestParts<S> for PathId<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let Path(text) = Path::<String>::from_request_parts(parts, state)
            .await
            .map_err(|_| Problem::not_found("the path is not valid UTF-8"))?;
        T::parse(&text).map(Self).map_err(|error| Problem::not_found(format!("the id in the path {error}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_recognised_by_its_media_type() {
        for good in ["application/json", "Application/JSON; charset=utf-8", "application/vnd.acme+json"] {
            assert!(is_json(good), "{good}");
        }
        for bad in ["text/plain", "application/x-www-form-urlencoded", "", "+json", "application/jsonp"] {
            assert!(!is_json(bad), "{bad}");
        }
    }

    #[test]
    fn a_page_of_another_site_cannot_post_a_body_without_a_type() {
        let mut headers = HeaderMap::new();
        assert!(expect_json(&headers).is_ok());
        headers.insert(header::ORIGIN, "https://example.com".parse().unwrap());
        assert!(expect_json(&headers).is_err());
    }
}
