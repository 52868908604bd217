//! A full disk: `COMMIT` fails, and the events acknowledged before stay stored.

#![cfg(unix)]
#![expect(clippy::unwrap_used, reason = "a test may stop anywhere, in its helpers too")]

use std::{env, path::Path, process::Command};

use weir_core::event::{Event, EventBody};
use weir_store::{
    Destinations as _, History as _, Ingest as _, StoreError,
    conformance::{creation, destination, event, matched},
};
use weir_store_sqlite::SqliteStore;

const FOLDER: &str = "WEIR_TEST_FULL_DISK";

/// In blocks of 512 or 1,024 bytes, depending on the shell.
const LARGEST_FILE: &str = "8192";

fn large_event(number: u64) -> Event {
    let event = event(number);
    let data = format!("\"{}\"", "a".repeat(100_000));
    Event { body: EventBody::freeze(event.id, &event.event_type, event.created_at, &data), ..event }
}

/// Stores events until one is refused. Runs in a process with a limit on the file size.
async fn fill(path: &Path) {
    let store = SqliteStore::open(path).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    let mut acknowledged = 0;
    let error = loop {
        match store.ingest(vec![matched(large_event(acknowledged + 1))]).await {
            Ok(_) => acknowledged += 1,
            Err(error) => break error,
        }
        assert!(acknowledged < 1_000, "the disk never became full");
    };
    assert!(matches!(error, StoreError::CannotWrite { .. }), "{error}");
    assert!(store.check().await.is_err(), "the store reports that it is healthy");
    assert!(store.event(event(acknowledged + 1).id).await.unwrap().is_none(), "the refused event was stored");
    std::fs::write(path.with_extension("acknowledged"), acknowledged.to_string()).unwrap();
}

#[tokio::test]
async fn a_commit_that_a_full_disk_refuses_is_not_acknowledged_and_loses_nothing() {
    if let Some(folder) = env::var_os(FOLDER) {
        return fill(&Path::new(&folder).join("weir.db")).await;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = format!("trap '' XFSZ; ulimit -f {LARGEST_FILE}; exec \"$0\" \"$@\"");
    let child = Command::new("sh")
        .args(["-c", &script])
        .arg(env::current_exe().unwrap())
        .args(["--exact", "a_commit_that_a_full_disk_refuses_is_not_acknowledged_and_loses_nothing", "--nocapture"])
        .env(FOLDER, folder.path())
        .status()
        .unwrap();
    assert!(child.success(), "{child}");
    let acknowledged = std::fs::read_to_string(folder.path().join("weir.acknowledged")).unwrap();
    let acknowledged: u64 = acknowledged.parse().unwrap();
    assert!(acknowledged > 9, "{acknowledged}");
    let store = SqliteStore::open(&folder.path().join("weir.db")).await.unwrap();
    for number in 1..=acknowledged {
        assert!(store.event(event(number).id).await.unwrap().is_some(), "event {number} is lost");
    }
    store.ingest(vec![matched(large_event(acknowledged + 1))]).await.unwrap()[0].as_ref().unwrap();
    store.close().await;
}
