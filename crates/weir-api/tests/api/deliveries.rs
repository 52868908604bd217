//! Deliveries: list, show, retry, cancel and discard.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::outcome::Verdict;

use crate::harness::{FOREIGN, OWN, ROOT, Server};

const URL: &str = "https://example.com/hooks";

/// A server with one destination and one delivery to it.
async fn one_delivery() -> (Server, String, String) {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    server.event("video.created").await;
    server.queue.woken();
    let listed = server.get("/v1/deliveries").await.expect(StatusCode::OK);
    let delivery = listed["data"][0]["id"].as_str().unwrap().to_owned();
    (server, destination, delivery)
}

#[tokio::test]
async fn a_delivery_shows_its_attempts_first_to_last() {
    let (server, destination, id) = one_delivery().await;
    let first = server.claim(&destination).await.pop().unwrap();
    server.settle(&first, 503, Verdict::Retry { at: first.event_created_at }).await;
    let second = server.claim(&destination).await.pop().unwrap();
    server.settle(&second, 200, Verdict::Delivered).await;
    let shown = server.get(&format!("/v1/deliveries/{id}")).await.expect(StatusCode::OK);
    assert_eq!(
        (&shown["state"], &shown["attempt_count"], &shown["event_type"]),
        (&json!("delivered"), &json!(2), &json!("video.created"))
    );
    assert_eq!((&shown["destination_id"], &shown["next_attempt_at"]), (&json!(destination), &Value::Null));
    let attempts = shown["attempts"].as_array().unwrap();
    let expected = json!({
        "id": attempts[0]["id"], "number": 1, "sent_at": attempts[0]["sent_at"], "status_code": 503, "duration_ms": 12,
        "error": "answered 503", "error_kind": "5xx", "outcome": "retryable", "response_body": "ok",
        "signed_at": attempts[0]["signed_at"], "response_headers": [["server", "nginx"]],
        "remote_address": "203.0.113.7:443", "connect_ms": 3, "tls_ms": null,
    });
    assert_eq!(attempts[0], expected);
    assert_eq!(attempts[0]["signed_at"], "2026-11-21T07:30:00.000Z");
    assert_eq!(
        (&attempts[1]["number"], &attempts[1]["outcome"], &attempts[1]["error"]),
        (&json!(2), &json!("delivered"), &Value::Null)
    );
}

#[tokio::test]
async fn what_failed_is_grouped_and_each_group_can_be_listed_and_replayed() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL, "name": "billing"})).await;
    for (event_type, status) in [("video.created", 503), ("order.paid", 503), ("video.created", 404)] {
        server.event(event_type).await;
        server.clock.advance(Duration::from_millis(1));
        let claimed = server.claim(&destination).await.pop().unwrap();
        server.settle(&claimed, status, if status == 404 { Verdict::Failed } else { Verdict::Dead }).await;
    }
    // A replay takes only deliveries that ended before it began, so let a second pass.
    server.clock.advance(Duration::from_secs(1));
    let groups = server.get("/v1/deliveries/groups").await.expect(StatusCode::OK);
    assert_eq!((&groups["scanned"], &groups["capped"]), (&json!(3), &json!(false)));
    let group = &groups["data"][0];
    let expected = json!({
        "destination_id": destination, "destination_name": "billing", "state": "dead", "error": "503",
        "status_code": 503, "last_error": "answered 503", "deliveries": 2, "newest_at": "2026-11-21T07:30:00.001Z",
        "oldest_at": "2026-11-21T07:30:00.000Z", "example_id": group["example_id"],
    });
    assert_eq!((group, groups["data"].as_array().unwrap().len()), (&expected, 2));
    for group in groups["data"].as_array().unwrap() {
        let (state, error) = (group["state"].as_str().unwrap(), group["error"].as_str().unwrap());
        let listed = format!("/v1/deliveries?destination={destination}&state={state}&error={error}");
        assert_eq!(server.count(&listed).await as u64, group["deliveries"], "{listed}");
        let replay = json!({"destination": destination, "states": [state], "error": error});
        let counted = server.post("/v1/replays?dry_run=true", replay).await.expect(StatusCode::OK);
        assert_eq!(counted["total"], group["deliveries"]);
    }
    let of_orders = server.get("/v1/deliveries/groups?state=dead&event_type=order.*").await.expect(StatusCode::OK);
    assert_eq!((&of_orders["data"][0]["deliveries"], &of_orders["scanned"]), (&json!(1), &json!(2)));
}

#[tokio::test]
async fn deliveries_are_found_by_their_last_error() {
    let server = Server::start().await;
    let destination = server.destination(json!({"url": URL})).await;
    let mut ids = Vec::new();
    for (event_type, status) in [("video.created", 503), ("video.clip.cut", 404), ("order.paid", 200)] {
        server.event(event_type).await;
        server.clock.advance(Duration::from_millis(1));
        let claimed = server.claim(&destination).await.pop().unwrap();
        let verdict = if status == 200 { Verdict::Delivered } else { Verdict::Dead };
        server.settle(&claimed, status, verdict).await;
        ids.push(claimed.claim.delivery_id.to_string());
    }
    server.event("order.lost").await;
    let dead = server.get("/v1/deliveries?state=dead&error=5xx").await.expect(StatusCode::OK);
    let row = &dead["data"][0];
    assert_eq!(
        (&row["id"], &row["last_error"], &row["last_error_kind"], &row["last_status_code"], &row["attempt_count"]),
        (&json!(ids[0]), &json!("answered 503"), &json!("5xx"), &json!(503), &json!(1))
    );
    let table = [
        ("error=5xx", &ids[..1]),
        ("error=404&state=dead", &ids[1..2]),
        ("error=timeout", &[]),
        ("event_type=video.*&error=4xx", &ids[1..2]),
        ("event_type=order.paid", &ids[2..]),
        ("event_type=video.*&tenant=default&state=dead", &ids[..2]),
        ("tenant=acme", &[]),
    ];
    for (query, expected) in table {
        let listed = server.get(&format!("/v1/deliveries?{query}")).await.expect(StatusCode::OK);
        let found: Vec<_> = listed["data"].as_array().unwrap().iter().map(|row| row["id"].clone()).collect();
        assert_eq!(found, expected.iter().rev().map(|id| json!(id)).collect::<Vec<_>>(), "{query}");
        assert_eq!(listed["next_cursor"], Value::Null);
    }
    let delivered = server.get("/v1/deliveries?state=delivered").await.expect(StatusCode::OK);
    assert_eq!(
        (&delivered["data"][0]["last_error"], &delivered["data"][0]["last_error_kind"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(delivered["data"][0]["last_status_code"], 200);
}

#[tokio::test]
async fn a_retry_makes_a_delivery_due_and_wakes_its_destination() {
    let (server, destination, id) = one_delivery().await;
    let path = format!("/v1/deliveries/{id}");
    let claimed = server.claim(&destination).await.pop().unwrap();
    server.post(&format!("{path}/retry"), "").await.problem(409);
    server.post(&format!("{path}/cancel"), "").await.problem(409);
    assert!(server.queue.woken().is_empty());
    server.settle(&claimed, 500, Verdict::Dead).await;
    let retried = server.post(&format!("{path}/retry"), "").await.expect(StatusCode::ACCEPTED);
    assert_eq!((&retried["id"], &retried["state"]), (&json!(id), &json!("pending")));
    assert_eq!(server.queue.woken(), [destination.parse().unwrap()]);
    assert_eq!(server.claim(&destination).await.len(), 1);
}

#[tokio::test]
async fn only_waiting_deliveries_are_cancelled() {
    let (server, destination, id) = one_delivery().await;
    let path = format!("/v1/deliveries/{id}");
    let cancelled = server.post(&format!("{path}/cancel"), "").await.expect(StatusCode::ACCEPTED);
    assert_eq!(cancelled["state"], "cancelled");
    server.post(&format!("{path}/cancel"), "").await.problem(409);
    assert!(server.claim(&destination).await.is_empty());
    server.delete(&format!("/v1/destinations/{destination}")).await;
    let problem = server.post(&format!("{path}/retry"), "").await.problem(409);
    assert!(problem["detail"].as_str().unwrap().contains("deleted"), "{problem}");
}

#[tokio::test]
async fn unknown_ids_are_not_found() {
    let server = Server::start().await;
    let id = "01h2xcejqtf2nbrexx3vqjhp41";
    server.get(&format!("/v1/deliveries/dlv_{id}")).await.problem(404);
    server.post(&format!("/v1/deliveries/dlv_{id}/retry"), "").await.problem(404);
    server.post(&format!("/v1/deliveries/dlv_{id}/cancel"), "").await.problem(404);
    server.get(&format!("/v1/events/evt_{id}")).await.problem(404);
    for view in ["", "/secret", "/backlog", "/audit", "/history", "/health"] {
        server.get(&format!("/v1/destinations/dst_{id}{view}")).await.problem(404);
    }
}

/// A destination of a tenant with dead letters: one `dead` after each of these statuses, or `failed` after a 404.
async fn dead_letters(server: &Server, tenant: &str, statuses: &[u16]) -> String {
    let destination = json!({"url": URL, "tenant": tenant, "name": tenant});
    let id = server.root("POST", "/v1/destinations", destination).await["id"].as_str().unwrap().to_owned();
    for status in statuses {
        server.root("POST", "/v1/events", json!({"type": "video.created", "data": 1, "tenant": tenant})).await;
        server.clock.advance(Duration::from_millis(1));
        let claimed = server.claim(&id).await.pop().unwrap();
        server.settle(&claimed, *status, if *status == 404 { Verdict::Failed } else { Verdict::Dead }).await;
    }
    id
}

async fn undelivered(server: &Server, tenant: &str) -> Value {
    server.clock.advance(Duration::from_secs(3));
    server.root("GET", &format!("/v1/overview?tenant={tenant}"), Value::Null).await["totals"]["undelivered"].clone()
}

#[tokio::test]
async fn dead_letters_are_discarded_by_a_filter_with_the_reason_in_the_activity() {
    let server = Server::with_keys().await;
    let own = dead_letters(&server, OWN, &[503, 503, 404, 500]).await;
    dead_letters(&server, FOREIGN, &[503]).await;
    let key = server.key("operate", json!([OWN])).await;
    let body = json!({"destination": own, "error": "503", "reason": "sent by hand"});
    let counted = server.ask(&key, "POST", "/v1/deliveries/discard?dry_run=true", Some(&body)).await;
    assert_eq!(counted.expect(StatusCode::OK), json!({"total": 2, "capped": false}));
    let discarded = server.ask(&key, "POST", "/v1/deliveries/discard", Some(&body)).await.expect(StatusCode::OK);
    assert_eq!(discarded, json!({"discarded": 2}));
    assert_eq!(undelivered(&server, OWN).await, 2);
    let logged = server.ask(&key, "GET", "/v1/activity", None).await.expect(StatusCode::OK);
    let row = &logged["data"][0];
    assert_eq!((&row["action"], &row["tenant"]), (&json!("dead_letters.discarded"), &json!(OWN)));
    let after = json!({"states": ["failed", "dead"], "error": "503", "reason": "sent by hand", "discarded": 2});
    assert_eq!(row["after"], after);
    // Without a filter: all of the key, and nothing of other tenants.
    let rest = server.ask(&key, "POST", "/v1/deliveries/discard", Some(&json!({}))).await.expect(StatusCode::OK);
    assert_eq!(rest, json!({"discarded": 2}));
    assert_eq!((undelivered(&server, OWN).await, undelivered(&server, FOREIGN).await), (json!(0), json!(1)));
    // What was discarded can still be sent.
    let replayed = json!({"states": ["cancelled"], "destination": own});
    let counted = server.root("POST", "/v1/replays?dry_run=true", replayed).await;
    assert_eq!(counted["total"], 4);
    for (body, pointer) in [
        (json!({"states": ["pending"]}), "/states/0"),
        (json!({"states": []}), "/states"),
        (json!({"reason": ""}), "/reason"),
        (json!({"reason": "a\u{202e}b"}), "/reason"),
        (json!({"destination": "dst_01h2xcejqtf2nbrexx3vqjhp41"}), "/destination"),
    ] {
        assert_eq!(server.ask(&key, "POST", "/v1/deliveries/discard", Some(&body)).await.pointers(), [pointer]);
    }
    let reader = server.key("read", json!([OWN])).await;
    server.ask(&reader, "POST", "/v1/deliveries/discard", Some(&json!({}))).await.problem(403);
}

#[tokio::test]
async fn a_single_dead_letter_is_discarded_once() {
    let server = Server::with_keys().await;
    dead_letters(&server, OWN, &[503]).await;
    let listed = server.root("GET", "/v1/deliveries", Value::Null).await;
    let path = format!("/v1/deliveries/{}/discard", listed["data"][0]["id"].as_str().unwrap());
    let foreign = server.key("operate", json!([FOREIGN])).await;
    server.ask(&foreign, "POST", &path, None).await.problem(404);
    let reason = json!({"reason": "a duplicate"});
    let discarded = server.ask(ROOT, "POST", &path, Some(&reason)).await.expect(StatusCode::ACCEPTED);
    assert_eq!((&discarded["state"], discarded["attempts"].as_array().unwrap().len()), (&json!("cancelled"), 1));
    let again = server.ask(ROOT, "POST", &path, None).await.problem(409);
    assert_eq!(again["detail"], "the delivery is cancelled and cannot be discarded: only dead letters can");
    let logged = server.root("GET", "/v1/activity", Value::Null).await;
    let row = &logged["data"][0];
    assert_eq!((&row["action"], &row["before"]), (&json!("delivery.discarded"), &json!({"state": "dead"})));
    assert_eq!(row["after"], json!({"state": "cancelled", "reason": "a duplicate", "discarded": 1}));
}

#[tokio::test]
async fn the_dead_letters_of_a_deleted_destination_are_settled_with_it() {
    let server = Server::with_keys().await;
    let id = dead_letters(&server, OWN, &[503, 404]).await;
    let path = format!("/v1/destinations/{id}");
    assert_eq!(server.ask(ROOT, "DELETE", &path, None).await.status, StatusCode::NO_CONTENT);
    let groups = server.root("GET", "/v1/deliveries/groups", Value::Null).await;
    assert_eq!(groups["data"], json!([]));
    let logged = server.root("GET", "/v1/activity", Value::Null).await;
    assert_eq!(logged["data"][0]["after"], json!({"reason": "the destination is deleted", "discarded": 2}));
    assert_eq!(logged["data"][1]["action"], "destination.deleted");
}
