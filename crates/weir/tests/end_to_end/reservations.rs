//! Callers outside Weir share a limit group with its members: no window of the calls and the sends together holds more than the
//! limit. Judged by what arrives at the receiver, and by the audit, on the embedded and the scaled set-up.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::Method;
use serde_json::json;

use crate::support::{App, Fleet, Receiver, assert_cap_with, eventually};

const SECOND: Duration = Duration::from_secs(1);
/// Requests may reach a busy receiver late. The audit judges slots and recorded starts without slack.
const LATE: Duration = Duration::from_millis(500);
const LIMIT: usize = 20;
const CALLERS: usize = 50;
const EVENTS: usize = 100;

/// Makes one call in a slot of the group, and says whether it could be made in time.
async fn call(app: &App, receiver: &Receiver, group: &str) -> bool {
    let path = format!("/v1/limit-groups/{group}/reservations");
    let (status, slot) = app.request(Method::POST, &path, Some(json!({"wait_ms": 30_000, "width_ms": 500}))).await;
    assert_eq!(status, 201, "{slot}");
    let span = |field: &str| Duration::from_millis(slot[field].as_u64().unwrap());
    let answered = tokio::time::Instant::now();
    tokio::time::sleep(span("starts_in_ms")).await;
    // On a busy machine a slot may be missed; then no call is made.
    let in_time = answered.elapsed() < span("ends_in_ms");
    if in_time {
        app.http.post(receiver.url("/calls")).send().await.unwrap();
    }
    in_time
}

async fn callers_share_a_group_with_deliveries(app: App) {
    let receiver = Receiver::start().await;
    let limits = json!([{"limit": LIMIT, "period": "second"}]);
    let body = json!({"name": "stripe", "rate_limits": limits});
    let (status, group) = app.request(Method::POST, "/v1/limit-groups", Some(body)).await;
    assert_eq!(status, 201, "{group}");
    let group = group["id"].as_str().unwrap();
    let settings =
        json!({"url": receiver.url("/sends"), "event_types": ["shared"], "rate_limits": [], "limit_group": group});
    let member = app.destination(settings).await;
    // The audit counts a member 100 ms after it has joined.
    tokio::time::sleep(SECOND / 5).await;
    app.events("shared", EVENTS).await;
    receiver.wait_for("/sends", 1, SECOND * 20).await;
    let made = join_all((0..CALLERS).map(|_| call(&app, &receiver, group))).await;
    let made = made.into_iter().filter(|made| *made).count();
    assert!(made > CALLERS / 2, "{made} calls of {CALLERS}");
    app.drained(&member, SECOND * 60).await;
    let mut all = receiver.wait_for("/sends", EVENTS, SECOND).await;
    all.extend(receiver.arrivals("/calls"));
    assert_eq!(all.len(), EVENTS + made);
    assert_cap_with(LATE, &all, LIMIT, SECOND);
    // A call counts when its slot is over.
    let read = async || app.get(&format!("/v1/limit-groups/{group}/audit")).await;
    eventually("all calls are audited", SECOND * 10, async || read().await["sends"] == EVENTS + CALLERS).await;
    let audit = read().await;
    let limit = &audit["rate_limits"][0];
    assert_eq!((&limit["violations"], &limit["possible_violations"]), (&json!(0), &json!(0)), "{audit}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_a_group_with_deliveries_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    callers_share_a_group_with_deliveries(App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_share_a_group_with_deliveries_at_scale() {
    let fleet = Fleet::new().await;
    callers_share_a_group_with_deliveries(fleet.launch("serve").await).await;
}
