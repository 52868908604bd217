//! A new version goes out: every process is replaced by another, one after another, under load.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "support/harness.rs"]
mod support;

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;
use support::{Answer, App, Fleet, Receiver, assert_cap, cases::limit};

const SECOND: Duration = Duration::from_secs(1);

/// Posts an event every few milliseconds to whatever API there is at the time, again until it has the answer; the ids.
async fn produce(api: Arc<Mutex<String>>, stop: Arc<AtomicBool>) -> Vec<String> {
    let http = reqwest::Client::builder().no_proxy().build().unwrap();
    let mut ids = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let event = json!({"type": "rolled", "data": ids.len(), "idempotency_key": format!("rolled-{}", ids.len())});
        loop {
            let url = format!("{}/v1/events", api.lock().unwrap());
            // One that stops refuses, or has gone.
            match http.post(url).json(&event).send().await {
                Ok(answer) if answer.status().is_success() => {
                    let event: serde_json::Value = answer.json().await.unwrap();
                    ids.push(event["id"].as_str().unwrap().to_owned());
                    break;
                }
                Ok(answer) => assert!(answer.status().is_server_error(), "{answer:?}"),
                Err(error) => assert!(error.is_request() || error.is_connect() || error.is_body(), "{error:?}"),
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    ids
}

/// As a Deployment does it: the new one first, then the old one is told to go.
async fn replace(fleet: &Fleet, role: &str, old: App) -> App {
    let new = fleet.launch(role).await;
    assert!(old.terminate().await.success(), "SIGTERM ends {role} with exit code 0");
    new
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_every_process_under_load_loses_doubles_and_exceeds_nothing() {
    const RATES: [u32; 3] = [20, 60, 150];
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let mut api = fleet.launch("api").await;
    let mut schedulers = vec![fleet.launch("scheduler").await, fleet.launch("scheduler").await];
    let mut workers = vec![fleet.launch("worker").await, fleet.launch("worker").await];
    let mut limited = Vec::new();
    for rate in RATES {
        let path = format!("/rolled-{rate}");
        receiver.script(&path, [Answer::status(200).after(Duration::from_millis(80))]);
        let mut settings = json!({"url": receiver.url(&path), "event_types": ["rolled"]});
        settings["rate_limits"] = limit(rate, "second");
        limited.push(api.destination(settings).await);
    }
    let unlimited = api.destination(json!({"url": receiver.url("/rolled"), "event_types": ["rolled"]})).await;

    let (url, stop) = (Arc::new(Mutex::new(api.url.clone())), Arc::new(AtomicBool::new(false)));
    let producer = tokio::spawn(produce(url.clone(), stop.clone()));
    receiver.wait_for("/rolled", 100, SECOND * 20).await;

    let new = fleet.launch("api").await;
    *url.lock().unwrap() = new.url.clone();
    assert!(std::mem::replace(&mut api, new).terminate().await.success());
    for (role, running) in [("scheduler", &mut schedulers), ("worker", &mut workers)] {
        for place in 0..running.len() {
            let old = running.remove(0);
            running.push(replace(&fleet, role, old).await);
            // The new one does its work before the next goes.
            receiver.wait_for("/rolled", receiver.count("/rolled") + 60, SECOND * 20).await;
            assert_eq!(running.len(), 2, "{role} {place}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    let ids = producer.await.unwrap();
    assert!(ids.len() > 300, "{} events under way is no load", ids.len());

    for (path, id, rate) in RATES
        .iter()
        .zip(&limited)
        .map(|(rate, id)| (format!("/rolled-{rate}"), id, Some(*rate as usize)))
        .chain([("/rolled".to_owned(), &unlimited, None)])
    {
        api.drained(id, SECOND * 120).await;
        let arrivals = receiver.arrivals(&path);
        let mut times = HashMap::new();
        arrivals.iter().for_each(|arrival| *times.entry(arrival.header("webhook-id").to_owned()).or_insert(0) += 1);
        assert!(ids.iter().all(|id| times.get(id) == Some(&1)), "{path}: each event arrives once");
        assert_eq!(times.len(), ids.len(), "{path}: and nothing else does");
        if let Some(rate) = rate {
            assert_cap(&arrivals, rate, SECOND);
            api.assert_audit_clean(id).await;
        }
    }
}
