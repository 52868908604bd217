//! Authentication, hosts, health, metrics and the documentation.

use axum::body::Body;
use http::{Request, StatusCode};
use metrics_exporter_prometheus::PrometheusBuilder;
use serde_json::json;
use weir_api::{Hosts, Operations, SettingKeys, operations_router};
use weir_store::PageRequest;

use crate::harness::{Options, Server, reply};

#[tokio::test]
async fn with_configured_keys_every_v1_path_needs_one() {
    let server = Server::start_with(Options { api_keys: SettingKeys::new(["sesame"]), ..Options::default() }).await;
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
async fn a_request_for_another_host_is_not_answered_on_any_route() {
    let keys = || SettingKeys::new(["sesame"]);
    let named = Hosts::new([url::Host::parse("weir.example.com").unwrap()]);
    let request = |path: &str, host: &str| {
        let request = Request::get(path).header("authorization", "Bearer sesame").header("host", host);
        request.body(Body::empty()).unwrap()
    };
    let paths = ["/v1/events", "/v1/nothing", "/", "/healthz", "/readyz", "/metrics", "/openapi.json", "/docs"];
    for api_keys in [SettingKeys::default(), keys()] {
        let server = Server::start_with(Options { api_keys, ..Options::default() }).await;
        for path in paths {
            for host in ["evil.test:8080", "weir.example.com"] {
                server.send(request(path, host)).await.problem(421);
            }
            assert_ne!(server.send(request(path, "127.0.0.1:8080")).await.status, StatusCode::MISDIRECTED_REQUEST);
        }
        let post = Request::post("/v1/events").header("host", "evil.test").header("content-type", "application/json");
        let post = post.body(Body::from(r#"{"type":"t","data":1}"#)).unwrap();
        server.send(post).await.problem(421);
        assert_eq!(
            server.store.list_events(&Default::default(), PageRequest { before: None, limit: 1 }).await.unwrap().rows,
            []
        );
    }
    let server = Server::start_with(Options { api_keys: keys(), hosts: named, ..Options::default() }).await;
    for host in ["weir.example.com", "weir.example.com:443", "localhost"] {
        server.send(request("/v1/events", host)).await.expect(StatusCode::OK);
    }
    server.send(request("/v1/events", "evil.test")).await.problem(421);
}

#[tokio::test]
async fn a_process_without_the_api_checks_the_host_too() {
    let server = Server::start().await;
    let operations = |hosts: Hosts| {
        let operations = Operations {
            store: server.store.clone(),
            queue: None,
            readiness: server.readiness.clone(),
            render_metrics: None,
        };
        operations_router(operations, hosts)
    };
    let probe = |host: &str| Request::get("/healthz").header("host", host).body(Body::empty()).unwrap();
    reply(operations(Hosts::default()), probe("evil.test")).await.problem(421);
    reply(operations(Hosts::default()), probe("localhost")).await.expect(StatusCode::OK);
    reply(operations(Hosts::default().any_for_probes(true)), probe("10.1.2.3:9090")).await.expect(StatusCode::OK);
}

#[tokio::test]
async fn every_answer_has_the_id_of_its_request() {
    let server = Server::start_with(Options { api_keys: SettingKeys::new(["sesame"]), ..Options::default() }).await;
    let operations = operations_router(
        Operations {
            store: server.store.clone(),
            queue: None,
            readiness: server.readiness.clone(),
            render_metrics: None,
        },
        Hosts::default(),
    );
    let request = |path: &str, host: &str| Request::get(path).header("host", host).header("x-request-id", "mine-1");
    for (path, host, status) in [
        ("/healthz", "localhost", 200),
        ("/v1/events", "localhost", 401),
        ("/nothing", "localhost", 404),
        ("/healthz", "evil.test", 421),
    ] {
        for router in [&server.router, &operations] {
            let given = reply(router.clone(), request(path, host).body(Body::empty()).unwrap()).await;
            assert_eq!(given.header("x-request-id"), "mine-1", "{path} {host}");
        }
        let given = server.send(request(path, host).body(Body::empty()).unwrap()).await;
        assert_eq!(given.status.as_u16(), status, "{path} {host}");
    }
    let made = [server.get("/healthz").await, server.get("/healthz").await];
    let made = made.each_ref().map(|reply| reply.header("x-request-id"));
    assert!(made[0] != made[1] && made.iter().all(|id| id.len() == 32), "{made:?}");
}

#[tokio::test]
async fn readiness_follows_the_process_and_health_does_not() {
    let server = Server::start().await;
    // A slow disk adds a warning, which is not what this test is about.
    assert_eq!(server.get("/readyz").await.expect(StatusCode::OK)["status"], "ready");
    server.readiness.set_stopping();
    let reply = server.get("/readyz").await;
    reply.problem(503);
    assert_ne!(reply.header("retry-after"), "");
    assert_eq!(server.get("/healthz").await.expect(StatusCode::OK), json!({"status": "ok"}));
}

#[tokio::test]
async fn metrics_are_text_and_the_docs_load_nothing_from_elsewhere() {
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
    server.get("/nothing").await.problem(404);
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

#[tokio::test]
async fn a_program_at_the_root_finds_the_documentation() {
    let server = Server::start().await;
    let index = server.get("/").await.expect(StatusCode::OK);
    assert_eq!(
        (&index["name"], &index["docs"], &index["openapi"]),
        (&json!("Weir"), &json!("/docs"), &json!("/openapi.json"))
    );
    for path in ["docs", "openapi", "health"] {
        assert_eq!(server.get(index[path].as_str().unwrap()).await.status, StatusCode::OK, "{path}");
    }
    server.get("/?x=1").await.problem(422);
}
