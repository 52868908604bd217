//! The release of a hold, and what deliveries wait for.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{Clock as _, DestinationId, Timestamp};
use weir_store::Hold;

use crate::harness::Server;

const MINUTE: Duration = Duration::from_secs(60);

async fn hold(server: &Server, id: &str, sent_at: Timestamp) {
    let id: DestinationId = id.parse().unwrap();
    let reason = "the destination answered 429 with retry-after: 60".to_owned();
    let now = server.clock.now();
    let hold = Hold { id, until: now + MINUTE, reason, sent_at, now };
    server.store.hold_destinations(vec![hold]).await.unwrap();
}

#[tokio::test]
async fn a_release_lifts_the_hold_and_tells_the_queue() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": "https://example.com/"})).await;
    let path = format!("/v1/destinations/{id}");
    hold(&server, &id, server.clock.now()).await;
    let held = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!(held["held_until"], "2026-11-21T07:31:00.000Z");
    server.queue.edited();
    server.clock.advance(Duration::from_secs(1));
    let before = server.clock.now();
    let released = server.post(&format!("{path}/release"), "").await.expect(StatusCode::OK);
    assert_eq!((&released["held_until"], &released["held_reason"]), (&Value::Null, &Value::Null));
    assert!(released["updated_at"].as_str() > held["updated_at"].as_str(), "{released}");
    let terms = server.queue.edited().remove(0).terms;
    assert!((before..server.clock.now()).contains(&terms.released_at), "{:?}", terms.released_at);
    assert_eq!(terms.held_until, Timestamp::MIN);
    // A hold of a send from before the release.
    hold(&server, &id, server.clock.now() - Duration::from_millis(1)).await;
    assert_eq!(server.get(&path).await.expect(StatusCode::OK)["held_until"], Value::Null);
    let activity = server.get(&format!("/v1/activity?destination={id}")).await.expect(StatusCode::OK);
    let row = &activity["data"][0];
    assert_eq!((&row["action"], &row["after"]["held_until"]), (&json!("destination.released"), &Value::Null), "{row}");
    assert_eq!(row["before"]["held_reason"], "the destination answered 429 with retry-after: 60");
    // Again: nothing holds it.
    server.post(&format!("{path}/release"), "").await.expect(StatusCode::OK);
    server.post("/v1/destinations/dst_01h2xcejqtf2nbrexx3vqjhp41/release", "").await.problem(404);
}

#[tokio::test]
async fn a_resume_and_another_url_lift_a_hold_and_other_edits_do_not() {
    let server = Server::start().await;
    for (edit, lifts) in [
        (json!({"name": "b"}), false),
        (json!({"max_in_flight": 3}), false),
        (json!({"paused": false}), true),
        (json!({"url": "https://example.com/other"}), true),
    ] {
        let id = server.destination(json!({"url": "https://example.com/"})).await;
        hold(&server, &id, server.clock.now()).await;
        let edited = server.patch(&format!("/v1/destinations/{id}"), &edit).await.expect(StatusCode::OK);
        assert_eq!(edited["held_until"].is_null(), lifts, "{edit}: {edited}");
    }
}

#[tokio::test]
async fn what_is_accepted_says_what_it_waits_for() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": "https://example.com/"})).await;
    let event = server.event("a").await;
    let free = server.get(&format!("/v1/events/{event}")).await.expect(StatusCode::OK);
    let delivery = &free["deliveries"][0];
    assert_eq!(delivery["waits_for"]["reason"], "turn");
    let retry = format!("/v1/deliveries/{}/retry", delivery["id"].as_str().unwrap());
    hold(&server, &id, server.clock.now()).await;
    let expected = json!({
        "reason": "hold", "until": "2026-11-21T07:31:00.000Z", "detail": "the destination answered 429 with retry-after: 60",
        "by": null, "since": null, "ahead": null,
    });
    for path in [retry.clone(), format!("/v1/destinations/{id}/test")] {
        let accepted = server.post(&path, "").await.expect(StatusCode::ACCEPTED);
        assert_eq!((&accepted["waits_for"], &accepted["next_attempt_at"]), (&expected, &expected["until"]), "{path}");
    }
    let list = server.get(&format!("/v1/deliveries?destination={id}")).await.expect(StatusCode::OK);
    assert_eq!(list["data"][0]["waits_for"], expected, "{list}");
    let replay = json!({"destination": id, "states": ["dead"]});
    let replay = server.post("/v1/replays", &replay).await.expect(StatusCode::ACCEPTED);
    assert_eq!(replay["waits_for"], expected, "{replay}");
    server.patch(&format!("/v1/destinations/{id}"), &json!({"paused": true})).await.expect(StatusCode::OK);
    let accepted = server.post(&retry, "").await.expect(StatusCode::ACCEPTED);
    assert_eq!(
        accepted["waits_for"],
        json!({
            "reason": "pause", "until": null, "detail": null, "by": null, "since": "2026-11-21T07:30:00.000Z", "ahead": null,
        })
    );
}
