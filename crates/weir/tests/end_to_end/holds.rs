//! Holds: how they end, and how a destination goes on after them.

use std::{
    convert::Infallible,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use http_body_util::Empty;
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::support::{Answer, App, Fleet, Receiver, eventually, now};

const SOON: Duration = Duration::from_secs(20);

/// A request as the receiver saw it.
#[derive(Clone, Copy)]
struct Seen {
    arrived: Instant,
    answered: Option<Instant>,
    refused: bool,
}

/// A receiver that takes two requests a second, as a token bucket of two, and refuses the others with `Retry-After: 1`.
#[derive(Clone)]
struct TokenBucket {
    state: Arc<Mutex<State>>,
    url: String,
}

struct State {
    tokens: f64,
    filled_at: Instant,
    seen: Vec<Seen>,
}

const RATE: f64 = 2.0;
/// How long the receiver takes to answer: long enough that sends without a slow start would overlap.
const ANSWER: Duration = Duration::from_millis(60);
/// A little shorter than the hold that `Retry-After: 1` asks for.
const HELD: Duration = Duration::from_millis(900);

impl TokenBucket {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/bucket", listener.local_addr().unwrap());
        let state = State { tokens: RATE, filled_at: now(), seen: Vec::new() };
        let bucket = Self { state: Arc::new(Mutex::new(state)), url };
        let serving = bucket.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                tokio::spawn(async move {
                    let service = service_fn(|_: Request<Incoming>| serving.answer());
                    // The receiver ignores peers that disconnect.
                    let _ = http1::Builder::new()
                        .timer(TokioTimer::new())
                        .serve_connection(TokioIo::new(stream), service)
                        .await;
                });
            }
        });
        bucket
    }

    async fn answer(&self) -> Result<Response<Empty<Bytes>>, Infallible> {
        let (index, refused) = {
            let mut state = self.state.lock().unwrap();
            let arrived = now();
            let filled = state.tokens + (arrived - state.filled_at).as_secs_f64() * RATE;
            let refused = filled.min(RATE) < 1.0;
            state.tokens = filled.min(RATE) - if refused { 0.0 } else { 1.0 };
            state.filled_at = arrived;
            state.seen.push(Seen { arrived, answered: None, refused });
            (state.seen.len() - 1, refused)
        };
        tokio::time::sleep(ANSWER).await;
        self.state.lock().unwrap().seen[index].answered = Some(now());
        let response = Response::builder().status(if refused { 429 } else { 200 });
        let response = if refused { response.header("retry-after", "1") } else { response };
        Ok(response.body(Empty::new()).unwrap())
    }

    fn seen(&self) -> Vec<Seen> {
        self.state.lock().unwrap().seen.clone()
    }
}

/// Of an unlimited destination: every event is delivered, and after each hold one request comes before any other.
async fn a_slower_receiver_is_probed(app: &App) {
    let bucket = TokenBucket::start().await;
    let settings = json!({
        "url": bucket.url, "event_types": ["slower"], "retry": {"max_attempts": 50, "schedule_ms": [50]},
    });
    let id = app.destination(settings).await;
    app.events("slower", 24).await;
    app.drained(&id, Duration::from_secs(90)).await;
    let seen = bucket.seen();
    assert_eq!(seen.iter().filter(|one| !one.refused).count(), 24, "each event is delivered once");
    let mut holds = 0;
    for (index, probe) in seen.iter().enumerate().skip(1) {
        let before = &seen[..index];
        let refused = before.iter().filter(|one| one.refused).filter_map(|one| one.answered).max();
        let last = before.iter().map(|one| one.arrived).max();
        // The first request after a hold: nothing came while the last refusal held the destination.
        let is_first = refused.zip(last).is_some_and(|(refused, last)| probe.arrived >= refused.max(last) + HELD);
        if !is_first {
            continue;
        }
        holds += 1;
        let answered = probe.answered.expect("an answer");
        let others = seen[index + 1..].iter().filter(|other| other.arrived < answered).count();
        assert_eq!(others, 0, "beside the probe after hold {holds}");
    }
    assert!(holds >= 3, "{holds} holds");
    let after_the_first_burst = seen.iter().skip(24).filter(|one| one.refused).count();
    assert!(after_the_first_burst <= 3 * holds, "{after_the_first_burst} refused after {holds} holds");
}

/// The only delivery of a destination.
async fn delivery(app: &App, destination: &str) -> Value {
    app.get(&format!("/v1/deliveries?destination={destination}")).await["data"][0].clone()
}

/// A release, a resume and another URL each end a hold of ten minutes, and the delivery goes out at once. Whoever asks for
/// a send before that is told what it waits for.
async fn a_hold_is_lifted(app: &App) {
    let receiver = Receiver::start().await;
    for way in ["release", "resume", "move"] {
        let path = format!("/{way}");
        receiver.script(&path, [Answer::status(429).header("retry-after", "600"), Answer::status(200)]);
        let id = app.destination(json!({"url": receiver.url(&path), "event_types": [way]})).await;
        let destination = format!("/v1/destinations/{id}");
        app.event(way).await;
        eventually("the delivery waits for the hold", SOON, async || {
            let delivery = delivery(app, &id).await;
            delivery["state"] == "retrying" && delivery["waits_for"]["reason"] == "hold"
        })
        .await;
        let held = app.get(&destination).await;
        assert!(held["held_reason"].as_str().unwrap().contains("retry-after"), "{held}");
        let waiting = delivery(app, &id).await;
        assert_eq!(waiting["waits_for"]["until"], held["held_until"], "{waiting}");
        assert_eq!(waiting["next_attempt_at"], held["held_until"], "{waiting}");
        let retry = format!("/v1/deliveries/{}/retry", waiting["id"].as_str().unwrap());
        for accepted in [retry, format!("{destination}/test")] {
            let (status, answer) = app.request(Method::POST, &accepted, None).await;
            assert_eq!((status, &answer["waits_for"]["reason"]), (202, &json!("hold")), "{answer}");
        }
        assert_eq!(receiver.count(&path), 1, "nothing is sent during the hold");

        let (status, lifted) = match way {
            "release" => app.request(Method::POST, &format!("{destination}/release"), None).await,
            "resume" => app.request(Method::PATCH, &destination, Some(json!({"paused": false}))).await,
            _ => app.request(Method::PATCH, &destination, Some(json!({"url": receiver.url("/moved")}))).await,
        };
        assert_eq!((status, &lifted["held_until"], &lifted["held_reason"]), (200, &Value::Null, &Value::Null));
        app.drained(&id, SOON).await;
        let arrived = receiver.count(if way == "move" { "/moved" } else { &path });
        assert_eq!(arrived, if way == "move" { 2 } else { 3 }, "the event and the test event");
        let activity = app.get(&format!("/v1/activity?destination={id}")).await;
        let actions: Vec<_> = activity["data"].as_array().unwrap().iter().map(|row| &row["action"]).collect();
        let action = match way {
            "release" | "resume" => "destination.released",
            _ => "destination.edited",
        };
        assert!(actions.contains(&&json!(action)), "{activity}");
    }
    // Once more: nothing holds it.
    let id = app.destination(json!({"url": receiver.url("/free")})).await;
    let (status, _) = app.request(Method::POST, &format!("/v1/destinations/{id}/release"), None).await;
    assert_eq!(status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_a_resume_and_another_url_lift_a_hold() {
    let folder = tempfile::tempdir().unwrap();
    a_hold_is_lifted(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hold_is_lifted_for_all_processes() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await, fleet.launch("worker").await];
    a_hold_is_lifted(&api).await;
}

/// These tests judge times.
mod timed {
    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn after_a_hold_a_slower_receiver_gets_one_probe_first() {
        let folder = tempfile::tempdir().unwrap();
        a_slower_receiver_is_probed(&App::start(folder.path()).await).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn after_a_hold_a_slower_receiver_gets_one_probe_from_all_processes() {
        let fleet = Fleet::new().await;
        let api = fleet.launch("api").await;
        let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await, fleet.launch("worker").await];
        a_slower_receiver_is_probed(&api).await;
    }
}
