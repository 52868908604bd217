//! A request that the API refused, on its way to the reader.
//!
//! Handlers return a [`Refusal`] with `?`. As a response it carries itself in the extensions, and the middleware of
//! `guard` turns it into a page, into a part of a page, or into a redirect to the login: only the middleware knows
//! which of them the request wanted.

use axum::response::{IntoResponse, Response};
use http::{HeaderMap, StatusCode, header};
use weir_api_types::{FieldError, Problem};

use crate::{extend::extend, units::capitalised};

/// The problem document of the API, with the status.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) title: String,
    pub(crate) detail: String,
    pub(crate) errors: Vec<FieldError>,
    /// In seconds.
    pub(crate) retry_after: Option<String>,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, title: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { status, title: title.into(), detail: detail.into(), errors: Vec::new(), retry_after: None }
    }

    /// From an answer of the API that is no success.
    pub(crate) fn of_answer(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Self {
        let retry_after = headers.get(header::RETRY_AFTER).and_then(|value| value.to_str().ok()).map(str::to_owned);
        match serde_json::from_slice::<Problem>(body) {
            Ok(Problem { title, detail, errors, .. }) => Self { status, title, detail, errors, retry_after },
            Err(_) => Self { retry_after, ..Self::broken(&"the API refused a request without a problem document") },
        }
    }

    /// The dashboard and the API do not understand each other.
    pub(crate) fn broken(reason: &dyn std::fmt::Display) -> Self {
        tracing::error!(%reason, "a page of the dashboard could not be made");
        let detail = "The page could not be made; the log of the server gives the reason.";
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "Internal error", detail)
    }

    pub(crate) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "Not found", detail)
    }

    /// What to tell the reader of a form, in one sentence, without the backticks that the API writes around names.
    pub(crate) fn sentence(&self) -> String {
        let sentence = match self.errors.as_slice() {
            [] => self.detail.clone(),
            errors => errors.iter().map(FieldErrorText::sentence).collect::<Vec<_>>().join("; "),
        };
        sentence.replace('`', "")
    }

    /// The same by itself: it begins with a capital.
    pub(crate) fn text(&self) -> String {
        capitalised(&self.sentence())
    }
}

extend! {
    pub(crate) trait FieldErrorText for FieldError {
        /// `/rate_limits/0/limit must be …` as `rate_limits, number 1, limit must be …`.
        fn sentence(&self) -> String {
            let parts = self.pointer.split('/').filter(|part| !part.is_empty());
            let words: Vec<String> = parts
                .map(|part| match part.parse::<usize>() {
                    Ok(index) => format!("number {}", index + 1),
                    Err(_) => part.replace("~1", "/").replace("~0", "~"),
                })
                .collect();
            if words.is_empty() { self.detail.clone() } else { format!("{} {}", words.join(", "), self.detail) }
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = self.status.into_response();
        response.extensions_mut().insert(self);
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_problem_document_becomes_a_sentence() {
        let body = br#"{"type": "/docs", "title": "The request is invalid", "status": 422, "detail": "d",
            "errors": [{"pointer": "/rate_limits/0/limit", "detail": "must be 1 or more"}, {"pointer": "", "detail": "x"}]}"#;
        let refusal = Refusal::of_answer(StatusCode::UNPROCESSABLE_ENTITY, &HeaderMap::new(), body);
        assert_eq!(refusal.sentence(), "rate_limits, number 1, limit must be 1 or more; x");
        let other = Refusal::of_answer(StatusCode::BAD_GATEWAY, &HeaderMap::new(), b"<html>");
        assert_eq!(other.status, StatusCode::INTERNAL_SERVER_ERROR);
    }
}
