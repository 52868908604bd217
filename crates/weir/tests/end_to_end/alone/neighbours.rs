//! A slow, dead or flooding destination does not delay the others.

use std::{collections::HashMap, time::Duration};

use reqwest::Method;
use serde_json::json;

use crate::support::{Answer, App, Fleet, Machine, Receiver, now, receiver::AnswerBody};

const HEALTHY: usize = 100;
const ROUNDS: usize = 15;

/// The time from a post to the arrival at the slowest healthy destination. It is the median of several rounds, because
/// a slow disk may delay a single round. `before` is the number of earlier rounds.
async fn slowest_of_a_round(app: &App, receiver: &Receiver, event_type: &str, before: usize) -> Duration {
    let mut rounds = Vec::new();
    for round in before + 1..=before + ROUNDS {
        let posted = now();
        let id = app.event(event_type).await;
        for healthy in 0..HEALTHY {
            receiver.wait_for(&format!("/{event_type}/{healthy}"), round, Duration::from_secs(10)).await;
        }
        let arrived_after = |healthy| {
            let arrivals = receiver.arrivals(&format!("/{event_type}/{healthy}"));
            arrivals.iter().find(|arrival| arrival.header("webhook-id") == id).expect("it arrived").at - posted
        };
        rounds.push((0..HEALTHY).map(arrived_after).max().unwrap_or_default());
    }
    rounds.sort_unstable();
    rounds[ROUNDS / 2]
}

async fn create_healthy_destinations(app: &App, receiver: &Receiver, event_type: &str) {
    for healthy in 0..HEALTHY {
        let url = receiver.url(&format!("/{event_type}/{healthy}"));
        app.destination(json!({"url": url, "event_types": [event_type]})).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_destinations_do_not_slow_down_a_hundred_healthy_ones() {
    let folder = tempfile::tempdir().unwrap();
    let (app, receiver, machine) = (App::start(folder.path()).await, Receiver::start().await, Machine::watched());
    create_healthy_destinations(&app, &receiver, "alone").await;
    let alone = slowest_of_a_round(&app, &receiver, "alone", 0).await;

    receiver.script("/hangs", [Answer::status(200).after(Duration::from_secs(30))]);
    receiver.script("/drips", [Answer::status(200).body(AnswerBody::Drip(Duration::from_millis(100)))]);
    receiver.script("/floods", [Answer::status(200).body(AnswerBody::Large(64 << 20))]);
    let bad = HashMap::from([
        ("hangs", receiver.url("/hangs")),
        ("drips", receiver.url("/drips")),
        ("floods", receiver.url("/floods")),
        ("refuses", "http://127.0.0.1:1/refuses".to_owned()),
    ]);
    for (event_type, url) in &bad {
        // The flood is limited, because the receiver that sends 64 MB shares the two cores.
        let limits = if *event_type == "floods" { json!([{"limit": 2, "period": "second"}]) } else { json!([]) };
        app.destination(json!({"url": url, "event_types": [event_type], "rate_limits": limits})).await;
        app.events(event_type, 500).await;
    }
    receiver.wait_for("/hangs", 64, Duration::from_secs(10)).await;
    create_healthy_destinations(&app, &receiver, "beside").await;
    let beside = slowest_of_a_round(&app, &receiver, "beside", 0).await;

    assert_eq!(receiver.count("/hangs"), 64, "a hanging destination holds its own max_in_flight and no more");
    let is_undisturbed = beside <= alone * 3 + Duration::from_millis(20);
    machine.judge(is_undisturbed, &format!("{alone:?} alone, {beside:?} beside bad neighbours"));
}

/// More requests hang than the worker has places. Twenty destinations hold a few places each, and one holds as many as
/// allowed.
async fn hanging_requests_leave_places_for_others(app: &App) {
    let (receiver, hanging, machine) = (Receiver::start().await, Receiver::start().await, Machine::watched());
    create_healthy_destinations(app, &receiver, "alone").await;
    let alone = slowest_of_a_round(app, &receiver, "alone", 0).await;

    hanging.script("/hangs", [Answer::status(200).after(Duration::from_secs(60))]);
    for number in 0..HANGING {
        let max_in_flight = if number == 0 { 10_000 } else { 64 };
        let settings = json!({
            "url": hanging.url("/hangs"), "event_types": ["hang"], "max_in_flight": max_in_flight, "timeout_ms": 120_000,
        });
        app.destination(settings).await;
    }
    let since = now();
    app.events("hang", EVENTS).await;
    // Crowded destinations are limited to a few places each; otherwise they would take every place.
    hanging.wait_for("/hangs", CAPACITY / 6, Duration::from_secs(20)).await;
    let beside = slowest_of_a_round(app, &receiver, "alone", ROUNDS).await;

    // The permits of a crowded destination are handed back once; then the destination is tried once a second.
    tokio::time::sleep(Duration::from_secs(2).saturating_sub(now() - since)).await;
    let crowded = app.metric("weir_permits_crowded_out_total").await;
    let most = (EVENTS + (HANGING - 1) * 64) as f64 + HANGING as f64 * ((now() - since).as_secs_f64() + 1.0);
    assert!(crowded <= most, "{crowded} permits found no place, where at most {most} were expected");
    assert!(hanging.count("/hangs") < CAPACITY, "some places are left");
    let is_undisturbed = beside <= alone * 2 + Duration::from_millis(20);
    machine.judge(is_undisturbed, &format!("{alone:?} alone, {beside:?} beside requests that hang"));
}

const CAPACITY: usize = 600;
const HANGING: usize = 21;
const EVENTS: usize = 400;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_requests_leave_places_for_others_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let capacity = CAPACITY.to_string();
    let app = App::start_with(folder.path(), &[("WEIR_WORKER_CAPACITY", &capacity)]).await;
    hanging_requests_leave_places_for_others(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_requests_leave_places_for_others_on_servers() {
    let fleet = Fleet::new().await;
    let capacity = CAPACITY.to_string();
    let app = fleet.launch_with("serve", &[("WEIR_WORKER_CAPACITY", &capacity)]).await;
    hanging_requests_leave_places_for_others(&app).await;
}

/// The requests of one tenant hang at more destinations than the worker has places.
async fn hanging_destinations_leave_places_to_another_tenant(app: &App) {
    let (receiver, hanging) = (Receiver::start().await, Receiver::start().await);
    hanging.script("/hangs", [Answer::status(200).after(Duration::from_secs(60))]);
    for _ in 0..HANGING_OF_TENANT {
        let settings = json!({"url": hanging.url("/hangs"), "event_types": ["hang"], "timeout_ms": 120_000});
        app.destination(settings).await;
    }
    app.events("hang", 3).await;
    hanging.wait_for("/hangs", HANGING_OF_TENANT * 4 / 5, Duration::from_secs(20)).await;
    // Each of these destinations is new, and gets its first event.
    for number in 0..10 {
        let event_type = format!("order{number}");
        let path = format!("/{event_type}");
        let url = receiver.url(&path);
        app.destination(json!({"url": url, "tenant": "globex", "event_types": [event_type]})).await;
        let event = json!({"type": event_type, "tenant": "globex", "data": {}});
        assert_eq!(app.request(Method::POST, "/v1/events", Some(event)).await.0, 202);
        receiver.wait_for(&path, 1, Duration::from_secs(3)).await;
    }
}

const HANGING_OF_TENANT: usize = 300;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_destinations_leave_places_to_another_tenant_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let capacity = HANGING_OF_TENANT.to_string();
    let app = App::start_with(folder.path(), &[("WEIR_WORKER_CAPACITY", &capacity)]).await;
    hanging_destinations_leave_places_to_another_tenant(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hanging_destinations_leave_places_to_another_tenant_on_servers() {
    let fleet = Fleet::new().await;
    let capacity = HANGING_OF_TENANT.to_string();
    let app = fleet.launch_with("serve", &[("WEIR_WORKER_CAPACITY", &capacity)]).await;
    hanging_destinations_leave_places_to_another_tenant(&app).await;
}
