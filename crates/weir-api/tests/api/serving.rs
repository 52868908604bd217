//! Who may ask, how the process is, and its documentation.

use axum::body::Body;
use http::{Request, StatusCode};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use weir_api::ApiKeys;

use crate::harness::{Options, Server};

#[tokio::test]
async fn with_keys_configured_everything_under_v1_needs_one() {
    let server = Server::start_with(Options { api_keys: ApiKeys::new(["sesame"]), ..Options::default() }).await;
    for path in ["/v1/events", "/v1/destinations", "/v1/nothing"] {
        let reply = server.get(path).await;
        reply.problem(401);
        assert_eq!(reply.header("www-authenticate"), r#"Bearer realm="weir""#);
    }
    server.post("/v1/events", json!({"type": "t", "data": 1})).await.problem(401);
    let with_key = |key: &str| Request::get("/v1/events").header("authorization", key).body(Body::empty()).unwrap();
    server.send(with_key("Bearer sesam")).await.problem(401);
    assert_eq!(server.send(with_key("Bearer sesame")).await.expect(StatusCode::OK)["data"], json!([]));
    for path in ["/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"] {
        assert_eq!(server.get(path).await.status, StatusCode::OK, "{path}");
    }
}

#[tokio::test]
async fn readiness_follows_the_process_and_health_does_not() {
    let server = Server::start().await;
    assert_eq!(server.get("/readyz").await.expect(StatusCode::OK), json!({"status": "ready"}));
    server.readiness.set_stopping();
    let reply = server.get("/readyz").await;
    reply.problem(503);
    assert_ne!(reply.header("retry-after"), "");
    assert_eq!(server.get("/healthz").await.expect(StatusCode::OK), json!({"status": "ok"}));
}

#[tokio::test]
async fn metrics_are_text_and_the_docs_bring_everything_they_need() {
    let server = Server::start().await;
    let metrics = server.get("/metrics").await;
    assert!(metrics.header("content-type").starts_with("text/plain; version=0.0.4"));
    assert!(metrics.body.starts_with(b"# HELP"));
    let docs = server.get("/docs").await;
    assert_eq!(docs.header("content-type"), "text/html; charset=utf-8");
    let policy = docs.header("content-security-policy");
    assert!(policy.contains("default-src 'none'") && !policy.contains("unsafe"), "{policy}");
    let page = String::from_utf8(docs.body.to_vec()).unwrap();
    assert!(!page.contains("http://") && !page.contains("https://") && !page.contains("{{"), "{page}");
    let document = server.get("/openapi.json").await.expect(StatusCode::OK);
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
}

#[tokio::test]
async fn unknown_paths_and_methods_are_problems_too() {
    let server = Server::start().await;
    server.get("/").await.problem(404);
    server.get("/v1/nothing").await.problem(404);
    let reply = server.delete("/v1/events").await;
    reply.problem(405);
    assert_eq!(reply.header("allow"), "POST,GET,HEAD");
    server.get("/v1/events/batch").await.problem(405);
}

#[test]
fn requests_are_counted_by_route_and_not_by_path() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    metrics::with_local_recorder(&recorder, || {
        runtime.block_on(async {
            let server = Server::start().await;
            server.event("video.created").await;
            server.get("/v1/events/evt_01h2xcejqtf2nbrexx3vqjhp41").await.problem(404);
            server.get("/v1/events/evt_01h2xcejqtf2nbrexx3vqjhp42").await.problem(404);
            server.get("/robots.txt").await.problem(404);
        });
    });
    let text = recorder.handle().render();
    for line in [
        r#"weir_http_requests_total{route="/v1/events",method="POST",status="202"} 1"#,
        r#"weir_http_requests_total{route="/v1/events/{id}",method="GET",status="404"} 2"#,
        r#"weir_http_requests_total{route="unmatched",method="GET",status="404"} 1"#,
        "weir_events_ingested_total 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} in {text}");
    }
    assert!(text.contains("# HELP weir_http_request_duration_seconds"), "{text}");
}
