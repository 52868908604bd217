//! Runs the shell blocks of the README, of the tour and of the guides, in this order and against one server; and the
//! block that starts the roles.
//!
//! Only ports, the external address, the folder of the examples and the length of the tour's backlog are replaced. A block that cannot run here is marked
//! `no-run` in its fence, and [`NOT_RUN`] says why.

use std::{
    path::Path,
    process::{Output, Stdio},
    time::Duration,
};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    net::TcpStream,
    process::{ChildStdout, Command},
};
use weir_test_support::{HeldPort, Redis};

use crate::support::{App, Receiver, servers};

macro_rules! documents {
    ($($path:literal),*) => { [$(($path, include_str!(concat!("../../../../", $path)))),*] };
}

const README: &str = include_str!("../../../../README.md");
const TOUR: &str = include_str!("../../../../docs/tour.md");
const SIZING: &str = include_str!("../../../../docs/operations/sizing.md");
const GUIDES: [(&str, &str); 18] = documents![
    "docs/guides/limits.md",
    "docs/guides/order-coalesce-expire.md",
    "docs/guides/backlog-and-replays.md",
    "docs/guides/dashboard.md",
    "docs/guides/event-types.md",
    "docs/guides/command-line.md",
    "docs/guides/clients.md",
    "docs/guides/declare.md",
    "docs/guides/alerts.md",
    "docs/guides/receiving.md",
    "docs/guides/failures.md",
    "docs/guides/signatures.md",
    "docs/guides/keys-and-tenants.md",
    "docs/guides/activity.md",
    "docs/guides/filters.md",
    "docs/guides/private-receivers.md",
    "docs/guides/adaptive.md",
    "docs/guides/budgets.md"
];

/// The blocks that are not run: the document, a piece of the block, and why.
const NOT_RUN: [(&str, &str, &str); 5] = [
    ("docs/guides/clients.md", "npx openapi-typescript", "downloads programs; `generators.rs` runs them"),
    (
        "docs/guides/private-receivers.md",
        "openssl s_server",
        "it serves until it is stopped; `egress.rs` has such receivers",
    ),
    ("docs/guides/receiving.md", "--example receiver", "need the secret of the reader; `receivers.rs` runs them"),
    ("docs/guides/receiving.md", "-- verify --id", "needs the request of the reader; `signatures.rs` verifies one"),
    (
        "docs/guides/signatures.md",
        "weir verify --style",
        "needs the request of the reader; `signatures.rs` verifies one",
    ),
];

/// Replaces the programs of the blocks: `cargo run --release -- …` runs the binary under test, and a refused request ends
/// the block.
const PRELUDE: &str = r#"
set -euo pipefail
cargo() { shift 3; if [ "$1" = serve ]; then exec "$PROGRAM" "$@"; fi; "$PROGRAM" "$@"; }
curl() { command curl --fail-with-body --show-error --max-time 30 "$@"; }
python3() { exec "$PYTHON" "$@"; }
"#;

#[test]
fn every_block_is_run_or_has_a_reason() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
    assert_eq!(std::fs::read_dir(folder).unwrap().count(), GUIDES.len(), "a guide is not in the list");
    for (path, text) in [("README.md", README), ("docs/tour.md", TOUR)].into_iter().chain(GUIDES) {
        for (language, block) in fences(text) {
            let reasons = NOT_RUN.iter().filter(|(of, piece, _)| *of == path && block.contains(piece)).count();
            match language {
                "sh" => assert!(!block.lines().any(|line| code(line).contains('…')), "{path} cannot run:\n{block}"),
                "sh no-run" => assert_eq!(reasons, 1, "{path} has a block without a reason:\n{block}"),
                other => {
                    assert!(!["bash", "shell", "console"].contains(&other), "{path}: a fence is `sh`, not {other}");
                }
            }
        }
    }
    for (path, piece, _) in NOT_RUN {
        let (_, text) = GUIDES.into_iter().find(|(of, _)| *of == path).unwrap();
        assert!(
            fences(text).any(|(language, block)| language == "sh no-run" && block.contains(piece)),
            "{path}: {piece}"
        );
    }
}

#[tokio::test]
async fn every_command_of_the_readme_the_tour_and_the_guides_works() {
    let folder = tempfile::tempdir().unwrap();
    let port = HeldPort::hold().unwrap();
    let blocks: Vec<&str> = run_in(README).collect();
    let [demo, server, destination, event] = blocks[..] else { panic!("the README has other blocks: {blocks:#?}") };
    let elsewhere = tempfile::tempdir().unwrap();
    let demo = shell(elsewhere.path(), demo).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();

    let app = App::launch(shell(folder.path(), server)).await.unwrap();
    let adapted = |text: &str| {
        text.replace("localhost:8080", &app.address().to_string())
            .replace("-- audit", &format!("-- audit --server {}", app.url))
            .replace("127.0.0.1:9000", &format!("127.0.0.1:{}", port.number()))
            .replace("receiver.py 9000", &format!("receiver.py {}", port.number()))
            .replace("examples/receivers", concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/receivers"))
            .replace("https://example.com", "https://127.0.0.1:1")
            // Long enough to watch is too long for a test.
            .replace("seq 600", "seq 150")
    };
    // The block that creates the destination ends with the receiver, which runs for as long as the test.
    let mut receiver = shell(folder.path(), &adapted(destination)).stdout(Stdio::piped()).spawn().unwrap();
    let mut received = BufReader::new(receiver.stdout.take().unwrap()).lines();
    listens(port.number()).await;

    let id = TOUR.lines().find(|line| line.starts_with("ID=")).unwrap();
    let run = async |block: &str| {
        let script = format!("{id}\n{}", adapted(block));
        succeeds(block, shell(folder.path(), &script).output().await.unwrap());
    };
    for block in [event].into_iter().chain(run_in(TOUR)) {
        run(block).await;
    }
    assert!(std::fs::read_to_string(folder.path().join("audit.svg")).unwrap().contains("</svg>"));
    everything_arrives(&mut received).await;
    for block in GUIDES.into_iter().flat_map(|(_, text)| run_in(text)) {
        run(block).await;
    }
    succeeds("the demo", demo.wait_with_output().await.unwrap());
}

fn succeeds(block: &str, output: Output) {
    let [text, error] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{block}\nended with {}\n{text}\n{error}", output.status);
}

/// The shell runs the roles in the background. They end with its standard input, which closes when the test ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_that_start_the_roles_start_roles_that_deliver() {
    let folder = tempfile::tempdir().unwrap();
    let (database, redis, receiver) =
        (servers::database().await, Redis::start().await.unwrap(), Receiver::start().await);
    let port = HeldPort::hold().unwrap();
    let block = run_in(SIZING).find(|block| block.contains("weir scheduler &")).unwrap();
    let address = format!("127.0.0.1:{}", port.number());
    let block = block.replace("postgres://weir:…@db/weir", &database).replace("redis://cache:6379", &redis.url());
    let block = block.replace("127.0.0.1:8080", &address);
    // A role takes the place of its subshell, so the shell's job is the role.
    let weir = r#"weir() { if [ "$1" = migrate ]; then "$PROGRAM" "$@"; else exec "$PROGRAM" "$@"; fi; }"#;
    let script = format!("{weir}\n{block}\ncat\nkill $(jobs -p)");
    let mut roles = shell(folder.path(), &script);
    let mut roles = roles.kill_on_drop(false).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(roles.stdout.take().unwrap()).lines();
    let all_listen = async {
        let mut listening = 0;
        while listening < 4 {
            let line = output.next_line().await.unwrap().expect("the roles run");
            listening += usize::from(line.contains("is listening on"));
        }
    };
    tokio::time::timeout(Duration::from_secs(60), all_listen)
        .await
        .expect("an API, a scheduler and two workers listen");

    let http = crate::support::http_client().build().unwrap();
    let posts = [
        ("destinations", json!({"url": receiver.url("/scaled")}), 201),
        ("events", json!({"type": "scaled", "data": 1}), 202),
    ];
    for (path, body, expected) in posts {
        let answer = http.post(format!("http://{address}/v1/{path}")).json(&body).send().await.unwrap();
        assert_eq!(answer.status(), expected, "{}", answer.text().await.unwrap());
    }
    receiver.wait_for("/scaled", 1, Duration::from_secs(20)).await;
    drop(roles.stdin.take());
    let ended =
        tokio::time::timeout(Duration::from_secs(30), async { while output.next_line().await.unwrap().is_some() {} });
    ended.await.expect("the roles end with the script");
}

/// Asserts that the receiver gets all events: that of the README, and 150 events, the reminder, the last coalesced
/// state, and revisions in order, of the tour.
async fn everything_arrives(received: &mut Lines<BufReader<ChildStdout>>) {
    let (mut created, mut percent, mut reminded, mut revisions) = (0, 0, false, Vec::new());
    let arrivals = async {
        while created < 151 || percent < 1000 || !reminded || revisions.len() < 5 {
            let line = received.next_line().await.unwrap().expect("the receiver runs");
            assert!(!line.starts_with("refused"), "{line}");
            let Some(event) = line.strip_prefix("accepted ") else { continue };
            let event: Value = serde_json::from_str(event.split_once(' ').unwrap().1).unwrap();
            match event["type"].as_str().unwrap() {
                "video.created" => created += 1,
                "video.reminder" => reminded = true,
                "video.progress" => percent = event["data"]["percent"].as_u64().unwrap(),
                "video.edited" => revisions.push(event["data"]["revision"].as_u64().unwrap()),
                other => panic!("the tour sends no {other}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(90), arrivals).await.expect("all events of the tour arrive");
    assert_eq!(revisions, [1, 2, 3, 4, 5]);
}

/// The shell blocks of a document that are run, in order.
fn run_in(text: &'static str) -> impl Iterator<Item = &'static str> {
    fences(text).filter_map(|(language, block)| (language == "sh").then_some(block))
}

/// The fenced blocks of a document, each with the words behind its fence.
fn fences(text: &'static str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, after) = rest.split_once("\n```")?;
        let (language, after) = after.split_once('\n')?;
        let (block, after) = after.split_once("\n```")?;
        rest = after;
        Some((language, block))
    })
}

/// A line without its comment.
fn code(line: &str) -> &str {
    if line.starts_with('#') { "" } else { line.split_once(" # ").map_or(line, |(code, _)| code) }
}

/// Bash that runs a script in the folder. Settings come only from the script, except `WEIR_LISTEN`.
fn shell(folder: &Path, script: &str) -> Command {
    let mut command = Command::new("bash");
    for (name, value) in App::command(folder).as_std().get_envs() {
        match value {
            None => {
                command.env_remove(name);
            }
            Some(value) if name == "WEIR_LISTEN" => {
                command.env(name, value);
            }
            Some(_) => {}
        }
    }
    command
        .args(["-c", &format!("{PRELUDE}\n{script}")])
        .current_dir(folder)
        .env("PROGRAM", env!("CARGO_BIN_EXE_weir"))
        .env("PYTHON", std::env::var_os("WEIR_TEST_PYTHON").unwrap_or_else(|| "python3".into()))
        .kill_on_drop(true);
    command
}

async fn listens(port: u16) {
    let connect = async { while TcpStream::connect(("127.0.0.1", port)).await.is_err() {} };
    tokio::time::timeout(Duration::from_secs(30), connect).await.expect("the receiver listens");
}
