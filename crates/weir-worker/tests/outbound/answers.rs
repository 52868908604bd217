//! How answers, and missing answers, are judged.

use std::{io::Write as _, time::Duration};

use flate2::{Compression, write::GzEncoder};
use futures_util::FutureExt;
use tokio::{io::AsyncWriteExt, net::TcpStream};
use weir_core::outcome::{Failure, SendResult};
use weir_worker::outbound::{MAX_ANSWER_BODY, MAX_SUCCESS_BODY, Sent};

use crate::support::*;

/// A short timeout, for receivers that never finish.
const SHORT: Duration = Duration::from_millis(150);

async fn answered(text: &str) -> Sent {
    exchange(&outbound(), PATIENCE, async |mut wire| wire.answer(text).await).await
}

async fn answered_within_short<F: Future<Output = ()>>(script: impl FnOnce(Wire<TcpStream>) -> F) -> Sent {
    exchange(&outbound(), SHORT, script).await
}

fn failure(sent: &Sent) -> (Failure, &str) {
    match sent.result {
        SendResult::Failure(failure) => (failure, sent.error.as_deref().unwrap()),
        SendResult::Answer { status, .. } => panic!("answered {status}"),
    }
}

#[tokio::test]
async fn every_status_is_an_answer() {
    for code in [200, 201, 204, 301, 304, 307, 400, 404, 408, 410, 425, 429, 500, 502, 503, 599] {
        let sent = answered(&format!("HTTP/1.1 {code} X\r\ncontent-length: 0\r\n\r\n")).await;
        assert_eq!((status(&sent), sent.response_body), (code, None));
        assert_eq!(sent.error.is_some(), matches!(code, 301 | 307), "{code}");
    }
}

#[tokio::test]
async fn a_redirect_is_an_answer_and_is_not_followed() {
    let (elsewhere, _) = plain_receiver().await;
    let location = elsewhere.local_addr().unwrap();
    for code in [301, 302, 303, 307, 308] {
        let redirect = format!("HTTP/1.1 {code} X\r\nlocation: http://{location}/\r\ncontent-length: 0\r\n\r\n");
        let sent = answered(&redirect).await;
        assert_eq!(status(&sent), code);
        let to =
            format!("a redirect to http://{location}/; redirects are not followed: edit the URL of the destination");
        assert_eq!(sent.error, Some(to));
    }
    assert!(elsewhere.accept().now_or_never().is_none());
    let nowhere = answered("HTTP/1.1 307 X\r\ncontent-length: 0\r\n\r\n").await;
    let error = "a redirect; redirects are not followed: edit the URL of the destination";
    assert_eq!(nowhere.error.as_deref(), Some(error));
}

#[tokio::test]
async fn a_compressed_answer_is_recorded_decoded() {
    for (code, kept) in [(500, MAX_ANSWER_BODY), (200, MAX_SUCCESS_BODY)] {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
        encoder.write_all(&b"too many ".repeat(1_000_000)).unwrap();
        let body = encoder.finish().unwrap();
        let head = format!("HTTP/1.1 {code} X\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n", body.len());
        let sent = exchange(&outbound(), PATIENCE, async |mut wire| {
            wire.answer(&head).await;
            // The client reads no more of it than it keeps of any other answer.
            let _ = wire.stream.write_all(&body).await;
        })
        .await;
        assert_eq!(status(&sent), code);
        let shown = sent.response_body.unwrap();
        assert!(shown.starts_with("too many too many "), "{shown}");
        assert_eq!(shown.len(), kept);
    }
}

/// The longest `Retry-After` of an answer, in milliseconds.
fn retry_after_ms(sent: &Sent) -> Option<u128> {
    let SendResult::Answer { hints, .. } = &sent.result else { panic!("{:?}", sent.error) };
    hints.retry_after.iter().map(|wait| wait.delay.as_millis()).max()
}

#[tokio::test]
async fn the_hints_of_an_answer_are_read_from_all_lines_of_its_headers() {
    // The wall clock shows 1,000,000 s: 12 January 1970, 13:46:40.
    for (headers, milliseconds) in [
        ("retry-after: 120", Some(120_000)),
        ("retry-after: Mon, 12 Jan 1970 13:47:10 GMT", Some(30_000)),
        ("retry-after: Mon, 12 Jan 1970 13:00:00 GMT", Some(0)),
        ("retry-after: Mon, 12 Jan 1970 13:00:05 GMT\r\ndate: Mon, 12 Jan 1970 13:00:00 GMT", Some(5_000)),
        ("Retry-After: 5\r\nX-Retry-In: 7.8ms\r\nretry-after: 6", Some(6_000)),
        ("retry-after: soon", None),
        ("retry-after: \u{fc}ber", None),
    ] {
        let sent = answered(&format!("HTTP/1.1 503 X\r\n{headers}\r\ncontent-length: 0\r\n\r\n")).await;
        assert_eq!((status(&sent), retry_after_ms(&sent)), (503, milliseconds), "{headers}");
        assert_eq!(sent.result.malformed_headers().is_some(), milliseconds.is_none(), "{headers}");
    }
}

#[tokio::test]
async fn informational_answers_are_ignored() {
    let sent = answered(
        "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\nok",
    )
    .await;
    assert_eq!((status(&sent), sent.response_body.as_deref()), (202, Some("ok")));
}

#[tokio::test]
async fn switching_protocols_is_an_answer_and_ends_the_connection() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.answer("HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n").await;
        wire
    };
    let (result, _wire) = tokio::join!(send(&outbound, &target, connection), receiver);
    assert_eq!(status(&sent(result)), 101);
    assert!(outbound.checkout(&target).is_none());
}

#[tokio::test]
async fn an_answer_that_never_comes_times_out() {
    let sent = answered_within_short(async |mut wire| {
        wire.request().await;
        wire.read_to_end().await;
    })
    .await;
    assert_eq!(failure(&sent), (Failure::Timeout, "no answer within 150 ms"));
    assert!(sent.ended_at.since(sent.sent_at.unwrap()) >= SHORT);
}

#[tokio::test]
async fn headers_that_arrive_byte_by_byte_time_out() {
    let sent = answered_within_short(async |mut wire| {
        wire.answer("HTTP/1.1 200 OK\r\nx-slow: ").await;
        while wire.stream.write_all(b"a").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    assert_eq!(failure(&sent).0, Failure::Timeout);
}

#[tokio::test]
async fn an_answer_whose_body_exceeds_the_timeout_is_judged_by_its_status() {
    for framing in ["content-length: 1000", "connection: close", "x-endless: 1"] {
        let sent = answered_within_short(async |mut wire| {
            wire.answer(&format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n")).await;
            while wire.stream.write_all(b"a").await.is_ok() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
        assert_eq!(status(&sent), 200, "{framing}");
        assert_eq!(sent.error.as_deref(), Some("the answer's body did not end within 150 ms"));
        let took = sent.ended_at.since(sent.sent_at.unwrap());
        assert!(took >= SHORT && took < 10 * SHORT, "{took:?}");
        assert!(sent.response_body.unwrap().starts_with('a'));
    }
}

#[tokio::test]
async fn a_receiver_that_does_not_read_times_out() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let _wire = Wire::accept(&listener).await;
    let body = vec![b'x'; 64 << 20].into();
    let mut slots = Slots::from([wide()]);
    let sent = sent(post(&outbound, &target, connection, body, &mut slots, SHORT).await);
    assert_eq!(failure(&sent).0, Failure::Timeout);
}

#[tokio::test]
async fn a_huge_answer_is_cut_and_judged_by_its_status() {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.answer("HTTP/1.1 200 OK\r\ncontent-length: 67108864\r\n\r\n").await;
        // Fails once the other side has closed.
        let chunk = vec![b'x'; 1 << 20];
        let mut written = 0;
        while written < 64 && wire.stream.write_all(&chunk).await.is_ok() {
            written += 1;
        }
        written
    };
    let (result, written) = tokio::join!(send(&outbound, &target, connection), receiver);
    let sent = sent(result);
    assert_eq!(status(&sent), 200);
    assert_eq!(sent.response_body.unwrap().len(), MAX_SUCCESS_BODY);
    assert!(written < 64, "the whole body was read");
    assert!(outbound.checkout(&target).is_none());
}

/// Also when most of the body of a success is not recorded.
#[tokio::test]
async fn a_connection_is_kept_when_the_body_is_within_the_limit() {
    let lengths = [(MAX_ANSWER_BODY, true), (MAX_ANSWER_BODY + 1, false)];
    let statuses = [("200 OK", MAX_SUCCESS_BODY), ("500 Oh", MAX_ANSWER_BODY)];
    for ((status, recorded), (length, kept)) in
        statuses.into_iter().flat_map(|status| lengths.map(|length| (status, length)))
    {
        let outbound = outbound();
        let (listener, target) = plain_receiver().await;
        let connection = connect(&outbound, &target).await.unwrap().connection;
        let receiver = async {
            let mut wire = Wire::accept(&listener).await;
            let body = "x".repeat(length);
            wire.answer(&format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\n\r\n{body}")).await;
            wire
        };
        let (result, _wire) = tokio::join!(send(&outbound, &target, connection), receiver);
        assert_eq!(sent(result).response_body.unwrap().len(), recorded);
        assert_eq!(outbound.checkout(&target).is_some(), kept, "{length}");
    }
}

#[tokio::test]
async fn a_connection_closed_without_an_answer_is_broken() {
    let sent = exchange(&outbound(), PATIENCE, async |mut wire| {
        wire.request().await;
    })
    .await;
    assert_eq!(failure(&sent), (Failure::Broken, "connection closed before the answer ended"));
    assert!(sent.sent_at.is_some());
}

#[tokio::test]
async fn an_answer_with_a_cut_body_is_judged_by_its_status_and_the_cut_is_noted() {
    let cut = "connection closed before the answer ended";
    let broken = "the answer is not valid HTTP/1.1";
    let in_two_seconds = Some(2_000);
    for (code, headers, body, retry_after, kept, error) in [
        (200, "content-length: 10", "ab", None, "ab", cut),
        (200, "transfer-encoding: chunked", "2\r\nab\r\n", None, "ab", cut),
        (200, "transfer-encoding: chunked", "2\r\nab\r\n!", None, "ab", broken),
        (429, "retry-after: 2\r\ncontent-length: 10", "ab", in_two_seconds, "ab", cut),
        (410, "content-length: 10", "gone", None, "gone", cut),
        (503, "retry-after: 2\r\ncontent-length: 10", "", in_two_seconds, "", cut),
    ] {
        let sent = answered(&format!("HTTP/1.1 {code} X\r\n{headers}\r\n\r\n{body}")).await;
        assert_eq!((status(&sent), retry_after_ms(&sent)), (code, retry_after));
        assert_eq!(sent.response_body.as_deref().unwrap_or_default(), kept, "{code} {headers}");
        assert_eq!(sent.error.as_deref(), Some(error), "{code} {headers}");
    }
}

#[tokio::test]
async fn an_answer_with_a_reset_in_the_body_is_judged_by_its_status_and_the_reset_is_noted() {
    let sent = exchange(&outbound(), PATIENCE, async |mut wire| {
        wire.answer("HTTP/1.1 202 Accepted\r\ncontent-length: 10\r\n\r\n").await;
        wire.reset();
    })
    .await;
    assert_eq!(status(&sent), 202);
    assert_eq!(sent.error.as_deref(), Some("connection reset before the answer ended"));
}

#[tokio::test]
async fn an_answer_that_is_not_http_is_broken() {
    for nonsense in ["SSH-2.0-OpenSSH_9.2\r\n\r\n", "HTTP/1.1 banana\r\n\r\n", "\u{0}\u{0}\u{12}\u{4}\u{0}\r\n\r\n"] {
        let sent = answered(nonsense).await;
        assert_eq!(failure(&sent), (Failure::Broken, "the answer is not valid HTTP/1.1"), "{nonsense:?}");
    }
}

#[tokio::test]
async fn an_answer_with_too_large_headers_is_judged_by_its_status() {
    let error = Some("the answer's headers are too large");
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n";
    for (begin, code) in [
        ("HTTP/1.1 200 OK".to_owned(), 200),
        ("HTTP/1.1 410 Gone".to_owned(), 410),
        (format!("{interim}HTTP/1.0 503 Busy"), 503),
    ] {
        let long = format!("{begin}\r\nx: {}", "x".repeat(512 * 1024));
        let sent = exchange(&outbound(), PATIENCE, async |mut wire| {
            wire.request().await;
            let _ = wire.stream.write_all(long.as_bytes()).await;
            wire.read_to_end().await;
        })
        .await;
        assert_eq!((status(&sent), sent.error.as_deref()), (code, error), "{begin}");
        // Many small ones, and an end of the head.
        let (sent, kept) = read(&format!("{begin}\r\n{}\r\n", "x: y\r\n".repeat(1_000))).await;
        assert_eq!((status(&sent), sent.error.as_deref(), kept), (code, error, false), "{begin}");
    }
}

#[tokio::test]
async fn bytes_of_a_body_that_are_not_text_are_replaced() {
    let sent = exchange(&outbound(), PATIENCE, async |mut wire| {
        wire.answer("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\n").await;
        wire.stream.write_all(b"a\xff\0b").await.unwrap();
    })
    .await;
    assert_eq!(sent.response_body.as_deref(), Some("a\u{fffd}\u{fffd}b"));
}

/// Sends a request that gets this answer. Returns how it was judged, and whether the connection can be used again.
async fn read(answer: &str) -> (Sent, bool) {
    let outbound = outbound();
    let (listener, target) = plain_receiver().await;
    let connection = connect(&outbound, &target).await.unwrap().connection;
    let receiver = async {
        let mut wire = Wire::accept(&listener).await;
        wire.answer(answer).await;
        wire
    };
    let exchange = async {
        let sent = sent(send_for(&outbound, &target, connection, SHORT).await);
        let kept = outbound.checkout(&target).is_some();
        (sent, kept)
    };
    let (read, _wire) = tokio::join!(exchange, receiver);
    read
}

#[tokio::test]
async fn an_answer_whose_end_is_known_leaves_the_connection_usable() {
    for (answer, code, body) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", 200, Some("ok")),
        ("HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", 200, None),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\ncontent-length: 2\r\n\r\nok", 200, Some("ok")),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, None),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", 304, None),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2;x=y\r\nok\r\n0\r\na: b\r\n\r\n", 200, Some("ok")),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 200, None),
        ("HTTP/1.0 200 OK\r\nconnection: x, Keep-Alive\r\ncontent-length: 2\r\n\r\nok", 200, Some("ok")),
    ] {
        let (sent, kept) = read(answer).await;
        assert_eq!((status(&sent), sent.response_body.as_deref(), sent.error), (code, body, None), "{answer}");
        assert!(kept, "{answer}");
    }
}

#[tokio::test]
async fn an_answer_with_extra_bytes_or_without_a_known_end_closes_the_connection() {
    for (answer, code, body) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n", 200, Some("ok")),
        ("HTTP/1.1 204 No Content\r\n\r\nx", 204, None),
        ("HTTP/1.1 200 OK\r\nconnection: a, CLOSE\r\ncontent-length: 2\r\n\r\nok", 200, Some("ok")),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 200, Some("ok")),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nok", 200, Some("ok")),
        // Two framings: the chunks are read, and the connection is not reused.
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            200,
            Some("ok"),
        ),
    ] {
        let (sent, kept) = read(answer).await;
        assert_eq!((status(&sent), sent.response_body.as_deref()), (code, body), "{answer}");
        assert!(!kept, "{answer}");
    }
}

#[tokio::test]
async fn an_answer_with_an_invalid_head_is_broken() {
    let head = |headers: &str| format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n");
    for answer in [
        head("content-length: 2\r\ncontent-length: 3"),
        head("content-length: 2, 3"),
        head("content-length: +2"),
        head("content-length: -2"),
        head("content-length: 18446744073709551616"),
        head("content-length : 2"),
        head("x: a\r\n folded"),
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(),
        "HTTP/2.0 200 OK\r\n\r\n".to_owned(),
        "HTTP/1.1 099 Low\r\n\r\n".to_owned(),
    ] {
        let (sent, kept) = read(&answer).await;
        assert_eq!(failure(&sent), (Failure::Broken, "the answer is not valid HTTP/1.1"), "{answer}");
        assert!(!kept);
    }
}

#[tokio::test]
async fn an_answer_is_read_the_same_byte_by_byte() {
    let sent = exchange(&outbound(), PATIENCE, async |mut wire| {
        wire.request().await;
        let answer = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\na: b\r\n\r\n";
        for byte in answer.split_inclusive(|_: char| true) {
            wire.say(byte).await;
            tokio::task::yield_now().await;
        }
    })
    .await;
    assert_eq!((status(&sent), sent.response_body.as_deref(), sent.error), (200, Some("ok"), None));
}

#[tokio::test]
async fn a_few_interim_answers_come_before_an_answer_and_more_are_an_error() {
    let interim = |count: usize| "HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n".repeat(count);
    let answer = |count: usize| format!("{}HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", interim(count));
    assert_eq!(status(&answered(&answer(8)).await), 200);
    let too_many = (Failure::Broken, "too many interim answers (1xx) came before the final one");
    assert_eq!(failure(&answered(&answer(9)).await), too_many);
    // Few, but large ones.
    let padding = "x".repeat(12 * 1024);
    let large = format!("HTTP/1.1 103 Early Hints\r\nlink: {padding}\r\n\r\n").repeat(6);
    assert_eq!(failure(&answered(&format!("{large}HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")).await), too_many);
}

#[tokio::test]
async fn interim_answers_without_end_end_the_attempt_and_do_not_hold_the_thread() {
    let sent = exchange(&outbound(), PATIENCE, async |wire| {
        // On a thread of its own, so that the stream never pauses while the client reads.
        let flood = "HTTP/1.1 100 Continue\r\n\r\n".repeat(4_096);
        let socket = wire.stream.into_std().unwrap();
        let flooding = tokio::task::spawn_blocking(move || {
            socket.set_nonblocking(false).unwrap();
            // 400 MB, unless the client closes the connection.
            (0..4_096).all(|_| std::io::Write::write_all(&mut &socket, flood.as_bytes()).is_ok())
        });
        assert!(!flooding.await.unwrap(), "the client read to the end");
    })
    .await;
    assert_eq!(failure(&sent), (Failure::Broken, "too many interim answers (1xx) came before the final one"));
}
