//! Roles: every operation, by every role, on data of the key's own tenant and of another one.

use std::collections::BTreeSet;

use axum::body::Body;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use tower::ServiceExt as _;

use crate::harness::{FOREIGN, OWN, ROOT, Server};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// The paths that can be limited to a tenant.
const LISTS: [&str; 8] = [
    "/v1/destinations",
    "/v1/events",
    "/v1/deliveries",
    "/v1/deliveries/groups",
    "/v1/overview",
    "/v1/overview/history",
    "/v1/stream",
    "/v1/alerts/active",
];

/// The data of one tenant: the ids for the paths.
struct Data {
    tenant: &'static str,
    destination: String,
    event: String,
    delivery: String,
    replay: String,
    key: String,
    group: String,
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
        server.root("PUT", "/v1/event-types/order.created", json!({})).await;
        let group = id(&server.root("POST", "/v1/limit-groups", json!({"name": "a", "tenant": tenant})).await);
        let delivery = id(&shown["deliveries"][0]);
        Self { tenant, destination: id(&destination), event, delivery, replay: id(&replay), key: id(&key), group }
    }

    /// The path for this data.
    fn path(&self, method: &str, template: &str) -> String {
        let id = match template.split('/').nth(2) {
            Some("destinations") => &self.destination,
            Some("events") => &self.event,
            Some("deliveries") => &self.delivery,
            Some("replays") => &self.replay,
            Some("limit-groups") => &self.group,
            _ => &self.key,
        };
        let name = if template.starts_with("/v1/event-types") { "order.created" } else { "a%20new%2Fname" };
        let path = template.replace("{id}", id).replace("{tenant}", self.tenant).replace("{name}", name);
        let path = path.replace("{rid}", "rsv_01h2xcejqtf2nbrexx3vqjhp41").replace("{key}", "cus_1");
        let is_list = method == "GET" && LISTS.contains(&template);
        if is_list { format!("{path}?tenant={}", self.tenant) } else { path }
    }

    async fn everything(&self, server: &Server) -> Vec<Value> {
        let mut everything = Vec::new();
        for template in
            ["/v1/destinations/{id}", "/v1/events/{id}", "/v1/deliveries/{id}", "/v1/replays/{id}", "/v1/events"]
        {
            let shown = server.ask(ROOT, "GET", &self.path("GET", template), None).await.expect(StatusCode::OK);
            everything.push(without_estimates(shown));
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
        read("/v1/overview/history", 404),
        read("/v1/stream", 404),
        read("/v1/deliveries", 404),
        read("/v1/deliveries/groups", 404),
        read("/v1/deliveries/{id}", 404),
        read("/v1/alerts/active", 404),
        // The request contains its own secret, so the answer shows no data of a tenant.
        Operation {
            foreign: 200,
            ..change("POST", "/v1/verify", "read", 200, Some(|_| json!({"secret": SECRET, "headers": {}, "body": ""})))
        },
        // The rows of other tenants are left out.
        read("/v1/replays", 200),
        read("/v1/replays/{id}", 404),
        read("/v1/destinations/{id}/rate", 404),
        read("/v1/activity", 200),
        Operation { role: "every", ..read("/v1/me", 200) },
        // They need no key.
        Operation { foreign: 201, ..change("POST", "/v1/session", "every", 201, Some(|_| json!({"key": ROOT}))) },
        Operation { foreign: 204, ..change("DELETE", "/v1/session", "every", 204, nothing) },
        Operation { role: "admin", ..read("/v1/keys", 200) },
        Operation { role: "admin", ..read("/v1/destinations/{id}/secret", 404) },
        // These belong to the whole installation. A key that is bound to tenants gets 404.
        Operation { own: 404, ..read("/v1/alerts", 404) },
        Operation { own: 404, ..read("/v1/status", 404) },
        Operation { own: 404, role: "admin", ..read("/v1/shedding", 404) },
        Operation { own: 404, ..change("PUT", "/v1/shedding", "admin", 404, Some(|_| json!({}))) },
        // The groups of other tenants are left out.
        read("/v1/limit-groups", 200),
        read("/v1/limit-groups/{id}", 404),
        read("/v1/limit-groups/{id}/overview", 404),
        read("/v1/limit-groups/{id}/audit", 404),
        read("/v1/limit-groups/{id}/reservations", 404),
        // Nothing can be reserved here: the answer says that no slot can be asked for.
        change("POST", "/v1/limit-groups/{id}/reservations", "ingest", 503, Some(|_| json!({}))),
        // There are none of that name or id.
        change("POST", "/v1/limit-groups/by-name/{tenant}/{name}/reservations", "ingest", 404, Some(|_| json!({}))),
        change("DELETE", "/v1/limit-groups/{id}/reservations/{rid}", "ingest", 404, nothing),
        read("/v1/limit-groups/{id}/history", 404),
        change("POST", "/v1/limit-groups/{id}/preview", "read", 200, Some(|_| json!({}))),
        change("POST", "/v1/limit-groups", "operate", 201, Some(|to| json!({"name": "new", "tenant": to}))),
        change("PATCH", "/v1/limit-groups/{id}", "operate", 200, Some(|_| json!({"max_in_flight": 3}))),
        change("PUT", "/v1/limit-groups/by-name/{tenant}/{name}", "operate", 201, Some(|_| json!({}))),
        change(
            "POST",
            "/v1/limit-groups/{id}/override",
            "operate",
            200,
            Some(|_| json!({"max_in_flight": 1, "for_s": 9, "reason": "r"})),
        ),
        change("DELETE", "/v1/limit-groups/{id}/override", "operate", 200, nothing),
        change("POST", "/v1/limit-groups/{id}/hold", "operate", 200, Some(|_| json!({"for_s": 9, "reason": "r"}))),
        change("DELETE", "/v1/limit-groups/{id}/hold", "operate", 200, nothing),
        read("/v1/event-types", 200),
        read("/v1/event-types/{name}", 200),
        Operation { own: 404, ..change("PUT", "/v1/event-types/{name}", "operate", 404, Some(|_| json!({}))) },
        Operation { own: 404, ..change("DELETE", "/v1/event-types/{name}", "operate", 404, None) },
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
        change("POST", "/v1/destinations/{id}/filter/try", "read", 200, Some(|_| json!({"data": 1}))),
        change("POST", "/v1/destinations/{id}/preview", "read", 200, Some(|_| json!({}))),
        change("POST", "/v1/destinations/{id}/simulate", "read", 200, Some(|_| json!({}))),
        change("POST", "/v1/destinations/{id}/release", "operate", 200, nothing),
        change(
            "POST",
            "/v1/destinations/{id}/override",
            "operate",
            200,
            Some(|_| json!({"max_in_flight": 9, "for_s": 9, "reason": "r"})),
        ),
        change("DELETE", "/v1/destinations/{id}/override", "operate", 200, nothing),
        change("POST", "/v1/destinations/{id}/hold", "operate", 200, Some(|_| json!({"for_s": 9, "reason": "r"}))),
        change("DELETE", "/v1/destinations/{id}/hold", "operate", 200, nothing),
        read("/v1/destinations/{id}/keys", 404),
        // It has no limit keys.
        change("POST", "/v1/destinations/{id}/keys/{key}/pause", "operate", 409, nothing),
        change("POST", "/v1/destinations/{id}/keys/{key}/resume", "operate", 409, nothing),
        change("POST", "/v1/destinations/{id}/rotate-secret", "admin", 200, nothing),
        change("POST", "/v1/destinations/{id}/test", "operate", 202, nothing),
        change("POST", "/v1/deliveries/{id}/retry", "operate", 202, nothing),
        change("POST", "/v1/deliveries/{id}/cancel", "operate", 202, nothing),
        // It is cancelled, and no dead letter.
        change("POST", "/v1/deliveries/{id}/discard", "operate", 409, nothing),
        change("POST", "/v1/deliveries/discard", "operate", 200, Some(|to| json!({"tenant": to}))),
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
        change("DELETE", "/v1/limit-groups/{id}", "operate", 204, nothing),
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

/// What a client might try: `PURGE` stands for the methods that no path has.
const METHODS: [&str; 9] = ["GET", "HEAD", "OPTIONS", "POST", "PUT", "PATCH", "DELETE", "TRACE", "PURGE"];

impl Server {
    /// The status of an answer whose body is not read: that of a stream does not end, and that of HEAD is empty.
    async fn status_of(&self, key: &str, method: &str, path: &str) -> u16 {
        let request = Request::builder().method(method).uri(path).header(header::HOST, "localhost");
        let request = request.header(header::AUTHORIZATION, format!("Bearer {key}")).body(Body::empty()).unwrap();
        self.router.clone().oneshot(request).await.unwrap().status().as_u16()
    }
}

/// Without the estimates of when something is sent, which move with the time.
fn without_estimates(value: Value) -> Value {
    match value {
        Value::Object(fields) => {
            let lasts = |(name, _): &(String, Value)| !["expected_at", "until"].contains(&&**name);
            let fields = fields.into_iter().filter(lasts);
            Value::Object(fields.map(|(name, value)| (name, without_estimates(value))).collect())
        }
        Value::Array(items) => items.into_iter().map(without_estimates).collect(),
        value => value,
    }
}

#[tokio::test]
async fn head_needs_the_role_of_get_and_a_method_that_a_path_does_not_have_does_nothing() {
    let server = Server::with_keys().await;
    let own = Data::create(&server, OWN).await;
    let before = own.everything(&server).await;
    let operations = operations();
    let paths: BTreeSet<&str> = operations.iter().map(|operation| operation.path).collect();
    for role in ["ingest", "read", "operate", "admin"] {
        let key = server.key(role, json!([OWN])).await;
        for path in &paths {
            let operation = |method: &str| {
                operations.iter().find(|operation| operation.path == *path && operation.method == method)
            };
            for method in METHODS {
                if operation(method).is_some() {
                    continue;
                }
                let expected = match operation("GET").filter(|_| method == "HEAD") {
                    Some(get) if includes(role, get.role) => get.own,
                    Some(_) => 403,
                    None => 405,
                };
                let status = server.status_of(&key, method, &own.path("GET", path)).await;
                assert_eq!(status, expected, "{role} {method} {path}");
            }
        }
    }
    assert_eq!(own.everything(&server).await, before);
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
        // First a key for all tenants, with reads only. Then a key that is bound to its own tenant.
        for Operation { method, path, role: needed, own: expected, .. } in
            operations.iter().filter(|operation| operation.method == "GET")
        {
            let status = server.ask(&everywhere, method, &foreign.path(method, path), None).await.status.as_u16();
            let expected = match (includes(role, needed), *expected) {
                (false, _) => 403,
                // Only keys that are bound to tenants get 404 here.
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
