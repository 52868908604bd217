//! Refused requests.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

/// An RFC 9457 problem.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The kind of problem, as a reference into the documentation of this server.
    #[serde(rename = "type")]
    #[schema(example = "/docs#problem-invalid")]
    pub kind: String,
    /// A short description of the kind.
    pub title: String,
    /// The HTTP status.
    pub status: u16,
    /// The cause of this occurrence.
    pub detail: String,
    /// Why there was no room for the request: `bytes` (the memory for bodies), `class` (too many requests of its kind),
    /// `pressure` (the store is slow), or `client` (the limit or the share of its client).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false, value_type = String, pattern = "^(bytes|class|pressure|client)$", example = "pressure")]
    pub reason: Option<String>,
    /// When a slot of the limit group is expected, of a reservation that did not get one in time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false, value_type = String, format = DateTime, example = "2026-11-21T07:30:04.250Z")]
    pub next_at: Option<Timestamp>,
    /// Every validation error of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(required = false)]
    pub errors: Vec<FieldError>,
}

/// One error of a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct FieldError {
    /// The invalid value, as a JSON pointer into the body. For a query parameter: `/` and its name.
    #[schema(example = "/rate_limits/0/limit")]
    pub pointer: String,
    /// The expected value.
    #[schema(example = "must be a whole number from 1 to 1000000")]
    pub detail: String,
}
