//! SIGKILL and SIGTERM on the real process: no event is lost, only sends in flight are duplicated, and no limit is
//! exceeded.

use std::{collections::HashMap, time::Duration};

use serde_json::json;

use crate::support::{Answer, App, Receiver, assert_cap};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_answered_with_202_survives_a_kill_right_after_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let app = App::start(folder.path()).await;
    let id = app.destination(json!({"url": receiver.url("/kept"), "paused": true})).await;
    let mut accepted = Vec::new();
    let mut app = app;
    for _ in 0..3 {
        for _ in 0..20 {
            accepted.push(app.event("kept").await);
        }
        app.kill().await;
        app = App::start(folder.path()).await;
    }
    app.patch(&id, json!({"paused": false})).await;
    let arrivals = receiver.wait_for("/kept", accepted.len(), Duration::from_secs(20)).await;
    let arrived: std::collections::HashSet<_> = arrivals.iter().map(|arrival| arrival.header("webhook-id")).collect();
    assert!(accepted.iter().all(|id| arrived.contains(id.as_str())), "every accepted event arrives");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kills_while_draining_lose_nothing_break_no_limit_and_duplicate_only_sends_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    receiver.script("/drained", [Answer::status(200).after(Duration::from_millis(40))]);
    let mut app = App::start(folder.path()).await;
    let id = app
        .destination(json!({
            "url": receiver.url("/drained"),
            "rate_limits": [{"limit": 50, "period": "second"}],
            "retry": {"base_ms": 50, "cap_ms": 100},
        }))
        .await;
    app.events("drained", 400).await;
    let kills = 5;
    for kill in 1..=kills {
        receiver.wait_for("/drained", kill * 50, Duration::from_secs(20)).await;
        app.kill().await;
        app = App::start(folder.path()).await;
    }
    app.drained(&id, Duration::from_secs(40)).await;
    let arrivals = receiver.arrivals("/drained");
    assert_cap(&arrivals, 50, SECOND);
    let mut times: HashMap<&str, usize> = HashMap::new();
    for arrival in &arrivals {
        *times.entry(arrival.header("webhook-id")).or_default() += 1;
    }
    assert_eq!(times.len(), 400, "nothing is lost");
    // A kill can duplicate only the sends in flight: at 50/s, those of the 40 ms until the answer and of one commit.
    let doubled = arrivals.len() - times.len();
    assert!(doubled <= kills * 5, "{doubled} duplicates from {kills} kills");
    app.assert_audit_clean(&id).await;
    let deliveries = app.get("/v1/deliveries?state=delivered&limit=1").await;
    assert_eq!(deliveries["data"].as_array().unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_per_minute_limit_holds_across_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    let mut app = App::start(folder.path()).await;
    let settings = json!({"url": receiver.url("/minute"), "rate_limits": [{"limit": 60, "period": "minute"}]});
    let id = app.destination(settings).await;
    app.events("minute", 30).await;
    for arrived in [2, 4, 6] {
        receiver.wait_for("/minute", arrived, Duration::from_secs(10)).await;
        app.kill().await;
        app = App::start(folder.path()).await;
    }
    receiver.wait_for("/minute", 9, Duration::from_secs(15)).await;
    let arrivals = receiver.arrivals("/minute");
    // At most one a second, also across the kills.
    assert_cap(&arrivals, 1, Duration::from_secs(1));
    app.assert_audit_clean(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_graceful_stop_finishes_sends_in_flight_and_duplicates_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let receiver = Receiver::start().await;
    receiver.script("/graceful", [Answer::status(200).after(Duration::from_millis(700))]);
    let mut app = App::start(folder.path()).await;
    let settings = json!({"url": receiver.url("/graceful"), "rate_limits": [{"limit": 40, "period": "second"}]});
    let id = app.destination(settings).await;
    app.events("graceful", 120).await;
    for arrived in [30, 60] {
        receiver.wait_for("/graceful", arrived, Duration::from_secs(10)).await;
        assert!(app.terminate().await.success(), "SIGTERM ends with exit code 0");
        app = App::start(folder.path()).await;
    }
    app.drained(&id, Duration::from_secs(30)).await;
    let arrivals = receiver.arrivals("/graceful");
    assert_eq!(arrivals.len(), 120, "without a crash nothing is sent twice");
    assert_cap(&arrivals, 40, SECOND);
    let deliveries = app.get("/v1/deliveries?limit=200").await;
    for delivery in deliveries["data"].as_array().unwrap() {
        assert_eq!((&delivery["state"], &delivery["attempt_count"]), (&json!("delivered"), &json!(1)), "{delivery}");
    }
}
