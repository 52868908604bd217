//! Reads bodies within their limit, their budget and their time, as JSON, and ids in paths.
//!
//! The budget counts the bytes that have arrived, not those that were announced, so a client that only announces them
//! takes nothing from others. Events and changes have a budget each: no load of events keeps people from their edits.

use std::{ops::Deref, sync::Arc};

use axum::{
    body::{Body as Stream, HttpBody},
    extract::{FromRef, FromRequest, FromRequestParts, Path, Request},
};
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, header, request::Parts};
use http_body_util::BodyExt;
use serde_json::{Value, error::Category};
use tokio::time::{Instant, timeout_at};
use weir_core::{
    inbound::{ByteBudget, HeldBytes, time_to_arrive},
    shed::{Class, Reason},
};

use super::{
    fields::{self, Read},
    json,
    texts::Text,
};
use crate::{
    auth::{Caller, Sharer},
    meters,
    problem::{Problem, ProblemKind},
};

/// The largest body of requests other than events.
const MAX_CONFIG_BYTES: usize = 256 * 1024;
/// The largest body that needs no key: enough for a login. With one body for each connection this is little memory, so
/// it has no budget.
const MAX_OPEN_BYTES: usize = 4 * 1024;
/// The budget for requests other than events. A key alone may have 32 of the largest under way.
const CONFIG_BUDGET_BYTES: usize = 16 * 1024 * 1024;
/// How many bytes beyond the limit are read and dropped. A client that is still writing when the server closes the
/// connection often loses the response.
const DRAIN_BYTES: usize = 8 * 1024 * 1024;

/// Who shares a budget: the key of the request. `None`: the request needs no key.
type Holder = Option<Sharer>;

/// The bytes of request bodies that a process may hold at one time. Clones share one budget.
#[derive(Debug, Clone)]
pub struct BodyBudget {
    events: Arc<ByteBudget<Holder>>,
    changes: Arc<ByteBudget<Holder>>,
}

impl BodyBudget {
    /// `bytes`: for the bodies of events.
    pub fn new(bytes: usize) -> Self {
        Self { events: ByteBudget::new(bytes), changes: ByteBudget::new(CONFIG_BUDGET_BYTES) }
    }
}

/// A body in memory. Its drop frees its share of the budget.
pub(crate) struct BudgetedBody {
    bytes: Bytes,
    _held: Option<HeldBytes<Holder>>,
}

impl Deref for BudgetedBody {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads the body of events, which must be JSON, without parsing it.
pub(crate) async fn event_bytes(budget: &BodyBudget, request: Request, limit: usize) -> Result<BudgetedBody, Problem> {
    json_bytes(Some(&budget.events), Class::Ingest, request, limit).await
}

async fn json_bytes(
    budget: Option<&Arc<ByteBudget<Holder>>>,
    class: Class,
    request: Request,
    limit: usize,
) -> Result<BudgetedBody, Problem> {
    let holder = request.extensions().get::<Caller>().map(Caller::sharer);
    let (parts, body) = request.into_parts();
    expect_json(&parts.headers)?;
    let mut held = budget.map(|budget| budget.open(holder));
    let bytes = read(body, limit, class, held.as_mut()).await?;
    Ok(BudgetedBody { bytes, _held: held })
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
    let budget = (limit > MAX_OPEN_BYTES).then_some(&budget.changes);
    let bytes = json_bytes(budget, Class::Control, request, limit).await?;
    let body = match &*bytes {
        [] if T::absent().is_some() => Value::Null,
        bytes => json::from_slice(bytes).map_err(|error| not_json(&error))?,
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

/// Refuses a body with another media type, or in a compressed form: what it takes in memory is not known before it is
/// decoded. A body without a media type counts as JSON, unless a web page sent it. Without a CORS preflight, a page can
/// post such bodies to other sites, among them a server without keys on loopback.
fn expect_json(headers: &HeaderMap) -> Result<(), Problem> {
    let is_plain = |encoding: &HeaderValue| encoding.as_bytes().eq_ignore_ascii_case(b"identity");
    if !headers.get_all(header::CONTENT_ENCODING).iter().all(is_plain) {
        let detail = "send the body as it is, without `Content-Encoding`";
        return Err(Problem::new(ProblemKind::UnsupportedMediaType, detail));
    }
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

/// Reads a body within its time. `held`: what it holds of its budget.
///
/// A refused body is dropped as it arrives, up to [`DRAIN_BYTES`] beyond the limit: if the connection closed at once, a
/// client that is still writing could lose the refusal.
async fn read(
    mut body: Stream,
    limit: usize,
    class: Class,
    mut held: Option<&mut HeldBytes<Holder>>,
) -> Result<Bytes, Problem> {
    let began = Instant::now();
    let declared = body.size_hint().upper().map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
    let mut refusal = declared.filter(|bytes| *bytes > limit).map(|_| too_large(limit));
    let may_be_dropped = |length: usize| length <= limit + DRAIN_BYTES;
    if !declared.is_none_or(may_be_dropped) {
        return Err(too_large(limit));
    }
    let mut kept = Kept { most: declared.unwrap_or(limit).min(limit), ..Kept::default() };
    let mut arrived = 0;
    while let Some(frame) =
        timeout_at(began + time_to_arrive(arrived), body.frame()).await.map_err(|_| too_slow(arrived))?
    {
        let frame = frame.map_err(|_| Problem::new(ProblemKind::NotJson, "the body ended before it was complete"))?;
        let Ok(data) = frame.into_data() else { continue };
        arrived += data.len();
        if refusal.is_none() {
            refusal = if arrived > limit {
                Some(too_large(limit))
            } else if held.as_mut().is_some_and(|held| !held.grow_to(kept.bytes_with(&data))) {
                Some(used_up(class))
            } else {
                None
            };
            if refusal.is_none() {
                kept.push(data);
                continue;
            }
            // From here on nothing is kept.
            kept = Kept::default();
            held.iter_mut().for_each(|held| held.release());
        }
        if !may_be_dropped(arrived) {
            break;
        }
    }
    refusal.map_or(Ok(kept.into_bytes()), Err)
}

fn used_up(class: Class) -> Problem {
    meters::no_room(class, Reason::Bytes);
    Problem::no_room(Reason::Bytes, "the memory for request bodies that this key may use is used up; try again")
}

fn too_slow(arrived: usize) -> Problem {
    let seconds = time_to_arrive(arrived).as_secs();
    Problem::new(ProblemKind::Timeout, format!("{arrived} bytes of the body arrived within {seconds} s"))
}

/// The bytes of a body that have arrived. A small body arrives in one frame and is not copied.
#[derive(Default)]
struct Kept {
    first: Bytes,
    /// From the second frame on, all bytes.
    whole: Vec<u8>,
    /// No more bytes than this come.
    most: usize,
}

impl Kept {
    /// The memory in use once this frame is kept. Memory grows with what arrives, not with what was announced.
    fn bytes_with(&self, data: &Bytes) -> usize {
        let needed = self.first.len() + self.whole.len() + data.len();
        if needed == data.len() || needed <= self.whole.capacity() {
            return needed.max(self.whole.capacity());
        }
        // Twice as much as is needed, so that each byte is copied about once.
        (needed * 2).min(self.most).max(needed)
    }

    fn push(&mut self, data: Bytes) {
        if self.first.is_empty() && self.whole.is_empty() {
            self.first = data;
            return;
        }
        self.whole.reserve_exact(self.bytes_with(&data) - self.whole.len());
        self.whole.extend_from_slice(&std::mem::take(&mut self.first));
        self.whole.extend_from_slice(&data);
    }

    fn into_bytes(self) -> Bytes {
        if self.whole.is_empty() { self.first } else { self.whole.into() }
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

    #[test]
    fn the_memory_of_a_body_grows_with_what_has_arrived() {
        let mut kept = Kept { most: 10_000, ..Kept::default() };
        for (arrived, expected) in [(1, 100), (2, 400), (3, 400), (4, 400), (5, 1_000)] {
            let data = Bytes::from_static(&[b' '; 100]);
            assert_eq!(kept.bytes_with(&data), expected, "{arrived}");
            kept.push(data);
            assert_eq!(kept.whole.capacity().max(100), expected, "{arrived}");
        }
        assert_eq!(kept.bytes_with(&Bytes::from_static(&[b' '; 9_000])), 10_000);
        assert_eq!(kept.into_bytes().len(), 500);
    }
}
