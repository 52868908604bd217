//! Delayed, expiring and coalesced events: none is sent before its time, after its expiry, or after a newer event of
//! its key. On the embedded and the scaled set-up.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use weir_core::Timestamp;

use crate::support::{Answer, App, Fleet, Receiver, eventually};

const SECOND: Duration = Duration::from_secs(1);
/// The time from the expiry of a delivery until it is shown as expired: that of a sweep, and more for a busy machine.
const SWEPT: Duration = Duration::from_secs(15);

/// Posts an event with these additional fields and returns the answer.
async fn post(app: &App, event_type: &str, fields: Value) -> Value {
    let mut event = json!({"type": event_type, "data": 1});
    event.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
    let (status, body) = app.request(Method::POST, "/v1/events", Some(event)).await;
    assert_eq!(status, 202, "{body}");
    body
}

/// The time by the server's clock.
async fn server_time(app: &App) -> Timestamp {
    time(&post(app, "time.of.day", json!({})).await["created_at"])
}

fn time(shown: &Value) -> Timestamp {
    shown.as_str().unwrap().parse().unwrap()
}

async fn destination(app: &App, receiver: &Receiver, name: &str, settings: Value) -> String {
    let mut all = json!({"url": receiver.url(&format!("/{name}")), "event_types": [name]});
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    app.destination(all).await
}

/// How many deliveries of a destination are in a state.
async fn count(app: &App, destination: &str, state: &str) -> usize {
    let page = app.get(&format!("/v1/deliveries?destination={destination}&state={state}&limit=200")).await;
    page["data"].as_array().unwrap().len()
}

async fn delayed_events_are_sent_at_their_time(app: &App) {
    let receiver = Receiver::start().await;
    let id = destination(app, &receiver, "delayed", json!({})).await;
    let now = server_time(app).await;
    let in_an_hour = json!({"deliver_at": now + SECOND * 3_600});
    let far = post(app, "delayed", in_an_hour).await;
    let at = now + SECOND * 2;
    let near = post(app, "delayed", json!({"deliver_at": at})).await;
    let at_once = post(app, "delayed", json!({})).await;
    let arrivals = receiver.wait_for("/delayed", 2, SECOND * 10).await;
    assert_eq!(
        (arrivals[0].header("webhook-id"), arrivals[1].header("webhook-id")),
        (at_once["id"].as_str().unwrap(), near["id"].as_str().unwrap())
    );
    eventually("the attempt is recorded", SECOND * 5, async || count(app, &id, "delivered").await == 2).await;
    let event = app.get(&format!("/v1/events/{}", near["id"].as_str().unwrap())).await;
    let delivery = app.get(&format!("/v1/deliveries/{}", event["deliveries"][0]["id"].as_str().unwrap())).await;
    let sent_at = time(&delivery["attempts"][0]["sent_at"]);
    assert!(sent_at >= at, "sent {sent_at}, which is before {at}");
    assert!(sent_at < at + SECOND, "sent {sent_at}, long after {at}: it was left to a sweep");
    let event = app.get(&format!("/v1/events/{}", far["id"].as_str().unwrap())).await;
    assert_eq!(event["deliveries"][0]["next_attempt_at"], far["deliver_at"]);
    assert_eq!(receiver.count("/delayed"), 2);
    assert!(
        app.audit(&id).await["delivery_latency_ms"]["max"].as_f64().unwrap() < 1_000.0,
        "latency is counted from `deliver_at`"
    );
}

async fn expired_events_are_never_sent(app: &App) {
    let receiver = Receiver::start().await;
    receiver.script("/failing", [Answer::status(503)]);
    let held = destination(app, &receiver, "held", json!({"paused": true})).await;
    let slow = destination(app, &receiver, "slow", json!({"rate_limits": [{"limit": 1, "period": "second"}]})).await;
    let retry = json!({"retry": {"schedule_ms": [3_600_000]}});
    let failing = destination(app, &receiver, "failing", retry).await;
    for _ in 0..3 {
        post(app, "held", json!({"ttl_s": 1})).await;
    }
    post(app, "failing", json!({"ttl_s": 1})).await;
    let slow_events = vec![json!({"type": "slow", "data": 1, "ttl_s": 3}); 20];
    let batch = json!({"events": slow_events});
    assert_eq!(app.request(Method::POST, "/v1/events/batch", Some(batch)).await.0, 202);

    eventually("waiting deliveries expire", SWEPT, async || {
        count(app, &held, "expired").await == 3
            && count(app, &failing, "expired").await == 1
            && count(app, &slow, "expired").await + count(app, &slow, "delivered").await == 20
    })
    .await;
    app.patch(&held, json!({"paused": false})).await;
    let last = post(app, "held", json!({"ttl_s": 60})).await;
    let arrivals = receiver.wait_for("/held", 1, SECOND * 5).await;
    assert_eq!((arrivals.len(), arrivals[0].header("webhook-id")), (1, last["id"].as_str().unwrap()));
    assert_eq!(receiver.count("/failing"), 1);
    let sent = receiver.count("/slow");
    assert!((2..=5).contains(&sent), "one a second in three seconds: {sent}");
    assert_eq!(count(app, &slow, "delivered").await, sent);
}

/// A thousand updates of one key, single and in batches, partly at the same time.
async fn of_a_thousand_updates_only_the_first_and_the_last_are_sent(app: &App) {
    let receiver = Receiver::start().await;
    receiver.script("/updates", [Answer::status(503).after(SECOND * 6), Answer::status(200)]);
    let settings = json!({"max_in_flight": 1, "retry": {"schedule_ms": [50]}});
    let id = destination(app, &receiver, "updates", settings).await;
    let update = |n: usize| json!({"type": "updates", "data": n, "coalesce_key": "video-7"});
    let post = async |path: &str, body| assert_eq!(app.request(Method::POST, path, Some(body)).await.0, 202);
    post("/v1/events", update(1)).await;
    receiver.wait_for("/updates", 1, SECOND * 5).await;
    let single = (2..=100).map(|n| post("/v1/events", update(n)));
    futures_util::future::join_all(single).await;
    let batches = (1..10).map(|hundred| {
        let events: Vec<_> = (1..=100).map(|n| update(hundred * 100 + n)).collect();
        post("/v1/events/batch", json!({"events": events}))
    });
    futures_util::future::join_all(batches).await;
    post("/v1/events", update(1_001)).await;
    assert_eq!(receiver.count("/updates"), 1, "the first stayed in flight");

    receiver.wait_for("/updates", 2, SECOND * 15).await;
    app.drained(&id, SECOND * 10).await;
    let arrivals = receiver.arrivals("/updates");
    let sent: Vec<Value> = arrivals.iter().map(|arrival| serde_json::from_slice(&arrival.body).unwrap()).collect();
    assert_eq!(sent.iter().map(|body| &body["data"]).collect::<Vec<_>>(), [&json!(1), &json!(1_001)]);
    assert_eq!(count(app, &id, "delivered").await, 1, "the first failed and was not retried");
    assert_eq!(superseded(app, &id).await, 1_000);
}

/// How many deliveries of a destination were superseded, over all pages.
async fn superseded(app: &App, destination: &str) -> usize {
    let path = format!("/v1/deliveries?destination={destination}&state=superseded&limit=200");
    let mut page = app.get(&path).await;
    let mut count = page["data"].as_array().unwrap().len();
    while let Some(cursor) = page["next_cursor"].as_str() {
        page = app.get(&format!("{path}&cursor={cursor}")).await;
        count += page["data"].as_array().unwrap().len();
    }
    count
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_updates_of_one_key_is_two_sends() {
    let folder = tempfile::tempdir().unwrap();
    of_a_thousand_updates_only_the_first_and_the_last_are_sent(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_burst_of_updates_of_one_key_is_two_sends_at_scale() {
    let fleet = Fleet::new().await;
    of_a_thousand_updates_only_the_first_and_the_last_are_sent(&fleet.launch("serve").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_event_is_never_sent() {
    let folder = tempfile::tempdir().unwrap();
    expired_events_are_never_sent(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_expired_event_is_never_sent_at_scale() {
    let fleet = Fleet::new().await;
    expired_events_are_never_sent(&fleet.launch("serve").await).await;
}

/// Delayed events outlive the process that took them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delayed_event_survives_the_kill_of_the_process_that_accepted_it() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver) = (App::start(folder.path()).await, Receiver::start().await);
    destination(&app, &receiver, "killed", json!({})).await;
    let at = server_time(&app).await + SECOND * 2;
    post(&app, "killed", json!({"deliver_at": at})).await;
    app.kill().await;
    let app = App::start(folder.path()).await;
    receiver.wait_for("/killed", 1, SECOND * 10).await;
    assert!(server_time(&app).await >= at);
}

/// These tests judge times.
mod timed {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_delayed_event_is_sent_when_its_time_has_come() {
        let folder = tempfile::tempdir().unwrap();
        delayed_events_are_sent_at_their_time(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_delayed_event_is_sent_when_its_time_has_come_at_scale() {
        let fleet = Fleet::new().await;
        delayed_events_are_sent_at_their_time(&fleet.launch("serve").await).await;
    }
}
