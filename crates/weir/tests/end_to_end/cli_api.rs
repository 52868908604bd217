//! The commands that call a running server: what they change, print and answer, and their exit codes.

use std::{process::Output, time::Duration};

use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, BufReader},
    process::Command,
};

use crate::support::{Answer, App, Fleet, Receiver};

/// A user with a server, and the folders of that user.
struct User {
    app: App,
    folder: tempfile::TempDir,
}

impl User {
    async fn start() -> Self {
        Self::start_with(&[]).await
    }

    async fn start_with(environment: &[(&str, &str)]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let app = App::start_with(folder.path(), environment).await;
        Self { app, folder }
    }

    /// The program with the environment of the user. Its output is no terminal.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = App::command(self.folder.path());
        command.args(arguments).env("WEIR_URL", &self.app.url).env("XDG_CONFIG_HOME", self.folder.path());
        command
    }

    async fn run(&self, arguments: &[&str]) -> Output {
        finish(self.command(arguments)).await
    }

    /// The output of a command that succeeds.
    async fn says(&self, arguments: &[&str]) -> String {
        let output = self.run(arguments).await;
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The JSON of a command that succeeds.
    async fn json(&self, arguments: &[&str]) -> Value {
        let text = self.says(&[arguments, &["--json"]].concat()).await;
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{arguments:?}: {error}: {text}"))
    }

    /// The exit code and the error of a command that fails.
    async fn fails(&self, arguments: &[&str]) -> (i32, String) {
        failure(self.run(arguments).await)
    }
}

pub(crate) async fn finish(mut command: Command) -> Output {
    tokio::time::timeout(Duration::from_secs(60), command.output()).await.expect("it ends").expect("it runs")
}

fn failure(output: Output) -> (i32, String) {
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
    (output.status.code().unwrap(), error)
}

fn ids(rows: &Value) -> Vec<&str> {
    rows.as_array().unwrap().iter().map(|row| row["id"].as_str().unwrap()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_is_created_edited_paused_and_deleted_by_its_name() {
    let user = User::start().await;
    let created = user
        .json(
            &[
                &["destinations", "create", "http://127.0.0.1:1/hooks", "--name", "Acme"][..],
                &["--limit", "10/second+50ms", "--limit", "300/minute:5", "--min-interval-ms", "90"],
                &["--event-type", "video.*", "--header", "X-Api-Key: 7"],
            ]
            .concat(),
        )
        .await;
    let id = created["id"].as_str().unwrap();
    assert!(created["secret"].as_str().unwrap().starts_with("whsec_"), "{created}");
    let limits = json!([
        {"limit": 10, "period": "second", "burst": 1, "margin_ms": 50},
        {"limit": 300, "period": "minute", "burst": 5, "margin_ms": 0},
    ]);
    assert_eq!(created["min_interval_ms"], json!(90));
    assert_eq!((&created["rate_limits"], &created["headers"]), (&limits, &json!({"x-api-key": "***"})));

    let shown = user.says(&["destinations", "show", "Acme"]).await;
    for part in ["10/second+50ms, 300/minute:5, 90 ms apart", "video.*", "x-api-key", "0 pending", "active", id] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    let edited = &["destinations", "edit", "Acme", "--limit", "20/second", "--ordered", "--no-min-interval"];
    let edited = user.says(edited).await;
    assert!(edited.contains("20/second.") && !edited.contains("apart"), "{edited}");
    user.says(&["destinations", "pause", "Acme"]).await;
    let stored = user.app.get(&format!("/v1/destinations/{id}")).await;
    assert_eq!(stored["rate_limits"], json!([{"limit": 20, "period": "second", "burst": 1, "margin_ms": 0}]));
    assert_eq!(
        (&stored["paused"], &stored["ordered"], &stored["event_types"]),
        (&json!(true), &json!(true), &json!(["video.*"]))
    );
    for filter in [&["--state", "paused"][..], &["--search", "acm"], &["--name", "Acme"]] {
        let list = user.says(&[&["destinations", "list"], filter].concat()).await;
        assert!(list.lines().nth(1).unwrap().contains("paused"), "{list}");
    }
    assert_eq!(user.json(&["destinations", "list", "--state", "active"]).await, json!([]));

    user.says(&["destinations", "edit", "Acme", "--signature", "slack", "--body", "data"]).await;
    let shown = user.says(&["destinations", "show", "Acme"]).await;
    assert!(shown.contains("slack, in x-slack-signature") && shown.contains("data, as application/json"), "{shown}");
    let filter = r#"{"/amount": {"gte": 100}}"#;
    user.says(&["destinations", "edit", "Acme", "--filter", filter]).await;
    assert!(user.says(&["destinations", "show", "Acme"]).await.contains(r#"filter       {"/amount":{"gte":100}}"#));
    let try_filter = |arguments: &[&'static str]| [&["destinations", "try-filter", "Acme"], arguments].concat();
    let tried = user.says(&try_filter(&["--data", r#"{"amount": 99}"#])).await;
    assert_eq!(tried.trim(), "The event does not pass the filter.\n  fails /~1amount");
    let tried = user.says(&try_filter(&["--data", r#"{"amount": 99}"#, "--filter", r#"{"/amount": 99}"#])).await;
    assert_eq!(tried.trim(), "The event passes the filter.\n  holds /~1amount");
    let (code, error) = user.fails(&try_filter(&["--data", "{"])).await;
    assert!(code == 2 && error.contains("no JSON"), "{error}");
    let edited = user.json(&["destinations", "edit", "Acme", "--no-filter"]).await;
    assert_eq!(edited["filter"], Value::Null);
    let twice = ["destinations", "edit", "Acme", "--header", "X-A:1", "--header", "x-a: 2"];
    let (code, error) = user.fails(&twice).await;
    assert!(code == 2 && error.contains("x-a twice"), "{error}");

    user.says(&["destinations", "resume", id]).await;
    let released = user.says(&["destinations", "release", "Acme"]).await;
    assert!(released.contains("Released"), "{released}");
    let raise = ["destinations", "override", "Acme", "--limit", "50/second", "--for", "2h", "--reason", "launch day"];
    let raised = user.says(&raise).await;
    assert!(raised.contains("Acme: 50/second until 2") && raised.contains("Z: launch day"), "{raised}");
    let held = user.says(&["destinations", "hold", "Acme", "--until", "+1h", "--reason", "their maintenance"]).await;
    assert!(held.contains("held until 2") && held.contains("Z: their maintenance"), "{held}");
    let shown = user.says(&["destinations", "show", "Acme"]).await;
    for part in ["50/second until 2", "launch day", "20/second", "held", "their maintenance"] {
        assert!(shown.contains(part), "{part} is missing in {shown}");
    }
    let ended = user.says(&["destinations", "override", "Acme", "--end"]).await;
    assert!(ended.contains("is over") && ended.contains("Its limits: 20/second"), "{ended}");
    assert_eq!(user.json(&["destinations", "hold", "Acme", "--end"]).await["held_until"], Value::Null);
    let (code, error) = user.fails(&["destinations", "override", "Acme", "--for", "2h", "--reason", "r"]).await;
    assert!(code == 2 && error.contains("--limit"), "{error}");
    let edited = user.json(&["destinations", "edit", "Acme", "--unlimited", "--ordered=false"]).await;
    assert_eq!(
        (&edited["rate_limits"], &edited["paused"], &edited["ordered"]),
        (&json!([]), &json!(false), &json!(false))
    );
    let (code, error) = user.fails(&["destinations", "delete", "Acme"]).await;
    assert!(code == 2 && error.contains("--yes"), "{error}");
    user.says(&["destinations", "delete", "Acme", "--yes"]).await;
    assert_eq!(user.json(&["destinations", "list"]).await, json!([]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn settings_come_from_a_file_and_flags_override_them() {
    let user = User::start().await;
    let file = user.folder.path().join("acme.json");
    let settings = json!({"url": "http://127.0.0.1:1/", "name": "From the file", "retry": {"max_attempts": 3}});
    std::fs::write(&file, settings.to_string()).unwrap();
    let created =
        user.json(&["destinations", "create", "--file", file.to_str().unwrap(), "--name", "From the flag"]).await;
    assert_eq!((&created["name"], &created["retry"]["max_attempts"]), (&json!("From the flag"), &json!(3)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_arrives_byte_for_byte_and_its_delivery_is_shown_and_sent_again() {
    let (user, receiver) = (User::start().await, Receiver::start().await);
    user.says(&["destinations", "create", &receiver.url("/cli"), "--name", "Acme"]).await;
    let data = r#"{"b": 1.50, "a": "é"}"#;
    let posted = user.says(&["events", "post", "video.created", data, "--idempotency-key", "k1"]).await;
    assert!(posted.contains("1 delivery"), "{posted}");
    let again = user.says(&["events", "post", "video.created", data, "--idempotency-key", "k1"]).await;
    assert!(again.contains("already posted"), "{again}");
    let arrivals = receiver.wait_for("/cli", 1, Duration::from_secs(10)).await;
    let body = String::from_utf8_lossy(&arrivals[0].body);
    assert!(body.contains(data), "{body}");

    let events = user.json(&["events", "list", "--type", "video.created"]).await;
    let event = ids(&events)[0];
    let shown = user.says(&["events", "show", event]).await;
    assert!(shown.contains(r#""b": 1.50,"#) && shown.contains("k1") && shown.contains("dlv_"), "{shown}");
    let destination = user.json(&["destinations", "show", "Acme"]).await;
    user.app.drained(destination["id"].as_str().unwrap(), Duration::from_secs(10)).await;
    let deliveries = user.json(&["deliveries", "list", "--destination", "Acme", "--state", "delivered"]).await;
    let delivery = ids(&deliveries)[0];
    let shown = user.says(&["deliveries", "show", delivery]).await;
    assert!(shown.contains("delivered") && shown.contains(event), "{shown}");
    assert!(user.says(&["deliveries", "retry", delivery]).await.contains(delivery));
    receiver.wait_for("/cli", 2, Duration::from_secs(10)).await;
    let (code, error) = user.fails(&["deliveries", "cancel", delivery]).await;
    assert!(code == 1 && error.contains("cannot be cancelled"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_waits_is_purged_and_what_is_dead_is_replayed_after_it_was_counted() {
    let (user, receiver) = (User::start().await, Receiver::start().await);
    receiver.script("/dead", [Answer::status(400)]);
    user.says(&["destinations", "create", &receiver.url("/dead"), "--name", "Dead"]).await;
    user.says(&["destinations", "create", &receiver.url("/paused"), "--name", "Paused", "--paused"]).await;
    user.app.events("a", 3).await;
    receiver.wait_for("/dead", 3, Duration::from_secs(10)).await;

    assert!(user.says(&["destinations", "purge", "Paused", "--dry-run"]).await.contains("3 deliveries"));
    assert_eq!(user.fails(&["destinations", "purge", "Paused"]).await.0, 2);
    assert_eq!(user.json(&["destinations", "purge", "Paused", "--yes"]).await, json!({"cancelled": 3}));

    let groups = user.says(&["deliveries", "groups"]).await;
    let row: Vec<_> = groups.lines().nth(1).unwrap().split_whitespace().collect();
    assert_eq!(row[..4], ["3", "failed", "400", "Dead"], "{groups}");
    let listed = user.json(&["deliveries", "list", "--state", "failed,cancelled", "--oldest"]).await;
    let listed = ids(&listed);
    assert!(listed.len() == 6 && listed.is_sorted(), "{listed:?}");

    let dead = user.app.destination(json!({"url": receiver.url("/other")})).await;
    let none = ["replays", "create", "--dry-run", "--destination", &dead];
    assert_eq!(user.json(&none).await, json!({"total": 0}));
    let all = ["replays", "create", "--destination", "Dead", "--state", "failed"];
    let error = user.fails(&all).await.1;
    assert!(error.contains("Send 3 deliveries again?"), "{error}");
    receiver.script("/dead", [Answer::status(200)]);
    let replay = user.json(&[&all[..], &["--yes"]].concat()).await;
    let id = replay["id"].as_str().unwrap();
    receiver.wait_for("/dead", 6, Duration::from_secs(10)).await;
    let shown = user.says(&["replays", "show", id]).await;
    assert!(shown.contains("3: ") && shown.contains("failed"), "{shown}");
    assert!(user.says(&["replays", "list"]).await.contains(id));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_come_from_a_file_the_environment_or_a_profile_and_are_needed() {
    let user = User::start_with(&[("WEIR_API_KEYS", "sesame")]).await;
    let (code, error) = user.fails(&["keys", "list"]).await;
    assert!(code == 2 && error.contains("--key-file") && error.contains("WEIR_API_KEY"), "{error}");

    let file = user.folder.path().join("key");
    std::fs::write(&file, "sesame\n").unwrap();
    let with_file = ["keys", "create", "billing", "--role", "read", "--tenant", "acme"];
    let created = user.json(&[&with_file[..], &["--key-file", file.to_str().unwrap()]].concat()).await;
    let secret = created["secret"].as_str().unwrap();
    assert_eq!(created["tenants"], json!(["acme"]));

    let config = user.folder.path().join("weir/config.toml");
    std::fs::create_dir(config.parent().unwrap()).unwrap();
    let profile = format!("[profiles.reader]\nserver = \"{}\"\nkey = \"{secret}\"\n", user.app.url);
    std::fs::write(&config, profile).unwrap();
    std::process::Command::new("chmod").arg("600").arg(&config).status().unwrap();
    assert!(user.says(&["events", "list", "--profile", "reader"]).await.starts_with("id"));
    let (code, error) = user.fails(&["keys", "list", "--profile", "reader"]).await;
    assert!(code == 2 && error.contains("admin"), "{error}");

    let mut list = user.command(&["keys", "list"]);
    list.env("WEIR_API_KEY", "sesame");
    let list = String::from_utf8(finish(list).await.stdout).unwrap();
    assert!(list.contains("billing") && list.contains("acme") && !list.contains(secret), "{list}");
    std::process::Command::new("chmod").arg("644").arg(&config).status().unwrap();
    assert!(user.fails(&["events", "list", "--profile", "reader"]).await.1.contains("chmod 600"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusals_are_shown_with_their_fields_and_exit_codes() {
    let user = User::start().await;
    let (code, error) = user.fails(&["destinations", "create", "ftp://x", "--max-in-flight", "0"]).await;
    assert!(code == 2 && error.contains("\n  /url ") && error.contains("\n  /max_in_flight "), "{error}");
    let (code, error) = user.fails(&["deliveries", "show", "dlv_01h2xcejqtf2nbrexx3vqjhp41"]).await;
    assert!(code == 2 && error.contains("there is no delivery dlv_01h2xcejqtf2nbrexx3vqjhp41"), "{error}");
    let (code, error) = user.fails(&["destinations", "show", "Nobody"]).await;
    assert!(code == 2 && error.contains("`Nobody`"), "{error}");
    let (code, error) = user.fails(&["events", "post", "a", "{"]).await;
    assert!(code == 2 && error.contains("JSON"), "{error}");
    let (code, error) = user.fails(&["destinations", "edit", "Nobody", "--limit", "ten/second"]).await;
    assert!(code == 2 && error.contains("10/second"), "{error}");
    let (code, error) = user.fails(&["events", "list", "--server", "http://127.0.0.1:1"]).await;
    assert!(code == 1 && error.contains("no answer from http://127.0.0.1:1/v1/events"), "{error}");
    for name in ["Twin", "Twin"] {
        user.says(&["destinations", "create", "http://127.0.0.1:1/", "--name", name]).await;
    }
    let (code, error) = user.fails(&["destinations", "pause", "Twin"]).await;
    assert!(code == 2 && error.matches("dst_").count() == 2, "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_cut_at_its_limit_and_says_so_and_all_of_it_spans_pages() {
    let user = User::start().await;
    user.app.events("a", 230).await;
    let cut = user.run(&["events", "list", "--limit", "3"]).await;
    assert_eq!(String::from_utf8_lossy(&cut.stdout).lines().count(), 4, "{cut:?}");
    assert!(String::from_utf8_lossy(&cut.stderr).contains("--all"), "{cut:?}");
    let all = user.json(&["events", "list", "--all"]).await;
    let mut all = ids(&all);
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), 230);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_into_a_pipe_is_plain_and_complete_and_a_closed_pipe_is_no_failure() {
    let user = User::start().await;
    let name = "a name that is much longer than a terminal of eighty columns could show beside all the others";
    user.app.destination(json!({"url": "http://127.0.0.1:1/", "name": name})).await;
    let list = user.says(&["destinations", "list"]).await;
    assert!(list.contains(name) && !list.contains(['\u{1b}', '…', '─']), "{list}");

    let mut closed = user.command(&["completions", "bash"]);
    let mut closed = closed.stdout(std::process::Stdio::piped()).spawn().unwrap();
    drop(closed.stdout.take());
    assert!(closed.wait().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shell_completes_commands_names_of_destinations_and_profiles() {
    let user = User::start().await;
    for name in ["Acme production", "Acme", "Bolt"] {
        user.app.destination(json!({"url": "http://127.0.0.1:1/", "name": name})).await;
    }
    std::fs::create_dir(user.folder.path().join("weir")).unwrap();
    let profile = format!("[profiles.staging]\nserver = \"{}\"\n", user.app.url);
    std::fs::write(user.folder.path().join("weir/config.toml"), profile).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let script = user.says(&["completions", shell]).await;
        assert!(script.contains("_WEIR_COMPLETE"), "{shell}: {script}");
    }
    // As a shell asks: the words so far, and the place of the word that is typed.
    let completed = async |shell: &str, words: &[&str]| {
        let mut asked = user.command(&[&["--"], words].concat());
        asked.env("_WEIR_COMPLETE", shell).env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        if shell == "bash" {
            asked.env("_CLAP_COMPLETE_COMP_TYPE", "9").env("_CLAP_IFS", "\n");
        }
        let output = finish(asked).await;
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(completed("bash", &["weir", "dest"]).await.contains("destinations"));
    let names = completed("bash", &["weir", "tail", "ac"]).await;
    let mut names: Vec<_> = names.lines().collect();
    names.sort_unstable();
    assert_eq!(names, ["Acme", "Acme\\ production"]);
    let several = completed("zsh", &["weir", "destinations", "pause", "Acme", "B"]).await;
    assert!(several.contains("Bolt") && several.contains("127.0.0.1"), "{several}");
    assert!(completed("bash", &["weir", "events", "list", "--profile", "st"]).await.contains("staging"));
    let nowhere = ["weir", "tail", "--server", "http://127.0.0.1:1", "A"];
    assert!(!completed("bash", &nowhere).await.contains("Acme"), "nobody answers");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lists_of_deliveries_and_replays_name_the_destination() {
    let (user, receiver) = (User::start().await, Receiver::start().await);
    receiver.script("/named", [Answer::status(400)]);
    for n in 0..6 {
        let types = json!([format!("named.{n}")]);
        user.app
            .destination(json!({"url": receiver.url("/named"), "name": format!("Partner {n}"), "event_types": types}))
            .await;
        user.app.event(&format!("named.{n}")).await;
    }
    receiver.wait_for("/named", 6, Duration::from_secs(10)).await;
    crate::support::eventually("all have failed", Duration::from_secs(10), async || {
        user.json(&["deliveries", "list", "--state", "failed"]).await.as_array().unwrap().len() == 6
    })
    .await;
    let list = user.says(&["delivery", "list", "--since", "1h"]).await;
    for n in 0..6 {
        assert!(list.contains(&format!("Partner {n}")), "{list}");
    }
    assert!(user.json(&["deliveries", "list", "--until", "1h"]).await.as_array().unwrap().is_empty());
    let of_one = user.says(&["deliveries", "list", "--destination", "Partner 1", "--from", "yesterday"]).await;
    assert!(of_one.lines().count() == 2 && !of_one.contains("Partner"), "it is the same in each row: {of_one}");

    let replay = ["replays", "create", "--destination", "Partner 2", "--state", "failed", "--yes"];
    let id = user.json(&replay).await["id"].as_str().unwrap().to_owned();
    let list = user.says(&["replays", "list"]).await;
    assert!(list.contains("Partner 2"), "{list}");
    let shown = user.says(&["replay", "show", &id]).await;
    assert!(shown.contains("Partner 2 (dst_"), "{shown}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_overview_the_preview_and_the_activity_say_what_goes_on() {
    let (user, receiver) = (User::start().await, Receiver::start().await);
    let limits = json!([{"limit": 1, "period": "minute"}]);
    let settings = json!({"url": receiver.url("/slow"), "name": "Acme", "rate_limits": limits});
    user.app.destination(settings).await;
    user.app.events("many", 40).await;
    receiver.wait_for("/slow", 1, Duration::from_secs(10)).await;
    let overview = user.says(&["overview"]).await;
    for part in ["why not faster", "Acme", "1/minute", "1 destination: "] {
        assert!(overview.contains(part), "{part}: {overview}");
    }
    assert_eq!(user.json(&["overview", "--state", "paused"]).await, json!([]));

    let preview = user.says(&["preview", "Acme", "--limit", "20/s"]).await;
    let lines: Vec<_> = preview.lines().collect();
    assert!(lines[1].starts_with("now") && lines[1].contains("1/minute"), "{preview}");
    assert!(lines[2].starts_with("proposed") && lines[2].contains("20/second"), "{preview}");
    // Only the answers of the receiver bound it then.
    let unlimited = user.json(&["preview", "Acme", "--unlimited"]).await;
    assert!(unlimited["effective_per_s"].as_f64().is_none_or(|rate| rate > 1.0), "{unlimited}");
    let stored = user.json(&["destination", "show", "Acme"]).await;
    assert_eq!(stored["rate_limits"][0]["limit"], json!(1), "a preview changes nothing");

    user.says(&["destinations", "edit", "Acme", "--limit", "2/min"]).await;
    user.says(&["destinations", "pause", "Acme"]).await;
    let activity = user.says(&["activity", "--destination", "Acme", "--since", "10m"]).await;
    assert!(activity.contains("1/minute → 2/minute") && activity.contains("anonymous"), "{activity}");
    assert_eq!(user.json(&["activity", "--actor", "nobody"]).await, json!([]));

    let url = user.says(&["open", "Acme", "--print"]).await;
    assert_eq!(url.trim(), format!("{}/destinations/{}", user.app.url, stored["id"].as_str().unwrap()));
    assert_eq!(user.says(&["open", "--print"]).await.trim(), format!("{}/", user.app.url));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn alerts_say_what_is_wrong_now_and_their_thresholds_are_set_one_by_one() {
    let (user, receiver) = (User::start().await, Receiver::start().await);
    assert!(user.says(&["alerts"]).await.contains("Nothing is wrong now."));
    receiver.script("/down", [Answer::status(500)]);
    let breaker = json!({"failure_ratio": 0.5, "min_attempts": 2, "consecutive": 2});
    let settings = json!({"url": receiver.url("/down"), "name": "Acme", "breaker": breaker});
    let id = user.app.destination(settings).await;
    user.app.events("down", 4).await;
    crate::support::eventually("its breaker is open", Duration::from_secs(10), async || {
        user.app.get(&format!("/v1/destinations/{id}")).await["breaker_state"] == "open"
    })
    .await;
    let alerts = user.says(&["alerts"]).await;
    assert!(
        alerts.contains("1 thing is wrong now") && alerts.contains("breaker open") && alerts.contains("Acme"),
        "{alerts}"
    );

    let set = user.says(&["alerts", "set", "--backlog-depth", "500", "--dead-letters", "off"]).await;
    assert!(set.contains("500 deliveries") && set.contains("off"), "{set}");
    let stored = user.json(&["alerts", "set", "--oldest-age-s", "60"]).await;
    assert_eq!((&stored["backlog_depth"], &stored["dead_letters"]), (&json!(500), &Value::Null), "{stored}");
    assert!(user.says(&["alerts", "thresholds"]).await.contains("60 s"));
    let (code, error) = user.fails(&["alerts", "set"]).await;
    assert!(code == 2 && error.contains("--dead-letters"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn status_and_doctor_judge_an_installation_by_their_exit_code() {
    let (user, receiver) = (User::start().await, Receiver::start().await);
    let status = user.says(&["status"]).await;
    for part in ["sqlite, answers in", "memory", "serve", "0 destinations"] {
        assert!(status.contains(part), "{part}: {status}");
    }
    assert!(user.json(&["status"]).await["processes"][0]["host"].is_string());
    // Its lines are as wide as a terminal.
    let doctor = async || user.says(&["doctor"]).await.split_whitespace().collect::<Vec<_>>().join(" ");
    let healthy = doctor().await;
    assert!(healthy.starts_with("Nothing is wrong.") && healthy.contains("the disk"), "{healthy}");

    receiver.script("/gone", [Answer::status(410)]);
    let id = user.app.destination(json!({"url": receiver.url("/gone"), "name": "Acme"})).await;
    user.app.event("gone").await;
    crate::support::eventually("it is paused", Duration::from_secs(10), async || {
        user.app.get(&format!("/v1/destinations/{id}")).await["paused"] == true
    })
    .await;
    user.app.event("waits").await;
    let notes = doctor().await;
    for part in ["Weir works.", "note: deliveries wait behind a pause: Acme", "weir destinations resume 'Acme'"] {
        assert!(notes.contains(part), "{part}: {notes}");
    }
    let json = user.json(&["doctor"]).await;
    assert_eq!((&json["verdict"], &json["findings"][0]["severity"]), (&json!("notes"), &json!("note")), "{json}");
    assert!(!user.says(&["status"]).await.contains("verdict"), "notes are no problem");

    let away = user.run(&["doctor", "--server", "http://127.0.0.1:1"]).await;
    let text = String::from_utf8(away.stdout).unwrap();
    assert_eq!(away.status.code(), Some(1), "{text}");
    assert!(text.contains("problem: the server does not answer") && text.contains("Next: start"), "{text}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_doctor_finds_a_redis_and_a_worker_that_are_away() {
    let folder = tempfile::tempdir().unwrap();
    let mut fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    let doctor = async || {
        let mut command = App::command(folder.path());
        command.args(["doctor", "--json"]).env("WEIR_URL", &api.url).env("XDG_CONFIG_HOME", folder.path());
        let output = finish(command).await;
        let diagnosis: Value =
            serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        (output.status.code(), diagnosis.to_string())
    };
    let (code, found) = doctor().await;
    assert_eq!(code, Some(1), "{found}");
    assert!(found.contains("no scheduler runs") && found.contains("no worker runs"), "{found}");
    let others = [fleet.launch("scheduler").await, fleet.launch("worker").await];
    assert_eq!(doctor().await.0, Some(0), "{}", doctor().await.1);
    fleet.redis.kill().await.unwrap();
    let (code, found) = doctor().await;
    assert!(code == Some(1) && found.contains("the queue (redis) does not answer"), "{found}");
    // The other command that scripts ask has the same verdict.
    let mut command = App::command(folder.path());
    command.args(["status"]).env("WEIR_URL", &api.url).env("XDG_CONFIG_HOME", folder.path());
    let output = finish(command).await;
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(text.contains("DOES NOT ANSWER") && text.contains("`weir doctor` says the cause"), "{text}");
    drop(others);
}

/// The lines that `weir tail` prints.
struct Tail {
    child: tokio::process::Child,
    lines: tokio::io::Lines<BufReader<tokio::process::ChildStdout>>,
}

impl Tail {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(std::process::Stdio::piped()).kill_on_drop(true).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    async fn next(&mut self) -> String {
        let line = tokio::time::timeout(Duration::from_secs(30), self.lines.next_line()).await;
        line.expect("a line in time").unwrap().expect("tail runs")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_shows_each_attempt_survives_a_restart_of_the_server_and_ends_on_ctrl_c() {
    let receiver = Receiver::start().await;
    let port = weir_test_support::HeldPort::hold().unwrap();
    let listen = format!("127.0.0.1:{}", port.number());
    let user = User::start_with(&[("WEIR_LISTEN", &listen)]).await;
    let id = user.app.destination(json!({"url": receiver.url("/tail"), "name": "Acme"})).await;
    user.app.event("before").await;
    user.app.drained(&id, Duration::from_secs(10)).await;

    let mut tail = Tail::start(user.command(&["tail", "Acme"]));
    assert!(tail.next().await.starts_with("time"));
    assert!(tail.next().await.ends_with("before"));
    receiver.script("/tail", [Answer::status(400)]);
    user.app.event("refused").await;
    let refused = tail.next().await;
    assert!(refused.contains("failed") && refused.contains("400") && refused.ends_with("refused"), "{refused}");

    let User { app, folder } = user;
    app.kill().await;
    let app = App::start_with(folder.path(), &[("WEIR_LISTEN", &listen)]).await;
    receiver.script("/tail", [Answer::status(200)]);
    app.event("after").await;
    let after = tail.next().await;
    assert!(after.contains("delivered") && after.ends_with("after"), "{after}");
    let pid = tail.child.id().unwrap().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
    let ended = tokio::time::timeout(Duration::from_secs(10), tail.child.wait()).await.expect("it ends").unwrap();
    assert_eq!(ended.code(), Some(0));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_prints_json_lines_and_follows_the_front_of_a_long_backlog() {
    let (user, receiver) = (User::start().await, Receiver::start().await);
    let limits = json!([{"limit": 20, "period": "second"}]);
    let id = user.app.destination(json!({"url": receiver.url("/slow"), "rate_limits": limits})).await;
    user.app.events("many", 3_000).await;
    let mut tail = Tail::start(user.command(&["tail", &id, "--json", "--lines", "0"]));
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..30 {
        let line = tail.next().await;
        let delivery: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
        assert_eq!(delivery["state"], "delivered");
        assert!(seen.insert(delivery["id"].as_str().unwrap().to_owned()), "{line}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tail_follows_several_destinations_and_names_them() {
    let (user, receiver) = (User::start().await, Receiver::start().await);
    for name in ["Acme", "Bolt", "Core"] {
        let types = json!([name.to_lowercase()]);
        user.app.destination(json!({"url": receiver.url("/several"), "name": name, "event_types": types})).await;
    }
    let mut tail = Tail::start(user.command(&["tail", "Acme", "Bolt", "Acme", "--lines", "0"]));
    assert!(tail.next().await.contains("destination"));
    for (event, name) in [("core", None), ("acme", Some("Acme")), ("bolt", Some("Bolt"))] {
        user.app.event(event).await;
        if let Some(name) = name {
            let line = tail.next().await;
            assert!(line.contains(name) && line.ends_with(event), "{line}");
        }
    }
}

#[tokio::test]
async fn a_catalogue_from_a_file_decides_what_a_strict_server_accepts() {
    let user = User::start_with(&[("WEIR_EVENT_TYPES", "strict")]).await;
    let file = user.folder.path().join("types.json");
    let file = file.to_str().unwrap();
    let order = json!({"name": "order.created", "description": "An order.", "schema": {"required": ["id"]}});
    std::fs::write(file, json!([order, {"name": "order.paid"}]).to_string()).unwrap();
    let (code, error) = user.fails(&["events", "post", "order.created", "{}"]).await;
    assert!(code == 2 && error.contains("is not in the catalogue"), "{error}");
    let apply = ["event-types", "apply", file];
    assert!(user.says(&apply).await.contains("2 types added or changed, 0 as before, 0 deleted"));
    assert!(user.says(&apply).await.contains("0 types added or changed, 2 as before"));

    user.says(&["events", "post", "order.created", r#"{"id": 7}"#]).await;
    let (code, error) = user.fails(&["events", "post", "order.craeted", r#"{"id": 7}"#]).await;
    assert!(code == 2 && error.contains("did you mean `order.created`?"), "{error}");
    let (_, error) = user.fails(&["events", "post", "order.created", "{}"]).await;
    assert!(error.contains("/data must have a member `id`"), "{error}");

    let schema = user.folder.path().join("schema.json");
    std::fs::write(&schema, r#"{"type": "object"}"#).unwrap();
    user.says(&["event-types", "set", "order.created", "--schema", schema.to_str().unwrap()]).await;
    let shown = user.json(&["event-types", "show", "order.created"]).await;
    assert_eq!((&shown["description"], &shown["schema"]), (&json!("An order."), &json!({"type": "object"})));
    user.says(&["events", "post", "order.created", "{}"]).await;
    // What `list` writes, `apply` reads.
    let list = user.says(&["event-types", "list", "--all", "--json"]).await;
    std::fs::write(file, list).unwrap();
    assert!(user.says(&apply).await.contains("0 types added or changed, 2 as before"));
    std::fs::write(file, json!([{"name": "order.paid"}]).to_string()).unwrap();
    let others = [&apply[..], &["--delete-others", "--yes"]].concat();
    assert!(user.says(&others).await.contains("1 as before, 1 deleted"));
    let (_, error) = user.fails(&["events", "post", "order.created", "{}"]).await;
    assert!(error.contains("is not in the catalogue"), "{error}");
    let (_, error) = user.fails(&["event-types", "set", "order.paid", "--schema", file]).await;
    assert!(error.contains("/schema"), "{error}");
    user.says(&["event-types", "delete", "order.paid", "--yes"]).await;
    assert_eq!(user.json(&["event-types", "list"]).await, json!([]));
}

#[tokio::test]
async fn a_limit_group_is_made_shared_shown_and_deleted() {
    let user = User::start().await;
    let made =
        user.json(&["limit-groups", "create", "partner", "--limit", "100/second", "--max-in-flight", "50"]).await;
    let id = made["id"].as_str().unwrap();
    assert_eq!((&made["rate_limits"][0]["limit"], &made["max_in_flight"]), (&json!(100), &json!(50)));
    let member = ["destinations", "create", "https://example.com/", "--name", "a", "--limit-group", "partner"];
    let member = user.json(&[&member[..], &["--weight", "5"]].concat()).await;
    assert_eq!((&member["limit_group"], &member["weight"]), (&json!(id), &json!(5)));
    let shown = user.says(&["limit-groups", "show", "partner"]).await;
    for part in ["partner", id, "100/second", "members", "a"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    assert!(user.says(&["destinations", "show", "a"]).await.contains(id));
    assert!(user.says(&["limit-groups", "list"]).await.contains("100/second"));
    let past = user.says(&["limit-groups", "history", "partner", "--from", "5m", "--step", "10s"]).await;
    assert!(past.contains("by 10s") && past.contains("100/second"), "{past}");
    let judged = user.says(&["limit-groups", "audit", "partner"]).await;
    assert!(judged.contains("partner") && judged.contains("Every limit was kept in every sliding window"), "{judged}");
    let reserved = user.says(&["limit-groups", "reserve", "partner", "--wait", "10s"]).await;
    assert!(reserved.starts_with("Start the call from 20"), "{reserved}");
    user.says(&["limit-groups", "reserve", "partner", "--tenant", "default", "--wait", "10s"]).await;
    let listed = user.says(&["limit-groups", "reservations", "partner"]).await;
    assert!(listed.matches("rsv_").count() == 2, "{listed}");
    let (code, error) = user.fails(&["limit-groups", "reserve", "partner", "--wait", "1m"]).await;
    assert!(code == 2 && error.contains("30000"), "{error}");
    let edited = user.json(&["limit-groups", "edit", "partner", "--limit", "50/second", "--no-max-in-flight"]).await;
    assert_eq!((&edited["rate_limits"][0]["limit"], &edited["max_in_flight"]), (&json!(50), &Value::Null));
    let (code, error) = user.fails(&["limit-groups", "edit", "partner"]).await;
    assert!(code == 2 && error.contains("nothing to edit"), "{error}");
    let (_, error) = user.fails(&["limit-groups", "delete", "partner", "--yes"]).await;
    assert!(error.contains("has members"), "{error}");
    let (code, error) = user.fails(&["destinations", "edit", "a", "--limit-group", "nobody"]).await;
    assert!(code == 2 && error.contains("no limit group"), "{error}");
    user.says(&["destinations", "edit", "a", "--limit-group", "none"]).await;
    user.says(&["limit-groups", "delete", "partner", "--yes"]).await;
    assert_eq!(user.json(&["limit-groups", "list"]).await, json!([]));
}

#[tokio::test]
async fn limit_keys_are_set_listed_paused_and_removed() {
    let user = User::start().await;
    let url = "https://example.com/hooks";
    let set = ["--limit-key", "/customer", "--key-limit", "5/second", "--key-override", "a=b=50/second"];
    user.says(&[&["destinations", "create", url, "--name", "hub"][..], &set].concat()).await;
    user.says(&["destinations", "pause", "hub"]).await;
    for data in [r#"{"customer": "cus_1"}"#, "1"] {
        user.says(&["events", "post", "t", data]).await;
    }
    user.says(&["events", "post", "t", "1", "--limit-key", "cus_1"]).await;
    let shown = user.says(&["destinations", "show", "hub"]).await;
    assert!(shown.contains("/customer: 5/second for each value") && shown.contains("1 override"), "{shown}");
    let listed = user.says(&["limit-keys", "list", "hub"]).await;
    assert!(listed.contains("cus_1") && listed.contains("(no key)") && listed.contains("50/second"), "{listed}");
    assert!(!user.says(&["limit-keys", "list", "hub", "--search", "cus"]).await.contains("(no key)"));
    assert!(listed.contains("destination paused"), "{listed}");
    let one = user.says(&["limit-keys", "show", "hub", "cus_1"]).await;
    assert!(one.contains("2 pending") && one.contains("destination paused"), "{one}");
    assert_eq!(user.json(&["limit-keys", "show", "hub", ""]).await["pending"], 1);
    let audit = ["audit", "--destination", "hub", "--limit-key", "cus_1"];
    let audited = user.says(&audit).await;
    assert!(audited.contains("hub, key \"cus_1\"") && audited.contains("5/s"), "{audited}");
    // A preview merges like an edit, and changes nothing.
    let preview = ["preview", "hub", "--key-limit", "9/second", "--key-override", "cus_1=40/second"];
    let shown = user.json(&preview).await;
    let of_key = |key: &str| shown["keys"].as_array().unwrap().iter().find(|row| row["key"] == key).cloned().unwrap();
    assert_eq!(of_key("cus_1")["waiting"], 2, "{shown}");
    let text = user.says(&preview).await;
    assert!(
        text.contains("drained now") && text.contains("(no key)") && text.contains("Nothing was changed"),
        "{text}"
    );
    let stored = user.json(&["destinations", "show", "hub"]).await;
    assert_eq!(stored["key_limits"]["rate_limits"][0]["limit"], 5);
    for (flags, mend) in [
        (&["--key-limit", "9/second", "--key-limit", "8/second"][..], "--key-limit period `second` appears twice"),
        (&["--limit-key", "customer"], "--limit-key must be a JSON pointer"),
        (&["--limit-key", "none", "--key-limit", "9/second"], "leave out --key-limit"),
        (&["--key-override", "cus_1"], "such as cus_1=50/second"),
    ] {
        let (code, error) = user.fails(&[&["preview", "hub"][..], flags].concat()).await;
        assert!(code == 2 && error.contains(mend), "{flags:?}: {error}");
    }
    let paused = user.says(&["limit-keys", "pause", "hub", "cus_1", ""]).await;
    assert!(paused.contains("Paused the key cus_1 of hub"), "{paused}");
    let keys = user.json(&["limit-keys", "list", "hub"]).await;
    let of = |key: &str| keys["data"].as_array().unwrap().iter().find(|row| row["key"] == key).cloned().unwrap();
    assert_eq!((of("cus_1")["paused"].clone(), of("cus_1")["waiting"].clone()), (json!(true), json!(2)));
    assert_eq!(of("")["paused"], true);
    assert!(user.says(&["limit-keys", "resume", "hub", "cus_1", ""]).await.contains("Resumed the key"));
    let found = user.json(&["deliveries", "list", "--destination", "hub", "--limit-key", "cus_1"]).await;
    assert_eq!(found.as_array().map(Vec::len), Some(2));
    let edited = user.json(&["destinations", "edit", "hub", "--key-override", "a=b=none"]).await;
    assert_eq!((&edited["key_limits"]["key"], &edited["key_limits"]["overrides"]), (&json!("/customer"), &json!({})));
    let removed = user.json(&["destinations", "edit", "hub", "--limit-key", "none"]).await;
    assert_eq!(removed["key_limits"], json!(null));
    let (code, error) = user.fails(&["limit-keys", "pause", "hub", "cus_1"]).await;
    assert!(code == 1 && error.contains("set `key_limits` first"), "{code} {error}");
    user.says(&["destinations", "create", url, "--name", "plain"]).await;
    let (code, error) = user.fails(&["preview", "plain", "--key-limit", "9/second"]).await;
    assert!(code == 2 && error.contains("plain has no limits of keys: say with --limit-key"), "{code} {error}");
    let (code, error) = user.fails(&["limit-keys", "show", "plain", "cus_1"]).await;
    assert!(code != 0 && error.contains("needs a destination with limit keys"), "{code} {error}");
}
