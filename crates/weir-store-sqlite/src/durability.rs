//! Tests of power failures, with a simulated disk that keeps only synced data.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicI32, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use rusqlite::{Connection, ffi};
use weir_core::{
    DeliveryState, Destination, DestinationId, EventId, Timestamp, claim::ClaimedDelivery, outcome::Verdict,
};
use weir_store::{
    ClaimRequest, Destinations as _, FastPath, History as _, Ingest as _, Obstacle, Outbox as _, Processes as _,
    Recovered, Results as _, StoreError,
    conformance::{NOW, creation, destination, destination_id, event, matched, request, result},
};

use crate::{SqliteStore, writer::Commit};

/// What a commit on a broken disk answers.
const FAILED_SYNC: i32 = ffi::SQLITE_IOERR_FSYNC;
const FULL_DISK: i32 = ffi::SQLITE_FULL;

/// The value of `PRAGMA synchronous` for commits that wait for the disk.
const FULL: i64 = 2;

/// A simulated disk. It keeps the length that the log had after the last commit that waited for the disk.
#[derive(Default)]
struct Disk {
    kept: AtomicUsize,
    /// The result code of commits; 0 while the disk works.
    fails: AtomicI32,
}

impl Disk {
    fn commits(self: &Arc<Self>, log: PathBuf) -> Commit {
        let disk = Arc::clone(self);
        Box::new(move |connection: &Connection| {
            let code = disk.fails.load(SeqCst);
            if code != ffi::SQLITE_OK {
                return Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
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

/// A store on a simulated disk.
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
        let store =
            SqliteStore::open_committing(&directory.path().join("weir.db"), weir_sealing::Keyring::default(), commits)
                .await
                .unwrap();
        Self { directory, disk, store }
    }

    /// The store that a machine finds after a power failure at this moment.
    async fn lose_power(&self) -> SqliteStore {
        let (path, after) = (self.directory.path().join("weir.db"), self.directory.path().join("after.db"));
        fs::copy(&path, &after).unwrap();
        // A copy keeps the rights of the file, without which the store would not open it.
        fs::copy(log_of(&path), log_of(&after)).unwrap();
        let log = fs::OpenOptions::new().write(true).open(log_of(&after)).unwrap();
        log.set_len(self.disk.kept.load(SeqCst) as u64).unwrap();
        SqliteStore::open(&after).await.unwrap()
    }
}

fn log_of(path: &Path) -> PathBuf {
    path.with_extension("db-wal")
}

/// A fast path that always has room and records the deliveries it admits.
#[derive(Default)]
struct OpenFastPath {
    admitted: Mutex<Vec<EventId>>,
    cancelled: AtomicUsize,
}

impl FastPath for OpenFastPath {
    fn reserve(&self, _: &Destination, _: DestinationId) -> Option<Timestamp> {
        Some(NOW + Duration::from_secs(60))
    }

    fn cancel(&self, _: DestinationId) {
        self.cancelled.fetch_add(1, SeqCst);
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        self.admitted.lock().unwrap().extend(deliveries.iter().map(|delivery| delivery.event_id));
    }
}

#[tokio::test]
async fn a_power_failure_loses_only_commits_that_were_not_durable() {
    let machine = Machine::start().await;
    let store = &machine.store;
    // The events and the first claim wait for the disk. The second claim and the result do not.
    store.create_destination(destination(1), creation()).await.unwrap();
    store.ingest((1..=3).map(|number| matched(event(number))).collect()).await.unwrap();
    let now = NOW + Duration::from_secs(1);
    let durable = ClaimRequest { durable: true, ..request(1, 1) };
    let kept = store.claim(vec![durable], now).await.unwrap().remove(0).deliveries.remove(0);
    let lost = store.claim(vec![request(1, 1)], now).await.unwrap().remove(0).deliveries.remove(0);
    store.settle(vec![Arc::new(result(&kept, Verdict::Delivered))]).await.unwrap();

    // Everything up to the last durable commit is there, and nothing after it.
    let after = machine.lose_power().await;
    let state = async |claimed: &ClaimedDelivery| {
        after.delivery(claimed.claim.delivery_id).await.unwrap().unwrap().delivery.state
    };
    for number in 1..=3 {
        assert!(after.event(event(number).id).await.unwrap().is_some(), "event {number}");
    }
    assert_eq!(state(&kept).await, DeliveryState::Delivering, "its claim was durable, its result was not");
    assert_eq!(state(&lost).await, DeliveryState::Pending, "this claim was not durable");
    // The claim whose result was lost is resolved as unknown.
    let recovered = after.recover_claims(now, true, 9).await.unwrap();
    assert_eq!(recovered, Recovered { retried: 1, ..Recovered::default() });
}

#[tokio::test]
async fn a_durable_commit_also_keeps_the_commits_before_it() {
    let machine = Machine::start().await;
    let store = &machine.store;
    store.create_destination(destination(1), creation()).await.unwrap();
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
async fn the_fast_path_admits_a_delivery_only_after_its_event_is_on_disk() {
    let machine = Machine::start().await;
    let fast_path = Arc::new(OpenFastPath::default());
    machine.store.connect(fast_path.clone());
    machine.store.create_destination(destination(1), creation()).await.unwrap();
    for number in 1..=5 {
        let new = matched(event(number));
        let id = new.event.id;
        machine.store.ingest(vec![new]).await.unwrap();
        assert_eq!(fast_path.admitted.lock().unwrap().last(), Some(&id));
        // Otherwise a receiver could get an event that the store loses.
        let after = machine.lose_power().await;
        assert!(after.event(id).await.unwrap().is_some(), "event {number}");
        assert_eq!(after.destination_counts(destination_id(1)).await.unwrap().delivering, number);
        after.close().await;
    }
}

#[tokio::test]
async fn nothing_is_acknowledged_after_a_failed_sync() {
    let machine = Machine::start().await;
    let store = &machine.store;
    let fast_path = Arc::new(OpenFastPath::default());
    store.connect(fast_path.clone());
    store.create_destination(destination(1), creation()).await.unwrap();
    // The commit fails: the caller gets an error, and the reserved room is free again.
    machine.disk.fails.store(FAILED_SYNC, SeqCst);
    let error = store.ingest(vec![matched(event(1))]).await.unwrap_err();
    assert!(matches!(&error, StoreError::CannotWrite { reason, .. } if reason.contains("check the disk")), "{error}");
    assert!(fast_path.admitted.lock().unwrap().is_empty(), "a delivery was admitted without being stored");
    assert_eq!(fast_path.cancelled.load(SeqCst), 1);

    // A later sync of the same log may succeed, but the pages of the failed sync stay lost.
    machine.disk.fails.store(ffi::SQLITE_OK, SeqCst);
    assert!(store.ingest(vec![matched(event(2))]).await.is_err());
    assert!(store.check().await.is_err(), "the store reports that it is healthy");
    assert!(fast_path.admitted.lock().unwrap().is_empty());
    store.close().await;

    // The next start recovers the log, and the store accepts events again.
    let again = SqliteStore::open(&machine.directory.path().join("weir.db")).await.unwrap();
    again.ingest(vec![matched(event(2))]).await.unwrap()[0].as_ref().unwrap();
    again.close().await;
}

#[tokio::test]
async fn a_full_disk_is_reported_though_a_beat_has_room_and_the_store_continues_after_it() {
    let machine = Machine::start().await;
    let store = &machine.store;
    let is_full = |error: &StoreError| matches!(error, StoreError::CannotWrite { obstacle: Obstacle::DiskFull, .. });
    machine.disk.fails.store(FULL_DISK, SeqCst);
    assert!(is_full(&store.beat(None).await.unwrap_err()));
    assert!(is_full(&store.ingest(vec![matched(event(1))]).await.unwrap_err()));
    machine.disk.fails.store(ffi::SQLITE_OK, SeqCst);
    store.beat(None).await.unwrap();
    assert!(is_full(&store.check().await.unwrap_err()), "a beat that fits does not show that an event fits");
    store.ingest(vec![matched(event(1))]).await.unwrap()[0].as_ref().unwrap();
}
