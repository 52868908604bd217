//! Tables of refused and allowed addresses, and properties over all addresses.

use proptest::prelude::*;

use super::*;

fn strict() -> AddressPolicy {
    AddressPolicy::default()
}

fn allowing(networks: &[&str]) -> AddressPolicy {
    AddressPolicy { allow_http: true, allow_networks: parsed(networks), ..AddressPolicy::default() }
}

fn denying(networks: &[&str]) -> AddressPolicy {
    AddressPolicy { deny_networks: parsed(networks), ..AddressPolicy::default() }
}

fn parsed(networks: &[&str]) -> Vec<IpNet> {
    networks.iter().map(|network| network.parse().unwrap()).collect()
}

fn allows(policy: &AddressPolicy, address: &str) -> bool {
    policy.allows(address.parse().unwrap())
}

fn check(policy: &AddressPolicy, url: &str) -> Result<(), AddressRefusal> {
    policy.check_url(&url.parse().unwrap())
}

#[test]
fn every_special_range_is_refused_to_its_edges() {
    let refused = "
        0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.100.100.200 100.127.255.255 127.0.0.1
        127.255.255.255 168.63.129.16 169.254.0.0 169.254.169.254 169.254.255.255 172.16.0.0 172.31.255.255
        192.0.0.0 192.0.0.192 192.0.0.255 192.0.2.1 192.88.99.1 192.168.0.0 192.168.255.255 198.18.0.0
        198.19.255.255 198.51.100.7 203.0.113.7 224.0.0.1 239.255.255.255 240.0.0.0 255.255.255.254
        255.255.255.255 :: ::1 ::2 ::a00:1 ::7f00:1 ::ffff:0.0.0.0 ::ffff:10.0.0.1 ::ffff:127.0.0.1
        ::ffff:169.254.169.254 ::ffff:0:127.0.0.1 64:ff9b::10.0.0.1 64:ff9b::127.0.0.1 64:ff9b:1::1
        64:ff9b:1:ffff::8.8.8.8 100::1 100:0:0:1::1 1fff::1 2001::1 2001:0:7f00:1:: 2001:2::1 2001:10::1
        2001:20::1 2001:1ff:ffff::1 2001:db8::1 2002::1 2002:7f00:1::1 2002:808:808::1 3fff::1 3fff:fff::1
        4000::1 5f00::1 fc00::1 fd00:ec2::254 fdff::1 fe80::1 febf::1 fec0::1 feff::1 ff02::1 ffff::1
    ";
    for address in refused.split_whitespace() {
        assert!(!allows(&strict(), address), "{address}");
    }
}

#[test]
fn the_neighbours_of_special_ranges_are_allowed() {
    let allowed = "
        1.0.0.0 8.8.8.8 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 128.0.0.0
        168.63.129.15 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 191.255.255.255 192.0.1.0 192.0.3.0
        192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.101.0 203.0.112.255 203.0.114.0
        223.255.255.255 ::ffff:8.8.8.8 ::8.8.8.8 64:ff9b::8.8.8.8 2001:200::1 2001:4860:4860::8888 2001:db7::1
        2001:db9::1 2003::1 2606:4700::1111 3ffe::1 3fff:1000::1
    ";
    for address in allowed.split_whitespace() {
        assert!(allows(&strict(), address), "{address}");
    }
}

#[test]
fn only_the_addresses_of_an_allowed_network_are_exempt() {
    let policy = allowing(&["10.1.0.0/16", "::1/128", "fd00::/8"]);
    for address in ["10.1.2.3", "::ffff:10.1.2.3", "::10.1.2.3", "64:ff9b::10.1.2.3", "::1", "fd12::1", "8.8.8.8"] {
        assert!(allows(&policy, address), "{address}");
    }
    for address in ["10.2.0.1", "::ffff:10.2.0.1", "127.0.0.1", "::ffff:127.0.0.1", "::2", "fc00::1", "169.254.169.254"]
    {
        assert!(!allows(&policy, address), "{address}");
    }
}

#[test]
fn an_allowed_ipv6_network_exempts_no_embedded_ipv4_address() {
    let policy = allowing(&["::/0"]);
    assert!(!allows(&policy, "::ffff:127.0.0.1"));
    assert!(!allows(&policy, "127.0.0.1"));
    assert!(allows(&policy, "fd00::1"));
}

#[test]
fn only_a_denied_network_is_denied_and_in_every_notation() {
    let policy = denying(&["8.8.8.0/24", "2606:4700::/32"]);
    for address in ["8.8.8.8", "::ffff:8.8.8.8", "::8.8.8.8", "64:ff9b::8.8.8.8", "2606:4700::1111"] {
        assert!(!allows(&policy, address), "{address}");
        assert!(allows(&strict(), address), "{address}");
    }
    for address in ["8.8.4.4", "64:ff9b::8.8.4.4", "2001:4860:4860::8888"] {
        assert!(allows(&policy, address), "{address}");
    }
    let text = check(&policy, "https://8.8.8.8/").unwrap_err().to_string();
    assert!(text.contains("`--deny-networks`") && !text.contains("8.8.8.0"), "{text}");
    // An IPv6 network does not deny IPv4 addresses.
    assert!(allows(&denying(&["::/0"]), "8.8.8.8"));
}

#[test]
fn a_denied_network_takes_precedence_over_an_allowed_one() {
    for allowed in [&["10.0.0.0/8"][..], &["10.1.2.3/32"], &["64:ff9b::/96", "::/96", "10.0.0.0/8"]] {
        let policy = AddressPolicy { deny_networks: parsed(&["10.1.0.0/16"]), ..allowing(allowed) };
        for address in ["10.1.2.3", "::ffff:10.1.2.3", "::10.1.2.3", "64:ff9b::10.1.2.3"] {
            assert!(!allows(&policy, address), "{address} with {allowed:?}");
        }
    }
    let policy = AddressPolicy { deny_networks: parsed(&["10.1.0.0/16"]), ..allowing(&["10.0.0.0/8"]) };
    assert!(allows(&policy, "10.2.0.1"));
}

#[test]
fn only_allowed_ports_are_accepted_and_by_default_all_are() {
    let policy = AddressPolicy { allow_ports: vec![443..=443, 8_000..=8_999], ..allowing(&[]) };
    for url in
        ["https://example.com/", "https://example.com:443/", "https://example.com:8443/", "http://a.example:8000"]
    {
        assert_eq!(check(&policy, url), Ok(()), "{url}");
    }
    for (url, port) in [("http://example.com/", 80), ("https://example.com:22/", 22), ("https://8.8.8.8:9000/", 9_000)]
    {
        assert_eq!(check(&policy, url), Err(AddressRefusal::Port(port)), "{url}");
        assert_eq!(check(&allowing(&[]), url), Ok(()), "{url}");
    }
    assert!(policy.allows_port(8_999) && !policy.allows_port(9_000));
}

#[test]
fn every_spelling_of_an_address_in_a_url_is_judged() {
    let spellings = "
        https://127.0.0.1/ https://2130706433/ https://0x7f000001/ https://0x7f.1/ https://0177.0.0.1/
        https://127.1/ https://127.0.0.1./ https://017700000001/ https://%31%32%37.0.0.1/ https://0/
        https://①②⑦.0.0.1/ https://127。0。0。1/ https://[::1]/ https://[::]/ https://[::ffff:127.0.0.1]/
        https://[::ffff:7f00:1]/ https://[0:0:0:0:0:ffff:7f00:0001]/ https://[::127.0.0.1]/
        https://[64:ff9b::7f00:1]/ https://169.254.169.254/latest/meta-data/ https://2852039166/
        https:\\\\127.0.0.1\\ https:127.0.0.1
    ";
    for url in spellings.split_whitespace() {
        assert!(
            matches!(check(&strict(), url), Err(AddressRefusal::Address { .. })),
            "{url}: {:?}",
            check(&strict(), url)
        );
    }
    assert_eq!(check(&allowing(&["127.0.0.0/8"]), "https://0x7f.1/"), Ok(()));
}

/// The tables of international names may come from another crate with another version of `idna_adapter`.
#[test]
fn an_international_name_is_used_in_its_ascii_form_or_refused() {
    for (url, host) in [
        ("https://BÜCHER.example/", "xn--bcher-kva.example"),
        ("https://faß.example/", "xn--fa-hia.example"),
        ("https://例え.テスト/", "xn--r8jz45g.xn--zckzah"),
        ("https://مثال.إختبار/", "xn--mgbh0fb.xn--kgbechtv"),
        ("https://ｅｘａｍｐｌｅ.com/", "example.com"),
    ] {
        assert_eq!(Url::parse(url).unwrap().host_str(), Some(host), "{url}");
        assert_eq!(check(&strict(), url), Ok(()), "{url}");
    }
    for url in ["https://xn--/", "https://a\u{202e}b.example/", "https://\u{ad}/", "https://\u{378}.example/"] {
        assert!(Url::parse(url).is_err(), "{url}");
    }
}

#[test]
fn localhost_by_name_is_refused_unless_loopback_is_allowed() {
    let spellings = "localhost LOCALHOST localhost. a.localhost a.b.LocalHost. ｌｏｃａｌｈｏｓｔ local\u{ad}host";
    for name in spellings.split(' ') {
        let url = format!("https://{name}:8443/hook");
        assert!(matches!(check(&strict(), &url), Err(AddressRefusal::Localhost(_))), "{name}");
    }
    assert_eq!(check(&allowing(&["127.0.0.0/8"]), "http://localhost:9000/"), Ok(()));
    assert_eq!(check(&allowing(&["::1/128"]), "http://a.localhost/"), Ok(()));
    assert_eq!(check(&strict(), "https://localhost.example.com/"), Ok(()));
    assert_eq!(check(&strict(), "https://notlocalhost/"), Ok(()));
}

#[test]
fn only_https_is_accepted_unless_http_is_allowed() {
    assert_eq!(check(&strict(), "https://example.com/hook?x=1"), Ok(()));
    assert_eq!(check(&strict(), "http://example.com/"), Err(AddressRefusal::PlainHttp));
    assert_eq!(check(&allowing(&[]), "http://example.com/"), Ok(()));
    for url in ["ftp://example.com/", "file:///etc/passwd", "data:,x", "gopher://example.com/", "ws://example.com/"] {
        assert!(matches!(check(&allowing(&[]), url), Err(AddressRefusal::Scheme { .. })), "{url}");
    }
}

#[test]
fn credentials_and_port_zero_are_refused() {
    for url in ["https://me@example.com/", "https://me:pw@example.com/", "https://:pw@example.com/"] {
        assert_eq!(check(&strict(), url), Err(AddressRefusal::UserInfo), "{url}");
    }
    assert_eq!(check(&strict(), "https://@example.com/"), Ok(()));
    assert_eq!(check(&strict(), "https://example.com:0/"), Err(AddressRefusal::PortZero));
}

#[test]
fn a_refusal_names_the_setting_that_permits_it() {
    let text = |url: &str| check(&strict(), url).unwrap_err().to_string();
    assert!(text("https://10.1.2.3/").contains("10.1.2.3 is refused (private)"));
    assert!(text("https://10.1.2.3/").contains("`--allow-networks 10.0.0.0/8`"));
    assert!(text("https://[fe80::1]/").contains("`--allow-networks fe80::/10`"));
    assert!(text("https://[4000::1]/").contains("`--allow-networks 4000::1/128`"));
    assert!(text("http://example.com/").contains("`--allow-http`"));
    assert!(text("https://localhost/").contains("`--allow-networks 127.0.0.0/8,::1/128`"));
}

proptest! {
    #[test]
    fn allowing_the_network_that_a_refusal_names_allows_the_address(v4 in any::<u32>(), v6 in any::<u128>(), mapped in any::<bool>()) {
        let v4 = Ipv4Addr::from_bits(v4);
        let v4 = if mapped { IpAddr::V6(v4.to_ipv6_mapped()) } else { IpAddr::V4(v4) };
        for address in [v4, IpAddr::V6(Ipv6Addr::from_bits(v6))] {
            if let Err(AddressRefusal::Address { network, .. }) = strict().check(address) {
                let policy = AddressPolicy { allow_networks: vec![network], ..strict() };
                prop_assert!(policy.allows(address));
            }
        }
    }

    #[test]
    fn denied_addresses_are_not_allowed(bits in any::<u32>(), prefix in 0_u8..=32, other in any::<u32>()) {
        let network = Ipv4Net::new(Ipv4Addr::from_bits(bits), prefix).unwrap().trunc();
        let policy = AddressPolicy { deny_networks: vec![network.into()], ..allowing(&["0.0.0.0/0", "::/0"]) };
        let other = Ipv4Addr::from_bits(other);
        prop_assert!(!policy.allows(IpAddr::V4(Ipv4Addr::from_bits(bits))));
        prop_assert_eq!(policy.allows(IpAddr::V4(other)), !network.contains(&other));
        prop_assert_eq!(policy.allows(IpAddr::V6(other.to_ipv6_mapped())), !network.contains(&other));
    }

    #[test]
    fn an_address_that_embeds_a_refused_ipv4_address_is_refused(bits in any::<u32>()) {
        let plain = Ipv4Addr::from_bits(bits);
        let embedding = [
            plain.to_ipv6_mapped(),
            plain.to_ipv6_compatible(),
            Ipv6Addr::from_bits(0x64_ff9b << 96 | u128::from(bits)),
            Ipv6Addr::from_bits(0x2002 << 112 | u128::from(bits) << 80 | 1),
        ];
        for address in embedding {
            prop_assert!(!strict().allows(IpAddr::V6(address)) || strict().allows(IpAddr::V4(plain)), "{address}");
        }
    }

    #[test]
    fn allowed_addresses_are_public(v4 in any::<u32>(), v6 in any::<u128>()) {
        let v4 = Ipv4Addr::from_bits(v4);
        if strict().allows(IpAddr::V4(v4)) {
            prop_assert!(!v4.is_private() && !v4.is_loopback() && !v4.is_link_local() && !v4.is_multicast());
            prop_assert!(!v4.is_broadcast() && !v4.is_documentation() && !v4.is_unspecified());
        }
        let v6 = Ipv6Addr::from_bits(v6);
        if strict().allows(IpAddr::V6(v6)) {
            prop_assert!(!v6.is_loopback() && !v6.is_multicast() && !v6.is_unspecified());
            prop_assert!(!v6.is_unique_local() && !v6.is_unicast_link_local());
        }
    }

    #[test]
    fn a_literal_in_a_url_is_judged_as_its_address(bits in any::<u32>()) {
        let address = IpAddr::V4(Ipv4Addr::from_bits(bits));
        for url in [format!("https://{address}/"), format!("https://{bits}/"), format!("https://0x{bits:x}/")] {
            prop_assert_eq!(check(&strict(), &url), strict().check(address));
        }
    }
}

#[test]
fn a_host_that_no_resolver_can_find_is_refused() {
    let long = format!("https://{}.example/", "a".repeat(64));
    for url in ["https://a*.example/", "https://a..example/", "https://example!/", "https://.example/", long.as_str()] {
        assert!(matches!(check(&strict(), url), Err(AddressRefusal::NoHostName(_))), "{url}");
    }
    for url in ["https://bücher.example/", "https://my_service.internal/", "https://a-b.example./", "https://0.aaa/"] {
        assert_eq!(check(&strict(), url), Ok(()), "{url}");
    }
}

#[test]
fn a_proxy_of_a_destination_is_judged_as_a_destination_is_unless_it_is_exempt() {
    let proxy = |text: &str| HttpProxy::parse(text).unwrap();
    let policy = AddressPolicy {
        deny_networks: vec!["10.9.0.0/16".parse().unwrap()],
        allow_proxies: ["10.0.0.5", "10.9.0.0/16", "proxy.corp.example"].map(|host| host.parse().unwrap()).to_vec(),
        ..AddressPolicy::default()
    };
    for (text, is_allowed) in [
        ("http://proxy.example:3128", true),
        ("http://8.8.8.8:3128", true),
        ("http://10.0.0.5:3128", true),
        ("http://10.0.0.6:3128", false),
        ("http://127.0.0.1:3128", false),
        ("http://localhost:3128", false),
        ("http://[::ffff:169.254.169.254]", false),
        ("http://10.9.0.1:3128", false),
    ] {
        assert_eq!(policy.check_proxy(&proxy(text)).is_ok(), is_allowed, "{text}");
    }
    // What a name resolves to is judged when it is connected to.
    for (host, address, is_allowed) in [
        ("proxy.corp.example", "10.0.0.9", true),
        ("proxy.corp.example", "10.9.0.1", false),
        ("other.example", "10.0.0.5", true),
        ("other.example", "10.0.0.9", false),
        ("other.example", "8.8.8.8", true),
    ] {
        let host = Host::parse(host).unwrap();
        assert_eq!(policy.allows_proxy(&host, address.parse().unwrap()), is_allowed, "{host} {address}");
    }
}
