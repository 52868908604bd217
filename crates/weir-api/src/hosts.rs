//! Which hosts the server answers for.
//!
//! A web page can have its own name resolve to 127.0.0.1 and then ask what listens there as if it were its own server (DNS
//! rebinding). The browser still sends the page's name as `Host`, so a request is answered only for loopback hosts and for those
//! the operator named. Ports are not compared: the page's port says nothing.

use std::{net::IpAddr, sync::Arc};

use axum::{
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse, Response},
};
use http::{Version, header};
use url::Host;

use crate::problem::{Kind, Problem};

/// The hosts that requests may name.
#[derive(Debug, Clone, Default)]
pub struct Hosts {
    configured: Vec<Host<String>>,
    any_for_probes: bool,
}

impl Hosts {
    /// Loopback, and these.
    pub fn new(configured: impl IntoIterator<Item = Host<String>>) -> Self {
        Self { configured: configured.into_iter().collect(), any_for_probes: false }
    }

    /// Lets requests for health and metrics name any host. For servers that listen beyond loopback: whoever reaches such a port may
    /// ask for them anyway, and the probes of an orchestrator name the address of the moment.
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
            Some(host) if self.answers_for(host) => Ok(()),
            Some(_) => Err(Problem::new(
                Kind::Misdirected,
                format!(
                    "this server does not answer for `{authority}`; to have it do so, name the host in `WEIR_HOSTS`"
                ),
            )),
            None => Err(Problem::new(Kind::NoHost, "the host that the request names is none")),
        }
    }

    fn answers_for(&self, host: NamedHost<'_>) -> bool {
        host.is_loopback() || self.configured.iter().any(|configured| host.is(configured))
    }
}

/// What every request to a process without the API passes.
pub(crate) async fn check(State(hosts): State<Arc<Hosts>>, request: Request, next: Next) -> Response {
    match hosts.admit(&request) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// What the request is for: the target's own authority (`GET http://host/path`) wins over the header. Without any, HTTP/1.1 is broken,
/// and HTTP/1.0 names no host that is answered for. Source: RFC 9112, sections 3.2 and 3.2.2.
fn authority(request: &Request) -> Result<&str, Problem> {
    let mut headers = request.headers().get_all(header::HOST).iter();
    let given = match (headers.next(), headers.next()) {
        (Some(only), None) => only.to_str().map_err(|_| Problem::new(Kind::NoHost, "the `Host` header is not text"))?,
        (None, _) if request.version() < Version::HTTP_11 => "",
        (None, _) => return Err(Problem::new(Kind::NoHost, "the `Host` header is missing")),
        (Some(_), Some(_)) => return Err(Problem::new(Kind::NoHost, "there are several `Host` headers")),
    };
    Ok(request.uri().authority().map_or(given, |authority| authority.as_str()))
}

/// A host as a request names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NamedHost<'a> {
    Address(IpAddr),
    Name(&'a str),
}

impl<'a> NamedHost<'a> {
    /// The host of `host[:port]`; an empty one is a name that nobody answers for.
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

    /// The status of the refusal; 200 for none.
    fn admitted(hosts: &Hosts, request: http::request::Builder) -> u16 {
        let admitted = hosts.admit(&request.body(Body::empty()).unwrap());
        admitted.map_or_else(|problem| problem.into_response().status().as_u16(), |()| 200)
    }

    fn named(host: &str) -> http::request::Builder {
        Request::get("/v1/events").header("host", host)
    }

    #[test]
    fn loopback_hosts_are_answered_for_whatever_the_port() {
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
    fn other_hosts_are_not_unless_they_are_configured() {
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
    fn what_is_no_host_is_refused() {
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
    fn the_target_wins_over_the_header() {
        let to = |target: &str| Request::get(target).header("host", "localhost");
        assert_eq!(admitted(&hosts(), to("http://evil.test:8080/v1/events")), 421);
        assert_eq!(admitted(&hosts(), to("http://me@localhost/v1/events")), 400);
        assert_eq!(admitted(&hosts(), Request::get("http://localhost/").header("host", "evil.test")), 200);
        assert_eq!(admitted(&hosts(), Request::get("http://localhost/")), 400);
        assert_eq!(admitted(&hosts(), Request::get("http://localhost/").version(Version::HTTP_10)), 200);
    }

    #[test]
    fn probes_may_name_any_host_where_the_server_listens_beyond_loopback() {
        let beyond = hosts().any_for_probes(true);
        for path in ["/healthz", "/readyz", "/metrics"] {
            let probe = || Request::get(path).header("host", "10.1.2.3:8080");
            assert_eq!((admitted(&beyond, probe()), admitted(&hosts(), probe())), (200, 421), "{path}");
        }
        assert_eq!(admitted(&beyond, named("10.1.2.3")), 421);
    }
}
