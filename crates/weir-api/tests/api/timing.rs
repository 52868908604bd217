//! `deliver_at`, `ttl_s` and `coalesce_key`.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::outcome::Verdict;

use crate::harness::Server;

const URL: &str = "https://example.com/hooks";

#[tokio::test]
async fn a_delayed_event_wakes_its_destination_when_it_is_due() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    let body = json!({"type": "t", "data": 1, "deliver_at": "2026-11-21T09:00:00+01:00", "ttl_s": 60});
    let accepted = server.post("/v1/events", body).await.expect(StatusCode::ACCEPTED);
    let terms = |shown: &Value| (shown["deliver_at"].clone(), shown["expires_at"].clone());
    let expected = (json!("2026-11-21T08:00:00.000Z"), json!("2026-11-21T08:01:00.000Z"));
    assert_eq!(terms(&accepted), expected);
    let due = "2026-11-21T08:00:00Z".parse().unwrap();
    assert_eq!(server.queue.wakes(), [(destination.parse().unwrap(), due)]);
    let event = server.get(&format!("/v1/events/{}", accepted["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    assert_eq!(terms(&event), expected);
    let delivery = &event["deliveries"][0];
    assert_eq!((&delivery["next_attempt_at"], &delivery["expires_at"]), (&expected.0, &expected.1));
    assert!(server.claim(&destination).await.is_empty());
    server.clock.advance(Duration::from_secs(30 * 60));
    assert_eq!(server.claim(&destination).await.len(), 1);
}

#[tokio::test]
async fn a_destination_is_woken_for_the_earliest_due_event_of_a_batch() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    let at = |time: &str| json!({"type": "t", "data": 1, "deliver_at": format!("2026-11-21T{time}Z")});
    let events = json!({"events": [at("09:00:00"), at("08:00:00"), at("10:00:00")]});
    server.post("/v1/events/batch", events).await.expect(StatusCode::ACCEPTED);
    let due = "2026-11-21T08:00:00Z".parse().unwrap();
    assert_eq!(server.queue.wakes(), [(destination.parse().unwrap(), due)]);
}

#[tokio::test]
async fn a_deliver_at_in_the_past_means_now() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    let body = json!({"type": "t", "data": 1, "deliver_at": "2001-01-01T00:00:00Z", "ttl_s": 31_536_000});
    let accepted = server.post("/v1/events", body).await.expect(StatusCode::ACCEPTED);
    assert_eq!(accepted["deliver_at"], "2001-01-01T00:00:00.000Z");
    assert!(accepted["expires_at"].as_str().unwrap().starts_with("2027-11-21T07:30:00"), "{accepted}");
    assert_eq!(server.claim(&destination).await.len(), 1);
}

#[tokio::test]
async fn a_ttl_may_have_a_fraction_of_zero() {
    let server = Server::start().await;
    let accepted =
        server.post("/v1/events", r#"{"type":"t","data":1,"ttl_s":60.0}"#).await.expect(StatusCode::ACCEPTED);
    assert!(accepted["expires_at"].as_str().unwrap().starts_with("2026-11-21T07:31:00"), "{accepted}");
}

#[tokio::test]
async fn absent_terms_are_not_shown() {
    let server = Server::start().await;
    server.destination(json!({"url": URL})).await;
    let body = json!({"type": "t", "data": 1, "deliver_at": null, "ttl_s": null});
    let accepted = server.post("/v1/events", body).await.expect(StatusCode::ACCEPTED);
    let event = server.get(&format!("/v1/events/{}", accepted["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    for shown in [&accepted, &event] {
        assert!(shown.get("deliver_at").is_none() && shown.get("expires_at").is_none(), "{shown}");
    }
    assert_eq!(event["deliveries"][0]["expires_at"], Value::Null);
}

#[tokio::test]
async fn invalid_terms_are_refused_by_name() {
    let server = Server::start().await;
    for (body, pointers) in [
        (json!({"deliver_at": "tomorrow"}), vec!["/deliver_at"]),
        (json!({"deliver_at": 7, "ttl_s": "long"}), vec!["/deliver_at", "/ttl_s"]),
        (json!({"deliver_at": "2027-11-21T07:31:00Z"}), vec!["/deliver_at"]),
        (json!({"deliver_at": "2027-11-21T07:31:00Z", "ttl_s": -1}), vec!["/deliver_at", "/ttl_s"]),
        (json!({"ttl_s": 0}), vec!["/ttl_s"]),
        (json!({"ttl_s": 31_536_001}), vec!["/ttl_s"]),
        (json!({"ttl_s": 1.5}), vec!["/ttl_s"]),
    ] {
        let mut event = json!({"type": "a", "data": 1});
        event.as_object_mut().unwrap().extend(body.as_object().unwrap().clone());
        assert_eq!(server.post("/v1/events", &event).await.pointers(), pointers, "{event}");
    }
    server.assert_untouched().await;
    let events = json!({"events": [
        {"type": "a", "data": 1, "ttl_s": 0},
        {"type": "b", "data": 1, "ttl_s": 1, "deliver_at": "2027-11-21T07:30:00Z"},
    ]});
    let answer = server.post("/v1/events/batch", events).await.expect(StatusCode::ACCEPTED);
    assert_eq!(answer["events"][0]["error"]["errors"][0]["pointer"], "/ttl_s");
    assert_eq!(answer["events"][1]["expires_at"], "2027-11-21T07:30:01.000Z");
}

#[tokio::test]
async fn an_expired_delivery_is_listed_and_cannot_be_retried() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    server.post("/v1/events", json!({"type": "t", "data": 1, "ttl_s": 5})).await.expect(StatusCode::ACCEPTED);
    let claimed = server.claim(&destination).await.pop().unwrap();
    server.settle(&claimed, 503, Verdict::Retry { at: claimed.event_created_at + Duration::from_secs(4) }).await;
    server.clock.advance(Duration::from_secs(5));
    assert!(server.claim(&destination).await.is_empty());
    let listed = server.get("/v1/deliveries?state=expired").await.expect(StatusCode::OK);
    let delivery = &listed["data"][0];
    assert_eq!((&delivery["state"], &delivery["attempt_count"]), (&json!("expired"), &json!(1)));
    let path = format!("/v1/deliveries/{}", delivery["id"].as_str().unwrap());
    let problem = server.post(&format!("{path}/retry"), "").await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("`expires_at`"), "{problem}");
    server.post(&format!("{path}/cancel"), "").await.problem(409);
}

#[tokio::test]
async fn an_event_supersedes_the_waiting_deliveries_of_its_key() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    let update = |n: u32| json!({"type": "t", "data": n, "coalesce_key": "video 7 é"});
    let first = server.post("/v1/events", update(1)).await.expect(StatusCode::ACCEPTED);
    let event = server.get(&format!("/v1/events/{}", first["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    assert_eq!(event["coalesce_key"], "video 7 é");
    let events: Vec<_> = (2..=1_000).map(update).collect();
    server.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
    let claimed = server.claim(&destination).await;
    let [last] = &claimed[..] else { panic!("{} deliveries are claimed instead of one", claimed.len()) };
    assert_eq!(server.get(&format!("/v1/events/{}", last.event_id)).await.expect(StatusCode::OK)["data"], 1_000);
    let path = format!("/v1/deliveries?destination={destination}&state=superseded&limit=200");
    assert_eq!(server.count(&path).await, 200, "the first page of 999");
    let backlog = server.get(&format!("/v1/destinations/{destination}/backlog")).await.expect(StatusCode::OK);
    assert_eq!((&backlog["pending"], &backlog["delivering"]), (&json!(0), &json!(1)));
}

#[tokio::test]
async fn a_coalesce_key_has_1_to_255_bytes() {
    let server = Server::start().await;
    for key in [json!(""), json!("é".repeat(128)), json!("a\0b"), json!("a\nb"), json!(7), json!(["a"])] {
        let event = json!({"type": "a", "data": 1, "coalesce_key": key});
        assert_eq!(server.post("/v1/events", &event).await.pointers(), ["/coalesce_key"], "{event}");
    }
    server.assert_untouched().await;
    let longest = json!({"type": "a", "data": 1, "coalesce_key": "k".repeat(255)});
    server.post("/v1/events", longest).await.expect(StatusCode::ACCEPTED);
}
