//! Invalid input is refused with the name of the invalid field, and nothing changes.

use axum::body::Body;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use serde_json::json;

use crate::harness::{Options, Server, json_request};

#[tokio::test]
async fn a_body_that_is_not_json_is_refused_with_400() {
    let server = Server::start().await;
    for path in ["/v1/destinations", "/v1/events", "/v1/events/batch"] {
        for body in ["", "{", "{\"type\": }", "not json", "{} {}", "{\"type\":\"a\",\"data\":01}", "\u{feff}{}"] {
            server.post(path, body).await.problem(400);
        }
        let mut invalid_text = json_request("POST", path, "");
        *invalid_text.body_mut() = Body::from(&b"{\"type\":\"a\",\"data\":\"\xff\"}"[..]);
        server.send(invalid_text).await.problem(400);
    }
    server.assert_untouched().await;
}

#[tokio::test]
async fn a_body_of_another_media_type_is_refused_with_415() {
    let server = Server::start().await;
    let typed = |kind: &str| {
        let request = Request::post("/v1/events").header(header::CONTENT_TYPE, kind);
        request.body(Body::from(r#"{"type":"t","data":1}"#)).unwrap()
    };
    server.send(typed("application/x-www-form-urlencoded")).await.problem(415);
    server.send(typed("text/plain")).await.problem(415);
    server.assert_untouched().await;
    server.send(typed("application/json; charset=utf-8")).await.expect(StatusCode::ACCEPTED);
    let untyped = Request::post("/v1/events").body(Body::from(r#"{"type":"t","data":1}"#)).unwrap();
    server.send(untyped).await.expect(StatusCode::ACCEPTED);
}

#[tokio::test]
async fn an_event_of_the_largest_size_is_accepted_and_one_byte_more_is_not() {
    let server = Server::start_with(Options { max_event_bytes: 1_000, ..Options::default() }).await;
    let of_size = |size: usize| {
        let frame = r#"{"type":"t","data":""}"#.len();
        format!(r#"{{"type":"t","data":"{}"}}"#, "x".repeat(size - frame))
    };
    server.post("/v1/events", of_size(1_001)).await.problem(413);
    server.post("/v1/events", of_size(20_000_000)).await.problem(413);
    server.post("/v1/destinations", format!(r#"{{"name":"{}"}}"#, "x".repeat(300_000))).await.problem(413);
    server.assert_untouched().await;
    let batch = format!(r#"{{"events":[{},{}]}}"#, of_size(1_001), of_size(1_000));
    let answer = server.post("/v1/events/batch", batch).await.expect(StatusCode::ACCEPTED);
    assert_eq!(answer["events"][0]["error"]["status"], 413);
    server.post("/v1/events", of_size(1_000)).await.expect(StatusCode::ACCEPTED);
    assert_eq!(server.count("/v1/events").await, 2);
}

/// A request with a body of unknown length, and the sender of its frames.
#[tokio::test]
async fn a_body_larger_than_the_budget_is_accepted_alone() {
    let server = Server::start_with(Options { body_budget_bytes: 10, ..Options::default() }).await;
    server.event("video.created").await;
    server.event("video.created").await;
}

#[tokio::test]
async fn a_body_in_many_frames_is_one_body() {
    let server = Server::start().await;
    let text = format!(r#"{{"type":"t","data":"{}"}}"#, "é".repeat(50_000));
    let frames =
        text.as_bytes().chunks(777).map(|chunk| Ok::<_, std::convert::Infallible>(Bytes::copy_from_slice(chunk)));
    let mut request = json_request("POST", "/v1/events", "");
    *request.body_mut() = Body::from_stream(futures_util::stream::iter(frames.collect::<Vec<_>>()));
    let id = server.send(request).await.expect(StatusCode::ACCEPTED)["id"].as_str().unwrap().to_owned();
    let shown = server.get(&format!("/v1/events/{id}")).await.expect(StatusCode::OK);
    assert_eq!(shown["data"].as_str().unwrap().chars().count(), 50_000);
}

#[tokio::test]
async fn every_error_of_an_event_is_reported() {
    let server = Server::start().await;
    let long = "x".repeat(129);
    for (body, pointers) in [
        (json!([]), vec![""]),
        (json!({}), vec!["/type", "/data"]),
        (json!({"type": "a", "data": 1, "colour": "red", "size": 2}), vec!["/colour", "/size"]),
        (json!({"type": 7, "data": 1, "tenant": []}), vec!["/type", "/tenant"]),
        (json!({"type": null, "data": null}), vec!["/type"]),
        (json!({"type": null, "data": 1}), vec!["/type"]),
        (
            json!({"type": "a b", "data": 1, "tenant": "a/b", "idempotency_key": ""}),
            vec!["/type", "/tenant", "/idempotency_key"],
        ),
        (json!({"type": long, "data": 1}), vec!["/type"]),
        (json!({"type": "weir.backlog.high", "data": 1}), vec!["/type"]),
        (json!({"type": "a", "data": 1, "idempotency_key": "é"}), vec!["/idempotency_key"]),
        (json!({"type": "a", "data": 1, "idempotency_key": "k".repeat(256)}), vec!["/idempotency_key"]),
        (json!({"type": "a", "data": 1, "destinations": "dst_1"}), vec!["/destinations"]),
        (json!({"type": "a", "data": 1, "destinations": []}), vec!["/destinations"]),
        (json!({"type": "a", "data": 1, "destinations": [1, "dst_1"]}), vec!["/destinations/0", "/destinations/1"]),
        (
            json!({"type": 7, "data": 1, "idempotency_key": "", "ordering_key": "", "ttl_s": 0}),
            vec!["/type", "/idempotency_key", "/ttl_s", "/ordering_key"],
        ),
        (
            json!({"type": "a", "data": 1, "destinations": ["dst_1", "evt_01h2xcejqtf2nbrexx3vqjhp41"]}),
            vec!["/destinations/0", "/destinations/1"],
        ),
        (json!({"type": "a", "data": 1, "destinations": ["dst_01h2xcejqtf2nbrexx3vqjhp41"]}), vec!["/destinations/0"]),
    ] {
        assert_eq!(server.post("/v1/events", &body).await.pointers(), pointers, "{body}");
    }
    let twice = r#"{"type":"a","data":1,"data":2}"#;
    assert!(
        server.post("/v1/events", twice).await.problem(422)["detail"]
            .as_str()
            .unwrap()
            .contains("duplicate field `data`")
    );
    server.assert_untouched().await;
}

#[tokio::test]
async fn every_error_of_a_batch_is_reported() {
    let server = Server::start().await;
    for (body, pointers) in [
        (json!({}), vec!["/events"]),
        (json!({"events": []}), vec!["/events"]),
        (json!({"events": {}}), vec!["/events"]),
        (json!({"events": [], "more": 1}), vec!["/more"]),
        (json!({"events": vec![json!({"type": "a", "data": 1}); 1_001]}), vec!["/events"]),
    ] {
        assert_eq!(server.post("/v1/events/batch", &body).await.pointers(), pointers);
    }
    let mut keyed = json_request("POST", "/v1/events/batch", json!({"events": [{"type": "a", "data": 1}]}));
    keyed.headers_mut().insert("idempotency-key", "k".parse().unwrap());
    assert_eq!(server.send(keyed).await.pointers(), ["/idempotency_key"]);
    server.assert_untouched().await;
}

#[tokio::test]
async fn foreign_and_malformed_ids_are_not_found_and_the_form_is_named() {
    let server = Server::start().await;
    for (path, form) in [
        ("/v1/destinations/evt_01h2xcejqtf2nbrexx3vqjhp41", "dst_"),
        ("/v1/destinations/1", "dst_"),
        ("/v1/destinations/%ff", ""),
        ("/v1/events/dst_01h2xcejqtf2nbrexx3vqjhp41", "evt_"),
        ("/v1/deliveries/'%20OR%201=1", "dlv_"),
    ] {
        let problem = server.get(path).await.problem(404);
        assert!(problem["detail"].as_str().unwrap().contains(form), "{path}: {problem}");
    }
}
