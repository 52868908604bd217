//! What is recorded of an exchange beside its result.

use weir_worker::outbound::{Outbound, TlsRoots};

use crate::support::*;

fn header(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[tokio::test]
async fn only_the_first_exchange_of_a_connection_has_the_times_of_its_dial() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.answer(OK).await;
        wire.answer(OK).await;
    };
    let sending = async {
        let mut connections = Vec::new();
        for _ in 0..2 {
            let connection = connect(&outbound, &target).await.unwrap().connection;
            connections.push(sent(send(&outbound, &target, connection).await).details.connection.unwrap());
        }
        connections
    };
    let (connections, ()) = tokio::join!(sending, receiver);
    let address = listener.local_addr().unwrap();
    assert_eq!(connections.iter().map(|connection| connection.remote_address).collect::<Vec<_>>(), [address; 2]);
    assert!(connections[0].connect_ms.is_some_and(|took| took < 10_000), "{connections:?}");
    assert_eq!((connections[0].tls_ms, connections[1].connect_ms, connections[1].tls_ms), (None, None, None));
}

#[tokio::test]
async fn the_time_of_the_tls_handshake_is_recorded() {
    let authority = Authority::new();
    let receiver = authority.receiver("127.0.0.1").await;
    let target = receiver.target("127.0.0.1");
    let outbound = Outbound::new(loopback(), authority.trusted(), TestClock::running());
    let sending = async {
        let connection = connect(&outbound, &target).await.unwrap().connection;
        sent(send(&outbound, &target, connection).await).details.connection.unwrap()
    };
    let (connection, ()) = tokio::join!(sending, async { receiver.accept().await.answer(OK).await });
    assert_eq!(connection.remote_address, receiver.address());
    assert!(connection.connect_ms.is_some() && connection.tls_ms.is_some(), "{connection:?}");
}

#[tokio::test]
async fn headers_of_an_answer_are_recorded_without_its_credentials() {
    let answer = "HTTP/1.1 503 Service Unavailable\r\nserver: nginx\r\nset-cookie: id=s3cret\r\nx-request-id: r-1\r\n\
        x-auth-token: s3cret\r\ncontent-length: 0\r\n\r\n";
    let sent = exchange(&outbound(), PATIENCE, async |mut wire| wire.answer(answer).await).await;
    let expected = [header("server", "nginx"), header("x-request-id", "r-1"), header("content-length", "0")];
    assert_eq!(sent.details.response_headers, expected);
}

#[tokio::test]
async fn an_exchange_without_an_answer_has_no_headers_and_a_remote_address() {
    let outbound = Outbound::new(loopback(), TlsRoots::none(), TestClock::running());
    let sent = exchange(&outbound, PATIENCE, async |mut wire| drop(wire.request().await)).await;
    assert_eq!(sent.details.response_headers, []);
    assert!(sent.details.connection.is_some());
}
