//! Tests of what survives the machine: every commit here goes to a disk that keeps what it was told to sync, and nothing else.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use rusqlite::{Connection, ffi};
use weir_core::{
    DeliveryState, Destination, DestinationId, EventId, Timestamp, claim::ClaimedDelivery, outcome::Verdict,
};
use weir_store::{
    ClaimRequest, Destinations as _, FastPath, History as _, Ingest as _, Outbox as _, Recovered, Results as _,
    StoreError,
    conformance::{NOW, destination, destination_id, event, matched, request, result},
};

use crate::{SqliteStore, writer::Commit};

/// `SQLITE_IOERR_FSYNC`.
const FAILED_SYNC: i32 = 1034;

/// `PRAGMA synchronous` of a commit that waits for the disk.
const FULL: i64 = 2;

/// What is on disk: of the log as much as there was at the end of the last commit that waited for it.
#[derive(Default)]
struct Disk {
    kept: AtomicUsize,
    fails: AtomicBool,
}

impl Disk {
    fn commits(self: &Arc<Self>, log: PathBuf) -> Commit {
        let disk = Arc::clone(self);
        Box::new(move |connection: &Connection| {
            if disk.fails.load(SeqCst) {
                return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(FAILED_SYNC), None));
            }
            let synchronous: i64 = connection.pragma_query_value(None, "synchronous", |row| row.get(0))?;
            connection.execute_batch("COMMIT")?;
            if synchronous == FULL {
                disk.kept.store(fs::metadata(&log).unwrap().len() as usize, SeqCst);
            }
            Ok(())
        })
    }
}

/// A store that goes through such a disk.
struct Machine {
    directory: tempfile::TempDir,
    disk: Arc<Disk>,
    store: SqliteStore,
}

impl Machine {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let disk = Arc::new(Disk::default());
        let commits = disk.commits(log_of(&directory.path().join("weir.db")));
        let store = SqliteStore::open_committing(&directory.path().join("weir.db"), commits).await.unwrap();
        Self { directory, disk, store }
    }

    /// What a machine that loses its power now finds when it has it again.
    async fn lose_power(&self) -> SqliteStore {
        let (path, after) = (self.directory.path().join("weir.db"), self.directory.path().join("after.db"));
        fs::copy(&path, &after).unwrap();
        let log = fs::read(log_of(&path)).unwrap();
        fs::write(log_of(&after), &log[..self.disk.kept.load(SeqCst)]).unwrap();
        SqliteStore::open(&after).await.unwrap()
    }
}

fn log_of(path: &Path) -> PathBuf {
    path.with_extension("db-wal")
}

/// There is always room, and what leaves is written down.
#[derive(Default)]
struct OpenFastPath {
    left: Mutex<Vec<EventId>>,
    cancelled: AtomicUsize,
}

impl FastPath for OpenFastPath {
    fn reserve(&self, _: &Destination) -> Option<Timestamp> {
        Some(NOW + Duration::from_secs(60))
    }

    fn cancel(&self, _: DestinationId) {
        self.cancelled.fetch_add(1, SeqCst);
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        self.left.lock().unwrap().extend(deliveries.iter().map(|delivery| delivery.event_id));
    }
}

#[tokio::test]
async fn what_was_acknowledged_survives_the_power_and_what_was_not_is_lost() {
    let machine = Machine::start().await;
    let store = &machine.store;
    store.create_destination(destination(1)).await.unwrap();
    store.ingest((1..=3).map(|number| matched(event(number))).collect()).await.unwrap();
    let now = NOW + Duration::from_secs(1);
    let durable = ClaimRequest { durable: true, ..request(1, 1) };
    let kept = store.claim(vec![durable], now).await.unwrap().remove(0).deliveries.remove(0);
    let lost = store.claim(vec![request(1, 1)], now).await.unwrap().remove(0).deliveries.remove(0);
    store.settle(vec![Arc::new(result(&kept, Verdict::Delivered))]).await.unwrap();

    let after = machine.lose_power().await;
    let state = async |claimed: &ClaimedDelivery| {
        after.delivery(claimed.claim.delivery_id).await.unwrap().unwrap().delivery.state
    };
    for number in 1..=3 {
        assert!(after.event(event(number).id).await.unwrap().is_some(), "event {number}");
    }
    assert_eq!(state(&kept).await, DeliveryState::Delivering, "its claim is known, and its result is not");
    assert_eq!(state(&lost).await, DeliveryState::Pending, "this claim is not known");
    let recovered = after.recover_claims(now, true, 9).await.unwrap();
    assert_eq!(recovered, Recovered { retried: 1, ..Recovered::default() });
}

#[tokio::test]
async fn what_commits_later_and_waits_for_the_disk_keeps_what_came_before() {
    let machine = Machine::start().await;
    let store = &machine.store;
    store.create_destination(destination(1)).await.unwrap();
    store.ingest(vec![matched(event(1))]).await.unwrap();
    let now = NOW + Duration::from_secs(1);
    let claimed = store.claim(vec![request(1, 1)], now).await.unwrap().remove(0).deliveries.remove(0);
    store.settle(vec![Arc::new(result(&claimed, Verdict::Delivered))]).await.unwrap();
    store.ingest(vec![matched(event(2))]).await.unwrap();

    let after = machine.lose_power().await;
    let delivery = after.delivery(claimed.claim.delivery_id).await.unwrap().unwrap().delivery;
    assert_eq!(delivery.state, DeliveryState::Delivered);
}

#[tokio::test]
async fn nothing_leaves_before_its_event_is_on_disk() {
    let machine = Machine::start().await;
    let fast_path = Arc::new(OpenFastPath::default());
    machine.store.connect(fast_path.clone());
    machine.store.create_destination(destination(1)).await.unwrap();
    for number in 1..=5 {
        let new = matched(event(number));
        let id = new.event.id;
        machine.store.ingest(vec![new]).await.unwrap();
        assert_eq!(fast_path.left.lock().unwrap().last(), Some(&id));
        // Had it left before the commit, or had that not waited for the disk, the receiver would know more than the store.
        let after = machine.lose_power().await;
        assert!(after.event(id).await.unwrap().is_some(), "event {number}");
        assert_eq!(after.destination_counts(destination_id(1)).await.unwrap().delivering, number);
        after.close().await;
    }
}

#[tokio::test]
async fn after_a_sync_that_failed_nothing_is_acknowledged_any_more() {
    let machine = Machine::start().await;
    let store = &machine.store;
    let fast_path = Arc::new(OpenFastPath::default());
    store.connect(fast_path.clone());
    store.create_destination(destination(1)).await.unwrap();
    machine.disk.fails.store(true, SeqCst);
    let error = store.ingest(vec![matched(event(1))]).await.unwrap_err();
    assert!(matches!(&error, StoreError::Unavailable(reason) if reason.contains("see to the disk")), "{error}");
    assert!(fast_path.left.lock().unwrap().is_empty(), "what was not stored left");
    assert_eq!(fast_path.cancelled.load(SeqCst), 1);

    // A later sync of the same log may succeed; what was lost before is lost all the same.
    machine.disk.fails.store(false, SeqCst);
    assert!(store.ingest(vec![matched(event(2))]).await.is_err());
    assert!(store.check().await.is_err(), "it says that it is well");
    assert!(fast_path.left.lock().unwrap().is_empty());
    store.close().await;

    let again = SqliteStore::open(&machine.directory.path().join("weir.db")).await.unwrap();
    again.ingest(vec![matched(event(2))]).await.unwrap()[0].as_ref().unwrap();
    again.close().await;
}
