//! The egress proxy: connections to destinations are tunnels through an HTTP proxy (`CONNECT`, RFC 9110, section
//! 9.3.6).
//!
//! The proxy resolves the names of destinations, and its rules decide which addresses they may have: networks with such
//! a proxy often have no other DNS. So Weir's own address policy judges only literal addresses here.
//!
//! **Whose fault it is.** The owner of a destination cannot help if the proxy is away, hangs, or refuses Weir itself. Such
//! a permit goes back unsent and no attempt is counted. It is the destination's fault if the proxy says that it could
//! not reach it, and an error of its settings if the proxy's rules forbid it.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};
use url::Host;
use weir_core::{egress::HttpProxy, outcome::Failure};

use super::{
    fault::{NoConnection, Unreachable},
    origin::Origin,
};

/// The maximum size of the head of the proxy's answer.
const MAX_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 64;
/// How many characters of a refusal are logged.
const MOST_WORDS: usize = 300;
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
    NoConnection::Exhausted("the egress proxy refuses its user or password, or wants one (407)");
const FAULTY: NoConnection = NoConnection::Exhausted("the egress proxy answers with an error of its own");

/// The tunnels of a process through one proxy.
pub(super) struct Tunnels {
    proxy: HttpProxy,
    /// How many answers have come. While others get answers, a CONNECT without one waits for its destination.
    answers: AtomicU64,
}

impl Tunnels {
    pub(super) fn new(proxy: HttpProxy) -> Self {
        Self { proxy, answers: AtomicU64::new(0) }
    }

    /// The host and the port of the proxy.
    pub(super) fn proxy_address(&self) -> Option<(Host<String>, u16)> {
        Some((self.proxy.host()?.to_owned(), self.proxy.port()))
    }

    fn request(&self, Origin { host, port, .. }: &Origin) -> String {
        let authorization = self.proxy.authorization();
        let authorization = authorization.map(|value| format!("Proxy-Authorization: {value}\r\n")).unwrap_or_default();
        format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{authorization}\r\n")
    }

    pub(super) fn answers(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    /// Asks the proxy, which is connected, for a tunnel to the origin.
    pub(super) async fn open(&self, stream: &mut TcpStream, origin: &Origin) -> Result<(), NoConnection> {
        stream.write_all(self.request(origin).as_bytes()).await.map_err(|_| CLOSED)?;
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
                        _ => Err(self.refusal(origin, status, answer.headers)),
                    };
                }
                Ok(httparse::Status::Partial) if head.len() < MAX_HEAD => {}
                _ => return Err(NOT_HTTP),
            }
        }
    }

    /// Whose fault it is that the proxy makes no tunnel.
    fn refusal(&self, origin: &Origin, status: u16, headers: &[httparse::Header<'_>]) -> NoConnection {
        let value =
            |name: &str| headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|it| it.value);
        let squid = |cause: &[u8]| cause.starts_with(b"ERR_CONNECT_FAIL") || cause.starts_with(b"ERR_DNS_FAIL");
        match (status, value(SMOKESCREEN_REFUSAL)) {
            (403 | 407, Some(words)) => {
                // Only for operators: the words name the rule, and the address inside the operator's network.
                let words: String = String::from_utf8_lossy(words).chars().take(MOST_WORDS).collect();
                let (proxy, host) = (&self.proxy, &origin.host);
                tracing::info!(?proxy, %host, ?words, "the rules of the egress proxy do not allow a destination");
                forbidden(status)
            }
            (403, None) => forbidden(status),
            (407, None) => NO_ENTRY,
            (502 | 504, _) => unreached(status),
            (503, _) if value(SQUID_CAUSE).is_some_and(squid) => unreached(status),
            _ => FAULTY,
        }
    }
}

fn forbidden(status: u16) -> NoConnection {
    let text = format!("the rules of the egress proxy do not allow this destination ({status})");
    Unreachable::new(Failure::Forbidden, text).into()
}

fn unreached(status: u16) -> NoConnection {
    Unreachable::new(Failure::Connect, format!("the egress proxy could not reach the destination ({status})")).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_names_the_destination_and_authenticates() {
        let request = |proxy: &str, host: &str| {
            let origin = Origin { tls: true, host: Host::parse(host).unwrap(), port: 443, way: None };
            Tunnels::new(HttpProxy::parse(proxy).unwrap()).request(&origin)
        };
        assert_eq!(
            request("http://weir:p%40ss%3A@proxy.internal:3128", "[2606:4700::1]"),
            "CONNECT [2606:4700::1]:443 HTTP/1.1\r\nHost: [2606:4700::1]:443\r\n\
             Proxy-Authorization: Basic d2VpcjpwQHNzOg==\r\n\r\n"
        );
        assert_eq!(
            request("http://10.0.0.1", "a.example"),
            "CONNECT a.example:443 HTTP/1.1\r\nHost: a.example:443\r\n\r\n"
        );
    }
}
