//! What the commands print fits a terminal of 80 columns.

use std::path::Path;

use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;

use crate::support::App;

/// Runs a program in a terminal of 80 columns, and prints what it printed.
const IN_A_TERMINAL: &str = r#"
import fcntl, os, pty, struct, sys, termios
pid, fd = pty.fork()
if pid == 0:
    fcntl.ioctl(1, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 80, 0, 0))
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    try:
        part = os.read(fd, 65536)
    except OSError:
        break
    if not part:
        break
    sys.stdout.buffer.write(part)
os.waitpid(pid, 0)
"#;

/// What a command prints on a terminal, whatever its exit code.
async fn shown(app: &App, folder: &Path, arguments: &[&str]) -> String {
    let mut weir = App::command(folder);
    weir.args(arguments);
    let weir = weir.as_std();
    let python = std::env::var_os("WEIR_TEST_PYTHON").unwrap_or_else(|| "python3".into());
    let mut command = Command::new(python);
    command.args(["-c", IN_A_TERMINAL]).arg(weir.get_program()).args(weir.get_args());
    command.env("WEIR_URL", &app.url).env("XDG_CONFIG_HOME", folder).env("TERM", "xterm").env("NO_COLOR", "1");
    let output = tokio::time::timeout(std::time::Duration::from_secs(60), command.output()).await;
    let output = output.expect("it ends").expect("python3 runs: name it in WEIR_TEST_PYTHON");
    assert!(output.stderr.is_empty(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().replace('\r', "")
}

/// The answer to a request that succeeds.
async fn posted(app: &App, path: &str, body: Value) -> Value {
    let (status, answer) = app.request(Method::POST, path, Some(body)).await;
    assert!((200..300).contains(&status), "{path}: {answer}");
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_line_of_a_rich_installation_is_wider_than_a_terminal() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start_with(folder.path(), &[]).await;
    let limits = json!([{"limit": 1, "period": "hour"}]);
    let group = json!({"name": "the account of the partner in northern Europe", "rate_limits": limits});
    let group = posted(&app, "/v1/limit-groups", group).await;
    let member = "member of the account of the partner in northern Europe";
    let paused = "webhooks of the accounting department, paused";
    let keyed = "hub of all customers";
    let url = "http://127.0.0.1:1/hooks";
    let settings = [
        json!({"name": member, "url": url, "limit_group": group["id"]}),
        json!({"name": paused, "url": url, "rate_limits": limits, "paused": true}),
        json!({"name": keyed, "url": url, "rate_limits": limits, "key_limits": {"key": "/customer", "rate_limits": limits}}),
        json!({"name": "adaptive", "url": url, "adaptive": {}}),
    ];
    for settings in settings {
        posted(&app, "/v1/destinations", settings).await;
    }
    let hold = format!("/v1/limit-groups/{}/hold", group["id"].as_str().unwrap());
    posted(&app, &hold, json!({"for_s": 3_600, "reason": "the partner moves its data centre to another town"})).await;
    for n in 0..3 {
        posted(&app, "/v1/events", json!({"type": "order.paid", "data": {"customer": format!("cus_{n}")}})).await;
    }
    let waiting = app.get("/v1/deliveries?state=pending&limit=1").await;
    let first = waiting["data"][0]["id"].as_str().unwrap();
    posted(&app, &format!("/v1/deliveries/{first}/cancel"), json!({})).await;
    posted(&app, "/v1/replays", json!({"states": ["cancelled"]})).await;
    let (mut broken, limit) = (0, ["--limit", "2/hour"]);
    for arguments in [
        &["doctor"][..],
        &["status"],
        &["overview"],
        &["alerts"],
        &["limit-groups", "list"],
        &["limit-groups", "show", "the account of the partner in northern Europe"],
        &["limit-groups", "history", "the account of the partner in northern Europe"],
        &["limit-keys", "list", keyed],
        &["limit-keys", "show", keyed, "cus_1"],
        &["destinations", "show", member],
        &["destinations", "show", "adaptive"],
        &["preview", paused, limit[0], limit[1]],
        &["simulate", "--destination", paused, limit[0], limit[1]],
        &["audit", "--destination", keyed],
        &["deliveries", "list"],
        &["replays", "list"],
        &["activity"],
    ] {
        let text = shown(&app, folder.path(), arguments).await;
        assert!(!text.trim().is_empty(), "{arguments:?}");
        for line in text.lines() {
            let width = line.chars().count();
            assert!(width <= 80, "{arguments:?}: {width} columns: {line}");
        }
        broken += text.lines().filter(|line| line.starts_with("    ") || line.starts_with("             ")).count();
    }
    assert!(broken > 0, "something is too wide for one line");
}
