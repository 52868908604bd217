//! Values at the ends of every range and outside it: the refusal names the parameter, or the work for the answer is
//! bounded.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Server, json_request};

const URL: &str = "https://example.com/hooks";

#[tokio::test]
async fn extreme_parameters_are_refused_by_name() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    let history = format!("/v1/destinations/{id}/history");
    let mut table = Vec::new();
    for list in ["/v1/overview", "/v1/events", "/v1/deliveries", "/v1/destinations", "/v1/replays", "/v1/activity"] {
        for limit in ["0", "-1", "201", "18446744073709551615", "1e2", "NaN", "", "0x10", "1.0"] {
            table.push((format!("{list}?limit={limit}"), "/limit"));
        }
        table.push((format!("{list}?cursor={}", "A".repeat(10_000)), "/cursor"));
    }
    table.extend([
        (format!("{history}?from=NaN"), "/from"),
        (format!("{history}?from=18446744073709551615"), "/from"),
        (format!("{history}?from=0000-00-00T00:00:00Z"), "/from"),
        // Too many buckets: fifty years in buckets of ten seconds. Then ranges from before the oldest bucket that is
        // kept.
        (format!("{history}?from=1970-01-01T00:00:00Z"), "/from"),
        (format!("{history}?from=0001-01-01T00:00:00Z&step=1h"), "/from"),
        (format!("{history}?to=0001-01-01T00:00:00Z"), "/from"),
        (format!("{history}?step=0s"), "/step"),
        (format!("/v1/destinations/{id}/health?window=18446744073709551615h"), "/window"),
        ("/v1/overview?sort=NaN".to_owned(), "/sort"),
    ]);
    for (path, pointer) in table {
        assert_eq!(server.get(&path).await.pointers(), [pointer], "{path:.200}");
    }
}

#[tokio::test]
async fn extreme_but_valid_parameters_are_answered() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    let last = |tag: u8| URL_SAFE_NO_PAD.encode([&[tag][..], &[u8::MAX; 16]].concat());
    for (path, rows) in [
        (format!("/v1/overview?cursor={}", last(b'o')), 0),
        (format!("/v1/overview?q={}", "a".repeat(5_000)), 0),
        (format!("/v1/events?cursor={}", last(b'e')), 0),
        (format!("/v1/destinations/{id}/history?from=3000-01-01T00:00:00Z"), 0),
        (format!("/v1/destinations/{id}/history?from=3000-01-01T00:00:00Z&to=0001-01-01T00:00:00Z"), 0),
        ("/v1/events?from=0001-01-01T00:00:00Z&to=3000-01-01T00:00:00Z".to_owned(), 0),
        ("/v1/deliveries?from=3000-01-01T00:00:00Z&to=0001-01-01T00:00:00Z".to_owned(), 0),
    ] {
        let shown = server.get(&path).await.expect(StatusCode::OK);
        assert_eq!(shown["data"].as_array().unwrap().len(), rows, "{path:.200}");
    }
    let path = format!("/v1/destinations/{id}/audit?from=0001-01-01T00:00:00Z&to=3000-01-01T00:00:00Z");
    assert_eq!(server.get(&path).await.expect(StatusCode::OK)["sends"], 0);
}

#[tokio::test]
async fn extreme_limits_of_a_preview_are_refused_or_previewed() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    for _ in 0..3 {
        server.event("t").await;
    }
    let path = format!("/v1/destinations/{id}/preview");
    for limit in ["18446744073709551615", "1e300", "-1", "0.5", "0", "1000001", "\"10\"", "[]"] {
        let body =
            format!(r#"{{"rate_limits": [{{"limit": {limit}, "period": "second"}}], "max_in_flight": {limit}}}"#);
        let refused = server.post(&path, body).await;
        assert_eq!(refused.pointers(), ["/rate_limits/0/limit", "/max_in_flight"], "{limit}");
    }
    for bad in ["NaN", "Infinity", "1e999", "01"] {
        server.post(&path, format!(r#"{{"max_in_flight": {bad}}}"#)).await.problem(400);
    }
    for limit in [1, 1_000_000] {
        let limits: Vec<Value> = ["second", "minute", "hour", "day"]
            .into_iter()
            .map(|period| json!({"limit": limit, "period": period}))
            .collect();
        let shown = server.post(&path, json!({"rate_limits": limits, "max_in_flight": 1})).await.expect(StatusCode::OK);
        let eta = shown["drain_eta_s"].as_f64().unwrap();
        assert!(eta.is_finite() && (0.0..4.0 * 86_400.0).contains(&eta), "{shown}");
    }
}

#[tokio::test]
async fn bodies_are_bounded_in_length_and_depth() {
    let server = Server::start().await;
    let deep = "[".repeat(100_000);
    for path in ["/v1/destinations", "/v1/replays", "/v1/verify", "/v1/keys", "/v1/events", "/v1/session"] {
        // A login is refused for its length.
        server.post(path, &deep).await.problem(if path == "/v1/session" { 413 } else { 400 });
    }
    let long = json!({"url": URL, "name": "a".repeat(300_000)}).to_string();
    for (method, path) in [("POST", "/v1/destinations"), ("PUT", "/v1/alerts"), ("POST", "/v1/verify")] {
        server.send(json_request(method, path, &long)).await.problem(413);
    }
    server.assert_untouched().await;
}
