//! Secrets and bodies at rest: keys are introduced, rotated and removed while events come and go, and what was clear is
//! found nowhere afterwards.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;
use standardwebhooks::Webhook;
use tokio::process::Command;

use crate::support::{Answer, App, Fleet, Receiver, eventually, receiver::AnswerBody};

const SECOND: Duration = Duration::from_secs(1);

/// What is searched for: of the signing secret, of a header, of the bodies of events, and of an answer.
const HEADER: &str = "marker-of-a-header";
const BODY: &str = "marker-of-a-body";
const ANSWER: &str = "marker-of-an-answer";

fn secret() -> String {
    format!("whsec_{}", STANDARD.encode("marker-of-a-secret-1234567890123"))
}

fn markers() -> [String; 4] {
    [STANDARD.encode("marker-of-a-secret-1234567890123"), HEADER.to_owned(), BODY.to_owned(), ANSWER.to_owned()]
}

fn key(byte: u8) -> String {
    STANDARD.encode([byte; 32])
}

/// The markers that are in these bytes, as text or as the hexadecimal digits of a dump.
fn found(bytes: &[u8]) -> Vec<String> {
    let hex = |text: &str| text.bytes().map(|byte| format!("{byte:02x}")).collect::<String>();
    let contains = |part: &str| bytes.windows(part.len()).any(|window| window == part.as_bytes());
    markers().into_iter().filter(|marker| contains(marker) || contains(&hex(marker))).collect()
}

/// The markers in the files of a folder.
fn found_in(folder: &Path) -> Vec<(PathBuf, Vec<String>)> {
    let files = fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
    let searched = files.filter(|file| file.is_file()).map(|file| (file.clone(), found(&fs::read(file).unwrap())));
    searched.filter(|(_, found)| !found.is_empty()).collect()
}

/// A set-up with some keys.
enum Setup {
    Embedded(tempfile::TempDir),
    Scaled(Box<Fleet>),
}

impl Setup {
    fn command(&self, name: &str, keys: &str) -> Command {
        let environment =
            [("WEIR_ENCRYPTION_KEYS", keys), ("WEIR_ENCRYPT_BODIES", if keys.is_empty() { "false" } else { "true" })];
        match self {
            Self::Embedded(folder) => {
                let mut command = App::command(folder.path());
                command.arg(name).envs(environment).stderr(log(folder.path()));
                command
            }
            Self::Scaled(fleet) => fleet.command(name, &environment),
        }
    }

    async fn serve(&self, keys: &str) -> App {
        App::launch(self.command("serve", keys)).await.unwrap_or_else(|status| panic!("it exited: {status}"))
    }

    /// The exit code and the output of `weir secrets`.
    async fn secrets(&self, command: &str, keys: &str) -> (Option<i32>, String) {
        let output = self.command("secrets", keys).arg(command).stderr(Stdio::piped()).output().await.unwrap();
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    }

    /// A rotation that is killed as soon as it has done something, and is run again to its end.
    async fn rotate(&self, keys: &str) -> String {
        let mut killed = self.command("secrets", keys).arg("rotate").stdout(Stdio::null()).spawn().unwrap();
        tokio::time::sleep(Duration::from_millis(60)).await;
        killed.kill().await.unwrap();
        let (code, text) = self.secrets("rotate", keys).await;
        assert_eq!(code, Some(0), "{text}");
        let (code, checked) = self.secrets("check", keys).await;
        assert_eq!(code, Some(0), "{checked}");
        text
    }

    /// Where the markers are: in the files, the tables, the values of Redis and the log.
    async fn search(&mut self) -> Vec<(String, Vec<String>)> {
        let mut places = Vec::new();
        match self {
            Self::Embedded(folder) => {
                let in_files = found_in(folder.path()).into_iter();
                places.extend(in_files.map(|(file, found)| (file.display().to_string(), found)));
            }
            Self::Scaled(fleet) => {
                places.push(("the tables".to_owned(), found(fleet.dump_text().await.as_bytes())));
                places.push(("Redis".to_owned(), found(fleet.redis_values().await.as_bytes())));
                places.push(("the log".to_owned(), found(fleet.log().as_bytes())));
            }
        }
        places.retain(|(_, found)| !found.is_empty());
        places
    }
}

fn log(folder: &Path) -> fs::File {
    fs::File::options().create(true).append(true).open(folder.join("log")).unwrap()
}

async fn post(app: &App, count: usize) {
    for _ in 0..count.div_ceil(100) {
        let events: Vec<_> = (0..100).map(|n| json!({"type": "sealed", "data": {"n": n, "text": BODY}})).collect();
        let (status, answer) =
            app.request(reqwest::Method::POST, "/v1/events/batch", Some(json!({ "events": events }))).await;
        assert_eq!(status, 202, "{answer}");
    }
}

/// In the clear, then with a key, then with another, then in the clear again: under load, with rotations that are killed.
async fn keys_come_and_go(mut setup: Setup) {
    let receiver = Receiver::start().await;
    let answer = Answer::status(200).body(AnswerBody::Text(ANSWER.to_owned()));
    receiver.script("/sealed", [answer]);
    let (first, second) = (key(1), key(2));
    let mut sent = 0;
    // Without keys everything is clear, and the search finds it.
    let app = setup.serve("").await;
    let settings = json!({"url": receiver.url("/sealed"), "event_types": ["sealed"], "secret": secret(),
        "headers": {"x-token": HEADER}});
    let id = app.destination(settings).await;
    post(&app, 600).await;
    sent += 600;
    receiver.wait_for("/sealed", sent, SECOND * 60).await;
    app.drained(&id, SECOND * 30).await;
    let clear: HashSet<String> = setup.search().await.into_iter().flat_map(|(_, found)| found).collect();
    assert_eq!(clear, markers().into(), "the search finds what is clear");
    assert_eq!(app.terminate().await.code(), Some(0));

    // With a key: what is new is encrypted, what is old is rotated.
    let app = setup.serve(&format!("none,{first}")).await;
    assert_eq!(app.terminate().await.code(), Some(0));
    for keys in [first.clone(), format!("{second},{first}")] {
        let app = setup.serve(&keys).await;
        post(&app, 100).await;
        let (code, checked) = setup.secrets("check", &keys).await;
        assert_eq!(code, Some(1), "values wait for the rotation: {checked}");
        let ((), said) = tokio::join!(post(&app, 1_000), setup.rotate(&keys));
        sent += 1_100;
        assert_eq!(said.contains("remove it from WEIR_ENCRYPTION_KEYS"), keys.contains(','), "{said}");
        receiver.wait_for("/sealed", sent, SECOND * 60).await;
        app.drained(&id, SECOND * 30).await;
        // They are read as they were written.
        let shown = app.get(&format!("/v1/destinations/{id}/secret")).await;
        assert_eq!(shown["secret"], secret());
        let events = app.get("/v1/deliveries?limit=1").await;
        let delivery = app.get(&format!("/v1/deliveries/{}", events["data"][0]["id"].as_str().unwrap())).await;
        assert_eq!(delivery["attempts"][0]["response_body"], ANSWER, "{delivery}");
        let event = app.get(&format!("/v1/events/{}", delivery["event_id"].as_str().unwrap())).await;
        assert_eq!(event["data"]["text"], BODY);
        assert_eq!(app.terminate().await.code(), Some(0));
        // Free pages of a file are overwritten while Weir is stopped.
        setup.rotate(&keys).await;
        let clear = setup.search().await;
        assert!(clear.is_empty(), "{clear:?}");
        if let Setup::Embedded(folder) = &setup {
            let backup = App::command(folder.path()).args(["backup", "--into", "copy.db"]).output().await.unwrap();
            assert!(backup.status.success());
            let clear = found_in(folder.path());
            assert!(clear.is_empty(), "{clear:?}");
            fs::remove_file(folder.path().join("copy.db")).unwrap();
        }
    }

    // The first key is needed by nothing. Without the second one, nothing starts and nothing changes.
    for (keys, named) in
        [("", "WEIR_ENCRYPTION_KEYS"), (first.as_str(), "WEIR_ENCRYPTION_KEYS"), ("hush", "base64 of 32")]
    {
        let output = setup.command("serve", keys).stderr(Stdio::piped()).output().await.unwrap();
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(named) && !error.contains("hush"), "{error}");
    }
    let app = setup.serve(&second).await;
    post(&app, 100).await;
    sent += 100;
    receiver.wait_for("/sealed", sent, SECOND * 60).await;

    // The way back.
    assert_eq!(app.terminate().await.code(), Some(0));
    let keys = format!("none,{second}");
    let app = setup.serve(&keys).await;
    let said = setup.rotate(&keys).await;
    assert!(said.contains("remove it"), "{said}");
    assert_eq!(app.terminate().await.code(), Some(0));
    let app = setup.serve("").await;
    post(&app, 100).await;
    sent += 100;
    let arrivals = receiver.wait_for("/sealed", sent, SECOND * 60).await;
    app.drained(&id, SECOND * 30).await;
    assert_eq!(receiver.count("/sealed"), sent, "no event is sent twice");
    let webhook = Webhook::new(&secret()).unwrap();
    for arrival in &arrivals {
        assert!(webhook.verify(&arrival.body, &arrival.headers).is_ok());
        assert_eq!(arrival.header("x-token"), HEADER);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_come_and_go_under_load_in_a_file() {
    keys_come_and_go(Setup::Embedded(tempfile::tempdir().unwrap())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_come_and_go_under_load_on_postgresql_and_redis() {
    keys_come_and_go(Setup::Scaled(Box::new(Fleet::new().await))).await;
}

/// Entries that no worker takes stay in the delivery queue.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn entries_of_redis_have_no_clear_body() {
    for (keys, is_clear) in [(String::new(), true), (key(1), false)] {
        let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
        let bodies = if is_clear { "false" } else { "true" };
        let environment = [("WEIR_ENCRYPTION_KEYS", keys.as_str()), ("WEIR_ENCRYPT_BODIES", bodies)];
        let api = fleet.launch_with("api", &environment).await;
        let _scheduler = fleet.launch_with("scheduler", &environment).await;
        let settings = json!({"url": receiver.url("/queued"), "event_types": ["sealed"], "secret": secret()});
        api.destination(settings).await;
        post(&api, 100).await;
        eventually("entries wait", SECOND * 20, async || fleet.entries().await != "0 0").await;
        let in_redis = found(fleet.redis_values().await.as_bytes());
        assert_eq!(in_redis.contains(&BODY.to_owned()), is_clear, "{in_redis:?}");
        let _worker = fleet.launch_with("worker", &environment).await;
        let arrivals = receiver.wait_for("/queued", 100, SECOND * 60).await;
        assert!(arrivals.iter().all(|arrival| String::from_utf8_lossy(&arrival.body).contains(BODY)));
    }
}

/// A process that lacks a key that others use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_without_a_key_sends_nothing_until_it_has_the_key() {
    let (mut fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let (old, both) = (key(1), format!("{},{}", key(2), key(1)));
    let (old, both) = ([("WEIR_ENCRYPTION_KEYS", old.as_str())], [("WEIR_ENCRYPTION_KEYS", both.as_str())]);
    let worker = fleet.launch_with("worker", &old).await;
    eventually("it is ready", SECOND * 10, async || worker.status("/readyz").await == 200).await;
    let api = fleet.launch_with("api", &both).await;
    let _scheduler = fleet.launch_with("scheduler", &both).await;
    eventually("it is not ready", SECOND * 10, async || worker.status("/readyz").await == 503).await;
    // Its lease has lapsed by then.
    eventually("it holds no lease", SECOND * 10, async || fleet.log().contains("this process lacks a key")).await;
    tokio::time::sleep(SECOND * 5).await;
    let id = api.destination(json!({"url": receiver.url("/waits"), "event_types": ["waits"]})).await;
    api.events("waits", 20).await;
    tokio::time::sleep(SECOND * 3).await;
    assert_eq!(receiver.count("/waits"), 0);
    worker.terminate().await;
    let _worker = fleet.launch_with("worker", &both).await;
    receiver.wait_for("/waits", 20, SECOND * 60).await;
    api.drained(&id, SECOND * 20).await;
    let deliveries = api.get("/v1/deliveries?limit=50").await;
    let attempts = deliveries["data"].as_array().unwrap().iter().map(|one| one["attempt_count"].as_u64().unwrap());
    assert_eq!(attempts.collect::<Vec<_>>(), [1; 20], "waiting is no attempt");
}

/// Values that somebody has moved from one row to another, or damaged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_opened_waits_and_nothing_else_does() {
    let (fleet, receiver) = (Fleet::new().await, Receiver::start().await);
    let keys = key(1);
    let environment = [("WEIR_ENCRYPTION_KEYS", keys.as_str()), ("WEIR_ENCRYPT_BODIES", "true")];
    let app = fleet.launch_with("serve", &environment).await;
    let destination =
        |path: &str| json!({"url": receiver.url(path), "event_types": [path.trim_start_matches('/')], "paused": true});
    let (damaged, sound) =
        (app.destination(destination("/damaged")).await, app.destination(destination("/sound")).await);
    app.events("damaged", 3).await;
    app.events("sound", 3).await;
    // The secrets of one destination, and the body of one event.
    fleet
        .sql(
            "UPDATE destinations SET signing = (SELECT signing FROM destinations WHERE name <> d.name OR id <> d.id LIMIT 1), \
             version = DEFAULT FROM (SELECT id, name FROM destinations WHERE url LIKE '%damaged') d WHERE destinations.id = d.id; \
             UPDATE events SET body = set_byte(body, 30, get_byte(body, 30) # 1) \
             WHERE id = (SELECT id FROM events WHERE event_type = 'sound' ORDER BY id LIMIT 1)",
        )
        .await;
    assert_eq!(app.terminate().await.code(), Some(0));
    let app = fleet.launch_with("serve", &environment).await;
    let edit = |id: &str| (reqwest::Method::PATCH, format!("/v1/destinations/{id}"), Some(json!({"paused": false})));
    let (method, path, body) = edit(&damaged);
    let (status, answer) = app.request(method, &path, body).await;
    assert_eq!(status, 503, "{answer}");
    assert!(answer["detail"].as_str().unwrap().contains("cannot read its secrets"), "{answer}");
    assert_eq!(app.status(&format!("/v1/destinations/{damaged}/secret")).await, 503);
    let shown = app.get(&format!("/v1/destinations/{damaged}")).await;
    assert_eq!(shown["paused"], true);
    assert!(shown["paused_reason"].as_str().unwrap().contains("destinations.signing"), "{shown}");
    app.patch(&sound, json!({"paused": false})).await;
    receiver.wait_for("/sound", 2, SECOND * 20).await;
    tokio::time::sleep(SECOND * 5).await;
    assert_eq!((receiver.count("/sound"), receiver.count("/damaged")), (2, 0));
    let waiting = app.get(&format!("/v1/deliveries?destination={sound}&limit=10")).await;
    let rows = waiting["data"].as_array().unwrap();
    let attempts = |row: &serde_json::Value| row["attempt_count"].as_u64().unwrap();
    assert_eq!(rows.iter().map(attempts).sum::<u64>(), 2, "waiting is no attempt: {waiting}");
    // What was damaged is put right.
    fleet
        .sql(
            "UPDATE events SET body = set_byte(body, 30, get_byte(body, 30) # 1) \
             WHERE id = (SELECT id FROM events WHERE event_type = 'sound' ORDER BY id LIMIT 1)",
        )
        .await;
    receiver.wait_for("/sound", 3, SECOND * 30).await;
    app.drained(&sound, SECOND * 10).await;
}
