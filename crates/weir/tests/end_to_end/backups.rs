//! `weir backup`, and restores as `docs/operations/backup.md` describes them.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, process::Output, time::Duration};

use serde_json::json;

use crate::support::{App, Fleet, Receiver, servers};

const SECOND: Duration = Duration::from_secs(1);

async fn back_up(folder: &Path, arguments: &[&str]) -> Output {
    App::command(folder).arg("backup").args(arguments).output().await.unwrap()
}

fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_while_weir_accepts_and_sends_holds_every_event_that_was_acknowledged_before_it() {
    let (folder, receiver) = (tempfile::tempdir().unwrap(), Receiver::start().await);
    let app = App::start(folder.path()).await;
    // Paused, so that every event is still to be sent after the restore.
    app.destination(json!({"url": receiver.url("/kept"), "event_types": ["kept"], "paused": true})).await;
    app.destination(json!({"url": receiver.url("/busy"), "event_types": ["busy"]})).await;
    app.events("kept", 500).await;
    let backups = folder.path().join("backups");
    fs::create_dir(&backups).unwrap();

    let (_, output) =
        tokio::join!(app.events("busy", 3_000), back_up(folder.path(), &["--into", "backups", "--keep", "2"]));
    assert!(output.status.success(), "{}", printed(&output));
    assert!(printed(&output).starts_with("wrote backups/weir-"), "{}", printed(&output));
    assert!(printed(&output).contains("checked: ok"), "{}", printed(&output));
    receiver.wait_for("/busy", 3_000, SECOND * 30).await;
    app.kill().await;

    let files: Vec<_> = fs::read_dir(&backups).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "one file, without a log: {files:?}");
    assert_eq!(fs::metadata(&files[0]).unwrap().permissions().mode() & 0o777, 0o600);

    // Restored in another folder.
    let restored = tempfile::tempdir().unwrap();
    fs::copy(&files[0], restored.path().join("weir.db")).unwrap();
    let marked = App::command(restored.path()).arg("restored").output().await.unwrap();
    assert!(marked.status.success(), "{}", printed(&marked));
    let app = App::start(restored.path()).await;
    let listed = app.get("/v1/destinations?limit=10").await;
    let kept = listed["data"].as_array().unwrap().iter().find(|one| one["paused"] == true).unwrap();
    let id = kept["id"].as_str().unwrap().to_owned();
    app.patch(&id, json!({"paused": false})).await;
    receiver.wait_for("/kept", 500, SECOND * 30).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_that_cannot_be_made_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let refused = async |arguments: &[&str], code: i32, reason: &str| {
        let output = back_up(folder.path(), arguments).await;
        assert_eq!(output.status.code(), Some(code), "{}", printed(&output));
        assert!(printed(&output).contains(reason), "{}", printed(&output));
    };
    refused(&[], 1, "there is no database").await;
    refused(&["--database-url", "sqlite:///no/such/folder/weir.db"], 2, "/no/such/folder does not exist").await;
    drop(App::start(folder.path()).await);
    refused(&["--into", "no/folder/copy.db"], 1, "cannot write no/folder/copy.db").await;
    refused(&["--into", "copy.db", "--keep", "3"], 2, "--keep needs a folder").await;
    fs::write(folder.path().join("copy.db"), "precious").unwrap();
    refused(&["--into", "copy.db"], 1, "copy.db exists already").await;
    assert_eq!(fs::read(folder.path().join("copy.db")).unwrap(), b"precious");
    // For PostgreSQL, the command; a job must not count it as a backup.
    refused(
        &["--database-url", "postgres://weir:s3cr3t@db:5432/weir", "--redis-url", "redis://r"],
        1,
        "pg_dump --format=custom",
    )
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_database_is_not_marked_while_processes_run_on_it() {
    let fleet = Fleet::new().await;
    let (api, worker) = (fleet.launch("api").await, fleet.launch("worker").await);
    let refused = fleet.run("restored").await;
    assert_eq!(refused.status.code(), Some(2), "{}", printed(&refused));
    let expected = "2 processes of Weir run on this database (1 api, 1 worker); stop all of them";
    assert!(printed(&refused).contains(expected), "{}", printed(&refused));

    // A killed process leaves its row behind, as a backup does. It does not run.
    worker.kill().await;
    assert!(api.terminate().await.success());
    let marked = fleet.run("restored").await;
    assert!(marked.status.success(), "{}", printed(&marked));
}

/// The steps of the page for an administrator of PostgreSQL, whose own user is neither that of Weir nor the owner.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dump_is_restored_for_another_owner_and_another_user() {
    let receiver = Receiver::start().await;
    let fleet = Fleet::new().await;
    let api = fleet.launch("api").await;
    api.destination(json!({"url": receiver.url("/restored"), "event_types": ["restored"]})).await;
    api.events("restored", 20).await;
    let dump = fleet.back_up().await;
    assert!(api.terminate().await.success());

    let (owner, user) = (servers::role("NOLOGIN").await, servers::role("LOGIN").await);
    let database = servers::restored_for(&dump, &owner, &user).await;
    let fleet = Fleet::on(database).await;
    let marked = fleet.run("restored").await;
    assert!(marked.status.success(), "{}", printed(&marked));
    let _running = (fleet.launch("api").await, fleet.launch("scheduler").await, fleet.launch("worker").await);
    receiver.wait_for("/restored", 20, SECOND * 30).await;
}
