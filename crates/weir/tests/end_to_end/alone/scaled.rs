//! The scaled set-up without faults: separate processes on PostgreSQL and Redis keep the promises of the embedded
//! set-up, with any number of processes and with wrong wall clocks.

use std::{collections::HashMap, time::Duration};

use futures_util::{StreamExt as _, stream};
use serde_json::json;
use weir_test_support::FAKE_TIME;

use crate::support::{
    self, Answer, App, Fleet, Machine, Receiver, assert_cap, assert_cap_with,
    cases::{self, destination, limit},
    eventually, now,
};

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_process_holds_and_uses_every_limit() {
    let fleet = Fleet::new().await;
    cases::every_limit_is_held_and_used(&fleet.launch("serve").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scaling_workers_under_load_breaks_no_limit_and_sends_no_event_twice() {
    const RATES: [u32; 5] = [3, 20, 50, 100, 200];
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let api = fleet.launch("api").await;
    let _scheduler = fleet.launch("scheduler").await;
    let mut ids = Vec::new();
    for rate in RATES {
        let path = format!("/scaled-{rate}");
        receiver.script(&path, [Answer::status(200).after(Duration::from_millis(60))]);
        ids.push(destination(&api, &receiver, &path, limit(rate, "second")).await);
        api.events(&format!("scaled-{rate}"), rate as usize * 14).await;
    }
    let mut workers = vec![fleet.launch("worker").await];
    tokio::time::sleep(SECOND * 2).await;
    for _ in 0..5 {
        workers.push(fleet.launch("worker").await);
    }
    tokio::time::sleep(SECOND * 4).await;
    for worker in &workers {
        assert!(worker.metric("weir_permits_taken_total").await > 0.0, "every worker takes permits");
    }
    // The oldest workers are stopped, so the remaining ones are not those of the start.
    for worker in workers.drain(..5) {
        assert!(worker.terminate().await.success(), "SIGTERM ends with exit code 0");
    }
    for (rate, id) in RATES.into_iter().zip(&ids) {
        api.drained(id, Duration::from_secs(30)).await;
        let arrivals = receiver.arrivals(&format!("/scaled-{rate}"));
        assert_eq!(arrivals.len(), rate as usize * 14, "{rate}/s: each event is sent once");
        api.assert_audit_clean(id).await;
        assert_cap(&arrivals, rate as usize, SECOND);
        for delivery in api.get(&format!("/v1/deliveries?destination={id}&limit=200")).await["data"].as_array().unwrap()
        {
            assert_eq!(
                (&delivery["state"], &delivery["attempt_count"]),
                (&json!("delivered"), &json!(1)),
                "{delivery}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wall_clocks_that_are_ten_seconds_off_change_nothing() {
    let (fleet, receiver, machine) = (Fleet::new().await, Receiver::start().await, Machine::watched());
    let api = fleet.launch("api").await;
    let off = |by| [("LD_PRELOAD", FAKE_TIME), ("FAKETIME", by), ("DONT_FAKE_MONOTONIC", "1")];
    let others = [
        fleet.launch_with("scheduler", &off("+10s")).await,
        fleet.launch_with("worker", &off("-10s")).await,
        fleet.launch("scheduler").await,
        fleet.launch_with("worker", &off("+10s")).await,
    ];
    let limits = [(10, "second"), (100, "second"), (300, "minute")];
    let mut ids = Vec::new();
    for (rate, period) in limits {
        let path = format!("/off-{rate}");
        ids.push(destination(&api, &receiver, &path, limit(rate, period)).await);
        api.events(&format!("off-{rate}"), if period == "second" { rate as usize * 6 } else { 30 }).await;
    }
    for ((rate, period), id) in limits.into_iter().zip(&ids) {
        api.drained(id, Duration::from_secs(30)).await;
        let arrivals = receiver.arrivals(&format!("/off-{rate}"));
        // A limit of 300 a minute is sent as five a second.
        let (in_a_second, events) = if period == "second" { (rate, rate * 6) } else { (rate / 60, 30) };
        assert_eq!(arrivals.len(), events as usize);
        api.assert_audit_clean(id).await;
        assert_cap(&arrivals, in_a_second as usize, SECOND);
        // If the wall clocks mattered, seconds would be lost. Other tests check the use of limits more strictly.
        let used = support::utilisation(&arrivals, f64::from(in_a_second), SECOND);
        machine.judge_use(&format!("{rate} per {period}"), used, 0.8);
        let latency = api.audit(id).await["delivery_latency_ms"]["max"].as_f64().unwrap();
        assert!((0.0..9_000.0).contains(&latency), "both times are from the same clock: {latency} ms");
    }
    for other in &others {
        assert_eq!(other.status("/readyz").await, 200);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_schedulers_share_the_jobs_and_one_takes_over_from_the_other_within_five_seconds() {
    const JOBS: usize = 1_000;
    /// A thousand requests a second wait for the processor on their way, the first one of two longer than the second. The
    /// audits judge the recorded starts without slack.
    const LATE: Duration = Duration::from_millis(20);
    /// Requests to the API at one time.
    const AT_ONCE: usize = 20;
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let api = fleet.launch("api").await;
    let schedulers = [fleet.launch("scheduler").await, fleet.launch("scheduler").await];
    let _worker = fleet.launch("worker").await;
    let create = |job| {
        let url = receiver.url(&format!("/{job}"));
        api.destination(json!({"url": url, "rate_limits": limit(1, "second"), "event_types": ["shared"]}))
    };
    let ids: Vec<_> = stream::iter(0..JOBS).map(create).buffered(AT_ONCE).collect().await;
    api.events("shared", 30).await;
    eventually("every job runs", Duration::from_secs(20), async || receiver.total() >= JOBS * 2).await;
    // Two schedulers take batches of due jobs at random times. Over four seconds the share of one scheduler was once
    // 0.33, so this test counts over eight.
    let before = runs(&schedulers).await;
    tokio::time::sleep(SECOND * 8).await;
    let after = runs(&schedulers).await;
    let [first, second] = [after[0] - before[0], after[1] - before[1]];
    let share = first / (first + second);
    assert!((0.35..=0.65).contains(&share), "one scheduler made a share of {share:.2} of {} runs", first + second);

    let [survivor, killed] = schedulers;
    killed.kill().await;
    let died = now();
    let every_destination = (0..JOBS).map(|job| format!("/{job}")).collect::<Vec<_>>();
    // Requests that the killed scheduler published may still arrive. They do not show that the other one has taken
    // over.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let counts: HashMap<_, _> = every_destination.iter().map(|path| (path, receiver.count(path))).collect();
    eventually("the other runs every job", died + SECOND * 5 - now(), async || {
        every_destination.iter().all(|path| receiver.count(path) > counts[path])
    })
    .await;
    assert_eq!(survivor.status("/readyz").await, 200);
    stream::iter(&ids).map(|id| api.assert_audit_clean(id)).buffered(AT_ONCE).for_each(async |()| ()).await;
    for path in &every_destination {
        assert_cap_with(LATE, &receiver.arrivals(path), 1, SECOND);
    }
}

async fn runs(schedulers: &[App; 2]) -> [f64; 2] {
    let [first, second] = schedulers;
    [first.metric("weir_scheduler_runs_total").await, second.metric("weir_scheduler_runs_total").await]
}
