//! Calls of the API inside the process.
//!
//! The dashboard has no rights of its own: every call carries the headers of the browser by which the API authenticates
//! it and recognises requests of other sites. So roles, tenants, CSRF, validation and the activity log are enforced in
//! one place.

use axum::{Router, body::Body};
use bytes::Bytes;
use http::{
    Extensions, HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts,
};
use percent_encoding::{AsciiSet, CONTROLS, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Serialize, de::DeserializeOwned};
use tower::ServiceExt as _;
use weir_api_types::Unmeasured;

use crate::{fingerprint::fingerprint, refusal::Refusal};

/// Which page sent a request, as a browser says it.
pub(crate) const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The headers of the browser that a call carries.
const PASSED_ON: [HeaderName; 7] = [
    header::COOKIE,
    header::HOST,
    header::ORIGIN,
    // A script may use the pages with a key.
    header::AUTHORIZATION,
    // The API tells clients behind a proxy apart.
    HeaderName::from_static("x-forwarded-for"),
    SEC_FETCH_SITE,
    HeaderName::from_static("x-request-id"),
];
/// The largest answer that a page reads: far more than a page of deliveries with response bodies.
const MAX_ANSWER_BYTES: usize = 64 * 1024 * 1024;

/// What the settings of the composition root copy from a request to the calls that it causes: the remote address.
pub type CarryExtensions = fn(&Extensions, &mut Extensions);

/// The API for one request of a browser.
#[derive(Clone)]
pub(crate) struct Client {
    api: Router,
    headers: HeaderMap,
    carried: Extensions,
}

/// A successful answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Client {
    pub(crate) fn new(api: Router, carry: CarryExtensions, parts: &Parts) -> Self {
        let mut headers = HeaderMap::new();
        for name in PASSED_ON {
            for value in parts.headers.get_all(&name) {
                headers.append(&name, value.clone());
            }
        }
        let mut carried = Extensions::new();
        carry(&parts.extensions, &mut carried);
        Self { api, headers, carried }
    }

    /// The same for lists without times that are measured anew for each page of a file.
    pub(crate) fn unmeasured(mut self) -> Self {
        self.carried.insert(Unmeasured);
        self
    }

    /// Reads a view.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &ApiPath) -> Result<T, Refusal> {
        self.send(&Call::get(path)).await?.read()
    }

    /// Reads a view, with a text that is another one after each change of it.
    pub(crate) async fn get_versioned<T: DeserializeOwned>(&self, path: &ApiPath) -> Result<(T, String), Refusal> {
        let answer = self.send(&Call::get(path)).await?;
        Ok((answer.read()?, fingerprint(&answer.body)))
    }

    /// Sends a body and reads the answer. The answer of a 204 reads as `()`.
    pub(crate) async fn post<T: DeserializeOwned>(&self, path: &ApiPath, body: &impl Serialize) -> Result<T, Refusal> {
        self.send(&Call::new(Method::POST, path).json(body)?).await?.read()
    }

    /// Asks what an action would do. That changes nothing, so the page that asks may also be opened by a link of another
    /// site. The call replaces the browser's header by one that says that it comes from this page.
    pub(crate) async fn dry_run<T: DeserializeOwned>(
        &self,
        path: ApiPath,
        body: &impl Serialize,
    ) -> Result<T, Refusal> {
        let call = Call::new(Method::POST, &path.with("dry_run", "true")).json(body)?;
        self.send(&call.with_header(SEC_FETCH_SITE, "same-origin")?).await?.read()
    }

    /// Sends a call. An answer that is no success is a refusal.
    pub(crate) async fn send(&self, call: &Call) -> Result<Answer, Refusal> {
        let response = self.open(call).await?;
        let (parts, body) = response.into_parts();
        let body = axum::body::to_bytes(body, MAX_ANSWER_BYTES).await.map_err(|error| Refusal::broken(&error))?;
        if parts.status.is_success() {
            Ok(Answer { headers: parts.headers, body })
        } else {
            Err(Refusal::of_answer(parts.status, &parts.headers, &body))
        }
    }

    /// Sends a call and leaves the body unread: for streams and downloads.
    pub(crate) async fn open(&self, call: &Call) -> Result<Response<Body>, Refusal> {
        let mut request = Request::builder().method(call.method.clone()).uri(&call.path);
        if let Some(headers) = request.headers_mut() {
            headers.extend(self.headers.clone());
            headers.extend(call.headers.clone());
        }
        let body = call.body.clone().map_or_else(Body::empty, Body::from);
        let mut request = request.body(body).map_err(|error| Refusal::broken(&error))?;
        *request.extensions_mut() = self.carried.clone();
        match self.api.clone().oneshot(request).await {
            Ok(response) => Ok(response),
            Err(never) => match never {},
        }
    }
}

impl Answer {
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Result<T, Refusal> {
        let body: &[u8] = if self.body.is_empty() { b"null" } else { &self.body };
        serde_json::from_slice(body).map_err(|error| Refusal::broken(&format_args!("an answer of the API: {error}")))
    }

    /// The version of what was read, for `If-Match`.
    pub(crate) fn etag(&self) -> Option<String> {
        self.headers.get(header::ETAG)?.to_str().ok().map(str::to_owned)
    }
}

/// One call of the API.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    method: Method,
    path: String,
    headers: HeaderMap,
    body: Option<Vec<u8>>,
}

impl Call {
    pub(crate) fn new(method: Method, path: &ApiPath) -> Self {
        Self { method, path: path.0.clone(), headers: HeaderMap::new(), body: None }
    }

    pub(crate) fn get(path: &ApiPath) -> Self {
        Self::new(Method::GET, path)
    }

    pub(crate) fn json(mut self, body: &impl Serialize) -> Result<Self, Refusal> {
        self.body = Some(serde_json::to_vec(body).map_err(|error| Refusal::broken(&error))?);
        self.headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(self)
    }

    /// Applies the call only to this version of the resource. An empty version is left out.
    pub(crate) fn if_match(self, etag: &str) -> Result<Self, Refusal> {
        if etag.is_empty() { Ok(self) } else { self.with_header(header::IF_MATCH, etag) }
    }

    /// Only if there is no such resource.
    pub(crate) fn if_none_match(self) -> Result<Self, Refusal> {
        self.with_header(header::IF_NONE_MATCH, "*")
    }

    /// A form that is sent twice creates once.
    pub(crate) fn idempotency_key(self, key: &str) -> Result<Self, Refusal> {
        if key.is_empty() { Ok(self) } else { self.with_header(HeaderName::from_static("idempotency-key"), key) }
    }

    fn with_header(mut self, name: HeaderName, value: &str) -> Result<Self, Refusal> {
        let value = HeaderValue::from_str(value).map_err(|_| {
            Refusal::new(StatusCode::BAD_REQUEST, "The form is invalid", format!("`{name}` cannot be sent"))
        })?;
        self.headers.insert(name, value);
        Ok(self)
    }
}

/// What a segment of a path may not contain.
const SEGMENT: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'~');
/// What a query value may not contain. Commas and colons are legible in links.
const QUERY: &AsciiSet =
    &CONTROLS.add(b' ').add(b'"').add(b'#').add(b'<').add(b'>').add(b'&').add(b'+').add(b'%').add(b'\'').add(b'=');

/// A path below `/v1`, with its query. Every part is encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ApiPath(String);

impl ApiPath {
    /// `["destinations", id]` is `/v1/destinations/{id}`.
    pub(crate) fn of<const N: usize>(segments: [&str; N]) -> Self {
        let mut path = String::from("/v1");
        for segment in segments {
            path.push('/');
            path.extend(utf8_percent_encode(segment, SEGMENT));
        }
        Self(path)
    }

    /// Adds a parameter, unless it is empty.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        append(&mut self.0, name, value);
        self
    }
}

/// Adds `name=value` to a path or link, unless the value is empty.
pub(crate) fn append(link: &mut String, name: &str, value: &str) {
    if !value.is_empty() {
        link.push(if link.contains('?') { '&' } else { '?' });
        link.push_str(name);
        link.push('=');
        link.extend(utf8_percent_encode(value, QUERY));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_of_a_path_is_encoded() {
        let path = ApiPath::of(["destinations", "a/../b?c"]).with("q", "a&b=c #+%").with("state", "").with("s", "a,b");
        assert_eq!(path.0, "/v1/destinations/a%2F..%2Fb%3Fc?q=a%26b%3Dc%20%23%2B%25&s=a,b");
    }
}
