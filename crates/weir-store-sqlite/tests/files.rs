//! The files of a database: one engine has them under all their names, others cannot read them, and nothing is stored
//! in files that were removed or replaced.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may stop anywhere, in its helpers too")]

use std::{
    fs::{self, Permissions},
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
};

use weir_store::{
    History as _, Ingest as _, Obstacle, Processes as _, StoreError, StoreResult,
    conformance::{event, matched},
};
use weir_store_sqlite::{OpenError, SqliteStore};

const DATA: [&str; 3] = ["weir.db", "weir.db-wal", "weir.db-shm"];

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

async fn store_event(store: &SqliteStore, number: u64) -> StoreResult<()> {
    store.ingest(vec![matched(event(number))]).await.map(drop)
}

async fn has_event(path: &Path, number: u64) -> bool {
    let store = SqliteStore::open(path).await.unwrap();
    let found = store.event(event(number).id).await.unwrap().is_some();
    store.close().await;
    found
}

fn is_gone(answer: StoreResult<impl Sized>) -> bool {
    matches!(answer, Err(StoreError::CannotWrite { obstacle: Obstacle::FileGone, .. }))
}

#[tokio::test]
async fn one_engine_has_a_file_under_all_its_names() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    let first = SqliteStore::open(&path).await.unwrap();
    let (other, hard, soft) = (directory.path().join("other"), "hard.db", "soft.db");
    fs::create_dir(&other).unwrap();
    symlink(&path, other.join(soft)).unwrap();
    assert!(matches!(SqliteStore::open(&other.join(soft)).await, Err(OpenError::InUse { .. })));
    if cfg!(target_os = "linux") {
        fs::hard_link(&path, other.join(hard)).unwrap();
        let error = SqliteStore::open(&other.join(hard)).await.unwrap_err();
        assert!(matches!(&error, OpenError::InUse { lock, .. } if lock.ends_with(hard)), "{error}");
    }
    // The refused engines have not disturbed the first one.
    store_event(&first, 1).await.unwrap();
    first.check().await.unwrap();
    first.close().await;
    assert!(has_event(&other.join(soft), 1).await);
}

#[tokio::test]
async fn a_link_to_a_missing_file_creates_it_with_its_lock_beside_it() {
    let directory = tempfile::tempdir().unwrap();
    let (link, path) = (directory.path().join("link.db"), directory.path().join("real.db"));
    symlink(&path, &link).unwrap();
    let store = SqliteStore::open(&link).await.unwrap();
    assert!(matches!(SqliteStore::open(&path).await, Err(OpenError::InUse { .. })));
    store.beat(None).await.unwrap();
    assert!(store.wal_bytes() > 0, "the log is beside the file, not beside the link");
    store.close().await;
}

#[tokio::test]
async fn the_files_can_be_used_by_their_owner_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    let store = SqliteStore::open(&path).await.unwrap();
    for file in fs::read_dir(directory.path()).unwrap() {
        let file = file.unwrap().path();
        assert_eq!(mode(&file), 0o600, "{}", file.display());
    }
    store.close().await;
}

#[tokio::test]
async fn files_that_every_user_can_use_are_refused_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    SqliteStore::open(&path).await.unwrap().close().await;
    for rights in [0o644, 0o602, 0o666] {
        set_mode(&path, rights);
        let error = SqliteStore::open(&path).await.unwrap_err().to_string();
        let file = path.canonicalize().unwrap();
        assert!(error.contains(&format!("run `chmod 600 {}`", file.display())), "{error}");
        assert!(matches!(SqliteStore::migrate(&path).await, Err(OpenError::OpenToOthers { .. })));
    }
    // A log of an older version, or of a crash.
    set_mode(&path, 0o600);
    let log = directory.path().join("weir.db-wal");
    fs::write(&log, "").unwrap();
    set_mode(&log, 0o644);
    let error = SqliteStore::open(&path).await.unwrap_err().to_string();
    assert!(error.contains("weir.db-wal`") && !error.contains("weir.db "), "{error}");
    set_mode(&log, 0o600);
    // The group may be meant to: the volumes of Kubernetes.
    set_mode(&path, 0o660);
    SqliteStore::open(&path).await.unwrap().close().await;
}

#[tokio::test]
async fn nothing_is_stored_while_a_file_is_gone_and_the_store_continues_when_it_is_back() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    let store = SqliteStore::open(&path).await.unwrap();
    for (number, file) in (1..).zip(DATA) {
        let (file, kept) = (directory.path().join(file), directory.path().join("kept"));
        store_event(&store, 2 * number).await.unwrap();
        fs::rename(&file, &kept).unwrap();
        assert!(is_gone(store.beat(None).await), "the beat of {} is gone", file.display());
        assert!(is_gone(store_event(&store, 2 * number + 1).await));
        assert!(is_gone(store.check().await), "not ready");
        // Another file at the path is no better.
        fs::write(&file, "").unwrap();
        assert!(is_gone(store_event(&store, 2 * number + 1).await));
        fs::rename(&kept, &file).unwrap();
        store_event(&store, 2 * number + 1).await.unwrap();
        assert!(store.beat(None).await.unwrap());
    }
    store.close().await;
    for number in 2..8 {
        assert!(has_event(&path, number).await, "event {number}");
    }
}

#[tokio::test]
async fn the_commits_of_a_removed_log_are_in_the_database_once_it_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store_event(&store, 1).await.unwrap();
    fs::remove_file(directory.path().join("weir.db-wal")).unwrap();
    assert!(is_gone(store.beat(None).await));
    // What a start after a crash would find.
    let after = directory.path().join("after.db");
    fs::copy(&path, &after).unwrap();
    assert!(has_event(&after, 1).await);
}

/// A database with one event, whose process died: the event is in its log.
async fn crashed(directory: &Path, number: u64) -> [PathBuf; 2] {
    let (path, crashed) = (directory.join("source.db"), directory.join("crashed.db"));
    let store = SqliteStore::open(&path).await.unwrap();
    store_event(&store, number).await.unwrap();
    let logs = [directory.join("source.db-wal"), directory.join("crashed.db-wal")];
    fs::copy(&path, &crashed).unwrap();
    fs::copy(&logs[0], &logs[1]).unwrap();
    store.close().await;
    let [_, log] = logs;
    [crashed, log]
}

#[tokio::test]
async fn a_store_that_closes_leaves_the_files_of_another_database_alone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store_event(&store, 1).await.unwrap();
    // An operator moves the database away and puts a copy of another one in its place, with its log.
    let moved = directory.path().join("moved.db");
    let [other, other_log] = crashed(directory.path(), 2).await;
    fs::rename(&path, &moved).unwrap();
    fs::rename(other, &path).unwrap();
    fs::rename(other_log, directory.path().join("weir.db-wal")).unwrap();
    assert!(is_gone(store_event(&store, 3).await));
    store.close().await;

    assert!(has_event(&path, 2).await, "the log of the other database is still there");
    assert!(!has_event(&path, 1).await);
    assert!(has_event(&moved, 1).await, "the moved database has all its events");
    assert!(!has_event(&moved, 3).await);
}
