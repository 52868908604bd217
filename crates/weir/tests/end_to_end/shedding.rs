//! Load shedding in running processes: what is in flight is released however a request ends, and no request waits for
//! Redis.

use std::time::Duration;

use futures_util::future::join_all;
use reqwest::{
    Method,
    header::{AUTHORIZATION, HeaderMap},
};
use serde_json::{Value, json};
use tokio::{io::AsyncWriteExt, net::TcpStream, time::Instant};

use crate::support::{App, Fleet, eventually};

const SECOND: Duration = Duration::from_secs(1);
const PATH: &str = "/v1/shedding";
const KEY: &str = "the-key-of-the-settings";

async fn now(app: &App) -> Value {
    app.get(PATH).await["now"].clone()
}

/// The events in flight.
async fn in_flight(app: &App) -> u64 {
    now(app).await["classes"][1]["in_flight"].as_u64().expect("a number")
}

/// Sends this much of an event, and closes the connection without reading the answer.
async fn abort(app: &App, event: &str) {
    let mut stream = TcpStream::connect(app.address()).await.expect("a connection");
    let head =
        "POST /v1/events HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 27\r\n\r\n";
    stream.write_all(format!("{head}{event}").as_bytes()).await.expect("written");
    // Half of them are reset: what the server may still send is then an error there.
    if stream.local_addr().expect("an address").port() % 2 == 0 {
        stream.set_zero_linger().expect("set");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_aborted_posts_leave_nothing_in_flight() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    for event in [r#"{"type":"t","#, r#"{"type":"t","data":"abcde"}"#] {
        for _ in 0..50 {
            join_all((0..100).map(|_| abort(&app, event))).await;
        }
    }
    eventually("nothing is in flight", 20 * SECOND, async || in_flight(&app).await == 0).await;
    let shown = now(&app).await;
    assert_eq!((&shown["level"], &shown["clients"][0]["refused"]), (&json!(0), &json!(0)), "{shown}");
    // A peak is known when its second has ended.
    eventually("the posts have a peak", 20 * SECOND, async || {
        now(&app).await["classes"][1]["peak_max"].as_u64() > Some(0)
    })
    .await;
    app.event("t").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_apply_in_all_processes_and_one_that_is_killed_is_forgotten_in_three_seconds() {
    let fleet = Fleet::new().await;
    let (one, other) = (fleet.launch("api").await, fleet.launch("api").await);
    // A worker has no part of the limits.
    let _worker = fleet.launch("worker").await;
    let see = async |app: &App, processes: u64| now(app).await["processes"] == processes;
    eventually("the processes see each other", 10 * SECOND, async || see(&one, 2).await && see(&other, 2).await).await;
    let (status, set) = one.request(Method::PUT, PATH, Some(json!({"classes": {"heavy": {"in_flight": 0}}}))).await;
    assert_eq!(status, 200, "{set}");
    // Within a second, and as long again because the machine may be busy.
    eventually("the limit applies in the other process", 2 * SECOND, async || {
        other.request(Method::POST, "/v1/replays", Some(json!({}))).await.0 == 503
    })
    .await;
    other.kill().await;
    let began = Instant::now();
    eventually("the killed process is forgotten", 10 * SECOND, async || see(&one, 1).await).await;
    assert!(began.elapsed() < 6 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stands_still_delays_no_event_and_blinds_the_processes_after_three_seconds() {
    let fleet = Fleet::new().await;
    let app = fleet.launch("api").await;
    app.destination(json!({"url": "http://127.0.0.1:9/", "event_types": ["t"]})).await;
    let post = async || {
        let began = Instant::now();
        app.event("t").await;
        began.elapsed()
    };
    let median = async |count: usize| {
        let mut times = Vec::new();
        for _ in 0..count {
            times.push(post().await);
        }
        times.sort_unstable();
        (times[count / 2], times[count * 9 / 10])
    };
    let before = median(50).await;
    fleet.redis.signal("STOP").await.unwrap();
    let during = median(100).await;
    // It was 250 ms for each event before this was asynchronous.
    assert!(during.1 < before.1 + Duration::from_millis(125), "{before:?} {during:?}");
    eventually("the process is blind", 10 * SECOND, async || now(&app).await["blind"] == true).await;
    fleet.redis.signal("CONT").await.unwrap();
    eventually("the process sees again", 10 * SECOND, async || now(&app).await["blind"] == false).await;
}

/// A client that sends events as this key, on as many connections as it likes.
async fn sender(app: &App, name: &str) -> reqwest::Client {
    let key = json!({"name": name, "role": "ingest"});
    let (status, key) = app.request(Method::POST, "/v1/keys", Some(key)).await;
    assert_eq!(status, 201, "{key}");
    let key = format!("Bearer {}", key["secret"].as_str().expect("a secret"));
    let headers = HeaderMap::from_iter([(AUTHORIZATION, key.parse().expect("a header"))]);
    crate::support::http_client().default_headers(headers).build().expect("a client")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_by_one_key_is_refused_in_part_and_a_quiet_key_never() {
    let folder = tempfile::tempdir().unwrap();
    let mut app = App::start_with(folder.path(), &[("WEIR_API_KEYS", KEY)]).await;
    let root = HeaderMap::from_iter([(AUTHORIZATION, format!("Bearer {KEY}").parse().unwrap())]);
    app.http = crate::support::http_client().default_headers(root).build().unwrap();
    // Few places, so that this machine can fill them.
    let limits = json!({"classes": {"ingest": {"in_flight": 32}}});
    assert_eq!(app.request(Method::PUT, PATH, Some(limits)).await.0, 200);
    let (loud, quiet) = (sender(&app, "loud").await, sender(&app, "quiet").await);
    let url = format!("{}/v1/events", app.url);
    let post = async |client: &reqwest::Client| {
        let answer = client.post(&url).json(&json!({"type": "t", "data": 1})).send().await.expect("an answer");
        (answer.status().as_u16(), answer.headers().contains_key("retry-after"))
    };
    let flood = join_all((0..200).map(async |_| {
        let mut answers = Vec::new();
        for _ in 0..20 {
            answers.push(post(&loud).await);
        }
        answers
    }));
    let quiet = async {
        let mut answers = Vec::new();
        for _ in 0..50 {
            answers.push(post(&quiet).await.0);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        answers
    };
    let (flood, quiet) = tokio::join!(flood, quiet);
    assert_eq!(quiet, [202; 50]);
    let flood: Vec<_> = flood.into_iter().flatten().collect();
    let refused = flood.iter().filter(|answer| **answer == (503, true)).count();
    let accepted = flood.iter().filter(|(status, _)| *status == 202).count();
    assert!(refused > 0 && refused + accepted == flood.len(), "{refused} refused and {accepted} accepted");
    eventually("nothing is in flight", 10 * SECOND, async || in_flight(&app).await == 0).await;
    let shown = now(&app).await;
    let of = |name: &str| {
        let clients = shown["clients"].as_array().expect("clients").iter();
        clients.clone().find(|client| client["name"] == name).expect("a client").clone()
    };
    assert_eq!((&of("loud")["refused"], &of("quiet")["refused"]), (&json!(refused), &json!(0)));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn requests_and_deliveries_of_one_process_have_threads_of_their_own() {
    let threads_for_requests = |of: &App| {
        let threads = std::fs::read_dir(format!("/proc/{}/task", of.pid())).unwrap();
        let name = |thread: &std::fs::DirEntry| std::fs::read_to_string(thread.path().join("comm")).unwrap_or_default();
        threads.filter(|thread| name(thread.as_ref().unwrap()).trim() == "weir-intake").count()
    };
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    assert!(threads_for_requests(&app) > 0);
    let fleet = Fleet::new().await;
    assert_eq!(threads_for_requests(&fleet.launch("worker").await), 0, "it has no requests to keep apart");
    assert_eq!(threads_for_requests(&fleet.launch("api").await), 0, "it delivers nothing");
}
