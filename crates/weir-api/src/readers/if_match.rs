//! The `If-Match` header: a change applies only to the version of a resource that the client has read. Source: RFC 9110,
//! section 13.1.1.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use http::{header, request::Parts};

use crate::problem::{ApiResult, Problem, ProblemKind};

/// The versions that a request names; `None`: the request applies to every version.
pub(crate) struct IfMatch(Option<Vec<String>>);

impl IfMatch {
    pub(crate) const ANY: Self = Self(None);

    /// Whether the request names versions.
    pub(crate) fn is_given(&self) -> bool {
        self.0.is_some()
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
        let mut values = parts.headers.get_all(header::IF_MATCH).iter().peekable();
        if values.peek().is_none() {
            return Ok(Self::ANY);
        }
        // A value that is no text matches nothing.
        let named =
            values.flat_map(|value| value.to_str().unwrap_or_default().split(',')).map(|tag| tag.trim().to_owned());
        Ok(Self(Some(named.collect())))
    }
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
