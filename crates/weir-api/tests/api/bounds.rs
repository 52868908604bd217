//! What clients may send is bounded in memory, time and depth, and no client stands in another's way.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::{FutureExt as _, stream};
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use tokio::sync::{mpsc, oneshot};
use weir_api::SettingKeys;

use crate::harness::{Options, ROOT, Reply, Server, json_request};

/// An event of this size, and a few bytes more.
fn of_size(size: usize) -> Value {
    json!({"type": "t", "data": "x".repeat(size)})
}

/// A request to send an event whose body arrives as a test sends it. `length`: what it announces.
pub(crate) fn arriving(key: &str, length: Option<usize>) -> (Request<Body>, mpsc::UnboundedSender<Bytes>) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let frames = stream::unfold(receiver, |mut receiver| async {
        receiver.recv().await.map(|frame| (Ok::<_, std::convert::Infallible>(frame), receiver))
    });
    let mut request = json_request("POST", "/v1/events", "");
    request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {key}").parse().unwrap());
    if let Some(length) = length {
        request.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    *request.body_mut() = Body::from_stream(frames);
    (request, sender)
}

/// A request whose body has arrived in part. Its drop ends the request, as a client that disconnects does.
pub(crate) struct Open<'s> {
    pub(crate) request: std::pin::Pin<Box<dyn Future<Output = Reply> + 's>>,
    sender: mpsc::UnboundedSender<Bytes>,
}

impl<'s> Open<'s> {
    pub(crate) fn begin(server: &'s Server, key: &str, length: Option<usize>, arrived: &str) -> Self {
        let (request, sender) = arriving(key, length);
        sender.send(arrived.to_owned().into()).unwrap();
        let mut request = Box::pin(server.send(request));
        assert!(request.as_mut().now_or_never().is_none(), "the request waits for its body");
        Self { request, sender }
    }

    pub(crate) async fn end(self, rest: &str) -> Reply {
        self.sender.send(rest.to_owned().into()).unwrap();
        drop(self.sender);
        self.request.await
    }
}

#[tokio::test]
async fn bytes_that_were_only_announced_take_nothing_from_others() {
    let options = Options { api_keys: SettingKeys::new([ROOT]), body_budget_bytes: 64 * 1024, ..Options::default() };
    let server = Server::start_with(options).await;
    let slow = server.key("ingest", Value::Null).await;
    let announced = (0..50).map(|_| Open::begin(&server, &slow, Some(1_000_000), r#"{"type":"#));
    let chunked = (0..50).map(|_| Open::begin(&server, &slow, None, r#"{"type":"#));
    let open: Vec<_> = announced.chain(chunked).collect();
    let other = server.key("ingest", Value::Null).await;
    for key in [&slow, &other] {
        server.ask(key, "POST", "/v1/events", Some(&of_size(20_000))).await.expect(StatusCode::ACCEPTED);
    }
    for open in open {
        open.end(r#""t","data":7}"#).await.expect(StatusCode::ACCEPTED);
    }
}

#[tokio::test]
async fn a_key_leaves_half_of_the_budget_to_others_until_its_requests_end() {
    let options = Options { api_keys: SettingKeys::new([ROOT]), body_budget_bytes: 100_000, ..Options::default() };
    let server = Server::start_with(options).await;
    let (heavy, other) = (server.key("ingest", Value::Null).await, server.key("ingest", Value::Null).await);
    let post = async |key: &str, size: usize| server.ask(key, "POST", "/v1/events", Some(&of_size(size))).await;
    let half = format!(r#"{{"type":"t","data":"{}"#, "x".repeat(45_000));

    // A request ends with its answer.
    let first = Open::begin(&server, &heavy, None, &half);
    let refused = post(&heavy, 10_000).await;
    refused.problem(503);
    assert_ne!(refused.header("retry-after"), "");
    assert_eq!(refused.problem(503)["reason"], "bytes");
    post(&other, 20_000).await.expect(StatusCode::ACCEPTED);
    // Edits and logins have a budget of their own.
    server.root("POST", "/v1/destinations", json!({"url": "https://example.com/", "name": "x".repeat(200)})).await;
    server.post("/v1/session", json!({"key": ROOT})).await.expect(StatusCode::CREATED);
    first.end("\"}").await.expect(StatusCode::ACCEPTED);
    post(&heavy, 45_000).await.expect(StatusCode::ACCEPTED);

    // A request is refused at the end of its body.
    Open::begin(&server, &heavy, None, &half).end("no json").await.problem(400);
    // In its middle: what has arrived is dropped at once, and the rest as it arrives.
    let refused = Open::begin(&server, &heavy, None, &half);
    let too_large = "x".repeat(2_000_000);
    refused.sender.send(too_large.into()).unwrap();
    let mut refused = refused;
    assert!(refused.request.as_mut().now_or_never().is_none());
    post(&heavy, 45_000).await.expect(StatusCode::ACCEPTED);
    refused.end("").await.problem(413);

    // A request is aborted by its client.
    let aborted = Open::begin(&server, &heavy, None, &half);
    post(&heavy, 10_000).await.problem(503);
    drop(aborted);
    post(&heavy, 45_000).await.expect(StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_body_that_arrives_too_slowly_is_ended() {
    let server = Server::with_keys().await;
    tokio::time::pause();
    for (arrived, seconds) in [(1, 10), (160 * 1024, 20), (900 * 1024, 60)] {
        let mut open = Open::begin(&server, ROOT, Some(1_000_000), &" ".repeat(arrived));
        tokio::time::advance(Duration::from_secs(seconds - 1)).await;
        assert!(open.request.as_mut().now_or_never().is_none(), "{seconds} s have not passed");
        tokio::time::advance(Duration::from_millis(1_001)).await;
        answered_in_real_time(open.request).await.problem(408);
    }
    // A login needs no key.
    let (reads, is_read) = oneshot::channel();
    let (mut request, _sender) = arriving("", None);
    *request.uri_mut() = "/v1/session".parse().unwrap();
    *request.body_mut() = Body::from_stream(stream::once(async {
        reads.send(()).unwrap();
        std::future::pending::<Result<Bytes, std::convert::Infallible>>().await
    }));
    let mut open = Box::pin(server.send(request));
    // The store is asked before the body is read, and answers in real time.
    tokio::select! {
        _ = &mut open => panic!("the request waits for its body"),
        read = is_read => read.unwrap(),
    }
    tokio::time::advance(Duration::from_millis(10_001)).await;
    answered_in_real_time(open).await.problem(408);
}

/// What follows the end of a body may wait for a timer of its own, which needs time that goes on.
async fn answered_in_real_time(request: impl Future<Output = Reply>) -> Reply {
    tokio::time::resume();
    let reply = request.await;
    tokio::time::pause();
    reply
}

#[tokio::test]
async fn a_compressed_body_is_refused() {
    let server = Server::start().await;
    let encoded = |encoding: &str| {
        let mut request = json_request("POST", "/v1/events", json!({"type": "t", "data": 1}));
        request.headers_mut().insert(header::CONTENT_ENCODING, encoding.parse().unwrap());
        request
    };
    for encoding in ["gzip", "br", "identity, gzip", ""] {
        server.send(encoded(encoding)).await.problem(415);
    }
    server.assert_untouched().await;
    server.send(encoded("identity")).await.expect(StatusCode::ACCEPTED);
}

#[tokio::test]
async fn the_data_of_an_event_is_nested_at_most_64_levels_deep() {
    let server = Server::start().await;
    let event = |depth: usize| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        format!(r#"{{"type":"t","data":{open}{close}}}"#)
    };
    server.post("/v1/events", event(64)).await.expect(StatusCode::ACCEPTED);
    for depth in [65, 100_000] {
        assert_eq!(server.post("/v1/events", event(depth)).await.pointers(), ["/data"]);
    }
    let batch = |events: &[String]| format!(r#"{{"events":[{}]}}"#, events.join(","));
    let answer = server.post("/v1/events/batch", batch(&[event(65), event(64), event(100_000)])).await;
    let results = answer.expect(StatusCode::ACCEPTED)["events"].as_array().unwrap().clone();
    let pointers: Vec<_> = results.iter().map(|result| &result["error"]["errors"][0]["pointer"]).collect();
    assert_eq!(pointers, [&json!("/data"), &Value::Null, &json!("/data")]);
    assert_eq!(server.count("/v1/events").await, 2);
}

#[tokio::test]
async fn large_batches_are_read_like_small_ones() {
    let server = Server::start().await;
    let event = |number: usize| json!({"type": "t", "data": {"number": number, "text": "x".repeat(200)}});
    let batch = json!({"events": (0..1_000).map(event).collect::<Vec<_>>()});
    let answer = server.post("/v1/events/batch", &batch).await.expect(StatusCode::ACCEPTED);
    assert_eq!(answer["events"].as_array().unwrap().len(), 1_000);
    server.post("/v1/events", of_size(200_000)).await.expect(StatusCode::ACCEPTED);
    server.post("/v1/events", format!("{}]", of_size(200_000))).await.problem(400);
    let millions = format!(r#"{{"events":[{}1]}}"#, "1,".repeat(2_000_000));
    assert_eq!(server.post("/v1/events/batch", millions).await.pointers(), ["/events"]);
}

#[tokio::test]
async fn a_refusal_names_a_bounded_number_of_errors() {
    let server = Server::start().await;
    let unknown = (0..5_000).map(|number| format!(r#""field{number}":1"#)).collect::<Vec<_>>().join(",");
    let event = format!(r#"{{"type":"t","data":1,{unknown}}}"#);
    assert_eq!(server.post("/v1/events", &event).await.pointers().len(), 100);
    let batch = format!(r#"{{"events":[{}]}}"#, vec![event; 20].join(","));
    assert_eq!(server.post("/v1/events/batch", batch).await.pointers().len(), 1_000);
}

#[tokio::test]
async fn a_page_with_the_data_of_large_events_ends_early_with_its_cursor() {
    let server = Server::start().await;
    let mut sent = Vec::new();
    for _ in 0..6 {
        let answer = server.post("/v1/events", of_size(1_000_000)).await.expect(StatusCode::ACCEPTED);
        sent.insert(0, answer["id"].clone());
    }
    assert_eq!(server.count("/v1/events").await, 6, "without the data, nothing is large");
    for (order, expected) in [("newest", sent.clone()), ("oldest", sent.iter().rev().cloned().collect())] {
        let (mut listed, mut rows, mut cursor) = (Vec::new(), Vec::new(), String::new());
        loop {
            let page = server.get(&format!("/v1/events?include=data&limit=200&order={order}{cursor}")).await;
            let page = page.expect(StatusCode::OK);
            let data = page["data"].as_array().unwrap();
            assert!(data.iter().all(|event| event["data"].as_str().unwrap().len() == 1_000_000));
            rows.push(data.len());
            listed.extend(data.iter().map(|event| event["id"].clone()));
            let Some(next) = page["next_cursor"].as_str() else { break };
            cursor = format!("&cursor={next}");
        }
        assert_eq!((rows, listed), (vec![4, 2], expected), "{order}");
    }
}
