//! API keys: every operation, by every role, on data of the key's own tenant and of another one; and the keys
//! themselves.

use std::{collections::BTreeSet, time::Duration};

use axum::body::Body;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use weir_api::ApiKeys;

use crate::harness::{Options, Reply, Server};

/// The key in the settings of the server.
const ROOT: &str = "sesame";
const OWN: &str = "acme";
const FOREIGN: &str = "globex";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

impl Server {
    async fn with_keys() -> Self {
        Self::start_with(Options { api_keys: ApiKeys::new([ROOT]), ..Options::default() }).await
    }

    async fn ask(&self, key: &str, method: &str, path: &str, body: Option<&Value>) -> Reply {
        let request =
            Request::builder().method(method).uri(path).header(header::AUTHORIZATION, format!("Bearer {key}"));
        let request = match body {
            Some(body) => request.header(header::CONTENT_TYPE, "application/json").body(Body::from(body.to_string())),
            None => request.body(Body::empty()),
        };
        self.send(request.unwrap()).await
    }

    async fn root(&self, method: &str, path: &str, body: Value) -> Value {
        let reply = self.ask(ROOT, method, path, Some(&body)).await;
        assert!(reply.status.is_success(), "{method} {path}: {reply:?}");
        serde_json::from_slice(&reply.body).unwrap()
    }

    /// Creates a key and returns its secret.
    async fn key(&self, role: &str, tenants: Value) -> String {
        let created = self.root("POST", "/v1/keys", json!({"name": role, "role": role, "tenants": tenants})).await;
        created["secret"].as_str().unwrap().to_owned()
    }
}

/// The paths that can be limited to a tenant.
const LISTS: [&str; 6] =
    ["/v1/destinations", "/v1/events", "/v1/deliveries", "/v1/deliveries/groups", "/v1/overview", "/v1/stream"];

/// The data of one tenant: the ids for the paths.
struct Data {
    tenant: &'static str,
    destination: String,
    event: String,
    delivery: String,
    replay: String,
    key: String,
}

impl Data {
    async fn create(server: &Server, tenant: &'static str) -> Self {
        let id = |value: &Value| value["id"].as_str().unwrap().to_owned();
        let url = format!("https://{tenant}.example/hooks");
        let destination = server.root("POST", "/v1/destinations", json!({"url": url, "tenant": tenant})).await;
        let event = json!({"type": "t", "data": tenant, "tenant": tenant});
        let event = id(&server.root("POST", "/v1/events", event).await);
        let shown = server.ask(ROOT, "GET", &format!("/v1/events/{event}"), None).await.expect(StatusCode::OK);
        let replay = server.root("POST", "/v1/replays", json!({"tenant": tenant})).await;
        let key = json!({"name": tenant, "role": "read", "tenants": [tenant]});
        let key = server.root("POST", "/v1/keys", key).await;
        let delivery = id(&shown["deliveries"][0]);
        Self { tenant, destination: id(&destination), event, delivery, replay: id(&replay), key: id(&key) }
    }

    /// The path for this data.
    fn path(&self, method: &str, template: &str) -> String {
        let id = match template.split('/').nth(2) {
            Some("destinations") => &self.destination,
            Some("events") => &self.event,
            Some("deliveries") => &self.delivery,
            Some("replays") => &self.replay,
            _ => &self.key,
        };
        let path = template.replace("{id}", id).replace("{tenant}", self.tenant).replace("{name}", "a%20new%2Fname");
        let is_list = method == "GET" && LISTS.contains(&template);
        if is_list { format!("{path}?tenant={}", self.tenant) } else { path }
    }

    async fn everything(&self, server: &Server) -> Vec<Value> {
        let mut everything = Vec::new();
        for template in
            ["/v1/destinations/{id}", "/v1/events/{id}", "/v1/deliveries/{id}", "/v1/replays/{id}", "/v1/events"]
        {
            everything.push(server.ask(ROOT, "GET", &self.path("GET", template), None).await.expect(StatusCode::OK));
        }
        everything
    }

    fn ids(&self) -> [&str; 5] {
        [&self.destination, &self.event, &self.delivery, &self.replay, &self.key]
    }
}

/// An operation, the role that it needs, and the answers to a key that is bound to a tenant.
struct Operation {
    method: &'static str,
    path: &'static str,
    role: &'static str,
    body: Option<fn(&str) -> Value>,
    /// For data of the key's own tenant.
    own: u16,
    /// For data of another tenant.
    foreign: u16,
}

/// Deletions are last, because the others need the data.
fn operations() -> Vec<Operation> {
    let read = |path, foreign| Operation { method: "GET", path, role: "read", body: None, own: 200, foreign };
    let change = |method, path, role, own, body| Operation { method, path, role, own, body, foreign: 404 };
    let nothing: Option<fn(&str) -> Value> = None;
    vec![
        change("POST", "/v1/events", "ingest", 202, Some(|to| json!({"type": "t", "data": 2, "tenant": to}))),
        Operation {
            foreign: 422,
            ..change(
                "POST",
                "/v1/events/batch",
                "ingest",
                202,
                Some(|to| json!({"events": [{"type": "t", "data": 3, "tenant": to}]})),
            )
        },
        read("/v1/events", 404),
        read("/v1/events/{id}", 404),
        read("/v1/destinations", 404),
        read("/v1/destinations/{id}", 404),
        read("/v1/destinations/{id}/backlog", 404),
        read("/v1/destinations/{id}/history", 404),
        read("/v1/destinations/{id}/health", 404),
        read("/v1/destinations/{id}/audit", 404),
        read("/v1/destinations/{id}/overview", 404),
        read("/v1/overview", 404),
        read("/v1/stream", 404),
        read("/v1/deliveries", 404),
        read("/v1/deliveries/groups", 404),
        read("/v1/deliveries/{id}", 404),
        // With a secret of its own it shows nothing of a tenant.
        Operation {
            foreign: 200,
            ..change("POST", "/v1/verify", "read", 200, Some(|_| json!({"secret": SECRET, "headers": {}, "body": ""})))
        },
        // The rows of other tenants are left out.
        read("/v1/replays", 200),
        read("/v1/replays/{id}", 404),
        read("/v1/activity", 200),
        Operation { role: "every", ..read("/v1/me", 200) },
        // They need no key.
        Operation { foreign: 201, ..change("POST", "/v1/session", "every", 201, Some(|_| json!({"key": ROOT}))) },
        Operation { foreign: 204, ..change("DELETE", "/v1/session", "every", 204, nothing) },
        Operation { role: "admin", ..read("/v1/keys", 200) },
        Operation { role: "admin", ..read("/v1/destinations/{id}/secret", 404) },
        // What belongs to the installation does not exist for a key that is bound to tenants.
        Operation { own: 404, ..read("/v1/alerts", 404) },
        Operation { own: 404, ..read("/v1/status", 404) },
        Operation { own: 404, ..change("PUT", "/v1/alerts", "admin", 404, Some(|_| json!({}))) },
        change(
            "POST",
            "/v1/destinations",
            "operate",
            201,
            Some(|to| json!({"url": "https://new.example/", "tenant": to, "event_types": ["other"]})),
        ),
        change("PATCH", "/v1/destinations/{id}", "operate", 200, Some(|_| json!({"name": "renamed"}))),
        change(
            "PUT",
            "/v1/destinations/by-name/{tenant}/{name}",
            "operate",
            201,
            Some(|_| json!({"url": "https://named.example/", "event_types": ["other"]})),
        ),
        change("POST", "/v1/destinations/{id}/preview", "read", 200, Some(|_| json!({}))),
        change("POST", "/v1/destinations/{id}/rotate-secret", "admin", 200, nothing),
        change("POST", "/v1/destinations/{id}/test", "operate", 202, nothing),
        change("POST", "/v1/deliveries/{id}/retry", "operate", 202, nothing),
        change("POST", "/v1/deliveries/{id}/cancel", "operate", 202, nothing),
        change("POST", "/v1/replays", "operate", 202, Some(|to| json!({"tenant": to}))),
        change("POST", "/v1/replays/{id}/cancel", "operate", 200, nothing),
        change("POST", "/v1/destinations/{id}/purge", "operate", 200, Some(|_| json!({}))),
        Operation {
            foreign: 422,
            ..change(
                "POST",
                "/v1/keys",
                "admin",
                201,
                Some(|to| json!({"name": "new", "role": "admin", "tenants": [to]})),
            )
        },
        change("DELETE", "/v1/keys/{id}", "admin", 204, nothing),
        change("DELETE", "/v1/destinations/{id}", "operate", 204, nothing),
    ]
}

fn includes(role: &str, needed: &str) -> bool {
    let included: &[&str] = match role {
        "ingest" => &["ingest"],
        "read" => &["read"],
        "operate" => &["ingest", "read", "operate"],
        _ => &["ingest", "read", "operate", "admin"],
    };
    needed == "every" || included.contains(&needed)
}

#[tokio::test]
async fn every_operation_is_in_the_table_below() {
    let server = Server::start().await;
    let document = server.get("/openapi.json").await.expect(StatusCode::OK);
    let paths = document["paths"].as_object().unwrap().iter().filter(|(path, _)| path.starts_with("/v1/"));
    let described: BTreeSet<String> = paths
        .flat_map(|(path, item)| item.as_object().unwrap().keys().map(move |method| (method.to_uppercase(), path)))
        .map(|(method, path)| format!("{method} {path}"))
        .collect();
    let known = operations().iter().map(|operation| format!("{} {}", operation.method, operation.path)).collect();
    assert_eq!(described, known);
}

#[tokio::test]
async fn a_role_allows_its_operations_and_no_others_and_a_bound_key_sees_only_its_tenants() {
    for role in ["ingest", "read", "operate", "admin"] {
        let server = Server::with_keys().await;
        let (own, foreign) = (Data::create(&server, OWN).await, Data::create(&server, FOREIGN).await);
        let (everywhere, bound) = (server.key(role, Value::Null).await, server.key(role, json!([OWN])).await);
        let before = foreign.everything(&server).await;
        let operations = operations();
        // Another tenant: a key that lacks the role learns nothing either.
        for Operation { method, path, role: needed, body, foreign: expected, .. } in &operations {
            let body = body.map(|body| body(FOREIGN));
            let reply = server.ask(&bound, method, &foreign.path(method, path), body.as_ref()).await;
            let expected = if includes(role, needed) { *expected } else { 403 };
            assert_eq!(reply.status.as_u16(), expected, "{role} {method} {path} of {FOREIGN}: {reply:?}");
            let shown = String::from_utf8_lossy(&reply.body).into_owned();
            // A refusal repeats only the id in the path.
            if reply.status.is_success() {
                assert!(foreign.ids().iter().all(|id| !shown.contains(id)), "{role} {method} {path}: {shown}");
            }
        }
        assert_eq!(foreign.everything(&server).await, before, "{role}");
        // All tenants, without changes; then the own tenant.
        for Operation { method, path, role: needed, own: expected, .. } in
            operations.iter().filter(|operation| operation.method == "GET")
        {
            let status = server.ask(&everywhere, method, &foreign.path(method, path), None).await.status.as_u16();
            let expected = match (includes(role, needed), *expected) {
                (false, _) => 403,
                // Only for keys that are bound to tenants.
                (true, 404) => 200,
                (true, expected) => expected,
            };
            assert_eq!(status, expected, "{role} {method} {path} of all tenants");
        }
        for Operation { method, path, role: needed, body, own: expected, .. } in &operations {
            let body = body.map(|body| body(OWN));
            let reply = server.ask(&bound, method, &own.path(method, path), body.as_ref()).await;
            let expected = if includes(role, needed) { *expected } else { 403 };
            assert_eq!(reply.status.as_u16(), expected, "{role} {method} {path} of {OWN}: {reply:?}");
        }
        assert_eq!(foreign.everything(&server).await, before, "{role}");
    }
}

#[tokio::test]
async fn data_without_a_tenant_belongs_to_the_only_tenant_of_the_key() {
    let server = Server::with_keys().await;
    let (one, two) = (server.key("operate", json!([OWN])).await, server.key("operate", json!([OWN, FOREIGN])).await);
    let destination = json!({"url": "https://acme.example/"});
    let event = json!({"type": "t", "data": 1});
    let created = server.ask(&one, "POST", "/v1/destinations", Some(&destination)).await.expect(StatusCode::CREATED);
    assert_eq!(created["tenant"], OWN);
    let accepted = server.ask(&one, "POST", "/v1/events", Some(&event)).await.expect(StatusCode::ACCEPTED);
    assert_eq!((&accepted["tenant"], &accepted["deliveries"]), (&json!(OWN), &json!(1)));
    for (path, body) in [("/v1/destinations", &destination), ("/v1/events", &event)] {
        assert_eq!(server.ask(&two, "POST", path, Some(body)).await.pointers(), ["/tenant"]);
    }
    // In lists a key with several tenants need not name one. A third tenant stays hidden.
    let third = json!({"url": "https://third.example/", "tenant": "third"});
    let third = server.root("POST", "/v1/destinations", third).await["id"].clone();
    let verify = json!({"destination": third, "headers": {}, "body": ""});
    server.ask(&two, "POST", "/v1/verify", Some(&verify)).await.problem(404);
    server.root("POST", "/v1/events", json!({"type": "t", "data": 1, "tenant": "third"})).await;
    server.root("POST", "/v1/destinations", json!({"url": "https://globex.example/", "tenant": FOREIGN})).await;
    server.root("POST", "/v1/events", json!({"type": "t", "data": 1, "tenant": FOREIGN})).await;
    for (path, of_one, of_two, of_all) in
        [("/v1/destinations", 1, 2, 3), ("/v1/events", 1, 2, 3), ("/v1/deliveries?count=true", 1, 2, 3)]
    {
        for (key, expected) in [(one.as_str(), of_one), (&two, of_two), (ROOT, of_all)] {
            let list = server.ask(key, "GET", path, None).await.expect(StatusCode::OK);
            assert_eq!(list["data"].as_array().unwrap().len(), expected, "{path}: {list}");
            assert!(list["count"].is_null() || list["count"] == json!({"value": expected, "capped": false}), "{list}");
        }
    }
    // So with replays: that of two tenants is hidden from a key of one of them.
    let replay = server.ask(&two, "POST", "/v1/replays", Some(&json!({}))).await.expect(StatusCode::ACCEPTED);
    assert_eq!((&replay["tenant"], &replay["tenants"]), (&Value::Null, &json!([OWN, FOREIGN])));
    let path = format!("/v1/replays/{}", replay["id"].as_str().unwrap());
    server.ask(&two, "GET", &path, None).await.expect(StatusCode::OK);
    server.ask(&one, "GET", &path, None).await.problem(404);
    let path = format!("/v1/destinations?tenant={OWN}");
    assert_eq!(server.ask(&two, "GET", &path, None).await.expect(StatusCode::OK)["data"][0]["id"], created["id"]);
    // A destination keeps its tenant.
    let path = format!("/v1/destinations/{}", created["id"].as_str().unwrap());
    for key in [&one, &two] {
        server.ask(key, "PATCH", &path, Some(&json!({"tenant": FOREIGN}))).await.problem(409);
        let same = server.ask(key, "PATCH", &path, Some(&json!({"tenant": OWN}))).await.expect(StatusCode::OK);
        assert_eq!(same["tenant"], OWN);
    }
}

#[tokio::test]
async fn a_key_is_shown_once_and_is_valid_until_it_expires_or_is_deleted() {
    let server = Server::with_keys().await;
    let expires_at = "2026-11-21T08:30:00.000Z";
    let request = json!({"name": "billing", "role": "read", "expires_at": expires_at});
    let reply = server.ask(ROOT, "POST", "/v1/keys", Some(&request)).await;
    assert_eq!(reply.header("cache-control"), "no-store");
    let mut created = reply.expect(StatusCode::CREATED);
    let secret = created.as_object_mut().unwrap().remove("secret").unwrap();
    let secret = secret.as_str().unwrap();
    assert!(secret.starts_with("wk_") && secret.len() == 46, "{secret}");
    assert_eq!(
        created,
        json!({
            "id": created["id"], "name": "billing", "role": "read", "tenants": null,
            "created_at": created["created_at"], "expires_at": expires_at,
        })
    );
    server.clock.advance(Duration::from_millis(1));
    let forever = server.key("read", Value::Null).await;
    let listed = server.ask(ROOT, "GET", "/v1/keys", None).await.expect(StatusCode::OK);
    assert_eq!((listed["data"].as_array().unwrap().len(), &listed["data"][1]), (2, &created));
    assert!(!listed.to_string().contains("wk_"));
    let first = server.ask(ROOT, "GET", "/v1/keys?limit=1", None).await.expect(StatusCode::OK);
    let next = format!("/v1/keys?limit=1&cursor={}", first["next_cursor"].as_str().unwrap());
    let second = server.ask(ROOT, "GET", &next, None).await.expect(StatusCode::OK);
    assert_eq!((&second["data"][0], &second["next_cursor"]), (&created, &Value::Null));

    server.ask(secret, "GET", "/v1/events", None).await.expect(StatusCode::OK);
    server.clock.advance(Duration::from_secs(3_600));
    server.ask(secret, "GET", "/v1/events", None).await.problem(401);
    server.ask(&forever, "GET", "/v1/events", None).await.expect(StatusCode::OK);
    let path = format!("/v1/keys/{}", listed["data"][0]["id"].as_str().unwrap());
    assert_eq!(server.ask(ROOT, "DELETE", &path, None).await.status, StatusCode::NO_CONTENT);
    server.ask(&forever, "GET", "/v1/events", None).await.problem(401);
    server.ask(ROOT, "DELETE", &path, None).await.problem(404);
}

#[tokio::test]
async fn a_bad_key_is_refused_with_every_error() {
    let server = Server::with_keys().await;
    for (request, pointers) in [
        (json!({}), &["/name", "/role"][..]),
        (json!({"name": "", "role": "root", "tenants": [], "colour": 1}), &["/name", "/role", "/tenants", "/colour"]),
        (
            json!({"name": "a\nb", "role": "read", "tenants": ["a b"], "expires_at": "soon"}),
            &["/name", "/tenants/0", "/expires_at"],
        ),
        (json!({"name": "a", "role": "read", "expires_at": "2026-11-21T07:00:00Z"}), &["/expires_at"]),
    ] {
        assert_eq!(server.ask(ROOT, "POST", "/v1/keys", Some(&request)).await.pointers(), pointers, "{request}");
    }
    let admin = server.key("admin", json!([OWN])).await;
    for tenants in [Value::Null, json!([OWN, FOREIGN])] {
        let request = json!({"name": "wider", "role": "ingest", "tenants": tenants});
        assert_eq!(server.ask(&admin, "POST", "/v1/keys", Some(&request)).await.pointers(), ["/tenants"]);
    }
}

#[tokio::test]
async fn without_configured_keys_a_stored_key_still_has_only_its_role() {
    let server = Server::start().await;
    let created = server.post("/v1/keys", json!({"name": "a", "role": "read"})).await.expect(StatusCode::CREATED);
    let secret = created["secret"].as_str().unwrap();
    server.ask(secret, "GET", "/v1/events", None).await.expect(StatusCode::OK);
    server.ask(secret, "POST", "/v1/events", Some(&json!({"type": "t", "data": 1}))).await.problem(403);
    server.ask("wk_wrong", "GET", "/v1/events", None).await.problem(401);
    server.get("/v1/events").await.expect(StatusCode::OK);
}

#[tokio::test]
async fn the_pages_of_replays_have_only_those_of_the_own_tenant() {
    let server = Server::with_keys().await;
    let key = server.key("read", json!([OWN])).await;
    let mut own = Vec::new();
    for number in 0..7 {
        server.clock.advance(Duration::from_millis(1));
        let tenant = if number % 3 == 0 { OWN } else { FOREIGN };
        let replay = server.root("POST", "/v1/replays", json!({"tenant": tenant})).await;
        own.extend((tenant == OWN).then(|| replay["id"].clone()));
    }
    let (mut path, mut pages) = ("/v1/replays?limit=1".to_owned(), Vec::new());
    loop {
        let page = server.ask(&key, "GET", &path, None).await.expect(StatusCode::OK);
        pages.push(page["data"].as_array().unwrap().iter().map(|replay| replay["id"].clone()).collect::<Vec<_>>());
        let Some(cursor) = page["next_cursor"].as_str() else { break };
        path = format!("/v1/replays?limit=1&cursor={cursor}");
    }
    own.reverse();
    assert_eq!(pages, own.into_iter().map(|id| vec![id]).collect::<Vec<_>>());
}
