//! Replays: ended deliveries are sent again within the limit and hardly delay live traffic. In one process with SQLite,
//! and in several processes on servers.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use reqwest::Method;
use serde_json::{Value, json};

use crate::support::{Answer, App, Arrival, Fleet, Machine, Receiver, assert_cap, eventually, now};

const SECOND: Duration = Duration::from_secs(1);
/// The allowed delay of the median live event while a replay uses the full limit: two slots and the load of a thousand
/// sends a second. If live events could not take slots before waiting replays, the delay would be 12 ms.
const DELAYED_BY_A_REPLAY: Duration = Duration::from_millis(10);
/// The allowed delay at p99, where events also wait for the machine. Behind the replay they would wait for seconds.
const DELAYED_AT_WORST: Duration = Duration::from_millis(200);

/// Creates a destination with `count` dead deliveries, and sets its limits afterwards.
async fn with_dead_letters(app: &App, receiver: &Receiver, name: &str, count: usize, limits: Value) -> String {
    receiver.script(&format!("/{name}"), [Answer::status(500)]);
    let id = app
        .destination(json!({
            "url": receiver.url(&format!("/{name}")),
            "event_types": [format!("{name}.*")],
            "retry": {"max_attempts": 1},
            "breaker": null,
            "max_in_flight": 256,
            "timeout_ms": 2_000,
        }))
        .await;
    app.events(&format!("{name}.old"), count).await;
    receiver.wait_for(&format!("/{name}"), count, SECOND * 60).await;
    app.drained(&id, SECOND * 30).await;
    receiver.script(&format!("/{name}"), [Answer::status(200)]);
    app.patch(&id, json!({"rate_limits": limits, "retry": {"max_attempts": 16, "base_ms": 50, "cap_ms": 100}})).await;
    id
}

async fn replay(app: &App, body: Value) -> Value {
    let (status, body) = app.request(Method::POST, "/v1/replays", Some(body)).await;
    assert_eq!(status, 202, "{body}");
    body
}

async fn shown(app: &App, replay: &Value) -> Value {
    app.get(&format!("/v1/replays/{}", replay["id"].as_str().unwrap())).await
}

async fn completed(app: &App, replay: &Value, within: Duration) -> Value {
    eventually("the replay is completed", within, async || shown(app, replay).await["state"] == "completed").await;
    shown(app, replay).await
}

/// The arrivals of an event type from an instant on.
fn since(receiver: &Receiver, path: &str, from: Instant, event_type: &str) -> Vec<Arrival> {
    let arrivals = receiver.arrivals(path).into_iter().filter(|arrival| arrival.at >= from);
    arrivals.filter(|arrival| String::from_utf8_lossy(&arrival.body).contains(event_type)).collect()
}

/// Posts an event every 20 ms until `until` holds. Returns the time of each post.
async fn live_traffic(
    app: &App,
    event_type: &str,
    at_least: Duration,
    mut until: impl AsyncFnMut() -> bool,
) -> HashMap<String, Instant> {
    let (posted, began): (Arc<Mutex<HashMap<String, Instant>>>, _) = (Arc::default(), now());
    let (http, url) = (app.http.clone(), format!("{}/v1/events", app.url));
    let body = json!({"type": event_type, "data": 1});
    let traffic = {
        let posted = posted.clone();
        async move {
            let mut beat = tokio::time::interval(Duration::from_millis(20));
            loop {
                beat.tick().await;
                let (request, posted) = (http.post(&url).json(&body), posted.clone());
                tokio::spawn(async move {
                    let at = now();
                    let answer: Value = request.send().await.unwrap().json().await.unwrap();
                    posted.lock().unwrap().insert(answer["id"].as_str().unwrap().to_owned(), at);
                });
            }
        }
    };
    let traffic = tokio::spawn(traffic);
    while now() < began + at_least || !until().await {
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    traffic.abort();
    tokio::time::sleep(SECOND).await;
    let posted = posted.lock().unwrap();
    posted.clone()
}

/// The median and p99 of the time from the POST of an event to its arrival.
fn latency(posted: &HashMap<String, Instant>, arrivals: &[Arrival]) -> (Duration, Duration) {
    let mut took: Vec<Duration> = arrivals
        .iter()
        .filter_map(|arrival| {
            posted.get(arrival.header("webhook-id")).map(|at| arrival.at.saturating_duration_since(*at))
        })
        .collect();
    assert_eq!(took.len(), posted.len(), "each live event arrives, once");
    took.sort_unstable();
    (took[took.len() / 2], took[took.len() * 99 / 100])
}

async fn a_replay_hardly_delays_live_traffic(app: &App) {
    const DEAD: usize = 10_000;
    let receiver = Receiver::start().await;
    let limits = json!([{"limit": 1_000, "period": "second"}]);
    let id = with_dead_letters(app, &receiver, "beside", DEAD, limits).await;
    let (began, machine) = (now() + SECOND / 10, Machine::watched());
    tokio::time::sleep(SECOND).await;
    let alone = live_traffic(app, "beside.live", SECOND * 5, async || true).await;

    let filter = json!({"destination": id, "states": ["dead"]});
    let (status, counted) = app.request(Method::POST, "/v1/replays?dry_run=true", Some(filter.clone())).await;
    assert_eq!((status, counted), (200, json!({"total": DEAD})));
    let replay_began = now();
    let replay = replay(app, filter).await;
    assert_eq!((&replay["state"], &replay["total"]), (&json!("running"), &json!(DEAD)));
    let beside = live_traffic(app, "beside.live", SECOND, async || {
        let shown = shown(app, &replay).await;
        let counts = ["delivered", "failed", "cancelled", "remaining"].map(|name| shown[name].as_u64().unwrap());
        assert_eq!(counts.iter().sum::<u64>(), DEAD as u64, "{shown}");
        shown["state"] == "completed"
    })
    .await;
    let took = now() - replay_began;
    let shown = shown(app, &replay).await;
    assert_eq!((&shown["delivered"], &shown["remaining"], &shown["failed"]), (&json!(DEAD), &json!(0), &json!(0)));

    let live = since(&receiver, "/beside", began, "beside.live");
    let of = |posted: &HashMap<String, Instant>| {
        let arrivals: Vec<_> =
            live.iter().filter(|arrival| posted.contains_key(arrival.header("webhook-id"))).cloned().collect();
        latency(posted, &arrivals)
    };
    let ((alone_p50, alone_p99), (beside_p50, beside_p99)) = (of(&alone), of(&beside));
    let old = since(&receiver, "/beside", began, "beside.old");
    let times: HashMap<&str, usize> = old.iter().fold(HashMap::new(), |mut times, arrival| {
        *times.entry(arrival.header("webhook-id")).or_default() += 1;
        times
    });
    let all: Vec<_> = receiver.arrivals("/beside").into_iter().filter(|arrival| arrival.at >= began).collect();
    let span =
        old.iter().map(|arrival| arrival.at).max().unwrap() - old.iter().map(|arrival| arrival.at).min().unwrap();
    let seen = format!(
        "{} live events alone, p50 {alone_p50:?}, p99 {alone_p99:?}; {} beside a replay, p50 {beside_p50:?}, p99 {beside_p99:?}; {DEAD} replayed in {span:?} ({took:?})",
        alone.len(),
        beside.len()
    );
    assert_eq!((times.len(), old.len()), (DEAD, DEAD), "each is sent once more");
    assert!(old.iter().all(|arrival| arrival.header("weir-attempt") == "2"), "the attempt number increases");
    assert_cap(&all, 1_000, SECOND);
    app.assert_audit_clean(&id).await;
    let hardly_delayed = beside_p50 <= alone_p50 + DELAYED_BY_A_REPLAY && beside_p99 <= alone_p99 + DELAYED_AT_WORST;
    let uses_the_free_slots = span < SECOND * 15;
    machine.judge(hardly_delayed && uses_the_free_slots, &seen);
}

async fn beside_a_live_backlog_a_replay_gets_a_tenth(app: &App) {
    let receiver = Receiver::start().await;
    let limits = json!([{"limit": 200, "period": "second"}]);
    let id = with_dead_letters(app, &receiver, "saturated", 400, limits).await;
    app.events("saturated.live", 3_000).await;
    let replay = replay(app, json!({"destination": id})).await;
    tokio::time::sleep(SECOND).await;
    let (from, machine) = (now(), Machine::watched());
    tokio::time::sleep(SECOND * 5).await;
    let until = now();
    let count = |event_type| {
        since(&receiver, "/saturated", from, event_type).iter().filter(|arrival| arrival.at < until).count() as f64
    };
    let (live, replayed) = (count("saturated.live"), count("saturated.old"));
    machine.judge_use(&format!("saturated: {live} live, {replayed} replayed"), (live + replayed) / 1_000.0, 0.95);
    assert!((0.09..=0.12).contains(&(replayed / (live + replayed))), "{live} live, {replayed} replayed");
    assert_eq!(completed(app, &replay, SECOND * 60).await["delivered"], 400);
    app.drained(&id, SECOND * 30).await;
    app.assert_audit_clean(&id).await;
}

async fn a_cancelled_replay_stops_and_puts_back(app: &App) {
    let receiver = Receiver::start().await;
    let limits = json!([{"limit": 20, "period": "second"}]);
    let id = with_dead_letters(app, &receiver, "stopped", 100, limits).await;
    let replay = replay(app, json!({"destination": id})).await;
    receiver.wait_for("/stopped", 110, SECOND * 10).await;
    let path = format!("/v1/replays/{}/cancel", replay["id"].as_str().unwrap());
    let (status, cancelled) = app.request(Method::POST, &path, None).await;
    assert_eq!((status, &cancelled["state"]), (200, &json!("cancelled")), "{cancelled}");
    app.drained(&id, SECOND * 10).await;
    let sent = receiver.count("/stopped") - 100;
    assert!((10..30).contains(&sent), "{sent}");
    tokio::time::sleep(SECOND).await;
    assert_eq!(receiver.count("/stopped") - 100, sent, "nothing more is sent");
    eventually("sends in flight are counted", SECOND * 5, async || {
        let shown = shown(app, &replay).await;
        shown["delivered"] == sent && shown["remaining"] == 100 - sent
    })
    .await;
    let dead = app.get(&format!("/v1/deliveries?destination={id}&state=dead&limit=200")).await;
    assert_eq!(dead["data"].as_array().unwrap().len(), 100 - sent);
    let bad = json!({"states": ["pending"], "colour": "red"});
    let (status, problem) = app.request(Method::POST, "/v1/replays", Some(bad)).await;
    assert_eq!((status, &problem["errors"][0]["pointer"]), (422, &json!("/states/0")), "{problem}");
    let second = self::replay(app, json!({"destination": id})).await;
    assert_eq!(completed(app, &second, SECOND * 30).await["delivered"], 100 - sent);
}

/// Asserts that every dead delivery was sent once more, and that at most `spare` were sent again because of a kill.
fn assert_replayed(receiver: &Receiver, path: &str, count: usize, spare: usize) {
    let mut times: HashMap<String, usize> = HashMap::new();
    for arrival in receiver.arrivals(path) {
        *times.entry(arrival.header("webhook-id").to_owned()).or_default() += 1;
    }
    assert_eq!(times.len(), count);
    assert!(times.values().all(|times| *times >= 2), "nothing is lost");
    let doubled = times.values().sum::<usize>() - 2 * count;
    assert!(doubled <= spare, "{doubled} sent more than once more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_is_cancelled_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    a_cancelled_replay_stops_and_puts_back(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_is_cancelled_on_servers() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await];
    a_cancelled_replay_stops_and_puts_back(&api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_continues_after_kills_in_one_process() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let mut app = App::start(folder.path()).await;
    let limits = json!([{"limit": 100, "period": "second"}]);
    // More deliveries than one step of the replay moves.
    let id = with_dead_letters(&app, &receiver, "killed", 1_500, limits).await;
    let replay = replay(&app, json!({"destination": id})).await;
    let kills = 3;
    for kill in 0..kills {
        receiver.wait_for("/killed", 1_500 + kill * 300, SECOND * 20).await;
        app.kill().await;
        app = App::start(folder.path()).await;
    }
    let shown = completed(&app, &replay, SECOND * 60).await;
    assert_eq!((&shown["total"], &shown["delivered"]), (&json!(1_500), &json!(1_500)), "{shown}");
    // A kill can duplicate only the sends in flight: at 100/s, those of the few milliseconds until the answer and of
    // one commit.
    assert_replayed(&receiver, "/killed", 1_500, kills * 10);
    app.assert_audit_clean(&id).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replay_continues_after_a_kill_on_servers() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let (api, _worker) = (fleet.launch("api").await, fleet.launch("worker").await);
    let scheduler = fleet.launch("scheduler").await;
    let limits = json!([{"limit": 100, "period": "second"}]);
    let id = with_dead_letters(&api, &receiver, "killed", 1_500, limits).await;
    let replay = replay(&api, json!({"destination": id})).await;
    receiver.wait_for("/killed", 1_700, SECOND * 20).await;
    scheduler.kill().await;
    let _scheduler = fleet.launch("scheduler").await;
    let shown = completed(&api, &replay, SECOND * 60).await;
    assert_eq!((&shown["total"], &shown["delivered"]), (&json!(1_500), &json!(1_500)), "{shown}");
    assert_replayed(&receiver, "/killed", 1_500, 0);
    api.assert_audit_clean(&id).await;
}

/// These tests judge times under load.
mod alone {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_replay_hardly_delays_live_traffic_in_one_process() {
        let folder = tempfile::tempdir().unwrap();
        a_replay_hardly_delays_live_traffic(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_replay_hardly_delays_live_traffic_on_servers() {
        let fleet = Fleet::new().await;
        a_replay_hardly_delays_live_traffic(&fleet.launch("serve").await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn replay_and_live_backlog_share_the_limit_in_one_process() {
        let folder = tempfile::tempdir().unwrap();
        beside_a_live_backlog_a_replay_gets_a_tenth(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn replay_and_live_backlog_share_the_limit_on_servers() {
        let fleet = Fleet::new().await;
        let api = fleet.launch("api").await;
        let _others = [fleet.launch("scheduler").await, fleet.launch("scheduler").await, fleet.launch("worker").await];
        beside_a_live_backlog_a_replay_gets_a_tenth(&api).await;
    }
}
