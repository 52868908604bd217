//! Hundreds of destinations that refuse do not delay their neighbour.

use std::{collections::HashMap, time::Duration};

use futures_util::{StreamExt as _, stream};
use serde_json::json;

use crate::support::{Answer, App, Fleet, Machine, Receiver, now};

const REFUSING: usize = 300;
const POSTS: usize = 250;
/// Requests to the API at one time.
const AT_ONCE: usize = 4;

/// The 99th percentile of the times from a post to the arrival at the healthy destination.
async fn p99(app: &App, receiver: &Receiver) -> Duration {
    let before = receiver.count("/healthy");
    let mut every = tokio::time::interval(Duration::from_millis(20));
    let mut posted = Vec::new();
    for _ in 0..POSTS {
        every.tick().await;
        let at = now();
        posted.push((app.event("healthy").await, at));
    }
    let arrivals = receiver.wait_for("/healthy", before + POSTS, Duration::from_secs(30)).await;
    let arrived: HashMap<_, _> = arrivals.iter().map(|arrival| (arrival.header("webhook-id"), arrival.at)).collect();
    let mut took: Vec<_> = posted.iter().map(|(id, at)| arrived[id.as_str()].saturating_duration_since(*at)).collect();
    took.sort_unstable();
    took[POSTS * 99 / 100]
}

/// Creates destinations that answer with this status, with a backlog: about one request a second each. Each begins when
/// it is created, so their requests are not all at the same instant.
async fn refuse(app: &App, receiver: &Receiver, status: u16) {
    let answer = Answer::status(status);
    let answer = if status == 429 { answer.header("retry-after", "1") } else { answer };
    receiver.script(&format!("/{status}"), [answer]);
    let url = receiver.url(&format!("/{status}"));
    let create = async |number: usize| {
        let event_type = format!("refused.{status}.{number}");
        app.destination(json!({
            "url": url,
            "event_types": [event_type],
            "max_in_flight": 1,
            "rate_limits": [{"limit": 2, "period": "second"}],
            "retry": {"max_attempts": 100, "schedule_ms": [1_000]},
            "breaker": {"consecutive": 2, "open_ms": 1_000, "open_max_ms": 1_000},
        }))
        .await;
        app.events(&event_type, 10).await;
    };
    stream::iter(0..REFUSING).map(create).buffer_unordered(AT_ONCE).for_each(async |()| ()).await;
}

/// The median of three runs: a p99 of a few seconds is made by a handful of requests.
async fn median_p99(app: &App, receiver: &Receiver) -> Duration {
    let mut runs = [p99(app, receiver).await, p99(app, receiver).await, p99(app, receiver).await];
    runs.sort_unstable();
    runs[1]
}

async fn refusing_destinations_do_not_delay_their_neighbour(app: &App) {
    let (receiver, machine) = (Receiver::start().await, Machine::watched());
    app.destination(json!({"url": receiver.url("/healthy"), "event_types": ["healthy"]})).await;
    p99(app, &receiver).await;
    let alone = median_p99(app, &receiver).await;
    // Pauses, holds, and breakers with a probe a second.
    for status in [410, 429, 500] {
        refuse(app, &receiver, status).await;
        let beside = median_p99(app, &receiver).await;
        let seen = format!("{alone:?} alone, {beside:?} beside {REFUSING} destinations that answer {status}");
        println!("{seen}");
        machine.judge(beside <= alone * 2 + Duration::from_millis(20), &seen);
        receiver.script(&format!("/{status}"), [Answer::status(200)]);
    }
    let gone = receiver.wait_for("/410", REFUSING, Duration::from_secs(30)).await;
    assert_eq!(gone.len(), REFUSING, "each destination is paused with its first answer");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusing_destinations_do_not_delay_their_neighbour_in_one_process() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    refusing_destinations_do_not_delay_their_neighbour(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusing_destinations_do_not_delay_their_neighbour_on_servers() {
    let fleet = Fleet::new().await;
    let app = fleet.launch("serve").await;
    refusing_destinations_do_not_delay_their_neighbour(&app).await;
}
