//! Requests with an `Idempotency-Key`: repeated, they get the first answer and create nothing.

use std::{sync::Arc, time::Duration};

use http::{StatusCode, header};
use serde_json::{Value, json};
use weir_api::SettingKeys;
use weir_core::{Clock as _, outcome::Verdict, retention::Cutoffs};
use weir_store::PrunePosition;

use crate::harness::{Options, Reply, Server, json_request};

const ROOT: &str = "sesame";
const OTHER: &str = "sesame-2";

async fn server() -> Server {
    Server::start_with(Options { api_keys: SettingKeys::new([ROOT, OTHER]), ..Options::default() }).await
}

impl Server {
    /// Posts as a caller, with an idempotency key.
    async fn keyed(&self, caller: &str, key: &str, path: &str, body: &Value) -> Reply {
        let mut request = json_request("POST", path, body);
        request.headers_mut().insert(header::AUTHORIZATION, format!("Bearer {caller}").parse().unwrap());
        request.headers_mut().insert("idempotency-key", key.parse().unwrap());
        self.send(request).await
    }

    async fn listed(&self, path: &str) -> usize {
        let request = http::Request::get(path).header(header::AUTHORIZATION, format!("Bearer {ROOT}"));
        let listed = self.send(request.body(axum::body::Body::empty()).unwrap()).await.expect(StatusCode::OK);
        listed["data"].as_array().unwrap().len()
    }
}

/// Asserts that this is the first answer again.
#[track_caller]
fn assert_replayed(first: &Reply, again: &Reply) {
    assert_eq!((again.status, again.header("idempotency-replayed")), (first.status, "true"), "{again:?}");
    assert_eq!(first.header("idempotency-replayed"), "");
    let [first_body, again_body] = [first, again].map(|reply| serde_json::from_slice::<Value>(&reply.body).unwrap());
    assert_eq!(first_body, again_body);
    for name in ["location", "etag", "cache-control"] {
        assert_eq!(first.header(name), again.header(name), "{name}");
    }
}

#[tokio::test]
async fn a_repeated_creation_of_a_destination_gets_the_first_answer_with_the_secret() {
    let server = server().await;
    let body = json!({"url": "https://example.com/", "tenant": "acme"});
    let path = "/v1/destinations";
    let first = server.keyed(ROOT, "a key", path, &body).await;
    let created = first.expect(StatusCode::CREATED);
    assert_replayed(&first, &server.keyed(ROOT, "a key", path, &body).await);
    assert_eq!(
        server.keyed(ROOT, "a key", path, &json!({"url": "https://example.org/"})).await.pointers(),
        ["/idempotency-key"]
    );
    assert_eq!(server.listed(path).await, 1);
    let second = server.keyed(ROOT, "another key", path, &body).await.expect(StatusCode::CREATED);
    assert_ne!(second["id"], created["id"]);
    // A refused request does not use its key.
    server.keyed(ROOT, "third", path, &json!({"url": "nothing"})).await.problem(422);
    server.keyed(ROOT, "third", path, &body).await.expect(StatusCode::CREATED);
    assert_eq!(server.listed(path).await, 3);

    // A later secret is not shown.
    let rotate = format!("{path}/{}/rotate-secret", created["id"].as_str().unwrap());
    server.keyed(ROOT, "unused", &rotate, &json!({})).await.expect(StatusCode::OK);
    server.keyed(ROOT, "a key", path, &body).await.problem(409);
    // After a day the key is free again.
    server.clock.advance(Duration::from_secs(86_400));
    server.keyed(ROOT, "a key", path, &body).await.expect(StatusCode::CREATED);
    assert_eq!(server.listed(path).await, 4);
}

#[tokio::test]
async fn a_key_belongs_to_its_caller() {
    let server = server().await;
    let mut callers = Vec::new();
    for _ in 0..2 {
        // Two keys with one name are two callers.
        let key = json!({"name": "same", "role": "operate"});
        let key = server.keyed(ROOT, &format!("caller {}", callers.len()), "/v1/keys", &key).await;
        callers.push(key.expect(StatusCode::CREATED)["secret"].as_str().unwrap().to_owned());
    }
    let body = json!({"url": "https://example.com/"});
    for caller in [&callers[0], &callers[1], ROOT] {
        server.keyed(caller, "shared", "/v1/destinations", &body).await.expect(StatusCode::CREATED);
    }
    assert_eq!(server.listed("/v1/destinations").await, 3);
    // The keys of the settings have no names, and count as one caller.
    let again = server.keyed(OTHER, "shared", "/v1/destinations", &body).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    for key in ["", &"a".repeat(256), "é"] {
        let refused = server.keyed(ROOT, key, "/v1/destinations", &body).await;
        assert_eq!(refused.pointers(), ["/idempotency-key"], "{key}");
    }
}

#[tokio::test]
async fn a_repeated_creation_of_a_key_is_refused_with_its_id() {
    let server = server().await;
    let body = json!({"name": "billing", "role": "read"});
    let created = server.keyed(ROOT, "k", "/v1/keys", &body).await.expect(StatusCode::CREATED);
    let refused = server.keyed(ROOT, "k", "/v1/keys", &body).await.problem(409);
    let detail = refused["detail"].as_str().unwrap();
    assert!(detail.contains(created["id"].as_str().unwrap()) && !detail.contains("wk_"), "{detail}");
    assert_eq!(server.listed("/v1/keys").await, 1);
}

#[tokio::test]
async fn a_repeated_creation_of_a_limit_group_gets_the_first_answer() {
    let server = server().await;
    let (path, body) = ("/v1/limit-groups", json!({"name": "stripe", "max_in_flight": 5}));
    let first = server.keyed(ROOT, "a key", path, &body).await;
    let created = first.expect(StatusCode::CREATED);
    assert_replayed(&first, &server.keyed(ROOT, "a key", path, &body).await);
    assert_eq!(server.keyed(ROOT, "a key", path, &json!({"name": "other"})).await.pointers(), ["/idempotency-key"]);
    server.keyed(OTHER, "another key", path, &body).await.problem(409);
    assert_eq!(server.listed(path).await, 1);
    assert_eq!(first.header("location"), format!("{path}/{}", created["id"].as_str().unwrap()));
}

#[tokio::test]
async fn a_repeated_replay_gets_the_first_answer() {
    let server = server().await;
    let body = json!({"tenant": "acme"});
    // A dry run creates nothing, and uses no key.
    server.keyed(ROOT, "r", "/v1/replays?dry_run=true", &body).await.expect(StatusCode::OK);
    let first = server.keyed(ROOT, "r", "/v1/replays", &body).await;
    first.expect(StatusCode::ACCEPTED);
    assert_replayed(&first, &server.keyed(ROOT, "r", "/v1/replays", &body).await);
    assert_eq!(server.keyed(ROOT, "r", "/v1/replays", &json!({})).await.pointers(), ["/idempotency-key"]);
    assert_eq!(server.listed("/v1/replays").await, 1);
}

#[tokio::test]
async fn a_repeated_test_event_is_sent_once() {
    let server = server().await;
    let mut tests = Vec::new();
    for url in ["https://example.com/", "https://example.org/"] {
        let made = server.keyed(ROOT, url, "/v1/destinations", &json!({"url": url})).await.expect(StatusCode::CREATED);
        tests.push(format!("/v1/destinations/{}/test", made["id"].as_str().unwrap()));
    }
    let first = server.keyed(ROOT, "t", &tests[0], &Value::Null).await;
    first.expect(StatusCode::ACCEPTED);
    assert_replayed(&first, &server.keyed(ROOT, "t", &tests[0], &Value::Null).await);
    assert_eq!(server.keyed(ROOT, "t", &tests[1], &Value::Null).await.pointers(), ["/idempotency-key"]);
    assert_eq!(server.listed("/v1/events").await, 1);
    server.keyed(ROOT, "t2", &tests[0], &Value::Null).await.expect(StatusCode::ACCEPTED);
    assert_eq!(server.listed("/v1/events").await, 2);
}

/// The key is reserved before the event is stored. A process may die in between: here the event is pruned instead.
#[tokio::test]
async fn a_reserved_test_event_that_is_missing_is_sent_by_the_repetition() {
    let server = server().await;
    let made = json!({"url": "https://example.com/"});
    let made = server.keyed(ROOT, "d", "/v1/destinations", &made).await.expect(StatusCode::CREATED);
    let id = made["id"].as_str().unwrap();
    let path = format!("/v1/destinations/{id}/test");
    let first = server.keyed(ROOT, "t", &path, &Value::Null).await.expect(StatusCode::ACCEPTED);
    server.settle(&server.claim(id).await[0], 200, Verdict::Delivered).await;
    let later = Some(server.clock.now() + Duration::from_secs(60));
    let cutoffs = Cutoffs { delivered: later, cancelled: later, dead: later };
    let mut position = Some(PrunePosition::START);
    while let Some(from) = position {
        position = server.store.prune_some(&cutoffs, from).await.unwrap().next;
    }
    assert_eq!(server.listed("/v1/events").await, 0);

    let again = server.keyed(ROOT, "t", &path, &Value::Null).await;
    assert_eq!(again.header("idempotency-replayed"), "true");
    assert_eq!(again.expect(StatusCode::ACCEPTED)["event_id"], first["event_id"]);
    assert_eq!(server.listed("/v1/events").await, 1);
    assert_eq!(server.claim(id).await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_requests_at_once_with_one_key_create_once_and_get_one_answer() {
    let server = Arc::new(server().await);
    for (path, body) in [("/v1/destinations", json!({"url": "https://example.com/"})), ("/v1/replays", json!({}))] {
        let posts: Vec<_> = (0..20)
            .map(|_| {
                let (server, body) = (Arc::clone(&server), body.clone());
                tokio::spawn(async move { server.keyed(ROOT, path, path, &body).await })
            })
            .collect();
        let mut ids = Vec::new();
        for post in posts {
            let reply = post.await.unwrap();
            assert!(reply.status.is_success(), "{reply:?}");
            ids.push(serde_json::from_slice::<Value>(&reply.body).unwrap()["id"].clone());
        }
        ids.dedup();
        assert_eq!((ids.len(), server.listed(path).await), (1, 1), "{path}");
    }
}
