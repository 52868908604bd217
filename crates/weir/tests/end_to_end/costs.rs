//! Limits in costs: no window holds events whose costs add up to more than the limit, also across kills and the loss of
//! Redis. Judged by what arrives at the receiver, on the embedded and the scaled set-up.

use std::{collections::BTreeMap, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{App, Fleet, Receiver};

const SECOND: Duration = Duration::from_secs(1);
const WINDOW: Duration = Duration::from_secs(30);
const LIMIT: u64 = 1_000;

/// Posts events with these costs, which are their data as well.
async fn post(app: &App, costs: impl IntoIterator<Item = u32>) {
    let events: Vec<_> = costs.into_iter().map(|cost| json!({"type": "points", "data": cost, "cost": cost})).collect();
    let (status, answer) = app.request(Method::POST, "/v1/events/batch", Some(json!({"events": events}))).await;
    assert_eq!(status, 202, "{answer}");
}

/// Half of a window's points, the death of the process, and more than the other half takes.
async fn a_limit_in_costs_is_kept_and_used_across_kills(start: impl AsyncFn() -> App, lose: impl AsyncFn()) {
    let receiver = Receiver::start().await;
    let app = start().await;
    let id = app
        .destination(json!({
            "url": receiver.url("/points"), "event_types": ["points"],
            "rate_limits": [{"limit": LIMIT, "window_s": WINDOW.as_secs(), "unit": "cost"}],
        }))
        .await;
    post(&app, [200, 100, 150, 50]).await;
    app.drained(&id, SECOND * 30).await;
    app.kill().await;
    lose().await;
    let app = start().await;
    // The records say that half of the window is left: the first three fit.
    post(&app, [300, 150, 50, 400, 1, 599]).await;
    receiver.wait_for("/points", 7, SECOND * 22).await;
    app.kill().await;
    lose().await;
    let app = start().await;
    app.drained(&id, WINDOW * 4).await;
    app.assert_audit_clean(&id).await;
    // A second of slack: a busy receiver sees a request late.
    let arrivals = receiver.arrivals("/points");
    let cost = |body: &[u8]| serde_json::from_slice::<Value>(body).unwrap()["data"].as_u64().unwrap();
    let points: Vec<_> = arrivals.iter().map(|arrival| (arrival.at, cost(&arrival.body))).collect();
    for (index, (from, _)) in points.iter().enumerate() {
        let within = points[index..].iter().take_while(|(at, _)| at.duration_since(*from) < WINDOW - SECOND);
        let sum: u64 = within.map(|(_, cost)| cost).sum();
        assert!(sum <= LIMIT, "{sum} points in a window from arrival {index}");
    }
    let mut by_cost = BTreeMap::new();
    points.iter().for_each(|(_, cost)| *by_cost.entry(*cost).or_insert(0) += 1);
    assert_eq!(by_cost.len(), 8, "each cost has arrived: {by_cost:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_in_costs_holds_across_kills() {
    let folder = tempfile::tempdir().unwrap();
    a_limit_in_costs_is_kept_and_used_across_kills(async || App::start(folder.path()).await, async || ()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_limit_in_costs_holds_across_kills_and_flushes_at_scale() {
    let fleet = Fleet::new().await;
    let lose = async || drop(fleet.redis.ask("FLUSHALL").await);
    a_limit_in_costs_is_kept_and_used_across_kills(async || fleet.launch("serve").await, lose).await;
}

/// What waits with a cost above a lowered limit can never be sent. It ends, with the reason, and the others are sent.
async fn a_limit_that_is_lowered_below_a_waiting_cost_ends_the_delivery(app: &App) {
    let receiver = Receiver::start().await;
    let limits = |limit: u64| json!([{"limit": limit, "period": "second", "unit": "cost"}]);
    let settings = json!({
        "url": receiver.url("/points"), "event_types": ["points"], "rate_limits": limits(900), "paused": true,
    });
    let id = app.destination(settings).await;
    post(app, [800, 20, 30]).await;
    let edit = json!({"rate_limits": limits(100), "paused": false});
    app.patch(&id, edit).await;
    receiver.wait_for("/points", 2, SECOND * 30).await;
    app.drained(&id, SECOND * 30).await;
    let dead = app.get(&format!("/v1/deliveries?destination={id}&state=dead")).await;
    assert_eq!(dead["data"].as_array().map(Vec::len), Some(1), "{dead}");
    let error = dead["data"][0]["last_error"].as_str().unwrap();
    assert_eq!(error, "not sent: its cost of 800 is above the limit of 100 per second of the destination");
    assert_eq!(dead["data"][0]["cost"], 800);
    // And nobody posts another one.
    let event = json!({"type": "points", "data": 1, "cost": 101});
    let (status, refused) = app.request(Method::POST, "/v1/events", Some(event)).await;
    assert_eq!((status, &refused["errors"][0]["pointer"]), (422, &json!("/cost")), "{refused}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lowered_limit_ends_what_costs_more() {
    let folder = tempfile::tempdir().unwrap();
    a_limit_that_is_lowered_below_a_waiting_cost_ends_the_delivery(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lowered_limit_ends_what_costs_more_at_scale() {
    let fleet = Fleet::new().await;
    a_limit_that_is_lowered_below_a_waiting_cost_ends_the_delivery(&fleet.launch("serve").await).await;
}
