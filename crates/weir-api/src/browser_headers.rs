//! Headers that tell a browser to keep an answer to itself.
//!
//! The answers of the API are for programs and for pages of this server: no other page may frame one, load one as a
//! script or an image, or guess its type, and no cache may keep what needs a key.

use axum::response::Response;
use http::{HeaderName, HeaderValue, header};

/// The headers of every answer, unless its handler has set them.
const HEADERS: [(HeaderName, HeaderValue); 4] = [
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'")),
    // For browsers that do not know `frame-ancestors`.
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
];

/// Adds the headers. `is_guarded`: the path needs a key, so the answer may have data of a tenant.
pub(crate) fn add(response: &mut Response, is_guarded: bool) {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(value);
    }
    if is_guarded {
        headers.entry(header::CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    }
}
