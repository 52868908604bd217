//! Limit keys: the settings, the key of an event, the list of keys, pauses of single ones, and the filter.

use http::StatusCode;
use serde_json::{Value, json};

use crate::harness::{Server, json_request};

pub(crate) const URL: &str = "https://example.com/hooks";

pub(crate) fn per_second(limit: u32) -> Value {
    json!([{"limit": limit, "period": "second"}])
}

fn shown(limit: u32) -> Value {
    json!([{"limit": limit, "period": "second", "burst": 1, "margin_ms": 0}])
}

impl Server {
    /// A destination with a rate of 10 per second, and of 2 per second for each key.
    pub(crate) async fn with_limit_keys(&self) -> String {
        let keys = json!({"key": "/customer/id", "rate_limits": per_second(2)});
        self.destination(json!({"url": URL, "rate_limits": per_second(10), "key_limits": keys})).await
    }

    pub(crate) async fn event_of(&self, destination: &str, event: Value) -> Value {
        let mut body = json!({"type": "t", "data": {}, "destinations": [destination]});
        for (name, value) in event.as_object().unwrap() {
            body[name] = value.clone();
        }
        self.post("/v1/events", body).await.expect(StatusCode::ACCEPTED)
    }

    pub(crate) async fn keys_of(&self, destination: &str, query: &str) -> Vec<Value> {
        let list = self.get(&format!("/v1/destinations/{destination}/keys{query}")).await.expect(StatusCode::OK);
        assert_eq!(list["is_partial"], false);
        list["data"].as_array().unwrap().clone()
    }
}

#[tokio::test]
async fn limit_keys_are_set_merged_member_by_member_and_removed() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let path = format!("/v1/destinations/{id}");
    let first = server.get(&path).await.expect(StatusCode::OK)["key_limits"].clone();
    let expected = json!({
        "key": "/customer/id", "rate_limits": shown(2), "max_in_flight": null, "weight": 1, "overrides": {},
    });
    assert_eq!(first, expected);
    let edit = async |keys: Value| {
        server.patch(&path, json!({"key_limits": keys})).await.expect(StatusCode::OK)["key_limits"].clone()
    };
    let special = json!({"rate_limits": per_second(50), "weight": 5});
    let both = edit(json!({"overrides": {"cus_1": special, "": {"paused": true}, "none": {}}})).await;
    let cus_1 = json!({"rate_limits": shown(50), "max_in_flight": null, "weight": 5, "paused": false});
    let unnamed = json!({"rate_limits": null, "max_in_flight": null, "weight": null, "paused": true});
    assert_eq!((&both["key"], &both["overrides"]), (&json!("/customer/id"), &json!({"cus_1": cus_1, "": unnamed})));
    let one = edit(json!({"weight": 3, "overrides": {"": null, "cus_1": {"weight": null}}})).await;
    let cus_1 = json!({"rate_limits": shown(50), "max_in_flight": null, "weight": null, "paused": false});
    assert_eq!((&one["weight"], &one["overrides"]), (&json!(3), &json!({"cus_1": cus_1})));
    assert_eq!(edit(json!({"overrides": null})).await["overrides"], json!({}));
    // What is shown can be sent back.
    assert_eq!(edit(first.clone()).await["weight"], 1);
    assert_eq!(edit(Value::Null).await, Value::Null);
    assert_eq!(server.patch(&path, json!({"key_limits": {"weight": 2}})).await.pointers(), ["/key_limits/key"]);
}

#[tokio::test]
async fn what_is_wrong_with_limit_keys_is_named() {
    let server = Server::start().await;
    let refused = async |settings: Value| {
        let mut body = json!({"url": URL});
        for (name, value) in settings.as_object().unwrap() {
            body[name] = value.clone();
        }
        server.post("/v1/destinations", body).await.pointers()
    };
    let keys = |more: Value| {
        let mut keys = json!({"key": "/a"});
        for (name, value) in more.as_object().unwrap() {
            keys[name] = value.clone();
        }
        json!({"key_limits": keys})
    };
    let many: serde_json::Map<String, Value> = (0..1_001).map(|n| (n.to_string(), json!({"weight": 2}))).collect();
    let long = "x".repeat(300);
    for (settings, pointer) in [
        (keys(json!({"key": "a"})), "/key_limits/key"),
        (keys(json!({"key": ""})), "/key_limits/key"),
        (keys(json!({"key": format!("/{long}")})), "/key_limits/key"),
        (json!({"key_limits": {}}), "/key_limits/key"),
        (keys(json!({"weight": 0})), "/key_limits/weight"),
        (keys(json!({"weight": 1_001})), "/key_limits/weight"),
        (keys(json!({"max_in_flight": 0})), "/key_limits/max_in_flight"),
        (keys(json!({"rate_limits": [{"limit": 0, "period": "second"}]})), "/key_limits/rate_limits/0/limit"),
        (keys(json!({"overrides": many})), "/key_limits/overrides"),
        (keys(json!({"overrides": {"a/b": {"weight": 0}}})), "/key_limits/overrides/a~1b/weight"),
        (keys(json!({"overrides": {"a": 7}})), "/key_limits/overrides/a"),
        (keys(json!({"overrides": {"a": {"colour": 7}}})), "/key_limits/overrides/a/colour"),
        (keys(json!({"overrides": {"a\nb": {}}})), "/key_limits/overrides/a\nb"),
        (json!({"key_limits": {"key": "/a"}, "ordered": true}), "/ordered"),
        (json!({"key_limits": {"key": "/a"}, "adaptive": {}}), "/adaptive"),
    ] {
        assert_eq!(
            refused(settings.clone()).await,
            [pointer],
            "{}",
            settings.to_string().get(..100).unwrap_or_default()
        );
    }
}

#[tokio::test]
async fn a_destination_that_had_limit_keys_gets_no_order_or_adaptive_pace() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let path = format!("/v1/destinations/{id}");
    for removes in [json!({}), json!({"key_limits": null})] {
        for (name, value) in [("ordered", json!(true)), ("adaptive", json!({}))] {
            let mut patch = removes.clone();
            patch[name] = value;
            let refused = server.patch(&path, patch).await;
            assert_eq!(refused.pointers(), [format!("/{name}")]);
        }
    }
}

/// Each of its keys says what binds it.
#[tokio::test]
async fn a_destination_with_limit_keys_joins_and_leaves_a_limit_group() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let path = format!("/v1/destinations/{id}");
    let group = json!({"name": "g", "rate_limits": [{"limit": 1, "period": "second"}]});
    let group = server.post("/v1/limit-groups", group).await.expect(StatusCode::CREATED);
    let joined = server.patch(&path, json!({"limit_group": group["id"]})).await.expect(StatusCode::OK);
    assert_eq!(joined["limit_group"], group["id"]);
    for customer in ["cus_1", "cus_2"] {
        server.event_of(&id, json!({"data": {"customer": {"id": customer}}})).await;
    }
    let keys = server.get(&format!("{path}/keys")).await.expect(StatusCode::OK);
    let of_each = |name: &str| keys["data"].as_array().unwrap().iter().map(|key| key[name].clone()).collect::<Vec<_>>();
    assert_eq!(of_each("binding"), ["group", "group"], "{keys}");
    assert_eq!(of_each("share_per_s"), [0.5, 0.5], "{keys}");
    let left = server.patch(&path, json!({"limit_group": null})).await.expect(StatusCode::OK);
    assert_eq!(left["limit_group"], Value::Null);
    let keys = server.get(&format!("{path}/keys")).await.expect(StatusCode::OK);
    assert!(keys["data"][0]["binding"] != "group", "{keys}");
}

#[tokio::test]
async fn an_event_has_the_key_of_its_data_or_the_one_that_it_names() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let key_of = async |event: Value| {
        let accepted = server.event_of(&id, event).await;
        let shown =
            server.get(&format!("/v1/events/{}", accepted["id"].as_str().unwrap())).await.expect(StatusCode::OK);
        (shown["limit_key"].clone(), shown["deliveries"][0]["limit_key"].clone())
    };
    assert_eq!(key_of(json!({"data": {"customer": {"id": "cus_1"}}})).await, (Value::Null, json!("cus_1")));
    assert_eq!(key_of(json!({"data": {"customer": {"id": 7}}})).await, (Value::Null, json!("7")));
    assert_eq!(key_of(json!({"data": 1})).await, (Value::Null, json!("")));
    let named = json!({"data": {"customer": {"id": "cus_1"}}, "limit_key": "other"});
    assert_eq!(key_of(named).await, (json!("other"), json!("other")));
    let (long, hash) = (key_of(json!({"limit_key": "é".repeat(65)})).await, 64);
    assert_eq!((long.0.as_str().unwrap().len(), &long.0), (hash, &long.1));
    for wrong in ["a\u{1}".to_owned(), "x".repeat(2_049)] {
        let event = json!({"type": "t", "data": 1, "limit_key": wrong});
        assert_eq!(server.post("/v1/events", event).await.pointers(), ["/limit_key"]);
    }
    // The same idempotency key with another limit key is another event.
    let event = |key: &str| json!({"type": "t", "data": 1, "idempotency_key": "k", "limit_key": key});
    server.post("/v1/events", event("a")).await.expect(StatusCode::ACCEPTED);
    server.post("/v1/events", event("a")).await.expect(StatusCode::OK);
    assert_eq!(server.post("/v1/events", event("b")).await.pointers(), ["/idempotency_key"]);
}

#[tokio::test]
async fn the_keys_of_a_destination_are_listed_with_what_each_may_send() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let path = format!("/v1/destinations/{id}");
    assert_eq!(server.keys_of(&id, "").await, Vec::<Value>::new());
    let special = json!({"big": {"rate_limits": []}, "idle": {"weight": 9}, "still": {"paused": true}});
    server.patch(&path, json!({"key_limits": {"overrides": special}})).await.expect(StatusCode::OK);
    for (key, count) in [("big", 4), ("cus_1", 3), ("still", 2)] {
        for _ in 0..count {
            server.event_of(&id, json!({"limit_key": key})).await;
        }
    }
    let rows = server.keys_of(&id, "").await;
    let figures = |row: &Value| {
        let [key, waiting, share, binding, eta] =
            ["key", "waiting", "share_per_s", "binding", "drain_eta_s"].map(|name| row[name].clone());
        json!([key, waiting, share, binding, eta])
    };
    // Of 10 per second `cus_1` takes the 2 that its limit allows, and `big` the rest.
    let expected = [
        json!(["big", 4, 8.0, "destination", 0.5]),
        json!(["cus_1", 3, 2.0, "key", 1.5]),
        json!(["still", 2, 0.0, "paused", null]),
        json!(["idle", 0, null, null, null]),
    ];
    assert_eq!(rows.iter().map(figures).collect::<Vec<_>>(), expected);
    assert_eq!((&rows[0]["rate_limits"], &rows[1]["rate_limits"]), (&json!([]), &shown(2)));
    assert_eq!(
        (&rows[1]["is_overridden"], &rows[3]["weight"], &rows[2]["paused"]),
        (&json!(false), &json!(9), &json!(true))
    );
    assert_eq!(rows[1]["achieved_per_s"], 0.0);
    let found = server.keys_of(&id, "?q=cus&sort=use&limit=1").await;
    assert_eq!(found.iter().map(figures).collect::<Vec<_>>(), [expected[1].clone()]);
    assert_eq!(server.keys_of(&id, "?limit=2").await.len(), 2);
    assert_eq!(server.get(&format!("{path}/keys?sort=name&limit=0")).await.pointers(), ["/sort", "/limit"]);
}

#[tokio::test]
async fn a_key_is_paused_and_resumed_alone() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    let path = format!("/v1/destinations/{id}");
    let etag = server.get(&path).await.header("etag").to_owned();
    let paused = server.post(&format!("{path}/keys/cus%2F1/pause"), json!({})).await;
    assert_ne!(paused.header("etag"), etag);
    let paused = paused.expect(StatusCode::OK);
    assert_eq!(paused["key_limits"]["overrides"]["cus/1"]["paused"], true);
    assert_eq!(paused["paused"], false);
    let mut stale = json_request("POST", &format!("{path}/keys/cus%2F1/resume"), json!({}));
    stale.headers_mut().insert("if-match", etag.parse().unwrap());
    server.send(stale).await.problem(412);
    let resumed = server.post(&format!("{path}/keys/cus%2F1/resume"), json!({})).await.expect(StatusCode::OK);
    assert_eq!(resumed["key_limits"]["overrides"], json!({}));
    server.post(&format!("{path}/keys/other/resume"), json!({})).await.expect(StatusCode::OK);
    let activity = server.get(&format!("/v1/activity?destination={id}&limit=2")).await;
    let activity = activity.expect(StatusCode::OK)["data"].clone();
    assert_eq!(activity[0]["action"], "destination.edited");
    assert_eq!(activity[1]["after"]["key_limits"]["overrides"]["cus/1"]["paused"], true);
    let plain = server.destination(json!({"url": URL})).await;
    server.post(&format!("/v1/destinations/{plain}/keys/a/pause"), json!({})).await.problem(409);
    let many: serde_json::Map<String, Value> = (0..1_000).map(|n| (n.to_string(), json!({"weight": 2}))).collect();
    server.patch(&path, json!({"key_limits": {"overrides": many}})).await.expect(StatusCode::OK);
    server.post(&format!("{path}/keys/7/pause"), json!({})).await.expect(StatusCode::OK);
    server.post(&format!("{path}/keys/other/pause"), json!({})).await.problem(409);
}

#[tokio::test]
async fn deliveries_replays_and_purges_are_filtered_by_limit_key() {
    let server = Server::start().await;
    let id = server.with_limit_keys().await;
    for key in ["a", "b", "b", ""] {
        server.event_of(&id, json!({"limit_key": key})).await;
    }
    let listed = async |key: &str| {
        let list = server.get(&format!("/v1/deliveries?destination={id}&limit_key={key}")).await.expect(StatusCode::OK);
        list["data"].as_array().unwrap().len()
    };
    assert_eq!((listed("a").await, listed("b").await, listed("").await, listed("c").await), (1, 2, 1, 0));
    assert_eq!(server.get("/v1/deliveries?limit_key=a").await.pointers(), ["/limit_key"]);
    let purge = format!("/v1/destinations/{id}/purge");
    let counted = server.post(&format!("{purge}?dry_run=true"), json!({"limit_key": "b"})).await.expect(StatusCode::OK);
    assert_eq!(counted["total"], 2);
    assert_eq!(server.post(&purge, json!({"limit_key": "b"})).await.expect(StatusCode::OK)["cancelled"], 2);
    let replay = |body: Value| server.post("/v1/replays?dry_run=true", body);
    let of = |key: &str| json!({"destination": id, "states": ["cancelled"], "limit_key": key});
    assert_eq!(replay(of("b")).await.expect(StatusCode::OK)["total"], 2);
    assert_eq!(replay(of("a")).await.expect(StatusCode::OK)["total"], 0);
    assert_eq!(replay(json!({"limit_key": "b"})).await.pointers(), ["/limit_key"]);
}
