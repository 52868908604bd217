//! The egress proxy: connections to destinations are tunnels through an HTTP proxy (`CONNECT`, RFC 9110, section
//! 9.3.6).
//!
//! The proxy resolves the names of destinations, and its rules decide which addresses they may have: networks with such
//! a proxy often have no other DNS. So Weir's own address policy judges only literal addresses here.
//!
//! **Whose fault it is.** The owner of a destination cannot help if the proxy is away, hangs, or refuses Weir itself. Such
//! a permit goes back unsent and no attempt is counted. It is the destination's fault if the proxy says that it could
//! not reach it, and an error of its settings if the proxy's rules forbid it.

use std::{
    fmt,
    net::IpAddr,
    str::FromStr,
    sync::atomic::{AtomicU64, Ordering},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use ipnet::IpNet;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use url::{Host, Url};
use weir_core::outcome::Failure;

use super::{
    fault::{NoConnection, Unreachable},
    target::Origin,
};

/// The maximum size of the head of the proxy's answer.
const MAX_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
/// Smokescreen answers 407 with this header to a destination that its rules forbid, because many clients hide the text
/// of other answers to CONNECT.
const SMOKESCREEN_REFUSAL: &str = "x-smokescreen-error";
/// Squid answers 503 also when it cannot reach the destination, and names the cause here.
const SQUID_CAUSE: &str = "x-squid-error";

pub(super) const AWAY: NoConnection = NoConnection::Exhausted("the egress proxy cannot be reached");
pub(super) const SILENT: NoConnection = NoConnection::Exhausted("the egress proxy does not answer");
const CLOSED: NoConnection = NoConnection::Exhausted("the egress proxy closed the connection before it answered");
const NOT_HTTP: NoConnection = NoConnection::Exhausted("the answer of the egress proxy is not valid HTTP/1.1");
const NO_ENTRY: NoConnection =
    NoConnection::Exhausted("the egress proxy refuses the user or password of WEIR_EGRESS_PROXY (407)");
const FAULTY: NoConnection = NoConnection::Exhausted("the egress proxy answers with an error of its own");

/// An HTTP proxy, and which hosts are reached without it.
#[derive(Clone, PartialEq, Eq)]
pub struct EgressProxy {
    host: Host<String>,
    port: u16,
    /// The value of `Proxy-Authorization`.
    authorization: Option<String>,
    direct: Vec<DirectHost>,
}

/// It may hold a password.
impl fmt::Debug for EgressProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

/// Hosts that are reached without the proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DirectHost {
    /// Literal addresses in this network.
    Network(IpNet),
    /// The name and all names below it.
    Name(String),
}

impl FromStr for DirectHost {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(network) = text.parse::<IpNet>().or_else(|_| text.parse::<IpAddr>().map(IpNet::from)) {
            return Ok(Self::Network(network));
        }
        let name = text.strip_prefix("*.").or_else(|| text.strip_prefix('.')).unwrap_or(text);
        match Host::parse(name) {
            Ok(Host::Domain(name)) if !name.contains('*') => Ok(Self::Name(name)),
            _ => Err(format!("`{text}` is neither a host name nor a network, such as example.com or 10.0.0.0/8")),
        }
    }
}

impl DirectHost {
    fn contains(&self, host: &Host<String>) -> bool {
        match (self, host) {
            (Self::Network(network), Host::Ipv4(v4)) => network.contains(&IpAddr::V4(*v4)),
            (Self::Network(network), Host::Ipv6(v6)) => network.contains(&IpAddr::V6(*v6)),
            (Self::Name(name), Host::Domain(host)) => {
                let above = host.trim_end_matches('.').strip_suffix(name.as_str());
                above.is_some_and(|above| above.is_empty() || above.ends_with('.'))
            }
            _ => false,
        }
    }
}

impl EgressProxy {
    /// Reads `http://[user:password@]host[:port]`. The error repeats no part of the text, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const SHAPE: &str = "not the URL of an HTTP proxy; use http://host:port or http://user:password@host:port";
        let url = Url::parse(text).map_err(|_| SHAPE)?;
        if url.scheme() == "https" {
            return Err("the proxy must be reached over http://; what is sent through it is encrypted by https URLs");
        }
        if url.scheme() != "http" || url.path() != "/" || url.query().is_some() || url.fragment().is_some() {
            return Err(SHAPE);
        }
        let host = url.host().ok_or(SHAPE)?.to_owned();
        let decoded = |part: &str| percent_encoding::percent_decode_str(part).collect::<Vec<u8>>();
        let has_user = !url.username().is_empty() || url.password().is_some();
        let authorization = has_user.then(|| {
            let pair = [&*decoded(url.username()), b":", &*decoded(url.password().unwrap_or_default())].concat();
            format!("Basic {}", STANDARD.encode(pair))
        });
        let port = url.port_or_known_default().ok_or(SHAPE)?;
        Ok(Self { host, port, authorization, direct: Vec::new() })
    }

    /// Reaches these hosts without the proxy.
    #[must_use]
    pub fn without(mut self, direct: Vec<DirectHost>) -> Self {
        self.direct = direct;
        self
    }

    fn serves(&self, origin: &Origin) -> bool {
        !self.direct.iter().any(|direct| direct.contains(&origin.host))
    }

    fn request(&self, Origin { host, port, .. }: &Origin) -> String {
        let authorization = self.authorization.as_ref();
        let authorization = authorization.map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default();
        format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{authorization}\r\n")
    }
}

/// The tunnels of a process through its proxy.
pub(super) struct Tunnels {
    proxy: EgressProxy,
    /// How many answers have come. While others get answers, a CONNECT without one waits for its destination.
    answers: AtomicU64,
}

impl Tunnels {
    pub(super) fn new(proxy: EgressProxy) -> Self {
        Self { proxy, answers: AtomicU64::new(0) }
    }

    pub(super) fn lead_to(&self, origin: &Origin) -> bool {
        self.proxy.serves(origin)
    }

    pub(super) fn proxy_address(&self) -> (&Host<String>, u16) {
        (&self.proxy.host, self.proxy.port)
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Asks the proxy, which is connected, for a tunnel to the origin.
    pub(super) async fn open(&self, stream: &mut TcpStream, origin: &Origin) -> Result<(), NoConnection> {
        stream.write_all(self.proxy.request(origin).as_bytes()).await.map_err(|_| CLOSED)?;
        let mut head = Vec::with_capacity(512);
        loop {
            if stream.read_buf(&mut head).await.map_err(|_| CLOSED)? == 0 {
                return Err(CLOSED);
            }
            let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
            let mut answer = httparse::Response::new(&mut headers);
            match answer.parse(&head) {
                Ok(httparse::Status::Complete(end)) => {
                    self.answers.fetch_add(1, Ordering::Relaxed);
                    let status = answer.code.unwrap_or_default();
                    return match status {
                        // The destination speaks only after the request, so nothing may follow the head.
                        200..=299 if end == head.len() => Ok(()),
                        200..=299 => Err(NOT_HTTP),
                        _ => Err(refusal(status, answer.headers)),
                    };
                }
                Ok(httparse::Status::Partial) if head.len() < MAX_HEAD => {}
                _ => return Err(NOT_HTTP),
            }
        }
    }
}

/// Whose fault it is that the proxy makes no tunnel.
fn refusal(status: u16, headers: &[httparse::Header<'_>]) -> NoConnection {
    let value = |name: &str| headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|it| it.value);
    let squid = |cause: &[u8]| cause.starts_with(b"ERR_CONNECT_FAIL") || cause.starts_with(b"ERR_DNS_FAIL");
    match status {
        403 => forbidden(),
        407 if value(SMOKESCREEN_REFUSAL).is_some() => forbidden(),
        407 => NO_ENTRY,
        502 | 504 => unreached(status),
        503 if value(SQUID_CAUSE).is_some_and(squid) => unreached(status),
        _ => FAULTY,
    }
}

fn forbidden() -> NoConnection {
    Unreachable::new(Failure::Forbidden, "the egress proxy's rules do not allow this destination").into()
}

fn unreached(status: u16) -> NoConnection {
    Unreachable::new(Failure::Connect, format!("the egress proxy could not reach the destination ({status})")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(host: &str) -> Origin {
        Origin { tls: true, host: Host::parse(host).unwrap(), port: 443 }
    }

    #[test]
    fn a_request_names_the_destination_and_authenticates() {
        let proxy = EgressProxy::parse("http://weir:p%40ss%3A@proxy.internal:3128").unwrap();
        assert_eq!((proxy.host.to_string(), proxy.port), ("proxy.internal".to_owned(), 3128));
        let token = STANDARD.encode("weir:p@ss:");
        let expected = format!(
            "CONNECT [2606:4700::1]:443 HTTP/1.1\r\nHost: [2606:4700::1]:443\r\nProxy-Authorization: Basic {token}\r\n\r\n"
        );
        assert_eq!(proxy.request(&origin("[2606:4700::1]")), expected);
        assert_eq!(format!("{proxy:?}"), "http://proxy.internal:3128");
        let plain = EgressProxy::parse("http://10.0.0.1").unwrap();
        assert_eq!(plain.port, 80);
        assert_eq!(
            plain.request(&origin("a.example")),
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"
        );
    }

    #[test]
    fn other_urls_are_refused_without_repeating_them() {
        for bad in [
            "",
            "proxy:3128",
            "socks5://s3cret@proxy",
            "http://u:s3cret@proxy/path",
            "http://proxy?s3cret",
            "https://u:s3cret@proxy",
        ] {
            let error = EgressProxy::parse(bad).unwrap_err();
            assert!(error.contains("http://") && !error.contains("s3cret"), "{bad}: {error}");
        }
    }

    #[test]
    fn hosts_may_be_reached_without_the_proxy() {
        let direct = ["10.0.0.0/8", "fd00::/8", "192.0.2.7", "corp.example", "*.svc.example", ".local"];
        let direct = direct.into_iter().map(|host| host.parse().unwrap()).collect();
        let proxy = EgressProxy::parse("http://proxy:3128").unwrap().without(direct);
        for host in
            ["10.1.2.3", "[fd00::1]", "192.0.2.7", "corp.example", "a.corp.example", "a.corp.example.", "x.local"]
        {
            assert!(!proxy.serves(&origin(host)), "{host}");
        }
        for host in ["11.0.0.1", "192.0.2.8", "[2001:db8::1]", "notcorp.example", "corp.example.com", "10.example"] {
            assert!(proxy.serves(&origin(host)), "{host}");
        }
        for bad in ["*", "a*b.example", "10.0.0.0/33", "http://a.example", ""] {
            assert!(bad.parse::<DirectHost>().is_err(), "{bad}");
        }
    }
}
