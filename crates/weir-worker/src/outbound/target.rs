//! The request parts of a destination, compiled once per version of its settings: a send only fills in the values that
//! differ.

use std::sync::Arc;

use bytes::Bytes;
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Uri,
    header::{CONTENT_LENGTH, CONTENT_TYPE, HOST, USER_AGENT},
    uri::PathAndQuery,
};
use http_body_util::Full;
use url::{Host, Position, Url};
use weir_core::{
    TraceParent,
    body::{BINARY_HEADERS, BodyFormat, BodySettings},
    destination::is_reserved_header,
    egress::Egress,
    signing::{DEFAULT_HEADER, SignatureStyle, TimestampFormat},
    trace,
};

use super::origin::{Origin, Way};

const WEBHOOK_ID: HeaderName = HeaderName::from_static("webhook-id");
const WEBHOOK_TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const TRACEPARENT: HeaderName = HeaderName::from_static(trace::HEADER);
const WEIR_ATTEMPT: HeaderName = HeaderName::from_static("weir-attempt");

/// The maximum size of a head. Receivers accept far less (8 to 64 KiB), so a larger one is refused here with a clear
/// error.
const MAX_HEAD: usize = 192 * 1024;

const TOO_LARGE: &str = "the URL and headers are too large";

/// A destination's URL and headers, ready to send to.
pub struct Target {
    origin: Arc<Origin>,
    template: HeadTemplate,
    /// Why no request can be sent to this target.
    refusal: Option<&'static str>,
}

/// The template of the head of every request to one destination. It contains the destination's own headers, often
/// credentials: no `Debug`.
#[derive(Default)]
struct HeadTemplate {
    uri: Uri,
    /// In the order in which they are sent. Headers that differ from send to send are empty here.
    headers: HeaderMap,
    /// The header of the signature.
    signature: Option<HeaderName>,
    /// The headers of the style for the signed time and the id, besides `webhook-timestamp` and `webhook-id`.
    timestamp: Option<(HeaderName, TimestampFormat)>,
    id: Option<HeaderName>,
}

/// The head of one request, without the length of its body. It contains credentials: no `Debug`.
pub struct RequestHead {
    uri: Uri,
    headers: HeaderMap,
}

impl Target {
    /// Compiles a destination's URL and its own headers, with signatures in this style and such bodies. If they cannot
    /// be sent, the target refuses every connection with a reason; the API accepts no such destination.
    pub fn new(url: &Url, headers: &[(String, String)], style: &SignatureStyle, body: &BodySettings) -> Self {
        let host = url.host().map_or_else(|| Host::Domain(String::new()), |host| host.to_owned());
        let origin = Origin {
            tls: url.scheme() != "http",
            host,
            port: url.port_or_known_default().unwrap_or_default(),
            way: None,
        };
        let (template, refusal) = match HeadTemplate::compile(url, headers, style, body) {
            Ok(template) => (template, None),
            Err(reason) => (HeadTemplate::default(), Some(reason)),
        };
        Self { origin: Arc::new(origin), template, refusal }
    }

    /// Reaches the destination in this way.
    #[must_use]
    pub fn by_way_of(mut self, egress: &Egress) -> Self {
        Arc::make_mut(&mut self.origin).way = Way::of(egress);
        self
    }

    /// The head of one attempt, with the header names of Standard Webhooks and those of the destination's signature
    /// style. `trace` is the parent span of the receiver's spans, `binary` the values of [`BINARY_HEADERS`].
    pub fn request_head(
        &self,
        id: &str,
        unix_seconds: i64,
        signature: &str,
        attempt: u32,
        trace: Option<TraceParent>,
        binary: Option<&[String; 5]>,
    ) -> RequestHead {
        let HeadTemplate { uri, headers, signature: signature_header, timestamp, id: id_header } = &self.template;
        // The template holds a place for each of these headers, so their order is the same in every request.
        let mut headers = headers.clone();
        if let Some(name) = signature_header {
            headers.insert(name, ascii_value(signature));
        }
        if let Some((name, format)) = timestamp {
            headers.insert(name, ascii_value(&format.write(unix_seconds)));
        }
        if let Some(name) = id_header {
            headers.insert(name, ascii_value(id));
        }
        for (name, value) in BINARY_HEADERS.into_iter().zip(binary.into_iter().flatten()) {
            headers.insert(name, ascii_value(value));
        }
        headers.insert(WEBHOOK_ID, ascii_value(id));
        headers.insert(WEBHOOK_TIMESTAMP, unix_seconds.into());
        headers.insert(WEIR_ATTEMPT, attempt.into());
        if let Some(trace) = trace {
            headers.insert(TRACEPARENT, ascii_value(&trace.to_string()));
        }
        RequestHead { uri: uri.clone(), headers }
    }

    pub(super) fn origin(&self) -> &Arc<Origin> {
        &self.origin
    }

    pub(super) fn refusal(&self) -> Option<&'static str> {
        self.refusal
    }
}

impl RequestHead {
    pub(super) fn with_body(self, body: Bytes) -> Request<Full<Bytes>> {
        let Self { uri, mut headers } = self;
        // hyper sets no length for an empty body.
        headers.insert(CONTENT_LENGTH, body.len().into());
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = headers;
        request
    }
}

impl HeadTemplate {
    fn compile(
        url: &Url,
        custom: &[(String, String)],
        style: &SignatureStyle,
        body: &BodySettings,
    ) -> Result<Self, &'static str> {
        if url.host().is_none() {
            return Err("the URL names no host");
        }
        // The request line: the path and the query.
        let path = &url[Position::BeforePath..Position::AfterQuery];
        // `Url` percent-encodes other bytes; this check makes sure.
        if !path.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err("the URL's path cannot be sent");
        }
        let path: PathAndQuery = path.parse().map_err(|_| "the URL's path cannot be sent")?;
        // The host as the URL names it: without the port, if that is the default.
        let host = HeaderValue::from_str(&url[Position::BeforeHost..Position::AfterPort]);
        let host = host.ok().filter(|host| host.as_bytes().iter().all(u8::is_ascii_graphic));
        // The headers of the signature style.
        let format = style.format();
        let signature = signing_header(&format.header)?;
        // Every request has `webhook-timestamp` and `webhook-id` already.
        let own = |name: &Option<String>, common: &HeaderName| {
            let name = name.as_deref().filter(|&name| *common != name);
            name.map(signing_header).transpose()
        };
        let timestamp = own(&format.timestamp_header, &WEBHOOK_TIMESTAMP)?;
        let id = own(&format.id_header, &WEBHOOK_ID)?;
        let content_type = HeaderValue::from_str(body.content_type()).map_err(|_| "the content type cannot be sent")?;
        let binary = if body.format == BodyFormat::CloudeventsBinary { &BINARY_HEADERS[..] } else { &[] };

        let mut headers = HeaderMap::new();
        // The headers that are the same in every request: Weir's own, then those of the destination.
        headers.insert(HOST, host.ok_or("the URL's host cannot be sent")?);
        headers.insert(CONTENT_TYPE, content_type);
        if !custom.iter().any(|(name, _)| name.eq_ignore_ascii_case(USER_AGENT.as_str())) {
            headers.insert(USER_AGENT, HeaderValue::from_static(concat!("Weir/", env!("CARGO_PKG_VERSION"))));
        }
        for (name, value) in custom {
            let name = HeaderName::from_bytes(name.as_bytes()).map_err(|_| "a header name cannot be sent")?;
            // This parse refuses line breaks, which would start another header.
            let value = HeaderValue::from_str(value).map_err(|_| "a header value cannot be sent")?;
            // The destination's own headers replace none of Weir's, and do not frame the request.
            let is_of_weir = [Some(&signature), timestamp.as_ref(), id.as_ref()].contains(&Some(&name))
                || binary.contains(&name.as_str());
            if (name == USER_AGENT || !is_reserved_header(name.as_str())) && !is_of_weir {
                headers.try_append(name, value).map_err(|_| TOO_LARGE)?;
            }
        }
        // Refuse now what every receiver would refuse at each send.
        let length = |(name, value): (&HeaderName, &HeaderValue)| name.as_str().len() + value.len() + ": \r\n".len();
        if path.as_str().len() + headers.iter().map(length).sum::<usize>() > MAX_HEAD {
            return Err(TOO_LARGE);
        }
        // Hold places for the headers that differ from send to send, after all others.
        for name in binary.iter().copied() {
            headers.insert(name, HeaderValue::from_static(""));
        }
        let differing = [Some(&signature), timestamp.as_ref(), id.as_ref(), Some(&WEBHOOK_ID)];
        let always = [&WEBHOOK_TIMESTAMP, &WEIR_ATTEMPT, &CONTENT_LENGTH];
        for name in differing.into_iter().flatten().chain(always) {
            headers.insert(name, HeaderValue::from_static(""));
        }
        let timestamp = timestamp.map(|name| (name, format.timestamp_format));
        Ok(Self { uri: path.into(), headers, signature: Some(signature), timestamp, id })
    }
}

fn signing_header(name: &str) -> Result<HeaderName, &'static str> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok();
    let name = name.filter(|name| *name == DEFAULT_HEADER || !is_reserved_header(name.as_str()));
    name.ok_or("the signature's header cannot be sent")
}

/// Ids and signatures are ASCII by construction. Another text is replaced, so that it starts no other header and causes
/// no panic.
fn ascii_value(text: &str) -> HeaderValue {
    let is_ascii = text.bytes().all(|byte| matches!(byte, b' '..=b'~'));
    let value = if is_ascii { HeaderValue::from_str(text).ok() } else { None };
    value.unwrap_or_else(|| HeaderValue::from_static("invalid"))
}

#[cfg(test)]
mod tests {
    use weir_core::signing::StyleSpec;

    use super::*;

    fn target(url: &str, headers: &[(&str, &str)]) -> Target {
        styled(url, headers, &SignatureStyle::standard())
    }

    fn styled(url: &str, headers: &[(&str, &str)], style: &SignatureStyle) -> Target {
        let headers: Vec<_> = headers.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Target::new(&url.parse().unwrap(), &headers, style, &BodySettings::default())
    }

    fn prefixed(header: &str, timestamp_header: Option<&str>) -> SignatureStyle {
        let timestamp_header = timestamp_header.map(str::to_owned);
        let spec = StyleSpec { header: Some(header.to_owned()), timestamp_header, ..StyleSpec::named("prefixed") };
        spec.resolve().unwrap()
    }

    /// The request line of a first attempt, and its headers in the order of their names.
    fn head(target: &Target, signature: &str) -> (String, Vec<String>) {
        assert_eq!(target.refusal(), None);
        let body = Bytes::from(vec![b'x'; 17]);
        let request = target.request_head("evt_1", 1_700_000_000, signature, 3, None, None).with_body(body);
        let first = format!("{} {} HTTP/1.1", request.method(), request.uri());
        let line = |(name, value): (&HeaderName, &HeaderValue)| format!("{name}: {}", value.to_str().unwrap());
        let mut headers: Vec<_> = request.headers().iter().map(line).collect();
        headers.sort();
        (first, headers)
    }

    const USER_AGENT: &str = concat!("user-agent: Weir/", env!("CARGO_PKG_VERSION"));

    #[test]
    fn a_url_is_split_into_origin_and_path() {
        let target = target("https://Example.com:8443/a%20b/c?x=1&y=[`|^]#frag", &[]);
        assert_eq!(
            *target.origin,
            Origin { tls: true, host: Host::Domain("example.com".into()), port: 8443, way: None }
        );
        let (first, headers) = head(&target, "v1,x");
        assert_eq!(first, "POST /a%20b/c?x=1&y=[`|^] HTTP/1.1");
        assert!(headers.contains(&"host: example.com:8443".to_owned()), "{headers:?}");
    }

    #[test]
    fn the_default_port_is_used_and_not_in_the_host_header() {
        for (url, port, tls, host) in
            [("https://example.com", 443, true, "host: example.com"), ("http://[::1]/", 80, false, "host: [::1]")]
        {
            let target = target(url, &[]);
            assert_eq!((target.origin.port, target.origin.tls), (port, tls));
            let (first, headers) = head(&target, "v1,x");
            assert_eq!(first, "POST / HTTP/1.1");
            assert!(headers.contains(&host.to_owned()), "{headers:?}");
        }
    }

    /// hyper must accept every character that `Url` does not encode.
    #[test]
    fn every_character_of_a_url_can_be_sent() {
        for byte in b' '..=b'~' {
            let byte = char::from(byte);
            let target = target(&format!("https://a.example/x{byte}y?x{byte}y"), &[]);
            assert_eq!(target.refusal(), None, "{byte}");
        }
    }

    #[test]
    fn headers_are_sent_in_a_fixed_order_with_custom_headers_before_those_of_the_attempt() {
        let target = target("https://a.example/", &[("X-Two", "1"), ("x-one", "k"), ("x-two", "2")]);
        let request = target.request_head("evt_1", 1_700_000_000, "v1,x", 1, None, None).with_body(Bytes::new());
        let names: Vec<_> = request.headers().iter().map(|(name, _)| name.as_str()).collect();
        let own = ["x-two", "x-two", "x-one"];
        let before = ["host", "content-type", "user-agent"];
        let after = ["webhook-signature", "webhook-id", "webhook-timestamp", "weir-attempt", "content-length"];
        assert_eq!(names, [&before[..], &own, &after].concat());
    }

    #[test]
    fn a_head_contains_the_span_of_its_send() {
        let target = target("https://a.example/", &[("traceparent", "forged")]);
        let trace = TraceParent::new([1; 16], [2; 8], true);
        let request = target.request_head("evt_1", 1_700_000_000, "v1,x", 1, trace, None).with_body(Bytes::new());
        let sent: Vec<_> = request.headers().get_all(TRACEPARENT).iter().collect();
        assert_eq!(sent, ["00-01010101010101010101010101010101-0202020202020202-01"]);
    }

    #[test]
    fn a_destination_may_name_its_own_user_agent() {
        let (_, headers) = head(&target("https://a.example/", &[("User-Agent", "Acme/1")]), "v1,x");
        let named: Vec<_> = headers.iter().filter(|header| header.starts_with("user-agent")).collect();
        assert_eq!(named, ["user-agent: Acme/1"]);
    }

    #[test]
    fn two_paths_of_one_origin_share_connections() {
        assert_eq!(target("https://a.example/x", &[]).origin, target("https://A.example:443/y?z", &[]).origin);
        assert_ne!(target("https://a.example/", &[]).origin, target("http://a.example:443/", &[]).origin);
    }

    #[test]
    fn a_head_carries_the_custom_headers_and_those_of_the_attempt() {
        let target = target("https://a.example/", &[("X-Api-Key", "k"), ("x-two", "1"), ("x-two", "2")]);
        let expected = [
            "content-length: 17",
            "content-type: application/json",
            "host: a.example",
            USER_AGENT,
            "webhook-id: evt_1",
            "webhook-signature: v1,abc=",
            "webhook-timestamp: 1700000000",
            "weir-attempt: 3",
            "x-api-key: k",
            "x-two: 1",
            "x-two: 2",
        ];
        assert_eq!(head(&target, "v1,abc=").1, expected);
    }

    #[test]
    fn a_signature_style_adds_its_headers_to_those_of_every_delivery() {
        let common = ["content-length: 17", "content-type: application/json", "host: a.example", USER_AGENT];
        let of_every = ["webhook-id: evt_1", "webhook-timestamp: 1700000000", "weir-attempt: 3"];
        for (style, own) in [
            (prefixed("X-Signature", Some("x-time")), &["x-signature: sha256=00", "x-time: 1700000000"][..]),
            // The standard timestamp header serves the style too, and is sent once.
            (prefixed("x-signature", Some("webhook-timestamp")), &["x-signature: sha256=00"]),
            (prefixed("x-signature", None), &["x-signature: sha256=00"]),
        ] {
            let own_headers = [("x-signature", "forged"), ("x-mine", "1")];
            let styled = styled("https://a.example/", &own_headers, &style);
            let mine = ["x-mine: 1"];
            let expected: Vec<_> = [&common[..], &of_every, &mine, own].concat();
            assert_eq!(head(&styled, "sha256=00").1, expected, "{style:?}");
        }
        for (header, timestamp_header) in [
            ("a b", None),
            ("content-length", None),
            ("webhook-id", None),
            ("host", None),
            ("x", Some("")),
            ("x", Some("te")),
        ] {
            let refused = styled("https://a.example/", &[], &prefixed(header, timestamp_header));
            assert!(refused.refusal().is_some(), "{header} {timestamp_header:?}");
        }
    }

    #[test]
    fn a_style_has_the_time_and_the_id_in_its_own_headers_and_format() {
        let of = |name: &str| styled("https://a.example/", &[], &StyleSpec::named(name).resolve().unwrap());
        for (style, own) in [
            (
                "twitch",
                &[
                    "twitch-eventsub-message-id: evt_1",
                    "twitch-eventsub-message-signature: s",
                    "twitch-eventsub-message-timestamp: 2023-11-14T22:13:20Z",
                    "webhook-id: evt_1",
                    "webhook-timestamp: 1700000000",
                ][..],
            ),
            ("svix", &["svix-id: evt_1", "svix-signature: s", "svix-timestamp: 1700000000"]),
            ("stripe", &["stripe-signature: s"]),
        ] {
            let (_, headers) = head(&of(style), "s");
            assert!(own.iter().all(|line| headers.contains(&(*line).to_owned())), "{style}: {headers:?}");
        }
    }

    #[test]
    fn a_body_has_its_content_type_and_a_binary_cloudevent_its_attributes() {
        let url = "https://a.example/".parse().unwrap();
        let own = [("ce-id".to_owned(), "forged".to_owned()), ("ce-extension".to_owned(), "mine".to_owned())];
        let body = BodySettings {
            format: BodyFormat::CloudeventsBinary,
            content_type: Some("text/plain; charset=utf-8".to_owned()),
            source: None,
        };
        let target = Target::new(&url, &own, &SignatureStyle::standard(), &body);
        let values = ["1.0", "evt_1", "/weir/acme", "a.b", "2026-11-21T07:30:00.000Z"].map(str::to_owned);
        let request = target.request_head("evt_1", 1, "v1,x", 1, None, Some(&values)).with_body(Bytes::new());
        let get = |name| request.headers().get_all(name).iter().collect::<Vec<_>>();
        assert_eq!(get("content-type"), ["text/plain; charset=utf-8"]);
        for (name, value) in BINARY_HEADERS.into_iter().zip(&values) {
            assert_eq!(get(name), [value.as_str()]);
        }
        assert_eq!(get("ce-extension"), ["mine"]);
    }

    #[test]
    fn a_custom_header_cannot_frame_the_request_or_replace_weirs_headers() {
        let custom = [
            ("Transfer-Encoding", "chunked"),
            ("content-length", "0"),
            ("Connection", "close"),
            ("Host", "other.example"),
            ("Webhook-Id", "forged"),
            ("webhook-signature", "forged"),
            ("weir-attempt", "9"),
            ("Traceparent", "00-11111111111111111111111111111111-2222222222222222-01"),
            ("Expect", "100-continue"),
        ];
        let with = target("https://a.example/", &custom);
        assert_eq!(head(&with, "v1,x"), head(&target("https://a.example/", &[]), "v1,x"));
    }

    #[test]
    fn a_header_that_would_inject_another_makes_the_target_refuse() {
        for (name, value) in
            [("x", "a\r\nwebhook-id: b"), ("x", "a\nb"), ("x\r\ny", "a"), ("x y", "a"), ("", "a"), ("x", "a\0")]
        {
            assert!(target("https://a.example/", &[(name, value)]).refusal().is_some(), "{name:?}: {value:?}");
        }
        // The URL parser removes line breaks.
        assert_eq!(head(&target("https://a.example/x\r\nhost: b", &[]), "v1,x").0, "POST /xhost:%20b HTTP/1.1");
        let (_, headers) = head(&target("https://a.example/", &[]), "v1,x\r\nx-injected: 1");
        assert!(headers.contains(&"webhook-signature: invalid".to_owned()), "{headers:?}");
    }

    #[test]
    fn a_head_that_is_too_large_is_refused() {
        let long = "x".repeat(4_096);
        assert_eq!(target("https://a.example/", &[("a", long.as_str()); 32]).refusal(), None);
        assert!(target("https://a.example/", &[("a", long.as_str()); 48]).refusal().is_some());
    }
}
