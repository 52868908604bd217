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

/// The headers of a delivery that a style signs, as arguments of `weir verify`.
fn signed_headers(format: &Value, arrival: &Arrival, url: &str) -> Vec<String> {
    let (signed, value) = (format["signed"].as_str().unwrap(), format["value"].as_str().unwrap());
    let mut arguments = Vec::new();
    let of = |place: &str, header: &str, default: &str| {
        let header = format[header].as_str().unwrap_or(default);
        (signed.contains(place) && !value.contains(place)).then(|| arrival.header(header).to_owned())
    };
    for (flag, value) in [
        ("--id", of("{id}", "id_header", "webhook-id")),
        ("--timestamp", of("{timestamp}", "timestamp_header", "webhook-timestamp")),
        ("--url", signed.contains("{url}").then(|| url.to_owned())),
        ("--signature", Some(arrival.header(format["header"].as_str().unwrap()).to_owned())),
    ] {
        arguments.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    }
    arguments
}

const TEXT: &str = "It's a Secret to Everybody";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn weir_verify_checks_a_delivery_in_every_style() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let app = App::start(folder.path()).await;
    let named = |name: &str| json!({"style": name});
    let custom = json!({
        "style": "custom", "signed": "POST\n{url}\n{id}\n{timestamp}\n{body}", "value": "a={signature} t={timestamp}",
        "separator": " ", "encoding": "base64", "timestamp_format": "unix_ms", "header": "x-signature",
    });
    let styles = [
        ("standard", OLD, OLD, json!({})),
        ("ed25519", PRIVATE, PUBLIC, named("standard")),
        ("timestamped", OLD, OLD, json!({"style": "timestamped", "header": "X-Signature"})),
        ("body", OLD, OLD, json!({"style": "prefixed", "header": "x-signature"})),
        ("time", OLD, OLD, json!({"style": "prefixed", "header": "x-signature", "timestamp_header": "x-time"})),
        ("stripe", OLD, OLD, named("stripe")),
        ("github", TEXT, TEXT, named("github")),
        ("zendesk", TEXT, TEXT, named("zendesk")),
        ("square", TEXT, TEXT, named("square")),
        ("discord", PRIVATE, "(its public key in hex)", named("discord")),
        ("twitch", TEXT, TEXT, json!({"style": "twitch", "id_header": "x-id"})),
        ("custom", TEXT, TEXT, custom),
    ];
    for (event_type, secret, key, signature) in styles {
        let path = format!("/{event_type}");
        let style = signature["style"].as_str().unwrap_or("standard").to_owned();
        let url = receiver.url(&path);
        let settings = json!({"url": url, "event_types": [event_type], "secret": secret, "signature": signature});
        let id = app.destination(settings).await;
        let shown = app.get(&format!("/v1/destinations/{id}")).await;
        let takes_several = shown["signature_format"]["separator"].is_string();
        let rotates = takes_several && secret == OLD;
        if rotates {
            rotate(&app, &id, json!({"secret": NEW})).await;
        }
        let arrival = delivered(&app, &receiver, &path).await;
        assert!(!arrival.header("webhook-id").is_empty() && !arrival.header("webhook-timestamp").is_empty());
        assert_eq!(arrival.headers.contains_key("webhook-signature"), style == "standard", "{path}");
        let mut arguments = match style.as_str() {
            "custom" => vec!["--format".to_owned(), shown["signature"].to_string()],
            name => vec!["--style".to_owned(), name.to_owned()],
        };
        arguments.extend(signed_headers(&shown["signature_format"], &arrival, &url));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let key = if style == "discord" { shown["public_key_hex"].as_str().unwrap() } else { key };
        assert_says(&verify(key, &arguments, &arrival.body).await, 0, "valid");
        let tampered = [&arrival.body[..], b" "].concat();
        assert_says(&verify(key, &arguments, &tampered).await, 1, "not valid: bad signature");
        if rotates {
            assert_says(&verify(NEW, &arguments, &arrival.body).await, 0, "valid");
        }
        // The API verifies it too, with the secrets of the destination.
        let headers: serde_json::Map<String, Value> = arrival
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().into()))
            .collect();
        let body = String::from_utf8(arrival.body.to_vec()).unwrap();
        let request = json!({"destination": id, "headers": headers, "body": body});
        let (status, verified) = app.request(Method::POST, "/v1/verify", Some(request)).await;
        assert_eq!((status, &verified["valid"]), (200, &json!(true)), "{style}: {verified}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_verifiers_of_the_senders_accept_what_weir_signs_and_nothing_else() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let app = App::start(folder.path()).await;
    let node = std::env::var_os("WEIR_TEST_NODE").unwrap_or_else(|| "node".into());
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/end_to_end/verifiers.mjs");
    let names = [
        "stripe",
        "github",
        "slack",
        "zoom",
        "shopify",
        "zendesk",
        "square",
        "razorpay",
        "linear",
        "lemon-squeezy",
        "pagerduty",
        "paddle",
        "discord",
        "svix",
        "twitch",
    ];
    let mut requests = Vec::new();
    for name in names {
        let (path, event_type) = (format!("/{name}"), name);
        let settings = json!({"url": receiver.url(&path), "event_types": [event_type], "signature": {"style": name}});
        // The secret is the one that Weir made for the style.
        let (status, created) = app.request(Method::POST, "/v1/destinations", Some(settings)).await;
        assert_eq!(status, 201, "{created}");
        let secret = match created["public_key_hex"].as_str() {
            Some(public) => public.to_owned(),
            None => created["secret"].as_str().unwrap().to_owned(),
        };
        let arrival = delivered(&app, &receiver, &path).await;
        let headers: serde_json::Map<String, Value> = arrival
            .headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap_or_default().into()))
            .collect();
        let body = String::from_utf8(arrival.body.to_vec()).unwrap();
        requests.push(json!({
            "style": name, "secret": secret, "url": receiver.url(&path), "headers": headers, "body": body,
        }));
    }
    let mut command = tokio::process::Command::new(node);
    command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(json!(requests).to_string().as_bytes()).await.unwrap();
    let output =
        tokio::time::timeout(Duration::from_secs(60), child.wait_with_output()).await.expect("it ends").unwrap();
    let verdicts: Value = serde_json::from_slice(&output.stdout).unwrap();
    for name in names {
        assert_eq!(verdicts[name], json!({"accepted": true, "tampered": false}), "{name}: {verdicts}");
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
