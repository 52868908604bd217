//! A Redis whose clock is set while requests are under way, on PostgreSQL.

use std::time::Duration;

use serde_json::{Value, json};
use weir_test_support::FAKE_TIME;

use crate::{
    cli_api::finish,
    support::{Answer, App, Fleet, Receiver, assert_cap, cases::limit, eventually},
};

const SECOND: Duration = Duration::from_secs(1);
const HOUR: f64 = 3_600.0;
const YEAR: f64 = 400.0 * 24.0 * HOUR;

/// The requests take longer than the window, so that the store does not know of them yet.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_window_exceeds_its_limit_and_nothing_is_sent_twice_while_the_clock_of_redis_is_set() {
    const EVENTS: usize = 100;
    let (fleet, receiver) = (Fleet::with_clock().await, Receiver::start().await);
    receiver.script("/stepped", [Answer::status(200).after(SECOND * 3)]);
    let clock = fleet.redis.clock.as_ref().unwrap();
    let (first, _second) = (fleet.launch("serve").await, fleet.launch("serve").await);
    let id = first.destination(json!({"url": receiver.url("/stepped"), "rate_limits": limit(5, "second")})).await;
    first.events("stepped", EVENTS).await;
    receiver.wait_for("/stepped", 5, SECOND * 10).await;
    for ahead in [HOUR, 0.0, YEAR, 0.3, 0.6, 0.9, -HOUR, HOUR, 2.0 * HOUR, -YEAR, YEAR, 0.0, 0.3] {
        clock.set(ahead).unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    let before = receiver.count("/stepped");
    receiver.wait_for("/stepped", before + 5, SECOND * 10).await;
    first.drained(&id, SECOND * 60).await;
    let arrivals = receiver.arrivals("/stepped");
    assert_cap(&arrivals, 5, SECOND);
    assert_eq!(arrivals.len(), EVENTS, "none is sent twice");
    first.assert_audit_clean(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_clock_of_redis_that_is_wrong_is_a_metric_and_no_process_is_ready_with_it() {
    let (fleet, receiver) = (Fleet::with_clock().await, Receiver::start().await);
    let clock = fleet.redis.clock.as_ref().unwrap();
    clock.set(600.0).unwrap();
    let (api, worker) = (fleet.launch("serve").await, fleet.launch("worker").await);
    for process in [&api, &worker] {
        assert_eq!(process.status("/readyz").await, 503);
        let offset = process.metric("weir_clock_offset_seconds").await;
        assert!((590.0..610.0).contains(&offset), "{offset}");
    }
    // It works nevertheless, and receivers get the right time.
    let id = api.destination(json!({"url": receiver.url("/signed")})).await;
    api.events("signed", 1).await;
    receiver.wait_for("/signed", 1, SECOND * 10).await;
    api.drained(&id, SECOND * 10).await;
    let signed_at: u64 = receiver.arrivals("/signed")[0].header("webhook-timestamp").parse().unwrap();
    let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs();
    assert!(now.abs_diff(signed_at) < 60, "{signed_at} at {now}");

    clock.set(0.0).unwrap();
    for process in [&api, &worker] {
        eventually("it is ready", SECOND * 20, async || process.status("/readyz").await == 200).await;
        assert!(process.metric("weir_clock_offset_seconds").await.abs() < 1.0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_clock_is_wrong_is_named_by_the_doctor() {
    let (fleet, folder) = (Fleet::new().await, tempfile::tempdir().unwrap());
    let (api, _scheduler) = (fleet.launch("api").await, fleet.launch("scheduler").await);
    let off = [("LD_PRELOAD", FAKE_TIME), ("FAKETIME", "+40s"), ("DONT_FAKE_MONOTONIC", "1")];
    let _worker = fleet.launch_with("worker", &off).await;
    let offset_of = async |role: &str| {
        let status = api.get("/v1/status").await;
        let processes = status["processes"].as_array().unwrap().clone();
        processes.iter().find(|process| process["role"] == role).and_then(|process| process["clock_ahead_s"].as_f64())
    };
    eventually("the worker has beaten", SECOND * 10, async || offset_of("worker").await.is_some()).await;
    assert!((39.0..41.0).contains(&offset_of("worker").await.unwrap()));
    eventually("the API has beaten", SECOND * 10, async || offset_of("api").await.is_some()).await;
    assert!(offset_of("api").await.unwrap().abs() < 1.0);

    let mut command = App::command(folder.path());
    command.args(["doctor", "--json"]).env("WEIR_URL", &api.url).env("XDG_CONFIG_HOME", folder.path());
    let output = finish(command).await;
    assert_eq!(output.status.code(), Some(1));
    let diagnosis: Value = serde_json::from_slice(&output.stdout).unwrap();
    let found = diagnosis["findings"].as_array().unwrap();
    let clock = found.iter().find(|finding| finding["subject"] == "clock").expect("a finding");
    let text = clock["found"].as_str().unwrap();
    assert!(text.contains("worker") && text.contains(" on ") && text.contains("s ahead"), "{text}");
    assert!(clock["next_step"].as_str().unwrap().contains("NTP"), "{clock}");
}
