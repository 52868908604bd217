use std::{convert::Infallible, pin::pin};

use http_body_util::{BodyExt, Empty};
use hyper::{Request, body::Bytes, client::conn::http1};
use hyper_util::rt::TokioIo;
use proptest::{collection::vec, option, prelude::*, sample::select, test_runner::TestCaseResult};
use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};
use weir_core::Timestamp;

use super::*;

struct Still;

impl Clock for Still {
    fn now(&self) -> Timestamp {
        Timestamp::from_secs(1_000_000)
    }
    fn wall(&self) -> Timestamp {
        self.now()
    }
}

/// How reading ended: the status and the body, or why not.
type End = Result<(u16, Vec<u8>), Broken>;

/// Reads an answer that comes in these pieces and ends there; also whether the connection may be used again.
fn read<'p>(pieces: impl IntoIterator<Item = &'p [u8]>) -> (End, bool) {
    let mut answer = Answer::new(&Still);
    for piece in pieces {
        if answer.is_over() {
            answer.whole = false;
            break;
        }
        if let Err(broken) = answer.take(piece) {
            return (Err(broken), false);
        }
    }
    let kept = answer.leaves_nothing();
    if !answer.is_over()
        && let Err(broken) = answer.close()
    {
        return (Err(broken), false);
    }
    let Met::Answer { status, .. } = answer.met() else { unreachable!("only answers are read") };
    (Ok((status, answer.body)), kept)
}

fn whole(text: &str) -> (End, bool) {
    read([text.as_bytes()])
}

fn ok(status: u16, body: &str) -> End {
    Ok((status, body.as_bytes().to_vec()))
}

#[test]
fn any_bytes_become_text_of_bounded_length() {
    assert_eq!(text(b"plain".to_vec()), "plain");
    assert_eq!(text(b"a\xffb\0c".to_vec()), "a\u{fffd}b\u{fffd}c");
    let text = text(vec![0xff; MAX_ANSWER_BODY]);
    assert!(text.len() <= MAX_ANSWER_BODY && text.len() > MAX_ANSWER_BODY - 3);
}

#[test]
fn an_answer_whose_end_is_known_leaves_the_connection_usable() {
    for (answer, end) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", ok(200, "ok")),
        ("HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", ok(200, "")),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2, 2\r\ncontent-length: 2\r\n\r\nok", ok(200, "ok")),
        ("HTTP/1.1 204 No Content\r\n\r\n", ok(204, "")),
        ("HTTP/1.1 304 Not Modified\r\ncontent-length: 7\r\n\r\n", ok(304, "")),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2;x=y\r\nok\r\n0\r\na: b\r\n\r\n", ok(200, "ok")),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n", ok(200, "")),
        ("HTTP/1.0 200 OK\r\nconnection: x, Keep-Alive\r\ncontent-length: 2\r\n\r\nok", ok(200, "ok")),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Hints\r\nlink: x\r\n\r\nHTTP/1.1 202 Yes\r\ncontent-length: 0\r\n\r\n",
            ok(202, ""),
        ),
    ] {
        assert_eq!(whole(answer), (end, true), "{answer}");
    }
}

#[test]
fn an_answer_that_ends_with_the_connection_or_says_more_than_asked_does_not() {
    for (answer, end) in [
        ("HTTP/1.1 200 OK\r\n\r\nok", ok(200, "ok")),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nok", ok(200, "ok")),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 200 OK\r\n", ok(200, "ok")),
        ("HTTP/1.1 204 No Content\r\n\r\nx", ok(204, "")),
        ("HTTP/1.1 200 OK\r\nconnection: a, CLOSE\r\ncontent-length: 2\r\n\r\nok", ok(200, "ok")),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", ok(200, "ok")),
        ("HTTP/1.1 101 Switching\r\nupgrade: x\r\n\r\n", ok(101, "")),
        // Two lengths: the chunks count, and nothing follows.
        (
            "HTTP/1.1 200 OK\r\ncontent-length: 9\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
            ok(200, "ok"),
        ),
    ] {
        assert_eq!(whole(answer), (end, false), "{answer}");
    }
}

#[test]
fn what_cannot_be_trusted_is_refused() {
    let head = |headers: &str| format!("HTTP/1.1 200 OK\r\n{headers}\r\n\r\n");
    let chunked = |chunks: &str| format!("{}{chunks}", head("transfer-encoding: chunked"));
    for (answer, broken) in [
        (head("content-length: 2\r\ncontent-length: 3"), Broken::NotHttp),
        (head("content-length: 2, 3"), Broken::NotHttp),
        (head("content-length: +2"), Broken::NotHttp),
        (head("content-length: -2"), Broken::NotHttp),
        (head("content-length:"), Broken::NotHttp),
        (head("content-length: 18446744073709551616"), Broken::NotHttp),
        (head("content-length : 2"), Broken::NotHttp),
        (head("x: a\r\n folded"), Broken::NotHttp),
        ("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n".to_owned(), Broken::NotHttp),
        ("HTTP/2.0 200 OK\r\n\r\n".to_owned(), Broken::NotHttp),
        ("HTTP/1.1 099 Low\r\n\r\n".to_owned(), Broken::NotHttp),
        (chunked("g\r\n"), Broken::NotHttp),
        (chunked("-1\r\n"), Broken::NotHttp),
        (chunked("\r\n\r\n"), Broken::NotHttp),
        (chunked(" \r\n\r\n"), Broken::NotHttp),
        (chunked("ffffffffffffffffff\r\n"), Broken::NotHttp),
        (chunked("2\r\nokay\r\n0\r\n\r\n"), Broken::NotHttp),
        (chunked("2\r\nok\n0\r\n\r\n"), Broken::NotHttp),
        (chunked("0\r\na: b\n\r\n"), Broken::NotHttp),
        (chunked(&format!("2;{}\r\nok\r\n0\r\n\r\n", "x".repeat(MAX_CHUNK_LINE))), Broken::NotHttp),
        (chunked(&format!("2;{}", "x".repeat(MAX_CHUNK_LINE))), Broken::NotHttp),
        (chunked(&format!("0\r\n{}\r\n", "a: b\r\n".repeat(MAX_TRAILERS + 1))), Broken::TooLarge),
        (chunked(&format!("0\r\na: {}\r\n\r\n", "b".repeat(MAX_HEAD))), Broken::TooLarge),
        (head(&format!("a: {}", "b".repeat(MAX_HEAD))), Broken::TooLarge),
        (head(&"a: b\r\n".repeat(129)), Broken::TooLarge),
        (chunked("2\r\nok\r\n"), Broken::Closed),
        ("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nok".to_owned(), Broken::Closed),
        ("HTTP/1.1 200 OK\r\n".to_owned(), Broken::Closed),
        (String::new(), Broken::Closed),
    ] {
        assert_eq!(whole(&answer).0, Err(broken), "{}", &answer[..answer.len().min(100)]);
    }
}

#[test]
fn a_head_that_never_ends_is_refused_however_it_comes() {
    let head = format!("HTTP/1.1 200 OK\r\na: {}", "b".repeat(2 * MAX_HEAD));
    for size in [1, 7, 4_096] {
        assert_eq!(read(head.as_bytes().chunks(size)).0, Err(Broken::TooLarge), "{size}");
    }
}

#[test]
fn the_body_is_kept_to_its_limit_and_judged_then() {
    let full = "x".repeat(MAX_ANSWER_BODY);
    for (framing, answer, kept) in [
        (format!("content-length: {MAX_ANSWER_BODY}"), full.clone(), true),
        (format!("content-length: {}", MAX_ANSWER_BODY + 1), format!("{full}x"), false),
        ("content-length: 999999999".to_owned(), full.clone(), false),
        ("transfer-encoding: chunked".to_owned(), format!("{MAX_ANSWER_BODY:x}\r\n{full}\r\n0\r\n\r\n"), true),
        ("transfer-encoding: chunked".to_owned(), format!("{MAX_ANSWER_BODY:x}\r\n{full}\r\n1\r\nx"), false),
        ("connection: close".to_owned(), format!("{full}xxx"), false),
    ] {
        let (end, reused) = whole(&format!("HTTP/1.1 200 OK\r\n{framing}\r\n\r\n{answer}"));
        assert_eq!((end.unwrap(), reused), ((200, full.clone().into_bytes()), kept), "{framing}");
    }
}

/// What hyper makes of an answer.
async fn by_hyper(answer: &[u8]) -> Result<(u16, Vec<u8>), hyper::Error> {
    let (near, mut far) = duplex(64 * 1024);
    let (mut sender, connection) = http1::handshake::<_, Empty<Bytes>>(TokioIo::new(near)).await?;
    let server = async {
        // A client takes what comes before it has asked for an error.
        far.read_u8().await.unwrap();
        far.write_all(answer).await.unwrap();
        far.shutdown().await.unwrap();
        // Else the rest of the request meets a closed connection.
        let _ = far.read_to_end(&mut Vec::new()).await;
    };
    let exchange = async {
        let response = sender.send_request(Request::post("/").body(Empty::new()).unwrap()).await?;
        let status = response.status().as_u16();
        Ok((status, response.into_body().collect().await?.to_bytes().to_vec()))
    };
    let driven = async {
        let (exchange, connection) = (pin!(exchange), pin!(connection));
        match futures_util::future::select(exchange, connection).await {
            futures_util::future::Either::Left((end, _)) => end,
            futures_util::future::Either::Right((_, exchange)) => exchange.await,
        }
    };
    tokio::select! {
        end = driven => end,
        never = async { server.await; std::future::pending::<Infallible>().await } => match never {},
    }
}

/// The lines of a head and what follows it: mostly right, often not.
fn answers() -> impl Strategy<Value = Vec<u8>> {
    let first = select(vec![
        "HTTP/1.1 200 OK",
        "HTTP/1.1 200 OK",
        "HTTP/1.1 503 Service Unavailable",
        "HTTP/1.1 204 No Content",
        "HTTP/1.1 304 Not Modified",
        "HTTP/1.0 200 OK",
        "HTTP/1.1 429",
        "HTTP/1.1  200 OK",
        "HTTP/3.1 200 OK",
    ]);
    let header = select(vec![
        "content-length: 5",
        "content-length: 5",
        "Content-Length: 11",
        "content-length: 0",
        "content-length: x",
        "transfer-encoding: chunked",
        "transfer-encoding: chunked",
        "Transfer-Encoding: gzip",
        "connection: close",
        "connection: keep-alive",
        "retry-after: 7",
        "x-text: caf\u{e9} \t ok",
        "x-empty:",
        ": nameless",
        "x spaced: 1",
    ]);
    let body = select(vec![
        "hello",
        "hello world",
        "",
        "5\r\nhello\r\n0\r\n\r\n",
        "5\r\nhello\r\n6;a=\"b\"\r\n world\r\n0\r\nx-trailer: 1\r\n\r\n",
        "5\r\nhello\r\n",
        "5\r\nhello0\r\n\r\n",
        "0\r\n\r\n",
        "0x5\r\nhello\r\n0\r\n\r\n",
    ]);
    let informational =
        option::weighted(0.2, select(vec!["HTTP/1.1 100 Continue\r\n\r\n", "HTTP/1.1 103 X\r\na: b\r\n\r\n"]));
    let flip = option::weighted(0.3, (any::<prop::sample::Index>(), any::<u8>()));
    (informational, first, vec(header, 0..4), body, flip).prop_map(|(informational, first, headers, body, flip)| {
        let mut head = vec![first];
        head.extend(headers);
        let answer = format!("{}{}\r\n\r\n{body}", informational.unwrap_or_default(), head.join("\r\n"));
        let mut answer = answer.into_bytes();
        if let Some((at, byte)) = flip {
            let at = at.index(answer.len());
            answer[at] = byte;
        }
        answer
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// How the bytes are cut into pieces makes no difference.
    #[test]
    fn an_answer_is_read_the_same_in_any_pieces(answer in answers(), cuts in vec(1_usize..40, 1..60)) {
        let mut pieces = Vec::new();
        let mut rest = &answer[..];
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, left) = rest.split_at((*cut).min(rest.len()));
            pieces.push(piece);
            rest = left;
        }
        prop_assert_eq!(read(pieces), read([&answer[..]]));
        prop_assert_eq!(read(answer.chunks(1)), read([&answer[..]]));
    }

    /// hyper, the widely used client, is the judge of what an answer says, and of what is none.
    #[test]
    fn an_answer_says_what_hyper_reads_in_it(answer in answers()) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        agree(&answer, runtime.block_on(by_hyper(&answer)).ok())?;
    }
}

fn agree(answer: &[u8], by_hyper: Option<(u16, Vec<u8>)>) -> TestCaseResult {
    let (end, _) = read([answer]);
    let shown = String::from_utf8_lossy(answer).into_owned();
    prop_assert_eq!(end.ok(), by_hyper, "{}", shown);
    Ok(())
}
