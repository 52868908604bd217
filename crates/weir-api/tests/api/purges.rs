//! Purges: cancelled deliveries, unaffected deliveries, refused requests.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::outcome::Verdict;

use crate::harness::Server;

const URL: &str = "https://example.com/hooks";

async fn purge(server: &Server, destination: &str, body: Value) -> Value {
    server.post(&format!("/v1/destinations/{destination}/purge"), body).await.expect(StatusCode::OK)
}

#[tokio::test]
async fn a_purge_cancels_waiting_deliveries_and_counts_them() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    for event_type in ["video.created", "video.clip.cut", "order.paid", "order.paid"] {
        server.event(event_type).await;
        server.clock.advance(Duration::from_secs(60));
    }
    let claimed = server.claim(&destination).await;
    let retry = Verdict::Retry { at: claimed[0].event_created_at + Duration::from_secs(3_600) };
    server.settle(&claimed[0], 503, retry).await;
    let unsent = claimed[1..3].iter().map(|claimed| claimed.claim).collect();
    server.store.release(unsent, claimed[0].event_created_at).await.unwrap();
    server.queue.woken();
    // One delivery is retrying, two are pending, one is delivering.
    for (body, cancelled) in [
        (json!({"event_type": "video.*", "states": ["pending"]}), 1),
        (json!({"before": "2026-11-21T07:30:00Z"}), 0),
        (json!({"before": "2026-11-21T07:30:59Z", "event_type": "order.paid"}), 0),
        (json!({"states": ["retrying"]}), 1),
        (json!({"states": ["pending", "retrying"], "before": "2199-01-01T00:00:00Z"}), 1),
        (json!({}), 0),
    ] {
        assert_eq!(purge(&server, &destination, body.clone()).await, json!({ "cancelled": cancelled }), "{body}");
    }
    assert_eq!(server.queue.woken().len(), 3, "each purge wakes the destination, for a run that claimed too few");
    let backlog = server.get(&format!("/v1/destinations/{destination}/backlog")).await.expect(StatusCode::OK);
    assert_eq!((&backlog["pending"], &backlog["retrying"], &backlog["delivering"]), (&json!(0), &json!(0), &json!(1)));
    assert_eq!(server.count("/v1/deliveries?state=cancelled").await, 3);
    let retried = server.get("/v1/deliveries?state=cancelled&error=503").await.expect(StatusCode::OK);
    assert_eq!(retried["data"][0]["last_error"], "answered 503", "the last error is kept");
}

#[tokio::test]
async fn a_dry_run_of_a_purge_counts_and_cancels_nothing() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    for event_type in ["video.created", "video.created", "order.paid"] {
        server.event(event_type).await;
    }
    server.queue.woken();
    let path = format!("/v1/destinations/{destination}/purge");
    let dry = format!("{path}?dry_run=true");
    for (body, total) in [(json!({}), 3), (json!({"event_type": "video.*"}), 2), (json!({"states": ["retrying"]}), 0)] {
        assert_eq!(server.post(&dry, &body).await.expect(StatusCode::OK), json!({ "total": total }), "{body}");
    }
    assert_eq!(server.post(&format!("{path}?dry_run=yes"), "{}").await.pointers(), ["/dry_run"]);
    assert_eq!(server.post(&dry, json!({"states": []})).await.pointers(), ["/states"]);
    server.post(&dry.replace(&destination, "dst_01h2xcejqtf2nbrexx3vqjhp41"), "{}").await.problem(404);
    assert_eq!(server.count("/v1/deliveries?state=pending").await, 3);
    assert!(server.queue.woken().is_empty());
    let real = server.post(&format!("{path}?dry_run=false"), "{}").await.expect(StatusCode::OK);
    assert_eq!(real, json!({"cancelled": 3}));
}

#[tokio::test]
async fn a_paused_destination_is_purged_and_not_woken() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL, "paused": true})).await;
    server.event("video.created").await;
    assert_eq!(purge(&server, &destination, json!({})).await["cancelled"], 1);
    assert!(server.queue.woken().is_empty());
}

#[tokio::test]
async fn an_invalid_purge_reports_its_errors_and_cancels_nothing() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    server.event("video.created").await;
    let path = format!("/v1/destinations/{destination}/purge");
    for (body, pointers) in [
        (json!({"states": ["pending", "dead", "delivering", 7]}), vec!["/states/1", "/states/2", "/states/3"]),
        (json!({"states": []}), vec!["/states"]),
        (json!({"states": "pending"}), vec!["/states"]),
        (
            json!({"event_type": "video*", "before": "yesterday", "tenant": "a"}),
            vec!["/event_type", "/before", "/tenant"],
        ),
        (json!([]), vec![""]),
    ] {
        assert_eq!(server.post(&path, &body).await.pointers(), pointers, "{body}");
    }
    server.post(&path, "").await.problem(400);
    assert_eq!(server.count("/v1/deliveries?state=pending").await, 1);
}

#[tokio::test]
async fn an_unknown_or_deleted_destination_is_not_purged() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    server.delete(&format!("/v1/destinations/{destination}")).await;
    for id in [destination.as_str(), "dst_01h2xcejqtf2nbrexx3vqjhp41", "nonsense"] {
        server.post(&format!("/v1/destinations/{id}/purge"), "{}").await.problem(404);
    }
}
