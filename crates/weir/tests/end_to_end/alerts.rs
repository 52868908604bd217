//! Alerts to operators: signed `weir.*` events, one for each change.

use std::{collections::HashSet, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use standardwebhooks::Webhook;

use crate::support::{Answer, App, Arrival, Fleet, Receiver, eventually};

/// Several passes of the alerting.
const LONG: Duration = Duration::from_secs(60);
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// An operator whose endpoint works. A second operator, whose endpoint fails, is created with it.
struct Operator {
    receiver: Receiver,
    received: usize,
}

impl Operator {
    async fn start(app: &App) -> Self {
        let receiver = Receiver::start().await;
        let settings = json!({"url": receiver.url("/operator"), "event_types": ["weir.*"], "secret": SECRET});
        app.destination(settings).await;
        receiver.script("/failing", [Answer::status(500)]);
        let failing = json!({"url": receiver.url("/failing"), "event_types": ["weir.*"], "retry": {"max_attempts": 1}, "breaker": null});
        app.destination(failing).await;
        Self { receiver, received: 0 }
    }

    /// The arrivals, each event once: an event in flight at a kill arrives again.
    fn arrived(&self) -> Vec<Arrival> {
        let mut arrived = self.receiver.arrivals("/operator");
        let mut known = HashSet::new();
        arrived.retain(|arrival| known.insert(arrival.header("webhook-id").to_owned()));
        arrived
    }

    /// Waits for the next event, which must have this type and be about this destination or group. Returns its `data`.
    async fn receives(&mut self, event_type: &str, about: &str) -> Value {
        let body = self.receives_next(event_type, about).await;
        assert_eq!(body["type"], event_type, "{body}");
        body["data"].clone()
    }

    /// Waits for the next event, which must be about this destination or limit group.
    async fn receives_next(&mut self, what: &str, about: &str) -> Value {
        eventually(what, LONG, async || self.arrived().len() > self.received).await;
        let arrival = self.arrived().swap_remove(self.received);
        self.received += 1;
        let body: Value = serde_json::from_slice(&arrival.body).unwrap();
        let data = &body["data"];
        assert!([&data["destination_id"], &data["limit_group_id"]].contains(&&json!(about)), "{body}");
        assert!(Webhook::new(SECRET).unwrap().verify(&arrival.body, &arrival.headers).is_ok(), "it is signed");
        body
    }

    /// Asserts that no other event has arrived.
    fn assert_no_further_alert(&self) {
        let arrived = self.arrived();
        let others: Vec<_> = arrived[self.received..].iter().map(|arrival| &arrival.body).collect();
        assert!(others.is_empty(), "{others:?}");
    }
}

async fn set_alerts(app: &App, alerts: Value) {
    let (status, body) = app.request(Method::PUT, "/v1/alerts", Some(alerts)).await;
    assert_eq!(status, 200, "{body}");
}

/// Alerts on the depth and on the age of a backlog, by the global thresholds and by those of the destination, until the
/// backlog clears.
async fn a_backlog_raises_an_alert_until_it_clears(app: &App, operator: &mut Operator) {
    let receiver = Receiver::start().await;
    set_alerts(app, json!({"backlog_depth": 10})).await;
    let deep = json!({"url": receiver.url("/deep"), "name": "deep", "event_types": ["deep"], "paused": true});
    let deep = app.destination(deep).await;
    // Its own threshold is far above its backlog.
    let tolerant = json!({"url": receiver.url("/tolerant"), "event_types": ["tolerant"], "paused": true,
        "alerts": {"backlog_depth": 1_000}});
    let tolerant = app.destination(tolerant).await;
    app.events("tolerant", 50).await;
    app.events("deep", 10).await;
    let high = operator.receives("weir.backlog.high", &deep).await;
    assert_eq!((&high["reasons"], &high["backlog"]["waiting"]), (&json!(["backlog_depth"]), &json!(10)), "{high}");
    assert_eq!(high["name"], "deep");
    app.patch(&deep, json!({"paused": false})).await;
    let cleared = operator.receives("weir.backlog.cleared", &deep).await;
    assert_eq!(cleared["backlog"]["waiting"], 0);

    app.patch(&tolerant, json!({"alerts": {"oldest_age_s": 1}})).await;
    let old = operator.receives("weir.backlog.high", &tolerant).await;
    assert_eq!(old["reasons"], json!(["oldest_age_s"]), "{old}");
    app.patch(&tolerant, json!({"alerts": {"oldest_age_s": null}})).await;
    operator.receives("weir.backlog.cleared", &tolerant).await;
    app.patch(&tolerant, json!({"paused": false})).await;
    set_alerts(app, json!({})).await;
}

/// At a limit of one a minute, 70 events with a TTL of an hour cannot all be sent in time.
async fn a_backlog_that_drains_after_its_ttl_raises_an_alert(app: &App, operator: &mut Operator) {
    let receiver = Receiver::start().await;
    let slow = json!({"url": receiver.url("/slow"), "event_types": ["slow"],
        "rate_limits": [{"limit": 1, "period": "minute"}]});
    let slow = app.destination(slow).await;
    let events: Vec<_> = (0..70).map(|n| json!({"type": "slow", "data": n, "ttl_s": 3_600})).collect();
    let (status, _) = app.request(Method::POST, "/v1/events/batch", Some(json!({"events": events}))).await;
    assert_eq!(status, 202);
    let high = operator.receives("weir.backlog.high", &slow).await;
    assert_eq!(high["reasons"], json!(["drain_beyond_ttl"]), "{high}");
    // The events came all at once, so they are no inflow: the backlog drains, but too late for their TTL.
    let backlog = app.get(&format!("/v1/destinations/{slow}/backlog")).await;
    let rates = ["arrivals_per_s", "drain_eta_s"].map(|field| backlog[field].as_f64().unwrap());
    assert!(backlog["drains"] == true && rates[0] > 1.0 && rates[1] > 3_600.0, "{backlog}");
    app.request(Method::DELETE, &format!("/v1/destinations/{slow}"), None).await;
}

/// Its members have a backlog together that neither has alone, and raise no alerts of their own.
async fn a_limit_group_that_is_behind_has_one_alert(app: &App, operator: &mut Operator) {
    let receiver = Receiver::start().await;
    set_alerts(app, json!({"backlog_depth": 10, "drain_beyond_ttl": false})).await;
    let group = json!({"name": "partner", "rate_limits": [{"limit": 2, "period": "minute"}]});
    let (status, group) = app.request(Method::POST, "/v1/limit-groups", Some(group)).await;
    assert_eq!(status, 201, "{group}");
    let group = group["id"].as_str().unwrap().to_owned();
    for name in ["one", "two"] {
        let member = json!({"url": receiver.url(&format!("/{name}")), "event_types": [name], "limit_group": group});
        app.destination(member).await;
        app.events(name, 8).await;
    }
    let behind = operator.receives("weir.limit_group.behind", &group).await;
    assert_eq!((&behind["members"], &behind["reasons"]), (&json!(2), &json!(["backlog_depth"])), "{behind}");
    let active = app.get("/v1/alerts/active").await;
    let counts = &active["counts"];
    let told = (&counts["weir.limit_group.behind"], &counts["weir.backlog.high"]);
    assert_eq!(told, (&json!(1), &Value::Null), "{active}");
    let rows = active["data"].as_array().unwrap();
    assert!(rows.iter().any(|row| row["limit_group_id"] == group), "{active}");
    let faster = json!({"rate_limits": [{"limit": 1_000, "period": "second"}]});
    app.request(Method::PATCH, &format!("/v1/limit-groups/{group}"), Some(faster)).await;
    let caught_up = operator.receives("weir.limit_group.caught_up", &group).await;
    assert_eq!(caught_up["members"], 0, "{caught_up}");
    set_alerts(app, json!({})).await;
}

async fn failures_raise_alerts(app: &App, operator: &mut Operator) {
    let receiver = Receiver::start().await;
    receiver.script("/dead", [Answer::status(500)]);
    let dead = json!({"url": receiver.url("/dead"), "event_types": ["dead"], "retry": {"max_attempts": 1},
        "breaker": {"consecutive": 20, "open_ms": 100}});
    let dead = app.destination(dead).await;
    app.events("dead", 3).await;
    let letters = operator.receives("weir.delivery.dead", &dead).await;
    let new = letters["new"].as_u64().unwrap();
    assert!((1..=3).contains(&new) && letters["dead_letters"] == new, "{letters}");

    app.events("dead", 20).await;
    let opened = operator.receives("weir.breaker.opened", &dead).await;
    assert!(opened["reason"].as_str().unwrap().contains("in a row") && opened["next_probe_at"].is_string(), "{opened}");
    receiver.script("/dead", [Answer::status(200)]);
    app.event("dead").await;
    operator.receives("weir.breaker.closed", &dead).await;
    // Further dead letters raise no second alert within a minute.
    app.request(Method::DELETE, &format!("/v1/destinations/{dead}"), None).await;

    receiver.script("/gone", [Answer::status(410)]);
    let gone = app.destination(json!({"url": receiver.url("/gone"), "event_types": ["gone"]})).await;
    app.event("gone").await;
    // It pauses the destination, and its delivery has failed for good: in either order.
    let both = [operator.receives_next("pause", &gone).await, operator.receives_next("dead letter", &gone).await];
    let paused = both.iter().find(|event| event["type"] == "weir.destination.paused").unwrap();
    assert_eq!(paused["data"]["reason"], "the destination answered 410 Gone", "{paused}");
    let failed = both.iter().find(|event| event["type"] == "weir.delivery.dead").unwrap();
    assert_eq!(failed["data"]["dead_letters"], 1, "{failed}");
}

/// A receiver that refuses one send in twelve, although all of them keep the limit.
async fn refusals_within_the_limit_raise_an_alert_until_they_end(app: &App, operator: &mut Operator) {
    let receiver = Receiver::start().await;
    let answers = (1..=70).map(|number| Answer::status(if number % 12 == 0 { 429 } else { 200 }));
    receiver.script("/exact", answers.chain([Answer::status(200)]));
    let exact = json!({"url": receiver.url("/exact"), "event_types": ["exact"], "retry": {"schedule_ms": [10]},
        "rate_limits": [{"limit": 20, "period": "second"}]});
    let exact = app.destination(exact).await;
    app.events("exact", 60).await;
    let refused = operator.receives("weir.destination.refused", &exact).await;
    let expected = ["jitter", "margin_ms", "second"].map(|text| json!(text));
    assert_eq!(["cause", "setting", "period"].map(|field| refused[field].clone()), expected, "{refused}");
    assert_eq!(refused["value"], 50, "{refused}");
    for page in ["health", "overview"] {
        let path = format!("/v1/destinations/{exact}/{page}");
        let shown = async || app.get(&path).await["refused_within_limit"]["cause"] == "jitter";
        eventually("the cause is shown", LONG, shown).await;
    }
    // Refusals after the edit would be refusals under the new settings.
    receiver.wait_for("/exact", 65, LONG).await;
    // What was before an edit says nothing about the new settings.
    app.patch(&exact, json!({"name": "edited"})).await;
    operator.receives("weir.destination.admitted", &exact).await;
    assert_eq!(app.get(&format!("/v1/destinations/{exact}/health")).await["refused_within_limit"], Value::Null);
}

/// Dead letters at a destination that subscribes to dead-letter alerts raise no alert.
async fn other_destinations_get_no_alerts(app: &App, operator: &Operator) {
    operator.assert_no_further_alert();
    // They are in the history, without a delivery to anyone.
    let alerts = app.get("/v1/deliveries?event_type=weir.delivery.dead").await;
    let events: HashSet<_> = alerts["data"].as_array().unwrap().iter().map(|one| one["event_id"].as_str()).collect();
    assert_eq!(events.len(), 2, "the operator's dead letters reach nobody: {alerts}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_sends_each_alert_once_also_across_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    let everything = Receiver::start().await;
    app.destination(json!({"url": everything.url("/all")})).await;
    let mut operator = Operator::start(&app).await;
    a_backlog_raises_an_alert_until_it_clears(&app, &mut operator).await;
    a_limit_group_that_is_behind_has_one_alert(&app, &mut operator).await;
    refusals_within_the_limit_raise_an_alert_until_they_end(&app, &mut operator).await;
    failures_raise_alerts(&app, &mut operator).await;
    app.kill().await;
    let app = App::start(folder.path()).await;
    a_backlog_that_drains_after_its_ttl_raises_an_alert(&app, &mut operator).await;
    other_destinations_get_no_alerts(&app, &operator).await;
    let is_own_event = |arrival: &Arrival| {
        arrival.body.starts_with(b"{\"id\":\"evt_")
            && String::from_utf8_lossy(&arrival.body).contains("\"type\":\"weir.")
    };
    assert!(!everything.arrivals("/all").iter().any(is_own_event), "`*` does not include Weir's own events");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_receiver_that_refuses_many_sends_raises_an_alert_and_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    let receiver = Receiver::start().await;
    let operator = json!({"url": receiver.url("/operator"), "event_types": ["weir.destination.refusing"]});
    app.destination(operator).await;
    let answers = (1..=60).map(|number| Answer::status(if number % 3 == 0 { 429 } else { 200 }));
    receiver.script("/quota", answers.chain([Answer::status(200)]));
    let quota = json!({"url": receiver.url("/quota"), "name": "quota", "event_types": ["quota"], "breaker": null,
        "retry": {"schedule_ms": [10, 10, 10, 10, 10, 10]}});
    let quota = app.destination(quota).await;
    app.events("quota", 40).await;
    receiver.wait_for("/operator", 1, LONG).await;
    let body: Value = serde_json::from_slice(&receiver.arrivals("/operator")[0].body).unwrap();
    let data = &body["data"];
    assert_eq!(
        (&body["type"], &data["destination_id"]),
        (&json!("weir.destination.refusing"), &json!(quota)),
        "{body}"
    );
    let [sends, refused] = ["sends", "refused"].map(|field| data[field].as_u64().unwrap());
    assert!(sends >= 20 && refused * 10 > sends, "{body}");
    assert!(data["reason"].as_str().unwrap().contains("turn on the adaptive pace, or set a limit"), "{body}");
    let listed = async || {
        let active = app.get("/v1/alerts/active?type=weir.destination.refusing").await;
        active["data"][0]["destination_id"] == json!(quota) && active["counts"]["weir.destination.refusing"] == 1
    };
    eventually("it is listed", LONG, listed).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schedulers_send_each_alert_once() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("scheduler").await, fleet.launch("worker").await];
    let mut operator = Operator::start(&api).await;
    a_backlog_raises_an_alert_until_it_clears(&api, &mut operator).await;
    a_limit_group_that_is_behind_has_one_alert(&api, &mut operator).await;
    failures_raise_alerts(&api, &mut operator).await;
    a_backlog_that_drains_after_its_ttl_raises_an_alert(&api, &mut operator).await;
    other_destinations_get_no_alerts(&api, &operator).await;
}
