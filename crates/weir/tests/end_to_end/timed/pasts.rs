//! Limits that are tried on the past: a simulation of the recorded limit says what really happened.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, App, Fleet, Machine, Receiver, cases::limit};

/// A simulated backlog begins at once. A real one begins with a run, and the workers connect: about 50 ms in one process
/// and 170 ms with PostgreSQL and Redis.
const BEGINS_LATER_MS: f64 = 250.0;

/// Two floods with a backlog each, to a receiver that refuses every sixth request.
async fn the_recorded_limit_reproduces_the_past(app: &App) {
    let (receiver, machine) = (Receiver::start().await, Machine::watched());
    let answer = |number: u32| match number % 6 {
        0 => Answer::status(503),
        _ => Answer::status(200).after(Duration::from_millis(30)),
    };
    receiver.script("/past", (1..=150).map(answer));
    let id = app
        .destination(json!({
            "url": receiver.url("/past"), "event_types": ["past"], "rate_limits": limit(20, "second"),
            "retry": {"schedule_ms": [500, 500, 500, 500, 500, 500]}, "breaker": null,
        }))
        .await;
    // Of 71 requests it takes 60, and of 143 it takes 120.
    for arrivals in [71, 143] {
        app.events("past", 60).await;
        receiver.wait_for("/past", arrivals, Duration::from_secs(30)).await;
        app.drained(&id, Duration::from_secs(30)).await;
    }
    let path = format!("/v1/destinations/{id}/simulate");
    let try_limit = async |body: Value| {
        let (status, answer) = app.request(Method::POST, &path, Some(body)).await;
        assert_eq!(status, 200, "{answer}");
        answer
    };
    let tried = try_limit(json!({})).await;
    assert_eq!((&tried["deliveries"], &tried["verdict"]), (&json!(120), &json!("drains")));
    // The range ends with the last answer, so the last delivery may still be out.
    assert!(tried["backlog_end"].as_u64() <= Some(1), "{tried}");
    for percentile in ["p50", "p99"] {
        let [simulated, recorded] =
            ["latency_ms", "recorded_latency_ms"].map(|of| tried[of][percentile].as_f64().expect("a latency"));
        let apart = (0.02 * recorded).max(20.0);
        let is_true = (-apart..=apart + BEGINS_LATER_MS).contains(&(recorded - simulated));
        machine.judge(is_true, &format!("{percentile}: {simulated} ms simulated, {recorded} ms recorded"));
    }
    // Half the limit takes twice as long.
    let half = try_limit(json!({"rate_limits": limit(10, "second")})).await;
    let longest = |answer: &Value| answer["latency_ms"]["max"].as_f64().expect("a latency");
    assert!(longest(&half) > 1.7 * longest(&tried), "{half} {tried}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recorded_limit_reproduces_the_recorded_latency() {
    let folder = tempfile::tempdir().unwrap();
    the_recorded_limit_reproduces_the_past(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_recorded_limit_reproduces_the_recorded_latency_on_servers() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await, fleet.launch("worker").await];
    the_recorded_limit_reproduces_the_past(&api).await;
}
