//! The receivers under `examples/receivers`, each in its own process, with deliveries from a real Weir. They accept
//! requests that are signed with their secret, also during a rotation; they refuse changed or old requests; and they
//! handle each event once.

use std::{
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use reqwest::{Method, StatusCode};
use serde_json::json;
use standardwebhooks::Webhook;
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

use crate::support::App;

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
const BODY: &str = r#"{"data":"é"}"#;

/// A receiver, killed when dropped.
struct Reference {
    url: String,
    lines: Lines<BufReader<ChildStdout>>,
    _process: Child,
}

impl Reference {
    /// Starts the program on a free port with this secret. A failure shows the remedy.
    async fn start(mut command: Command, secret: &str, remedy: &str) -> Self {
        command.arg("0").env("SECRET", secret).stdout(Stdio::piped()).kill_on_drop(true);
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}. {remedy}"));
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let first = next(&mut lines).await;
        let url = first.strip_prefix("listening on ").unwrap_or_else(|| panic!("{command:?} said `{first}`. {remedy}"));
        Self { url: url.to_owned(), lines, _process: process }
    }

    /// Asserts that the next line of output begins like this.
    async fn prints(&mut self, beginning: &str) {
        let line = next(&mut self.lines).await;
        assert!(line.starts_with(beginning), "`{line}`, where `{beginning}` was expected");
    }
}

async fn next(lines: &mut Lines<BufReader<ChildStdout>>) -> String {
    let line = tokio::time::timeout(Duration::from_secs(10), lines.next_line()).await;
    line.expect("a line of output in time").expect("its output is text").unwrap_or_default()
}

/// A runtime, named by an environment variable or found on the PATH.
fn runtime(variable: &str, program: &str, script: &str) -> Command {
    let mut command = Command::new(std::env::var(variable).unwrap_or_else(|_| program.to_owned()));
    command.arg(examples().join(script));
    command
}

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/receivers")
}

/// Posts a request that was signed `age` seconds ago and returns the status of the answer.
async fn post(app: &App, receiver: &Reference, id: &str, age: i64, body: &'static str) -> StatusCode {
    #[expect(clippy::disallowed_methods, reason = "the tests run in real time")]
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() as i64;
    let signature = Webhook::new(OLD).unwrap().sign(id, now - age, BODY.as_bytes()).unwrap();
    let request = app.http.post(format!("{}/hooks", receiver.url)).header("webhook-id", id).body(body);
    let request = request.header("webhook-timestamp", now - age).header("webhook-signature", signature);
    request.send().await.unwrap().status()
}

async fn verifies_and_deduplicates(start: impl AsyncFn(&str) -> Reference) {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    let mut with_old = start(OLD).await;
    let id = app.destination(json!({"url": format!("{}/hooks", with_old.url), "secret": OLD})).await;
    let event = app.event("received").await;
    with_old.prints(&format!("accepted {event} {{\"id\":\"{event}\"")).await;

    let path = format!("/v1/destinations/{id}");
    let (status, _) = app.request(Method::POST, &format!("{path}/rotate-secret"), Some(json!({"secret": NEW}))).await;
    assert_eq!(status, 200);
    let event = app.event("received").await;
    with_old.prints(&format!("accepted {event}")).await;
    let mut with_new = start(NEW).await;
    app.patch(&id, json!({"url": format!("{}/hooks", with_new.url)})).await;
    let event = app.event("received").await;
    with_new.prints(&format!("accepted {event}")).await;
    app.drained(&id, Duration::from_secs(10)).await;
    let delivered = app.get(&format!("/v1/deliveries?destination={id}&state=delivered")).await;
    assert_eq!(delivered["data"].as_array().unwrap().len(), 3, "each answer was 2xx");

    assert_eq!(post(&app, &with_old, "msg_1", 0, r#"{"data":"e"}"#).await, 401);
    with_old.prints("refused bad signature").await;
    assert_eq!(post(&app, &with_new, "msg_1", 0, BODY).await, 401);
    with_new.prints("refused bad signature").await;
    for age in [310, -310] {
        assert_eq!(post(&app, &with_old, "msg_1", age, BODY).await, 401);
        with_old.prints("refused not recent").await;
    }
    let unsigned = app.http.post(&with_old.url).body(BODY).send().await.unwrap();
    assert_eq!(unsigned.status(), 401);
    with_old.prints("refused bad signature").await;

    // A refused request does not count as seen.
    assert_eq!(post(&app, &with_old, "msg_1", 290, BODY).await, 204);
    with_old.prints("accepted msg_1 {\"data\":\"é\"}").await;
    assert_eq!(post(&app, &with_old, "msg_1", 0, BODY).await, 204);
    with_old.prints("duplicate msg_1").await;
    assert_eq!(post(&app, &with_old, "msg_2", 0, BODY).await, 204);
    with_old.prints("accepted msg_2").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_python_receiver_verifies_and_deduplicates() {
    let remedy = "Install Python 3 (Debian: apt-get install python3), or name its program in WEIR_TEST_PYTHON";
    verifies_and_deduplicates(async |secret| {
        Reference::start(runtime("WEIR_TEST_PYTHON", "python3", "python/receiver.py"), secret, remedy).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_node_receiver_verifies_and_deduplicates() {
    let remedy = "Install Node 18 or later (Debian: apt-get install nodejs), or name its program in WEIR_TEST_NODE";
    verifies_and_deduplicates(async |secret| {
        Reference::start(runtime("WEIR_TEST_NODE", "node", "node/receiver.mjs"), secret, remedy).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_rust_receiver_verifies_and_deduplicates() {
    // `cargo test --tests` does not build examples, so it is built here, beside the binary under test and in the same
    // profile.
    let folder = Path::new(env!("CARGO_BIN_EXE_weir")).parent().unwrap();
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "weir", "--example", "receiver"]);
    if folder.ends_with("release") {
        build.arg("--release");
    }
    // Cargo's variables for this package would cause a rebuild of dependencies that read them.
    let of_this_package = |name: &str| name.starts_with("CARGO_MANIFEST") || name.starts_with("CARGO_PKG_");
    for (name, _) in std::env::vars().filter(|(name, _)| of_this_package(name)) {
        build.env_remove(name);
    }
    let status = build.current_dir(env!("CARGO_MANIFEST_DIR")).status().await.expect("cargo runs");
    assert!(status.success(), "the example builds");
    verifies_and_deduplicates(async |secret| {
        Reference::start(Command::new(folder.join("examples/receiver")), secret, "").await
    })
    .await;
}
