//! The id of a request: in every answer, in the log of a failure, and in the activity log.
//!
//! A client or a proxy may choose the id in the header `x-request-id`, so that one id follows a request through several
//! systems. An id that is too long, or has characters that a log would have to escape, is replaced and not refused: the
//! request itself is valid.

use axum::{
    extract::{FromRequestParts, Request},
    response::Response,
};
use http::{HeaderMap, HeaderName, HeaderValue, request::Parts};

use crate::problem::{self, Failure, Problem};

pub(crate) const HEADER: HeaderName = HeaderName::from_static("x-request-id");
const MAX_LENGTH: usize = 64;

#[derive(Debug, Clone)]
pub(crate) struct RequestId(HeaderValue);

impl RequestId {
    /// Gives the request an id, the one that the client has chosen or a new one. Handlers find the id in the request's
    /// extensions.
    pub(crate) fn give(request: &mut Request) -> Self {
        let id = Self::chosen(request.headers()).unwrap_or_else(|| Self::made(rand::random()));
        request.extensions_mut().insert(id.clone());
        id
    }

    /// The id that the client has chosen. Several ids count as none.
    fn chosen(headers: &HeaderMap) -> Option<Self> {
        let mut given = headers.get_all(HEADER).iter();
        let id = given.next().filter(|_| given.next().is_none())?;
        let fits = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-".contains(byte);
        ((1..=MAX_LENGTH).contains(&id.len()) && id.as_bytes().iter().all(fits)).then(|| Self(id.clone()))
    }

    fn made(random: u128) -> Self {
        // Hexadecimal digits are always a valid value.
        Self(HeaderValue::try_from(format!("{random:032x}")).unwrap_or_else(|_| HeaderValue::from_static("none")))
    }

    pub(crate) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    /// Puts the id into the answer. If the server failed, the log gets the reason, with the id and the route.
    pub(crate) fn answer(self, mut response: Response, route: &str) -> Response {
        if let Some(failure) = response.extensions_mut().remove::<Failure>() {
            failure.log(self.as_str(), route);
        }
        response.headers_mut().insert(HEADER, self.0);
        response
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestId {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        let found = parts.extensions.get::<Self>().cloned();
        found.ok_or_else(|| problem::internal("a request has no id", &parts.uri.path()))
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fmt,
        sync::{Arc, Mutex},
    };

    use axum::response::IntoResponse as _;
    use tracing::{Event, Metadata, Subscriber, field::Visit, span};
    use weir_store::StoreError;

    use super::*;

    /// A log that keeps its lines.
    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<String>>>);

    impl Subscriber for Lines {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }

        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }

        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

        fn event(&self, event: &Event<'_>) {
            let mut line = Line(event.metadata().level().to_string());
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }

        fn enter(&self, _: &span::Id) {}

        fn exit(&self, _: &span::Id) {}
    }

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
            self.0.push_str(&format!(" {field}={value:?}"));
        }
    }

    #[test]
    fn the_log_of_a_failure_names_the_request() {
        let lines = Lines::default();
        tracing::subscriber::with_default(lines.clone(), || {
            for error in [StoreError::Unavailable("no disk".to_owned()), StoreError::Failed("no table".to_owned())] {
                let answer = RequestId::made(10).answer(Problem::from(error).into_response(), "/v1/events");
                assert_eq!(answer.headers()[HEADER], "0000000000000000000000000000000a");
                assert!(answer.extensions().get::<Failure>().is_none());
            }
            RequestId::made(11).answer(Problem::not_found("nothing is logged").into_response(), "/v1/events");
        });
        let place = r#"request_id="0000000000000000000000000000000a" route="/v1/events""#;
        assert_eq!(
            *lines.0.lock().unwrap(),
            [
                format!("WARN message=the store is unavailable reason=no disk {place}"),
                format!("ERROR message=a store operation failed reason=no table {place}"),
            ]
        );
    }

    #[test]
    fn only_a_single_short_and_plain_id_is_taken_over() {
        let longest = "a".repeat(64);
        for (given, taken) in [
            (&["Ab-9_.z"][..], true),
            (&[longest.as_str()], true),
            (&[&format!("{longest}a")], false),
            (&[""], false),
            (&["with space"], false),
            (&["é"], false),
            (&["a", "b"], false),
            (&[], false),
        ] {
            let mut headers = HeaderMap::new();
            for id in given {
                headers.append(HEADER, HeaderValue::from_bytes(id.as_bytes()).unwrap());
            }
            let chosen = RequestId::chosen(&headers);
            assert_eq!(chosen.as_ref().map(RequestId::as_str), taken.then(|| given[0]), "{given:?}");
        }
        assert_eq!(RequestId::made(7).as_str(), "00000000000000000000000000000007");
    }
}
