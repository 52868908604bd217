//! Limits that are tried on the past.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};

use crate::{audit::limits, harness::Server};

/// 300 deliveries, sent ten times a second as the limiter does; and where to try limits on them.
async fn past(server: &Server) -> String {
    let (id, claimed) = server.claimed(limits(&[(10, "second")]), 300).await;
    server.record_sends(&claimed, Duration::from_millis(101)).await;
    format!("/v1/destinations/{id}/simulate")
}

fn latency(answer: &Value, of: &str, percentile: &str) -> f64 {
    answer[of][percentile].as_f64().unwrap()
}

fn per_second(limit: u32) -> Value {
    json!({"rate_limits": [{"limit": limit, "period": "second"}]})
}

#[tokio::test]
async fn the_recorded_limit_reproduces_what_was_recorded() {
    let server = Server::start().await;
    let path = past(&server).await;
    let answer = server.post(&path, "{}").await.expect(StatusCode::OK);
    assert_eq!((&answer["deliveries"], &answer["truncated"]), (&json!(300), &json!(false)));
    assert_eq!((&answer["verdict"], &answer["backlog_end"]), (&json!("drains"), &json!(0)));
    for percentile in ["p50", "p99"] {
        let (tried, recorded) =
            (latency(&answer, "latency_ms", percentile), latency(&answer, "recorded_latency_ms", percentile));
        assert!((tried - recorded).abs() <= (0.02 * recorded).max(20.0), "{percentile}: {answer}");
    }
    assert_eq!(answer["series"].as_array().unwrap().len(), 120);
    assert!(answer["rate_limits"][0]["utilisation"].as_f64().unwrap() > 0.98, "{answer}");
}

#[tokio::test]
async fn other_limits_are_tried_and_the_smallest_that_is_enough_is_found() {
    let server = Server::start().await;
    let path = past(&server).await;
    let from = |mut body: Value, from: &str| {
        body["from"] = json!(from);
        body["to"] = json!("2026-11-21T07:30:20Z");
        body
    };
    let half = server.post(&path, from(per_second(5), "2026-11-21T07:30:00Z")).await.expect(StatusCode::OK);
    // All arrive at once, so the backlog only shrinks: 300 less what five a second send in twenty seconds.
    assert_eq!(half["verdict"], "drains");
    let waiting = half["backlog_end"].as_u64().unwrap();
    assert!((195..=205).contains(&waiting), "{half}");
    assert!(half["drained_at"].as_str().unwrap() > "2026-11-21T07:30:59", "{half}");
    // 297 of 300 have to be answered within ten seconds.
    let target = json!({"target": {"latency_p99_ms": 10_000}});
    let answer = server.post(&path, target).await.expect(StatusCode::OK);
    let smallest = answer["smallest_limit"]["limit"].as_u64().unwrap();
    assert!((29..=31).contains(&smallest), "{answer}");
    let none = server.post(&path, json!({"target": {"latency_p99_ms": 5}})).await.expect(StatusCode::OK);
    assert_eq!(none["smallest_limit"], Value::Null);
    let twice = server.post(&path, json!({"scale": 2})).await.expect(StatusCode::OK);
    assert_eq!(twice["deliveries"], 600);
    assert!(latency(&twice, "latency_ms", "max") > 1.9 * latency(&answer, "latency_ms", "max"), "{twice}");
}

#[tokio::test]
async fn a_range_without_deliveries_is_empty() {
    let server = Server::start().await;
    let path = past(&server).await;
    let range = json!({"from": "2026-11-20T00:00:00Z", "to": "2026-11-21T00:00:00Z"});
    let answer = server.post(&path, range).await.expect(StatusCode::OK);
    assert_eq!((&answer["deliveries"], &answer["drained_at"]), (&json!(0), &Value::Null));
    assert_eq!((&answer["smallest_limit"], &answer["latency_ms"]["p50"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn what_cannot_be_tried_is_refused_by_its_field() {
    let server = Server::start().await;
    let path = past(&server).await;
    let second = json!({"limit": 1, "period": "second"});
    for (body, pointers) in [
        (json!({"rate_limits": [second, second]}), &["/rate_limits/1/period"][..]),
        (json!({"from": "2026-11-22T00:00:00Z", "to": "2026-11-21T00:00:00Z"}), &["/from"]),
        (json!({"from": "2036-11-22T00:00:00Z"}), &["/from"]),
        (json!({"from": "yesterday", "scale": 0}), &["/from", "/scale"]),
        (json!({"failures": "some", "max_in_flight": 0}), &["/max_in_flight", "/failures"]),
        (json!({"target": {"latency_p99_ms": 0}}), &["/target/latency_p99_ms"]),
        (json!({"target": {"p99": 1}}), &["/target/p99"]),
    ] {
        assert_eq!(server.post(&path, &body).await.pointers(), pointers, "{body}");
    }
    server.post("/v1/destinations/dst_01h2xcejqtf2nbrexx3vqjhp41/simulate", "{}").await.problem(404);
}
