//! Making a connection: DNS, policy, TCP, TLS, all within one budget.
//!
//! The address that was judged is the address that is connected to: there is no second resolution between the two, so a
//! name that changes its mind (DNS rebinding) gains nothing, and what is kept of a name is judged anew each time. Proxy variables of the environment are never read.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use rustls::pki_types::ServerName;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout_at},
};
use tokio_rustls::TlsConnector;
use url::Host;
use weir_core::{address::AddressPolicy, outcome::Failure};

use super::{
    fault::{NoConnection, Unreachable, connect_error, tls_error},
    names::{Names, SystemNames},
    stream::Stream,
    target::{Origin, Target},
    tls::{TlsRoots, connector},
};

/// The addresses of one name that are tried.
const MAX_ADDRESSES: usize = 4;
/// How long the next address waits for the one before. Source: RFC 8305, section 5.
const STAGGER: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub(super) struct Dialer {
    policy: AddressPolicy,
    tls: TlsConnector,
    pub(super) names: Arc<Names>,
    /// For DNS, TCP and TLS together.
    pub(super) budget: Duration,
}

impl Dialer {
    pub(super) fn new(policy: AddressPolicy, roots: TlsRoots, budget: Duration) -> Self {
        Self { policy, tls: connector(roots), names: Names::new(SystemNames::default()), budget }
    }

    /// Whether the target is one that anything may be sent to, as far as can be said without its addresses.
    pub(super) fn check(&self, target: &Target) -> Result<(), Unreachable> {
        if let Some(reason) = target.refusal() {
            return Err(Unreachable::new(Failure::Forbidden, reason));
        }
        if !target.origin().tls && !self.policy.allow_http {
            return Err(Unreachable::new(Failure::Forbidden, "plain http is not allowed"));
        }
        if !self.policy.allows_port(target.origin().port) {
            return Err(Unreachable::new(Failure::Forbidden, "the port is not allowed"));
        }
        Ok(())
    }

    pub(super) async fn dial(&self, origin: &Origin) -> Result<Stream, NoConnection> {
        let deadline = Instant::now() + self.budget;
        let addresses = self.permitted(origin, deadline).await?;
        let stream = timeout_at(deadline, connect_any(&addresses)).await.map_err(|_| self.late(Failure::Connect))??;
        // Without it a small request could wait for the acknowledgement of the one before, beyond its slot.
        stream.set_nodelay(true).map_err(|error| connect_error(&error))?;
        if !origin.tls {
            return Ok(Stream::Plain(stream));
        }
        let name = server_name(&origin.host)?;
        match timeout_at(deadline, self.tls.connect(name, stream)).await {
            Ok(Ok(stream)) => Ok(Stream::Tls(Box::new(stream))),
            Ok(Err(error)) => Err(tls_error(&error, &origin.host.to_string()).into()),
            Err(_) => Err(self.late(Failure::Tls).into()),
        }
    }

    /// The addresses of the origin that the policy permits; never none.
    async fn permitted(&self, origin: &Origin, deadline: Instant) -> Result<Vec<SocketAddr>, NoConnection> {
        let found = match &origin.host {
            Host::Ipv4(v4) => [IpAddr::V4(*v4)].into(),
            Host::Ipv6(v6) => [IpAddr::V6(*v6)].into(),
            Host::Domain(name) => match timeout_at(deadline, self.names.addresses(name)).await {
                Ok(found) => found.map_err(|failure| failure.of(name))?,
                Err(_) => return Err(self.late(Failure::Dns).into()),
            },
        };
        Ok(self.filtered(&found, origin)?)
    }

    fn filtered(&self, found: &[IpAddr], origin: &Origin) -> Result<Vec<SocketAddr>, Unreachable> {
        let mut permitted: Vec<IpAddr> = found.iter().copied().filter(|address| self.policy.allows(*address)).collect();
        if permitted.is_empty() {
            // The address itself stays unsaid: what a name resolves to inside the operator's network is the operator's.
            let text = format!("{} has no address that may be sent to", origin.host);
            return Err(Unreachable::new(Failure::Forbidden, text));
        }
        interleave(&mut permitted);
        permitted.truncate(MAX_ADDRESSES);
        Ok(permitted.into_iter().map(|address| SocketAddr::new(address, origin.port)).collect())
    }

    pub(super) fn late(&self, failure: Failure) -> Unreachable {
        let what = match failure {
            Failure::Dns => "the name was not resolved",
            Failure::Tls => "the TLS handshake did not end",
            _ => "no connection was made",
        };
        Unreachable::new(failure, format!("{what} within {} ms", self.budget.as_millis()))
    }
}

/// Takes turns between the two families, beginning with the first one's, so that a host with one family broken is reached by
/// the second try. Source: RFC 8305, section 4.
fn interleave(addresses: &mut Vec<IpAddr>) {
    let Some(first) = addresses.first() else { return };
    let of_first = first.is_ipv4();
    let (mut a, mut b): (Vec<_>, Vec<_>) = addresses.drain(..).partition(|address| address.is_ipv4() == of_first);
    let (mut a, mut b) = (a.drain(..), b.drain(..));
    loop {
        let pair = [a.next(), b.next()];
        if pair == [None, None] {
            return;
        }
        addresses.extend(pair.into_iter().flatten());
    }
}

/// The first connection that stands. The next address is tried when one fails or keeps silent for [`STAGGER`].
async fn connect_any(addresses: &[SocketAddr]) -> Result<TcpStream, NoConnection> {
    let mut waiting = addresses.iter();
    let mut trying = FuturesUnordered::new();
    let mut last_error = None;
    loop {
        match waiting.next() {
            Some(&address) => trying.push(connect(address)),
            None if trying.is_empty() => {
                let error = last_error.unwrap_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable));
                return Err(connect_error(&error).into());
            }
            None => {}
        }
        let next_try = async {
            if waiting.len() == 0 {
                std::future::pending::<()>().await;
            }
            sleep(STAGGER).await;
        };
        tokio::select! {
            Some(connected) = trying.next() => match connected {
                Ok(stream) => return Ok(stream),
                Err((address, error)) => match NoConnection::exhausted(&error) {
                    // The other addresses would find no more.
                    Some(exhausted) if leads_out(address) => return Err(exhausted),
                    _ => last_error = Some(error),
                },
            },
            () = next_try => {}
        }
    }
}

async fn connect(address: SocketAddr) -> Result<TcpStream, (SocketAddr, io::Error)> {
    TcpStream::connect(address).await.map_err(|error| (address, error))
}

/// Whether the machine has an address of its own that leads to this one. No packet leaves: a datagram socket is only told where it
/// would send to, and that takes no port of TCP's. What it fails for else is the same shortage.
fn leads_out(address: SocketAddr) -> bool {
    let unspecified: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    match UdpSocket::bind((unspecified, 0)) {
        Ok(socket) => socket.connect(address).is_ok(),
        Err(error) => NoConnection::exhausted(&error).is_some(),
    }
}

fn server_name(host: &Host<String>) -> Result<ServerName<'static>, Unreachable> {
    match host {
        Host::Ipv4(v4) => Ok(ServerName::IpAddress(IpAddr::V4(*v4).into())),
        Host::Ipv6(v6) => Ok(ServerName::IpAddress(IpAddr::V6(*v6).into())),
        // A certificate names a host without the root's dot.
        Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned())
            .map_err(|_| Unreachable::new(Failure::Tls, format!("{name} is not a name a certificate could be for"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn the_families_take_turns() {
        let mut addresses = ips("2001:4860::1 2001:4860::2 2001:4860::3 8.8.8.8 8.8.4.4");
        interleave(&mut addresses);
        assert_eq!(addresses, ips("2001:4860::1 8.8.8.8 2001:4860::2 8.8.4.4 2001:4860::3"));
    }

    #[test]
    fn a_name_is_connected_to_by_its_permitted_addresses_only() {
        let dialer = Dialer::new(AddressPolicy::default(), TlsRoots::none(), Duration::from_secs(1));
        let origin = Origin { tls: true, host: Host::Domain("mixed.example".into()), port: 443 };
        let kept = dialer.filtered(&ips("127.0.0.1 8.8.8.8 169.254.169.254 fd00::1 ::ffff:10.0.0.1"), &origin);
        assert_eq!(kept, Ok(vec!["8.8.8.8:443".parse().unwrap()]));
        let none = dialer.filtered(&ips("127.0.0.1 ::1"), &origin).unwrap_err();
        assert_eq!(none.failure, Failure::Forbidden);
        assert_eq!(none.error, "mixed.example has no address that may be sent to");
        assert_eq!(dialer.filtered(&ips("1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4 1.1.1.5"), &origin).unwrap().len(), 4);
    }

    #[test]
    fn an_address_that_this_machine_leads_to_is_told_from_one_that_it_does_not() {
        assert!(leads_out(([127, 0, 0, 1], 80).into()));
        // Broadcast is refused to a datagram socket that has not asked for it.
        assert!(!leads_out(([255, 255, 255, 255], 80).into()));
    }
}
