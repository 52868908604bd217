//! Circuit breakers: a failing destination gets one probe at a time, and normal traffic as soon as it answers.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{self, Answer, App, Receiver, eventually, fleet::Fleet};

const IN_FLIGHT: usize = 16;
const CONSECUTIVE: usize = 10;
const OPEN: Duration = Duration::from_millis(300);
/// Long enough on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Creates a destination with many fast retries.
async fn retrying_destination(app: &App, url: String, open_ms: u128) -> String {
    let settings = json!({
        "url": url,
        "max_in_flight": IN_FLIGHT,
        "retry": {"max_attempts": 100, "schedule_ms": [10]},
        "breaker": {"consecutive": CONSECUTIVE, "open_ms": open_ms, "open_max_ms": open_ms},
    });
    app.destination(settings).await
}

async fn shown(app: &App, destination: &str) -> Value {
    app.get(&format!("/v1/destinations/{destination}")).await
}

async fn opened(app: &App, destination: &str) -> Value {
    eventually("the breaker opens", TIMEOUT, async || shown(app, destination).await["breaker_state"] != "closed").await;
    shown(app, destination).await
}

/// Each of the `workers` counts failures on its own.
async fn a_dead_endpoint_gets_only_probes_until_it_recovers(app: &App, workers: usize) {
    const EVENTS: usize = 1_000;
    let receiver = Receiver::start().await;
    receiver.script("/dead", [Answer::status(500)]);
    let destination = retrying_destination(app, receiver.url("/dead"), OPEN.as_millis()).await;
    app.events("dead", EVENTS).await;
    let open = opened(app, &destination).await;
    assert_eq!(open["breaker_reason"], format!("{CONSECUTIVE} attempts in a row failed"), "{open}");
    assert!(open["next_probe_at"].is_string(), "{open}");

    let at_most = workers * CONSECUTIVE + IN_FLIGHT;
    let arrivals = receiver.wait_for("/dead", at_most + 3, TIMEOUT).await;
    // The time until the next probe begins after the answer to the one before, so other tests can only lengthen the
    // gap.
    for (earlier, later) in arrivals[at_most..].iter().zip(&arrivals[at_most + 1..]) {
        let gap = later.at - earlier.at;
        assert!(gap + support::SLACK + later.stalled + earlier.stalled >= OPEN, "two probes within {gap:?}");
    }
    let counts = app.get(&format!("/v1/destinations/{destination}/backlog")).await;
    let left: u64 = ["pending", "retrying", "delivering"].iter().filter_map(|state| counts[state].as_u64()).sum();
    assert_eq!(left, EVENTS as u64, "no delivery is given up: {counts}");

    receiver.script("/dead", [Answer::status(200)]);
    let failed = receiver.count("/dead");
    app.drained(&destination, TIMEOUT).await;
    assert_eq!(shown(app, &destination).await["breaker_state"], "closed");
    let delivered = receiver.count("/dead") - failed;
    // A probe may have been answered just before or after the count.
    assert!((EVENTS - 1..=EVENTS + 1).contains(&delivered), "{delivered} requests for {EVENTS} events");
}

/// A new URL closes the breaker at once, without a probe.
async fn another_url_closes_the_breaker(app: &App) {
    let receiver = Receiver::start().await;
    receiver.script("/wrong", [Answer::status(404)]);
    let destination = retrying_destination(app, receiver.url("/wrong"), 3_600_000).await;
    // Refused deliveries are not retried.
    app.events("moved", CONSECUTIVE + IN_FLIGHT + 10).await;
    let open = opened(app, &destination).await;
    assert_eq!(open["breaker_state"], "open", "{open}");
    let wrong = receiver.count("/wrong");
    assert!(wrong <= CONSECUTIVE + IN_FLIGHT, "{wrong} were refused");
    app.patch(&destination, json!({"url": receiver.url("/right")})).await;
    receiver.wait_for("/right", CONSECUTIVE + IN_FLIGHT + 10 - wrong, TIMEOUT).await;
    let repaired = shown(app, &destination).await;
    assert_eq!(
        (&repaired["breaker_state"], &repaired["breaker_reason"]),
        (&json!("closed"), &Value::Null),
        "{repaired}"
    );
}

/// `pause_after_s` is one second here, instead of days.
async fn a_destination_that_fails_for_long_is_paused(app: &App) {
    let settings = json!({
        "url": "http://127.0.0.1:1/gone",
        "event_types": ["hopeless"],
        "retry": {"max_attempts": 100, "schedule_ms": [10]},
        "breaker": {"consecutive": 3, "open_ms": 100, "open_max_ms": 100, "pause_after_s": 1},
    });
    let destination = app.destination(settings).await;
    app.events("hopeless", 20).await;
    eventually("it is paused", TIMEOUT, async || shown(app, &destination).await["paused"] == true).await;
    let paused = shown(app, &destination).await;
    let reason = paused["paused_reason"].as_str().unwrap();
    let failed_for = reason.strip_prefix("every attempt has failed for ").unwrap_or_else(|| panic!("{paused}"));
    assert!(failed_for.ends_with(" s"), "the real time, not days: {paused}");
    app.patch(&destination, json!({"paused": false})).await;
    let resumed = shown(app, &destination).await;
    assert_eq!((&resumed["paused_reason"], &resumed["paused"]), (&Value::Null, &json!(false)), "{resumed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_breaker_every_retry_is_sent() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    receiver.script("/dead", [Answer::status(500)]);
    let settings = json!({
        "url": receiver.url("/dead"),
        "retry": {"max_attempts": 40, "schedule_ms": [1]},
        "breaker": null,
    });
    let destination = app.destination(settings).await;
    app.event("dead").await;
    receiver.wait_for("/dead", 40, TIMEOUT).await;
    let known = shown(&app, &destination).await;
    assert_eq!((&known["breaker"], &known["breaker_state"]), (&Value::Null, &json!("closed")), "{known}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_breaker_works_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    a_dead_endpoint_gets_only_probes_until_it_recovers(&app, 1).await;
    another_url_closes_the_breaker(&app).await;
    a_destination_that_fails_for_long_is_paused(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_breaker_works_on_servers() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await, fleet.launch("worker").await];
    a_dead_endpoint_gets_only_probes_until_it_recovers(&api, 2).await;
    a_destination_that_fails_for_long_is_paused(&api).await;
}
