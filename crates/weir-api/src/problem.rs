//! Maps errors to HTTP responses: RFC 9457 `application/problem+json`. No other module does.
//!
//! Internals never reach a client: an error of the store is answered with 500 or 503, and its reason goes along with
//! the response to the log ([`Failure`]), where it gets the id of the request.

use std::{borrow::Cow, time::Duration};

use axum::response::{IntoResponse, Response};
use http::{HeaderValue, StatusCode, header};
use serde::Serialize;
use utoipa::ToResponse;
use weir_api_types::{self as types, FieldError};
use weir_core::{
    Timestamp,
    shed::{Class, Reason, Refusal},
};
use weir_queue::ReserveError;
use weir_store::StoreError;

const MEDIA_TYPE: HeaderValue = HeaderValue::from_static("application/problem+json");
/// `Retry-After` of a 503, in seconds: longer than a restart of the store, and short enough for clients to wait.
const RETRY_AFTER_S: &str = "2";

/// The kinds of refusal, one per `type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumIter, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub(crate) enum ProblemKind {
    NotJson,
    NoHost,
    Unauthorized,
    Forbidden,
    CrossSite,
    NotFound,
    MethodNotAllowed,
    Timeout,
    Conflict,
    PreconditionFailed,
    TooLarge,
    UnsupportedMediaType,
    Misdirected,
    Invalid,
    TooManyFailures,
    TooMany,
    NoSlot,
    Internal,
    Unavailable,
    Overloaded,
}

impl ProblemKind {
    pub(crate) const fn status(self) -> StatusCode {
        match self {
            Self::NotJson | Self::NoHost => StatusCode::BAD_REQUEST,
            Self::Unauthorized => StatusCode::UNAUTHORIZED,
            Self::Forbidden | Self::CrossSite => StatusCode::FORBIDDEN,
            Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::Conflict => StatusCode::CONFLICT,
            Self::PreconditionFailed => StatusCode::PRECONDITION_FAILED,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Misdirected => StatusCode::MISDIRECTED_REQUEST,
            Self::Invalid => StatusCode::UNPROCESSABLE_ENTITY,
            Self::TooManyFailures | Self::TooMany | Self::NoSlot => StatusCode::TOO_MANY_REQUESTS,
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Unavailable | Self::Overloaded => StatusCode::SERVICE_UNAVAILABLE,
        }
    }

    /// The `type` of the problem: a reference into the documentation of this server.
    fn uri(self) -> String {
        format!("/docs#problem-{}", <&str>::from(self))
    }

    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::NotJson => "The body is not JSON",
            Self::NoHost => "The request does not name exactly one host",
            Self::Unauthorized => "An API key is required",
            Self::Forbidden => "The role of the API key does not allow this operation",
            Self::CrossSite => "A browser may send this only from a page of this server",
            Self::NotFound => "Not found",
            Self::MethodNotAllowed => "This path does not support the method",
            Self::Timeout => "The body did not arrive in time",
            Self::Conflict => "The current state does not allow this operation",
            Self::PreconditionFailed => "The resource has another version than the request names",
            Self::TooLarge => "The body is too large",
            Self::UnsupportedMediaType => "The body must be sent as application/json, not compressed",
            Self::Misdirected => "This server does not serve the host that the request names",
            Self::Invalid => "The request is invalid",
            Self::TooManyFailures => "Too many keys were tried that are not valid",
            Self::TooMany => "As many requests of this client are in flight as it may have",
            Self::NoSlot => "The limit group has no slot within the time that the request waits",
            Self::Overloaded => "The server has no room for the request now",
            Self::Internal => "Internal error",
            Self::Unavailable => "The server is temporarily unavailable",
        }
    }
}

/// What the headers `RateLimit` and `RateLimit-Policy` say (draft-ietf-httpapi-ratelimit-headers).
#[derive(Debug, Clone, Copy)]
pub(crate) struct RateLimit {
    /// Which limit it is.
    pub(crate) policy: &'static str,
    pub(crate) limit: u32,
    pub(crate) left: u32,
}

impl RateLimit {
    pub(crate) fn add_to(self, response: &mut Response, after_s: u32) {
        let Self { policy, limit, left } = self;
        let policy_text = format!(r#""{policy}";q={limit};qu="concurrent-requests""#);
        let left_text = format!(r#""{policy}";r={left};t={after_s}"#);
        for (name, text) in [("ratelimit-policy", policy_text), ("ratelimit", left_text)] {
            if let Ok(value) = text.try_into() {
                response.headers_mut().insert(name, value);
            }
        }
    }
}

/// A refused request.
#[derive(Debug, Clone)]
pub(crate) struct Problem {
    kind: ProblemKind,
    detail: Cow<'static, str>,
    errors: Vec<FieldError>,
    /// Why the server failed, for its log.
    failure: Option<Failure>,
    /// `Retry-After` in seconds, where it depends on the request.
    retry_after_s: Option<u32>,
    refusal: Option<Box<Lack>>,
}

/// What was used up.
#[derive(Debug, Clone, Copy)]
enum Lack {
    /// The room for requests.
    Room(Reason, Option<RateLimit>),
    /// The slots of a limit group. The next one is expected at this instant.
    Slot(Timestamp),
}

impl Problem {
    pub(crate) fn new(kind: ProblemKind, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { kind, detail: detail.into(), errors: Vec::new(), failure: None, retry_after_s: None, refusal: None }
    }

    /// The refusal of a wrong key after too many of them. `wait`: until the next one is checked as before.
    pub(crate) fn too_many_failures(wait: Duration) -> Self {
        let detail = "the API key is not valid, and too many were tried: use the right one, or wait as long as \
            `Retry-After` says";
        let problem = Self::new(ProblemKind::TooManyFailures, detail);
        // Rounded up: a client that waits exactly this long must not be refused again.
        let seconds = wait.as_secs() + u64::from(wait.subsec_nanos() > 0);
        Self { retry_after_s: Some(u32::try_from(seconds).unwrap_or(u32::MAX)), ..problem }
    }

    /// The refusal of a request that was decided about before it was read.
    pub(crate) fn shed(class: Class, refusal: Refusal) -> Self {
        let Refusal { reason, is_own_limit, limit, retry_after_s } = refusal;
        let name = class.as_str();
        let (kind, policy, detail) = match reason {
            Reason::Client if is_own_limit => {
                let detail = format!("this client may have {limit} requests in flight at one time, and has as many");
                (ProblemKind::TooMany, "client", detail)
            }
            Reason::Client => {
                (ProblemKind::Overloaded, name, format!("this client has its share of the {name} requests in flight"))
            }
            Reason::Pressure if limit == 0 => {
                (ProblemKind::Overloaded, name, format!("the store is slow, so {name} requests have to wait"))
            }
            Reason::Pressure => {
                let detail = format!("the store is slow, so at most {limit} {name} requests are let in at one time");
                (ProblemKind::Overloaded, name, detail)
            }
            Reason::Class | Reason::Bytes => {
                let detail = format!("{limit} {name} requests are in flight, and no more are let in at one time");
                (ProblemKind::Overloaded, name, detail)
            }
        };
        let detail = format!("{detail}; nothing was done, so send the request again after `Retry-After`");
        let rate_limit = RateLimit { policy, limit, left: 0 };
        let refusal = Some(Box::new(Lack::Room(reason, Some(rate_limit))));
        Self { retry_after_s: Some(retry_after_s), refusal, ..Self::new(kind, detail) }
    }

    /// The refusal of a request for which there is no room, found later than in [`Self::shed`].
    pub(crate) fn no_room(reason: Reason, detail: impl Into<Cow<'static, str>>) -> Self {
        Self { refusal: Some(Box::new(Lack::Room(reason, None))), ..Self::new(ProblemKind::Overloaded, detail) }
    }

    /// The refusal of a reservation: a slot is expected at `next_at`.
    pub(crate) fn no_slot(next_at: Timestamp, now: Timestamp) -> Self {
        let detail =
            "no slot of the limit group is free within `wait_ms`: ask again after `Retry-After`, or wait longer";
        let seconds = next_at.since(now).as_secs_f64().ceil().max(1.0) as u32;
        let refusal = Some(Box::new(Lack::Slot(next_at)));
        Self { retry_after_s: Some(seconds), refusal, ..Self::new(ProblemKind::NoSlot, detail) }
    }

    pub(crate) fn not_found(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ProblemKind::NotFound, detail)
    }

    pub(crate) fn conflict(detail: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ProblemKind::Conflict, detail)
    }

    /// The problem of a body or query with these errors. The first error is repeated in `detail`.
    pub(crate) fn invalid(errors: Vec<FieldError>) -> Self {
        let detail = match errors.as_slice() {
            [] => Cow::Borrowed("the request is invalid"),
            [only] => Cow::Owned(describe(only)),
            [first, rest @ ..] => Cow::Owned(format!("{}; {} more in `errors`", describe(first), rest.len())),
        };
        Self { errors, ..Self::new(ProblemKind::Invalid, detail) }
    }

    /// The problem of a request with one error.
    pub(crate) fn invalid_field(pointer: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::invalid(vec![FieldError { pointer: pointer.into(), detail: detail.into() }])
    }

    pub(crate) fn detail(&self) -> &str {
        &self.detail
    }

    #[cfg(test)]
    pub(crate) fn errors(&self) -> &[FieldError] {
        &self.errors
    }

    /// The document that clients see.
    pub(crate) fn document(&self) -> types::Problem {
        let (reason, next_at) = match self.refusal.as_deref() {
            Some(Lack::Room(reason, _)) => (Some(reason.as_str().to_owned()), None),
            Some(Lack::Slot(next_at)) => (None, Some(*next_at)),
            None => (None, None),
        };
        types::Problem {
            kind: self.kind.uri(),
            title: self.kind.title().to_owned(),
            status: self.kind.status().as_u16(),
            detail: self.detail.clone().into_owned(),
            reason,
            next_at,
            errors: self.errors.clone(),
        }
    }
}

fn describe(error: &FieldError) -> String {
    if error.pointer.is_empty() { error.detail.clone() } else { format!("{} {}", error.pointer, error.detail) }
}

/// The current state does not allow this operation
#[derive(ToResponse)]
#[response(description = "The current state does not allow this operation", content_type = "application/problem+json")]
#[expect(dead_code, reason = "describes the response of a conflict; a `Problem` is sent")]
pub(crate) struct Refused(types::Problem);

/// The resource has another version than the request names
#[derive(ToResponse)]
#[response(
    description = "The resource has another version than the request names",
    content_type = "application/problem+json"
)]
#[expect(dead_code, reason = "describes the response of a failed precondition; a `Problem` is sent")]
pub(crate) struct Changed(types::Problem);

/// Too many keys were tried that are not valid
#[derive(ToResponse)]
#[response(
    description = "Too many keys were tried that are not valid: wait as long as `Retry-After` says",
    content_type = "application/problem+json"
)]
#[expect(dead_code, reason = "describes the response of a throttled login; a `Problem` is sent")]
pub(crate) struct Throttled(types::Problem);

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let mut response = response(self.kind, &self.document());
        if let Some(failure) = self.failure {
            response.extensions_mut().insert(failure);
        }
        if let Some(seconds) = self.retry_after_s {
            response.headers_mut().insert(header::RETRY_AFTER, seconds.into());
        }
        if let Some(Lack::Room(_, Some(rate_limit))) = self.refusal.as_deref() {
            rate_limit.add_to(&mut response, self.retry_after_s.unwrap_or(1));
        }
        response
    }
}

/// A problem response whose document may have additional members.
pub(crate) fn response(kind: ProblemKind, document: &impl Serialize) -> Response {
    let body = serde_json::to_vec(document).unwrap_or_default();
    let mut response = (kind.status(), body).into_response();
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, MEDIA_TYPE);
    match kind {
        ProblemKind::Unauthorized => {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static(r#"Bearer realm="weir""#));
        }
        ProblemKind::Unavailable | ProblemKind::Overloaded => {
            headers.insert(header::RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_S));
        }
        _ => {}
    }
    response
}

/// Why the server could not do what a valid request asks for. The log gets it, the client does not.
#[derive(Debug, Clone)]
pub(crate) struct Failure {
    message: &'static str,
    reason: String,
    /// Whether a later attempt may succeed.
    is_transient: bool,
}

impl Failure {
    /// Writes the failure to the log.
    pub(crate) fn log(&self, request_id: &str, route: &str) {
        let Self { message, reason, is_transient } = self;
        if *is_transient {
            tracing::warn!(%reason, request_id, route, "{message}");
        } else {
            tracing::error!(%reason, request_id, route, "{message}");
        }
    }
}

impl From<ReserveError> for Problem {
    fn from(error: ReserveError) -> Self {
        let failure =
            Failure { message: "a slot could not be asked for", reason: error.to_string(), is_transient: true };
        let problem =
            Self::new(ProblemKind::Unavailable, "slots cannot be asked for now; no slot was taken: try again");
        Self { failure: Some(failure), ..problem }
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Unavailable(reason) => {
                let problem = Self::new(ProblemKind::Unavailable, "the store does not answer; try again");
                let failure = Failure { message: "the store is unavailable", reason, is_transient: true };
                Self { failure: Some(failure), ..problem }
            }
            StoreError::CannotWrite { obstacle, reason } => {
                let detail = format!("the store cannot write, because {obstacle}; try again later");
                let reason = format!("{obstacle}: {reason}");
                let failure = Failure { message: "the store cannot write", reason, is_transient: true };
                Self { failure: Some(failure), ..Self::new(ProblemKind::Unavailable, detail) }
            }
            StoreError::Sealed(unopened) => {
                let detail =
                    "what is stored is sealed with a key that this server does not have; its log names the key";
                let failure = Failure {
                    message: "the store has a row that no key opens",
                    reason: unopened.to_string(),
                    is_transient: true,
                };
                Self { failure: Some(failure), ..Self::new(ProblemKind::Unavailable, detail) }
            }
            StoreError::Failed(reason) => internal("a store operation failed", &reason),
        }
    }
}

/// An internal error. The log gets the reason, the client does not.
pub(crate) fn internal(message: &'static str, reason: &dyn std::fmt::Display) -> Problem {
    let detail = "an internal error occurred; the log of the server gives the reason under the `x-request-id`";
    let failure = Failure { message, reason: reason.to_string(), is_transient: false };
    Problem { failure: Some(failure), ..Problem::new(ProblemKind::Internal, detail) }
}

/// The result of a handler.
pub(crate) type ApiResult<T> = Result<T, Problem>;

#[cfg(test)]
mod tests {
    use strum::IntoEnumIterator as _;
    use weir_store::Obstacle;

    use super::*;

    #[test]
    fn the_page_of_errors_has_every_problem() {
        let page = include_str!("../../../docs/reference/errors.md");
        for kind in ProblemKind::iter() {
            let anchor = kind.uri().replace("/docs#", "");
            assert!(page.contains(&format!("| `{anchor}` |")), "{anchor}");
        }
    }

    #[test]
    fn a_store_that_cannot_write_says_why() {
        let error = StoreError::CannotWrite { obstacle: Obstacle::ReadOnly, reason: "25006".to_owned() };
        assert_eq!(Problem::from(error).detail(), "the store cannot write, because it is read-only; try again later");
    }

    #[test]
    fn store_errors_are_not_shown_to_clients() {
        let table = [
            (StoreError::Unavailable("disk /dev/sda1".to_owned()), 503, true),
            (StoreError::CannotWrite { obstacle: Obstacle::DiskFull, reason: "disk /dev/sda1".to_owned() }, 503, true),
            (StoreError::Failed("no such table: secret".to_owned()), 500, false),
        ];
        for (error, status, retry) in table {
            let problem = Problem::from(error);
            let text = serde_json::to_string(&problem.document()).unwrap();
            assert!(!text.contains("sda1") && !text.contains("table"), "{text}");
            let response = problem.into_response();
            assert_eq!(response.status(), status);
            assert_eq!(response.headers().contains_key(header::RETRY_AFTER), retry);
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        }
    }

    #[test]
    fn the_detail_repeats_the_first_error() {
        let error = |pointer: &str| FieldError { pointer: pointer.to_owned(), detail: "is required".to_owned() };
        let detail = |errors| Problem::invalid(errors).detail().to_owned();
        assert_eq!(detail(vec![error("/url")]), "/url is required");
        assert_eq!(detail(vec![error("/url"), error("/name")]), "/url is required; 1 more in `errors`");
    }
}
