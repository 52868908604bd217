//! The middleware of every request to the dashboard: refuses forms of other sites, shows refusals as pages, and adds
//! the security headers.
//!
//! The API refuses requests of other sites only where a cookie authenticates them. Without configured keys there is no
//! cookie, and a page of another site could post a form to a server on loopback. So the dashboard refuses every form
//! that does not prove its origin.

use askama::Template;
use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{Html, IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use url::Url;

use crate::{
    client::{ApiPath, Client, SEC_FETCH_SITE, append},
    frame::{Frame, Me, Section},
    range,
    refusal::Refusal,
    site::Site,
};

/// Only what this server serves: no inline script or style, no frame, no form to another site.
const POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; \
     form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
);

/// What no page uses, so no script that finds its way in can.
const NO_FEATURES: HeaderValue =
    HeaderValue::from_static("camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), usb=()");

/// The headers of every response, unless the handler has set them.
const HEADERS: [(HeaderName, HeaderValue); 8] = [
    (header::CONTENT_SECURITY_POLICY, POLICY),
    // For browsers that do not know `frame-ancestors`.
    (header::X_FRAME_OPTIONS, HeaderValue::from_static("DENY")),
    (HeaderName::from_static("permissions-policy"), NO_FEATURES),
    (header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff")),
    // Forms need the `Origin` header, which `no-referrer` would make `null`.
    (header::REFERRER_POLICY, HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-opener-policy"), HeaderValue::from_static("same-origin")),
    (HeaderName::from_static("cross-origin-resource-policy"), HeaderValue::from_static("same-origin")),
    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
];

pub(crate) async fn guard(State(site): State<Site>, request: Request, next: Next) -> Response {
    let (parts, body) = request.into_parts();
    let api = Client::new(site.api.clone(), site.carry, &parts);
    let is_fragment = parts.headers.contains_key("hx-request");
    // The range of a picker becomes a part of the link.
    if parts.method.is_safe()
        && let Some(link) = range::settled(&parts.uri, site.clock.now())
        && let Ok(link) = HeaderValue::try_from(format!("{}{link}", site.base))
    {
        return protected((StatusCode::SEE_OTHER, [(header::LOCATION, link)]).into_response());
    }
    let next_path = match (is_fragment, parts.method.is_safe()) {
        (true, _) => page_of_fragment(&parts.headers, &site.base),
        (false, true) => parts.uri.path_and_query().map(|path| path.as_str().to_owned()),
        // A form cannot be sent again by following a link.
        (false, false) => None,
    };
    let next_path = next_path.unwrap_or_else(|| "/".to_owned());
    let mut response = if parts.method.is_safe() || is_same_origin(&parts.headers, site.public_url.as_deref()) {
        next.run(Request::from_parts(parts, body)).await
    } else {
        let detail = "The form was not sent by a page of this server. Open the page again, and send the form there.";
        Refusal::new(StatusCode::FORBIDDEN, "Refused", detail).into_response()
    };
    if let Some(refusal) = response.extensions_mut().remove::<Refusal>() {
        response = shown(&site, &api, refusal, is_fragment, &next_path).await;
    }
    protected(response)
}

/// A page that says why there is nothing at a path.
pub(crate) async fn page_of(site: &Site, api: &Client, refusal: Refusal) -> Response {
    protected(shown(site, api, refusal, false, "/").await)
}

fn protected(mut response: Response) -> Response {
    let headers = response.headers_mut();
    for (name, value) in HEADERS {
        headers.entry(name).or_insert(value);
    }
    response
}

/// Whether a page of this server sent the request. Browsers leave `Sec-Fetch-Site` out on plain-http names that are not
/// loopback, but send `Origin` with every form. A proxy may change `Host`, so the origin of the public URL is accepted
/// too.
fn is_same_origin(headers: &HeaderMap, public_url: Option<&str>) -> bool {
    let text = |name: HeaderName| headers.get(name).and_then(|value| value.to_str().ok());
    match text(SEC_FETCH_SITE) {
        Some(site) => site == "same-origin",
        None => {
            let is_public =
                |origin: &str| public_url.is_some_and(|url| url == origin || url.starts_with(&format!("{origin}/")));
            let names_host = |origin: &str| {
                let named = origin.split_once("://").zip(text(header::HOST));
                named.is_some_and(|((_, named), host)| named.eq_ignore_ascii_case(host))
            };
            text(header::ORIGIN).is_some_and(|origin| names_host(origin) || is_public(origin))
        }
    }
}

#[derive(Template)]
#[template(path = "refusal.html")]
struct RefusalPage {
    frame: Frame,
    refusal: Refusal,
    /// The id of a destination that was not found. It may have been deleted. Then Weir still has its activity and its
    /// deliveries, so the page has links to them.
    missing: Option<String>,
}

#[derive(Template)]
#[template(path = "refusal_part.html")]
struct RefusalPart {
    refusal: Refusal,
}

/// The refusal as a page or as a part of one. Without a login, the reader gets the login page.
async fn shown(site: &Site, api: &Client, refusal: Refusal, is_fragment: bool, next_path: &str) -> Response {
    if refusal.status == StatusCode::UNAUTHORIZED {
        return to_login(site, is_fragment, next_path);
    }
    let (status, retry_after) = (refusal.status, refusal.retry_after.clone());
    let page = if is_fragment {
        RefusalPart { refusal }.render()
    } else {
        // The navigation leads on from a refusal. An API in trouble is not asked again.
        let me = if status.is_client_error() { api.get::<Me>(&ApiPath::of(["me"])).await.ok() } else { None };
        let frame = Frame { me, ..Frame::new(site.clone(), Section::None, refusal.title.clone()) };
        let missing = (status == StatusCode::NOT_FOUND).then(|| destination_of(next_path)).flatten();
        RefusalPage { frame, refusal, missing }.render()
    };
    let mut response = (status, Html(page.unwrap_or_default())).into_response();
    if let Some(value) = retry_after.and_then(|value| HeaderValue::try_from(value).ok()) {
        response.headers_mut().insert(header::RETRY_AFTER, value);
    }
    response
}

/// The id of the destination whose page is at a path.
fn destination_of(path: &str) -> Option<String> {
    let id = path.strip_prefix("/destinations/")?.split(['/', '?']).next()?;
    id.starts_with("dst_").then(|| id.to_owned())
}

/// The page that asks for a fragment, without the base. The policy for referrers names pages of this server in full.
fn page_of_fragment(headers: &HeaderMap, base: &str) -> Option<String> {
    let page = Url::parse(headers.get(header::REFERER)?.to_str().ok()?).ok()?;
    let path = page.path().strip_prefix(base)?;
    Some(page.query().map_or_else(|| path.to_owned(), |query| format!("{path}?{query}")))
}

fn to_login(site: &Site, is_fragment: bool, next_path: &str) -> Response {
    let mut login = format!("{}/login", site.base);
    if next_path != "/" {
        append(&mut login, "next", next_path);
    }
    let (status, name) = if is_fragment {
        (StatusCode::OK, HeaderName::from_static("hx-redirect"))
    } else {
        (StatusCode::SEE_OTHER, header::LOCATION)
    };
    match HeaderValue::try_from(login) {
        Ok(login) => (status, [(name, login)]).into_response(),
        Err(_) => StatusCode::UNAUTHORIZED.into_response(),
    }
}
