//! What an operator is told: signed events of Weir's own, once for each thing that happens.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/harness.rs"]
mod support;

use std::{collections::HashSet, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use support::{Answer, App, Arrival, Fleet, Receiver, eventually};

/// Some passes of the watch.
const LONG: Duration = Duration::from_secs(60);
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// An operator with an endpoint of its own, and one whose endpoint is dead.
struct Operator {
    receiver: Receiver,
    heard: usize,
}

impl Operator {
    async fn start(app: &App) -> Self {
        let receiver = Receiver::start().await;
        let settings = json!({"url": receiver.url("/operator"), "event_types": ["weir.*"], "secret": SECRET});
        app.destination(settings).await;
        receiver.script("/asleep", [Answer::status(500)]);
        let asleep = json!({"url": receiver.url("/asleep"), "event_types": ["weir.*"], "retry": {"max_attempts": 1}, "breaker": null});
        app.destination(asleep).await;
        Self { receiver, heard: 0 }
    }

    /// What has come, each event once: one that was under way when the process was killed comes again.
    fn arrived(&self) -> Vec<Arrival> {
        let mut arrived = self.receiver.arrivals("/operator");
        let mut known = HashSet::new();
        arrived.retain(|arrival| known.insert(arrival.header("webhook-id").to_owned()));
        arrived
    }

    /// The next event, which must be of this type and about this destination: its `data`.
    async fn hears(&mut self, event_type: &str, about: &str) -> Value {
        eventually(event_type, LONG, async || self.arrived().len() > self.heard).await;
        let arrival = self.arrived().swap_remove(self.heard);
        self.heard += 1;
        let body: Value = serde_json::from_slice(&arrival.body).unwrap();
        assert_eq!((&body["type"], &body["data"]["destination_id"]), (&json!(event_type), &json!(about)), "{body}");
        assert!(Webhook::new(SECRET).unwrap().verify(&arrival.body, &arrival.headers).is_ok(), "it is signed");
        body["data"].clone()
    }

    /// Nothing has come but what was heard.
    fn has_heard_all(&self) {
        let arrived = self.arrived();
        let unheard: Vec<_> = arrived[self.heard..].iter().map(|arrival| &arrival.body).collect();
        assert!(unheard.is_empty(), "{unheard:?}");
    }
}

async fn set_alerts(app: &App, alerts: Value) {
    let (status, body) = app.request(Method::PUT, "/v1/alerts", Some(alerts)).await;
    assert_eq!(status, 200, "{body}");
}

/// A backlog by its depth and by its age, under the thresholds of all and under its own, until it has cleared.
async fn a_backlog_is_told_of_until_it_has_cleared(app: &App, operator: &mut Operator) {
    let receiver = Receiver::start().await;
    set_alerts(app, json!({"backlog_depth": 10})).await;
    let deep = json!({"url": receiver.url("/deep"), "name": "deep", "event_types": ["deep"], "paused": true});
    let deep = app.destination(deep).await;
    // Its own threshold is far away.
    let patient = json!({"url": receiver.url("/patient"), "event_types": ["patient"], "paused": true,
        "alerts": {"backlog_depth": 1_000}});
    let patient = app.destination(patient).await;
    app.events("patient", 50).await;
    app.events("deep", 10).await;
    let high = operator.hears("weir.backlog.high", &deep).await;
    assert_eq!((&high["reasons"], &high["backlog"]["waiting"]), (&json!(["backlog_depth"]), &json!(10)), "{high}");
    assert_eq!(high["name"], "deep");
    app.patch(&deep, json!({"paused": false})).await;
    let cleared = operator.hears("weir.backlog.cleared", &deep).await;
    assert_eq!(cleared["backlog"]["waiting"], 0);

    app.patch(&patient, json!({"alerts": {"oldest_age_s": 1}})).await;
    let old = operator.hears("weir.backlog.high", &patient).await;
    assert_eq!(old["reasons"], json!(["oldest_age_s"]), "{old}");
    app.patch(&patient, json!({"alerts": {"oldest_age_s": null}})).await;
    operator.hears("weir.backlog.cleared", &patient).await;
    app.patch(&patient, json!({"paused": false})).await;
    set_alerts(app, json!({})).await;
}

/// At one a minute, what lives for an hour is not all sent in its time.
async fn a_backlog_that_outlives_its_events_is_told_of(app: &App, operator: &mut Operator) {
    let receiver = Receiver::start().await;
    let slow = json!({"url": receiver.url("/slow"), "event_types": ["slow"],
        "rate_limits": [{"limit": 1, "period": "minute"}]});
    let slow = app.destination(slow).await;
    let events: Vec<_> = (0..70).map(|n| json!({"type": "slow", "data": n, "ttl_s": 3_600})).collect();
    let (status, _) = app.request(Method::POST, "/v1/events/batch", Some(json!({"events": events}))).await;
    assert_eq!(status, 202);
    let high = operator.hears("weir.backlog.high", &slow).await;
    assert_eq!(high["reasons"], json!(["drain_beyond_ttl"]), "{high}");
    let backlog = app.get(&format!("/v1/destinations/{slow}/backlog")).await;
    assert_eq!(
        (&backlog["drains"], &backlog["inflow_per_s"].as_f64().map(|rate| rate > 1.0)),
        (&json!(false), &Some(true)),
        "{backlog}"
    );
    app.request(Method::DELETE, &format!("/v1/destinations/{slow}"), None).await;
}

async fn trouble_is_told_of(app: &App, operator: &mut Operator) {
    let receiver = Receiver::start().await;
    receiver.script("/dead", [Answer::status(500)]);
    let dead = json!({"url": receiver.url("/dead"), "event_types": ["dead"], "retry": {"max_attempts": 1},
        "breaker": {"consecutive": 20, "open_ms": 100}});
    let dead = app.destination(dead).await;
    app.events("dead", 3).await;
    let letters = operator.hears("weir.delivery.dead", &dead).await;
    let told = letters["new"].as_u64().unwrap();
    assert!((1..=3).contains(&told) && letters["dead_letters"] == told, "{letters}");

    app.events("dead", 20).await;
    let opened = operator.hears("weir.breaker.opened", &dead).await;
    assert!(opened["reason"].as_str().unwrap().contains("in a row") && opened["next_probe_at"].is_string(), "{opened}");
    receiver.script("/dead", [Answer::status(200)]);
    app.event("dead").await;
    operator.hears("weir.breaker.closed", &dead).await;
    // Of the others that died nobody is told within a minute.
    app.request(Method::DELETE, &format!("/v1/destinations/{dead}"), None).await;

    receiver.script("/gone", [Answer::status(410)]);
    let gone = app.destination(json!({"url": receiver.url("/gone"), "event_types": ["gone"]})).await;
    app.event("gone").await;
    let paused = operator.hears("weir.destination.paused", &gone).await;
    assert_eq!(paused["reason"], "the destination answered 410 Gone", "{paused}");
}

/// Who takes everything takes none of these, and of one who sleeps nobody is told for ever.
async fn nobody_else_is_told(app: &App, operator: &Operator) {
    operator.has_heard_all();
    let told = app.get("/v1/events?type=weir.delivery.dead").await;
    assert_eq!(told["data"].as_array().unwrap().len(), 1, "not of the dead letters of an operator: {told}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_is_told_in_one_process_and_a_restart_tells_nothing_twice() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    let everything = Receiver::start().await;
    app.destination(json!({"url": everything.url("/all")})).await;
    let mut operator = Operator::start(&app).await;
    a_backlog_is_told_of_until_it_has_cleared(&app, &mut operator).await;
    trouble_is_told_of(&app, &mut operator).await;
    app.kill().await;
    let app = App::start(folder.path()).await;
    a_backlog_that_outlives_its_events_is_told_of(&app, &mut operator).await;
    nobody_else_is_told(&app, &operator).await;
    let weirs = |arrival: &Arrival| {
        arrival.body.starts_with(b"{\"id\":\"evt_")
            && String::from_utf8_lossy(&arrival.body).contains("\"type\":\"weir.")
    };
    assert!(!everything.arrivals("/all").iter().any(weirs), "`*` is none of Weir's own");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_is_told_once_by_two_schedulers() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("scheduler").await, fleet.launch("worker").await];
    let mut operator = Operator::start(&api).await;
    a_backlog_is_told_of_until_it_has_cleared(&api, &mut operator).await;
    trouble_is_told_of(&api, &mut operator).await;
    a_backlog_that_outlives_its_events_is_told_of(&api, &mut operator).await;
    nobody_else_is_told(&api, &operator).await;
}
