//! The address of a client, also behind reverse proxies.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    sync::Arc,
};

use http::{Extensions, HeaderMap, HeaderName};
use ipnet::IpNet;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The address of the connection, as a request extension from the listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteAddress(pub IpAddr);

/// The networks of the reverse proxies whose `X-Forwarded-For` is believed.
#[derive(Debug, Clone, Default)]
pub struct TrustedProxies(Arc<[IpNet]>);

impl TrustedProxies {
    pub fn new(networks: Vec<IpNet>) -> Self {
        Self(networks.into())
    }

    /// The address of the client that sent a request. Without an address, all clients count as one.
    pub(crate) fn client(&self, extensions: &Extensions, headers: &HeaderMap) -> IpAddr {
        let remote = extensions.get::<RemoteAddress>();
        self.client_of(remote.map_or(IpAddr::V4(Ipv4Addr::UNSPECIFIED), |RemoteAddress(address)| *address), headers)
    }

    /// Each proxy adds the address that it sees at the end of `X-Forwarded-For`. So from the right, the first address
    /// that is no trusted proxy is the client; what stands before it, the client may have written itself.
    fn client_of(&self, remote: IpAddr, headers: &HeaderMap) -> IpAddr {
        let mut client = remote;
        for value in headers.get_all(X_FORWARDED_FOR).iter().rev() {
            for entry in value.to_str().unwrap_or_default().rsplit(',') {
                if !self.contains(client) {
                    return client;
                }
                // What is no address was not written by a proxy. Then the proxy after it is the last that is known.
                let Some(address) = address(entry.trim()) else { return client };
                client = address;
            }
        }
        client
    }

    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }
}

/// An address, with or without a port: some proxies add it.
fn address(text: &str) -> Option<IpAddr> {
    let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
    bare.parse().ok().or_else(|| text.parse().ok().map(|address: SocketAddr| address.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_client_is_the_last_address_that_is_no_trusted_proxy() {
        let proxies = TrustedProxies::new(vec!["10.0.0.0/8".parse().unwrap(), "2001:db8::/32".parse().unwrap()]);
        for (remote, forwarded, expected) in [
            ("198.51.100.7", &[][..], "198.51.100.7"),
            // It is no proxy, so it may write what it likes.
            ("198.51.100.7", &["203.0.113.1"], "198.51.100.7"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.1"], "203.0.113.1"),
            ("::ffff:10.0.0.1", &["203.0.113.1"], "203.0.113.1"),
            ("10.0.0.1", &["203.0.113.1, 10.0.0.2"], "203.0.113.1"),
            ("10.0.0.1", &["192.0.2.9, 203.0.113.1"], "203.0.113.1"),
            ("10.0.0.1", &["192.0.2.9", "203.0.113.1,10.9.9.9"], "203.0.113.1"),
            ("10.0.0.1", &["203.0.113.1:4711"], "203.0.113.1"),
            ("2001:db8::1", &["[2a00::5]:4711"], "2a00::5"),
            ("2001:db8::1", &["[2a00::5]"], "2a00::5"),
            ("10.0.0.1", &["203.0.113.1, unknown"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.1, nonsense, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &[""], "10.0.0.1"),
        ] {
            let mut headers = HeaderMap::new();
            for value in forwarded {
                headers.append(X_FORWARDED_FOR, value.parse().unwrap());
            }
            let client = proxies.client_of(remote.parse().unwrap(), &headers);
            assert_eq!(client.to_canonical(), expected.parse::<IpAddr>().unwrap(), "{remote} {forwarded:?}");
        }
        let none = TrustedProxies::default();
        let headers = HeaderMap::from_iter([(X_FORWARDED_FOR, "203.0.113.1".parse().unwrap())]);
        assert_eq!(none.client_of(Ipv4Addr::LOCALHOST.into(), &headers), Ipv4Addr::LOCALHOST);
    }
}
