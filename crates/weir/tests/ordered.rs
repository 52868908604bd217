//! Strict order per key: one in flight at a time, the next only when the one before has ended, other keys not held up. On the
//! embedded set-up and on the scaled one, while receivers fail, and while processes are killed or stand still.

#[path = "support/harness.rs"]
mod support;

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use support::{App, Fleet, eventually, now, witness::Witness};

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

/// `count` events of each of `keys` keys, from place `from` on, the keys taking turns.
async fn post_turns(app: &App, keys: usize, from: usize, count: usize) {
    let turns = (from..from + count).flat_map(|at| (0..keys).map(move |key| event(&format!("key {key}"), at)));
    post(app, turns.collect()).await;
}

/// An ordered destination that tries again soon.
async fn destination(app: &App, witness: &Witness, settings: Value) -> String {
    let mut all = json!({
        "url": witness.url(), "event_types": ["ordered"], "ordered": true, "timeout_ms": TIMEOUT_MS,
        "retry": {"schedule_ms": [30], "max_attempts": 100}, "breaker": null,
    });
    all.as_object_mut().expect("an object").extend(settings.as_object().expect("settings").clone());
    app.destination(all).await
}

/// Mostly delivered; now and then refused, failing once or twice, or silent until the sender gives up.
fn moody(key: &str, at: usize, times: usize) -> (u16, Duration) {
    let mood = key.bytes().fold(at * 31, |sum, byte| sum.wrapping_mul(17) + usize::from(byte)) % 23;
    match (mood, times) {
        (0, _) => (400, MS * 3),
        (1, 0) | (2, 0 | 1) => (500, MS * 3),
        (3, 0) => (500, 2 * TIMEOUT_MS * MS),
        (4, 0) => (503, MS),
        (mood, _) => (200, MS * (mood as u32 % 7)),
    }
}

async fn every_key_is_delivered_in_order_and_a_stuck_one_holds_up_no_other(app: &App) {
    let witness = Witness::start(|key, at, times| match key {
        "stuck" => (500, Duration::ZERO),
        _ => moody(key, at, times),
    })
    .await;
    let limits = json!([{"limit": 400, "period": "second"}]);
    let id = destination(app, &witness, json!({"rate_limits": limits, "max_in_flight": 256})).await;
    post(app, (0..500).map(|at| event("stuck", at)).collect()).await;
    let (keys, count) = (40, 24);
    // In batches, and one by one.
    post_turns(app, keys, 0, count / 2).await;
    for at in count / 2..count / 2 + 3 {
        for key in 0..keys {
            let (status, body) = app.request(Method::POST, "/v1/events", Some(event(&format!("key {key}"), at))).await;
            assert_eq!(status, 202, "{body}");
        }
    }
    post_turns(app, keys, count / 2 + 3, count / 2 - 3).await;
    eventually("the others are done", SECOND * 40, async || witness.ended() == keys * count).await;
    let stuck = witness.seen("stuck");
    assert!(stuck.arrivals.len() > 3 && stuck.arrivals.iter().all(|(at, _)| *at == 0), "the head is tried alone");
    eventually("who waits behind is part of the backlog", SECOND * 5, async || {
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
    witness.assert_in_order();
    app.assert_audit_clean(&id).await;
}

async fn a_head_that_fails_too_often_is_skipped(app: &App) {
    let witness = Witness::start(|_, at, times| match (at, times) {
        (0, 0..4) => (500, Duration::ZERO),
        _ => (200, Duration::ZERO),
    })
    .await;
    witness.unwatch("skipped", 0);
    // After the second failure the next may come, though the first has not ended.
    witness.unwatch("skipped", 1);
    let settings = json!({"skip_after_attempts": 2, "retry": {"schedule_ms": [200], "max_attempts": 10}});
    let id = destination(app, &witness, settings).await;
    post(app, (0..4).map(|at| event("skipped", at)).collect()).await;
    app.drained(&id, SECOND * 20).await;
    let seen = witness.seen("skipped");
    let places: Vec<usize> = seen.arrivals.iter().map(|(at, _)| *at).collect();
    assert_eq!(places[..3], [0, 0, 1], "the next goes after the second failure: {places:?}");
    assert_eq!(places.iter().filter(|at| **at == 0).count(), 5, "the skipped one goes on by itself: {places:?}");
    let others: Vec<usize> = places.into_iter().filter(|at| *at > 0).collect();
    assert_eq!(others, [1, 2, 3]);
    witness.assert_in_order();
}

/// What waited for its turn goes at once when the order is given up.
async fn an_order_that_is_given_up_lets_everything_go(app: &App) {
    let witness = Witness::start(|_, at, _| if at == 0 { (500, Duration::ZERO) } else { (200, Duration::ZERO) }).await;
    (0..50).for_each(|at| witness.unwatch("free", at));
    let id = destination(app, &witness, json!({})).await;
    post(app, (0..50).map(|at| event("free", at)).collect()).await;
    eventually("the head is tried", SECOND * 10, async || witness.total() >= 3).await;
    assert_eq!(witness.seen("free").times(1), 0);
    app.patch(&id, json!({"ordered": false})).await;
    eventually("the others are sent", SECOND * 15, async || (1..50).all(|at| witness.seen("free").times(at) == 1))
        .await;
}

/// What the other tests rest on: without an order the witness sees that there is none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_not_ordered_is_seen_out_of_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let (app, witness) = (App::start(folder.path()).await, Witness::start(moody).await);
    let id = destination(&app, &witness, json!({"ordered": false})).await;
    post_turns(&app, 20, 0, 24).await;
    app.drained(&id, SECOND * 20).await;
    assert!(!witness.is_in_order());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_delivered_in_order() {
    let folder = tempfile::tempdir().expect("a folder");
    every_key_is_delivered_in_order_and_a_stuck_one_holds_up_no_other(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_key_is_delivered_in_order_at_scale() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("serve").await;
    let _others = [fleet.launch("serve").await, fleet.launch("worker").await];
    every_key_is_delivered_in_order_and_a_stuck_one_holds_up_no_other(&api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_head_is_skipped_and_an_order_given_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let app = App::start(folder.path()).await;
    // One after the other: their events have one type.
    a_head_that_fails_too_often_is_skipped(&app).await;
    an_order_that_is_given_up_lets_everything_go(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failing_head_is_skipped_and_an_order_given_up_at_scale() {
    let fleet = Fleet::new().await;
    let app = fleet.launch("serve").await;
    a_head_that_fails_too_often_is_skipped(&app).await;
    an_order_that_is_given_up_lets_everything_go(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_turn_no_order_round() {
    let folder = tempfile::tempdir().expect("a folder");
    let witness = Witness::start(moody).await;
    let mut app = App::start(folder.path()).await;
    let id = destination(&app, &witness, json!({"max_in_flight": 256})).await;
    let (keys, count) = (20, 40);
    post_turns(&app, keys, 0, count).await;
    for kill in 1..=5 {
        eventually("some are delivered", SECOND * 20, async || witness.ended() > kill * keys * count / 7).await;
        app.kill().await;
        app = App::start(folder.path()).await;
    }
    app.drained(&id, SECOND * 60).await;
    assert_eq!(witness.ended(), keys * count, "nothing is lost");
    witness.assert_in_order();
}

/// A worker is killed, and one stands still until long after its claims have been given to others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn neither_a_worker_that_dies_nor_one_that_stands_still_turns_an_order_round() {
    let (fleet, witness) = (Fleet::new().await, Witness::start(moody).await);
    let api = fleet.launch("api").await;
    let _schedulers = [fleet.launch("scheduler").await, fleet.launch("scheduler").await];
    let [killed, stopped] = [fleet.launch("worker").await, fleet.launch("worker").await];
    let id = destination(&api, &witness, json!({"max_in_flight": 256})).await;
    let (keys, count) = (30, 40);
    post_turns(&api, keys, 0, count).await;
    eventually("some are delivered", SECOND * 30, async || witness.ended() > keys * count / 10).await;
    let faulty = now();
    stopped.signal("STOP").await;
    killed.kill().await;
    let _another = fleet.launch("worker").await;
    eventually("the keys of the lost go on", SECOND * 60, async || witness.ended() == keys * count).await;
    tokio::time::sleep((SECOND * 20).saturating_sub(faulty.elapsed())).await;
    stopped.signal("CONT").await;
    post_turns(&api, keys, count, 10).await;
    eventually("the last are delivered", SECOND * 60, async || witness.ended() == keys * (count + 10)).await;
    api.drained(&id, SECOND * 90).await;
    witness.assert_in_order();
}

/// One key goes as fast as its answers and their records come. A thousand go side by side.
async fn keys_do_not_wait_for_each_other(app: &App) {
    let mut rates = Vec::new();
    for (keys, count) in [(1, 400), (1_000, 20)] {
        let witness = Witness::start(|_, _, _| (200, Duration::ZERO)).await;
        let id = destination(app, &witness, json!({"max_in_flight": 1_000})).await;
        app.patch(&id, json!({"paused": true})).await;
        post_turns(app, keys, 0, count).await;
        let began = now();
        app.patch(&id, json!({"paused": false})).await;
        eventually("all are delivered", SECOND * 120, async || witness.ended() == keys * count).await;
        rates.push((keys * count) as f64 / began.elapsed().as_secs_f64());
        witness.assert_in_order();
        app.request(Method::DELETE, &format!("/v1/destinations/{id}"), None).await;
    }
    eprintln!("one key: {:.0} a second, a thousand: {:.0}", rates[0], rates[1]);
    assert!(rates[1] > rates[0] * 5.0, "{rates:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_keys_go_side_by_side_in_one_process() {
    let folder = tempfile::tempdir().expect("a folder");
    keys_do_not_wait_for_each_other(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_keys_go_side_by_side_on_servers() {
    let fleet = Fleet::new().await;
    keys_do_not_wait_for_each_other(&fleet.launch("serve").await).await;
}
