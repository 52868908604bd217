//! A store that answers but cannot write, and database files that are removed, replaced or opened twice: Weir accepts
//! nothing that it cannot keep, says why, and continues by itself once the cause is gone.

use std::{fs, os::unix::fs::symlink, path::Path, time::Duration};

use reqwest::Method;
use serde_json::{Value, json};
use tokio::process::Command;
use weir_test_support::weir_command;

use crate::support::{App, Fleet, eventually};

const SECOND: Duration = Duration::from_secs(1);
/// There is a beat each second, and a probe that waits for an answer. The first beats may use connections that were ended.
const NOTICED: Duration = Duration::from_secs(10);
/// A failed write counts for 5 s, and the metric is set every 5 s.
const READY_AGAIN: Duration = Duration::from_secs(15);
/// The watch looks every 2 s to 10 s, the longer the busier the machine is. Its first look may meet a connection that was
/// ended.
const LISTED: Duration = Duration::from_secs(25);

async fn post(app: &App) -> (u16, Value) {
    app.request(Method::POST, "/v1/events", Some(json!({"type": "kept", "data": {}}))).await
}

/// Posts an event and returns its id if it was accepted.
async fn accepted(app: &App) -> Option<String> {
    let (status, body) = post(app).await;
    assert!(matches!(status, 202 | 503), "{body}");
    (status == 202).then(|| body["id"].as_str().unwrap().to_owned())
}

/// Waits until the process is not ready. Nothing is posted before, so only its own writes can show the obstacle.
async fn is_not_ready(app: &App, obstacle: &str) {
    let says_why = |body: &Value| body["detail"].as_str().is_some_and(|detail| detail.contains(obstacle));
    eventually("the process is not ready", NOTICED, async || {
        let (status, body) = app.request(Method::GET, "/readyz", None).await;
        status == 503 && says_why(&body)
    })
    .await;
    eventually("a post is refused with the reason", NOTICED, async || {
        let (status, body) = post(app).await;
        assert_eq!(status, 503, "{body}");
        // Not the first post that meets a connection that was ended.
        says_why(&body)
    })
    .await;
    eventually("the metric shows it", SECOND * 10, async || app.metric("weir_store_up").await == 0.0).await;
    is_listed(app, obstacle).await;
    assert_eq!(app.status("/healthz").await, 200, "a restart would not help");
}

/// Waits until what is wrong now names the obstacle, with nothing waiting. A process without an API has no such list.
async fn is_listed(app: &App, obstacle: &str) {
    let because = obstacle.rsplit(", because ").next().unwrap();
    eventually("it is listed", LISTED, async || {
        let (_, active) = app.request(Method::GET, "/v1/alerts/active", None).await;
        let alert = &active["data"][0];
        let says_why = alert["data"]["reason"].as_str().is_some_and(|reason| reason.contains(because));
        alert["data"]["cause"] == "store_unwritable" && says_why
    })
    .await;
    eventually("the status names it", NOTICED, async || {
        let (_, status) = app.request(Method::GET, "/v1/status", None).await;
        status["store"]["obstacle"] == because
    })
    .await;
}

async fn is_ready_again(app: &App) {
    eventually("the process is ready again", READY_AGAIN, async || app.status("/readyz").await == 200).await;
    // A first post may meet a connection that was ended.
    eventually("events are accepted again", NOTICED, async || accepted(app).await.is_some()).await;
    eventually("the metric shows it", READY_AGAIN, async || app.metric("weir_store_up").await == 1.0).await;
}

/// Limits the size of files that a process may write.
async fn limit_file_size(app: &App, limit: &str) {
    let (pid, limit) = (app.pid().to_string(), format!("--fsize={limit}:unlimited"));
    assert!(Command::new("prlimit").args(["--pid", &pid, &limit]).status().await.unwrap().success());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_disk_takes_no_writes_is_not_ready_until_it_does() {
    let folder = tempfile::tempdir().unwrap();
    // A write beyond the limit is then an error and not the end of the process.
    let mut command = weir_command(Path::new("sh"), folder.path());
    command.args(["-c", "trap '' XFSZ; exec \"$0\" serve", env!("CARGO_BIN_EXE_weir")]);
    // The log is on the same disk.
    command.stderr(fs::File::create(folder.path().join("log")).unwrap());
    let app = App::launch(command).await.unwrap();
    app.event("kept").await;
    limit_file_size(&app, "0").await;
    is_not_ready(&app, "the store cannot write, because its disk reports errors").await;
    limit_file_size(&app, "unlimited").await;
    is_ready_again(&app).await;
}

/// Sets whether the database takes writes from now on, also from sessions that are open.
async fn set_read_only(fleet: &Fleet, is_read_only: bool) {
    let set = format!(
        "SET TRANSACTION READ WRITE;
        DO $$ BEGIN EXECUTE format(
            'ALTER DATABASE %I SET default_transaction_read_only = {is_read_only}', current_database()
        ); END $$;
        SELECT pg_terminate_backend(pid) FROM pg_stat_activity
            WHERE datname = current_database() AND pid <> pg_backend_pid()"
    );
    fleet.sql(&set).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_whose_database_is_read_only_is_not_ready_until_it_is_writable() {
    let fleet = Fleet::new().await;
    let (api, worker) = (fleet.launch("api").await, fleet.launch("worker").await);
    api.event("kept").await;
    set_read_only(&fleet, true).await;
    is_not_ready(&api, "the store cannot write, because it is read-only").await;
    eventually("a worker is not ready", NOTICED, async || worker.status("/readyz").await == 503).await;
    // A start says so in one sentence.
    let refused = fleet.run("worker").await;
    let error = String::from_utf8_lossy(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{error}");
    assert!(error.contains("takes no writes, because it is read-only"), "{error}");
    set_read_only(&fleet, false).await;
    is_ready_again(&api).await;
    eventually("a worker is ready again", READY_AGAIN, async || worker.status("/readyz").await == 200).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_that_is_moved_away_takes_no_events_until_it_is_back() {
    let folder = tempfile::tempdir().unwrap();
    let (database, moved) = (folder.path().join("weir.db"), folder.path().join("moved.db"));
    let app = App::start(folder.path()).await;
    let mut kept = Vec::new();
    for _ in 0..20 {
        kept.extend(accepted(&app).await);
    }
    fs::rename(&database, &moved).unwrap();
    // Not one more event is accepted.
    assert_eq!(accepted(&app).await, None);
    is_not_ready(&app, "its file was removed or replaced").await;
    fs::rename(&moved, &database).unwrap();
    is_ready_again(&app).await;
    kept.extend(accepted(&app).await);
    // A copy in its place is another file.
    fs::rename(&database, &moved).unwrap();
    fs::copy(&moved, &database).unwrap();
    is_not_ready(&app, "its file was removed or replaced").await;
    app.kill().await;

    fs::rename(&moved, &database).unwrap();
    let app = App::start(folder.path()).await;
    for id in kept {
        assert_eq!(app.status(&format!("/v1/events/{id}")).await, 200, "an accepted event is there");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_accepted_before_the_log_was_removed_are_there_after_a_kill() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    let id = app.event("kept").await;
    fs::remove_file(folder.path().join("weir.db-wal")).unwrap();
    is_not_ready(&app, "its file was removed or replaced").await;
    app.kill().await;
    let app = App::start(folder.path()).await;
    assert_eq!(app.status(&format!("/v1/events/{id}")).await, 200);
    is_ready_again(&app).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_server_on_a_file_with_two_names_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let app = App::start(folder.path()).await;
    fs::hard_link(folder.path().join("weir.db"), folder.path().join("hard.db")).unwrap();
    symlink("weir.db", folder.path().join("soft.db")).unwrap();
    for name in ["hard.db", "soft.db"] {
        let url = format!("sqlite://{}", folder.path().join(name).display());
        let second = App::command(folder.path()).arg("serve").env("WEIR_DATABASE_URL", url).output().await.unwrap();
        let error = String::from_utf8_lossy(&second.stderr);
        assert_eq!(second.status.code(), Some(2), "{name}: {error}");
        assert!(error.contains("is in use by another Weir"), "{name}: {error}");
    }
    app.event("kept").await;
}
