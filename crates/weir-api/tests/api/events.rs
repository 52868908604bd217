//! Events are stored once and byte for byte.

use axum::body::Body;
use http::{Request, StatusCode};
use serde_json::{Value, json};
use weir_core::claim::ClaimedBody;

use crate::harness::{Server, json_request, reply};

const URL: &str = "https://example.com/hooks";

fn keyed(header: &str, body: &Value) -> Request<Body> {
    let mut request = json_request("POST", "/v1/events", body);
    request.headers_mut().insert("idempotency-key", header.parse().unwrap());
    request
}

#[tokio::test]
async fn an_event_goes_to_every_matching_destination_of_its_tenant_and_wakes_them() {
    let server = Server::start().await;
    let all = server.destination(json!({"url": URL})).await;
    let videos = server.destination(json!({"url": URL, "event_types": ["video.*"]})).await;
    server.destination(json!({"url": URL, "event_types": ["order.*"]})).await;
    server.destination(json!({"url": URL, "tenant": "other"})).await;
    let accepted = server
        .post("/v1/events", json!({"type": "video.created", "data": {"id": 7}}))
        .await
        .expect(StatusCode::ACCEPTED);
    let id = accepted["id"].as_str().unwrap();
    assert!(id.starts_with("evt_"));
    let created_at = accepted["created_at"].as_str().unwrap();
    assert!(created_at.starts_with("2026-11-21T07:30:00.") && created_at.ends_with('Z'));
    let expected = json!({
        "id": id, "type": "video.created", "tenant": "default", "created_at": created_at, "deliveries": 2, "filtered": 0, "duplicate": false,
    });
    assert_eq!(accepted, expected);
    let mut woken: Vec<String> = server.queue.woken().iter().map(ToString::to_string).collect();
    woken.sort();
    let mut matching = [all, videos];
    matching.sort();
    assert_eq!(woken, matching);
    let shown = server.get(&format!("/v1/events/{id}")).await.expect(StatusCode::OK);
    assert_eq!(shown["deliveries"].as_array().unwrap().len(), 2);
    assert_eq!((&shown["deliveries"][0]["state"], &shown["data"]), (&json!("pending"), &json!({"id": 7})));
}

#[tokio::test]
async fn an_event_may_name_its_destinations() {
    let server = Server::start().await;
    let named = server.destination(json!({"url": URL, "event_types": ["order.*"]})).await;
    server.destination(json!({"url": URL})).await;
    let body = json!({"type": "video.created", "data": null, "destinations": [named, named]});
    let accepted = server.post("/v1/events", body).await.expect(StatusCode::ACCEPTED);
    assert_eq!(accepted["deliveries"], 1);
    assert_eq!(server.queue.woken(), [named.parse().unwrap()]);
}

#[tokio::test]
async fn data_is_kept_byte_for_byte() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    for data in [
        r#"{"b": 1.0e2, "a":  [ "\u00e9", "é\/", -0.0, 12345678901234567890123 ] , "b":2}"#,
        "null",
        "\"\"",
        "[\n\t1 ,\r\n2 ]",
    ] {
        let body = format!("{{\"type\": \"t\",\n \"data\" :  {data} ,\"tenant\": null}}");
        let id = server.post("/v1/events", body).await.expect(StatusCode::ACCEPTED)["id"].as_str().unwrap().to_owned();
        let shown = server.get(&format!("/v1/events/{id}")).await;
        let text = std::str::from_utf8(&shown.body).unwrap();
        assert!(text.contains(&format!("\"data\":{data},")), "{text}");
        let sent = server.claim(&destination).await.pop().unwrap().body;
        let at = &shown.expect(StatusCode::OK)["created_at"];
        let ClaimedBody::Inline(sent) = sent else { panic!("the claim has no body") };
        assert_eq!(sent.bytes(), &format!(r#"{{"id":"{id}","type":"t","timestamp":{at},"data":{data}}}"#));
    }
}

#[tokio::test]
async fn a_repeated_key_returns_the_first_event() {
    let server = Server::start().await;
    server.destination(json!({"url": URL})).await;
    let body = json!({"type": "t", "data": 1, "idempotency_key": "k 1"});
    let first = server.post("/v1/events", &body).await.expect(StatusCode::ACCEPTED);
    assert_eq!(server.queue.woken().len(), 1);
    let by_field = server.post("/v1/events", &body).await.expect(StatusCode::OK);
    let by_header = server.send(keyed("k 1", &json!({"type": "t", "data": 1}))).await.expect(StatusCode::OK);
    let by_both = server.send(keyed("k 1", &body)).await.expect(StatusCode::OK);
    let mut expected = first.clone();
    expected["duplicate"] = json!(true);
    for duplicate in [by_field, by_header, by_both] {
        assert_eq!(duplicate, expected);
    }
    assert!(server.queue.woken().is_empty());
    let elsewhere = json!({"type": "t", "data": 1, "idempotency_key": "k 1", "tenant": "other"});
    server.post("/v1/events", elsewhere).await.expect(StatusCode::ACCEPTED);
    assert_eq!(server.count("/v1/events").await, 2);
}

#[tokio::test]
async fn an_event_has_a_cost_up_to_the_limits_of_the_destinations_that_take_it() {
    let server = Server::start().await;
    let limits = json!([{"limit": 100, "period": "minute", "unit": "cost"}]);
    let id = server.destination(json!({"url": "https://example.com", "rate_limits": limits})).await;
    let posted = async |cost: Value| server.post("/v1/events", json!({"type": "t", "data": 1, "cost": cost})).await;
    for cost in [json!(0), json!(1_001), json!(1.5), json!("7"), json!(-1)] {
        assert_eq!(posted(cost.clone()).await.pointers(), ["/cost"], "{cost}");
    }
    let refused = posted(json!(101)).await.problem(422);
    let detail = refused["errors"][0]["detail"].as_str().unwrap();
    assert!(detail.contains("at most 100") && detail.contains("100 per minute") && detail.contains(&id), "{detail}");
    let accepted = posted(json!(100.0)).await.expect(StatusCode::ACCEPTED);
    let event = server.get(&format!("/v1/events/{}", accepted["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    assert_eq!((&event["cost"], &event["deliveries"][0]["cost"]), (&json!(100), &json!(100)));
    // A cost of 1 is that of an event without one.
    let accepted = posted(json!(1)).await.expect(StatusCode::ACCEPTED);
    let event = server.get(&format!("/v1/events/{}", accepted["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    assert_eq!((&event["cost"], &event["deliveries"][0]["cost"]), (&Value::Null, &Value::Null));
}

#[tokio::test]
async fn an_event_above_a_limit_of_a_group_is_refused_with_the_names_of_both() {
    let server = Server::start().await;
    let limits = json!([{"limit": 100, "period": "minute", "unit": "cost"}]);
    let posted = async |tenant: &str, cost: u32| {
        server.post("/v1/events", json!({"type": "t", "data": 1, "cost": cost, "tenant": tenant})).await
    };
    for (name, tenant) in [("partner", json!("default")), ("shared", Value::Null)] {
        let group = json!({"name": name, "tenant": tenant, "rate_limits": limits});
        let group = server.post("/v1/limit-groups", group).await.expect(StatusCode::CREATED);
        let of = if name == "partner" { "default" } else { "acme" };
        let member = json!({"url": "https://example.com", "limit_group": group["id"], "tenant": of});
        let member = server.destination(member).await;
        let refused = posted(of, 101).await.problem(422);
        assert_eq!(refused["errors"][0]["pointer"], "/cost");
        let detail = refused["errors"][0]["detail"].as_str().unwrap();
        let names = [&member, group["id"].as_str().unwrap(), "at most 100", "100 per minute"];
        assert!(names.iter().all(|part| detail.contains(part)), "{detail}");
        // The name of a group for all tenants is none of the tenant's business.
        assert_eq!(detail.contains(name), name == "partner", "{detail}");
        posted(of, 100).await.expect(StatusCode::ACCEPTED);
    }
}

#[tokio::test]
async fn a_repeated_key_with_another_event_is_refused() {
    let server = Server::start().await;
    let first = json!({
        "type": "t", "data": {"a": [1, 2]}, "idempotency_key": "k", "ttl_s": 60, "deliver_at": "2026-11-21T08:00:00Z",
        "coalesce_key": "c", "ordering_key": "o", "cost": 7,
    });
    server.post("/v1/events", &first).await.expect(StatusCode::ACCEPTED);
    for (field, other) in [
        ("type", json!("u")),
        ("data", json!({"a": [2, 1]})),
        ("ttl_s", json!(61)),
        ("ttl_s", json!(null)),
        ("deliver_at", json!("2026-11-21T08:00:01Z")),
        ("coalesce_key", json!("d")),
        ("ordering_key", json!(null)),
        ("cost", json!(1)),
    ] {
        let mut another = first.clone();
        another[field] = other;
        let refused = server.post("/v1/events", &another).await;
        assert_eq!(refused.pointers(), ["/idempotency_key"], "{field}");
        let batch = server.post("/v1/events/batch", json!({"events": [another, first.clone()]})).await;
        let events = &batch.expect(StatusCode::ACCEPTED)["events"];
        assert_eq!(events[0]["error"]["errors"][0]["pointer"], "/idempotency_key", "{field}");
        assert_eq!(events[1]["duplicate"], true, "{field}");
    }
    // The time to live counts from the delay, and after it from now: the repetition is the same event.
    server.clock.advance(std::time::Duration::from_secs(3_600));
    let mut spaced = json_request("POST", "/v1/events", &first);
    *spaced.body_mut() = serde_json::to_string_pretty(&first).unwrap().into();
    assert_eq!(server.send(spaced).await.expect(StatusCode::OK)["duplicate"], true);
    assert_eq!(server.count("/v1/events").await, 1);
}

#[tokio::test]
async fn a_key_in_the_header_that_differs_from_the_field_is_refused() {
    let server = Server::start().await;
    let body = json!({"type": "t", "data": 1, "idempotency_key": "a"});
    assert_eq!(server.send(keyed("b", &body)).await.pointers(), ["/idempotency_key"]);
    assert_eq!(server.send(keyed("", &json!({"type": "t", "data": 1}))).await.pointers(), ["/idempotency_key"]);
    let mut twice = keyed("a", &body);
    twice.headers_mut().append("idempotency-key", "b".parse().unwrap());
    assert_eq!(server.send(twice).await.pointers(), ["/idempotency_key"]);
    assert_eq!(server.count("/v1/events").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fifty_concurrent_posts_with_one_key_are_one_event() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    let body = json!({"type": "t", "data": 1, "idempotency_key": "once"});
    let posts = (0..50).map(|_| tokio::spawn(reply(server.router.clone(), json_request("POST", "/v1/events", &body))));
    let mut first = 0;
    let mut ids = std::collections::HashSet::new();
    for post in posts.collect::<Vec<_>>() {
        let reply = post.await.unwrap();
        let accepted = reply.expect(reply.status);
        assert_eq!(accepted["duplicate"], reply.status == StatusCode::OK);
        first += usize::from(reply.status == StatusCode::ACCEPTED);
        ids.insert(accepted["id"].to_string());
    }
    assert_eq!((first, ids.len()), (1, 1));
    assert_eq!(server.count("/v1/events").await, 1);
    assert_eq!(server.count(&format!("/v1/deliveries?destination={destination}")).await, 1);
}

#[tokio::test]
async fn each_event_of_a_batch_is_handled_independently() {
    let server = Server::start().await;
    server.destination(json!({"url": URL})).await;
    let stranger = "dst_01h2xcejqtf2nbrexx3vqjhp41";
    let body = json!({"events": [
        {"type": "a", "data": 1, "idempotency_key": "k"},
        {"type": "not a type", "data": 1},
        {"type": "a", "data": 1, "idempotency_key": "k"},
        {"type": "b", "data": 1, "idempotency_key": "k"},
        {"type": "c", "data": 1, "destinations": [stranger]},
        7,
        {"type": "d", "data": 1},
    ]});
    let answer = server.post("/v1/events/batch", body).await.expect(StatusCode::ACCEPTED);
    let events = answer["events"].as_array().unwrap();
    let shapes: Vec<String> = events
        .iter()
        .map(|event| match event.get("error") {
            Some(error) => format!("{} {}", error["status"], error["errors"][0]["pointer"]),
            None => format!("{} {}", event["type"], event["duplicate"]),
        })
        .collect();
    let expected = [
        "\"a\" false",
        "422 \"/type\"",
        "\"a\" true",
        "422 \"/idempotency_key\"",
        "422 \"/destinations/0\"",
        "422 \"\"",
        "\"d\" false",
    ];
    assert_eq!(shapes, expected);
    assert_eq!(server.count("/v1/events").await, 2);
    assert_eq!(server.queue.woken().len(), 1, "one wake for one destination");
}

#[tokio::test]
async fn a_batch_without_a_valid_event_is_a_problem_that_lists_all_errors() {
    let server = Server::start().await;
    let reply = server.post("/v1/events/batch", json!({"events": [{"type": "a"}, {"data": 1, "colour": 2}]})).await;
    assert_eq!(reply.pointers(), ["/events/0/data", "/events/1/type", "/events/1/colour"]);
    assert_eq!(reply.problem(422)["events"][0]["error"]["status"], 422);
    assert_eq!(server.count("/v1/events").await, 0);
}

#[tokio::test]
async fn a_batch_keeps_its_order_in_the_list() {
    let server = Server::start().await;
    let events: Vec<Value> = (0..150).map(|number| json!({"type": format!("t.{number}"), "data": number})).collect();
    server.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
    let listed = server.get("/v1/events?limit=200&include=data").await.expect(StatusCode::OK);
    let data: Vec<i64> =
        listed["data"].as_array().unwrap().iter().map(|event| event["data"].as_i64().unwrap()).collect();
    assert_eq!(data, (0..150).rev().collect::<Vec<_>>());
}

#[tokio::test]
async fn an_event_is_stored_even_if_the_queue_fails() {
    let server = Server::start().await;
    server.destination(json!({"url": URL})).await;
    server.queue.break_down();
    server.event("video.created").await;
    assert_eq!(server.count("/v1/deliveries?state=pending").await, 1);
}

#[tokio::test]
async fn an_event_and_an_edit_do_not_wait_for_a_queue_that_hangs() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    server.queue.hang();
    server.event("video.created").await;
    server.patch(&format!("/v1/destinations/{id}"), json!({"paused": true})).await.expect(StatusCode::OK);
}
