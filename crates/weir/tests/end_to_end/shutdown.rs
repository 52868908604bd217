//! SIGTERM while a receiver does not answer within the shutdown grace. The process does not wait for the answer: the
//! attempt gets an unknown outcome, counts in its limit, and is made again under the same `webhook-id`.

use std::time::Duration;

use serde_json::json;
use tokio::{net::TcpListener, process::Command};

use crate::support::{Answer, App, Fleet, Receiver, assert_cap, cases::limit, eventually, now};

const SECOND: Duration = Duration::from_secs(1);
const GRACE: Duration = SECOND;
/// Much longer than the grace, and shorter than the time that the recording of results may take (30 s).
const ENDS_WITHIN: Duration = Duration::from_secs(15);
/// The time from the end of a process until its claims and permits are resolved.
const RESOLVED: Duration = Duration::from_secs(10);

/// The first request gets no answer, the second gets one at once.
fn script(receiver: &Receiver, path: &str) {
    receiver.script(path, [Answer::status(200).after(SECOND * 600), Answer::status(200)]);
}

/// Ends the process with SIGTERM. It waits for the grace, and not for the answer.
async fn stop(app: App) {
    let began = now();
    assert!(app.terminate().await.success(), "SIGTERM ends with exit code 0");
    let took = now() - began;
    assert!((GRACE..ENDS_WITHIN).contains(&took), "the process ended after {took:?}");
}

/// Asserts that the only delivery was sent twice: first with an unknown outcome, then with success.
async fn assert_sent_again(app: &App, receiver: &Receiver, path: &str, destination: &str) {
    let arrivals = receiver.wait_for(path, 2, RESOLVED).await;
    assert_eq!(arrivals[0].header("webhook-id"), arrivals[1].header("webhook-id"));
    assert_cap(&arrivals, 1, SECOND);
    app.drained(destination, SECOND * 10).await;
    let page = app.get(&format!("/v1/deliveries?destination={destination}")).await;
    let delivery = app.get(&format!("/v1/deliveries/{}", page["data"][0]["id"].as_str().unwrap())).await;
    assert_eq!((&delivery["state"], &delivery["attempt_count"]), (&json!("delivered"), &json!(2)), "{delivery}");
    let outcomes: Vec<_> = delivery["attempts"].as_array().unwrap().iter().map(|attempt| &attempt["outcome"]).collect();
    assert_eq!(outcomes, ["unknown", "delivered"], "{delivery}");
    app.assert_audit_clean(destination).await;
    let audit = app.audit(destination).await;
    assert_eq!((&audit["sends"], &audit["unknown_sends_total"]), (&json!(2), &json!(1)), "{audit}");
    assert_eq!(receiver.count(path), 2, "nothing is sent a third time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_outlasts_the_grace_is_made_again_by_the_next_process() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    script(&receiver, "/slow");
    let app = App::start_with(folder.path(), &[("WEIR_SHUTDOWN_GRACE_S", "1")]).await;
    let settings = json!({"url": receiver.url("/slow"), "timeout_ms": 120_000, "rate_limits": limit(1, "second")});
    let id = app.destination(settings).await;
    app.event("slow").await;
    receiver.wait_for("/slow", 1, SECOND * 5).await;
    stop(app).await;

    let app = App::start(folder.path()).await;
    assert_sent_again(&app, &receiver, "/slow", &id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_send_that_outlasts_the_grace_of_a_worker_is_made_again_by_another() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    script(&receiver, "/slow");
    let api = fleet.launch("api").await;
    let _scheduler = fleet.launch("scheduler").await;
    let worker = fleet.launch_with("worker", &[("WEIR_SHUTDOWN_GRACE_S", "1")]).await;
    let settings = json!({"url": receiver.url("/slow"), "timeout_ms": 120_000, "rate_limits": limit(1, "second")});
    let id = api.destination(settings).await;
    api.event("slow").await;
    receiver.wait_for("/slow", 1, SECOND * 10).await;
    let _another = fleet.launch("worker").await;
    stop(worker).await;
    assert_sent_again(&api, &receiver, "/slow", &id).await;
    eventually("nothing is left", SECOND * 5, async || fleet.entries().await == "0 0").await;
}

/// The process is in the middle of its start, because its servers do not answer.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_starts_can_be_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = silent.local_addr().unwrap();
    let (database, redis) = (format!("postgres://weir@{address}/weir"), format!("redis://{address}"));
    let mut command = App::command(folder.path());
    command.arg("api").envs([("WEIR_DATABASE_URL", database.as_str()), ("WEIR_REDIS_URL", redis.as_str())]);
    let mut process = command.kill_on_drop(true).spawn().unwrap();
    let _connection = tokio::time::timeout(SECOND * 20, silent.accept()).await.expect("it connects").unwrap();
    let id = process.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-s", "TERM", &id]).status().await.unwrap().success());
    let status = tokio::time::timeout(SECOND * 5, process.wait()).await.expect("it ends at once").unwrap();
    assert!(status.success(), "{status}");
}
