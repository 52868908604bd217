//! Dialling: refusals, failures, and their error texts.

use std::time::Duration;

use futures_util::FutureExt;
use tokio::net::TcpListener;
use weir_core::{
    address::AddressPolicy,
    outcome::{Failure, SendResult},
};
use weir_worker::outbound::{Outbound, Target, TimeLimit, TlsRoots, Unreachable};

use crate::support::*;

async fn refusal(outbound: &Outbound, target: &Target) -> Unreachable {
    unreachable(connect(outbound, target).await)
}

fn strict() -> Outbound {
    let policy = AddressPolicy { allow_http: true, ..AddressPolicy::default() };
    Outbound::new(policy, TlsRoots::none(), TestClock::running())
}

async fn assert_refused_by_strict(host: &str) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let refused = refusal(&strict(), &target(&format!("http://{host}:{port}/"))).await;
    assert_eq!(refused.failure, Failure::Forbidden, "{host}: {refused}");
    assert!(listener.accept().now_or_never().is_none(), "{host} was connected to");
}

#[tokio::test]
async fn a_forbidden_literal_is_not_connected_to() {
    for host in ["127.0.0.1", "2130706433", "0x7f.1", "0.0.0.0", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]"] {
        assert_refused_by_strict(host).await;
    }
}

#[tokio::test]
async fn a_name_that_resolves_to_forbidden_addresses_is_not_connected_to() {
    assert_refused_by_strict("localhost").await;
}

#[tokio::test]
async fn plain_http_is_refused_unless_allowed() {
    let (listener, target) = plain_receiver().await;
    let policy = AddressPolicy { allow_http: false, ..loopback() };
    let refused = refusal(&Outbound::new(policy, TlsRoots::none(), TestClock::running()), &target).await;
    assert_eq!((refused.failure, &*refused.error), (Failure::Forbidden, "plain http is not allowed"));
    assert!(listener.accept().now_or_never().is_none());
}

#[tokio::test]
async fn a_port_that_is_not_allowed_and_a_denied_network_are_not_connected_to() {
    let (listener, target) = plain_receiver().await;
    let ports = AddressPolicy { allow_ports: vec![443..=443], ..loopback() };
    let networks = AddressPolicy { deny_networks: vec!["127.0.0.1/32".parse().unwrap()], ..loopback() };
    for policy in [ports, networks] {
        let refused = refusal(&Outbound::new(policy, TlsRoots::none(), TestClock::running()), &target).await;
        assert_eq!(refused.failure, Failure::Forbidden, "{refused}");
    }
    assert!(listener.accept().now_or_never().is_none());
}

#[tokio::test]
async fn a_closed_port_is_refused() {
    let (listener, target) = plain_receiver().await;
    drop(listener);
    let refused = refusal(&outbound(), &target).await;
    assert_eq!((refused.failure, &*refused.error), (Failure::Connect, "connection refused"));
}

#[tokio::test]
async fn a_name_without_an_address_is_a_dns_failure() {
    // `.invalid` never resolves. Source: RFC 6761, section 6.4.
    let refused = refusal(&outbound(), &target("http://nobody.invalid/")).await;
    assert_eq!((refused.failure, &*refused.error), (Failure::Dns, "no address found for nobody.invalid"));
}

#[tokio::test]
async fn a_name_is_resolved_and_its_certificate_checked_by_name() {
    let authority = Authority::new();
    let receiver = authority.receiver("localhost").await;
    let target = receiver.target("localhost");
    let outbound = Outbound::new(loopback(), authority.trusted(), TestClock::running());
    let sending = async {
        let connection = connect(&outbound, &target).await.unwrap().connection;
        send(&outbound, &target, connection).await
    };
    let receiving = async {
        let mut wire = receiver.accept().await;
        let session = wire.stream.get_ref().1;
        assert_eq!(session.server_name(), Some("localhost"));
        assert_eq!(session.alpn_protocol(), Some(&b"http/1.1"[..]));
        wire.answer(OK).await;
        wire
    };
    let (result, mut wire) = tokio::join!(sending, receiving);
    assert_eq!(status(&sent(result)), 200);

    let connection = outbound.checkout(&target).expect("TLS connections are kept too");
    let (result, ()) = tokio::join!(send(&outbound, &target, connection), wire.answer(OK));
    assert_eq!(status(&sent(result)), 200);
}

/// Dials a TLS receiver. The handshake must fail.
async fn handshake(outbound: &Outbound, receiver: &TlsReceiver, host: &str) -> Unreachable {
    let target = receiver.target(host);
    let accepting = async {
        let (stream, _) = receiver.listener.accept().await.unwrap();
        let _ = receiver.acceptor.accept(stream).await;
    };
    let (refused, ()) = tokio::join!(refusal(outbound, &target), accepting);
    assert_eq!(refused.failure, Failure::Tls, "{refused}");
    refused
}

#[tokio::test]
async fn an_unknown_authority_is_not_trusted() {
    let receiver = Authority::new().receiver("127.0.0.1").await;
    for roots in [TlsRoots::none(), Authority::new().trusted(), TlsRoots::system()] {
        let outbound = Outbound::new(loopback(), roots, TestClock::running());
        let refused = handshake(&outbound, &receiver, "127.0.0.1").await;
        assert_eq!(refused.error, "certificate not trusted: unknown issuer");
    }
}

#[tokio::test]
async fn a_certificate_for_another_name_is_not_trusted() {
    let authority = Authority::new();
    let receiver = authority.receiver("other.example").await;
    let outbound = Outbound::new(loopback(), authority.trusted(), TestClock::running());
    for host in ["localhost", "127.0.0.1"] {
        let refused = handshake(&outbound, &receiver, host).await;
        assert_eq!(refused.error, format!("certificate not trusted: not valid for {host}"));
    }
}

#[tokio::test]
async fn the_handshake_with_a_server_without_tls_fails() {
    let (listener, _) = plain_receiver().await;
    let target = target(&format!("https://{}/", listener.local_addr().unwrap()));
    let outbound = outbound();
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.say("HTTP/1.1 400 Bad Request\r\n\r\n").await;
        wire
    };
    let (refused, _wire) = tokio::join!(refusal(&outbound, &target), receiver);
    assert_eq!(refused.failure, Failure::Tls);
    assert!(refused.error.starts_with("TLS handshake failed: "), "{refused}");
    let (refused, _) = tokio::join!(refusal(&outbound, &target), async { drop(listener.accept().await) });
    assert_eq!((refused.failure, &*refused.error), (Failure::Tls, "connection closed during the TLS handshake"));
}

#[tokio::test]
async fn a_slow_handshake_uses_up_no_slot() {
    let authority = Authority::new();
    let receiver = authority.receiver("127.0.0.1").await;
    let target = receiver.target("127.0.0.1");
    let clock = TestClock::running();
    let outbound = Outbound::new(loopback(), authority.trusted(), clock.clone());
    let sending = async {
        let connection = connect(&outbound, &target).await.unwrap().connection;
        // The slot is taken after the connection was established, and is 10 ms wide.
        let start = weir_core::Clock::now(&*clock);
        let slot = weir_core::Slot { start, end: start + Duration::from_millis(10) };
        post(&outbound, &target, connection, BODY.into(), &mut Slots::from([slot]), PATIENCE).await
    };
    let receiving = async {
        let (stream, _) = receiver.listener.accept().await.unwrap();
        tokio::time::sleep(Duration::from_millis(200)).await;
        let mut wire = Wire { stream: receiver.acceptor.accept(stream).await.unwrap() };
        wire.answer(OK).await;
    };
    let (result, ()) = tokio::join!(sending, receiving);
    let sent = sent(result);
    assert_eq!(status(&sent), 200);
    assert!(sent.sent_at.unwrap() >= EPOCH + Duration::from_millis(200));
}

#[tokio::test]
async fn connecting_takes_no_longer_than_the_time_limit_of_the_attempt() {
    let (listener, plain) = plain_receiver().await;
    let target = target(&format!("https://{}/", listener.local_addr().unwrap()));
    let mut limit = TimeLimit::new(Duration::from_millis(100));
    let refused = unreachable(outbound().connect(&target, &mut limit).await);
    assert_eq!((refused.failure, &*refused.error), (Failure::Tls, "the TLS handshake did not end within 100 ms"));
    let tried_for = limit.connecting();
    assert!((Duration::from_millis(100)..Duration::from_secs(5)).contains(&tried_for), "{tried_for:?}");
    // Nothing is left of the limit for another connection.
    let refused = unreachable(outbound().connect(&plain, &mut limit).await);
    assert_eq!((refused.failure, &*refused.error), (Failure::Connect, "no connection was made within 0 ms"));
}

#[tokio::test]
async fn the_request_has_what_connecting_has_left_of_the_time_limit() {
    let authority = Authority::new();
    let receiver = authority.receiver("127.0.0.1").await;
    let target = receiver.target("127.0.0.1");
    let outbound = Outbound::new(loopback(), authority.trusted(), TestClock::running());
    let mut limit = TimeLimit::new(Duration::from_secs(2));
    let sending = async {
        let connection = outbound.connect(&target, &mut limit).await.unwrap().connection;
        let slots = &mut Slots::from([wide()]);
        sent(outbound.send(&target, connection, head(&target), BODY.into(), slots, limit).await)
    };
    let receiving = async {
        let (stream, _) = receiver.listener.accept().await.unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let mut wire = Wire { stream: receiver.acceptor.accept(stream).await.unwrap() };
        wire.request().await;
        wire
    };
    let (sent, _wire) = tokio::join!(sending, receiving);
    assert_eq!(sent.result, SendResult::Failure(Failure::Timeout));
    let error = sent.error.unwrap();
    assert!(error.starts_with("no answer within 2000 ms, of which connecting took 1"), "{error}");
    assert!(sent.took < Duration::from_millis(1_900), "{:?}", sent.took);
    assert!(sent.took + limit.connecting() >= Duration::from_secs(2), "{:?}", sent.took);
}

#[tokio::test]
async fn a_handshake_that_does_not_end_fails_within_the_budget() {
    let (listener, _) = plain_receiver().await;
    let target = target(&format!("https://{}/", listener.local_addr().unwrap()));
    let outbound = outbound().with_connect_budget(Duration::from_millis(100));
    let refused = refusal(&outbound, &target).await;
    assert_eq!((refused.failure, &*refused.error), (Failure::Tls, "the TLS handshake did not end within 100 ms"));
}
