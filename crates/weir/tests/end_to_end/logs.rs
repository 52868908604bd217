//! The log on standard error: its JSON format, the warning about a Redis that evicts keys, and what is never logged.

use std::{
    fs::File,
    io::{Read as _, Seek as _, SeekFrom},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use reqwest::Method;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use weir_test_support::{Postgres, Redis};

use crate::support::{Answer, App, Fleet, Receiver, eventually};

const SECOND: Duration = Duration::from_secs(1);

const API_KEY: &str = "key-that-the-log-must-not-show";
const OTHER_KEY: &str = "wrong-key-that-the-log-must-not-show";
const HEADER: &str = "header-that-the-log-must-not-show";
const NEXT_HEADER: &str = "next-header-that-the-log-must-not-show";
const DATABASE_PASSWORD: &str = "database-password-that-the-log-must-not-show";
const REDIS_PASSWORD: &str = "redis-password-that-the-log-must-not-show";
/// The bytes of the signing secrets.
const SECRET: &[u8] = b"secret-that-the-log-must-not-show";
const NEXT_SECRET: &[u8] = b"next-secret-that-the-log-must-not-show";
const PRIVATE_KEY: &[u8; 32] = b"private-key-of-exactly-32-bytes!";
const BODY: &str = "body-that-the-log-must-not-show";

/// The standard error of processes, in a file.
struct Log(File);

impl Log {
    fn new() -> Self {
        Self(tempfile::tempfile().unwrap())
    }

    /// Starts `weir serve` with its standard error in this file.
    async fn serve(&self, folder: &std::path::Path, environment: &[(&str, &str)]) -> App {
        let mut command = App::command(folder);
        command.arg("serve").envs(environment.iter().copied()).stderr(self.0.try_clone().unwrap());
        App::launch(command).await.expect("it listens")
    }

    fn text(&mut self) -> String {
        let mut text = String::new();
        self.0.seek(SeekFrom::Start(0)).unwrap();
        self.0.read_to_string(&mut text).unwrap();
        text
    }
}

/// The objects of a JSON log. Asserts that every line is one, with the documented fields.
fn objects(log: &str) -> Vec<Value> {
    let object = |line: &str| {
        let object: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let text = |field: &str| object[field].as_str().unwrap_or_else(|| panic!("no {field}: {line}"));
        assert!(text("timestamp").parse::<weir_core::Timestamp>().is_ok(), "{line}");
        assert!(["TRACE", "DEBUG", "INFO", "WARN", "ERROR"].contains(&text("level")), "{line}");
        assert!(!text("target").is_empty(), "{line}");
        assert!(!text("role").is_empty() && !text("host").is_empty() && !text("version").is_empty(), "{line}");
        assert!(object["pid"].is_number(), "{line}");
        object
    };
    log.lines().map(object).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_line_of_a_json_log_is_an_object_with_time_level_target_and_message() {
    let (folder, receiver, mut log) = (tempfile::tempdir().unwrap(), Receiver::start().await, Log::new());
    let app = log.serve(folder.path(), &[("WEIR_LOG_FORMAT", "json"), ("WEIR_LOG", "info")]).await;
    let id = app.destination(json!({"url": receiver.url("/gone")})).await;
    receiver.script("/gone", [Answer::status(410)]);
    app.event("gone").await;
    receiver.wait_for("/gone", 1, SECOND * 5).await;
    eventually("the destination is paused", SECOND * 5, async || {
        app.get(&format!("/v1/destinations/{id}")).await["paused"] == true
    })
    .await;
    assert!(app.terminate().await.success());

    let objects = objects(&log.text());
    assert!(objects.iter().all(|object| object["message"].is_string()), "{objects:?}");
    let paused = objects.iter().find(|object| object["message"] == "paused a destination").expect("a line");
    assert_eq!((&paused["level"], &paused["destination"]), (&json!("WARN"), &json!(id)), "{paused}");
    let stopping = objects.iter().find(|object| object["signal"] == "SIGTERM").expect("a line");
    assert_eq!((&stopping["level"], &stopping["grace_s"]), (&json!("INFO"), &json!(25)), "numbers are numbers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_may_evict_keys_is_named_in_a_warning_at_the_start() {
    let mut fleet = Fleet::new().await;
    drop(fleet.launch("worker").await);
    assert!(!fleet.log().contains("maxmemory-policy"), "noeviction needs no warning: {}", fleet.log());

    for policy in ["allkeys-lru", "volatile-ttl"] {
        let redis = Redis::start_with(&["--maxmemory-policy", policy]).await.unwrap();
        drop(fleet.launch_with("worker", &[("WEIR_REDIS_URL", &redis.url())]).await);
        let log = fleet.log();
        let address = redis.url().replace("redis://", "");
        let warning = log.lines().find(|line| line.contains(policy)).unwrap_or_else(|| panic!("{policy}: {log}"));
        for word in ["WARN", "redis_url", "maxmemory-policy", "noeviction", &address] {
            assert!(warning.contains(word), "`{word}` is not in: {warning}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_first_line_and_the_error_that_ends_a_process_are_objects_of_a_json_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = App::command(folder.path());
    command.arg("serve").env("WEIR_LOG_FORMAT", "json").stdout(std::process::Stdio::piped()).kill_on_drop(true);
    let mut process = command.spawn().unwrap();
    let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
    let first = objects(&lines.next_line().await.unwrap().unwrap()).remove(0);
    assert!(first["message"].as_str().unwrap().contains("is listening on http://127.0.0.1:"), "{first}");
    assert_eq!((&first["role"], &first["pid"]), (&json!("serve"), &json!(process.id())), "{first}");

    for wrong in
        [("WEIR_LISTEN", "nowhere"), ("WEIR_LOG", "inof"), ("WEIR_DATABASE_URL", "sqlite://no/such/folder/weir.db")]
    {
        let mut command = App::command(folder.path());
        command.arg("serve").env("WEIR_LOG_FORMAT", "json").env(wrong.0, wrong.1);
        let output = command.output().await.unwrap();
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let found = objects(&String::from_utf8(output.stderr).unwrap());
        assert_eq!((found.len(), &found[0]["level"]), (1, &json!("ERROR")), "{found:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_warning_that_repeats_is_written_a_few_times_and_a_line_of_text_has_the_process() {
    let (folder, receiver, mut log) = (tempfile::tempdir().unwrap(), Receiver::start().await, Log::new());
    let app = log.serve(folder.path(), &[("WEIR_LOG", "warn")]).await;
    receiver.script("/gone", [Answer::status(410)]);
    let mut ids = Vec::new();
    for _ in 0..12 {
        ids.push(app.destination(json!({"url": receiver.url("/gone")})).await);
    }
    app.event("gone").await;
    for id in &ids {
        eventually("it is paused", SECOND * 20, async || {
            app.get(&format!("/v1/destinations/{id}")).await["paused"] == true
        })
        .await;
    }
    let pid = app.pid();
    assert!(app.terminate().await.success());
    let text = log.text();
    let paused: Vec<_> = text.lines().filter(|line| line.contains("paused a destination")).collect();
    assert_eq!(paused.len(), 5, "{text}");
    let process = format!(" role=serve pid={pid} host=");
    assert!(paused.iter().all(|line| line.contains(&process) && line.contains("version=")), "{text}");
}

/// Secrets that are in use in a run, as texts that would be in a log.
fn secrets() -> Vec<String> {
    let keys = [SECRET, NEXT_SECRET, PRIVATE_KEY];
    let text = |key: &[u8]| String::from_utf8(key.to_vec()).unwrap();
    let bytes = |key: &[u8]| format!("{key:?}").trim_matches(['[', ']']).to_owned();
    let spellings = keys.iter().flat_map(|key| [BASE64_STANDARD.encode(key), text(key), bytes(key)]);
    let texts = [API_KEY, OTHER_KEY, HEADER, NEXT_HEADER, DATABASE_PASSWORD, REDIS_PASSWORD, BODY];
    spellings.chain(texts.map(str::to_owned)).collect()
}

fn shared(key: &[u8]) -> String {
    format!("whsec_{}", BASE64_STANDARD.encode(key))
}

/// Uses every secret, also in requests that are refused and sends that fail. Returns the signatures that were sent.
async fn use_every_secret(app: &App, receiver: &Receiver) -> Vec<String> {
    receiver.script("/kept", [Answer::status(503), Answer::status(200)]);
    let request = async |key: &str, method: Method, path: &str, body: Value| {
        let request = app.http.request(method, format!("{}{path}", app.url)).bearer_auth(key).json(&body);
        let answer = request.send().await.unwrap();
        (answer.status().as_u16(), answer.json::<Value>().await.unwrap_or_default())
    };
    let event = json!({"type": "kept", "data": BODY});
    assert_eq!(request(OTHER_KEY, Method::POST, "/v1/events", event.clone()).await.0, 401);
    let url = receiver.url("/kept");
    let (headers, retry) = (json!({"x-token": HEADER}), json!({"base_ms": 1}));
    let settings = |secret: String| json!({"url": url, "secret": secret, "headers": headers, "retry": retry});
    let (status, created) = request(API_KEY, Method::POST, "/v1/destinations", settings(shared(SECRET))).await;
    assert_eq!(status, 201, "{created}");
    let path = format!("/v1/destinations/{}", created["id"].as_str().unwrap());
    let private = format!("whsk_{}", BASE64_STANDARD.encode(PRIVATE_KEY));
    assert_eq!(request(API_KEY, Method::POST, "/v1/destinations", settings(private)).await.0, 201);
    assert_eq!(request(API_KEY, Method::POST, "/v1/events", event.clone()).await.0, 202);
    receiver.wait_for("/kept", 3, SECOND * 10).await;

    let invalid = json!({"headers": {"x-token": format!("{NEXT_HEADER}\n")}, "secret": "whsec_short"});
    assert_eq!(request(API_KEY, Method::PATCH, &path, invalid).await.0, 422);
    let edit = json!({"headers": {"x-token": NEXT_HEADER}});
    assert_eq!(request(API_KEY, Method::PATCH, &path, edit).await.0, 200);
    let rotation = json!({"secret": shared(NEXT_SECRET)});
    assert_eq!(request(API_KEY, Method::POST, &format!("{path}/rotate-secret"), rotation).await.0, 200);
    assert_eq!(request(API_KEY, Method::GET, &format!("{path}/secret"), json!({})).await.0, 200);
    assert_eq!(request(API_KEY, Method::POST, "/v1/events", event).await.0, 202);
    let arrivals = receiver.wait_for("/kept", 5, SECOND * 10).await;
    assert!(arrivals.iter().any(|arrival| arrival.header("x-token") == NEXT_HEADER), "the header was sent");
    arrivals.iter().map(|arrival| arrival.header("webhook-signature").to_owned()).collect()
}

/// Asserts that a log with all levels was written, and shows no secret and no signature.
fn assert_hidden(log: &str, signatures: &[String]) {
    assert!(log.contains("DEBUG"), "the log has only the usual levels: {log}");
    for hidden in secrets().iter().chain(signatures) {
        let shown = log.lines().find(|line| line.contains(hidden));
        assert!(shown.is_none(), "`{hidden}` is in the log: {}", shown.unwrap_or_default());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_header_or_body_is_in_the_log_of_one_process() {
    let (folder, receiver, mut log) = (tempfile::tempdir().unwrap(), Receiver::start().await, Log::new());
    let app = log.serve(folder.path(), &[("WEIR_API_KEYS", API_KEY), ("WEIR_LOG", "trace")]).await;
    let signatures = use_every_secret(&app, &receiver).await;
    assert!(app.terminate().await.success());
    assert_hidden(&log.text(), &signatures);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_secret_header_body_or_password_is_in_the_logs_of_roles_that_lose_their_servers() {
    let mut postgres = Postgres::start_with_password(DATABASE_PASSWORD).await.unwrap();
    let mut redis = Redis::start_with(&["--requirepass", REDIS_PASSWORD]).await.unwrap();
    let receiver = Receiver::start().await;
    let mut fleet = Fleet::on(postgres.url_with(DATABASE_PASSWORD)).await;
    let redis_url = redis.url().replace("redis://", &format!("redis://:{REDIS_PASSWORD}@"));
    let settings = [
        ("WEIR_API_KEYS", API_KEY),
        ("WEIR_REDIS_URL", redis_url.as_str()),
        ("WEIR_LOG", "trace"),
        ("WEIR_LOG_FORMAT", "json"),
    ];
    let api = fleet.launch_with("api", &settings).await;
    let others = [fleet.launch_with("scheduler", &settings).await, fleet.launch_with("worker", &settings).await];
    let signatures = use_every_secret(&api, &receiver).await;

    redis.kill().await.unwrap();
    postgres.stop().await.unwrap();
    for app in &others {
        eventually("the loss is noticed", SECOND * 20, async || app.status("/readyz").await == 503).await;
    }
    postgres.start_again().await.unwrap();
    redis.start_again().await.unwrap();
    for app in others.into_iter().chain([api]) {
        eventually("it is ready again", SECOND * 20, async || app.status("/readyz").await == 200).await;
        assert!(app.terminate().await.success());
    }
    let log = fleet.log();
    assert!(!objects(&log).is_empty());
    assert_hidden(&log, &signatures);
}
