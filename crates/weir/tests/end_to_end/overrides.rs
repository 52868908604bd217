//! Overrides of limits end by themselves: while nothing runs, and after a kill and a loss of Redis. Judged by what arrives
//! at the receiver, on the embedded and the scaled set-up.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{App, Fleet, Receiver, assert_cap, now};

const SECOND: Duration = Duration::from_secs(1);

async fn overridden(app: &App, id: &str, limit: u32, for_s: u64) {
    let limits = json!([{"limit": limit, "period": "second"}]);
    let body = json!({"rate_limits": limits, "for_s": for_s, "reason": "launch day"});
    let (status, answer) = app.request(Method::POST, &format!("/v1/destinations/{id}/override"), Some(body)).await;
    assert_eq!((status, &answer["override"]["rate_limits"][0]["limit"]), (200, &json!(limit)), "{answer}");
}

/// A raised limit, and the death of all processes before its end. What is sent afterwards keeps the limit below.
async fn a_raised_limit_ends_while_nothing_runs(start: impl AsyncFn() -> App, lose: impl AsyncFn()) {
    let receiver = Receiver::start().await;
    let app = start().await;
    let limits = json!([{"limit": 4, "period": "second"}]);
    let settings = json!({"url": receiver.url("/raised"), "event_types": ["raised"], "rate_limits": limits});
    let id = app.destination(settings).await;
    let end = now() + 8 * SECOND;
    overridden(&app, &id, 100, 8).await;
    app.events("raised", 400).await;
    receiver.wait_for("/raised", 20, 30 * SECOND).await;
    app.kill().await;
    lose().await;
    tokio::time::sleep_until((end + SECOND).into()).await;
    let before = receiver.count("/raised");
    let app = start().await;
    let arrivals = receiver.wait_for("/raised", before + 20, 60 * SECOND).await;
    assert_cap(&arrivals, 100, SECOND);
    assert_cap(&arrivals[before..], 4, SECOND);
    let shown = app.get(&format!("/v1/destinations/{id}")).await;
    assert_eq!((&shown["override"], &shown["rate_limits"][0]["limit"]), (&Value::Null, &json!(4)));
    app.assert_audit_clean(&id).await;
}

/// A lowered limit, with a kill before its end. It holds until the end, and then the limit below is used again.
async fn a_lowered_limit_outlives_a_kill(start: impl AsyncFn() -> App, lose: impl AsyncFn()) {
    let receiver = Receiver::start().await;
    let app = start().await;
    let limits = json!([{"limit": 100, "period": "second"}]);
    let settings = json!({"url": receiver.url("/lowered"), "event_types": ["lowered"], "rate_limits": limits});
    let id = app.destination(settings).await;
    let end = now() + 15 * SECOND;
    overridden(&app, &id, 3, 15).await;
    app.events("lowered", 300).await;
    receiver.wait_for("/lowered", 5, 30 * SECOND).await;
    app.kill().await;
    lose().await;
    let app = start().await;
    // Under the lowered limit this would take another 80 s.
    app.drained(&id, 60 * SECOND).await;
    let arrivals = receiver.arrivals("/lowered");
    let during = arrivals.iter().take_while(|arrival| arrival.at < end).count();
    assert_cap(&arrivals[..during], 3, SECOND);
    assert_cap(&arrivals, 100, SECOND);
    app.assert_audit_clean(&id).await;
    let history = app.get(&format!("/v1/destinations/{id}/history")).await;
    let limits: Vec<_> =
        history["limit_changes"].as_array().unwrap().iter().map(|of| &of["rate_limits"][0]["limit"]).collect();
    assert_eq!(limits, [&json!(100), &json!(3), &json!(100)], "nobody wrote the end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raised_limit_ends_while_no_process_runs() {
    let folder = tempfile::tempdir().unwrap();
    a_raised_limit_ends_while_nothing_runs(async || App::start(folder.path()).await, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raised_limit_ends_while_no_process_runs_at_scale() {
    let fleet = Fleet::new().await;
    let lose = async || drop(fleet.redis.ask("FLUSHALL").await);
    a_raised_limit_ends_while_nothing_runs(async || fleet.launch("serve").await, lose).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lowered_limit_holds_across_a_kill_until_its_end() {
    let folder = tempfile::tempdir().unwrap();
    a_lowered_limit_outlives_a_kill(async || App::start(folder.path()).await, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lowered_limit_holds_across_a_kill_and_a_flush_until_its_end() {
    let fleet = Fleet::new().await;
    let lose = async || drop(fleet.redis.ask("FLUSHALL").await);
    a_lowered_limit_outlives_a_kill(async || fleet.launch("serve").await, lose).await;
}
