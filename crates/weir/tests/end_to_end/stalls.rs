//! Destinations that may send and do not: every cause is seen by processes that have not failed, within the time that
//! the alert allows.

#[cfg(target_os = "linux")]
mod hidden;

use std::time::Duration;

use serde_json::{Value, json};
use weir_test_support::SlowLink;

use crate::support::{
    Answer, App, Fleet, Receiver,
    cases::{destination, limit},
    eventually,
};

const SECOND: Duration = Duration::from_secs(1);
/// From the fault until the gauge: a start is 10 s late, and up to 4 s pass between the last attempt, the passes, and this
/// look. With a scrape every 10 s and rules every 5 s, the alert then fires within 30 s. The rest is for a busy machine.
const SEEN: Duration = Duration::from_secs(25);
/// A process that died is declared dead, and the gauges follow.
const OVER: Duration = Duration::from_secs(30);

async fn stalled(app: &App, cause: &str) -> f64 {
    app.metric(&format!("weir_destinations_stalled{{cause=\"{cause}\"}}")).await
}

/// Waits until these processes see stalled destinations by this cause.
async fn see(apps: &[&App], cause: &str, destinations: f64) {
    for app in apps {
        let what = format!("{destinations} stalled by {cause}");
        eventually(&what, SEEN, async || stalled(app, cause).await == destinations).await;
    }
}

async fn sees_none(app: &App) {
    eventually("no stall", OVER, async || app.metric("weir_destinations_stalled").await == 0.0).await;
    eventually("no late start", OVER, async || app.metric("weir_start_lateness_seconds").await == 0.0).await;
}

async fn alerts(api: &App) -> Vec<Value> {
    let events = api.get("/v1/events?type=weir.*&include=data").await;
    let of_stalls =
        |event: &&Value| ["stalled", "recovered"].iter().any(|end| event["type"].as_str().unwrap().ends_with(end));
    events["data"]
        .as_array()
        .unwrap()
        .iter()
        .filter(of_stalls)
        .rev()
        .map(|event| json!([event["type"], event["data"]["cause"]]))
        .collect()
}

/// A fleet whose destination sends ten a second, with a long backlog.
async fn sending(fleet: &Fleet, path: &str) -> (App, App, App, Receiver, String) {
    let (api, scheduler, worker) =
        (fleet.launch("api").await, fleet.launch("scheduler").await, fleet.launch("worker").await);
    let receiver = Receiver::start().await;
    let id = destination(&api, &receiver, &format!("/{path}"), limit(10, "second")).await;
    api.events(path, 2_000).await;
    receiver.wait_for(&format!("/{path}"), 20, SECOND * 20).await;
    (api, scheduler, worker, receiver, id)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_are_away_are_seen_reported_and_over_when_they_are_back() {
    let fleet = Fleet::new().await;
    let (api, scheduler) = (fleet.launch("api").await, fleet.launch("scheduler").await);
    let receiver = Receiver::start().await;
    api.destination(json!({"url": receiver.url("/operator"), "event_types": ["weir.*"]})).await;
    let id = destination(&api, &receiver, "/few", limit(10, "second")).await;
    // One event, which is claimed at once and then waits for a worker: the store has no backlog.
    api.event("few").await;
    see(&[&api, &scheduler], "no_worker", 1.0).await;
    let row = api.get(&format!("/v1/destinations/{id}/overview")).await;
    assert_eq!((&row["reason"], &row["backlog"]), (&json!("no_worker"), &json!(0)), "{row}");
    eventually("the alert", OVER, async || !alerts(&api).await.is_empty()).await;
    // One alert, of the installation: in its history, and for the tenant that subscribes.
    let stalled = json!(["weir.installation.stalled", "no_worker"]);
    assert_eq!(alerts(&api).await, [stalled.clone(), stalled]);
    let active = api.get("/v1/alerts/active").await;
    assert_eq!(active["data"].as_array().unwrap().len(), 1, "{active}");
    assert_eq!(active["data"][0]["data"]["reason"], "no worker runs; 1 destination waits");

    let _worker = fleet.launch("worker").await;
    receiver.wait_for("/few", 1, SECOND * 60).await;
    for app in [&api, &scheduler] {
        sees_none(app).await;
    }
    let recovered = json!(["weir.installation.recovered", null]);
    eventually("the end", OVER, async || alerts(&api).await.contains(&recovered)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_dies_during_a_backlog_is_seen() {
    let fleet = Fleet::new().await;
    let (api, scheduler, worker, receiver, id) = sending(&fleet, "dies").await;
    assert_eq!(api.metric("weir_destinations_stalled").await, 0.0);
    worker.kill().await;
    see(&[&api, &scheduler], "no_worker", 1.0).await;
    let preview =
        api.request(reqwest::Method::POST, &format!("/v1/destinations/{id}/preview"), Some(json!({}))).await.1;
    assert_eq!((&preview["fault"], &preview["now"]["drain_eta_s"]), (&json!("no_worker"), &Value::Null), "{preview}");
    let _worker = fleet.launch("worker").await;
    receiver.wait_for("/dies", receiver.count("/dies") + 10, SECOND * 60).await;
    sees_none(&scheduler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_that_is_away_is_seen() {
    let mut fleet = Fleet::new().await;
    let (api, scheduler, _worker, receiver, _) = sending(&fleet, "redis").await;
    fleet.redis.kill().await.unwrap();
    see(&[&api, &scheduler], "queue_away", 1.0).await;
    fleet.redis.start_again().await.unwrap();
    receiver.wait_for("/redis", receiver.count("/redis") + 10, SECOND * 60).await;
    sees_none(&scheduler).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn schedulers_that_are_away_are_seen_by_the_api() {
    let fleet = Fleet::new().await;
    let (api, scheduler, _worker, _receiver, _) = sending(&fleet, "scheduler").await;
    scheduler.kill().await;
    see(&[&api], "no_scheduler", 1.0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_whose_places_are_full_are_seen() {
    let fleet = Fleet::new().await;
    let (api, scheduler) = (fleet.launch("api").await, fleet.launch("scheduler").await);
    let _worker = fleet.launch_with("worker", &[("WEIR_WORKER_CAPACITY", "16")]).await;
    let receiver = Receiver::start().await;
    // More receivers that hang than places.
    for number in 0..40 {
        let path = format!("/hangs-{number}");
        receiver.script(&path, vec![Answer::status(200).after(SECOND * 50); 4]);
        let settings = json!({
            "url": receiver.url(&path), "event_types": ["hangs"], "timeout_ms": 60_000, "max_in_flight": 4, "breaker": null,
        });
        api.destination(settings).await;
    }
    api.events("hangs", 4).await;
    let full = async |app: &App| stalled(app, "workers_full").await > 10.0;
    eventually("full workers", SEEN, async || full(&api).await && full(&scheduler).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn permits_that_a_worker_takes_and_does_not_start_are_seen() {
    let fleet = Fleet::new().await;
    let link = SlowLink::to(fleet.redis.url().trim_start_matches("redis://").parse().unwrap()).await.unwrap();
    let (api, scheduler) = (fleet.launch("api").await, fleet.launch("scheduler").await);
    let redis = format!("redis://127.0.0.1:{}", link.port());
    let _worker = fleet.launch_with("worker", &[("WEIR_REDIS_URL", &redis)]).await;
    let receiver = Receiver::start().await;
    for path in ["/one", "/two", "/three"] {
        destination(&api, &receiver, path, limit(10, "second")).await;
        api.events(path.trim_start_matches('/'), 1_000).await;
    }
    receiver.wait_for("/three", 10, SECOND * 20).await;
    // It beats in the store, and what it asks of Redis is answered in minutes.
    link.set_round_trip(SECOND * 120);
    eventually("three stalls", SEEN, async || scheduler.metric("weir_destinations_stalled").await == 3.0).await;
    assert_eq!(stalled(&scheduler, "no_worker").await + stalled(&scheduler, "queue_away").await, 0.0);
}

#[tokio::test]
async fn receivers_that_are_slow_silent_or_at_their_limits_are_no_stalls() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    let receiver = Receiver::start().await;
    receiver.script("/hangs", vec![Answer::status(200).after(SECOND * 40); 20]);
    receiver.script("/answers-late", [Answer::status(200).after(SECOND / 7)]);
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let hangs = json!({
        "url": receiver.url("/hangs"), "event_types": ["hangs"], "timeout_ms": 60_000, "max_in_flight": 4, "breaker": null,
    });
    app.destination(hangs).await;
    destination(&app, &receiver, "/seldom", limit(1, "minute")).await;
    // It has room for a moment after each answer.
    let late = json!({
        "url": receiver.url("/answers-late"), "event_types": ["late"], "max_in_flight": 1,
        "rate_limits": limit(100, "second"),
    });
    app.destination(late).await;
    app.events("late", 1_000).await;
    let paused = destination(&app, &receiver, "/paused", limit(10, "second")).await;
    app.patch(&paused, json!({"paused": true})).await;
    // TCP connects, and TLS never answers.
    let url = format!("https://{}/silent", silent.local_addr().unwrap());
    app.destination(json!({"url": url, "event_types": ["silent"], "max_in_flight": 2, "breaker": null})).await;
    for event_type in ["hangs", "seldom", "paused", "silent"] {
        app.events(event_type, 20).await;
    }
    receiver.wait_for("/hangs", 4, SECOND * 10).await;
    // Longer than the threshold of a stall and the time to connect.
    for _ in 0..50 {
        tokio::time::sleep(SECOND / 2).await;
        assert_eq!(app.metric("weir_destinations_stalled").await, 0.0);
        assert_eq!(app.metric("weir_destinations_behind").await, 0.0);
    }
    let row = |name: &str, overview: &Value| {
        let rows = overview["data"].as_array().unwrap();
        let found = rows.iter().find(|row| row["destination"]["url"].as_str().unwrap().ends_with(name));
        found.unwrap()["reason"].clone()
    };
    let overview = app.get("/v1/overview").await;
    assert_eq!(row("/hangs", &overview), "slow");
    assert_eq!(row("/answers-late", &overview), "slow");
    assert_eq!(row("/seldom", &overview), "limit");
}
