//! The `If-Match` header: a change applies only to the version of a resource that the client has read; and
//! `If-None-Match`: it applies to no such version, or with `*` only if there is no resource. Source: RFC 9110, sections
//! 13.1.1 and 13.1.2. Also the steps that every such change shares: its rounds, and the answer with the version.

use std::{convert::Infallible, fmt::LowerHex, time::Duration};

use axum::{
    Json,
    extract::FromRequestParts,
    response::{AppendHeaders, IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, StatusCode, header, request::Parts};
use serde::Serialize;
use weir_core::Timestamp;

use crate::problem::{ApiResult, Problem, ProblemKind};

/// How often a change is tried while other requests change the same resource. In each round one of them succeeds.
pub(crate) const ROUNDS: usize = 64;

/// The refusal of a change that lost every round against others.
pub(crate) fn crowded(resource: &str) -> Problem {
    Problem::conflict(format!("other requests keep changing this {resource}; try again"))
}

/// `updated_at` is shown in milliseconds, and two versions of a resource must show different values.
const TICK: Duration = Duration::from_millis(1);

/// When a change is made, as the version of the resource after it.
pub(crate) fn later(updated_at: Timestamp, now: Timestamp) -> Timestamp {
    now.max(updated_at + TICK)
}

/// The entity tag of a version.
pub(crate) fn etag(version: impl LowerHex) -> String {
    format!("\"{version:x}\"")
}

/// A resource with its version, and after its creation with its path.
pub(crate) fn versioned(status: StatusCode, etag: String, path: String, view: impl Serialize) -> Response {
    let location = (status == StatusCode::CREATED).then(|| AppendHeaders([(header::LOCATION, path)]));
    (status, [(header::ETAG, etag)], location, Json(view)).into_response()
}

/// What a request that may create or replace says about versions.
pub(crate) struct Preconditions(IfMatch, IfNoneMatch);

impl Preconditions {
    /// Checks them against the version of the resource; `None`: there is no such resource.
    pub(crate) fn check(&self, current: Option<String>) -> ApiResult<()> {
        let Self(if_match, if_none_match) = self;
        let Some(etag) = current else { return if_match.check_absent() };
        if_none_match.check(&etag)?;
        if_match.check(&etag)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Preconditions {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        let [if_match, if_none_match] =
            [header::IF_MATCH, header::IF_NONE_MATCH].map(|name| named(&parts.headers, name));
        Ok(Self(IfMatch(if_match), IfNoneMatch(if_none_match)))
    }
}

/// The versions that a request names; `None`: the request applies to every version.
pub(crate) struct IfMatch(Option<Vec<String>>);

impl IfMatch {
    /// Whether the request names versions.
    pub(crate) fn is_given(&self) -> bool {
        self.0.is_some()
    }

    /// Refuses the request if it names versions of a resource that does not exist.
    fn check_absent(&self) -> ApiResult<()> {
        if self.is_given() {
            let detail = "there is no such resource, so it has none of the versions that `If-Match` names";
            return Err(Problem::new(ProblemKind::PreconditionFailed, detail));
        }
        Ok(())
    }

    /// Refuses the request if the resource has another version than those that the request names. Weak entity tags
    /// (`W/"…"`) never match.
    pub(crate) fn check(&self, etag: &str) -> ApiResult<()> {
        let Self(Some(named)) = self else { return Ok(()) };
        if named.iter().any(|named| named == "*" || named == etag) {
            return Ok(());
        }
        let detail =
            format!("the resource has changed: its version is {etag} now; read it again and repeat the change");
        Err(Problem::new(ProblemKind::PreconditionFailed, detail))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for IfMatch {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self(named(&parts.headers, header::IF_MATCH)))
    }
}

/// The versions that a resource must not have; `None`: it may have any, or not exist.
struct IfNoneMatch(Option<Vec<String>>);

impl IfNoneMatch {
    /// Checks a request about a resource that exists. The request is refused if it names the version of the resource, or
    /// `*`, which means every version. Weak entity tags match too.
    fn check(&self, etag: &str) -> ApiResult<()> {
        let Self(Some(named)) = self else { return Ok(()) };
        if named.iter().any(|named| named == "*" || named.strip_prefix("W/").unwrap_or(named) == etag) {
            let detail = format!("the resource exists already, with the version {etag}");
            return Err(Problem::new(ProblemKind::PreconditionFailed, detail));
        }
        Ok(())
    }
}

/// The entity tags in a header; `None` without the header. A value that is no text matches nothing.
fn named(headers: &HeaderMap, name: HeaderName) -> Option<Vec<String>> {
    let mut values = headers.get_all(name).iter().peekable();
    values.peek()?;
    let named = values.flat_map(|value| value.to_str().unwrap_or_default().split(','));
    Some(named.map(|tag| tag.trim().to_owned()).collect())
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    async fn matches(values: &[&str], etag: &str) -> bool {
        let mut request = Request::builder();
        for value in values {
            request = request.header(header::IF_MATCH, *value);
        }
        let mut parts = request.body(()).unwrap().into_parts().0;
        let Ok(if_match) = IfMatch::from_request_parts(&mut parts, &()).await;
        if_match.check(etag).is_ok()
    }

    #[tokio::test]
    async fn only_a_named_version_matches() {
        let etag = "\"1a\"";
        for (values, expected) in [
            (&[][..], true),
            (&["*"], true),
            (&["\"1a\""], true),
            (&["\"2b\", \"1a\""], true),
            (&["\"2b\"", "\"1a\""], true),
            (&["\"2b\""], false),
            (&["1a"], false),
            (&["W/\"1a\""], false),
            (&[""], false),
        ] {
            assert_eq!(matches(values, etag).await, expected, "{values:?}");
        }
    }
}
