//! A scripted API, and a browser that follows no redirects.

use std::sync::{Arc, Mutex};

use axum::{
    Router,
    body::{Body, to_bytes},
    extract::{Request, State},
    response::{IntoResponse, Response},
};
use http::{HeaderMap, HeaderName, Method, StatusCode, header, response::Parts};
use serde_json::{Value, json};
use tower::ServiceExt as _;
use weir_api_types::Unmeasured;
use weir_core::{Clock, Timestamp};
use weir_dashboard::DashboardSettings;

use crate::answers;

pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_763_710_200);
/// A text that would run as a script wherever it is not escaped.
pub(crate) const XSS: &str = "\"'><script>alert(1)</script>";

struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        NOW
    }

    fn wall(&self) -> Timestamp {
        NOW
    }
}

/// A request that reached the API.
#[derive(Debug, Clone)]
pub(crate) struct Seen {
    pub(crate) method: Method,
    /// With the query.
    pub(crate) path: String,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Value,
    /// Whether it asks for no times that are measured.
    pub(crate) is_unmeasured: bool,
}

struct Scripted {
    method: Method,
    path: String,
    status: StatusCode,
    headers: Vec<(&'static str, String)>,
    body: Value,
}

/// The API, as far as a test scripts it. An answer belongs to a method and a path without its query, or to a path with
/// exactly this query; other paths are not found.
#[derive(Clone, Default)]
pub(crate) struct FakeApi {
    answers: Arc<Mutex<Vec<Scripted>>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl FakeApi {
    /// An API whose caller has this role.
    pub(crate) fn for_role(role: &str) -> Self {
        let api = Self::default();
        let me = json!({
            "name": "billing", "role": role, "tenants": null, "session_expires_at": null, "keys_required": true,
            "version": "0.1.0",
        });
        api.on("GET", "/v1/me", 200, me);
        api.on("GET", "/v1/limit-groups", 200, json!({"data": [], "next_cursor": null}));
        api.on("GET", "/v1/overview/history", 200, json!({"as_of": "2025-11-21T07:30:00.000Z", "data": []}));
        api
    }

    /// An API that needs a login.
    pub(crate) fn locked() -> Self {
        let api = Self::default();
        api.on("GET", "/v1/me", 401, problem("An API key is required", "send a key"));
        api
    }

    /// Replaces the answer to `method path`. `body` has what the test adds to the fields that the answer must have.
    pub(crate) fn on(&self, method: &str, path: &str, status: u16, body: Value) {
        self.on_with(method, path, status, &[], body);
    }

    pub(crate) fn on_with(&self, method: &str, path: &str, status: u16, headers: &[(&'static str, &str)], body: Value) {
        let method: Method = method.parse().unwrap();
        let mut answers = self.answers.lock().unwrap();
        answers.retain(|answer| (&answer.method, answer.path.as_str()) != (&method, path));
        let headers = headers.iter().map(|&(name, value)| (name, value.to_owned())).collect();
        let body = match &body {
            // No content, or a stream.
            Value::Null | Value::String(_) => body,
            _ if status >= 400 => answers::refusal(body),
            _ => answers::answer(method.as_str(), path.split('?').next().unwrap_or(path), body),
        };
        let status = StatusCode::from_u16(status).unwrap();
        answers.push(Scripted { method, path: path.to_owned(), status, headers, body });
    }

    /// The requests to a path, without its query.
    pub(crate) fn seen(&self, method: &str, path: &str) -> Vec<Seen> {
        let seen = self.seen.lock().unwrap();
        let is_it = |seen: &&Seen| seen.method == method && seen.path.split('?').next() == Some(path);
        seen.iter().filter(is_it).cloned().collect()
    }

    /// The dashboard on this API.
    pub(crate) fn dashboard(&self) -> Browser {
        self.dashboard_at("")
    }

    pub(crate) fn dashboard_at(&self, base: &str) -> Browser {
        let api = Router::new().fallback(answer).with_state(self.clone());
        Browser(weir_dashboard::router(DashboardSettings {
            api,
            base: base.to_owned(),
            public_url: None,
            clock: Arc::new(FixedClock),
            carry: |_, _| {},
        }))
    }
}

async fn answer(State(api): State<FakeApi>, request: Request) -> Response {
    let (parts, body) = request.into_parts();
    let body = to_bytes(body, usize::MAX).await.unwrap();
    let path = parts.uri.path().to_owned();
    api.seen.lock().unwrap().push(Seen {
        method: parts.method.clone(),
        path: parts.uri.path_and_query().unwrap().to_string(),
        headers: parts.headers,
        body: serde_json::from_slice(&body).unwrap_or(Value::Null),
        is_unmeasured: parts.extensions.get::<Unmeasured>().is_some(),
    });
    let answers = api.answers.lock().unwrap();
    let whole = parts.uri.path_and_query().map_or("", |whole| whole.as_str());
    let is_of = |path: &str| answers.iter().find(|answer| answer.method == parts.method && answer.path == path);
    let Some(found) = is_of(whole).or_else(|| is_of(&path)) else {
        let missing = problem("Not found", &format!("there is no path {path}")).to_string();
        return (StatusCode::NOT_FOUND, missing).into_response();
    };
    let body = match &found.body {
        Value::Null => String::new(),
        // Not JSON: a stream.
        Value::String(text) => text.clone(),
        json => json.to_string(),
    };
    let mut response = (found.status, body).into_response();
    for (name, value) in &found.headers {
        response.headers_mut().append(*name, value.parse().unwrap());
    }
    response
}

pub(crate) fn problem(title: &str, detail: &str) -> Value {
    json!({"type": "/docs#problem", "title": title, "status": 0, "detail": detail})
}

/// What a browser got.
pub(crate) struct Page {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) text: String,
}

impl Page {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }

    /// Where the answer redirects to.
    pub(crate) fn location(&self) -> &str {
        assert_eq!(self.status, StatusCode::SEE_OTHER, "{}", self.text);
        self.header("location")
    }

    /// The message of the redirect.
    pub(crate) fn flash(&self) -> String {
        let mut cookies = self.headers.get_all(header::SET_COOKIE).iter().map(|cookie| cookie.to_str().unwrap());
        let cookie = cookies.find_map(|cookie| cookie.strip_prefix("weir_flash=")).unwrap_or_default();
        percent_encoding::percent_decode_str(cookie.split(';').next().unwrap()).decode_utf8().unwrap().into_owned()
    }

    /// Panics unless every text is there.
    pub(crate) fn has(&self, texts: &[&str]) -> &Self {
        for text in texts {
            assert!(self.text.contains(text), "{text} is missing in {}", self.text);
        }
        self
    }

    pub(crate) fn has_not(&self, texts: &[&str]) -> &Self {
        for text in texts {
            assert!(!self.text.contains(text), "{text} is in {}", self.text);
        }
        self
    }
}

/// A browser with a session.
pub(crate) struct Browser(pub(crate) Router);

impl Browser {
    pub(crate) async fn get(&self, path: &str) -> Page {
        self.get_with(path, &[]).await
    }

    pub(crate) async fn get_with(&self, path: &str, headers: &[(&str, &str)]) -> Page {
        let mut request = browser_request("GET", path).body(Body::empty()).unwrap();
        for (name, value) in headers {
            request.headers_mut().insert(HeaderName::try_from(*name).unwrap(), value.parse().unwrap());
        }
        self.send(request).await
    }

    /// Sends a form of a page of this server.
    pub(crate) async fn post(&self, path: &str, form: &str) -> Page {
        self.post_with(path, form, &[("sec-fetch-site", "same-origin"), ("origin", "http://weir.test")]).await
    }

    pub(crate) async fn post_with(&self, path: &str, form: &str, headers: &[(&str, &str)]) -> Page {
        self.post_body(path, Body::from(form.to_owned()), headers).await
    }

    pub(crate) async fn post_body(&self, path: &str, form: Body, headers: &[(&str, &str)]) -> Page {
        let mut request = browser_request("POST", path).header("content-type", "application/x-www-form-urlencoded");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.send(request.body(form).unwrap()).await
    }

    /// Asks for a compressed answer. Returns its headers and bytes.
    pub(crate) async fn get_compressed(&self, path: &str) -> (HeaderMap, Vec<u8>) {
        let request = browser_request("GET", path).header("accept-encoding", "gzip, deflate, br, zstd");
        let (parts, bytes) = self.exchange(request.body(Body::empty()).unwrap()).await;
        (parts.headers, bytes)
    }

    async fn send(&self, request: Request) -> Page {
        let (parts, bytes) = self.exchange(request).await;
        Page { status: parts.status, headers: parts.headers, text: String::from_utf8(bytes).unwrap() }
    }

    async fn exchange(&self, request: Request) -> (Parts, Vec<u8>) {
        let (parts, body) = self.0.clone().oneshot(request).await.unwrap().into_parts();
        (parts, to_bytes(body, usize::MAX).await.unwrap().to_vec())
    }
}

fn browser_request(method: &str, path: &str) -> http::request::Builder {
    let request = Request::builder().method(method).uri(path);
    request.header("host", "weir.test").header("accept", "text/html").header("cookie", "weir_session=abc")
}

/// A row of the overview.
pub(crate) fn row(id: &str, name: &str) -> Value {
    json!({
        "destination": {
            "id": id, "name": name, "url": "https://example.com/hooks", "tenant": "default",
            "rate_limits": [{"limit": 10, "period": "second", "burst": 1}, {"limit": 600, "period": "minute", "burst": 1}],
            "max_in_flight": 64, "ordered": false, "paused": false, "paused_reason": null, "breaker_state": "closed",
            "breaker_reason": null, "next_probe_at": null, "held_until": null, "held_reason": null,
        },
        "pending": 1_200, "retrying": 34, "delivering": 5, "undelivered": 7, "backlog": 1_234, "oldest_age_s": 185.0,
        "configured_per_s": 10.0, "effective_per_s": 10.0, "achieved_per_s": 9.7, "arrivals_per_s": 4.2, "utilisation": 0.97,
        "binding": {"limit": 10, "period": "second"}, "drain_eta_s": 212.0, "drains": true, "reason": "limit",
    })
}
