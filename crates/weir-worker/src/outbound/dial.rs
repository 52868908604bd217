//! Dialling: DNS, policy, TCP and TLS, within one time limit.
//!
//! The address that the policy has checked is the address of the connection: there is no second resolution, so DNS
//! rebinding is not possible. Cached addresses are checked again at each dial. Proxy variables of the environment are
//! never read.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    sync::Arc,
    time::Duration,
};

use futures_util::stream::{FuturesUnordered, StreamExt};
use parking_lot::Mutex;
use rustls::pki_types::ServerName;
use tokio::{
    net::TcpStream,
    time::{Instant, sleep, timeout_at},
};
use url::Host;
use weir_core::{Clock, address::AddressPolicy, delivery::ConnectionDetails, outcome::Failure};

use super::{
    certificates::Certificates,
    egress_proxy::{self, Tunnels},
    fault::{NoConnection, Unreachable, connect_error, tls_error},
    names::{Names, SystemNames},
    origin::Origin,
    stream::{Dialled, Stream},
    target::Target,
    tls::TlsRoots,
    way::{Through, Ways},
};

/// How many addresses of one name are tried. With the delay between two of them, the last one is tried within a second.
const MAX_ADDRESSES: usize = 4;
/// The delay between two addresses of one name. Source: RFC 8305, section 5.
const STAGGER: Duration = Duration::from_millis(250);

#[derive(Clone)]
pub(super) struct Dialer {
    policy: AddressPolicy,
    pub(super) ways: Arc<Ways>,
    certificates: Certificates,
    pub(super) names: Arc<Names>,
    /// The time limit for DNS, TCP and TLS together.
    pub(super) budget: Duration,
}

/// The step that a dial has reached: where it hangs, if it takes too long.
#[derive(Clone)]
pub(super) struct DialStep(Arc<Mutex<Step>>);

#[derive(Clone)]
enum Step {
    /// The end of this step would be such a failure of the destination.
    Destination(Failure),
    /// The proxy is connected to.
    Proxy,
    /// The proxy was asked for a tunnel when it had given so many answers.
    Tunnel { tunnels: Arc<Tunnels>, answers: u64 },
}

impl Default for DialStep {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(Step::Destination(Failure::Connect))))
    }
}

impl DialStep {
    fn begin(&self, failure: Failure) {
        self.reach(Step::Destination(failure));
    }

    fn reach(&self, step: Step) {
        *self.0.lock() = step;
    }

    /// The error of a dial that has not ended within the limit.
    pub(super) fn too_late(&self, limit: Duration) -> NoConnection {
        match &*self.0.lock() {
            Step::Destination(failure) => too_late(*failure, limit).into(),
            Step::Proxy => egress_proxy::AWAY,
            // While others get answers, the proxy waits for the destination.
            Step::Tunnel { tunnels, answers } if tunnels.answers() > *answers => {
                too_late(Failure::Connect, limit).into()
            }
            Step::Tunnel { .. } => egress_proxy::SILENT,
        }
    }
}

impl Dialer {
    pub(super) fn new(policy: AddressPolicy, roots: TlsRoots, budget: Duration, clock: Arc<dyn Clock>) -> Self {
        let (names, certificates) = (Names::new(SystemNames::default()), Certificates::new(clock));
        Self { policy, ways: Arc::new(Ways::new(roots)), certificates, names, budget }
    }

    /// Checks everything about the target that the policy can decide without its addresses.
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

    pub(super) async fn dial(&self, origin: &Origin, step: &DialStep) -> Result<Dialled, NoConnection> {
        let began = Instant::now();
        let deadline = began + self.budget;
        let connecting = async {
            match self.ways.proxy(origin) {
                Some(through) => self.connect_through(through, origin, deadline, step).await,
                None => self.connect_directly(origin, deadline, step).await,
            }
        };
        let (stream, remote_address) =
            timeout_at(deadline, connecting).await.map_err(|_| step.too_late(self.budget))??;
        // Without it, Nagle's algorithm could delay a small request beyond its slot.
        stream.set_nodelay(true).map_err(|error| connect_error(&error))?;
        let details = ConnectionDetails { remote_address, connect_ms: Some(milliseconds(began)), tls_ms: None };
        if !origin.tls {
            return Ok(Dialled { stream: Stream::Plain(stream), details });
        }
        // The TLS handshake has what is left of the time limit.
        step.begin(Failure::Tls);
        let name = server_name(&origin.host)?;
        let (connector, identity) = self.ways.tls(origin)?;
        let connected = Instant::now();
        match timeout_at(deadline, connector.connect(name, stream)).await {
            Ok(Ok(stream)) => {
                if let Some((certificate, subject)) = identity.as_ref().and_then(|identity| identity.client.as_ref()) {
                    self.certificates.shown(&origin.host.to_string(), subject, certificate);
                }
                if let Some(certificate) = stream.get_ref().1.peer_certificates().and_then(<[_]>::first) {
                    self.certificates.seen(&origin.host.to_string(), certificate);
                }
                let details = ConnectionDetails { tls_ms: Some(milliseconds(connected)), ..details };
                Ok(Dialled { stream: Stream::Tls(Box::new(stream)), details })
            }
            Ok(Err(error)) => Err(tls_error(&error, &origin.host.to_string()).into()),
            Err(_) => Err(step.too_late(self.budget)),
        }
    }

    async fn connect_directly(
        &self,
        origin: &Origin,
        deadline: Instant,
        step: &DialStep,
    ) -> Result<(TcpStream, SocketAddr), NoConnection> {
        // Only addresses that the policy has checked are dialled.
        step.begin(Failure::Dns);
        let addresses = self.allowed(origin, deadline).await?;
        step.begin(Failure::Connect);
        connect_any(&addresses).await
    }

    /// A tunnel to the origin. The address is the proxy's.
    async fn connect_through(
        &self,
        through: Through,
        origin: &Origin,
        deadline: Instant,
        step: &DialStep,
    ) -> Result<(TcpStream, SocketAddr), NoConnection> {
        if let Host::Ipv4(_) | Host::Ipv6(_) = origin.host {
            self.allowed(origin, deadline).await?;
        }
        step.reach(Step::Proxy);
        let (Through::Installation(tunnels) | Through::Own(tunnels)) = &through;
        let (host, port) = tunnels.proxy_address().ok_or(egress_proxy::AWAY)?;
        let mut found = self.resolve(&host, deadline).await.map_err(|_| egress_proxy::AWAY)?;
        if let Through::Own(_) = through {
            found.retain(|address| self.policy.allows_proxy(&host, *address));
            if found.is_empty() {
                let text = "the proxy of the destination has no address that may be connected to";
                return Err(Unreachable::new(Failure::Forbidden, text).into());
            }
        }
        interleave(&mut found);
        let addresses: Vec<_> =
            found.into_iter().take(MAX_ADDRESSES).map(|address| SocketAddr::new(address, port)).collect();
        let (mut stream, address) = connect_any(&addresses).await.map_err(|failed| match failed {
            NoConnection::Exhausted(_) => failed,
            NoConnection::Unreachable(_) => egress_proxy::AWAY,
        })?;
        step.reach(Step::Tunnel { tunnels: tunnels.clone(), answers: tunnels.answers() });
        tunnels.open(&mut stream, origin).await?;
        Ok((stream, address))
    }

    /// The addresses of the origin that the policy allows; at least one.
    async fn allowed(&self, origin: &Origin, deadline: Instant) -> Result<Vec<SocketAddr>, NoConnection> {
        Ok(self.filtered(&self.resolve(&origin.host, deadline).await?, origin)?)
    }

    async fn resolve(&self, host: &Host<String>, deadline: Instant) -> Result<Vec<IpAddr>, NoConnection> {
        match host {
            Host::Ipv4(v4) => Ok([IpAddr::V4(*v4)].into()),
            Host::Ipv6(v6) => Ok([IpAddr::V6(*v6)].into()),
            Host::Domain(name) => match timeout_at(deadline, self.names.addresses(name)).await {
                Ok(found) => found.map(|found| found.to_vec()).map_err(|failure| failure.into_error(name)),
                Err(_) => Err(too_late(Failure::Dns, self.budget).into()),
            },
        }
    }

    fn filtered(&self, found: &[IpAddr], origin: &Origin) -> Result<Vec<SocketAddr>, Unreachable> {
        let mut allowed: Vec<IpAddr> = found.iter().copied().filter(|address| self.policy.allows(*address)).collect();
        if allowed.is_empty() {
            // The error does not contain the address: how a name resolves inside the operator's network is private.
            let text = format!("{} has no address that may be sent to", origin.host);
            return Err(Unreachable::new(Failure::Forbidden, text));
        }
        interleave(&mut allowed);
        allowed.truncate(MAX_ADDRESSES);
        Ok(allowed.into_iter().map(|address| SocketAddr::new(address, origin.port)).collect())
    }
}

fn too_late(failure: Failure, limit: Duration) -> Unreachable {
    let what = match failure {
        Failure::Dns => "the name was not resolved",
        Failure::Tls => "the TLS handshake did not end",
        _ => "no connection was made",
    };
    Unreachable::new(failure, format!("{what} within {} ms", limit.as_millis()))
}

/// Alternates between the two address families, starting with the family of the first address, so the second try
/// reaches a host with one broken family. Source: RFC 8305, section 4.
fn interleave(addresses: &mut Vec<IpAddr>) {
    let Some(first) = addresses.first() else { return };
    let first_is_v4 = first.is_ipv4();
    let (mut a, mut b): (Vec<_>, Vec<_>) = addresses.drain(..).partition(|address| address.is_ipv4() == first_is_v4);
    let (mut a, mut b) = (a.drain(..), b.drain(..));
    loop {
        let pair = [a.next(), b.next()];
        if pair == [None, None] {
            return;
        }
        addresses.extend(pair.into_iter().flatten());
    }
}

/// Returns the first connection that is established. The next address is tried when one fails or does not answer for
/// [`STAGGER`].
async fn connect_any(addresses: &[SocketAddr]) -> Result<(TcpStream, SocketAddr), NoConnection> {
    let mut untried = addresses.iter();
    let mut connecting = FuturesUnordered::new();
    let mut last_error = None;
    loop {
        // Try the next address. When none is left and no connection is under way, the dial has failed.
        match untried.next() {
            Some(&address) => connecting.push(connect(address)),
            None if connecting.is_empty() => {
                let error = last_error.unwrap_or_else(|| io::Error::from(io::ErrorKind::AddrNotAvailable));
                return Err(connect_error(&error).into());
            }
            None => {}
        }
        // Ends when the next address is to be tried; never, if there is none.
        let next_try = async {
            if untried.len() == 0 {
                std::future::pending::<()>().await;
            }
            sleep(STAGGER).await;
        };
        // The first connection wins; the others are dropped. After an error or the delay, the next address is tried.
        tokio::select! {
            Some(connected) = connecting.next() => match connected {
                Ok(connected) => return Ok(connected),
                Err((address, error)) => match NoConnection::exhausted(&error) {
                    // The other addresses would fail in the same way.
                    Some(exhausted) if has_route_to(address) => return Err(exhausted),
                    _ => last_error = Some(error),
                },
            },
            () = next_try => {}
        }
    }
}

async fn connect(address: SocketAddr) -> Result<(TcpStream, SocketAddr), (SocketAddr, io::Error)> {
    match TcpStream::connect(address).await {
        Ok(stream) => Ok((stream, address)),
        Err(error) => Err((address, error)),
    }
}

/// Whole milliseconds since an instant. The budget of a dial bounds them.
fn milliseconds(since: Instant) -> u32 {
    since.elapsed().as_millis() as u32
}

/// Whether the machine has a local address and a route to this address. No packet is sent: connecting a datagram socket
/// only selects the route, and uses no TCP port. If the lack of resources prevents even that socket, the answer is
/// `true`.
fn has_route_to(address: SocketAddr) -> bool {
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
        // A certificate names a host without the final dot.
        Host::Domain(name) => ServerName::try_from(name.trim_end_matches('.').to_owned())
            .map_err(|_| Unreachable::new(Failure::Tls, format!("{name} is not a name a certificate could be for"))),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::fixed_clock::FixedClock, *};

    fn ips(text: &str) -> Vec<IpAddr> {
        text.split_whitespace().map(|ip| ip.parse().unwrap()).collect()
    }

    #[test]
    fn address_families_alternate() {
        let mut addresses = ips("2001:4860::1 2001:4860::2 2001:4860::3 8.8.8.8 8.8.4.4");
        interleave(&mut addresses);
        assert_eq!(addresses, ips("2001:4860::1 8.8.8.8 2001:4860::2 8.8.4.4 2001:4860::3"));
    }

    #[test]
    fn only_the_allowed_addresses_of_a_name_are_dialled() {
        let dialer =
            Dialer::new(AddressPolicy::default(), TlsRoots::none(), Duration::from_secs(1), Arc::new(FixedClock));
        let origin = Origin { tls: true, host: Host::Domain("mixed.example".into()), port: 443, way: None };
        let kept = dialer.filtered(&ips("127.0.0.1 8.8.8.8 169.254.169.254 fd00::1 ::ffff:10.0.0.1"), &origin);
        assert_eq!(kept, Ok(vec!["8.8.8.8:443".parse().unwrap()]));
        let none = dialer.filtered(&ips("127.0.0.1 ::1"), &origin).unwrap_err();
        assert_eq!(none.failure, Failure::Forbidden);
        assert_eq!(none.error, "mixed.example has no address that may be sent to");
        assert_eq!(dialer.filtered(&ips("1.1.1.1 1.1.1.2 1.1.1.3 1.1.1.4 1.1.1.5"), &origin).unwrap().len(), 4);
    }

    #[test]
    fn an_address_with_a_route_is_distinguished_from_one_without() {
        assert!(has_route_to(([127, 0, 0, 1], 80).into()));
        // A datagram socket without SO_BROADCAST cannot connect to the broadcast address.
        assert!(!has_route_to(([255, 255, 255, 255], 80).into()));
    }
}
