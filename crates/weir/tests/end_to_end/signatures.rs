//! Signatures through rotations and in every style, checked by independent verifiers: the `standardwebhooks` crate, and
//! `weir verify` for single requests.

use std::{
    process::{Output, Stdio},
    time::Duration,
};

use reqwest::Method;
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use tokio::io::AsyncWriteExt as _;

use crate::support::{App, Arrival, Fleet, Receiver};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const PRIVATE: &str = "whsk_6Xb/dCcHpPea21PS1N9VY/NZW723CEc77N4rJCubMbfVKIDij2HKpMKkioLlX0dRqSKJp4AJ6p9lMicMFs6Kvg==";
const PUBLIC: &str = "whpk_1SiA4o9hyqTCpIqC5V9HUakiiaeACeqfZTInDBbOir4=";

fn accepts(secret: &str, arrival: &Arrival) -> bool {
    Webhook::new(secret).unwrap().verify(&arrival.body, &arrival.headers).is_ok()
}

/// Sends an event to the destination at `path` and returns the arrival.
async fn delivered(app: &App, receiver: &Receiver, path: &str) -> Arrival {
    let before = receiver.count(path);
    app.event(path.trim_start_matches('/')).await;
    receiver.wait_for(path, before + 1, Duration::from_secs(10)).await.remove(before)
}

async fn rotate(app: &App, id: &str, body: Value) -> Value {
    let (status, answer) = app.request(Method::POST, &format!("/v1/destinations/{id}/rotate-secret"), Some(body)).await;
    assert_eq!(status, 200, "{answer}");
    answer
}

/// The old secret, then both, then only the new one after the overlap; then a rotation without overlap.
async fn a_rotation_is_seen_by_the_next_attempts(app: &App) {
    let receiver = Receiver::start().await;
    let settings = json!({"url": receiver.url("/rotated"), "event_types": ["rotated"], "secret": OLD});
    let id = app.destination(settings).await;
    let arrival = delivered(app, &receiver, "/rotated").await;
    assert!(accepts(OLD, &arrival) && !accepts(NEW, &arrival));

    let rotated = rotate(app, &id, json!({"secret": NEW, "overlap_s": 3})).await;
    assert_eq!(rotated["secret"], NEW);
    let both = delivered(app, &receiver, "/rotated").await;
    assert!(accepts(OLD, &both) && accepts(NEW, &both));
    let signatures: Vec<_> = both.header("webhook-signature").split(' ').collect();
    let timestamp = both.header("webhook-timestamp").parse().unwrap();
    let new = Webhook::new(NEW).unwrap().sign(both.header("webhook-id"), timestamp, &both.body).unwrap();
    assert_eq!((signatures.len(), signatures[0]), (2, new.as_str()), "the new signature is first");

    tokio::time::sleep(Duration::from_millis(3_100)).await;
    let arrival = delivered(app, &receiver, "/rotated").await;
    assert!(!accepts(OLD, &arrival) && accepts(NEW, &arrival));
    let secret = app.get(&format!("/v1/destinations/{id}/secret")).await;
    assert_eq!((&secret["secret"], &secret["previous_valid_until"]), (&json!(NEW), &Value::Null));

    let at_once = rotate(app, &id, json!({"overlap_s": 0})).await;
    let made = at_once["secret"].as_str().unwrap();
    let arrival = delivered(app, &receiver, "/rotated").await;
    assert!(accepts(made, &arrival) && !accepts(NEW, &arrival));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_is_seen_by_the_next_attempts_of_one_process() {
    let folder = tempfile::tempdir().unwrap();
    a_rotation_is_seen_by_the_next_attempts(&App::start(folder.path()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rotation_through_one_process_is_seen_by_the_next_attempts_of_the_others() {
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let _others = [fleet.launch("scheduler").await, fleet.launch("worker").await, fleet.launch("worker").await];
    a_rotation_is_seen_by_the_next_attempts(&api).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_overlap_survives_the_process() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let app = App::start(folder.path()).await;
    let id = app.destination(json!({"url": receiver.url("/restarted"), "secret": OLD})).await;
    rotate(&app, &id, json!({"secret": NEW})).await;
    app.kill().await;
    let app = App::start(folder.path()).await;
    let arrival = delivered(&app, &receiver, "/restarted").await;
    assert!(accepts(OLD, &arrival) && accepts(NEW, &arrival));
}

/// `weir verify` with the body on its standard input.
async fn verify(secret: &str, arguments: &[&str], body: &[u8]) -> Output {
    let folder = tempfile::tempdir().unwrap();
    let mut command = App::command(folder.path());
    command.arg("verify").args(arguments).env("WEIR_VERIFY_SECRET", secret).kill_on_drop(true);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    // A command that refuses its arguments does not read its input.
    let _ = child.stdin.take().unwrap().write_all(body).await;
    tokio::time::timeout(Duration::from_secs(30), child.wait_with_output()).await.expect("it ends").unwrap()
}

/// Asserts the exit code and a part of the output, and that the output does not contain the secret.
fn assert_says(output: &Output, code: i32, words: &str) {
    let text = [&output.stdout[..], &output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert_eq!(output.status.code(), Some(code), "{text}");
    assert!(text.contains(words), "should say `{words}`: {text}");
    assert!(!text.contains("MfKQ9r8GKYqrTwjUPD8"), "a secret is shown: {text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weir_verify_checks_a_delivery_in_every_style() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let app = App::start(folder.path()).await;
    let styles = [
        ("/standard", OLD, OLD, json!({})),
        ("/ed25519", PRIVATE, PUBLIC, json!({"style": "standard"})),
        ("/timestamped", OLD, OLD, json!({"style": "timestamped", "header": "X-Signature"})),
        ("/body", OLD, OLD, json!({"style": "prefixed", "header": "x-signature"})),
        ("/time", OLD, OLD, json!({"style": "prefixed", "header": "x-signature", "timestamp_header": "x-time"})),
    ];
    for (path, secret, key, signature) in styles {
        let style = signature["style"].as_str().unwrap_or("standard").to_owned();
        let event_type = path.trim_start_matches('/');
        let settings =
            json!({"url": receiver.url(path), "event_types": [event_type], "secret": secret, "signature": signature});
        let id = app.destination(settings).await;
        if secret == OLD {
            rotate(&app, &id, json!({"secret": NEW})).await;
        }
        let arrival = delivered(&app, &receiver, path).await;
        assert!(!arrival.header("webhook-id").is_empty() && !arrival.header("webhook-timestamp").is_empty());
        let header = if style == "standard" { "webhook-signature" } else { "x-signature" };
        assert_eq!(arrival.headers.contains_key("webhook-signature"), style == "standard", "{path}");
        let mut arguments = vec!["--style", &style, "--signature", arrival.header(header)];
        match path {
            "/standard" | "/ed25519" => {
                let (id, time) = (arrival.header("webhook-id"), arrival.header("webhook-timestamp"));
                arguments.extend(["--id", id, "--timestamp", time]);
            }
            "/time" => {
                assert_eq!(arrival.header("x-time"), arrival.header("webhook-timestamp"));
                arguments.extend(["--timestamp", arrival.header("x-time")]);
            }
            _ => {}
        }
        assert_says(&verify(key, &arguments, &arrival.body).await, 0, "valid");
        let tampered = [&arrival.body[..], b" "].concat();
        assert_says(&verify(key, &arguments, &tampered).await, 1, "not valid: bad signature");
        if key == OLD {
            assert_says(&verify(NEW, &arguments, &arrival.body).await, 0, "valid");
        }
    }
}

#[tokio::test]
async fn weir_verify_rejects_bad_timestamps_with_1_and_misuse_with_2() {
    #[expect(clippy::disallowed_methods, reason = "the tests run in real time")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let signed = |seconds: i64| {
        let signature = Webhook::new(OLD).unwrap().sign("msg_1", now + seconds, b"{}").unwrap();
        (signature, (now + seconds).to_string())
    };
    for (seconds, more, code, words) in [
        (0, vec![], 0, "valid"),
        (-400, vec![], 1, "not valid: too old"),
        (400, vec![], 1, "not valid: too new"),
        (-400, vec!["--tolerance-s", "500"], 0, "valid"),
    ] {
        let (signature, timestamp) = signed(seconds);
        let arguments = ["--id", "msg_1", "--timestamp", &timestamp, "--signature", &signature];
        let arguments = [&arguments[..], &more].concat();
        assert_says(&verify(OLD, &arguments, b"{}").await, code, words);
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("body");
    std::fs::write(&file, "{}").unwrap();
    let (signature, timestamp) = signed(0);
    let whole = ["--id", "msg_1", "--timestamp", &timestamp, "--signature", &signature, "--body"];
    let from_file = [&whole[..], &[file.to_str().unwrap()]].concat();
    assert_says(&verify(OLD, &from_file, b"").await, 0, "valid");
    assert_says(&verify(OLD, &[&whole[..], &["nowhere"]].concat(), b"").await, 2, "--body");
    assert_says(&verify("", &whole[..6], b"").await, 2, "WEIR_VERIFY_SECRET");
    assert_says(&verify(OLD.trim_start_matches("whsec_"), &whole[..6], b"").await, 2, "the secret must be");
    assert_says(&verify(OLD, &whole[2..6], b"").await, 2, "--id");
    assert_says(&verify(OLD, &["--signature", "v1,x", "--id", "msg_1"], b"").await, 2, "--timestamp");
    assert_says(&verify(OLD, &["--style", "md5", "--signature", "x"], b"").await, 2, "--style");
    assert_says(&verify(OLD, &[], b"").await, 2, "--signature");
}
