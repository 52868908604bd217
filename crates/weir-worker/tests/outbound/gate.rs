//! What leaves, and when: everything inside the slot, nothing outside of it.

use std::{pin::pin, time::Duration};

use bytes::Bytes;
use futures_util::future::poll_immediate;
use tokio::task::coop::consume_budget;
use weir_core::{Slot, outcome::Failure};
use weir_worker::outbound::{Outbound, SendResult, Target, TlsRoots};

use crate::support::*;

#[tokio::test]
async fn a_request_leaves_inside_its_slot_and_says_when() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = outbound.connect(&target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        let request = wire.request().await;
        wire.say(OK).await;
        request
    };
    let (result, request) = tokio::join!(send(&outbound, &target, connection), receiver);
    let sent = sent(result);
    let sent_at = sent.sent_at.unwrap();
    assert!(wide().contains(sent_at) && sent_at <= sent.ended_at);
    assert_eq!((status(&sent), sent.response_body.as_deref(), sent.error), (200, Some("ok"), None));
    let (head, body) = request.split_once("\r\n\r\n").unwrap();
    assert_eq!(body.as_bytes(), BODY);
    assert_eq!(head.lines().next(), Some("POST /hook?a=b HTTP/1.1"));
    let host = format!("host: {}", listener.local_addr().unwrap());
    for line in [
        "content-type: application/json",
        "webhook-id: evt_1",
        "webhook-timestamp: 1700000000",
        "webhook-signature: v1,c2ln",
        "weir-attempt: 1",
        "content-length: 17",
        &host,
    ] {
        assert_eq!(head.lines().filter(|&found| found == line).count(), 1, "{line}\n{head}");
    }
    assert_eq!(head.lines().count(), 9, "{head}");
}

#[tokio::test]
async fn a_slot_that_is_over_costs_neither_a_byte_nor_the_connection() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = outbound.connect(&target).await.unwrap().connection;
    let body = Bytes::from_static(BODY);
    let result = outbound.send(&target, connection, head(&target), body, over(), PATIENCE).await;
    assert!(matches!(result, SendResult::SlotMissed));

    let connection = outbound.checkout(&target).expect("the connection went back");
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        let request = wire.request().await;
        wire.say(OK).await;
        request
    };
    let (result, request) = tokio::join!(send(&outbound, &target, connection), receiver);
    assert_eq!(status(&sent(result)), 200);
    assert_eq!(request.matches("POST").count(), 1);
}

#[tokio::test]
async fn a_slot_that_has_not_begun_is_not_waited_for() {
    let outbound = outbound();
    let (_listener, target) = plain_receiver().await;
    let connection = outbound.connect(&target).await.unwrap().connection;
    let start = EPOCH + Duration::from_secs(3_600);
    let slot = Slot { start, end: start + Duration::from_millis(10) };
    let result = outbound.send(&target, connection, head(&target), Bytes::from_static(BODY), slot, PATIENCE).await;
    assert!(matches!(result, SendResult::SlotMissed));
    assert!(outbound.checkout(&target).is_some());
}

/// An outbound side whose clock is after the end of [`wide`] at its first look, at the wire.
fn late_at_the_wire(roots: TlsRoots) -> Outbound {
    Outbound::new(loopback(), roots, TestClock::scripted([wide().end]))
}

async fn missed_at_the_wire(outbound: &Outbound, target: &Target, body: Bytes) {
    let connection = outbound.connect(target).await.unwrap().connection;
    let result = outbound.send(target, connection, head(target), body, wide(), PATIENCE).await;
    assert!(matches!(result, SendResult::SlotMissed), "{result:?}");
    drop(outbound.checkout(target).expect("the connection went back"));
}

#[tokio::test]
async fn a_slot_that_ends_at_the_wire_lets_no_byte_leave_whatever_the_body() {
    for body in [Bytes::from_static(BODY), Bytes::new(), Bytes::from(vec![b'x'; 4 << 20])] {
        let (listener, target) = plain_receiver().await;
        missed_at_the_wire(&late_at_the_wire(TlsRoots::none()), &target, body).await;
        assert_eq!(Wire::accept(&listener).await.rest().await, b"");
    }
}

#[tokio::test]
async fn a_slot_that_ends_at_the_wire_lets_no_byte_of_a_large_head_leave() {
    let (listener, _) = plain_receiver().await;
    let long = vec![("x-long".to_owned(), "x".repeat(4_096)); 32];
    let target = target_with(&format!("http://{}/", listener.local_addr().unwrap()), &long);
    missed_at_the_wire(&late_at_the_wire(TlsRoots::none()), &target, Bytes::from_static(BODY)).await;
    assert_eq!(Wire::accept(&listener).await.rest().await, b"");
}

#[tokio::test]
async fn a_slot_that_ends_at_the_wire_lets_no_byte_leave_under_tls() {
    let authority = Authority::new();
    let receiver = authority.receiver("127.0.0.1").await;
    let target = receiver.target("127.0.0.1");
    let outbound = late_at_the_wire(authority.trusted());
    let seen = async { receiver.accept().await.rest().await };
    let ((), seen) = tokio::join!(missed_at_the_wire(&outbound, &target, Bytes::from_static(BODY)), seen);
    assert_eq!(seen, b"");
}

#[tokio::test]
async fn a_slot_that_ends_at_the_wire_lets_no_byte_leave_on_a_used_connection() {
    // The send start, the end of the answer, and the next send.
    let clock = TestClock::scripted([EPOCH, EPOCH, wide().end]);
    let outbound = Outbound::new(loopback(), TlsRoots::none(), clock);
    let (listener, target) = plain_receiver().await;
    let connection = outbound.connect(&target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.answer(OK).await;
        wire
    };
    let (result, mut wire) = tokio::join!(send(&outbound, &target, connection), receiver);
    assert_eq!(sent(result).sent_at, Some(EPOCH));
    let connection = outbound.checkout(&target).unwrap();
    assert!(matches!(send(&outbound, &target, connection).await, SendResult::SlotMissed));
    drop(outbound.checkout(&target).expect("the connection went back"));
    assert_eq!(wire.rest().await, b"");
}

#[tokio::test]
async fn an_empty_body_goes_through_the_gate_too() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = outbound.connect(&target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        let request = wire.request().await;
        wire.say(OK).await;
        request
    };
    let sending = outbound.send(&target, connection, head(&target), Bytes::new(), wide(), PATIENCE);
    let (result, request) = tokio::join!(sending, receiver);
    assert!(sent(result).sent_at.is_some());
    assert!(request.contains("content-length: 0\r\n"), "{request}");
}

#[tokio::test]
async fn a_task_that_has_used_up_its_budget_sends_in_time_all_the_same() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = outbound.connect(&target).await.unwrap().connection;
    let receiver = tokio::spawn(async move { Wire::accept(&listener).await.answer(OK).await });
    while poll_immediate(pin!(consume_budget())).await.is_some() {}
    assert_eq!(status(&sent(send(&outbound, &target, connection).await)), 200);
    receiver.await.unwrap();
}

#[tokio::test]
async fn dropping_a_send_closes_the_connection() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = outbound.connect(&target).await.unwrap().connection;
    let mut wire = Wire::accept(&listener).await;
    tokio::select! {
        result = send(&outbound, &target, connection) => panic!("{result:?}"),
        _ = wire.request() => {}
    }
    assert_eq!(wire.rest().await, b"");
    assert!(outbound.checkout(&target).is_none());
}

#[tokio::test]
async fn a_target_that_cannot_be_sent_to_says_so_and_is_not_connected_to() {
    let (listener, _) = plain_receiver().await;
    let injected = [("x-a".to_owned(), "b\r\nwebhook-id: forged".to_owned())];
    let target = target_with(&format!("http://{}/", listener.local_addr().unwrap()), &injected);
    let outbound = outbound();
    assert!(outbound.checkout(&target).is_none());
    let refused = outbound.connect(&target).await.err().unwrap();
    assert_eq!((refused.failure, &*refused.error), (Failure::Forbidden, "a header value cannot be sent"));
}
