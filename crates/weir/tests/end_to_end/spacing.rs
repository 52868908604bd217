//! Receivers that refuse a request too soon after another: no two sends are closer than the minimum interval, and a
//! margin makes windows longer. Judged by the recorded send starts, on the embedded and the scaled set-up.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{App, Fleet, Receiver};

const WITHIN: Duration = Duration::from_secs(60);

/// Sends this many events to a destination with these settings, and returns its audit once all are delivered.
async fn audit_of(app: &App, receiver: &Receiver, name: &str, settings: Value, events: usize) -> Value {
    let id = destination(app, receiver, name, settings).await;
    app.events(name, events).await;
    app.drained(&id, WITHIN).await;
    assert_eq!(receiver.count(&format!("/{name}")), events);
    app.audit(&id).await
}

async fn destination(app: &App, receiver: &Receiver, name: &str, settings: Value) -> String {
    let mut all = json!({"url": receiver.url(&format!("/{name}")), "event_types": [name]});
    all.as_object_mut().unwrap().extend(settings.as_object().unwrap().clone());
    app.destination(all).await
}

fn violations(audit: &Value) -> u64 {
    let rows = ["min_intervals", "rate_limits"].map(|kind| audit[kind].as_array().unwrap());
    rows.into_iter().flatten().map(|row| row["violations"].as_u64().unwrap()).sum()
}

/// Asserts that no interval of the audit was broken, and returns the shortest gap of the latest one.
fn least_gap(audit: &Value) -> f64 {
    assert_eq!(violations(audit), 0, "{audit}");
    audit["min_intervals"][0]["least_gap_ms"].as_f64().unwrap()
}

fn spaced(limit: u32, period: &str, burst: u32, min_interval_ms: u32) -> Value {
    json!({
        "rate_limits": [{"limit": limit, "period": period, "burst": burst}], "min_interval_ms": min_interval_ms,
    })
}

/// Limits with and without a burst, the interval alone, and edits while a backlog drains.
async fn no_two_sends_are_closer_than_the_minimum_interval(app: &App) {
    let receiver = Receiver::start().await;
    let of = async |name: &str, settings, events| audit_of(app, &receiver, name, settings, events).await;
    let edited = async {
        let id = destination(app, &receiver, "edited", json!({"min_interval_ms": 300})).await;
        app.events("edited", 200).await;
        for (edit, seen) in [(json!(20), 3), (json!(150), 30), (Value::Null, 40), (json!(60), 60)] {
            receiver.wait_for("/edited", seen, WITHIN).await;
            app.patch(&id, json!({"min_interval_ms": edit})).await;
        }
        app.drained(&id, WITHIN).await;
        app.audit(&id).await
    };
    let (burst, alone, short, edited) = tokio::join!(
        of("burst", spaced(50, "second", 20, 40), 60),
        of("alone", json!({"min_interval_ms": 100}), 30),
        of("short", spaced(1_000, "second", 1, 5), 200),
        edited,
    );
    for (audit, interval) in [(burst, 40.0), (alone, 100.0), (short, 5.0)] {
        assert!(least_gap(&audit) >= interval, "{audit}");
    }
    // The last interval may come after the last send, so it need not have a gap.
    assert_eq!(violations(&edited), 0, "{edited}");
}

/// The span of every R + 1 sends, as a destination with a margin makes it.
async fn a_margin_makes_windows_longer(app: &App) {
    let receiver = Receiver::start().await;
    let limit = json!({"rate_limits": [{"limit": 10, "period": "second", "margin_ms": 300}]});
    let id = destination(app, &receiver, "margin", limit).await;
    app.events("margin", 40).await;
    app.drained(&id, WITHIN).await;
    let page = app.get(&format!("/v1/deliveries?destination={id}&limit=200")).await;
    let mut sends = Vec::new();
    for delivery in page["data"].as_array().unwrap() {
        let shown = app.get(&format!("/v1/deliveries/{}", delivery["id"].as_str().unwrap())).await;
        let sent_at: weir_core::Timestamp = shown["attempts"][0]["sent_at"].as_str().unwrap().parse().unwrap();
        sends.push(sent_at);
    }
    sends.sort();
    for (first, last) in sends.iter().zip(sends.iter().skip(10)) {
        // Times are shown in whole milliseconds.
        assert!(last.since(*first) >= Duration::from_millis(1_299), "{first} {last}");
    }
    app.assert_audit_clean(&id).await;
}

/// The share of the limit that a receiver gets which accepts exactly the interval.
async fn a_strict_receiver_is_used(app: &App) {
    let receiver = Receiver::start().await;
    for (name, limit, period, interval, events, least) in [
        ("two", 2, "second", 500, 12, 0.93),
        ("ten", 10, "second", 100, 60, 0.92),
        ("sixty", 60, "minute", 1_000, 8, 0.92),
    ] {
        let audit = audit_of(app, &receiver, name, spaced(limit, period, 1, interval), events).await;
        assert!(least_gap(&audit) >= f64::from(interval), "{audit}");
        let used = audit["rate_limits"][0]["utilisation"].as_f64().unwrap();
        println!("{name}: {used}, shortest gap {}", audit["min_intervals"][0]["least_gap_ms"]);
        assert!(used >= least, "{name}: {audit}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_are_never_closer_than_the_minimum_interval() {
    let folder = tempfile::tempdir().unwrap();
    no_two_sends_are_closer_than_the_minimum_interval(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sends_are_never_closer_than_the_minimum_interval_at_scale() {
    let fleet = Fleet::new().await;
    no_two_sends_are_closer_than_the_minimum_interval(&fleet.launch("serve").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_is_longer_by_the_margin() {
    let folder = tempfile::tempdir().unwrap();
    a_margin_makes_windows_longer(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_window_is_longer_by_the_margin_at_scale() {
    let fleet = Fleet::new().await;
    a_margin_makes_windows_longer(&fleet.launch("serve").await).await;
}

/// These tests judge how much of the limit is used.
mod timed {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_receiver_that_accepts_exactly_the_interval_is_used() {
        let folder = tempfile::tempdir().unwrap();
        a_strict_receiver_is_used(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_receiver_that_accepts_exactly_the_interval_is_used_at_scale() {
        let fleet = Fleet::new().await;
        a_strict_receiver_is_used(&fleet.launch("serve").await).await;
    }
}
