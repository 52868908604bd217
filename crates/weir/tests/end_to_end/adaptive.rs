//! A receiver that takes twenty requests a second, and a destination without a limit whose pace finds that, beside a
//! destination with a fixed limit.

use std::time::Duration;

use serde_json::{Value, json};

use crate::support::{App, Fleet, Machine, Receiver, assert_cap, eventually};

/// What the receiver takes in each second of its clock.
const TAKES: usize = 20;
/// The pace has found the receiver by then: it doubles each second from ten, and each ceiling that it meets costs it a rest.
const SETTLES: Duration = Duration::from_secs(20);
const JUDGED: Duration = Duration::from_secs(20);

fn with(receiver: &Receiver, name: &str, more: Value) -> Value {
    let mut settings = json!({
        "url": receiver.url(&format!("/{name}")), "event_types": [name],
        "retry": {"max_attempts": 50, "schedule_ms": [500]},
    });
    settings.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    settings
}

async fn the_pace_of_a_receiver_is_found(app: &App) {
    let receiver = Receiver::start().await;
    receiver.police("/policed", TAKES);
    let adaptive = app.destination(with(&receiver, "policed", json!({"adaptive": {}}))).await;
    let limit = json!({"rate_limits": [{"limit": 10, "period": "second"}]});
    let fixed = app.destination(with(&receiver, "fixed", limit)).await;
    app.events("policed", 3_000).await;
    app.events("fixed", 300).await;
    tokio::time::sleep(SETTLES).await;
    let (before, machine) = (receiver.count("/policed"), Machine::watched());
    tokio::time::sleep(JUDGED).await;
    let arrivals = receiver.arrivals("/policed").split_off(before);
    let refused = arrivals.iter().filter(|arrival| arrival.status == 429).count();
    let (sent, share) = (arrivals.len(), refused as f64 / arrivals.len().max(1) as f64);
    let taken = (sent - refused) as f64 / JUDGED.as_secs_f64();
    let seen = format!("{sent} sent, {refused} refused ({share:.3}), {taken:.1}/s taken");
    println!("{seen}");
    // A cut or two in this time cost some refusals; without a pace nearly all requests are refused.
    machine.judge(share <= 0.1 && taken >= 0.6 * TAKES as f64, &seen);
    let shown = app.get(&format!("/v1/destinations/{adaptive}")).await;
    let pace = shown["adaptive_rate"]["per_s"].as_f64().unwrap();
    assert!((5.0..40.0).contains(&pace), "{shown}");
    // The neighbour has its limit, and nothing else.
    let neighbour = receiver.arrivals("/fixed");
    assert_cap(&neighbour, 10, Duration::from_secs(1));
    assert!(neighbour.len() >= 200, "{} arrivals in {:?}", neighbour.len(), SETTLES + JUDGED);
    assert!(app.get(&format!("/v1/destinations/{fixed}")).await["adaptive_rate"].is_null());
    app.assert_audit_clean(&fixed).await;
    // Refusals are no failures: the breaker is closed.
    assert_eq!(shown["breaker_state"], "closed", "{shown}");
    eventually("changes of the pace are recorded", Duration::from_secs(15), async || {
        let changes = app.get(&format!("/v1/destinations/{adaptive}/rate")).await;
        changes["data"].as_array().is_some_and(|changes| !changes.is_empty())
    })
    .await;
}

mod proofs {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_destination_without_a_limit_finds_what_its_receiver_takes() {
        let folder = tempfile::tempdir().unwrap();
        the_pace_of_a_receiver_is_found(&App::start(folder.path()).await).await;
    }

    /// Two processes with all roles: both workers report to one job.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_destination_without_a_limit_finds_what_its_receiver_takes_at_scale() {
        let fleet = Fleet::new().await;
        let (first, _second) = tokio::join!(fleet.launch("serve"), fleet.launch("serve"));
        the_pace_of_a_receiver_is_found(&first).await;
    }
}
