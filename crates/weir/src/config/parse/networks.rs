//! Hosts, networks and ports, and the way out.

use std::{net::IpAddr, ops::RangeInclusive};

use ipnet::IpNet;
use url::Host;
use weir_core::egress::{HostPattern, HttpProxy};

use super::{Parsed, items};

pub(crate) fn hosts(text: &str) -> Parsed<Vec<Host<String>>> {
    let host = |text: &str| {
        let v6 = text.parse().map(Host::Ipv6).ok();
        // A `*` is refused: wildcards are not supported and would match no host.
        let other = || Host::parse(text).ok().filter(|host| !host.to_string().contains('*'));
        v6.or_else(other).ok_or_else(|| {
            format!(
                "`{text}` is not a host; use names or addresses without scheme and port, separated by commas, such as weir.example.com,10.0.0.5"
            )
        })
    };
    items(text).map(host).collect()
}

pub(crate) fn networks(text: &str) -> Parsed<Vec<IpNet>> {
    let network = |text: &str| {
        let network = text.parse().ok().or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from));
        let network = network.ok_or_else(|| {
            format!("`{text}` is not a network; use CIDRs separated by commas, such as 10.0.0.0/8,fd00::/8")
        })?;
        // IPv4-mapped addresses are compared as IPv4, so such a network would match no address.
        match network {
            IpNet::V6(v6) if v6.prefix_len() >= 96 && v6.addr().to_ipv4_mapped().is_some() => {
                Err(format!("`{text}` is a network of IPv4-mapped addresses; use the IPv4 network, such as 10.0.0.0/8"))
            }
            network => Ok(network),
        }
    };
    items(text).map(network).collect()
}

/// Empty: none.
pub(crate) fn egress_proxy(text: &str) -> Parsed<Option<HttpProxy>> {
    if text.is_empty() { Ok(None) } else { HttpProxy::parse(text).map(Some).map_err(str::to_owned) }
}

pub(crate) fn host_patterns(text: &str) -> Parsed<Vec<HostPattern>> {
    items(text).map(str::parse).collect()
}

/// Empty: any.
pub(crate) fn ports(text: &str) -> Parsed<Vec<RangeInclusive<u16>>> {
    let port = |text: &str| text.trim().parse().ok().filter(|&port: &u16| port > 0);
    let ports = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = port(first).zip(port(last)).filter(|(first, last)| first <= last);
        range.map(|(first, last)| first..=last).ok_or_else(|| {
            format!("`{text}` is not a port; use ports and ranges separated by commas, such as 443,8000-8999")
        })
    };
    items(text).map(ports).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_cidrs_or_single_addresses() {
        let parsed = networks("127.0.0.0/8, ::1 ,").unwrap();
        assert_eq!(parsed, ["127.0.0.0/8".parse().unwrap(), "::1/128".parse().unwrap()]);
        assert!(networks("127.0.0.0/33").unwrap_err().contains("`127.0.0.0/33`"));
        for mapped in ["::ffff:10.0.0.0/104", "::ffff:10.1.2.3"] {
            assert!(networks(mapped).unwrap_err().contains("IPv4-mapped"), "{mapped}");
        }
    }

    #[test]
    fn hosts_are_names_or_addresses_without_ports() {
        let expected =
            ["weir.example.com", "10.0.0.5", "[fd00::1]", "[fd00::2]"].map(|host| Host::parse(host).unwrap());
        assert_eq!(hosts("Weir.Example.com, 10.0.0.5,fd00::1,[fd00::2],").unwrap(), expected);
        for bad in ["weir.example.com:8080", "https://weir.example.com", "a b", "10.0.0.5/8", "*.example.com"] {
            assert!(hosts(bad).unwrap_err().contains("without scheme and port"), "{bad}");
        }
    }

    #[test]
    fn ports_are_numbers_or_ranges() {
        assert_eq!(ports("443, 8000-8999"), Ok(vec![443..=443, 8_000..=8_999]));
        assert_eq!(ports(""), Ok(Vec::new()));
        for bad in ["0", "65536", "https", "9-8", "-", "80-", "1-2-3"] {
            assert!(ports(bad).unwrap_err().contains("443,8000-8999"), "{bad}");
        }
    }
}
