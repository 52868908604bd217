//! Connections that are reused, and those that must not be.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use futures_util::future::{join_all, poll_immediate};
use tokio::{
    io::AsyncReadExt,
    net::TcpStream,
    time::{advance, pause, resume, timeout},
};
use weir_core::outcome::{Failure, SendResult};
use weir_worker::outbound::{Checkout, Connection, ExchangeResult, Outbound, Sent, Target};

use crate::support::*;

/// Sends over a pooled connection, or over a new one when there is none.
async fn deliver(outbound: &Outbound, target: &Target) -> (ExchangeResult, bool) {
    let Checkout { connection, warm } = connect(outbound, target).await.unwrap();
    (send(outbound, target, connection).await, warm)
}

/// Makes one exchange over a new connection. Returns the target and the receiver's end of the connection.
async fn used(outbound: &Outbound, answer: &str) -> (Target, Wire<TcpStream>) {
    let (listener, target) = plain_receiver().await;
    let connection = connect(outbound, &target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.answer(answer).await;
        wire
    };
    let (result, wire) = tokio::join!(send(outbound, &target, connection), receiver);
    sent(result);
    (target, wire)
}

/// Polls a connect once, which joins the wait queue.
async fn join_queue<F: Future>(asking: Pin<&mut F>) {
    assert!(poll_immediate(asking).await.is_none(), "a connection was idle");
}

/// Waits until the connection notices that the server has closed it.
async fn until_closed(connection: &mut Connection) {
    let closed = async {
        while connection.is_open() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, closed).await.unwrap();
}

#[tokio::test]
async fn a_kept_connection_carries_every_request() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let receiver = tokio::spawn(async move {
        let mut wire = Wire::accept(&listener).await;
        for _ in 0..100 {
            wire.answer(OK).await;
        }
        wire
    });
    for round in 0..100 {
        let (result, warm) = deliver(&outbound, &target).await;
        assert_eq!(status(&sent(result)), 200);
        assert_eq!(warm, round > 0);
    }
    receiver.await.unwrap();
}

#[tokio::test]
async fn answers_of_every_framing_leave_the_connection_usable() {
    let framings = [
        "HTTP/1.1 204 No Content\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-trailer: 1\r\n\r\n",
        "HTTP/1.1 500 Internal Server Error\r\ncontent-length: 3\r\n\r\noh!",
        "HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok",
    ];
    for framing in framings {
        let outbound = outbound();
        let (target, mut wire) = used(&outbound, framing).await;
        let connection = outbound.checkout(&target).unwrap_or_else(|| panic!("{framing}"));
        let (result, ()) = tokio::join!(send(&outbound, &target, connection), wire.answer(OK));
        assert_eq!(status(&sent(result)), 200, "{framing}");
    }
}

#[tokio::test]
async fn a_server_that_closes_after_each_answer_is_dialled_each_time() {
    for closing in [
        "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        "HTTP/1.1 200 OK\r\n\r\nok",
    ] {
        let outbound = outbound();
        let (listener, target) = plain_receiver().await;
        let receiver = tokio::spawn(async move {
            for _ in 0..5 {
                let mut wire = Wire::accept(&listener).await;
                wire.answer(closing).await;
            }
        });
        for _ in 0..5 {
            let (result, warm) = deliver(&outbound, &target).await;
            let sent = sent(result);
            assert_eq!((status(&sent), sent.response_body.as_deref()), (200, Some("ok")));
            assert!(!warm);
        }
        receiver.await.unwrap();
    }
}

#[tokio::test]
async fn an_idle_connection_that_the_server_closed_is_not_checked_out() {
    let outbound = outbound();
    let (target, wire) = used(&outbound, OK).await;
    drop(wire);
    let gone = async {
        while let Some(connection) = outbound.checkout(&target) {
            outbound.give_back(&target, connection);
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();
}

#[tokio::test]
async fn a_connection_closed_after_its_checkout_is_not_used_and_no_attempt() {
    let outbound = outbound();
    let (target, wire) = used(&outbound, OK).await;
    let mut connection = outbound.checkout(&target).unwrap();
    assert!(connection.is_open());
    drop(wire);
    until_closed(&mut connection).await;
    match send(&outbound, &target, connection).await {
        ExchangeResult::NotSent(unreachable) => assert_eq!(unreachable.failure, Failure::Connect),
        other => panic!("{other:?}"),
    }
    assert!(outbound.checkout(&target).is_none());
}

/// Sends a second request on one connection, which the server reads, answers with `says`, and closes.
async fn cut_on_reuse(says: &str, resets: bool) -> Sent {
    let outbound = outbound();
    let (target, mut wire) = used(&outbound, OK).await;
    let connection = outbound.checkout(&target).unwrap();
    let receiver = async {
        wire.answer(says).await;
        if resets {
            wire.reset();
        }
    };
    let (result, ()) = tokio::join!(send(&outbound, &target, connection), receiver);
    sent(result)
}

#[tokio::test]
async fn a_request_on_a_reused_connection_closed_without_an_answer_is_marked() {
    for resets in [false, true] {
        let sent = cut_on_reuse("", resets).await;
        assert!(sent.cut_on_reuse && sent.sent_at.is_some());
        assert_eq!(sent.result, SendResult::Failure(Failure::Broken));
    }
}

#[tokio::test]
async fn a_request_cut_after_a_byte_of_answer_or_on_a_new_connection_is_not_marked() {
    for says in ["H", "HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n", "nonsense\r\n\r\n"] {
        assert!(!cut_on_reuse(says, false).await.cut_on_reuse, "{says}");
    }
    let first = exchange(&outbound(), PATIENCE, async |mut wire| drop(wire.request().await)).await;
    assert!(!first.cut_on_reuse);
    assert_eq!(first.result, SendResult::Failure(Failure::Broken));
}

#[tokio::test]
async fn a_timeout_on_a_reused_connection_is_not_marked() {
    let outbound = outbound();
    let (target, _wire) = used(&outbound, OK).await;
    let connection = outbound.checkout(&target).unwrap();
    let sent = sent(send_for(&outbound, &target, connection, Duration::from_millis(50)).await);
    assert_eq!((sent.result, sent.cut_on_reuse), (SendResult::Failure(Failure::Timeout), false));
}

/// At twelve requests a minute to a server with an idle timeout of five seconds, each request would collide with the
/// close.
#[tokio::test]
async fn a_connection_is_not_used_in_the_last_second_that_its_server_names() {
    for (keeps, passed, fit) in [
        ("timeout=5", 3_900, true),
        ("timeout=5, max=1000", 4_000, false),
        ("timeout=5", 5_000, false),
        ("timeout=1", 0, false),
        ("timeout=600", 59_000, true),
        ("timeout=600", 60_000, false),
        ("max=1000", 59_000, true),
    ] {
        let outbound = outbound();
        let answer = format!("HTTP/1.1 200 OK\r\nkeep-alive: {keeps}\r\ncontent-length: 0\r\n\r\n");
        let (target, _wire) = used(&outbound, &answer).await;
        pause();
        advance(Duration::from_millis(passed)).await;
        let connection = outbound.checkout(&target);
        assert_eq!(connection.is_some(), fit, "{keeps} after {passed} ms");
        // A connection that is checked out and given back unused has not become younger.
        if let Some(connection) = connection {
            outbound.give_back(&target, connection);
            advance(Duration::from_millis(1_100)).await;
            assert!(outbound.checkout(&target).is_none(), "{keeps}");
        }
        resume();
    }
}

/// Most servers do not name their idle timeout.
#[tokio::test]
async fn the_idle_timeout_of_a_server_is_learned_from_a_connection_that_it_closed() {
    let (outbound, (listener, target)) = (outbound(), plain_receiver().await);
    let used = async || {
        let connection = connect(&outbound, &target).await.unwrap().connection;
        let receiver = async {
            let mut wire = Wire::accept(&listener).await;
            wire.answer(OK).await;
            wire
        };
        let (result, wire) = tokio::join!(send(&outbound, &target, connection), receiver);
        sent(result);
        wire
    };
    let is_idle = || {
        let connection = outbound.checkout(&target);
        connection.map(|connection| outbound.give_back(&target, connection)).is_some()
    };
    let wire = used().await;
    pause();
    advance(Duration::from_secs(5)).await;
    assert!(is_idle());
    resume();
    drop(wire);
    let gone = async {
        while is_idle() {
            tokio::task::yield_now().await;
        }
    };
    timeout(PATIENCE, gone).await.unwrap();

    let _wire = used().await;
    pause();
    advance(Duration::from_millis(3_900)).await;
    assert!(is_idle());
    advance(Duration::from_millis(300)).await;
    assert!(!is_idle(), "a request would collide with the close");
    resume();
}

/// A failover by DNS takes effect even when the connection is busy.
#[tokio::test]
async fn a_busy_connection_is_closed_within_five_minutes() {
    let outbound = outbound();
    let (target, mut wire) = used(&outbound, OK).await;
    let mut age = 0;
    while let Some(connection) = outbound.checkout(&target) {
        let (result, ()) = tokio::join!(send(&outbound, &target, connection), wire.answer(OK));
        assert_eq!(status(&sent(result)), 200);
        pause();
        advance(Duration::from_secs(5)).await;
        resume();
        age += 5;
    }
    assert!((240..=300).contains(&age), "{age} s");
}

#[tokio::test]
async fn a_connection_on_which_the_server_sent_unrequested_data_is_not_used() {
    let outbound = outbound();
    let (target, mut wire) = used(&outbound, OK).await;
    let mut connection = outbound.checkout(&target).unwrap();
    wire.say("HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n").await;
    until_closed(&mut connection).await;
    assert!(matches!(send(&outbound, &target, connection).await, ExchangeResult::NotSent(_)));
}

#[tokio::test]
async fn a_connection_that_was_never_used_is_kept_too() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    outbound.give_back(&target, connection);
    let connection = outbound.checkout(&target).unwrap();
    let receiver = async { Wire::accept(&listener).await.answer(OK).await };
    let (result, ()) = tokio::join!(send(&outbound, &target, connection), receiver);
    assert_eq!(status(&sent(result)), 200);
}

#[tokio::test]
async fn the_connection_used_last_is_used_first() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let first = connect(&outbound, &target).await.unwrap().connection;
    let _first_wire = Wire::accept(&listener).await;
    let second = connect(&outbound, &target).await.unwrap().connection;
    let mut second_wire = Wire::accept(&listener).await;
    outbound.give_back(&target, first);
    outbound.give_back(&target, second);
    let connection = outbound.checkout(&target).unwrap();
    let (result, ()) = tokio::join!(send(&outbound, &target, connection), second_wire.answer(OK));
    assert_eq!(status(&sent(result)), 200);
}

#[tokio::test]
async fn connections_of_one_origin_are_not_used_for_another() {
    let outbound = outbound();
    let (target, _wire) = used(&outbound, OK).await;
    let (_listener, other) = plain_receiver().await;
    assert!(outbound.checkout(&other).is_none());
    assert!(outbound.checkout(&target).is_some());
    assert!(outbound.checkout(&target).is_none(), "one connection is checked out once");
}

#[tokio::test]
async fn a_connection_answered_before_the_whole_request_was_read_is_not_reused() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.stream.read_u8().await.unwrap();
        wire.say("HTTP/1.1 413 Payload Too Large\r\ncontent-length: 0\r\n\r\n").await;
        wire
    };
    let body = vec![b'x'; 64 << 20].into();
    let mut slots = Slots::from([wide()]);
    let sending = post(&outbound, &target, connection, body, &mut slots, PATIENCE);
    let (result, _wire) = tokio::join!(sending, receiver);
    assert_eq!(status(&sent(result)), 413);
    assert!(outbound.checkout(&target).is_none());
}

#[tokio::test]
async fn a_waiter_gets_a_returned_connection_before_its_dial_ends() {
    let authority = Authority::new();
    let receiver = authority.receiver("localhost").await;
    let target = receiver.target("localhost");
    let outbound = Outbound::new(loopback(), authority.trusted(), TestClock::running());
    let (first, _first_wire) = tokio::join!(connect(&outbound, &target), receiver.accept());
    let first = first.unwrap();
    assert!(!first.warm);

    // The receiver delays the second handshake.
    let mut second = pin!(connect(&outbound, &target));
    join_queue(second.as_mut()).await;
    let (late, _) = receiver.listener.accept().await.unwrap();
    outbound.give_back(&target, first.connection);
    let second = timeout(PATIENCE, second).await.unwrap().unwrap();
    assert!(second.warm);

    // The third checkout needs no dial: one is under way that no other waiter needs.
    let mut third = pin!(connect(&outbound, &target));
    join_queue(third.as_mut()).await;
    let (third, _late_wire) = tokio::join!(third, receiver.acceptor.accept(late));
    assert!(!third.unwrap().warm);
    assert!(poll_immediate(pin!(receiver.listener.accept())).await.is_none(), "more dials than waiters");
    drop(second);
}

#[tokio::test]
async fn each_failed_dial_fails_one_waiter() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    drop(listener);
    let asked = join_all((0..8).map(|_| connect(&outbound, &target)));
    let answers = timeout(PATIENCE, asked).await.unwrap();
    assert!(answers.into_iter().all(|answer| unreachable(answer).failure == Failure::Connect));
}

#[tokio::test]
async fn a_returned_connection_skips_a_waiter_that_gave_up() {
    let authority = Authority::new();
    let receiver = authority.receiver("localhost").await;
    let target = receiver.target("localhost");
    let outbound = Outbound::new(loopback(), authority.trusted(), TestClock::running());
    let (first, _wire) = tokio::join!(connect(&outbound, &target), receiver.accept());
    {
        let mut impatient = pin!(connect(&outbound, &target));
        join_queue(impatient.as_mut()).await;
    }
    outbound.give_back(&target, first.unwrap().connection);
    assert!(outbound.checkout(&target).is_some());
}
