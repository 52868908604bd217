//! Destinations by tenant and name: creation, replacement, expected versions, and concurrent requests for one name.

use std::sync::Arc;

use axum::body::Body;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};

use crate::harness::{Reply, Server, json_request};

const PATH: &str = "/v1/destinations/by-name/acme/Billing%20EU%2F1";

impl Server {
    pub(crate) async fn put(&self, path: &str, body: Value, headers: &[(&'static str, &str)]) -> Reply {
        let mut request: Request<Body> = json_request("PUT", path, body);
        for (name, value) in headers {
            request.headers_mut().insert(*name, value.parse().unwrap());
        }
        self.send(request).await
    }
}

#[tokio::test]
async fn a_put_creates_a_destination_and_then_replaces_all_its_settings() {
    let server = Server::start().await;
    let limits = json!([{"limit": 5, "period": "second", "burst": 1}]);
    let body = json!({
        "url": "https://example.com/hooks", "rate_limits": limits, "paused": true,
        "headers": {"x-kept": "1", "x-removed": "2"},
    });
    let created = server.put(PATH, body, &[]).await;
    let (etag, location) = (created.header("etag").to_owned(), created.header("location").to_owned());
    assert_eq!(created.header("cache-control"), "no-store");
    let created = created.expect(StatusCode::CREATED);
    assert_eq!((&created["tenant"], &created["name"]), (&json!("acme"), &json!("Billing EU/1")));
    assert_eq!(location, format!("/v1/destinations/{}", created["id"].as_str().unwrap()));
    let secret = created["secret"].clone();

    let body = json!({"url": "https://example.com/hooks", "max_in_flight": 3, "headers": {"x-kept": "***"}});
    let replaced = server.put(PATH, body.clone(), &[]).await;
    assert_ne!(replaced.header("etag"), etag);
    let newer = replaced.header("etag").to_owned();
    let replaced = replaced.expect(StatusCode::OK);
    assert_eq!((&replaced["id"], &replaced["secret"]), (&created["id"], &Value::Null));
    assert_eq!((&replaced["max_in_flight"], &replaced["rate_limits"]), (&json!(3), &json!([])));
    assert_eq!((&replaced["paused"], &replaced["headers"]), (&json!(false), &json!({"x-kept": "***"})));
    let shown = server.get(&format!("{location}/secret")).await.expect(StatusCode::OK);
    assert_eq!(shown["secret"], secret, "the secret stays");
    let stored = server.store.destination(created["id"].as_str().unwrap().parse().unwrap()).await.unwrap().unwrap();
    assert_eq!(stored.settings.headers, [("x-kept".to_owned(), "1".to_owned())]);
    // The same again changes nothing.
    assert_eq!(server.put(PATH, body, &[]).await.header("etag"), newer);
}

#[tokio::test]
async fn a_put_names_the_version_that_it_replaces_or_only_creates() {
    let server = Server::start().await;
    let body = || json!({"url": "https://example.com/"});
    server.put(PATH, body(), &[("if-match", "*")]).await.problem(412);
    let created = server.put(PATH, body(), &[("if-none-match", "*")]).await;
    let first = created.header("etag").to_owned();
    created.expect(StatusCode::CREATED);
    server.put(PATH, body(), &[("if-none-match", "*")]).await.problem(412);
    server.put(PATH, body(), &[("if-none-match", &first)]).await.problem(412);
    let slower = json!({"url": "https://example.com/", "max_in_flight": 1});
    server.put(PATH, slower, &[("if-match", &first)]).await.expect(StatusCode::OK);
    server.put(PATH, body(), &[("if-match", &first)]).await.problem(412);
}

#[tokio::test]
async fn a_put_for_a_name_of_several_destinations_or_an_invalid_body_changes_nothing() {
    let server = Server::start().await;
    for _ in 0..2 {
        server.destination(json!({"url": "https://example.com/", "tenant": "acme", "name": "Billing EU/1"})).await;
    }
    server.put(PATH, json!({"url": "https://example.com/"}), &[]).await.problem(409);
    let path = PATH.replace("acme", "globex");
    let named = json!({"url": "https://example.com/", "name": "a", "tenant": "b"});
    assert_eq!(server.put(&path, named, &[]).await.pointers(), ["/name", "/tenant"]);
    assert_eq!(server.put(&path, json!({"timeout_ms": 1}), &[]).await.pointers(), ["/url", "/timeout_ms"]);
    assert_eq!(server.put(&path, json!([]), &[]).await.pointers(), [""]);
    let bad = "/v1/destinations/by-name/a%20b/c";
    server.put(bad, json!({"url": "https://example.com/"}), &[]).await.problem(404);
    assert_eq!(server.count("/v1/destinations").await, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_puts_at_once_create_one_destination() {
    let server = Arc::new(Server::start().await);
    let puts: Vec<_> = (1..=20)
        .map(|number| {
            let server = Arc::clone(&server);
            let body = json!({"url": "https://example.com/", "max_in_flight": number});
            tokio::spawn(async move { server.put(PATH, body, &[]).await.status })
        })
        .collect();
    let mut created = 0;
    for put in puts {
        let status = put.await.unwrap();
        assert!([StatusCode::CREATED, StatusCode::OK].contains(&status), "{status}");
        created += u32::from(status == StatusCode::CREATED);
    }
    assert_eq!((created, server.count("/v1/destinations").await), (1, 1));
}

#[tokio::test]
async fn a_deletion_applies_only_to_the_version_that_it_names() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": "https://example.com/"})).await;
    let path = format!("/v1/destinations/{id}");
    let first = server.get(&path).await.header("etag").to_owned();
    server.patch(&path, json!({"name": "edited"})).await.expect(StatusCode::OK);
    let delete = |etag: &str| Request::delete(&path).header(header::IF_MATCH, etag).body(Body::empty()).unwrap();
    server.send(delete(&first)).await.problem(412);
    let second = server.get(&path).await.header("etag").to_owned();
    assert_eq!(server.send(delete(&second)).await.status, StatusCode::NO_CONTENT);
    server.send(delete(&second)).await.problem(404);
}
