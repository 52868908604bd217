//! Network policies. Workers may reach exactly the addresses that Weir's address policy allows.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use serde_json::{Value, json};
use weir_core::address::AddressPolicy;
use weir_deploy_checks::manifests::{self, Composition, list, text};

fn policy(composition: &'static Composition, name: &str) -> &'static Value {
    composition.of_kind("NetworkPolicy").find(|policy| text(policy, "/metadata/name") == name).unwrap()
}

/// Address blocks, each with its exceptions.
fn blocks(policy: &Value) -> Vec<(IpNet, Vec<IpNet>)> {
    let to = list(policy, "/spec/egress/0/to");
    let net = |value: &Value| value.as_str().unwrap().parse::<IpNet>().unwrap();
    to.iter().map(|to| (net(&to["ipBlock"]["cidr"]), list(to, "/ipBlock/except").iter().map(net).collect())).collect()
}

fn reaches(blocks: &[(IpNet, Vec<IpNet>)], address: IpAddr) -> bool {
    blocks.iter().any(|(block, except)| block.contains(&address) && !except.iter().any(|net| net.contains(&address)))
}

/// The first and the last address of a network, and the adjacent addresses outside.
fn edges(net: &IpNet) -> Vec<IpAddr> {
    match (net.network(), net.broadcast()) {
        (IpAddr::V4(first), IpAddr::V4(last)) => {
            let (first, last) = (first.to_bits(), last.to_bits());
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
                .map(|bits| Ipv4Addr::from_bits(bits).into())
                .into()
        }
        (IpAddr::V6(first), IpAddr::V6(last)) => {
            let (first, last) = (first.to_bits(), last.to_bits());
            [first, last, first.wrapping_sub(1), last.wrapping_add(1)]
                .map(|bits| Ipv6Addr::from_bits(bits).into())
                .into()
        }
        _ => unreachable!("the two ends of a network are of one family"),
    }
}

#[test]
fn workers_reach_exactly_the_addresses_that_weir_allows() {
    let weir = AddressPolicy::default();
    for composition in manifests::all() {
        let blocks = blocks(policy(composition, "reach-destinations"));
        let mut addresses: Vec<IpAddr> =
            blocks.iter().flat_map(|(block, except)| except.iter().chain([block]).flat_map(edges)).collect();
        // One address in each /16 network of IPv4 and IPv6 finds ranges that Weir refuses and the network policy does
        // not name.
        for part in 0..=u16::MAX {
            let [a, b] = part.to_be_bytes();
            addresses.push(Ipv4Addr::new(a, b, 7, 7).into());
            addresses.push(Ipv6Addr::new(part, 0xdb8, 0, 0, 0, 0, 0, 7).into());
        }
        // Addresses in ranges that are smaller than /16.
        for special in
            ["192.0.0.7", "192.0.2.7", "192.88.99.7", "198.51.100.7", "203.0.113.7", "168.63.129.16", "169.254.169.254"]
        {
            addresses.push(special.parse().unwrap());
        }
        for address in addresses {
            assert_eq!(reaches(&blocks, address), weir.allows(address), "{address} in {}", composition.name);
        }
    }
}

#[test]
fn private_and_reserved_ranges_are_not_reachable() {
    let blocks = blocks(policy(manifests::named("production"), "reach-destinations"));
    for address in [
        "10.0.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "127.0.0.1",
        "169.254.169.254",
        "100.64.0.1",
        "224.0.0.1",
        "255.255.255.255",
        "240.0.0.1",
        "0.0.0.0",
        "::1",
        "fe80::1",
        "fd00::1",
        "ff02::1",
        "2001:db8::1",
        "::ffff:10.0.0.1",
    ] {
        assert!(!reaches(&blocks, address.parse().unwrap()), "{address}");
    }
    for address in ["1.1.1.1", "8.8.8.8", "2606:4700::1111"] {
        assert!(reaches(&blocks, address.parse().unwrap()), "{address}");
    }
}

#[test]
fn all_traffic_is_denied_by_default() {
    for composition in manifests::all() {
        let deny = policy(composition, "deny-all");
        // In a namespace with others, only the pods of Weir.
        let shared = composition.name == "chart: fixed";
        let pods = if shared { json!({"matchLabels": {"app.kubernetes.io/part-of": "weir"}}) } else { json!({}) };
        let all = json!({"podSelector": pods, "policyTypes": ["Ingress", "Egress"]});
        assert_eq!(deny["spec"], all, "{}", composition.name);
    }
}

#[test]
fn only_roles_that_send_may_reach_destinations() {
    for composition in manifests::all() {
        for egress in composition.of_kind("NetworkPolicy").filter(|policy| policy["spec"]["egress"].is_array()) {
            match text(egress, "/metadata/name") {
                "reach-destinations" => {
                    let roles = list(egress, "/spec/podSelector/matchExpressions/0/values");
                    assert_eq!(roles, ["weir", "weir-worker"]);
                    // Any port, because receivers choose their ports freely.
                    assert!(egress["spec"]["egress"][0]["ports"].is_null());
                }
                // Every other policy is limited to ports and networks.
                _ => {
                    for rule in list(egress, "/spec/egress") {
                        assert!(!list(rule, "/ports").is_empty() && !list(rule, "/to").is_empty(), "{egress}");
                    }
                }
            }
        }
    }
}

#[test]
fn policies_select_pods_that_exist() {
    let labels: Vec<&str> = manifests::all()
        .iter()
        .flat_map(|composition| composition.workloads())
        .map(|(_, template)| text(template, "/metadata/labels/app.kubernetes.io~1name"))
        .collect();
    for policy in manifests::all().iter().flat_map(|composition| composition.of_kind("NetworkPolicy")) {
        for value in list(policy, "/spec/podSelector/matchExpressions/0/values") {
            assert!(labels.contains(&value.as_str().unwrap()), "{value} of {}", text(policy, "/metadata/name"));
        }
    }
}
