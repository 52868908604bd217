//! The activity log: every change has its row, and no row shows a secret.

use std::collections::BTreeSet;

use axum::body::Body;
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use weir_api::SettingKeys;
use weir_core::{Clock as _, outcome::Verdict};

use crate::harness::{Options, Reply, Server, json_request};

const ROOT: &str = "sesame";
const MASK: &str = "•••";
/// Texts that no answer of the activity log may contain.
const HIDDEN: [&str; 3] = ["hidden-header", "whsec_", "wk_"];

/// A server with keys, and the key that its requests have.
struct Keyed<'s> {
    server: &'s Server,
    key: &'s str,
}

impl Keyed<'_> {
    async fn send(&self, method: &str, path: &str, body: Option<Value>) -> Reply {
        let mut request = match body {
            Some(body) => json_request(method, path, body),
            None => Request::builder().method(method).uri(path).body(Body::empty()).unwrap(),
        };
        let headers = request.headers_mut();
        headers.insert(header::AUTHORIZATION, format!("Bearer {}", self.key).parse().unwrap());
        headers.insert("x-request-id", format!("{method}-{}", self.server.clock.now().as_nanos()).parse().unwrap());
        self.server.send(request).await
    }

    async fn rows(&self, query: &str) -> Vec<Value> {
        let listed = self.send("GET", &format!("/v1/activity?limit=200&{query}"), None).await;
        let text = String::from_utf8_lossy(&listed.body).into_owned();
        assert!(HIDDEN.iter().all(|hidden| !text.contains(hidden)), "{text}");
        listed.expect(StatusCode::OK)["data"].as_array().unwrap().clone()
    }

    /// Makes a change, and returns its answer and the rows that it has added.
    async fn change(&self, method: &str, path: &str, body: Option<Value>) -> (Value, Vec<Value>) {
        let before = self.rows("").await.len();
        let reply = self.send(method, path, body).await;
        assert!(reply.status.is_success(), "{method} {path}: {reply:?}");
        let mut rows = self.rows("").await;
        rows.truncate(rows.len() - before);
        for row in &rows {
            assert_eq!(row["request_id"], reply.header("x-request-id"), "{method} {path}");
            assert!(row["id"].as_str().unwrap().starts_with("act_"), "{row}");
        }
        (serde_json::from_slice(&reply.body).unwrap_or_default(), rows)
    }

    /// Makes a change that must add exactly one row with this action. Returns the answer and the row.
    async fn one(&self, action: &str, method: &str, path: &str, body: Option<Value>) -> (Value, Value) {
        let (answer, mut rows) = self.change(method, path, body).await;
        let actions: Vec<_> = rows.iter().map(|row| row["action"].clone()).collect();
        assert_eq!(actions, [action], "{method} {path}");
        (answer, rows.remove(0))
    }
}

async fn server() -> Server {
    Server::start_with(Options { api_keys: SettingKeys::new([ROOT]), ..Options::default() }).await
}

fn id(value: &Value) -> String {
    value["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn every_change_of_a_destination_has_its_row() {
    let server = server().await;
    let root = Keyed { server: &server, key: ROOT };
    let made = json!({
        "url": "https://example.com/hooks", "name": "Billing", "tenant": "acme",
        "headers": {"x-key": "hidden-header-1"}, "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw",
    });
    let (destination, row) = root.one("destination.created", "POST", "/v1/destinations", Some(made)).await;
    let path = format!("/v1/destinations/{}", id(&destination));
    assert_eq!(row["subject"], json!({"type": "destination", "id": destination["id"], "name": "Billing"}));
    assert_eq!((&row["tenant"], &row["actor"]), (&json!("acme"), &json!("WEIR_API_KEYS")));
    assert_eq!((&row["before"], &row["after"]["url"]), (&Value::Null, &json!("https://example.com/hooks")));
    assert_eq!((&row["after"]["secret"], &row["after"]["headers"]), (&json!(MASK), &json!({"x-key": MASK})));

    let limits = json!([{"limit": 5, "period": "second", "burst": 1, "margin_ms": 0}]);
    let edit = Some(json!({"rate_limits": limits, "headers": {"x-key": "hidden-header-2"}}));
    let (_, row) = root.one("destination.edited", "PATCH", &path, edit).await;
    assert_eq!(row["before"], json!({"rate_limits": [], "headers": {"x-key": MASK}}));
    assert_eq!(row["after"], json!({"rate_limits": limits, "headers": {"x-key": MASK}}));
    let (_, rows) = root.change("PATCH", &path, Some(json!({"name": "Billing"}))).await;
    assert_eq!(rows, [] as [Value; 0], "nothing was changed");

    let (_, row) = root.one("destination.paused", "PATCH", &path, Some(json!({"paused": true}))).await;
    assert_eq!((&row["before"], &row["after"]), (&json!({"paused": false}), &json!({"paused": true})));
    root.one("destination.resumed", "PATCH", &path, Some(json!({"paused": false}))).await;
    root.one("destination.secret_shown", "GET", &format!("{path}/secret"), None).await;
    let (_, row) = root.one("destination.secret_rotated", "POST", &format!("{path}/rotate-secret"), None).await;
    assert_eq!(row["after"], json!({"secret": MASK, "previous_secret": MASK}));
    let secret = Some(json!({"secret": "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}));
    root.one("destination.secret_rotated", "PATCH", &path, secret).await;

    let (sent, row) = root.one("destination.tested", "POST", &format!("{path}/test"), None).await;
    assert_eq!(row["after"], json!({"event": sent["event_id"]}));
    let (purged, row) = root.one("destination.purged", "POST", &format!("{path}/purge"), Some(json!({}))).await;
    assert_eq!((&row["after"]["cancelled"], &row["after"]["states"]), (&json!(1), &json!(["pending", "retrying"])));
    assert_eq!(purged["cancelled"], 1);
    let (_, rows) = root.change("POST", &format!("{path}/purge?dry_run=true"), Some(json!({}))).await;
    assert_eq!(rows, [] as [Value; 0]);

    let (_, row) = root.one("destination.deleted", "DELETE", &path, None).await;
    assert_eq!((&row["after"], &row["before"]["name"]), (&Value::Null, &json!("Billing")));
    assert_eq!(root.rows(&format!("destination={}", id(&destination))).await.len(), 10);
}

#[tokio::test]
async fn every_other_change_has_its_row() {
    let server = server().await;
    let root = Keyed { server: &server, key: ROOT };
    let made = json!({"url": "https://example.com/", "tenant": "acme"});
    let (destination, _) = root.one("destination.created", "POST", "/v1/destinations", Some(made)).await;
    let event = json!({"type": "t", "data": 1, "tenant": "acme"});
    assert_eq!(root.change("POST", "/v1/events", Some(event)).await.1, [] as [Value; 0], "events have no rows");
    let destination = id(&destination);
    let delivery = server.claim(&destination).await.remove(0);
    server.settle(&delivery, 500, Verdict::Dead).await;

    let path = format!("/v1/deliveries/{}", delivery.claim.delivery_id);
    let (_, row) = root.one("delivery.retried", "POST", &format!("{path}/retry"), None).await;
    assert_eq!((&row["before"], &row["tenant"]), (&json!({"state": "dead"}), &json!("acme")));
    assert_eq!(row["subject"]["id"], delivery.claim.delivery_id.to_string());
    let (_, row) = root.one("delivery.cancelled", "POST", &format!("{path}/cancel"), None).await;
    assert_eq!(row["before"], json!({"state": "pending"}));
    root.send("POST", &format!("{path}/cancel"), None).await.problem(409);

    let replayed = Some(json!({"destination": destination, "states": ["cancelled"]}));
    let (replay, row) = root.one("replay.created", "POST", "/v1/replays", replayed).await;
    assert_eq!((&row["after"]["total"], &row["tenant"]), (&json!(1), &json!("acme")));
    let (_, row) = root.one("replay.cancelled", "POST", &format!("/v1/replays/{}/cancel", id(&replay)), None).await;
    assert_eq!(row["subject"], json!({"type": "replay", "id": replay["id"], "name": null}));

    let alerts = Some(json!({"backlog_depth": 7}));
    let (_, row) = root.one("alerts.changed", "PUT", "/v1/alerts", alerts.clone()).await;
    assert_eq!((&row["before"], &row["after"]), (&json!({"backlog_depth": null}), &json!({"backlog_depth": 7})));
    assert_eq!((&row["tenant"], &row["subject"]), (&Value::Null, &Value::Null));
    assert_eq!(root.change("PUT", "/v1/alerts", alerts).await.1, [] as [Value; 0]);

    let shedding = Some(json!({"classes": {"heavy": {"in_flight": 4}}}));
    let (_, row) = root.one("shedding.changed", "PUT", "/v1/shedding", shedding.clone()).await;
    assert_eq!(row["after"]["classes"]["heavy"], json!({"in_flight": 4}));
    assert_eq!(root.change("PUT", "/v1/shedding", shedding).await.1, [] as [Value; 0]);

    let path = "/v1/event-types/order.created";
    let kind = Some(json!({"description": "An order.", "schema": {"type": "object"}}));
    let (_, row) = root.one("event_type.set", "PUT", path, kind.clone()).await;
    assert_eq!(row["after"], json!({"description": "An order.", "example": null, "schema": {"type": "object"}}));
    assert_eq!((&row["tenant"], &row["subject"]["id"]), (&Value::Null, &json!("order.created")));
    assert_eq!(root.change("PUT", path, kind).await.1, [] as [Value; 0]);
    root.one("event_type.deleted", "DELETE", path, None).await;

    let group = Some(json!({"name": "a", "tenant": "acme", "max_in_flight": 5}));
    let (group, row) = root.one("limit_group.created", "POST", "/v1/limit-groups", group).await;
    let made =
        json!({"name": "a", "tenant": "acme", "max_in_flight": 5, "rate_limits": [], "override": null, "hold": null});
    assert_eq!((&row["tenant"], &row["after"]), (&json!("acme"), &made));
    let path = format!("/v1/limit-groups/{}", id(&group));
    let (_, row) = root.one("limit_group.edited", "PATCH", &path, Some(json!({"max_in_flight": 6}))).await;
    assert_eq!((&row["before"], &row["after"]), (&json!({"max_in_flight": 5}), &json!({"max_in_flight": 6})));
    let by_name = "/v1/limit-groups/by-name/acme/a";
    root.one("limit_group.edited", "PUT", by_name, Some(json!({"max_in_flight": 7}))).await;
    assert_eq!(root.change("PUT", by_name, Some(json!({"max_in_flight": 7}))).await.1, [] as [Value; 0]);
    for (what, begun, ended, body) in [
        ("override", "limit_group.overridden", "limit_group.override_ended", json!({"max_in_flight": 9})),
        ("hold", "limit_group.held", "limit_group.released", json!({})),
    ] {
        let (mut body, path) = (body, format!("{path}/{what}"));
        (body["for_s"], body["reason"]) = (60.into(), "launch day".into());
        let (_, row) = root.one(begun, "POST", &path, Some(body)).await;
        assert_eq!((&row["before"][what], &row["after"][what]["reason"]), (&Value::Null, &json!("launch day")));
        let (_, row) = root.one(ended, "DELETE", &path, None).await;
        assert_eq!((&row["before"][what]["reason"], &row["after"][what]), (&json!("launch day"), &Value::Null));
        assert_eq!(root.change("DELETE", &path, None).await.1, [] as [Value; 0], "there is none");
    }
    root.one("limit_group.deleted", "DELETE", &path, None).await;

    let key = Some(json!({"name": "billing", "role": "read", "tenants": ["acme"]}));
    let (key, row) = root.one("key.created", "POST", "/v1/keys", key).await;
    assert_eq!(row["after"], json!({"role": "read", "tenants": ["acme"], "expires_at": null}));
    assert_eq!((&row["tenant"], &row["subject"]["name"]), (&json!("acme"), &json!("billing")));
    root.one("key.deleted", "DELETE", &format!("/v1/keys/{}", id(&key)), None).await;

    // Every row about the destination, its deliveries and its replays.
    let of_destination = root.rows(&format!("destination={destination}")).await;
    assert_eq!(of_destination.len(), 5);
}

#[tokio::test]
async fn a_put_by_name_is_a_creation_or_an_edit() {
    let server = server().await;
    let root = Keyed { server: &server, key: ROOT };
    let path = "/v1/destinations/by-name/acme/billing";
    let put = |in_flight: u32| Some(json!({"url": "https://example.com/", "max_in_flight": in_flight}));
    root.one("destination.created", "PUT", path, put(1)).await;
    let (_, row) = root.one("destination.edited", "PUT", path, put(2)).await;
    assert_eq!((&row["before"], &row["after"]), (&json!({"max_in_flight": 1}), &json!({"max_in_flight": 2})));
    assert_eq!(root.change("PUT", path, put(2)).await.1, [] as [Value; 0]);
}

/// The tests above make each of these changes; those of `holds.rs` release, those of `overrides.rs`
/// override and hold, those of `limit_keys.rs` pause and resume a key, and those of `deliveries.rs` discard.
const RECORDED: [&str; 35] = [
    "POST /v1/limit-groups",
    "PATCH /v1/limit-groups/{id}",
    "DELETE /v1/limit-groups/{id}",
    "PUT /v1/limit-groups/by-name/{tenant}/{name}",
    "POST /v1/limit-groups/{id}/override",
    "DELETE /v1/limit-groups/{id}/override",
    "POST /v1/limit-groups/{id}/hold",
    "DELETE /v1/limit-groups/{id}/hold",
    "POST /v1/destinations",
    "PATCH /v1/destinations/{id}",
    "DELETE /v1/destinations/{id}",
    "PUT /v1/destinations/by-name/{tenant}/{name}",
    "POST /v1/destinations/{id}/rotate-secret",
    "POST /v1/destinations/{id}/test",
    "POST /v1/destinations/{id}/release",
    "POST /v1/destinations/{id}/override",
    "DELETE /v1/destinations/{id}/override",
    "POST /v1/destinations/{id}/hold",
    "DELETE /v1/destinations/{id}/hold",
    "POST /v1/destinations/{id}/keys/{key}/pause",
    "POST /v1/destinations/{id}/keys/{key}/resume",
    "POST /v1/destinations/{id}/purge",
    "POST /v1/deliveries/{id}/retry",
    "POST /v1/deliveries/{id}/cancel",
    "POST /v1/deliveries/{id}/discard",
    "POST /v1/deliveries/discard",
    "POST /v1/replays",
    "POST /v1/replays/{id}/cancel",
    "PUT /v1/alerts",
    "PUT /v1/shedding",
    "PUT /v1/event-types/{name}",
    "DELETE /v1/event-types/{name}",
    "POST /v1/keys",
    "DELETE /v1/keys/{id}",
    "GET /v1/destinations/{id}/secret",
];
/// Events and reservations are no changes of settings, sessions are not stored, and the others only compute an answer.
const NOT_RECORDED: [&str; 12] = [
    "POST /v1/limit-groups/{id}/reservations",
    "POST /v1/limit-groups/by-name/{tenant}/{name}/reservations",
    "DELETE /v1/limit-groups/{id}/reservations/{rid}",
    "POST /v1/limit-groups/{id}/preview",
    "POST /v1/events",
    "POST /v1/events/batch",
    "POST /v1/session",
    "DELETE /v1/session",
    "POST /v1/destinations/{id}/filter/try",
    "POST /v1/destinations/{id}/preview",
    "POST /v1/destinations/{id}/simulate",
    "POST /v1/verify",
];

#[tokio::test]
async fn every_route_that_changes_something_is_recorded() {
    let server = Server::start().await;
    let document = server.get("/openapi.json").await.expect(StatusCode::OK);
    let mut changing = 0;
    for (path, item) in document["paths"].as_object().unwrap() {
        for method in item.as_object().unwrap().keys().filter(|method| *method != "get") {
            let route = format!("{} {path}", method.to_uppercase());
            let is_known = RECORDED.contains(&route.as_str()) || NOT_RECORDED.contains(&route.as_str());
            assert!(is_known, "{route}: record what it changes, and add it to the tests of this file");
            changing += 1;
        }
    }
    assert!(changing >= RECORDED.len(), "{changing}");
}

#[tokio::test]
async fn a_key_sees_the_activity_of_its_tenants_and_is_named_as_the_actor() {
    let server = server().await;
    let root = Keyed { server: &server, key: ROOT };
    let mut secrets = Vec::new();
    for (name, tenants) in [("acme", json!(["acme"])), ("both", json!(["acme", "globex"]))] {
        let key = Some(json!({"name": name, "role": "operate", "tenants": tenants}));
        let key = root.send("POST", "/v1/keys", key).await.expect(StatusCode::CREATED);
        secrets.push((id(&key), key["secret"].as_str().unwrap().to_owned()));
    }
    let [(acme_id, acme), (_, both)] = <[_; 2]>::try_from(secrets).unwrap();
    let [acme, both] = [&acme, &both].map(|key| Keyed { server: &server, key });
    let made = |tenant: &str| Some(json!({"url": "https://example.com/", "tenant": tenant}));
    acme.send("POST", "/v1/destinations", made("acme")).await.expect(StatusCode::CREATED);
    both.send("POST", "/v1/destinations", made("globex")).await.expect(StatusCode::CREATED);
    root.send("PUT", "/v1/alerts", Some(json!({"backlog_depth": 7}))).await.expect(StatusCode::OK);

    let seen =
        |rows: Vec<Value>| rows.iter().map(|row| format!("{} {}", row["action"], row["actor"])).collect::<Vec<_>>();
    let own = [r#""destination.created" "acme""#, r#""key.created" "WEIR_API_KEYS""#];
    assert_eq!(seen(acme.rows("").await), own);
    assert_eq!(seen(both.rows("").await), [r#""destination.created" "both""#, own[0], own[1]]);
    assert_eq!(root.rows("").await.len(), 5);
    assert_eq!(root.rows("actor=acme").await.len(), 1);
    let by_id = root.rows(&format!("actor={acme_id}")).await;
    assert_eq!((by_id.len(), &by_id[0]["actor_key_id"]), (1, &json!(acme_id)));
    let kinds: BTreeSet<String> =
        root.rows("").await.iter().map(|row| format!("{} {}", row["actor_kind"], row["actor_key_id"])).collect();
    assert!(kinds.contains(&format!("\"key\" \"{acme_id}\"")) && kinds.contains("\"setting\" null"), "{kinds:?}");
    assert_eq!(root.rows("from=2026-11-21T07:30:00Z&to=2026-11-21T07:30:00Z").await.len(), 0);
    assert_eq!(root.rows("from=2026-11-21T07:30:00Z").await.len(), 5);
    assert_eq!(root.send("GET", "/v1/activity?actor=&destination=x&colour=red", None).await.pointers().len(), 3);
    let pages = root.send("GET", "/v1/activity?limit=2", None).await.expect(StatusCode::OK);
    let next = format!("/v1/activity?limit=3&cursor={}", pages["next_cursor"].as_str().unwrap());
    let rest = root.send("GET", &next, None).await.expect(StatusCode::OK);
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["next_cursor"]), (3, &Value::Null));
}
