//! Operations on a backlog: deliveries are found by their last error, waiting deliveries are purged, and old ones are
//! deleted. In one process with SQLite, and in several processes on servers.

use std::time::Duration;

use reqwest::Method;
use serde_json::{Value, json};
use weir_test_support::FAKE_TIME;

use crate::support::{Answer, App, Fleet, Receiver, eventually};

const LONG: Duration = Duration::from_secs(20);

/// The deliveries that match a query, from all pages.
async fn found(app: &App, query: &str) -> Vec<Value> {
    let mut rows = Vec::new();
    let mut cursor = String::new();
    loop {
        let page = app.get(&format!("/v1/deliveries?{query}{cursor}")).await;
        rows.extend(page["data"].as_array().expect("rows").iter().cloned());
        match page["next_cursor"].as_str() {
            Some(next) => cursor = format!("&cursor={next}"),
            None => return rows,
        }
    }
}

/// The number of deliveries that a purge would cancel.
async fn counted(app: &App, destination: &str, filter: Value) -> Value {
    let path = format!("/v1/destinations/{destination}/purge?dry_run=true");
    let (status, body) = app.request(Method::POST, &path, Some(filter)).await;
    assert_eq!(status, 200, "{body}");
    body["total"].clone()
}

async fn purge(app: &App, destination: &str, filter: Value) -> Value {
    let path = format!("/v1/destinations/{destination}/purge");
    let (status, body) = app.request(Method::POST, &path, Some(filter)).await;
    assert_eq!(status, 200, "{body}");
    body["cancelled"].clone()
}

/// The worker records each kind of error; the list shows it and finds it by its name.
async fn errors_are_found_by_kind(app: &App) {
    let receiver = Receiver::start().await;
    receiver.script("/away", [Answer::status(503)]);
    receiver.script("/refuses", [Answer::status(404)]);
    receiver.script("/slow", [Answer::status(200).after(Duration::from_secs(5))]);
    let once = json!({"max_attempts": 1});
    for (path, url) in [
        ("away", receiver.url("/away")),
        ("refuses", receiver.url("/refuses")),
        ("slow", receiver.url("/slow")),
        ("nobody", "http://127.0.0.1:1/hooks".to_owned()),
        ("well", receiver.url("/well")),
    ] {
        let types = [format!("{path}.*")];
        app.destination(json!({"url": url, "event_types": types, "retry": once, "timeout_ms": 300})).await;
        app.event(&format!("{path}.happened")).await;
    }
    for (query, event_type, state, status, kind) in [
        ("error=5xx", "away.happened", "dead", json!(503), json!("5xx")),
        ("error=404&state=failed", "refuses.happened", "failed", json!(404), json!("4xx")),
        ("error=timeout", "slow.happened", "dead", Value::Null, json!("timeout")),
        ("error=connect&tenant=default", "nobody.happened", "dead", Value::Null, json!("connect")),
        ("event_type=well.*&state=delivered", "well.happened", "delivered", json!(200), Value::Null),
    ] {
        eventually(query, LONG, async || !found(app, query).await.is_empty()).await;
        let rows = found(app, query).await;
        assert_eq!(rows.len(), 1, "{query}: {rows:?}");
        let row = &rows[0];
        assert_eq!(
            (&row["event_type"], &row["state"], &row["last_status_code"], &row["last_error_kind"]),
            (&json!(event_type), &json!(state), &status, &kind),
            "{query}"
        );
    }
    let slow = &found(app, "error=timeout").await[0];
    assert!(slow["last_error"].as_str().is_some_and(|error| !error.is_empty()), "{slow}");
    let detail = app.get(&format!("/v1/deliveries/{}", slow["id"].as_str().expect("an id"))).await;
    assert_eq!(
        (&detail["attempts"][0]["error_kind"], &detail["last_error_kind"]),
        (&json!("timeout"), &json!("timeout"))
    );
    let (status, problem) = app.request(Method::GET, "/v1/deliveries?error=bad", None).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &json!("/error")));
}

/// A purge while a backlog is sent: the cancelled deliveries are never sent, the others are, and nothing is lost.
async fn a_running_backlog_is_purged(app: &App) {
    const EACH: usize = 1_500;
    let receiver = Receiver::start().await;
    let settings = json!({
        "url": receiver.url("/hooks"), "event_types": ["video.*", "order.*"], "rate_limits": [{"limit": 100, "period": "second"}],
    });
    let id = app.destination(settings).await;
    for event_type in ["video.created", "order.paid"] {
        app.events(event_type, EACH).await;
    }
    receiver.wait_for("/hooks", 20, LONG).await;
    let cancelled =
        purge(app, &id, json!({"event_type": "video.*", "states": ["pending"]})).await.as_u64().expect("a count");
    assert!(cancelled > 500, "most of them were waiting: {cancelled}");
    app.events("video.created", 10).await;
    app.drained(&id, Duration::from_secs(60)).await;
    let by_type = |event_type: &str| {
        let arrivals = receiver.arrivals("/hooks");
        arrivals.iter().filter(|arrival| String::from_utf8_lossy(&arrival.body).contains(event_type)).count()
    };
    assert_eq!((by_type("video.created"), by_type("order.paid")), (EACH + 10 - cancelled as usize, EACH));
    let listed = found(app, &format!("destination={id}&state=cancelled&limit=200")).await;
    assert_eq!(listed.len() as u64, cancelled);
    assert!(listed.iter().all(|row| row["event_type"] == "video.created" && row["attempt_count"] == 0));
    app.assert_audit_clean(&id).await;
}

/// A purge of a paused destination can cancel all waiting deliveries, retries included.
async fn a_paused_backlog_is_purged(app: &App) {
    let receiver = Receiver::start().await;
    receiver.script("/down", [Answer::status(500)]);
    let settings = json!({"url": receiver.url("/down"), "event_types": ["down.*"], "retry": {"base_ms": 3_600_000}});
    let id = app.destination(settings).await;
    app.events("down.first", 3).await;
    eventually("three wait for a retry", LONG, async || {
        app.get(&format!("/v1/destinations/{id}/backlog")).await["retrying"] == 3
    })
    .await;
    app.patch(&id, json!({"paused": true})).await;
    app.events("down.second", 2_500).await;
    for (filter, total) in
        [(json!({}), 2_503), (json!({"event_type": "down.first"}), 3), (json!({"event_type": "a"}), 0)]
    {
        assert_eq!(counted(app, &id, filter).await, total);
    }
    assert_eq!(purge(app, &id, json!({"states": ["retrying"]})).await, 3);
    assert_eq!(purge(app, &id, json!({"before": "2020-01-01T00:00:00Z"})).await, 0);
    assert_eq!(purge(app, &id, json!({})).await, 2_500);
    app.patch(&id, json!({"paused": false})).await;
    app.drained(&id, LONG).await;
    assert_eq!(receiver.count("/down"), 3, "cancelled deliveries are not sent");
    assert_eq!(found(app, "event_type=down.first&error=500&state=cancelled").await.len(), 3);
    let path = "/v1/destinations/dst_01h2xcejqtf2nbrexx3vqjhp41/purge";
    assert_eq!(app.request(Method::POST, path, Some(json!({}))).await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_found_by_kind_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    errors_are_found_by_kind(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn errors_are_found_by_kind_on_servers() {
    let fleet = Fleet::new().await;
    errors_are_found_by_kind(&fleet.launch("serve").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backlogs_are_purged_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    a_running_backlog_is_purged(&app).await;
    a_paused_backlog_is_purged(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn backlogs_are_purged_on_servers() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await];
    a_running_backlog_is_purged(&api).await;
    a_paused_backlog_is_purged(&api).await;
}

/// Delivers one event and lets the receiver refuse another.
async fn deliver_one_event_and_fail_another(app: &App, receiver: &Receiver) {
    receiver.script("/refuses", [Answer::status(404)]);
    app.destination(json!({"url": receiver.url("/takes"), "event_types": ["good.*"]})).await;
    app.destination(json!({"url": receiver.url("/refuses"), "event_types": ["bad.*"]})).await;
    app.event("good.news").await;
    app.event("bad.news").await;
    for state in ["delivered", "failed"] {
        eventually(state, LONG, async || found(app, &format!("state={state}")).await.len() == 1).await;
    }
}

/// The environment of a process whose clock is ahead by this much.
fn clock_ahead(by: &'static str) -> [(&'static str, &'static str); 3] {
    [("LD_PRELOAD", FAKE_TIME), ("FAKETIME", by), ("DONT_FAKE_MONOTONIC", "1")]
}

async fn deleted(app: &App, what: &str) -> bool {
    let metrics =
        app.http.get(format!("{}/metrics", app.url)).send().await.expect("metrics").text().await.expect("text");
    let line = format!("weir_retention_deleted_total{{what=\"{what}\"}} 1");
    metrics.lines().any(|found| found == line)
}

/// The events that are left, without those of Weir about the dead letter.
async fn posted_events(app: &App) -> usize {
    let events = app.get("/v1/events").await;
    let is_posted = |event: &&Value| !event["type"].as_str().unwrap().starts_with("weir.");
    events["data"].as_array().unwrap().iter().filter(is_posted).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_events_are_deleted_after_a_fortnight_and_dead_letters_are_kept() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let app = App::start(folder.path()).await;
    deliver_one_event_and_fail_another(&app, &receiver).await;
    assert!(app.terminate().await.success());

    let restart = async |by, more: &[(&str, &str)]| {
        let environment: Vec<_> = clock_ahead(by).into_iter().chain(more.iter().copied()).collect();
        App::start_with(folder.path(), &environment).await
    };
    let app = restart("+15d", &[]).await;
    eventually("the event is gone", LONG, async || deleted(&app, "events").await).await;
    assert!(deleted(&app, "deliveries").await && deleted(&app, "attempts").await);
    let left = found(&app, "").await;
    assert_eq!((left.len(), &left[0]["state"], &left[0]["last_status_code"]), (1, &json!("failed"), &json!(404)));
    let event = app.get(&format!("/v1/events/{}", left[0]["event_id"].as_str().unwrap())).await;
    assert_eq!(event["type"], "bad.news", "a dead letter keeps its payload");
    assert_eq!(posted_events(&app).await, 1);
    assert!(app.terminate().await.success());

    let app = restart("+15d", &[("WEIR_RETENTION_DEAD_DAYS", "10")]).await;
    eventually("the dead letter is gone", LONG, async || deleted(&app, "events").await).await;
    assert!(found(&app, "").await.is_empty());
}

/// Makes all stored rows fifteen days older. Processes on servers use the clock of Redis, which cannot be set ahead.
const A_FORTNIGHT_AGO: &str = "
CREATE FUNCTION pg_temp.earlier(id uuid) RETURNS uuid LANGUAGE sql AS $$
    SELECT (lpad(to_hex(('x' || left(replace(id::text, '-', ''), 12))::bit(48)::bigint - 1296000000), 12, '0')
        || right(replace(id::text, '-', ''), 20))::uuid
$$;
SELECT make_partitions(ARRAY(SELECT DISTINCT (created_at / 1000000 - 1296000000)::bigint / 86400000 FROM events)::integer[]);
UPDATE attempts SET delivery_id = pg_temp.earlier(delivery_id), sent_at = sent_at - 1296000000000000;
UPDATE deliveries SET id = pg_temp.earlier(id), event_id = pg_temp.earlier(event_id),
    created_at = created_at - 1296000000000000, updated_at = updated_at - 1296000000000000;
UPDATE events SET id = pg_temp.earlier(id), created_at = created_at - 1296000000000000";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn delivered_events_are_deleted_after_a_fortnight_on_servers() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let everything = fleet.launch("serve").await;
    deliver_one_event_and_fail_another(&everything, &receiver).await;
    assert!(everything.terminate().await.success());
    fleet.sql(A_FORTNIGHT_AGO).await;

    let everything = fleet.launch("serve").await;
    eventually("the delivery is gone", LONG, async || deleted(&everything, "deliveries").await).await;
    let left = found(&everything, "").await;
    assert_eq!((left.len(), &left[0]["state"], &left[0]["last_status_code"]), (1, &json!("failed"), &json!(404)));
    let event = everything.get(&format!("/v1/events/{}", left[0]["event_id"].as_str().unwrap())).await;
    assert_eq!(event["type"], "bad.news", "a dead letter keeps its payload");
    eventually("the event is gone", LONG, async || posted_events(&everything).await == 1).await;
}
