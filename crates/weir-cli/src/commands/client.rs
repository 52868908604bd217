//! The HTTP client of every command that asks a running server.

use std::{fmt, sync::LazyLock, time::Duration};

use anyhow::Context as _;
use reqwest::{Method, StatusCode, header, redirect};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value, value::RawValue};
use url::Url;
use weir_api_types::{Destination, FieldError};

use super::connection::Connection;
use crate::{exit::Misuse, flags::api::KeyText};

/// The longest requests are audits, which the server aborts after 100 s, and purges.
const TIMEOUT: Duration = Duration::from_secs(120);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// The largest page of the server.
const PAGE: usize = 200;

/// The parameters or the body of a request.
pub type Fields = Map<String, Value>;

/// No connection, or no answer in time.
#[derive(Debug, thiserror::Error)]
#[error("no answer from {url}")]
pub struct Unreachable {
    url: Url,
    source: reqwest::Error,
}

/// A refusal of the server, in its words.
#[derive(Debug)]
pub(super) struct ApiError {
    url: Url,
    status: StatusCode,
    problem: Problem,
}

/// The fields of a problem document (RFC 9457). The answer of a proxy may have none of them.
#[derive(Debug, Default, Deserialize)]
struct Problem {
    title: Option<String>,
    detail: Option<String>,
    #[serde(default)]
    errors: Vec<FieldError>,
}

impl ApiError {
    /// [`Misuse`] if the request was wrong, so that it would be refused again.
    fn into_error(self) -> anyhow::Error {
        match self.status {
            StatusCode::BAD_REQUEST
            | StatusCode::UNAUTHORIZED
            | StatusCode::FORBIDDEN
            | StatusCode::NOT_FOUND
            | StatusCode::MISDIRECTED_REQUEST
            | StatusCode::UNPROCESSABLE_ENTITY => Misuse(self.to_string()).into(),
            _ => self.into(),
        }
    }
}

impl fmt::Display for ApiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Problem { title, detail, errors } = &self.problem;
        let reason = detail.as_deref().or(title.as_deref()).unwrap_or("no reason given");
        match (self.status, errors.as_slice()) {
            (StatusCode::UNAUTHORIZED, _) => write!(
                f,
                "{} requires a valid API key: name a file with --key-file, set WEIR_API_KEY, or use a profile",
                self.url.origin().ascii_serialization()
            ),
            (_, several @ [_, _, ..]) => {
                write!(f, "the request has {} errors:", several.len())?;
                several.iter().try_for_each(|error| write!(f, "\n  {} {}", error.pointer, error.detail))
            }
            (status, _) if status.is_client_error() && detail.is_some() => f.write_str(reason),
            (status, _) => write!(f, "{} answered {status}: {reason}", self.url),
        }
    }
}

impl std::error::Error for ApiError {}

/// A client of one server.
#[derive(Debug)]
pub struct Client {
    http: reqwest::Client,
    server: Url,
    key: Option<KeyText>,
}

impl Client {
    pub fn new(connection: Connection) -> anyhow::Result<Self> {
        Self::with_timeout(connection, TIMEOUT)
    }

    pub fn with_timeout(connection: Connection, timeout: Duration) -> anyhow::Result<Self> {
        let http = reqwest::Client::builder()
            .timeout(timeout)
            .connect_timeout(CONNECT_TIMEOUT)
            // The server is often on loopback or in a private network, where an internet proxy cannot reach it.
            .no_proxy()
            // A redirected POST would become a GET.
            .redirect(redirect::Policy::none())
            .user_agent(concat!("weir-cli/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("cannot make an HTTP client")?;
        Ok(Self { http, server: connection.server, key: connection.key })
    }

    pub async fn get(&self, path: &[&str], query: &Fields) -> anyhow::Result<Answer> {
        self.send(Request { query, ..Request::new(Method::GET, path) }).await
    }

    /// Posts a body, or none.
    pub async fn post(&self, path: &[&str], body: Option<&str>) -> anyhow::Result<Answer> {
        self.send(Request { body, ..Request::new(Method::POST, path) }).await
    }

    pub async fn send(&self, request: Request<'_>) -> anyhow::Result<Answer> {
        let url = self.url(request.path, request.query);
        let mut sent = self.http.request(request.method, url.clone()).header(header::ACCEPT, "application/json");
        if let Some(key) = &self.key {
            sent = sent.bearer_auth(&key.0);
        }
        if let Some(body) = request.body {
            sent = sent.header(header::CONTENT_TYPE, "application/json").body(body.to_owned());
        }
        if let Some(etag) = request.if_match {
            sent = sent.header(header::IF_MATCH, etag);
        }
        let unreachable = |error: reqwest::Error| Unreachable { url: url.clone(), source: error.without_url() };
        let response = sent.send().await.map_err(unreachable)?;
        let (status, etag) = (response.status(), response.headers().get(header::ETAG).cloned());
        let text = response.text().await.map_err(unreachable)?;
        if !status.is_success() {
            let problem = serde_json::from_str(&text).unwrap_or_default();
            return Err(ApiError { url, status, problem }.into_error());
        }
        let etag = etag.and_then(|etag| etag.to_str().ok().map(str::to_owned));
        Ok(Answer { url, text, etag })
    }

    /// The path is appended to the path of the server's URL, which may end in a slash.
    fn url(&self, path: &[&str], query: &Fields) -> Url {
        let mut url = self.server.clone();
        if let Ok(mut segments) = url.path_segments_mut() {
            segments.pop_if_empty().extend(path);
        }
        for (name, value) in query {
            let text = match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            url.query_pairs_mut().append_pair(name, &text);
        }
        url
    }

    /// The first rows of a list, over as many pages as needed.
    pub async fn list(&self, path: &[&str], query: &Fields, most: usize) -> anyhow::Result<Rows> {
        let (mut rows, mut query) = (Vec::new(), query.clone());
        loop {
            query.insert("limit".to_owned(), PAGE.min(most.saturating_sub(rows.len())).into());
            let page = self.page(path, &query).await?;
            rows.extend(page.rows.rows);
            match page.next_cursor {
                Some(cursor) if rows.len() < most => query.insert("cursor".to_owned(), cursor.into()),
                next_cursor => return Ok(Rows { rows, is_cut: next_cursor.is_some() }),
            };
        }
    }

    /// One page of a list.
    pub async fn page(&self, path: &[&str], query: &Fields) -> anyhow::Result<Page> {
        self.get(path, query).await?.read()
    }

    /// The id of a destination that is named by its id or its name.
    pub async fn destination_id(&self, named: &str) -> anyhow::Result<String> {
        if named.starts_with("dst_") {
            return Ok(named.to_owned());
        }
        let query = Fields::from_iter([("name".to_owned(), named.into())]);
        let found: Vec<Destination> = self.list(&["v1", "destinations"], &query, 2).await?.read()?;
        let mut ids = found.into_iter().map(|found| found.id);
        match (ids.next(), ids.next()) {
            (Some(id), None) => Ok(id),
            (None, _) => Err(Misuse(format!("no destination has the id or name `{named}`")).into()),
            (Some(one), Some(other)) => {
                let message =
                    format!("several destinations have the name `{named}`: use an id, such as {one} or {other}");
                Err(Misuse(message).into())
            }
        }
    }
}

/// A request to the API.
pub struct Request<'a> {
    pub method: Method,
    pub path: &'a [&'a str],
    pub query: &'a Fields,
    /// JSON.
    pub body: Option<&'a str>,
    /// The version of the resource to change.
    pub if_match: Option<&'a str>,
}

static NO_FIELDS: LazyLock<Fields> = LazyLock::new(Fields::new);

impl<'a> Request<'a> {
    pub fn new(method: Method, path: &'a [&'a str]) -> Self {
        Self { method, path, query: &*NO_FIELDS, body: None, if_match: None }
    }
}

/// An answer of the server.
#[derive(Debug)]
pub struct Answer {
    url: Url,
    text: String,
    /// The version of the resource.
    pub etag: Option<String>,
}

impl Answer {
    /// The JSON as it was received.
    pub fn text(&self) -> &str {
        &self.text
    }

    pub fn read<T: DeserializeOwned>(&self) -> anyhow::Result<T> {
        serde_json::from_str(&self.text)
            .with_context(|| format!("the answer of {} is not from a Weir server of this version", self.url))
    }
}

#[derive(Debug, Deserialize)]
pub struct Page {
    #[serde(rename = "data")]
    pub rows: Rows,
    /// Where the next page begins; `None`: this is the last one.
    pub next_cursor: Option<String>,
}

/// The rows of a list, as they were received.
#[derive(Debug, Deserialize)]
#[serde(from = "Vec<Box<RawValue>>")]
pub struct Rows {
    rows: Vec<Box<RawValue>>,
    /// Whether the list has more rows.
    pub is_cut: bool,
}

impl From<Vec<Box<RawValue>>> for Rows {
    fn from(rows: Vec<Box<RawValue>>) -> Self {
        Self { rows, is_cut: false }
    }
}

impl Rows {
    pub fn read<T: DeserializeOwned>(&self) -> anyhow::Result<Vec<T>> {
        let read = |row: &RawValue| serde_json::from_str(row.get());
        self.rows
            .iter()
            .map(|row| read(row))
            .collect::<Result<_, _>>()
            .context("the list is not of this version of Weir")
    }

    /// The JSON of each row.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.rows.iter().map(|row| row.get())
    }

    /// The rows as a JSON array.
    pub fn array(&self) -> String {
        format!("[{}]", self.texts().collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flags::api::server_url;

    fn refused(status: u16, problem: Value) -> anyhow::Error {
        ApiError {
            url: server_url("http://127.0.0.1:8080/v1/destinations").unwrap(),
            status: StatusCode::from_u16(status).unwrap(),
            problem: serde_json::from_value(problem).unwrap(),
        }
        .into_error()
    }

    #[test]
    fn a_wrong_request_is_wrong_use_and_a_failing_server_is_not() {
        for (status, is_misuse) in
            [(401, true), (404, true), (422, true), (409, false), (412, false), (429, false), (503, false)]
        {
            assert_eq!(refused(status, serde_json::json!({})).is::<Misuse>(), is_misuse, "{status}");
        }
    }

    #[test]
    fn refusals_are_shown_in_the_words_of_the_server() {
        let shown = |status, problem| refused(status, problem).to_string();
        let one =
            serde_json::json!({"detail": "/url is required", "errors": [{"pointer": "/url", "detail": "is required"}]});
        assert_eq!(shown(422, one), "/url is required");
        let errors = serde_json::json!([
            {"pointer": "/url", "detail": "is required"}, {"pointer": "/name", "detail": "must be a string"}
        ]);
        let two = serde_json::json!({"detail": "/url is required; 1 more in `errors`", "errors": errors});
        assert_eq!(shown(422, two), "the request has 2 errors:\n  /url is required\n  /name must be a string");
        let unavailable = shown(503, serde_json::json!({"detail": "the store does not answer; try again"}));
        assert!(
            unavailable.ends_with("503 Service Unavailable: the store does not answer; try again"),
            "{unavailable}"
        );
        let unknown = shown(401, serde_json::json!({}));
        assert!(unknown.starts_with("http://127.0.0.1:8080 requires a valid API key"), "{unknown}");
    }

    #[test]
    fn paths_begin_at_the_path_of_the_server_and_their_parts_are_escaped() {
        let client = |server: &str| {
            let _ = rustls::crypto::ring::default_provider().install_default();
            Client::new(Connection { server: server_url(server).unwrap(), key: None }).unwrap()
        };
        let query = Fields::from_iter([("type".to_owned(), "a b&c".into()), ("limit".to_owned(), 7.into())]);
        for server in ["https://example.com/weir", "https://example.com/weir/"] {
            let url = client(server).url(&["v1", "events", "a/b?"], &query);
            assert!(url.as_str().starts_with("https://example.com/weir/v1/events/a%2Fb%3F?"), "{url}");
            assert!(url.as_str().contains("type=a+b%26c") && url.as_str().contains("limit=7"), "{url}");
        }
    }
}
