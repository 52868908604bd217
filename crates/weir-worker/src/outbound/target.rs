//! Where to send, compiled once per version of a destination: no URL and no header name is parsed for a send.

use std::sync::Arc;

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri,
    header::{self, CONTENT_TYPE, HOST, USER_AGENT},
};
use url::{Host, Position, Url};
use weir_core::signing::SignatureStyle;

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const WEBHOOK_SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
const WEIR_ATTEMPT: HeaderName = HeaderName::from_static("weir-attempt");

/// Room for what [`Target::request_head`] adds, a timestamp's own header included.
const ADDED_HEADERS: usize = 5;
/// The largest head, well below the connection's buffer: a larger one would leave before the gate is asked.
pub(super) const MAX_HEAD: usize = 192 * 1024;

/// Headers that frame the request or belong to one hop. A destination that names one (the API refuses it) goes without.
const FRAMING: [HeaderName; 10] = [
    header::CONNECTION,
    header::CONTENT_LENGTH,
    header::EXPECT,
    HeaderName::from_static("keep-alive"),
    header::PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// A destination's URL and headers, ready to send to.
#[derive(Debug)]
pub struct Target {
    origin: Arc<Origin>,
    /// Path and query.
    uri: Uri,
    headers: HeaderMap,
    /// Where the signature goes, and the signed time besides `webhook-timestamp`.
    signature: HeaderName,
    timestamp: Option<HeaderName>,
    /// Why nothing can be sent here.
    refusal: Option<&'static str>,
}

/// What a connection is made to, and the key it is pooled under.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Origin {
    pub(super) tls: bool,
    pub(super) host: Host<String>,
    pub(super) port: u16,
}

/// The headers of one request.
#[derive(Debug, Clone)]
pub struct RequestHead(HeaderMap);

impl Target {
    /// Compiles a destination's URL and its own headers. A URL or header that cannot be sent makes a target that refuses
    /// every connection and says why; the API lets none through.
    pub fn new(url: &Url, headers: &[(String, String)]) -> Self {
        let mut refusal = None;
        let host = url.host().map_or_else(|| Host::Domain(String::new()), |host| host.to_owned());
        if url.host().is_none() {
            refusal = Some("the URL names no host");
        }
        let uri = url[Position::BeforePath..Position::AfterQuery].parse().unwrap_or_else(|_| {
            refusal = Some("the URL's path cannot be sent");
            Uri::from_static("/")
        });
        let headers = compile_headers(url, headers).unwrap_or_else(|reason| {
            refusal = Some(reason);
            HeaderMap::new()
        });
        let head_len = headers.iter().map(|(name, value)| name.as_str().len() + value.len() + 4).sum::<usize>();
        if head_len + url.as_str().len() > MAX_HEAD {
            refusal = Some("the URL and headers are too large");
        }
        let origin =
            Origin { tls: url.scheme() != "http", host, port: url.port_or_known_default().unwrap_or_default() };
        Self { origin: Arc::new(origin), uri, headers, signature: WEBHOOK_SIGNATURE, timestamp: None, refusal }
    }

    /// With signatures in this style. A header name that cannot be sent makes a target that refuses, as in [`Self::new`].
    #[must_use]
    pub fn signed_in(mut self, style: &SignatureStyle) -> Self {
        let named = |name: &str| name.parse::<HeaderName>().ok().filter(|name| !FRAMING.contains(name));
        match (named(style.header()), style.timestamp_header().map(named)) {
            (Some(signature), None) => self.signature = signature,
            (Some(signature), Some(Some(timestamp))) => {
                (self.signature, self.timestamp) = (signature, Some(timestamp));
            }
            _ => self.refusal = Some("the signature's header cannot be sent"),
        }
        self
    }

    /// The headers of one attempt, as Standard Webhooks names them unless the signature has a style of its own.
    pub fn request_head(&self, id: &str, unix_seconds: i64, signature: &str, attempt: u32) -> RequestHead {
        let mut headers = self.headers.clone();
        headers.reserve(ADDED_HEADERS);
        // First, so that no style can stand in for what every receiver finds.
        headers.insert(self.signature.clone(), visible(signature));
        if let Some(timestamp) = &self.timestamp {
            headers.insert(timestamp.clone(), HeaderValue::from(unix_seconds));
        }
        headers.insert(WEBHOOK_ID, visible(id));
        headers.insert(WEBHOOK_TIMESTAMP, HeaderValue::from(unix_seconds));
        headers.insert(WEIR_ATTEMPT, HeaderValue::from(attempt));
        RequestHead(headers)
    }

    pub(super) fn request(&self, head: RequestHead) -> Request<()> {
        let mut request = Request::new(());
        *request.method_mut() = Method::POST;
        *request.uri_mut() = self.uri.clone();
        *request.headers_mut() = head.0;
        request
    }

    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    pub(super) fn refusal(&self) -> Option<&'static str> {
        self.refusal
    }
}

fn compile_headers(url: &Url, custom: &[(String, String)]) -> Result<HeaderMap, &'static str> {
    let mut headers = HeaderMap::with_capacity(custom.len() + 3 + ADDED_HEADERS);
    for (name, value) in custom {
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "a header name cannot be sent")?;
        let mut value = HeaderValue::from_str(value).map_err(|_| "a header value cannot be sent")?;
        // Often a credential; kept out of `Debug`.
        value.set_sensitive(true);
        if !FRAMING.contains(&name) {
            headers.append(name, value);
        }
    }
    // Last, and by `insert`, so that a custom header cannot stand in for one of these.
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("Weir/", env!("CARGO_PKG_VERSION"))));
    let host = &url[Position::BeforeHost..Position::AfterPort];
    headers.insert(HOST, HeaderValue::from_str(host).map_err(|_| "the URL's host cannot be sent")?);
    Ok(headers)
}

/// Ids and signatures are ASCII by construction; anything else is not worth a panic in the middle of an attempt.
fn visible(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or_else(|_| HeaderValue::from_static("invalid"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str, headers: &[(&str, &str)]) -> Target {
        let headers: Vec<_> = headers.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Target::new(&url.parse().unwrap(), &headers)
    }

    #[test]
    fn a_url_is_split_into_origin_and_path() {
        let target = target("https://Example.com:8443/a%20b/c?x=1&y=[`|^]#frag", &[]);
        assert_eq!(target.refusal(), None);
        assert_eq!(*target.origin, Origin { tls: true, host: Host::Domain("example.com".into()), port: 8443 });
        assert_eq!(target.uri, "/a%20b/c?x=1&y=[`|^]");
        assert_eq!(target.headers[HOST], "example.com:8443");
    }

    #[test]
    fn the_default_port_is_known_and_not_named() {
        let secure = target("https://example.com", &[]);
        assert_eq!((secure.origin.port, secure.uri.path()), (443, "/"));
        assert_eq!(secure.headers[HOST], "example.com");
        let plain = target("http://[::1]/", &[]);
        assert_eq!((plain.origin.port, plain.origin.tls), (80, false));
        assert_eq!(plain.headers[HOST], "[::1]");
    }

    #[test]
    fn two_paths_of_one_origin_share_connections() {
        assert_eq!(target("https://a.example/x", &[]).origin, target("https://A.example:443/y?z", &[]).origin);
        assert_ne!(target("https://a.example/", &[]).origin, target("http://a.example:443/", &[]).origin);
    }

    #[test]
    fn a_head_carries_the_custom_headers_and_those_of_the_attempt() {
        let target = target("https://a.example/", &[("X-Api-Key", "k"), ("x-two", "1"), ("x-two", "2")]);
        let RequestHead(headers) = target.request_head("evt_1", 1_700_000_000, "v1,abc=", 3);
        assert_eq!(headers["webhook-id"], "evt_1");
        assert_eq!(headers["webhook-timestamp"], "1700000000");
        assert_eq!(headers["webhook-signature"], "v1,abc=");
        assert_eq!(headers["weir-attempt"], "3");
        assert_eq!(headers["content-type"], "application/json");
        assert_eq!(headers["x-api-key"], "k");
        assert_eq!(headers.get_all("x-two").iter().count(), 2);
        assert!(!format!("{headers:?}").contains("\"k\""));
    }

    #[test]
    fn a_style_has_its_own_headers_beside_those_of_every_delivery() {
        let style = |header: &str, timestamp_header: Option<&str>| SignatureStyle::Prefixed {
            header: header.to_owned(),
            timestamp_header: timestamp_header.map(str::to_owned),
        };
        let styled = target("https://a.example/", &[]).signed_in(&style("x-signature", Some("x-time")));
        let RequestHead(headers) = styled.request_head("evt_1", 1_700_000_000, "sha256=00", 1);
        assert_eq!(
            (&headers["x-signature"], &headers["x-time"]),
            (&"sha256=00".parse().unwrap(), &"1700000000".parse().unwrap())
        );
        assert_eq!(
            (&headers["webhook-id"], &headers["webhook-timestamp"]),
            (&"evt_1".parse().unwrap(), &headers["x-time"])
        );
        assert!(!headers.contains_key("webhook-signature"));
        for (header, timestamp_header) in [("a b", None), ("content-length", None), ("x", Some("")), ("x", Some("te"))]
        {
            let refused = target("https://a.example/", &[]).signed_in(&style(header, timestamp_header));
            assert!(refused.refusal().is_some(), "{header} {timestamp_header:?}");
        }
    }

    #[test]
    fn a_custom_header_cannot_frame_the_request_or_stand_in_for_weirs_own() {
        let custom = [
            ("Transfer-Encoding", "chunked"),
            ("content-length", "0"),
            ("Connection", "close"),
            ("Host", "other.example"),
            ("user-agent", "me"),
            ("webhook-id", "forged"),
            ("Expect", "100-continue"),
        ];
        let target = target("https://a.example/", &custom);
        let RequestHead(headers) = target.request_head("evt_1", 1, "v1,x", 1);
        for name in ["transfer-encoding", "content-length", "connection", "expect"] {
            assert!(!headers.contains_key(name), "{name}");
        }
        let only = |name: &str| headers.get_all(name).iter().map(|value| value.to_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(only("host"), ["a.example"]);
        assert_eq!(only("webhook-id"), ["evt_1"]);
        assert!(only("user-agent")[0].starts_with("Weir/"));
    }

    #[test]
    fn a_header_that_would_inject_another_refuses_the_target() {
        for (name, value) in
            [("x", "a\r\nwebhook-id: b"), ("x", "a\nb"), ("x\r\ny", "a"), ("x y", "a"), ("", "a"), ("x", "a\0")]
        {
            assert!(target("https://a.example/", &[(name, value)]).refusal().is_some(), "{name:?}: {value:?}");
        }
        // The URL parser drops line breaks itself.
        assert_eq!(target("https://a.example/x\r\nhost: b", &[]).uri, "/xhost:%20b");
    }

    #[test]
    fn a_head_too_large_for_the_gate_is_refused() {
        let long = "x".repeat(4_096);
        assert_eq!(target("https://a.example/", &[("a", long.as_str()); 32]).refusal(), None);
        assert!(target("https://a.example/", &[("a", long.as_str()); 48]).refusal().is_some());
    }
}
