//! Runs the tour of the README: every shell block from the start of the server to "Scale out", with the README's own
//! `receiver.py`; and the block of "Scale out" itself.
//!
//! Only ports and the external address are replaced. A command with `…` needs a value of the reader and is skipped;
//! [`WITH_A_VALUE_OF_THE_READER`] is the number of these commands, so no other command is skipped by mistake.

use std::{path::Path, process::Stdio, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader, Lines},
    net::TcpStream,
    process::{ChildStdout, Command},
};
use weir_test_support::{HeldPort, Redis};

use crate::support::{App, Receiver, servers};

const README: &str = include_str!("../../../../README.md");

/// Commands that need a secret, an id or a signature: the cancel of a replay, `weir verify`, and the three reference
/// receivers (`receivers.rs` runs those).
const WITH_A_VALUE_OF_THE_READER: usize = 5;

/// Replaces the programs of the tour: `cargo run --release -- …` runs the binary under test, and a refused request ends
/// the block.
const PRELUDE: &str = r#"
set -euo pipefail
cargo() { shift 3; if [ "$1" = serve ]; then exec "$PROGRAM" "$@"; fi; "$PROGRAM" "$@"; }
curl() { command curl --fail-with-body --show-error --max-time 30 "$@"; }
python3() { exec "$PYTHON" "$@"; }
"#;

#[tokio::test]
async fn every_command_of_the_tour_works() {
    let folder = tempfile::tempdir().unwrap();
    let port = HeldPort::hold().unwrap();
    let blocks: Vec<&str> = fenced("sh").skip_while(|block| !block.contains("-- serve")).collect();
    let tour = &blocks[..blocks.iter().position(|block| block.contains("weir migrate")).unwrap()];
    let (server, rest) = tour.split_first().unwrap();
    let keys = blocks.iter().find(|block| block.contains("/v1/keys")).unwrap();

    let app = App::launch(shell(folder.path(), server)).await.unwrap();
    let with_ports = |text: &str| {
        text.replace("localhost:8080", &app.address().to_string())
            .replace("-- audit", &format!("-- audit --server {}", app.url))
            .replace("127.0.0.1:9000", &format!("127.0.0.1:{}", port.number()))
            .replace(r#"("127.0.0.1", 9000)"#, &format!(r#"("127.0.0.1", {})"#, port.number()))
            .replace("https://example.com", "https://127.0.0.1:1")
    };
    let receiver = fenced("python").find(|block| block.contains("HTTPServer")).unwrap();
    std::fs::write(folder.path().join("receiver.py"), with_ports(receiver)).unwrap();

    // The block that creates the destination ends with the receiver, which runs for as long as the test.
    let (start, rest) = rest.split_first().unwrap();
    let mut receiver = shell(folder.path(), &with_ports(start)).stdout(Stdio::piped()).spawn().unwrap();
    let mut received = BufReader::new(receiver.stdout.take().unwrap()).lines();
    listens(port.number()).await;

    // "Third terminal; set `ID` as above."
    let id = start.lines().find(|line| line.starts_with("ID=")).unwrap();
    let mut skipped = 0;
    for block in rest.iter().chain([keys]) {
        let (needs_a_value, commands): (Vec<&str>, Vec<&str>) =
            block.lines().partition(|line| code(line).contains('…'));
        skipped += needs_a_value.len();
        let script = format!("{id}\n{}", with_ports(&commands.join("\n")));
        let output = shell(folder.path(), &script).output().await.unwrap();
        let [output_text, error] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
        assert!(output.status.success(), "{block}\nended with {}\n{output_text}\n{error}", output.status);
    }
    assert_eq!(skipped, WITH_A_VALUE_OF_THE_READER);
    assert!(std::fs::read_to_string(folder.path().join("audit.svg")).unwrap().contains("</svg>"));
    everything_arrives(&mut received).await;
}

/// The shell runs the roles in the background. They end with its standard input, which closes when the test ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_commands_of_scale_out_start_roles_that_deliver() {
    let folder = tempfile::tempdir().unwrap();
    let (database, redis, receiver) =
        (servers::database().await, Redis::start().await.unwrap(), Receiver::start().await);
    let port = HeldPort::hold().unwrap();
    let block = fenced("sh").find(|block| block.contains("weir scheduler &")).unwrap();
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

    let http = reqwest::Client::builder().no_proxy().build().unwrap();
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

/// Asserts that the receiver gets all events of the tour: 150 events, the reminder, the last coalesced state, and
/// revisions in order.
async fn everything_arrives(received: &mut Lines<BufReader<ChildStdout>>) {
    let (mut created, mut percent, mut reminded, mut revisions) = (0, 0, false, Vec::new());
    let arrivals = async {
        while created < 150 || percent < 1000 || !reminded || revisions.len() < 5 {
            let line = received.next_line().await.unwrap().expect("the receiver runs");
            let Some((verdict, event)) = line.split_once(" evt_") else { continue };
            // The answer to the creation of the destination has no final newline, so the first event follows it on the
            // same line.
            assert!(verdict.ends_with("verified"), "{line}");
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

/// The README's fenced blocks of a language, in order.
fn fenced(language: &str) -> impl Iterator<Item = &'static str> {
    let fence = format!("```{language}\n");
    let starts: Vec<usize> = README.match_indices(&fence).map(|(at, fence)| at + fence.len()).collect();
    starts.into_iter().map(|start| README[start..].split_once("\n```").unwrap().0)
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
