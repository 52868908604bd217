//! The state of the installation.

use http::{Request, StatusCode, header};
use serde_json::json;
use weir_api::SettingKeys;
use weir_core::Timestamp;
use weir_store::ProcessProfile;

use crate::harness::{Options, Server};

#[tokio::test]
async fn the_status_shows_processes_store_and_queue() {
    let server = Server::start().await;
    let started_at = Timestamp::from_secs(1_795_246_200);
    let [role, version, host] = ["serve", "0.1.0", "web-1"].map(str::to_owned);
    let profile = ProcessProfile { role, version, host, started_at };
    server.store.describe_process(profile).await.unwrap();
    let mut status = server.get("/v1/status").await.expect(StatusCode::OK);
    assert!(status["store"]["answered_in_ms"].take().is_number());
    assert!(status["queue"]["answered_in_ms"].take().is_number());
    let expected = json!({
        "as_of": "2026-11-21T07:30:00.000Z",
        "version": "0.1.0",
        "store": {"kind": "sqlite", "is_reachable": true, "obstacle": null, "answered_in_ms": null, "free_bytes": 7_000_000},
        "queue": {"kind": "memory", "is_reachable": true, "obstacle": null, "answered_in_ms": null, "free_bytes": null},
        "queue_depths": {"jobs": 2, "ready": 1, "oldest_waited_ms": 40, "queued": 3, "in_flight": 4},
        "processes": [{
            "id": 1, "role": "serve", "version": "0.1.0", "host": "web-1", "started_at": "2026-11-21T07:30:00.000Z",
            "clock_ahead_s": null,
        }],
        "outage": null,
    });
    assert_eq!(status, expected);
}

#[tokio::test]
async fn a_key_that_is_bound_to_tenants_does_not_see_the_installation() {
    let server = Server::start_with(Options { api_keys: SettingKeys::new(["root"]), ..Options::default() }).await;
    let request = |key: &str, path: &str, body: Option<serde_json::Value>| {
        let method = if body.is_some() { "POST" } else { "GET" };
        let builder =
            Request::builder().method(method).uri(path).header(header::AUTHORIZATION, format!("Bearer {key}"));
        let builder = builder.header(header::CONTENT_TYPE, "application/json");
        builder.body(body.map_or_else(axum::body::Body::empty, |body| body.to_string().into())).unwrap()
    };
    let wanted = json!({"name": "reader", "role": "read", "tenants": ["acme"]});
    let created = server.send(request("root", "/v1/keys", Some(wanted))).await.expect(StatusCode::CREATED);
    let key = created["secret"].as_str().unwrap();
    server.send(request(key, "/v1/status", None)).await.problem(404);
    server.send(request("root", "/v1/status", None)).await.expect(StatusCode::OK);
}
