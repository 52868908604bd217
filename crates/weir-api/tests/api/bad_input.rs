//! Bad input: refused by name, and nothing changes.

use axum::body::Body;
use bytes::Bytes;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use weir_core::address::AddressPolicy;

use crate::harness::{Options, Server, json_request};

const URL: &str = "https://example.com/hooks";

/// Nothing was stored and nobody was woken.
async fn assert_untouched(server: &Server) {
    for list in ["/v1/destinations", "/v1/events", "/v1/deliveries"] {
        assert_eq!(server.count(list).await, 0, "{list}");
    }
    assert!(server.queue.woken().is_empty() && server.queue.edited().is_empty());
}

#[tokio::test]
async fn what_is_not_json_is_refused_with_400() {
    let server = Server::start().await;
    for path in ["/v1/destinations", "/v1/events", "/v1/events/batch"] {
        for body in [
            "",
            "{",
            "{\"type\": }",
            "not json",
            "{} {}",
            "{\"type\":\"a\",\"data\":01}",
            "\u{feff}{}",
        ] {
            server.post(path, body).await.problem(400);
        }
        let mut invalid_text = json_request("POST", path, "");
        *invalid_text.body_mut() = Body::from(&b"{\"type\":\"a\",\"data\":\"\xff\"}"[..]);
        server.send(invalid_text).await.problem(400);
    }
    assert_untouched(&server).await;
}

#[tokio::test]
async fn what_says_it_is_not_json_is_refused_with_415() {
    let server = Server::start().await;
    let typed = |kind: &str| {
        let request = Request::post("/v1/events").header(header::CONTENT_TYPE, kind);
        request.body(Body::from(r#"{"type":"t","data":1}"#)).unwrap()
    };
    server
        .send(typed("application/x-www-form-urlencoded"))
        .await
        .problem(415);
    server.send(typed("text/plain")).await.problem(415);
    assert_untouched(&server).await;
    server
        .send(typed("application/json; charset=utf-8"))
        .await
        .expect(StatusCode::ACCEPTED);
    let untyped = Request::post("/v1/events")
        .body(Body::from(r#"{"type":"t","data":1}"#))
        .unwrap();
    server.send(untyped).await.expect(StatusCode::ACCEPTED);
}

#[tokio::test]
async fn an_event_of_the_largest_size_is_taken_and_one_byte_more_is_not() {
    let server = Server::start_with(Options {
        max_event_bytes: 1_000,
        ..Options::default()
    })
    .await;
    let of_size = |size: usize| {
        let frame = r#"{"type":"t","data":""}"#.len();
        format!(r#"{{"type":"t","data":"{}"}}"#, "x".repeat(size - frame))
    };
    server.post("/v1/events", of_size(1_001)).await.problem(413);
    server.post("/v1/events", of_size(20_000_000)).await.problem(413);
    server
        .post("/v1/destinations", format!(r#"{{"name":"{}"}}"#, "x".repeat(300_000)))
        .await
        .problem(413);
    assert_untouched(&server).await;
    let batch = format!(r#"{{"events":[{},{}]}}"#, of_size(1_001), of_size(1_000));
    let answer = server
        .post("/v1/events/batch", batch)
        .await
        .expect(StatusCode::ACCEPTED);
    assert_eq!(answer["events"][0]["error"]["status"], 413);
    server
        .post("/v1/events", of_size(1_000))
        .await
        .expect(StatusCode::ACCEPTED);
    assert_eq!(server.count("/v1/events").await, 2);
}

#[tokio::test]
async fn a_body_in_many_frames_is_one_body() {
    let server = Server::start().await;
    let text = format!(r#"{{"type":"t","data":"{}"}}"#, "é".repeat(50_000));
    let frames = text
        .as_bytes()
        .chunks(777)
        .map(|chunk| Ok::<_, std::convert::Infallible>(Bytes::copy_from_slice(chunk)));
    let mut request = json_request("POST", "/v1/events", "");
    *request.body_mut() = Body::from_stream(futures_util::stream::iter(frames.collect::<Vec<_>>()));
    let id = server.send(request).await.expect(StatusCode::ACCEPTED)["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let shown = server.get(&format!("/v1/events/{id}")).await.expect(StatusCode::OK);
    assert_eq!(shown["data"].as_str().unwrap().chars().count(), 50_000);
}

#[tokio::test]
async fn every_mistake_of_an_event_is_named() {
    let server = Server::start().await;
    let long = "x".repeat(129);
    for (body, pointers) in [
        (json!([]), vec![""]),
        (json!({}), vec!["/type", "/data"]),
        (
            json!({"type": "a", "data": 1, "colour": "red", "size": 2}),
            vec!["/colour", "/size"],
        ),
        (json!({"type": 7, "data": 1, "tenant": []}), vec!["/type", "/tenant"]),
        (json!({"type": null, "data": 1}), vec!["/type"]),
        (
            json!({"type": "a b", "data": 1, "tenant": "a/b", "idempotency_key": ""}),
            vec!["/type", "/tenant", "/idempotency_key"],
        ),
        (json!({"type": long, "data": 1}), vec!["/type"]),
        (json!({"type": "weir.backlog.high", "data": 1}), vec!["/type"]),
        (
            json!({"type": "a", "data": 1, "idempotency_key": "é"}),
            vec!["/idempotency_key"],
        ),
        (
            json!({"type": "a", "data": 1, "idempotency_key": "k".repeat(256)}),
            vec!["/idempotency_key"],
        ),
        (
            json!({"type": "a", "data": 1, "destinations": "dst_1"}),
            vec!["/destinations"],
        ),
        (
            json!({"type": "a", "data": 1, "destinations": []}),
            vec!["/destinations"],
        ),
        (
            json!({"type": "a", "data": 1, "destinations": [1, "dst_1"]}),
            vec!["/destinations/0"],
        ),
        (
            json!({"type": "a", "data": 1, "destinations": ["dst_1", "evt_01h2xcejqtf2nbrexx3vqjhp41"]}),
            vec!["/destinations/0", "/destinations/1"],
        ),
        (
            json!({"type": "a", "data": 1, "destinations": ["dst_01h2xcejqtf2nbrexx3vqjhp41"]}),
            vec!["/destinations/0"],
        ),
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
    assert_untouched(&server).await;
}

#[tokio::test]
async fn every_mistake_of_a_batch_is_named() {
    let server = Server::start().await;
    for (body, pointers) in [
        (json!({}), vec!["/events"]),
        (json!({"events": []}), vec!["/events"]),
        (json!({"events": {}}), vec!["/events"]),
        (json!({"events": [], "more": 1}), vec!["/more"]),
        (
            json!({"events": vec![json!({"type": "a", "data": 1}); 1_001]}),
            vec!["/events"],
        ),
    ] {
        assert_eq!(server.post("/v1/events/batch", &body).await.pointers(), pointers);
    }
    let mut keyed = json_request(
        "POST",
        "/v1/events/batch",
        json!({"events": [{"type": "a", "data": 1}]}),
    );
    keyed.headers_mut().insert("idempotency-key", "k".parse().unwrap());
    assert_eq!(server.send(keyed).await.pointers(), ["/idempotency_key"]);
    assert_untouched(&server).await;
}

/// A body with one field besides a good URL, and where it is wrong.
fn destination_mistakes() -> Vec<(Value, Vec<&'static str>)> {
    let limit = |limit: Value| json!([{"limit": limit, "period": "second"}]);
    let second = json!({"limit": 1, "period": "second"});
    let headers: Value = (0..33).map(|number| (format!("x-{number}"), json!("v"))).collect();
    vec![
        (json!({"url": null}), vec!["/url"]),
        (
            json!({"url": 5, "name": 5, "tenant": 5, "paused": 1}),
            vec!["/url", "/name", "/tenant", "/paused"],
        ),
        (json!({"colour": "red", "id": "dst_1"}), vec!["/colour", "/id"]),
        (json!({"name": "x".repeat(201)}), vec!["/name"]),
        (json!({"name": "a\nb"}), vec!["/name"]),
        (json!({"tenant": ""}), vec!["/tenant"]),
        (json!({"tenant": "a b"}), vec!["/tenant"]),
        (json!({"event_types": []}), vec!["/event_types"]),
        (
            json!({"event_types": ["ok", "vid*", 7]}),
            vec!["/event_types/1", "/event_types/2"],
        ),
        (json!({"rate_limits": limit(json!(0))}), vec!["/rate_limits/0/limit"]),
        (
            json!({"rate_limits": limit(json!(1_000_001))}),
            vec!["/rate_limits/0/limit"],
        ),
        (json!({"rate_limits": limit(json!(-1))}), vec!["/rate_limits/0/limit"]),
        (json!({"rate_limits": limit(json!(1.5))}), vec!["/rate_limits/0/limit"]),
        (json!({"rate_limits": limit(json!("10"))}), vec!["/rate_limits/0/limit"]),
        (json!({"rate_limits": limit(Value::Null)}), vec!["/rate_limits/0/limit"]),
        (
            json!({"rate_limits": [{"limit": 1, "period": "second", "burst": 0}]}),
            vec!["/rate_limits/0/burst"],
        ),
        (
            json!({"rate_limits": [{"limit": 1, "period": "week"}]}),
            vec!["/rate_limits/0/period"],
        ),
        (
            json!({"rate_limits": [{}]}),
            vec!["/rate_limits/0/limit", "/rate_limits/0/period"],
        ),
        (
            json!({"rate_limits": [{"limit": 1, "period": "second", "per": 1}]}),
            vec!["/rate_limits/0/per"],
        ),
        (json!({"rate_limits": [second, second]}), vec!["/rate_limits/1/period"]),
        (json!({"rate_limits": vec![second.clone(); 5]}), vec!["/rate_limits"]),
        (json!({"rate_limits": {}}), vec!["/rate_limits"]),
        (
            json!({"max_in_flight": 0, "timeout_ms": 99}),
            vec!["/max_in_flight", "/timeout_ms"],
        ),
        (
            json!({"max_in_flight": 10_001, "timeout_ms": 120_001}),
            vec!["/max_in_flight", "/timeout_ms"],
        ),
        (
            json!({"retry": {"max_attempts": 0, "max_age_s": 0}}),
            vec!["/retry/max_attempts", "/retry/max_age_s"],
        ),
        (
            json!({"retry": {"max_attempts": 101, "max_age_s": 2_592_001}}),
            vec!["/retry/max_attempts", "/retry/max_age_s"],
        ),
        (
            json!({"retry": {"base_ms": 0, "cap_ms": 0}}),
            vec!["/retry/base_ms", "/retry/cap_ms"],
        ),
        (json!({"retry": {"base_ms": 2, "cap_ms": 1}}), vec!["/retry/cap_ms"]),
        (
            json!({"retry": {"schedule_ms": [1], "base_ms": 1}}),
            vec!["/retry/base_ms"],
        ),
        (json!({"retry": {"schedule_ms": []}}), vec!["/retry/schedule_ms"]),
        (
            json!({"retry": {"schedule_ms": vec![1; 101]}}),
            vec!["/retry/schedule_ms"],
        ),
        (json!({"retry": {"schedule_ms": [1, -1]}}), vec!["/retry/schedule_ms/1"]),
        (json!({"retry": {"jitter": true}}), vec!["/retry/jitter"]),
        (json!({"retry": 3}), vec!["/retry"]),
        (
            json!({"headers": {"host": "a", "Content-Type": "b", "webhook-id": "c", "weir-attempt": "d"}}),
            vec![
                "/headers/Content-Type",
                "/headers/host",
                "/headers/webhook-id",
                "/headers/weir-attempt",
            ],
        ),
        (
            json!({"headers": {"a b": "v", "x-a": "line\nbreak", "x-b": 7}}),
            vec!["/headers/a b", "/headers/x-a", "/headers/x-b"],
        ),
        (json!({"headers": {"X-A": "1", "x-a": "2"}}), vec!["/headers/x-a"]),
        (json!({"headers": {"x-a": "***"}}), vec!["/headers/x-a"]),
        (json!({"headers": headers}), vec!["/headers"]),
        (json!({"headers": []}), vec!["/headers"]),
        (json!({"secret": "whsec_c2hvcnQ="}), vec!["/secret"]),
        (json!({"secret": 7}), vec!["/secret"]),
    ]
}

#[tokio::test]
async fn every_mistake_of_a_destination_is_named() {
    let server = Server::start().await;
    for (mut body, pointers) in destination_mistakes() {
        if body.get("url").is_none() {
            body["url"] = json!(URL);
        }
        assert_eq!(
            server.post("/v1/destinations", &body).await.pointers(),
            pointers,
            "{body}"
        );
    }
    assert_eq!(server.post("/v1/destinations", "{}").await.pointers(), ["/url"]);
    assert_eq!(server.post("/v1/destinations", "7").await.pointers(), [""]);
    assert_untouched(&server).await;
}

#[tokio::test]
async fn a_refused_patch_changes_nothing() {
    let server = Server::start().await;
    let path = format!(
        "/v1/destinations/{}",
        server.destination(json!({"url": URL, "headers": {"x-k": "v"}})).await
    );
    let before = server.get(&path).await.expect(StatusCode::OK);
    for (mut patch, pointers) in destination_mistakes() {
        patch["tenant"] = patch.get("tenant").cloned().unwrap_or(json!("changed"));
        assert_eq!(server.patch(&path, &patch).await.pointers(), pointers, "{patch}");
    }
    assert_eq!(
        server.patch(&path, json!({"secret": null})).await.pointers(),
        ["/secret"]
    );
    assert_eq!(server.patch(&path, json!([])).await.pointers(), [""]);
    server.patch(&path, "{").await.problem(400);
    assert_eq!(server.get(&path).await.expect(StatusCode::OK), before);
    assert!(server.queue.edited().is_empty());
}

#[tokio::test]
async fn urls_that_must_not_be_reached_are_refused() {
    let server = Server::start().await;
    let long = format!("https://example.com/{}", "x".repeat(2_048));
    for url in [
        "",
        "example.com",
        "/hooks",
        "https://",
        "ftp://example.com/",
        "http://example.com/",
        "https://user@example.com/",
        "https://:pass@example.com/",
        "https://example.com/#part",
        "https://127.0.0.1/",
        "https://10.1.2.3/",
        "https://[::1]/",
        "https://169.254.169.254/latest",
        "https://0x7f000001/",
        "https://2130706433/",
        "https://localhost/",
        &long,
    ] {
        assert_eq!(
            server.post("/v1/destinations", json!({"url": url})).await.pointers(),
            ["/url"],
            "{url}"
        );
    }
    assert_untouched(&server).await;
}

#[tokio::test]
async fn an_address_that_is_no_longer_allowed_does_not_stand_in_the_way_of_a_pause() {
    let addresses = AddressPolicy {
        allow_http: true,
        ..AddressPolicy::default()
    };
    let server = Server::start_with(Options {
        addresses,
        ..Options::default()
    })
    .await;
    let id = server.destination(json!({"url": "http://example.com/"})).await;
    let strict = Server::start().await;
    let old = server.store.destination(id.parse().unwrap()).await.unwrap().unwrap();
    strict.store.create_destination((*old).clone()).await.unwrap();
    let path = format!("/v1/destinations/{id}");
    strict
        .patch(&path, json!({"paused": true}))
        .await
        .expect(StatusCode::OK);
    assert_eq!(
        strict
            .patch(&path, json!({"url": "http://example.com/other"}))
            .await
            .pointers(),
        ["/url"]
    );
}

#[tokio::test]
async fn foreign_and_malformed_ids_are_not_found_and_told_the_form() {
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
