//! The catalogue of event types: its resource, and what a strict server refuses.

use axum::body::Body;
use futures_util::{StreamExt as _, stream::FuturesUnordered};
use http::{Request, StatusCode, header};
use serde_json::{Value, json};
use weir_api::SettingKeys;
use weir_core::event_types::Mode;

use crate::harness::{OWN, Options, ROOT, Reply, Server};

const ORDER: &str = "/v1/event-types/order.created";

async fn strict() -> Server {
    Server::start_with(Options { event_types: Mode::Strict, ..Options::default() }).await
}

impl Server {
    async fn put_type(&self, name: &str, body: Value, condition: Option<(&str, &str)>) -> Reply {
        let request = Request::put(format!("/v1/event-types/{name}")).header(header::CONTENT_TYPE, "application/json");
        let request = condition.into_iter().fold(request, |request, (name, value)| request.header(name, value));
        self.send(request.body(Body::from(body.to_string())).unwrap()).await
    }
}

fn order() -> Value {
    json!({
        "description": "A customer has placed an order.",
        "example": {"id": "ord_7", "total": 12.5},
        "schema": {
            "type": "object", "required": ["id"],
            "properties": {"id": {"type": "string", "pattern": "^ord_"}, "total": {"type": "number", "minimum": 0}}
        }
    })
}

#[tokio::test]
async fn a_type_is_added_replaced_and_deleted_by_its_version() {
    let server = Server::start().await;
    server.get(ORDER).await.problem(404);
    let added = server.put_type("order.created", order(), Some(("if-none-match", "*"))).await;
    let shown = added.expect(StatusCode::CREATED);
    assert_eq!((added.header("location"), &shown["name"]), (ORDER, &json!("order.created")));
    for field in ["description", "example", "schema"] {
        assert_eq!(shown[field], order()[field]);
    }
    let etag = server.get(ORDER).await.header("etag").to_owned();
    assert_eq!(etag, added.header("etag"));
    server.put_type("order.created", order(), Some(("if-none-match", "*"))).await.problem(412);
    let same = server.put_type("order.created", order(), Some(("if-match", &etag))).await;
    assert_eq!((same.expect(StatusCode::OK), same.header("etag")), (shown, etag.as_str()));
    let bare = server.put_type("order.created", json!({}), Some(("if-match", &etag))).await;
    let replaced = bare.expect(StatusCode::OK);
    assert_eq!(
        [&replaced["description"], &replaced["example"], &replaced["schema"]],
        [&json!(""), &Value::Null, &Value::Null]
    );
    server.put_type("order.created", order(), Some(("if-match", &etag))).await.problem(412);
    server.put_type("order.paid", order(), Some(("if-match", &etag))).await.problem(412);

    let delete = Request::delete(ORDER).header("if-match", &etag).body(Body::empty()).unwrap();
    server.send(delete).await.problem(412);
    assert_eq!(server.delete(ORDER).await.status, StatusCode::NO_CONTENT);
    server.delete(ORDER).await.problem(404);
    let log = server.get("/v1/activity").await.expect(StatusCode::OK);
    let actions: Vec<_> = log["data"].as_array().unwrap().iter().map(|row| row["action"].clone()).collect();
    assert_eq!(actions, ["event_type.deleted", "event_type.set", "event_type.set"]);
    assert_eq!(log["data"][0]["subject"]["id"], "order.created");
}

#[tokio::test]
async fn types_are_listed_by_name_page_by_page() {
    let server = Server::start().await;
    for name in ["order.paid", "order.created", "invoice.paid"] {
        server.put_type(name, json!({}), None).await.expect(StatusCode::CREATED);
    }
    let names = async |query: &str| {
        let list = server.get(&format!("/v1/event-types?{query}")).await.expect(StatusCode::OK);
        let names: Vec<_> = list["data"].as_array().unwrap().iter().map(|found| found["name"].clone()).collect();
        (json!(names), list["next_cursor"].clone())
    };
    assert_eq!(names("limit=2").await, (json!(["invoice.paid", "order.created"]), json!("order.created")));
    assert_eq!(names("limit=2&cursor=order.created").await, (json!(["order.paid"]), Value::Null));
    assert_eq!(names("q=ORDER").await, (json!(["order.created", "order.paid"]), Value::Null));
    server.get("/v1/event-types?cursor=no%20type").await.problem(422);
}

#[tokio::test]
async fn each_fault_of_a_type_has_its_place() {
    let server = Server::start().await;
    for (body, pointers) in [
        (json!({"schema": {"type": "object", "requred": ["id"]}}), vec!["/schema/requred"]),
        (json!({"schema": {"$ref": "https://example.com/schema.json"}}), vec!["/schema/$ref"]),
        (json!({"schema": {"type": "string"}, "example": 7}), vec!["/example"]),
        (
            json!({"schema": order()["schema"], "example": {"id": "7", "total": -1}}),
            vec!["/example/id", "/example/total"],
        ),
        (json!({"example": "x".repeat(65 * 1024)}), vec!["/example"]),
        (json!({"schema": {"description": "x".repeat(65 * 1024)}}), vec!["/schema"]),
        (json!({"description": "a\u{0}b", "colour": 1}), vec!["/description", "/colour"]),
        (json!({"name": "order.created"}), vec!["/name"]),
    ] {
        assert_eq!(server.put_type("order.created", body, None).await.pointers(), pointers);
    }
    for name in ["weir.test", "a%20b", "order.*"] {
        server.put_type(name, json!({}), None).await.problem(404);
    }
    server.get(ORDER).await.problem(404);
}

#[tokio::test]
async fn a_strict_server_refuses_unknown_types_and_names_near_ones() {
    let server = strict().await;
    let event = |kind: &str| json!({"type": kind, "data": {"id": "ord_1"}});
    let refused = server.post("/v1/events", event("order.created")).await;
    assert_eq!(refused.pointers(), ["/type"]);
    server.put_type("order.created", order(), None).await.expect(StatusCode::CREATED);
    server.put_type("order.updated", json!({}), None).await.expect(StatusCode::CREATED);
    server.post("/v1/events", event("order.created")).await.expect(StatusCode::ACCEPTED);
    let slip = server.post("/v1/events", event("order.craeted")).await;
    assert_eq!(slip.pointers(), ["/type"]);
    let detail = slip.problem(422)["detail"].as_str().unwrap().to_owned();
    assert_eq!(detail, "/type is not in the catalogue of event types; did you mean `order.created`?");

    let batch = json!({"events": [event("order.created"), event("ordr.created"), event("order.updated"), {"type": "order.created", "data": {}}]});
    let answer = server.post("/v1/events/batch", batch).await.expect(StatusCode::ACCEPTED);
    let pointers: Vec<_> =
        answer["events"].as_array().unwrap().iter().map(|item| item["error"]["errors"][0]["pointer"].clone()).collect();
    assert_eq!(json!(pointers), json!([null, "/type", null, "/data"]));
    let none = json!({"events": [event("ordr.created")]});
    assert_eq!(server.post("/v1/events/batch", none).await.pointers(), ["/events/0/type"]);

    assert_eq!(server.delete("/v1/event-types/order.updated").await.status, StatusCode::NO_CONTENT);
    assert_eq!(server.post("/v1/events", event("order.updated")).await.pointers(), ["/type"]);
    assert_eq!(server.count("/v1/events").await, 3);
}

#[tokio::test]
async fn a_strict_server_refuses_data_that_does_not_fit() {
    let server = strict().await;
    server.put_type("order.created", order(), None).await.expect(StatusCode::CREATED);
    let post = async |data: Value| server.post("/v1/events", json!({"type": "order.created", "data": data})).await;
    assert_eq!(post(json!({"id": 7, "total": -1})).await.pointers(), ["/data/id", "/data/total"]);
    assert_eq!(post(json!([])).await.pointers(), ["/data"]);
    post(json!({"id": "ord_1", "more": true})).await.expect(StatusCode::ACCEPTED);
    // Large data is checked on a thread of its own.
    let long = "x".repeat(100_000);
    assert_eq!(post(json!({"id": long})).await.pointers(), ["/data/id"]);
    post(json!({"id": format!("ord_{long}")})).await.expect(StatusCode::ACCEPTED);
}

#[tokio::test]
async fn an_open_server_accepts_every_type_and_test_events_pass_a_strict_one() {
    let server = Server::start().await;
    server.put_type("order.created", order(), None).await.expect(StatusCode::CREATED);
    server.event("unknown").await;
    server.event("order.created").await;
    let server = strict().await;
    server.put_type("order.created", order(), None).await.expect(StatusCode::CREATED);
    let id = server.destination(json!({"url": "https://example.com/"})).await;
    server.post(&format!("/v1/destinations/{id}/test"), json!(null)).await.expect(StatusCode::ACCEPTED);
}

#[tokio::test]
async fn a_destination_names_its_types_that_the_catalogue_does_not_have() {
    let server = Server::start().await;
    let types = json!(["order.*", "ordr.*", "order.created", "order.deleted", "weir.*", "*"]);
    let id = server.destination(json!({"url": "https://example.com/", "event_types": types})).await;
    let path = format!("/v1/destinations/{id}");
    assert_eq!(server.get(&path).await.expect(StatusCode::OK)["unknown_event_types"], json!([]), "no catalogue");
    server.put_type("order.created", order(), None).await.expect(StatusCode::CREATED);
    let shown = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!(shown["unknown_event_types"], json!(["ordr.*", "order.deleted"]));
    let listed = server.get("/v1/destinations").await.expect(StatusCode::OK);
    assert_eq!(listed["data"][0]["unknown_event_types"], shown["unknown_event_types"]);
    let edited = server.patch(&path, json!({"event_types": ["order.*"]})).await.expect(StatusCode::OK);
    assert_eq!(edited["unknown_event_types"], json!([]));
}

#[tokio::test]
async fn every_reader_sees_the_catalogue_and_only_keys_of_all_tenants_change_it() {
    let server = Server::with_keys().await;
    let body = order();
    let of = |role: &'static str, tenants: Value| server.key(role, tenants);
    for (key, read, change) in [
        (of("ingest", Value::Null).await, 403, 403),
        (of("read", Value::Null).await, 404, 403),
        (of("read", json!([OWN])).await, 404, 403),
        (of("operate", json!([OWN])).await, 404, 404),
        (of("admin", json!([OWN])).await, 404, 404),
    ] {
        assert_eq!(server.ask(&key, "GET", ORDER, None).await.status, read);
        assert_eq!(server.ask(&key, "PUT", ORDER, Some(&body)).await.status, change);
        assert_eq!(server.ask(&key, "DELETE", ORDER, None).await.status, change);
    }
    let operator = of("operate", Value::Null).await;
    server.ask(&operator, "PUT", ORDER, Some(&body)).await.expect(StatusCode::CREATED);
    let reader = of("read", json!([OWN])).await;
    server.ask(&reader, "GET", ORDER, None).await.expect(StatusCode::OK);
    assert_eq!(server.ask(&operator, "DELETE", ORDER, None).await.status, StatusCode::NO_CONTENT);
}

/// Schemas and data that cost as much as they may: the checks of a key go one after the other, on a thread of their own.
#[tokio::test]
async fn the_events_of_others_do_not_wait_for_a_hostile_schema() {
    let options = Options { event_types: Mode::Strict, api_keys: SettingKeys::new([ROOT]), ..Options::default() };
    let server = Server::start_with(options).await;
    let alternatives: Vec<_> =
        (0..700).map(|at| json!({"properties": {"a": {"const": format!("x{at}")}}, "required": ["a"]})).collect();
    let hostile = json!({"schema": {"items": {"anyOf": alternatives}}});
    server.root("PUT", "/v1/event-types/hostile", hostile).await;
    server.root("PUT", ORDER, order()).await;
    let (one, other) = (server.key("ingest", Value::Null).await, server.key("ingest", Value::Null).await);
    // Each element fits the last alternative.
    let data = vec![json!({"a": "x699"}); 256 * 1024 / 13];
    let large = json!({"type": "hostile", "data": data});
    let mut flood: FuturesUnordered<_> =
        (0..24).map(|_| server.ask(&one, "POST", "/v1/events", Some(&large))).collect();
    let mut refused = 0;
    // Refused too, so that nothing here waits for the disk.
    let event = json!({"type": "order.created", "data": {"id": 7}});
    let mut others = std::pin::pin!(async {
        for _ in 0..3 {
            assert_eq!(server.ask(&other, "POST", "/v1/events", Some(&event)).await.pointers(), ["/data/id"]);
        }
    });
    loop {
        tokio::select! {
            biased;
            reply = flood.next() => {
                let problem = reply.expect("others have waited for the whole flood").problem(422);
                assert!(problem["detail"].as_str().unwrap().contains("more work"), "{problem}");
                refused += 1;
            }
            () = &mut others => break,
        }
    }
    assert!(refused < 24);
}
