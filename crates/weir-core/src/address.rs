//! Which addresses Weir may send to, so that a destination's URL cannot reach into the operator's network.
//!
//! [`AddressPolicy::check_url`] checks a destination's URL when it is stored, without DNS; it gives an early error.
//! [`AddressPolicy::check`] checks every address after DNS, just before a connection is made; it is the protection. An
//! address that embeds an IPv4 address (IPv4-mapped, IPv4-compatible, NAT64) is judged by the embedded address. A
//! denied network is denied in every notation, even if another rule allows it.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::RangeInclusive,
};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use url::{Host, Url};

use crate::egress::{HostPattern, HttpProxy};

/// The addresses that destinations may have: public addresses over https, with the exceptions and denials that the
/// operator sets.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AddressPolicy {
    /// Whether plain http is allowed.
    pub allow_http: bool,
    /// Networks that are allowed although their range is refused by default. An IPv4-mapped address belongs to the IPv4
    /// networks.
    pub allow_networks: Vec<IpNet>,
    /// Networks to which nothing is sent, public ones included. They take precedence over `allow_networks`.
    pub deny_networks: Vec<IpNet>,
    /// The allowed ports; empty: every port. Every port is the default, because receivers choose their ports freely,
    /// and internal services are in networks that are refused already.
    pub allow_ports: Vec<RangeInclusive<u16>>,
    /// Proxies that destinations may name although their addresses are refused. A denied network is denied to them too.
    pub allow_proxies: Vec<HostPattern>,
}

/// Why a URL or an address is refused. The text says which setting would allow it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AddressRefusal {
    #[error("must be an https URL; to permit plain http, start Weir with `--allow-http`")]
    PlainHttp,
    #[error("must be an {allowed} URL, not `{scheme}:`")]
    Scheme { allowed: &'static str, scheme: String },
    #[error("must name a host")]
    NoHost,
    #[error("`{0}` is not the name of a host: names have letters, digits, `-` and `_`, at most 63 between two dots")]
    NoHostName(String),
    #[error("must not contain a user name or password; send credentials in one of the destination's `headers`")]
    UserInfo,
    #[error("must not name port 0")]
    PortZero,
    #[error("names port {0}, which is not an allowed port; to permit it, add it to `--allow-ports`")]
    Port(u16),
    #[error("`{0}` is this machine; to permit it, start Weir with `--allow-networks 127.0.0.0/8,::1/128`")]
    Localhost(String),
    #[error("{address} is refused ({range}); to permit it, start Weir with `--allow-networks {network}`")]
    Address { address: IpAddr, range: &'static str, network: IpNet },
    // The text does not name the network: the operator's denied networks are not disclosed.
    #[error("{0} is denied by Weir's operator (`--deny-networks`)")]
    Denied(IpAddr),
}

impl AddressPolicy {
    /// Whether a connection to this address may be made.
    pub fn allows(&self, address: IpAddr) -> bool {
        self.check(address).is_ok()
    }

    /// Like [`AddressPolicy::allows`], with the reason of a refusal.
    pub fn check(&self, address: IpAddr) -> Result<(), AddressRefusal> {
        // The address to which a socket connects: `::ffff:10.0.0.1` is `10.0.0.1`.
        let address = address.to_canonical();
        // A denial counts before every exception.
        if self.denies(address) {
            return Err(AddressRefusal::Denied(address));
        }
        if self.allow_networks.iter().any(|network| network.contains(&address)) {
            return Ok(());
        }
        // An embedded IPv4 address is judged itself, because traffic ends there. Other addresses are judged by their
        // range.
        let refused = match address {
            IpAddr::V4(v4) => v4_range(v4).map(|(network, range)| (IpNet::V4(network), range)),
            IpAddr::V6(v6) => match embedded_v4(v6) {
                Some(v4) => return self.check(IpAddr::V4(v4)),
                None => v6_range(v6).map(|(network, range)| (IpNet::V6(network), range)),
            },
        };
        match refused {
            Some((network, range)) => Err(AddressRefusal::Address { address, range, network }),
            None => Ok(()),
        }
    }

    /// Whether a connection to this port may be made.
    pub fn allows_port(&self, port: u16) -> bool {
        self.allow_ports.is_empty() || self.allow_ports.iter().any(|ports| ports.contains(&port))
    }

    /// Whether a connection to a proxy that a destination names may be made: the host as the setting has it, and the
    /// address of this connection. The port is free, because proxies have their own.
    pub fn allows_proxy<S: AsRef<str>>(&self, host: &Host<S>, address: IpAddr) -> bool {
        let is_exempt = |proxy: &HostPattern| proxy.contains(host) || proxy.has_address(address);
        let is_denied = self.denies(address.to_canonical());
        !is_denied && self.allow_proxies.iter().any(is_exempt) || self.allows(address)
    }

    /// Checks the proxy of a destination as far as possible without DNS.
    pub fn check_proxy(&self, proxy: &HttpProxy) -> Result<(), String> {
        let Some(host) = proxy.host() else { return Ok(()) };
        let literal = match host {
            Host::Ipv4(v4) => IpAddr::V4(v4),
            Host::Ipv6(v6) => IpAddr::V6(v6),
            Host::Domain(name) if is_localhost(name) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Host::Domain(_) => return Ok(()),
        };
        if self.allows_proxy(&host, literal) {
            return Ok(());
        }
        Err(format!("is refused: {host} is no public address; to permit it, start Weir with `--egress-allow {host}`"))
    }

    /// Whether a canonical address or the IPv4 address that it embeds is denied: NAT64 must not circumvent a denial.
    fn denies(&self, address: IpAddr) -> bool {
        let embedded = match address {
            IpAddr::V4(_) => None,
            IpAddr::V6(v6) => embedded_v4(v6).map(IpAddr::V4),
        };
        let is_in = |address: &IpAddr| self.deny_networks.iter().any(|network| network.contains(address));
        is_in(&address) || embedded.as_ref().is_some_and(is_in)
    }

    /// Checks a destination's URL as far as possible without DNS.
    pub fn check_url(&self, url: &Url) -> Result<(), AddressRefusal> {
        // Https always; plain http only if the operator allows it.
        match url.scheme() {
            "https" => {}
            "http" if self.allow_http => {}
            "http" => return Err(AddressRefusal::PlainHttp),
            other => {
                let allowed = if self.allow_http { "http or https" } else { "https" };
                return Err(AddressRefusal::Scheme { allowed, scheme: other.to_owned() });
            }
        }
        let host = url.host().ok_or(AddressRefusal::NoHost)?;
        // Credentials belong in the destination's headers, and no receiver can listen on port 0.
        if !url.username().is_empty() || url.password().is_some() {
            return Err(AddressRefusal::UserInfo);
        }
        if url.port() == Some(0) {
            return Err(AddressRefusal::PortZero);
        }
        // A URL without a port has the default port of its scheme.
        if let Some(port) = url.port_or_known_default()
            && !self.allows_port(port)
        {
            return Err(AddressRefusal::Port(port));
        }
        // Only an address can be judged without DNS. The addresses of a name are checked before each connection, so
        // here a name is refused only if it means this machine.
        match host {
            Host::Ipv4(v4) => self.check(IpAddr::V4(v4)),
            Host::Ipv6(v6) => self.check(IpAddr::V6(v6)),
            Host::Domain(name) if is_localhost(name) && !self.allows_loopback() => {
                Err(AddressRefusal::Localhost(name.to_owned()))
            }
            Host::Domain(name) if !is_host_name(name) => Err(AddressRefusal::NoHostName(name.to_owned())),
            Host::Domain(_) => Ok(()),
        }
    }

    fn allows_loopback(&self) -> bool {
        self.allows(IpAddr::V4(Ipv4Addr::LOCALHOST)) || self.allows(IpAddr::V6(Ipv6Addr::LOCALHOST))
    }
}

/// Whether a resolver can find the name. `Url` accepts more characters, and converts other alphabets to these. Source:
/// RFC 1035, section 2.3; `_` is common in names of containers.
fn is_host_name(name: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte))
    };
    let name = name.strip_suffix('.').unwrap_or(name);
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Whether a name is `localhost` or below it, and so means this machine. Source: RFC 6761, section 6.3. `Url` converts
/// names to lower case.
fn is_localhost(name: &str) -> bool {
    let name = name.strip_suffix('.').unwrap_or(name);
    name == "localhost" || name.ends_with(".localhost")
}

/// The embedded IPv4 address at which traffic to this address ends: IPv4-compatible (`::/96`), and the well-known
/// prefix of NAT64, through which hosts without IPv4 reach public IPv4 receivers.
fn embedded_v4(address: Ipv6Addr) -> Option<Ipv4Addr> {
    let embedded = match address.segments() {
        [0, 0, 0, 0, 0, 0, high, low] | [0x64, 0xff9b, 0, 0, 0, 0, high, low] => u32::from(high) << 16 | u32::from(low),
        _ => return None,
    };
    // `::` and `::1` are in `::/96` too, but embed no address.
    (!address.is_unspecified() && !address.is_loopback()).then(|| Ipv4Addr::from_bits(embedded))
}

fn v4_range(address: Ipv4Addr) -> Option<(Ipv4Net, &'static str)> {
    REFUSED_V4.iter().find(|(network, _)| network.contains(&address)).copied()
}

fn v6_range(address: Ipv6Addr) -> Option<(Ipv6Net, &'static str)> {
    REFUSED_V6.iter().find(|(network, _)| network.contains(&address)).copied().or_else(|| {
        // IANA allocates global unicast addresses only from 2000::/3.
        (address.segments()[0] >> 13 != 0b001).then(|| (Ipv6Net::from(address), "not a public address"))
    })
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8, range: &'static str) -> (Ipv4Net, &'static str) {
    (Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix), range)
}

const fn v6(head: [u16; 3], last: u16, prefix: u8, range: &'static str) -> (Ipv6Net, &'static str) {
    (Ipv6Net::new_assert(Ipv6Addr::new(head[0], head[1], head[2], 0, 0, 0, 0, last), prefix), range)
}

/// Sources: the IANA IPv4 special-purpose address registry (RFC 6890); multicast and class E.
const REFUSED_V4: [(Ipv4Net, &str); 17] = [
    v4(0, 0, 0, 0, 8, "unspecified"),
    v4(10, 0, 0, 0, 8, "private"),
    v4(100, 64, 0, 0, 10, "shared by carrier-grade NAT"),
    v4(127, 0, 0, 0, 8, "loopback"),
    // The host agent and metadata service of Azure: the only such service with a public address.
    v4(168, 63, 129, 16, 32, "cloud metadata"),
    v4(169, 254, 0, 0, 16, "link-local, cloud metadata"),
    v4(172, 16, 0, 0, 12, "private"),
    v4(192, 0, 0, 0, 24, "protocol assignments"),
    v4(192, 0, 2, 0, 24, "documentation"),
    v4(192, 88, 99, 0, 24, "6to4 relay"),
    v4(192, 168, 0, 0, 16, "private"),
    v4(198, 18, 0, 0, 15, "benchmarking"),
    v4(198, 51, 100, 0, 24, "documentation"),
    v4(203, 0, 113, 0, 24, "documentation"),
    v4(224, 0, 0, 0, 4, "multicast"),
    v4(255, 255, 255, 255, 32, "broadcast"),
    v4(240, 0, 0, 0, 4, "reserved"),
];

/// The named ranges. [`v6_range`] also refuses every other address outside 2000::/3. Tunnels that embed an IPv4 address
/// (6to4, Teredo, local NAT64) are always refused: no receiver needs them, and their target depends on the network.
const REFUSED_V6: [(Ipv6Net, &str); 13] = [
    v6([0, 0, 0], 0, 128, "unspecified"),
    v6([0, 0, 0], 1, 128, "loopback"),
    v6([0x64, 0xff9b, 1], 0, 48, "local NAT64"),
    v6([0x100, 0, 0], 0, 64, "discard"),
    v6([0x2001, 0, 0], 0, 32, "Teredo"),
    v6([0x2001, 0xdb8, 0], 0, 32, "documentation"),
    v6([0x2001, 0, 0], 0, 23, "protocol assignments"),
    v6([0x2002, 0, 0], 0, 16, "6to4"),
    v6([0x3fff, 0, 0], 0, 20, "documentation"),
    v6([0xfc00, 0, 0], 0, 7, "unique local"),
    v6([0xfe80, 0, 0], 0, 10, "link-local"),
    v6([0xfec0, 0, 0], 0, 10, "site-local"),
    v6([0xff00, 0, 0], 0, 8, "multicast"),
];

#[cfg(test)]
mod tests;
