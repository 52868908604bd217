//! Strict order per key, through the API.

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::outcome::Verdict;

use crate::harness::Server;

const URL: &str = "https://example.com/hooks";

#[tokio::test]
async fn a_destination_is_unordered_by_default() {
    let server = Server::start().await;
    let plain = server.destination(json!({"url": URL})).await;
    let shown = server.get(&format!("/v1/destinations/{plain}")).await.expect(StatusCode::OK);
    assert_eq!((&shown["ordered"], &shown["skip_after_attempts"]), (&json!(false), &Value::Null));
    let ordered = server.destination(json!({"url": URL, "ordered": true, "skip_after_attempts": 3})).await;
    let shown = server.get(&format!("/v1/destinations/{ordered}")).await.expect(StatusCode::OK);
    assert_eq!((&shown["ordered"], &shown["skip_after_attempts"]), (&json!(true), &json!(3)));
}

#[tokio::test]
async fn skipping_needs_an_order_and_a_number_of_attempts() {
    let server = Server::start().await;
    for (fields, pointers) in [
        (json!({"skip_after_attempts": 3}), vec!["/skip_after_attempts"]),
        (json!({"ordered": false, "skip_after_attempts": 3}), vec!["/skip_after_attempts"]),
        (json!({"ordered": true, "skip_after_attempts": 0}), vec!["/skip_after_attempts"]),
        (json!({"ordered": true, "skip_after_attempts": 101}), vec!["/skip_after_attempts"]),
        (json!({"ordered": "yes", "skip_after_attempts": "3"}), vec!["/ordered", "/skip_after_attempts"]),
    ] {
        let mut body = json!({"url": URL});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        assert_eq!(server.post("/v1/destinations", &body).await.pointers(), pointers, "{body}");
    }
    server.assert_untouched().await;
}

#[tokio::test]
async fn the_delivery_order_is_edited_like_any_other_setting() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL, "ordered": true, "skip_after_attempts": 3})).await;
    let path = format!("/v1/destinations/{id}");
    let order = |shown: &Value| (shown["ordered"].clone(), shown["skip_after_attempts"].clone());
    for (patch, expected) in [
        (json!({"name": "a"}), (json!(true), json!(3))),
        (json!({"skip_after_attempts": null}), (json!(true), Value::Null)),
        (json!({"skip_after_attempts": 5}), (json!(true), json!(5))),
        (json!({"ordered": false}), (json!(false), Value::Null)),
        (json!({"ordered": true}), (json!(true), Value::Null)),
    ] {
        let shown = server.patch(&path, &patch).await.expect(StatusCode::OK);
        assert_eq!(order(&shown), expected, "{patch}");
    }
    let both = json!({"ordered": false, "skip_after_attempts": 3});
    assert_eq!(server.patch(&path, &both).await.pointers(), ["/skip_after_attempts"]);
}

#[tokio::test]
async fn an_ordering_key_has_1_to_255_bytes_and_is_shown() {
    let server = Server::start().await;
    for key in [json!(""), json!("é".repeat(128)), json!("a\0b"), json!("a\nb"), json!(7), json!(["a"])] {
        let event = json!({"type": "a", "data": 1, "ordering_key": key});
        assert_eq!(server.post("/v1/events", &event).await.pointers(), ["/ordering_key"], "{event}");
    }
    server.assert_untouched().await;
    let longest = json!({"type": "a", "data": 1, "ordering_key": "k".repeat(255)});
    let accepted = server.post("/v1/events", longest).await.expect(StatusCode::ACCEPTED);
    let event = server.get(&format!("/v1/events/{}", accepted["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    assert_eq!(event["ordering_key"], "k".repeat(255));
    let plain = server.post("/v1/events", json!({"type": "a", "data": 1})).await.expect(StatusCode::ACCEPTED);
    let event = server.get(&format!("/v1/events/{}", plain["id"].as_str().unwrap())).await.expect(StatusCode::OK);
    assert!(event.get("ordering_key").is_none(), "{event}");
}

#[tokio::test]
async fn the_ordered_events_of_a_batch_wait_for_each_other_and_a_cancelled_head_wakes_the_next() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL, "ordered": true})).await;
    let event = |n: u32| json!({"type": "t", "data": n, "ordering_key": "account 42"});
    let events: Vec<_> = (1..=3).map(event).collect();
    server.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
    let listed = server.get(&format!("/v1/deliveries?destination={destination}")).await.expect(StatusCode::OK);
    let listed = listed["data"].as_array().unwrap();
    let waits: Vec<_> = listed.iter().rev().map(|delivery| delivery["next_attempt_at"].is_null()).collect();
    assert_eq!(waits, [false, true, true]);
    assert!(listed.iter().all(|delivery| delivery["state"] == "pending"));
    server.queue.wakes();
    let path = format!("/v1/deliveries/{}", listed[2]["id"].as_str().unwrap());
    server.post(&format!("{path}/cancel"), "").await.expect(StatusCode::ACCEPTED);
    assert_eq!(server.queue.wakes().len(), 1);
    let claimed = server.claim(&destination).await;
    let [second] = &claimed[..] else { panic!("{} deliveries are claimed instead of one", claimed.len()) };
    assert_eq!(server.get(&format!("/v1/events/{}", second.event_id)).await.expect(StatusCode::OK)["data"], 2);
    server.settle(second, 200, Verdict::Delivered).await;
    assert_eq!(server.claim(&destination).await.len(), 1);
}
