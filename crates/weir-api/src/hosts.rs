//! The hosts that the server serves.
//!
//! A web page can let its own name resolve to 127.0.0.1 and then send requests to the server on loopback as if it were
//! the page's own server (DNS rebinding). The browser still sends the page's name as `Host`. So the server answers only
//! requests that name a loopback host or a configured host. Ports are not compared, because the page chooses its port.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{Version, header};
use url::Host;

use crate::{
    problem::{Problem, ProblemKind},
    request_id::RequestId,
};

/// The hosts that requests may address.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    configured: Vec<Host<String>>,
    any_for_probes: bool,
}

impl Hosts {
    /// Loopback hosts and the configured ones.
    pub fn new(configured: impl IntoIterator<Item = Host<String>>) -> Self {
        Self { configured: configured.into_iter().collect(), any_for_probes: false }
    }

    /// Lets requests for health and metrics name any host. This is for servers that listen beyond loopback: such
    /// requests need no protection there, and the probes of an orchestrator use changing addresses.
    pub fn any_for_probes(self, any_for_probes: bool) -> Self {
        Self { any_for_probes, ..self }
    }

    /// Refuses a request that does not name one of the hosts.
    pub(crate) fn admit(&self, request: &Request) -> Result<(), Problem> {
        if self.any_for_probes && ["/healthz", "/readyz", "/metrics"].contains(&request.uri().path()) {
            return Ok(());
        }
        let authority = authority(request)?;
        match NamedHost::parse(authority) {
            Some(host) if self.serves(host) => Ok(()),
            Some(_) => Err(Problem::new(
                ProblemKind::Misdirected,
                format!("this server does not serve the host `{authority}`; to serve it, add the host to `WEIR_HOSTS`"),
            )),
            None => Err(Problem::new(ProblemKind::NoHost, "the host of the request is not valid")),
        }
    }

    fn serves(&self, host: NamedHost<'_>) -> bool {
        host.is_loopback() || self.configured.iter().any(|configured| host.is(configured))
    }
}

/// The middleware of a process without the API: gives each request an id, and checks the host.
pub(crate) async fn check(State(hosts): State<Arc<Hosts>>, mut request: Request, next: Next) -> Response {
    let request_id = RequestId::give(&mut request);
    let path = request.uri().path().to_owned();
    let response = match hosts.admit(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    };
    request_id.answer(response, &path)
}

/// The authority that the request addresses. An authority in the target (`GET http://host/path`) overrides the header.
/// A request without a `Host` header is invalid in HTTP/1.1; in HTTP/1.0 it names no served host. Source: RFC 9112,
/// sections 3.2 and 3.2.2.
fn authority(request: &Request) -> Result<&str, Problem> {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let header = match (headers.next(), headers.next()) {
        (Some(only), None) => {
            only.to_str().map_err(|_| Problem::new(ProblemKind::NoHost, "the `Host` header is not text"))?
        }
        (None, _) if request.version() < Version::HTTP_11 => "",
        (None, _) => return Err(Problem::new(ProblemKind::NoHost, "the `Host` header is missing")),
        (Some(_), Some(_)) => return Err(Problem::new(ProblemKind::NoHost, "there are several `Host` headers")),
    };
    Ok(request.uri().authority().map_or(header, |authority| authority.as_str()))
}

/// The host of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamedHost<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl<'a> NamedHost<'a> {
    /// The host of `host[:port]`. An empty host is a name that no server serves.
    fn parse(authority: &'a str) -> Option<Self> {
        let (host, port) = match authority.strip_prefix('[') {
            Some(rest) => {
                let (v6, port) = rest.split_once(']')?;
                (Self::Address(IpAddr::V6(v6.parse().ok()?)), port)
            }
            None => {
                let (host, port) = authority.split_at(authority.find(':').unwrap_or(authority.len()));
                let is_name = host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
                let name = is_name.then(|| Self::Name(host.strip_suffix('.').unwrap_or(host)))?;
                (host.parse().map_or(name, |v4| Self::Address(IpAddr::V4(v4))), port)
            }
        };
        let is_port =
            |port: &str| port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        (port.is_empty() || is_port(port)).then_some(host)
    }

    fn is_loopback(self) -> bool {
        match self {
            Self::Address(address) => address.to_canonical().is_loopback(),
            Self::Name(name) => name.eq_ignore_ascii_case("localhost"),
        }
    }

    fn is(self, host: &Host<String>) -> bool {
        match (self, host) {
            (Self::Name(name), Host::Domain(domain)) => name.eq_ignore_ascii_case(domain.trim_end_matches('.')),
            (Self::Address(IpAddr::V4(address)), Host::Ipv4(v4)) => address == *v4,
            (Self::Address(IpAddr::V6(address)), Host::Ipv6(v6)) => address == *v6,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;

    use super::*;

    fn hosts() -> Hosts {
        Hosts::new(["weir.example.com", "10.0.0.5", "[fd00::1]"].map(|host| Host::parse(host).unwrap()))
    }

    /// The status of the refusal, or 200.
    fn admitted(hosts: &Hosts, request: http::request::Builder) -> u16 {
        let admitted = hosts.admit(&request.body(Body::empty()).unwrap());
        admitted.map_or_else(|problem| problem.into_response().status().as_u16(), |()| 200)
    }

    fn named(host: &str) -> http::request::Builder {
        Request::get("/v1/events").header("host", host)
    }

    #[test]
    fn loopback_hosts_are_served_on_any_port() {
        for host in [
            "localhost",
            "localhost:8080",
            "LocalHost",
            "localhost.",
            "127.0.0.1",
            "127.0.0.1:8080",
            "127.9.9.9:1",
            "[::1]",
            "[::1]:8080",
            "[0:0:0:0:0:0:0:1]",
            "[::ffff:127.0.0.1]:80",
            "localhost:",
        ] {
            assert_eq!(admitted(&Hosts::default(), named(host)), 200, "{host}");
        }
    }

    #[test]
    fn other_hosts_are_served_only_if_they_are_configured() {
        for host in
            ["weir.example.com", "Weir.Example.COM.:443", "10.0.0.5:8080", "[fd00::1]", "[fd00::1]:80", "localhost"]
        {
            assert_eq!(admitted(&hosts(), named(host)), 200, "{host}");
        }
        for host in [
            "evil.test:8080",
            "evil.test",
            "example.com",
            "x.weir.example.com",
            "localhost.evil.test",
            "127.0.0.1.evil.test",
            "evil-localhost",
            "10.0.0.6",
            "[fd00::2]",
            "128.0.0.1",
            "0.0.0.0",
            "[::]",
            "2130706433",
            "",
        ] {
            assert_eq!(admitted(&hosts(), named(host)), 421, "{host}");
            assert_eq!(admitted(&Hosts::default(), named(host)), 421, "{host}");
        }
    }

    #[test]
    fn an_invalid_or_missing_host_is_refused() {
        for host in [
            "me@localhost",
            "localhost:80:80",
            "localhost:x",
            "::1",
            "[::1",
            "[::1]x",
            "[localhost]",
            "a b",
            "local/host",
        ] {
            assert_eq!(admitted(&hosts(), named(host)), 400, "{host}");
        }
        assert_eq!(admitted(&hosts(), Request::get("/")), 400);
        assert_eq!(admitted(&hosts(), Request::get("/").version(Version::HTTP_10)), 421);
        assert_eq!(admitted(&hosts(), named("localhost").header("host", "localhost")), 400);
    }

    #[test]
    fn the_target_overrides_the_header() {
        let to = |target: &str| Request::get(target).header("host", "localhost");
        assert_eq!(admitted(&hosts(), to("http://evil.test:8080/v1/events")), 421);
        assert_eq!(admitted(&hosts(), to("http://me@localhost/v1/events")), 400);
        assert_eq!(admitted(&hosts(), Request::get("http://localhost/").header("host", "evil.test")), 200);
        assert_eq!(admitted(&hosts(), Request::get("http://localhost/")), 400);
        assert_eq!(admitted(&hosts(), Request::get("http://localhost/").version(Version::HTTP_10)), 200);
    }

    #[test]
    fn probes_may_name_any_host_if_the_server_listens_beyond_loopback() {
        let beyond = hosts().any_for_probes(true);
        for path in ["/healthz", "/readyz", "/metrics"] {
            let probe = || Request::get(path).header("host", "10.1.2.3:8080");
            assert_eq!((admitted(&beyond, probe()), admitted(&hosts(), probe())), (200, 421), "{path}");
        }
        assert_eq!(admitted(&beyond, named("10.1.2.3")), 421);
    }
}
