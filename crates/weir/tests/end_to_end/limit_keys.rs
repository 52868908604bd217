//! Destinations with limit keys: no window of a key or of the destination holds more than its limit, also across a pause, a
//! kill and the loss of Redis. Judged by what arrives at the receiver, on the embedded and the scaled set-up.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{App, Arrival, Fleet, Receiver, assert_cap_with};

const SECOND: Duration = Duration::from_secs(1);
/// Requests may reach a busy receiver late. The recorded starts are judged without slack.
const LATE: Duration = Duration::from_millis(500);
const OF_DESTINATION: usize = 10;
const OF_KEY: usize = 4;

/// Posts events of a customer, or for `named` with the key beside the data.
async fn post(app: &App, customer: &str, count: usize, named: bool) {
    let event = |n: usize| match named {
        true => json!({"type": "keyed", "data": {"n": n, "customer": {"id": "other"}}, "limit_key": customer}),
        false => json!({"type": "keyed", "data": {"n": n, "customer": {"id": customer}}}),
    };
    let events: Vec<_> = (0..count).map(event).collect();
    let (status, body) = app.request(Method::POST, "/v1/events/batch", Some(json!({ "events": events }))).await;
    assert_eq!(status, 202, "{body}");
}

fn of_key(arrivals: &[Arrival], key: &str) -> Vec<Arrival> {
    let customer = |arrival: &Arrival| {
        let body: Value = serde_json::from_slice(&arrival.body).unwrap();
        body["data"]["customer"]["id"].as_str().unwrap().to_owned()
    };
    arrivals.iter().filter(|arrival| customer(arrival) == key).cloned().collect()
}

async fn keys_share_the_limit_of_their_destination(start: impl AsyncFn() -> App, lose: impl AsyncFn()) {
    let receiver = Receiver::start().await;
    let app = start().await;
    let limits = |limit: usize| json!([{"limit": limit, "period": "second"}]);
    let settings = json!({
        "url": receiver.url("/keyed"), "event_types": ["keyed"], "rate_limits": limits(OF_DESTINATION),
        "key_limits": {"key": "/customer/id", "rate_limits": limits(OF_KEY)},
    });
    let id = app.destination(settings).await;
    // The events of one key do not wait behind those of another.
    post(&app, "cus_1", 60, false).await;
    post(&app, "cus_2", 20, false).await;
    // This key is not in the data.
    post(&app, "cus_3", 20, true).await;
    let arrivals = receiver.wait_for("/keyed", 30, 30 * SECOND).await;
    assert!(of_key(&arrivals, "cus_2").len() >= 6, "the keys take turns");
    app.kill().await;
    lose().await;
    let app = start().await;
    receiver.wait_for("/keyed", 60, 60 * SECOND).await;
    app.patch(&id, json!({"paused": true})).await;
    // Nothing starts any more, and what has started arrives.
    tokio::time::sleep(SECOND).await;
    let paused = receiver.count("/keyed");
    tokio::time::sleep(3 * SECOND).await;
    assert_eq!(receiver.count("/keyed"), paused, "sends of a paused destination");
    app.patch(&id, json!({"paused": false})).await;
    app.drained(&id, 120 * SECOND).await;
    let arrivals = receiver.arrivals("/keyed");
    assert!(arrivals.len() >= 100, "{} of 100", arrivals.len());
    assert_cap_with(LATE, &arrivals, OF_DESTINATION, SECOND);
    for key in ["cus_1", "cus_2", "other"] {
        assert_cap_with(LATE, &of_key(&arrivals, key), OF_KEY, SECOND);
    }
    app.assert_audit_clean(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_share_the_limit_of_their_destination_across_a_kill_and_a_pause() {
    let folder = tempfile::tempdir().unwrap();
    keys_share_the_limit_of_their_destination(async || App::start(folder.path()).await, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_share_the_limit_of_their_destination_across_a_kill_a_flush_and_a_pause_at_scale() {
    let fleet = Fleet::new().await;
    let lose = async || drop(fleet.redis.ask("FLUSHALL").await);
    keys_share_the_limit_of_their_destination(async || fleet.launch("serve").await, lose).await;
}

/// Limit keys while a backlog waits: what waits has no key, what comes has one, and after their removal the keys that wait
/// are sent under the limit of the destination alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_keys_come_and_go_while_a_backlog_waits() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let app = App::start(folder.path()).await;
    let limits = json!([{"limit": OF_DESTINATION, "period": "second"}]);
    let settings = json!({"url": receiver.url("/keyed"), "event_types": ["keyed"], "rate_limits": limits});
    let id = app.destination(settings).await;
    post(&app, "cus_1", 40, false).await;
    receiver.wait_for("/keyed", 10, 30 * SECOND).await;
    let keys = json!({"key": "/customer/id", "rate_limits": [{"limit": 1, "period": "second"}]});
    app.patch(&id, json!({"key_limits": keys})).await;
    post(&app, "cus_2", 30, false).await;
    receiver.wait_for("/keyed", 42, 60 * SECOND).await;
    let removed_at = receiver.count("/keyed");
    app.patch(&id, json!({"key_limits": null})).await;
    app.drained(&id, 20 * SECOND).await;
    let arrivals = receiver.arrivals("/keyed");
    assert_cap_with(LATE, &arrivals, OF_DESTINATION, SECOND);
    assert_cap_with(LATE, &of_key(&arrivals[..removed_at], "cus_2"), 1, SECOND);
    app.assert_audit_clean(&id).await;
}
