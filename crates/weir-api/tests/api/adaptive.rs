//! The adaptive pace: its bounds, the pace as it is, its changes, and what it would be.

use std::time::Duration;

use http::StatusCode;
use serde_json::{Value, json};
use weir_core::{
    Clock as _,
    adaptive::{self, AdaptiveRate, Change, Reason, Status},
    outcome::Verdict,
};
use weir_store::{PaceCopy, PaceRecord};

use crate::harness::Server;

const URL: &str = "https://example.com/hooks";
const DETAIL: &str = "12 of 340 answers were 429";

fn status(server: &Server, per_s: f64) -> Status {
    Status { per_s, since: server.clock.now(), reason: Reason::Throttled, detail: DETAIL.to_owned() }
}

impl Server {
    async fn adaptive(&self, adaptive: Value) -> String {
        self.destination(json!({"url": URL, "rate_limits": [{"limit": 100, "period": "second"}], "adaptive": adaptive}))
            .await
    }

    async fn rate(&self, id: &str, query: &str) -> Value {
        self.get(&format!("/v1/destinations/{id}/rate{query}")).await.expect(StatusCode::OK)
    }

    async fn record_change(&self, id: &str, ago_s: u64, from_per_s: f64, to_per_s: f64) {
        let at = self.clock.now().before(Duration::from_secs(ago_s));
        let change = Change { at, from_per_s, to_per_s, reason: Reason::Throttled, detail: DETAIL.to_owned() };
        let record = PaceRecord { destination_id: id.parse().unwrap(), copy: None, change: Some(change) };
        self.store.record_paces(&[record]).await.unwrap();
    }
}

#[tokio::test]
async fn a_pace_has_bounds_that_are_merged_one_by_one_and_can_be_turned_off() {
    let server = Server::start().await;
    let id = server.adaptive(json!({})).await;
    let path = format!("/v1/destinations/{id}");
    let shown = async || server.get(&path).await.expect(StatusCode::OK)["adaptive"].clone();
    assert_eq!(shown().await, json!({"min_per_s": 0.0167, "max_per_s": null, "latency": true}));
    let patched = server.patch(&path, json!({"adaptive": {"max_per_s": 40, "latency": false}})).await;
    let bounds = json!({"min_per_s": 0.0167, "max_per_s": 40.0, "latency": false});
    assert_eq!(patched.expect(StatusCode::OK)["adaptive"], bounds);
    server.patch(&path, json!({"adaptive": {"max_per_s": null}})).await.expect(StatusCode::OK);
    assert_eq!(shown().await["max_per_s"], Value::Null);
    // Ids of one millisecond are in no order.
    server.clock.advance(Duration::from_secs(1));
    server.patch(&path, json!({"adaptive": null})).await.expect(StatusCode::OK);
    assert_eq!(shown().await, Value::Null);
    let activity = server.get(&format!("/v1/activity?destination={id}")).await.expect(StatusCode::OK);
    let row = &activity["data"][0];
    assert_eq!((&row["action"], &row["after"]), (&json!("destination.edited"), &json!({"adaptive": null})), "{row}");
    assert_eq!(row["before"]["adaptive"]["latency"], false);
    // By name: what is left out has its default.
    let declared = json!({"url": URL, "adaptive": {"min_per_s": 2}});
    let put = server.put("/v1/destinations/by-name/acme/billing", declared, &[]).await.expect(StatusCode::CREATED);
    assert_eq!(put["adaptive"], json!({"min_per_s": 2.0, "max_per_s": null, "latency": true}));
}

#[tokio::test]
async fn wrong_bounds_are_refused_together() {
    let server = Server::start().await;
    let refused = async |adaptive: Value| {
        let problem = server.post("/v1/destinations", json!({"url": URL, "adaptive": adaptive})).await.problem(422);
        let errors = problem["errors"].as_array().unwrap().iter();
        let text = |error: &Value| format!("{} {}", error["pointer"], error["detail"]).replace('"', "");
        errors.map(text).collect::<Vec<_>>()
    };
    assert_eq!(
        refused(json!({"min_per_s": 5, "max_per_s": 2})).await,
        ["/adaptive/max_per_s must be at least `min_per_s`, which is 5"]
    );
    assert_eq!(refused(json!({"min_per_s": 0, "latency": 1, "fast": true})).await.len(), 3);
    assert_eq!(refused(json!(true)).await, ["/adaptive must be an object, not a boolean"]);
}

#[tokio::test]
async fn the_pace_is_that_of_the_queue_or_else_its_last_copy() {
    let server = Server::start().await;
    let id = server.adaptive(json!({})).await;
    let path = format!("/v1/destinations/{id}");
    assert_eq!(server.get(&path).await.expect(StatusCode::OK)["adaptive_rate"], Value::Null, "nothing was sent yet");
    // The queue was lost.
    let state = AdaptiveRate::new(adaptive::Settings::default(), 64, Some(30.0), server.clock.now());
    let copy = PaceCopy { json: serde_json::to_string(&state).unwrap(), saved_at: server.clock.now() };
    let record = PaceRecord { destination_id: id.parse().unwrap(), copy: Some(copy), change: None };
    server.store.record_paces(&[record]).await.unwrap();
    let copied = server.get(&path).await.expect(StatusCode::OK)["adaptive_rate"].clone();
    assert_eq!((&copied["per_s"], &copied["reason"]), (&json!(30.0), &json!("starting")));
    server.queue.pace(id.parse().unwrap(), status(&server, 18.0));
    let expected = json!({"per_s": 18.0, "since": "2026-11-21T07:30:00.000Z", "reason": "throttled", "detail": DETAIL});
    for shown in [
        server.get(&path).await.expect(StatusCode::OK),
        server.get("/v1/destinations").await.expect(StatusCode::OK)["data"][0].clone(),
        server.get("/v1/overview").await.expect(StatusCode::OK)["data"][0].clone(),
        server.get(&format!("{path}/overview")).await.expect(StatusCode::OK),
        server.rate(&id, "").await,
    ] {
        assert_eq!(shown["adaptive_rate"], expected, "{shown}");
    }
    server.patch(&path, json!({"adaptive": null})).await.expect(StatusCode::OK);
    assert_eq!(server.get(&path).await.expect(StatusCode::OK)["adaptive_rate"], Value::Null);
}

#[tokio::test]
async fn the_backlog_drains_at_the_pace_and_the_overview_names_it() {
    let server = Server::start().await;
    let id = server.adaptive(json!({})).await;
    server.queue.pace(id.parse().unwrap(), status(&server, 18.0));
    let events: Vec<Value> = (0..90).map(|n| json!({"type": "t", "data": n})).collect();
    server.post("/v1/events/batch", json!({"events": events})).await.expect(StatusCode::ACCEPTED);
    let backlog = server.get(&format!("/v1/destinations/{id}/backlog")).await.expect(StatusCode::OK);
    assert_eq!((&backlog["effective_per_s"], &backlog["drain_eta_s"]), (&json!(18.0), &json!(5.0)), "{backlog}");
    let preview = server.post(&format!("/v1/destinations/{id}/preview"), json!({})).await.expect(StatusCode::OK);
    assert_eq!((&preview["binding"], &preview["drain_eta_s"]), (&json!("adaptive"), &json!(5.0)), "{preview}");
    // A limit below the pace binds.
    let slow = json!({"rate_limits": [{"limit": 60, "period": "minute"}]});
    let preview = server.post(&format!("/v1/destinations/{id}/preview"), slow).await.expect(StatusCode::OK);
    assert_eq!(preview["binding"], json!({"limit": 60, "period": "minute"}));
    let row = server.get(&format!("/v1/destinations/{id}/overview")).await.expect(StatusCode::OK);
    assert_eq!((&row["reason"], &row["effective_per_s"]), (&json!("adaptive"), &json!(18.0)), "{row}");
    assert_eq!(server.get("/v1/overview").await.expect(StatusCode::OK)["data"][0]["reason"], "adaptive");
}

#[tokio::test]
async fn changes_of_the_pace_are_listed_newest_first_in_a_range() {
    let server = Server::start().await;
    let id = server.adaptive(json!({})).await;
    for (ago_s, to_per_s) in [(300, 40.0), (200, 30.0), (100, 20.0)] {
        server.record_change(&id, ago_s, 100.0, to_per_s).await;
    }
    let first = server.rate(&id, "?limit=2").await;
    let change = json!({
        "at": "2026-11-21T07:28:20.000Z", "from_per_s": 100.0, "to_per_s": 20.0, "reason": "throttled", "detail": DETAIL,
    });
    assert_eq!((&first["data"][0], &first["data"][1]["to_per_s"]), (&change, &json!(30.0)));
    let next = server.rate(&id, &format!("?limit=2&cursor={}", first["next_cursor"].as_str().unwrap())).await;
    assert_eq!((&next["data"][0]["to_per_s"], &next["next_cursor"]), (&json!(40.0), &Value::Null));
    let range = "?from=2026-11-21T07:25:00Z&to=2026-11-21T07:28:20Z";
    assert_eq!(server.rate(&id, range).await["data"].as_array().unwrap().len(), 2);
    assert_eq!(first["observed"], Value::Null, "it is adaptive");
    server.get("/v1/destinations/dst_01h2xcejqtf2nbrexx3vqjhp41/rate").await.problem(404);
    server.get(&format!("/v1/destinations/{id}/rate?steps=1")).await.problem(422);
}

#[tokio::test]
async fn a_destination_without_limits_is_told_what_a_pace_would_be() {
    let server = Server::start().await;
    let id = server.destination(json!({"url": URL})).await;
    assert_eq!(server.rate(&id, "").await["observed"], Value::Null, "nothing was sent");
    for _ in 0..20 {
        server.event("t").await;
    }
    let claimed = server.claim(&id).await;
    for delivery in &claimed[..10] {
        server.settle(delivery, 200, Verdict::Delivered).await;
    }
    server.clock.advance(Duration::from_secs(10));
    let observed = server.rate(&id, "").await["observed"].clone();
    assert_eq!((&observed["per_s"], &observed["fastest_per_s"]), (&Value::Null, &json!(1.0)), "{observed}");
    for delivery in &claimed[10..14] {
        server.settle(delivery, 200, Verdict::Delivered).await;
    }
    for delivery in &claimed[14..] {
        let retry_at = server.clock.now() + Duration::from_secs(600);
        server.settle(delivery, 429, Verdict::Retry { at: retry_at }).await;
    }
    server.clock.advance(Duration::from_secs(10));
    let observed = server.rate(&id, "").await["observed"].clone();
    // It took 4 in ten seconds.
    assert_eq!((&observed["per_s"], &observed["refusing"]), (&json!(0.388), &json!(1)), "{observed}");
    let text = "In 1 of 2 stretches of 10 s the receiver refused; an adaptive pace would keep to about 0.4/s, where it \
                takes nearly all";
    assert_eq!(observed["text"], text);
    let limits = json!({"rate_limits": [{"limit": 5, "period": "second"}]});
    server.patch(&format!("/v1/destinations/{id}"), limits).await.expect(StatusCode::OK);
    assert_eq!(server.rate(&id, "").await["observed"], Value::Null, "the limit says it");
}

#[tokio::test]
async fn a_pace_that_has_fallen_is_among_what_is_wrong_now() {
    let server = Server::start().await;
    let id = server.adaptive(json!({})).await;
    server.record_change(&id, 60, 100.0, 18.0).await;
    let active = server.get("/v1/alerts/active?type=weir.rate.lowered").await.expect(StatusCode::OK);
    let data = &active["data"][0]["data"];
    assert_eq!((&data["per_s"], &data["usual_per_s"], &data["reason"]), (&json!(18.0), &json!(100.0), &json!(DETAIL)));
    server.record_change(&id, 30, 18.0, 60.0).await;
    let active = server.get("/v1/alerts/active").await.expect(StatusCode::OK);
    assert_eq!(active["data"], json!([]), "it is back at more than half");
}
