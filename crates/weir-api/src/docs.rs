//! The documentation as a page, which renders `/openapi.json` and loads nothing from other servers. And the index, which leads
//! to it.

use std::sync::LazyLock;

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::header;
use sha2::{Digest, Sha256};
use weir_api_types as types;

use crate::readers::query::Query;

const STYLE: &str = include_str!("docs/page.css");
const SCRIPT: &str = include_str!("docs/page.js");

static PAGE: LazyLock<String> =
    LazyLock::new(|| include_str!("docs/page.html").replace("{{style}}", STYLE).replace("{{script}}", SCRIPT));

/// Allows only the page's own style and script, and requests only to this server.
static POLICY: LazyLock<String> = LazyLock::new(|| {
    format!(
        "default-src 'none'; style-src 'sha256-{}'; script-src 'sha256-{}'; connect-src 'self'; img-src data:; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        digest(STYLE),
        digest(SCRIPT)
    )
});

fn digest(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text))
}

/// Show this documentation as a page
#[utoipa::path(
    get, path = "/docs", operation_id = "docs", tag = "operation",
    responses((status = 200, description = "The page", body = String, content_type = "text/html"))
)]
pub(crate) async fn page(_: Query<()>) -> Response {
    let headers = [
        (header::CONTENT_TYPE, "text/html; charset=utf-8"),
        (header::CONTENT_SECURITY_POLICY, POLICY.as_str()),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
    ];
    (headers, PAGE.as_str()).into_response()
}

/// Show where everything is
///
/// For programs. A browser, which accepts `text/html`, gets the dashboard.
#[utoipa::path(
    get, path = "/", operation_id = "index", tag = "operation",
    responses((status = 200, description = "The paths to begin with", body = types::Index))
)]
pub(crate) async fn index(_: Query<()>) -> Json<types::Index> {
    Json(types::Index {
        name: "Weir".to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        docs: "/docs".to_owned(),
        openapi: "/openapi.json".to_owned(),
        health: "/healthz".to_owned(),
        api: "/v1".to_owned(),
    })
}
