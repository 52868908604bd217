//! Rolling updates: every process is replaced one after the other under load, and old processes start on a newer
//! schema.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use serde_json::json;

use crate::support::{Answer, App, Fleet, Receiver, assert_cap, cases::limit};

const SECOND: Duration = Duration::from_secs(1);
/// The most sends in flight of one destination, which one killed worker may hold.
const IN_FLIGHT: usize = 64;

/// A later migration that is compatible with the version under test: the marker is unchanged.
const NEWER_SCHEMA: &str = "
ALTER TABLE destinations ADD COLUMN colour text;
ALTER TABLE deliveries ADD COLUMN colour text;
ALTER TABLE events ADD COLUMN colour text;
ALTER TABLE attempts ADD COLUMN colour text;
INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time) VALUES (9999, 'later', TRUE, '', 0)";

/// Posts an event every few milliseconds to the current API and repeats it until it is answered. Returns the ids.
async fn produce(api: Arc<Mutex<String>>, stop: Arc<AtomicBool>) -> Vec<String> {
    let http = crate::support::http_client().build().unwrap();
    let mut ids = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let event = json!({"type": "rolled", "data": ids.len(), "idempotency_key": format!("rolled-{}", ids.len())});
        loop {
            let url = format!("{}/v1/events", api.lock().unwrap());
            // An API that is stopping refuses or closes the connection.
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

/// Replaces a process like a Deployment: starts the new one, then stops the old one by SIGTERM.
async fn replace(fleet: &Fleet, role: &str, old: App) -> App {
    let new = fleet.launch(role).await;
    assert!(old.terminate().await.success(), "SIGTERM ends {role} with exit code 0");
    new
}

/// The destinations: path, id and limit per second.
struct Destinations(Vec<(String, String, Option<usize>)>);

impl Destinations {
    const RATES: [u32; 3] = [40, 80, 150];

    /// Creates limited destinations with slow receivers, and the unlimited `/rolled`.
    async fn create(api: &App, receiver: &Receiver) -> Self {
        let mut created = Vec::new();
        for rate in Self::RATES {
            let path = format!("/rolled-{rate}");
            receiver.script(&path, [Answer::status(200).after(Duration::from_millis(80))]);
            let mut settings = json!({"url": receiver.url(&path), "event_types": ["rolled"]});
            settings["rate_limits"] = limit(rate, "second");
            let id = api.destination(settings).await;
            created.push((path, id, Some(rate as usize)));
        }
        let unlimited = api.destination(json!({"url": receiver.url("/rolled"), "event_types": ["rolled"]})).await;
        created.push(("/rolled".to_owned(), unlimited, None));
        Self(created)
    }

    /// Asserts that every event arrived once, except for sends in flight of a killed worker, and that no limit was
    /// exceeded.
    async fn judge(&self, api: &App, receiver: &Receiver, ids: &[String], killed: bool) {
        assert!(ids.len() > 300, "{} events are too little load", ids.len());
        for (path, id, rate) in &self.0 {
            api.drained(id, SECOND * 120).await;
            let arrivals = receiver.arrivals(path);
            let mut times = HashMap::new();
            arrivals.iter().for_each(|arrival| *times.entry(arrival.header("webhook-id").to_owned()).or_insert(0) += 1);
            assert!(ids.iter().all(|id| times.contains_key(id)), "{path}: each event arrives");
            assert_eq!(times.len(), ids.len(), "{path}: no other event arrives");
            let doubled = arrivals.len() - times.len();
            // Only sends that the killed worker did not record.
            assert!(doubled <= if killed { IN_FLIGHT } else { 0 }, "{path}: {doubled} duplicates");
            if let Some(rate) = rate {
                assert_cap(&arrivals, *rate, SECOND);
                api.assert_audit_clean(id).await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replacing_every_process_under_load_loses_and_duplicates_nothing_and_breaks_no_limit() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let mut api = fleet.launch("api").await;
    let mut schedulers = vec![fleet.launch("scheduler").await, fleet.launch("scheduler").await];
    let mut workers = vec![fleet.launch("worker").await, fleet.launch("worker").await];
    let destinations = Destinations::create(&api, &receiver).await;

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
            // The new process works before the next one is replaced.
            receiver.wait_for("/rolled", receiver.count("/rolled") + 60, SECOND * 20).await;
            assert_eq!(running.len(), 2, "{role} {place}");
        }
    }
    stop.store(true, Ordering::Relaxed);
    destinations.judge(&api, &receiver, &producer.await.unwrap(), false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_processes_start_beside_a_newer_compatible_schema() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let mut api = fleet.launch("api").await;
    let scheduler = fleet.launch("scheduler").await;
    let (killed, worker) = (fleet.launch("worker").await, fleet.launch("worker").await);
    let destinations = Destinations::create(&api, &receiver).await;
    let (url, stop) = (Arc::new(Mutex::new(api.url.clone())), Arc::new(AtomicBool::new(false)));
    let producer = tokio::spawn(produce(url.clone(), stop.clone()));
    receiver.wait_for("/rolled", 100, SECOND * 20).await;

    // Stands for a later version that migrates while this version runs.
    fleet.sql(NEWER_SCHEMA).await;
    receiver.wait_for("/rolled", receiver.count("/rolled") + 60, SECOND * 20).await;
    // A worker crashes and is replaced, and an autoscaler adds a process of each role.
    killed.kill().await;
    let replacement = fleet.launch("worker").await;
    let added = (fleet.launch("api").await, fleet.launch("scheduler").await, fleet.launch("worker").await);
    receiver.wait_for("/rolled", receiver.count("/rolled") + 60, SECOND * 20).await;

    // All processes are replaced.
    let new = fleet.launch("api").await;
    *url.lock().unwrap() = new.url.clone();
    assert!(std::mem::replace(&mut api, new).terminate().await.success());
    let mut running = vec![];
    for (role, old) in [
        ("scheduler", scheduler),
        ("scheduler", added.1),
        ("worker", worker),
        ("worker", replacement),
        ("worker", added.2),
        ("api", added.0),
    ] {
        running.push(replace(&fleet, role, old).await);
        receiver.wait_for("/rolled", receiver.count("/rolled") + 40, SECOND * 20).await;
    }
    stop.store(true, Ordering::Relaxed);
    destinations.judge(&api, &receiver, &producer.await.unwrap(), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn older_programs_do_not_start_on_a_newer_incompatible_schema() {
    let fleet = Fleet::new().await;
    assert!(fleet.run("migrate").await.status.success());
    fleet.sql(NEWER_SCHEMA).await;
    assert!(fleet.run("migrate").await.status.success(), "the schema is still compatible");
    fleet.sql("UPDATE schema_marker SET oldest_program = 9999").await;
    for command in ["worker", "scheduler", "api", "migrate"] {
        let refused = fleet.run(command).await;
        let error = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(2), "{command}: {error}");
        assert!(error.contains("was written by a newer Weir (schema 9999, this one knows "), "{command}: {error}");
    }
}
