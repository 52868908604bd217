//! Overrides of limits and holds with an end: set, shown, replaced, ended, and what the queue hears of them.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{Clock as _, Period, RateLimit, RateLimits, Timestamp};
use weir_queue::TermsChange;

use crate::harness::{Server, json_request};

const MINUTE: Duration = Duration::from_secs(60);

fn limits(limit: u32) -> Value {
    json!([{"limit": limit, "period": "second", "burst": 1, "margin_ms": 0}])
}

fn per_second(limit: u32) -> RateLimits {
    RateLimits::new(RateLimit::new(limit, Period::SECOND).into_iter().collect()).unwrap()
}

/// A minute from now, as it is shown.
fn in_a_minute(server: &Server) -> Timestamp {
    Timestamp::from_millis((server.clock.now() + MINUTE).as_millis())
}

async fn limited(server: &Server) -> (String, String) {
    let id = server.destination(json!({"url": "https://example.com/", "rate_limits": limits(10)})).await;
    server.queue.edited();
    (format!("/v1/destinations/{id}"), id)
}

async fn actions(server: &Server, id: &str) -> Vec<Value> {
    let activity = server.get(&format!("/v1/activity?destination={id}")).await.expect(StatusCode::OK);
    activity["data"].as_array().unwrap().iter().map(|row| row["action"].clone()).collect()
}

#[tokio::test]
async fn an_override_is_in_force_until_its_end_beside_the_settings() {
    let server = Server::start().await;
    let (path, id) = limited(&server).await;
    let until = in_a_minute(&server);
    let body = json!({"rate_limits": limits(50), "max_in_flight": 128, "for_s": 60, "reason": "launch day"});
    let reply = server.post(&format!("{path}/override"), body).await;
    let begun = reply.expect(StatusCode::OK);
    let shown = json!({"rate_limits": limits(50), "max_in_flight": 128, "until": until, "reason": "launch day"});
    assert_eq!((&begun["override"], &begun["replaced"]), (&shown, &Value::Null));
    assert_eq!((&begun["rate_limits"], &begun["max_in_flight"]), (&limits(10), &json!(64)), "the settings stay");
    let TermsChange { terms, .. } = server.queue.edited().remove(0);
    assert_eq!((&terms.limits, terms.max_in_flight, terms.until), (&per_second(50), 128, Some(until)));
    assert!(terms.are_valid(until - Duration::from_nanos(1)) && !terms.are_valid(until));

    // The settings below are edited meanwhile; what is in force is shown wherever limits are.
    let edit = json!({"rate_limits": limits(20)});
    let edited = server.patch(&path, edit).await.expect(StatusCode::OK);
    assert_eq!((&edited["override"], &edited["rate_limits"]), (&shown, &limits(20)));
    assert_eq!(server.queue.edited().remove(0).terms.limits, per_second(50));
    let overview = server.get(&format!("{path}/overview")).await.expect(StatusCode::OK);
    let brief = &overview["destination"];
    assert_eq!(
        (&brief["rate_limits"], &brief["max_in_flight"], &brief["override"]),
        (&limits(50), &json!(128), &shown)
    );
    assert_eq!((&overview["configured_per_s"], &overview["binding"]["limit"]), (&json!(50.0), &json!(50)));
    assert_eq!(server.get(&format!("{path}/backlog")).await.expect(StatusCode::OK)["configured_per_s"], 50.0);
    let preview = server.post(&format!("{path}/preview"), json!({})).await.expect(StatusCode::OK);
    assert_eq!(preview["now"]["binding"]["limit"], 50);

    // Nobody does anything at the end.
    server.clock.advance(MINUTE);
    let after = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!((&after["override"], &after["rate_limits"]), (&Value::Null, &limits(20)));
    assert_eq!(server.get(&format!("{path}/backlog")).await.expect(StatusCode::OK)["configured_per_s"], 20.0);
    let changes = server.store.limit_changes(id.parse().unwrap()).await.unwrap();
    let rows: Vec<_> = changes.iter().map(|change| change.limits.clone()).collect();
    assert_eq!(rows, [per_second(10), per_second(50), per_second(20)]);
    assert_eq!(changes[2].at, until);
    let expected = ["destination.edited", "destination.overridden", "destination.created"];
    assert_eq!(actions(&server, &id).await, expected);
}

#[tokio::test]
async fn another_override_replaces_the_first_and_says_so_and_a_deletion_ends_it() {
    let server = Server::start().await;
    let (path, id) = limited(&server).await;
    let first = json!({"rate_limits": [], "for_s": 3600, "reason": "first"});
    let first = server.post(&format!("{path}/override"), first).await.expect(StatusCode::OK);
    assert_eq!(first["override"]["rate_limits"], json!([]), "no limit");
    let until = in_a_minute(&server);
    let second = json!({"max_in_flight": 3, "until": until, "reason": "second"});
    let second = server.post(&format!("{path}/override"), second).await.expect(StatusCode::OK);
    assert_eq!((&second["replaced"], &second["override"]["reason"]), (&first["override"], &json!("second")));
    assert_eq!(second["override"]["rate_limits"], Value::Null, "those of the settings");
    server.queue.edited();
    let ended = server.delete(&format!("{path}/override")).await.expect(StatusCode::OK);
    assert_eq!(ended["override"], Value::Null);
    let terms = server.queue.edited().remove(0).terms;
    assert_eq!((terms.max_in_flight, terms.until), (64, None));
    // Again: there is none.
    server.delete(&format!("{path}/override")).await.expect(StatusCode::OK);
    let expected =
        ["destination.override_ended", "destination.overridden", "destination.overridden", "destination.created"];
    assert_eq!(actions(&server, &id).await, expected);
    let activity = server.get(&format!("/v1/activity?destination={id}")).await.expect(StatusCode::OK);
    assert_eq!(activity["data"][0]["before"]["override"]["reason"], "second");
}

#[tokio::test]
async fn a_hold_is_a_pause_with_an_end_that_leaves_the_wait_of_the_receiver() {
    let server = Server::start().await;
    let (path, id) = limited(&server).await;
    let (now, until) = (server.clock.now(), in_a_minute(&server));
    let asked = weir_store::Hold {
        id: id.parse().unwrap(),
        until: now + MINUTE / 2,
        reason: "busy".to_owned(),
        sent_at: now,
        now,
    };
    server.store.hold_destinations(vec![asked]).await.unwrap();
    let body = json!({"until": until, "reason": "their maintenance"});
    let held = server.post(&format!("{path}/hold"), body).await.expect(StatusCode::OK);
    assert_eq!((&held["held_until"], &held["held_reason"]), (&json!(until), &json!("their maintenance")));
    assert_eq!(
        (&held["hold"]["until"], &held["replaced"], &held["paused"]),
        (&json!(until), &Value::Null, &json!(false))
    );
    assert_eq!(server.queue.edited().remove(0).terms.held_until, until);
    let listed = server.get("/v1/destinations?state=held").await.expect(StatusCode::OK);
    assert_eq!(listed["data"].as_array().unwrap().len(), 1);
    let ended = server.delete(&format!("{path}/hold")).await.expect(StatusCode::OK);
    assert_eq!((&ended["hold"], &ended["held_reason"]), (&Value::Null, &json!("busy")));
    let terms = server.queue.edited().remove(0).terms;
    assert!(terms.released_at > Timestamp::MIN && terms.held_until == now + MINUTE / 2);
    // A release ends both.
    server.post(&format!("{path}/hold"), json!({"for_s": 60, "reason": "again"})).await.expect(StatusCode::OK);
    let released = server.post(&format!("{path}/release"), "").await.expect(StatusCode::OK);
    assert_eq!((&released["hold"], &released["held_until"]), (&Value::Null, &Value::Null));
    let seen = actions(&server, &id).await;
    assert_eq!(seen[..3], ["destination.released", "destination.held", "destination.released"]);
}

#[tokio::test]
async fn what_is_wrong_with_an_override_or_a_hold_is_said_and_changes_nothing() {
    let server = Server::start().await;
    let (path, _) = limited(&server).await;
    let long = "x".repeat(501);
    let later = server.clock.now() + Duration::from_secs(31 * 86_400);
    for (what, body, pointer) in [
        ("override", json!({"for_s": 60, "reason": "r"}), "/rate_limits"),
        ("override", json!({"max_in_flight": 0, "for_s": 60, "reason": "r"}), "/max_in_flight"),
        ("override", json!({"max_in_flight": 1, "reason": "r"}), "/for_s"),
        ("override", json!({"max_in_flight": 1, "for_s": 2_592_001, "reason": "r"}), "/for_s"),
        ("override", json!({"max_in_flight": 1, "for_s": 60, "reason": ""}), "/reason"),
        ("override", json!({"max_in_flight": 1, "for_s": 60}), "/reason"),
        ("hold", json!({"for_s": 0, "reason": "r"}), "/for_s"),
        ("hold", json!({"for_s": 60, "reason": long}), "/reason"),
        ("hold", json!({"until": later, "reason": "r"}), "/until"),
        ("hold", json!({"until": server.clock.now(), "reason": "r"}), "/until"),
        ("hold", json!({"until": later, "for_s": 1, "reason": "r"}), "/for_s"),
    ] {
        let reply = server.post(&format!("{path}/{what}"), &body).await;
        assert_eq!(reply.pointers(), [pointer], "{body}");
    }
    let etag = "\"1\"";
    let mut stale = json_request("POST", &format!("{path}/hold"), json!({"for_s": 60, "reason": "r"}));
    stale.headers_mut().insert("if-match", etag.parse().unwrap());
    server.send(stale).await.problem(412);
    let shown = server.get(&path).await.expect(StatusCode::OK);
    assert_eq!((&shown["override"], &shown["hold"]), (&Value::Null, &Value::Null));
    assert!(server.queue.edited().is_empty());
}
