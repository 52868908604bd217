//! Requests are sent inside their slots, and no byte is sent outside.

use std::{io::ErrorKind, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::future::poll_immediate;
use tokio::{net::TcpStream, task::coop::consume_budget};
use weir_core::{Clock as _, Slot, outcome::Failure};
use weir_worker::outbound::{Connection, ExchangeResult, Outbound, SlotSource, Target, TlsRoots};

use crate::support::*;

async fn posted<const N: usize>(
    outbound: &Outbound,
    target: &Target,
    connection: Connection,
    slots: [Slot; N],
) -> ExchangeResult {
    post(outbound, target, connection, Bytes::from_static(BODY), &mut Slots::from(slots), PATIENCE).await
}

#[tokio::test]
async fn a_request_is_sent_inside_its_slot_and_reports_the_send_start() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
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
async fn in_a_slot_that_is_over_no_byte_is_sent_and_the_connection_is_kept() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let result = posted(&outbound, &target, connection, [over(), over()]).await;
    assert!(matches!(result, ExchangeResult::Withdrawn));

    let connection = outbound.checkout(&target).expect("the connection went back");
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        let request = wire.request().await;
        wire.say(OK).await;
        request
    };
    let (result, request) = tokio::join!(posted(&outbound, &target, connection, [over(), wide()]), receiver);
    assert_eq!(status(&sent(result)), 200);
    assert_eq!(request.matches("POST").count(), 1);
}

#[tokio::test]
async fn a_request_without_a_slot_is_withdrawn_and_keeps_its_connection() {
    let outbound = outbound();
    let (_listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    assert!(matches!(posted(&outbound, &target, connection, []).await, ExchangeResult::Withdrawn));
    assert!(outbound.checkout(&target).is_some());
}

#[tokio::test]
async fn a_slot_that_has_not_begun_is_waited_for() {
    let clock = TestClock::running();
    let outbound = Outbound::new(loopback(), TlsRoots::none(), clock.clone());
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let start = clock.now() + Duration::from_millis(100);
    let slot = Slot { start, end: start + Duration::from_secs(60) };
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.stream.peek(&mut [0]).await.unwrap();
        let came_at = clock.now();
        wire.answer(OK).await;
        came_at
    };
    let (result, came_at) = tokio::join!(posted(&outbound, &target, connection, [slot]), receiver);
    let sent_at = sent(result).sent_at.unwrap();
    assert!(slot.contains(sent_at) && came_at >= start);
}

/// A source of slots that checks each time that the receiver has received nothing.
struct WatchingSlots {
    slots: Slots,
    wire: std::net::TcpStream,
    asked: usize,
}

impl SlotSource for WatchingSlots {
    async fn next(&mut self) -> Option<Slot> {
        // Bytes written on loopback arrive at once.
        let seen = self.wire.peek(&mut [0]);
        assert_eq!(seen.map_err(|error| error.kind()), Err(ErrorKind::WouldBlock));
        self.asked += 1;
        self.slots.next().await
    }
}

/// An outbound client whose clock shows [`EPOCH`] before the gate and the end of [`wide`] at the gate, `times` times.
fn late_at_the_gate(roots: TlsRoots, times: usize) -> Outbound {
    let looks = [EPOCH, wide().end].repeat(times);
    Outbound::new(loopback(), roots, TestClock::scripted(looks))
}

#[tokio::test]
async fn a_slot_missed_at_the_gate_keeps_the_connection_and_takes_another_slot() {
    for body in [Bytes::from_static(BODY), Bytes::new(), Bytes::from(vec![b'x'; 4 << 20])] {
        let outbound = late_at_the_gate(TlsRoots::none(), 2);
        let (listener, target) = plain_receiver().await;
        let connection = connect(&outbound, &target).await.unwrap().connection;
        let wire = listener.accept().await.unwrap().0.into_std().unwrap();
        let slots = Slots::from([wide(), wide(), wide()]);
        let mut slots = WatchingSlots { slots, wire: wire.try_clone().unwrap(), asked: 0 };
        let mut wire = Wire { stream: TcpStream::from_std(wire).unwrap() };
        let receiver = async {
            let request = wire.request().await;
            wire.say(OK).await;
            request
        };
        let sending = post(&outbound, &target, connection, body.clone(), &mut slots, PATIENCE);
        let (result, request) = tokio::join!(sending, receiver);
        assert_eq!(status(&sent(result)), 200);
        assert_eq!((slots.asked, request.matches("POST").count()), (3, 1));
        assert!(request.as_bytes().ends_with(&body));
        assert!(outbound.checkout(&target).is_some());
    }
}

async fn missed_at_the_gate(outbound: &Outbound, target: &Target, body: Bytes) {
    let connection = connect(outbound, target).await.unwrap().connection;
    let result = post(outbound, target, connection, body, &mut Slots::from([wide()]), PATIENCE).await;
    assert!(matches!(result, ExchangeResult::Withdrawn), "{result:?}");
    assert!(outbound.checkout(target).is_none(), "hyper holds a request that must not be sent");
}

#[tokio::test]
async fn in_a_slot_that_ends_at_the_gate_no_byte_of_any_body_is_sent() {
    for body in [Bytes::from_static(BODY), Bytes::new(), Bytes::from(vec![b'x'; 4 << 20])] {
        let (listener, target) = plain_receiver().await;
        missed_at_the_gate(&late_at_the_gate(TlsRoots::none(), 1), &target, body).await;
        assert_eq!(Wire::accept(&listener).await.read_to_end().await, b"");
    }
}

#[tokio::test]
async fn in_a_slot_that_ends_at_the_gate_no_byte_of_a_large_head_is_sent() {
    let (listener, _) = plain_receiver().await;
    let long = vec![("x-long".to_owned(), "x".repeat(4_096)); 32];
    let target = target_with(&format!("http://{}/", listener.local_addr().unwrap()), &long);
    missed_at_the_gate(&late_at_the_gate(TlsRoots::none(), 1), &target, Bytes::from_static(BODY)).await;
    assert_eq!(Wire::accept(&listener).await.read_to_end().await, b"");
}

#[tokio::test]
async fn in_a_slot_that_ends_at_the_gate_no_byte_is_sent_over_tls() {
    let authority = Authority::new();
    let receiver = authority.receiver("127.0.0.1").await;
    let target = receiver.target("127.0.0.1");
    let outbound = late_at_the_gate(authority.trusted(), 1);
    let seen = async { receiver.accept().await.read_to_end().await };
    let ((), seen) = tokio::join!(missed_at_the_gate(&outbound, &target, Bytes::from_static(BODY)), seen);
    assert_eq!(seen, b"");
}

#[tokio::test]
async fn a_slot_missed_over_tls_keeps_the_connection_too() {
    let authority = Authority::new();
    let receiver = authority.receiver("127.0.0.1").await;
    let target = receiver.target("127.0.0.1");
    let outbound = late_at_the_gate(authority.trusted(), 1);
    let sending = async {
        let connection = connect(&outbound, &target).await.unwrap().connection;
        posted(&outbound, &target, connection, [wide(), wide()]).await
    };
    let receiving = async { receiver.accept().await.answer(OK).await };
    let (result, ()) = tokio::join!(sending, receiving);
    assert_eq!(status(&sent(result)), 200);
}

#[tokio::test]
async fn in_a_slot_that_ends_at_the_gate_no_byte_is_sent_on_a_used_connection() {
    // The readings of the clock: for the first send the check of the slot's start, the send start and the end of the
    // answer; for the second send the check of the slot, and the write, which is too late.
    let clock = TestClock::scripted([EPOCH, EPOCH, EPOCH, EPOCH, wide().end]);
    let outbound = Outbound::new(loopback(), TlsRoots::none(), clock);
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.answer(OK).await;
        wire
    };
    let (result, mut wire) = tokio::join!(send(&outbound, &target, connection), receiver);
    assert_eq!(sent(result).sent_at, Some(EPOCH));
    let connection = outbound.checkout(&target).unwrap();
    assert!(matches!(send(&outbound, &target, connection).await, ExchangeResult::Withdrawn));
    assert_eq!(wire.read_to_end().await, b"");
}

/// A source whose first slot is missed. Then the server sends something or closes, and the next slot starts after that
/// has arrived.
struct InterruptedSlots {
    clock: Arc<TestClock>,
    wire: Option<Wire<TcpStream>>,
    says: &'static str,
    asked: usize,
}

impl SlotSource for InterruptedSlots {
    async fn next(&mut self) -> Option<Slot> {
        self.asked += 1;
        if self.asked == 1 {
            return Some(wide());
        }
        if let Some(mut wire) = self.wire.take() {
            wire.say(self.says).await;
            self.wire = (!self.says.is_empty()).then_some(wire);
        }
        let start = self.clock.now() + Duration::from_millis(50);
        Some(Slot { start, end: wide().end })
    }
}

#[tokio::test]
async fn nothing_is_sent_after_the_server_has_closed_or_sent_data_between_two_slots() {
    for says in ["", "HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n"] {
        let clock = TestClock::scripted([EPOCH, wide().end]);
        let outbound = Outbound::new(loopback(), TlsRoots::none(), clock.clone());
        let (listener, target) = plain_receiver().await;
        let connection = connect(&outbound, &target).await.unwrap().connection;
        let wire = Some(Wire::accept(&listener).await);
        let mut slots = InterruptedSlots { clock, wire, says, asked: 0 };
        let result = post(&outbound, &target, connection, Bytes::from_static(BODY), &mut slots, PATIENCE).await;
        assert!(matches!(result, ExchangeResult::NotSent(_)), "{result:?}");
        assert_eq!(slots.asked, 2);
        if let Some(mut wire) = slots.wire {
            assert_eq!(wire.read_to_end().await, b"");
        }
        assert!(outbound.checkout(&target).is_none());
    }
}

#[tokio::test]
async fn a_request_with_an_empty_body_passes_the_gate_too() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        let request = wire.request().await;
        wire.say(OK).await;
        request
    };
    let mut slots = Slots::from([wide()]);
    let sending = post(&outbound, &target, connection, Bytes::new(), &mut slots, PATIENCE);
    let (result, request) = tokio::join!(sending, receiver);
    assert!(sent(result).sent_at.is_some());
    assert!(request.contains("content-length: 0\r\n"), "{request}");
}

#[tokio::test]
async fn a_task_without_tokio_budget_sends_in_time() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let receiver = tokio::spawn(async move { Wire::accept(&listener).await.answer(OK).await });
    while poll_immediate(pin!(consume_budget())).await.is_some() {}
    assert_eq!(status(&sent(send(&outbound, &target, connection).await)), 200);
    receiver.await.unwrap();
}

#[tokio::test]
async fn dropping_a_send_closes_the_connection() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let mut wire = Wire::accept(&listener).await;
    tokio::select! {
        result = send(&outbound, &target, connection) => panic!("{result:?}"),
        _ = wire.request() => {}
    }
    assert_eq!(wire.read_to_end().await, b"");
    assert!(outbound.checkout(&target).is_none());
}

#[tokio::test]
async fn a_target_with_an_invalid_header_is_refused_without_a_connection() {
    let (listener, _) = plain_receiver().await;
    let injected = [("x-a".to_owned(), "b\r\nwebhook-id: forged".to_owned())];
    let target = target_with(&format!("http://{}/", listener.local_addr().unwrap()), &injected);
    let outbound = outbound();
    assert!(outbound.checkout(&target).is_none());
    let refused = unreachable(connect(&outbound, &target).await);
    assert_eq!((refused.failure, &*refused.error), (Failure::Forbidden, "a header value cannot be sent"));
}
