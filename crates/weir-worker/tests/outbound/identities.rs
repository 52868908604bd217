//! Certificates of single destinations: private authorities, and client certificates.

use std::io;

use rustls::version::{TLS12, TLS13};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;
use weir_core::{
    egress::{ClientCertificate, Egress, Tls},
    outcome::{Failure, SendResult},
};
use weir_worker::outbound::{ExchangeResult, NoConnection, Outbound, Target, TlsRoots};

use crate::support::*;

fn with(target: Target, ca: Option<&Authority>, client: Option<&ClientCertificate>) -> Target {
    let tls = Tls { ca: ca.map(Authority::pem), client: client.cloned() };
    target.by_way_of(&Egress { tls, ..Egress::default() })
}

fn trusting(roots: TlsRoots) -> Outbound {
    Outbound::new(loopback(), roots, TestClock::running())
}

/// One send to a receiver that answers whom it lets in: the status, or why there was none.
async fn exchanged(outbound: &Outbound, receiver: &TlsReceiver, target: &Target) -> Result<u16, String> {
    let sending = async {
        let connection = match connect(outbound, target).await {
            Ok(found) => found.connection,
            Err(NoConnection::Unreachable(failed)) => {
                assert_eq!(failed.failure, Failure::Tls, "{failed}");
                return Err(failed.error);
            }
            Err(exhausted) => panic!("{exhausted}"),
        };
        match send(outbound, target, connection).await {
            ExchangeResult::Sent(sent) => match sent.result {
                SendResult::Answer { status, .. } => Ok(status),
                SendResult::Failure(failure) => {
                    assert_eq!(failure, Failure::Tls, "{:?}", sent.error);
                    Err(sent.error.unwrap())
                }
            },
            ExchangeResult::NotSent(failed) => {
                assert_eq!(failed.failure, Failure::Tls, "{failed}");
                Err(failed.error)
            }
            ExchangeResult::Withdrawn => panic!("withdrawn"),
        }
    };
    let receiving = async {
        if let Ok(mut wire) = accepted(receiver).await {
            wire.answer(OK).await;
            // The connection stays open until the answer is read.
            return Some(wire);
        }
        None
    };
    let (result, _wire) = tokio::join!(sending, receiving);
    result
}

async fn accepted(receiver: &TlsReceiver) -> io::Result<Wire<TlsStream<TcpStream>>> {
    let stream = receiver.listener.accept().await?.0;
    Ok(Wire { stream: receiver.acceptor.accept(stream).await? })
}

#[tokio::test]
async fn an_authority_of_a_destination_is_trusted_instead_of_the_public_ones() {
    let (public, private) = (Authority::new(), Authority::new());
    let outbound = trusting(public.trusted());
    let (known, unknown) = (public.receiver("localhost").await, private.receiver("localhost").await);
    let trusts = async |receiver: &TlsReceiver, ca: Option<&Authority>| {
        exchanged(&outbound, receiver, &with(receiver.target("localhost"), ca, None)).await
    };
    assert_eq!(trusts(&known, None).await, Ok(200));
    assert_eq!(trusts(&unknown, Some(&private)).await, Ok(200));
    let untrusted = Err("certificate not trusted: unknown issuer".to_owned());
    assert_eq!((trusts(&unknown, None).await, trusts(&known, Some(&private)).await), (untrusted.clone(), untrusted));
}

#[tokio::test]
async fn a_receiver_that_requires_a_client_certificate_gets_it() {
    let (authority, other) = (Authority::new(), Authority::new());
    let outbound = trusting(authority.trusted());
    let (client, stranger, expired) =
        (authority.client("weir", false), other.client("weir", false), authority.client("weir", true));
    for version in [&TLS12, &TLS13] {
        let clients_of = Some(&authority);
        let strictness = Strictness { clients_of, only: Some(version), ..Strictness::default() };
        let receiver = authority.receiver_of("localhost", strictness).await;
        let shows = async |client: Option<&ClientCertificate>| {
            exchanged(&outbound, &receiver, &with(receiver.target("localhost"), None, client)).await
        };
        assert_eq!(shows(Some(&client)).await, Ok(200), "{version:?}");
        for (client, cause) in
            [(None, "client certificate"), (Some(&stranger), "authority"), (Some(&expired), "has expired")]
        {
            let refusal = shows(client).await.unwrap_err();
            assert!(refusal.starts_with("TLS refused by the server: ") && refusal.contains(cause), "{refusal}");
        }
    }
}

#[tokio::test]
async fn an_expired_certificate_of_a_receiver_is_refused_under_its_own_authority_too() {
    let authority = Authority::new();
    let receiver = authority.receiver_of("localhost", Strictness { has_expired: true, ..Strictness::default() }).await;
    let target = with(receiver.target("localhost"), Some(&authority), None);
    let refusal = exchanged(&trusting(TlsRoots::none()), &receiver, &target).await.unwrap_err();
    assert_eq!(refusal, "certificate not trusted: expired");
}

#[tokio::test]
async fn connections_of_different_identities_are_never_shared() {
    let authority = Authority::new();
    let clients_of = Some(&authority);
    let receiver = authority.receiver_of("localhost", Strictness { clients_of, ..Strictness::default() }).await;
    let outbound = trusting(authority.trusted());
    let clients = [authority.client("one", false), authority.client("two", false)];
    let targets = clients.each_ref().map(|client| with(receiver.target("localhost"), None, Some(client)));
    let mut wires = Vec::new();
    for target in &targets {
        let (found, wire) = tokio::join!(connect(&outbound, target), accepted(&receiver));
        let (found, mut wire) = (found.unwrap(), wire.unwrap());
        assert!(!found.warm, "the connection of the other identity is idle");
        let (sent, ()) = tokio::join!(send(&outbound, target, found.connection), wire.answer(OK));
        assert!(matches!(sent, ExchangeResult::Sent(_)));
        wires.push(wire);
    }
    let shown = wires.iter().map(|wire| wire.stream.get_ref().1.peer_certificates().unwrap()[0].clone());
    let shown: Vec<_> = shown.collect();
    assert_ne!(shown[0], shown[1]);
    for target in &targets {
        assert!(connect(&outbound, target).await.unwrap().warm, "each has its own");
    }
    // The same settings, compiled again after an edit of something else.
    let again = with(receiver.target("localhost"), None, Some(&clients[0]));
    assert!(outbound.checkout(&again).is_none(), "it is in use");
}
