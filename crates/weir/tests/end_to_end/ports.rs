//! Running out of ports is not a fault of the destination: it counts as no attempt, opens no breaker, and everything is
//! delivered.
//!
//! The test starts itself in a network namespace with twenty ports. It is skipped with a message where the system
//! allows no namespace (some allow it only to root) or has no `ip`.

use std::{ffi::OsStr, process::Stdio, time::Duration};

use serde_json::json;
use tokio::process::Command;

use crate::support::{Answer, App, Receiver};

const INSIDE: &str = "WEIR_TEST_IN_A_NAMESPACE";
const PORTS: usize = 20;
const EVENTS: usize = 100;

fn namespaced(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net"]).arg(program).stdin(Stdio::null());
    command
}

/// Runs this test in a namespace. Returns `true` inside the namespace.
async fn in_a_namespace(test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    let probed = namespaced("ip").args(["link", "set", "lo", "up"]).stderr(Stdio::null()).status().await;
    if !probed.is_ok_and(|status| status.success()) {
        eprintln!("skipped: this system allows no network namespace");
        return false;
    }
    let itself = std::env::current_exe().expect("this program");
    let run = namespaced(itself).args(["--exact", test, "--nocapture"]).env(INSIDE, "1").output().await;
    let output = run.expect("it runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    assert!(output.status.success(), "{}{}", text(&output.stdout), text(&output.stderr));
    false
}

async fn limit_the_ports() {
    let up = Command::new("ip").args(["link", "set", "lo", "up"]).status().await;
    assert!(up.expect("`ip` is there").success());
    let range = format!("40000 {}", 40_000 + PORTS - 1);
    std::fs::write("/proc/sys/net/ipv4/ip_local_port_range", range).expect("a namespace of the test's own");
}

async fn ports_run_out(app: &App, receiver: &Receiver) {
    receiver.script("/all", [Answer::status(200).after(Duration::from_millis(500))]);
    let settings = json!({"url": receiver.url("/all"), "max_in_flight": 64, "breaker": {"consecutive": 1}});
    let id = app.destination(settings).await;
    app.events("all", EVENTS).await;
    receiver.wait_for("/all", PORTS, Duration::from_secs(20)).await;
    app.drained(&id, Duration::from_secs(60)).await;
    assert_eq!(receiver.count("/all"), EVENTS);
    let deliveries = app.get("/v1/deliveries?limit=200").await;
    for delivery in deliveries["data"].as_array().expect("deliveries") {
        assert_eq!((&delivery["state"], &delivery["attempt_count"]), (&json!("delivered"), &json!(1)), "{delivery}");
    }
    let unused = app.metric("weir_permits_unused_total").await;
    assert!(unused > 0.0, "the ports did not run out");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn running_out_of_ports_is_not_an_attempt_in_one_process() {
    if !in_a_namespace("ports::running_out_of_ports_is_not_an_attempt_in_one_process").await {
        return;
    }
    limit_the_ports().await;
    let (folder, receiver) = (tempfile::tempdir().expect("a folder"), Receiver::start().await);
    ports_run_out(&App::start(folder.path()).await, &receiver).await;
}
