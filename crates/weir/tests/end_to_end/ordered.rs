//! Strict order per key: one delivery in flight at a time, the next only when the previous one has ended, and no effect
//! on other keys. On the embedded and the scaled set-up, while receivers fail, and while processes are killed or
//! suspended.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{App, Fleet, eventually, now, order_receiver::OrderReceiver};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const TIMEOUT_MS: u32 = 400;

fn event(key: &str, at: usize) -> Value {
    json!({"type": "ordered", "data": {"key": key, "at": at}, "ordering_key": key})
}

async fn post(app: &App, events: Vec<Value>) {
    for part in events.chunks(1_000) {
        let (status, body) = app.request(Method::POST, "/v1/events/batch", Some(json!({ "events": part }))).await;
        assert_eq!(status, 202, "{body}");
        assert!(body["events"].as_array().expect("answers").iter().all(|event| event["error"].is_null()), "{body}");
    }
}

/// Posts `count` events for each of `keys` keys, from place `from` on, alternating between the keys.
async fn post_turns(app: &App, keys: usize, from: usize, count: usize) {
    let turns = (from..from + count).flat_map(|at| (0..keys).map(move |key| event(&format!("key {key}"), at)));
    post(app, turns.collect()).await;
}

/// Creates an ordered destination with fast retries.
async fn destination(app: &App, order_receiver: &OrderReceiver, settings: Value) -> String {
    let mut all = json!({
        "url": order_receiver.url(), "event_types": ["ordered"], "ordered": true, "timeout_ms": TIMEOUT_MS,
        "retry": {"schedule_ms": [30], "max_attempts": 100}, "breaker": null,
    });
    all.as_object_mut().expect("an object").extend(settings.as_object().expect("settings").clone());
    app.destination(all).await
}

/// Mostly 200; sometimes refused, failing once or twice, or slower than the sender's timeout.
fn varied_answer(key: &str, at: usize, times: usize) -> (u16, Duration) {
    let variant = key.bytes().fold(at * 31, |sum, byte| sum.wrapping_mul(17) + usize::from(byte)) % 23;
    match (variant, times) {
        (0, _) => (400, MS * 3),
        (1, 0) | (2, 0 | 1) => (500, MS * 3),
        (3, 0) => (500, 2 * TIMEOUT_MS * MS),
        (4, 0) => (503, MS),
        (variant, _) => (200, MS * (variant as u32 % 7)),
    }
}

async fn every_key_is_delivered_in_order_and_a_stuck_key_does_not_block_the_others(app: &App) {
    let order_receiver = OrderReceiver::start(|key, at, times| match key {
        "stuck" => (500, Duration::ZERO),
        _ => varied_answer(key, at, times),
    })
    .await;
    let limits = json!([{"limit": 400, "period": "second"}]);
    let id = destination(app, &order_receiver, json!({"rate_limits": limits, "max_in_flight": 256})).await;
    post(app, (0..500).map(|at| event("stuck", at)).collect()).await;
    let (keys, count) = (40, 24);
    // In batches and one by one.
    post_turns(app, keys, 0, count / 2).await;
    for at in count / 2..count / 2 + 3 {
        for key in 0..keys {
            let (status, body) = app.request(Method::POST, "/v1/events", Some(event(&format!("key {key}"), at))).await;
            assert_eq!(status, 202, "{body}");
        }
    }
    post_turns(app, keys, count / 2 + 3, count / 2 - 3).await;
    eventually("the others are done", SECOND * 40, async || order_receiver.ended() == keys * count).await;
    let stuck = order_receiver.seen("stuck");
    assert!(stuck.arrivals.len() > 3 && stuck.arrivals.iter().all(|(at, _)| *at == 0), "only the head is tried");
    eventually("deliveries behind the head count in the backlog", SECOND * 5, async || {
        let backlog = app.get(&format!("/v1/destinations/{id}/backlog")).await;
        let count = |state: &str| backlog[state].as_u64().expect("a count");
        count("pending") + count("retrying") + count("delivering") == 500
    })
    .await;
    let purge = format!("/v1/destinations/{id}/purge");
    eventually("the stuck key is purged", SECOND * 10, async || {
        app.request(Method::POST, &purge, Some(json!({}))).await;
        let backlog = app.get(&format!("/v1/destinations/{id}/backlog")).await;
        backlog["pending"] == 0 && backlog["retrying"] == 0 && backlog["delivering"] == 0
    })
    .await;
    order_receiver.assert_in_order();
    app.assert_audit_clean(&id).await;
}

async fn a_head_that_fails_too_often_is_skipped(app: &App) {
    let order_receiver = OrderReceiver::start(|_, at, times| match (at, times) {
        (0, 0..4) => (500, Duration::ZERO),
        _ => (200, Duration::ZERO),
    })
    .await;
    order_receiver.ignore_order("skipped", 0);
    // After the second failure of the head the next event may be sent, although the head has not ended.
    order_receiver.ignore_order("skipped", 1);
    // The third attempt of the head waits long enough for the next event to be sent before it, also on a busy machine.
    let retry = json!({"schedule_ms": [200, 2_000, 200], "max_attempts": 10});
    let settings = json!({"skip_after_attempts": 2, "retry": retry});
    let id = destination(app, &order_receiver, settings).await;
    post(app, (0..4).map(|at| event("skipped", at)).collect()).await;
    app.drained(&id, SECOND * 20).await;
    let seen = order_receiver.seen("skipped");
    let places: Vec<usize> = seen.arrivals.iter().map(|(at, _)| *at).collect();
    assert_eq!(places[..3], [0, 0, 1], "the next event is sent after the second failure: {places:?}");
    assert_eq!(places.iter().filter(|at| **at == 0).count(), 5, "the skipped head is retried on its own: {places:?}");
    let others: Vec<usize> = places.into_iter().filter(|at| *at > 0).collect();
    assert_eq!(others, [1, 2, 3]);
    order_receiver.assert_in_order();
}

/// Deliveries behind the head are released when strict order is turned off.
async fn turning_order_off_releases_everything(app: &App) {
    let order_receiver =
        OrderReceiver::start(|_, at, _| if at == 0 { (500, Duration::ZERO) } else { (200, Duration::ZERO) }).await;
    (0..50).for_each(|at| order_receiver.ignore_order("free", at));
    let id = destination(app, &order_receiver, json!({})).await;
    post(app, (0..50).map(|at| event("free", at)).collect()).await;
    eventually("the head is tried", SECOND * 10, async || order_receiver.total() >= 3).await;
    assert_eq!(order_receiver.seen("free").times(1), 0);
    app.patch(&id, json!({"ordered": false})).await;
    eventually("the others are sent", SECOND * 15, async || {
        (1..50).all(|at| order_receiver.seen("free").times(at) == 1)
    })
    .await;
}

/// Shows that the receiver of the other tests detects violations.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_strict_order_the_receiver_sees_violations() {
    let folder = tempfile::tempdir().expect("a folder");
    let (app, order_receiver) = (App::start(folder.path()).await, OrderReceiver::start(varied_answer).await);
    let id = destination(&app, &order_receiver, json!({"ordered": false})).await;
    post_turns(&app, 20, 0, 24).await;
    app.drained(&id, SECOND * 20).await;
    assert!(!order_receiver.is_in_order());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_delivered_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    every_key_is_delivered_in_order_and_a_stuck_key_does_not_block_the_others(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_delivered_in_order_at_scale() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("serve").await;
    let _others = [fleet.launch("serve").await, fleet.launch("worker").await];
    every_key_is_delivered_in_order_and_a_stuck_key_does_not_block_the_others(&api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_head_is_skipped_and_order_can_be_turned_off() {
    let folder = tempfile::tempdir().expect("a folder");
    let app = App::start(folder.path()).await;
    // One after the other, because their events have the same type.
    a_head_that_fails_too_often_is_skipped(&app).await;
    turning_order_off_releases_everything(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_head_is_skipped_and_order_can_be_turned_off_at_scale() {
    let fleet = Fleet::new().await;
    let app = fleet.launch("serve").await;
    a_head_that_fails_too_often_is_skipped(&app).await;
    turning_order_off_releases_everything(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_do_not_change_the_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let order_receiver = OrderReceiver::start(varied_answer).await;
    let mut app = App::start(folder.path()).await;
    let id = destination(&app, &order_receiver, json!({"max_in_flight": 256})).await;
    let (keys, count) = (20, 40);
    post_turns(&app, keys, 0, count).await;
    for kill in 1..=5 {
        eventually("some are delivered", SECOND * 20, async || order_receiver.ended() > kill * keys * count / 7).await;
        app.kill().await;
        app = App::start(folder.path()).await;
    }
    app.drained(&id, SECOND * 60).await;
    assert_eq!(order_receiver.ended(), keys * count, "nothing is lost");
    order_receiver.assert_in_order();
}

/// One worker is killed, and another is suspended until long after its claims were given to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_and_a_suspended_worker_do_not_change_the_order() {
    let (fleet, order_receiver) = (Fleet::new().await, OrderReceiver::start(varied_answer).await);
    let api = fleet.launch("api").await;
    let _schedulers = [fleet.launch("scheduler").await, fleet.launch("scheduler").await];
    let [killed, stopped] = [fleet.launch("worker").await, fleet.launch("worker").await];
    let id = destination(&api, &order_receiver, json!({"max_in_flight": 256})).await;
    let (keys, count) = (30, 40);
    post_turns(&api, keys, 0, count).await;
    eventually("some are delivered", SECOND * 30, async || order_receiver.ended() > keys * count / 10).await;
    let faulty = now();
    stopped.signal("STOP").await;
    killed.kill().await;
    let _another = fleet.launch("worker").await;
    eventually("the keys of the lost workers continue", SECOND * 60, async || order_receiver.ended() == keys * count)
        .await;
    tokio::time::sleep((SECOND * 20).saturating_sub(faulty.elapsed())).await;
    stopped.signal("CONT").await;
    post_turns(&api, keys, count, 10).await;
    eventually("the last are delivered", SECOND * 60, async || order_receiver.ended() == keys * (count + 10)).await;
    api.drained(&id, SECOND * 90).await;
    order_receiver.assert_in_order();
}

/// The speed of one key depends on its answers and their records. A thousand keys are delivered in parallel.
async fn keys_do_not_wait_for_each_other(app: &App) {
    let mut rates = Vec::new();
    for (keys, count) in [(1, 400), (1_000, 20)] {
        let order_receiver = OrderReceiver::start(|_, _, _| (200, Duration::ZERO)).await;
        let id = destination(app, &order_receiver, json!({"max_in_flight": 1_000})).await;
        app.patch(&id, json!({"paused": true})).await;
        post_turns(app, keys, 0, count).await;
        let began = now();
        app.patch(&id, json!({"paused": false})).await;
        eventually("all are delivered", SECOND * 120, async || order_receiver.ended() == keys * count).await;
        rates.push((keys * count) as f64 / began.elapsed().as_secs_f64());
        order_receiver.assert_in_order();
        app.request(Method::DELETE, &format!("/v1/destinations/{id}"), None).await;
    }
    eprintln!("one key: {:.0} a second, a thousand: {:.0}", rates[0], rates[1]);
    assert!(rates[1] > rates[0] * 5.0, "{rates:?}");
}

/// These tests judge times under load.
mod alone {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_thousand_keys_are_delivered_in_parallel_in_one_process() {
        let folder = tempfile::tempdir().expect("a folder");
        keys_do_not_wait_for_each_other(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_thousand_keys_are_delivered_in_parallel_on_servers() {
        let fleet = Fleet::new().await;
        keys_do_not_wait_for_each_other(&fleet.launch("serve").await).await;
    }
}
