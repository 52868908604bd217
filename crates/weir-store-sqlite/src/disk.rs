//! What has committed and waits for the disk.
//!
//! A commit puts its pages into the log, where they survive the process, and a sync of the log lets them survive the machine.
//! SQLite would do both in one `COMMIT` (`synchronous=FULL`), and the writer would stand still for as long as the disk takes. So
//! it commits without, and goes on with what waits for no disk, while a thread of its own syncs the log and answers those
//! who wait. What gathers during a sync shares the next.
//!
//! The log is in the order of the commits, so a sync of it keeps every commit before it as well. A sync that fails may have lost
//! pages of the log, and no later one brings them back: nothing that is written after them would survive either. So
//! after a failure nothing is answered any more but what failed, until the engine is started anew and SQLite has looked
//! at the log.

use std::{
    io,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
        mpsc::{Receiver, Sender, channel},
    },
};

use tokio::sync::mpsc;
use weir_store::{Boarding, StoreError};

use crate::group::{Group, Operation};

/// Returns once the log is on disk as it is when it is called.
pub(crate) type Sync = Box<dyn FnMut() -> io::Result<()> + Send>;

/// A group that has committed.
pub(crate) struct Committed {
    pub(crate) group: Group,
    /// What goes by the express once it is on disk.
    pub(crate) boarding: Boarding,
}

impl Committed {
    /// That wait for the disk.
    fn rows(&self) -> usize {
        if self.group.is_durable() { self.group.rows().max(1) } else { 0 }
    }
}

/// The writer's side.
pub(crate) struct Disk {
    committed: Sender<Committed>,
    shared: Arc<Shared>,
    /// Closed by the thread when it has answered everybody.
    ended: Receiver<()>,
}

#[derive(Default)]
struct Shared {
    /// Rows that have committed and are not known to be on disk.
    rows: AtomicUsize,
    /// The writer sleeps and is to be woken after the next sync.
    is_awaited: AtomicBool,
    failure: OnceLock<StoreError>,
}

impl Disk {
    /// Starts the thread. `writer` is told after a sync, if it waits for one.
    pub(crate) fn spawn(sync: Sync, writer: mpsc::WeakSender<Operation>) -> Self {
        let (committed, groups) = channel();
        let shared = Arc::new(Shared::default());
        let (ending, ended) = channel();
        let of_thread = Arc::clone(&shared);
        tokio::task::spawn_blocking(move || {
            run(&groups, sync, &of_thread, &writer);
            drop(ending);
        });
        Self { committed, shared, ended }
    }

    /// Answers a group once it is on disk.
    pub(crate) fn keep(&self, committed: Committed) {
        self.shared.rows.fetch_add(committed.rows(), SeqCst);
        // The thread ends after this.
        let _ = self.committed.send(committed);
    }

    /// How many rows are on their way to the disk.
    pub(crate) fn rows(&self) -> usize {
        self.shared.rows.load(SeqCst)
    }

    /// Asks for an [`Operation::Synced`] once nothing is on its way any more. `false`: nothing is.
    pub(crate) fn call_me(&self) -> bool {
        self.shared.is_awaited.store(true, SeqCst);
        self.rows() > 0
    }

    /// Why nothing can be kept any more.
    pub(crate) fn failure(&self) -> Option<&StoreError> {
        self.shared.failure.get()
    }

    /// Returns once everything has been answered.
    pub(crate) fn close(self) {
        drop(self.committed);
        // Nothing is ever sent.
        let _ = self.ended.recv();
    }
}

fn run(groups: &Receiver<Committed>, mut sync: Sync, shared: &Shared, writer: &mpsc::WeakSender<Operation>) {
    while let Ok(first) = groups.recv() {
        let mut waiting = vec![first];
        waiting.extend(groups.try_iter());
        if shared.failure.get().is_none()
            && waiting.iter().any(|committed| committed.group.is_durable())
            && let Err(error) = sync()
        {
            tracing::error!(%error, "the log could not be synced to disk; nothing more is stored until the next start");
            let _ = shared.failure.set(StoreError::Unavailable(format!(
                "the disk did not keep the log of the database ({error}); see to the disk, and start again"
            )));
        }
        let rows = waiting.iter().map(Committed::rows).sum();
        let left = shared.rows.fetch_sub(rows, SeqCst) - rows;
        let failure = shared.failure.get();
        for Committed { group, boarding } in waiting {
            if failure.is_none() {
                boarding.depart();
            }
            group.finish(failure);
        }
        if left == 0
            && shared.is_awaited.swap(false, SeqCst)
            && let Some(writer) = writer.upgrade()
        {
            // With a full channel it is awake.
            let _ = writer.try_send(Operation::Synced);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        fs::{self, File},
        os::unix::fs::MetadataExt as _,
        path::Path,
        sync::Mutex,
        time::Duration,
    };

    use futures_util::FutureExt as _;
    use tokio::{
        sync::mpsc::{UnboundedReceiver, unbounded_channel},
        task::JoinHandle,
    };
    use weir_core::{
        Destination, DestinationId, EventId, Period, RateLimit, RateLimits, Timestamp, claim::ClaimedDelivery,
        outcome::Verdict,
    };
    use weir_store::{
        Destinations as _, Express, History as _, Ingest as _, NewEvent, Outbox as _, Results as _,
        conformance::{NOW, destination, destination_id, event, matched, request, result, with_key},
        intake::Outcome,
    };

    use super::*;
    use crate::SqliteStore;

    /// A disk that takes its time: each sync begins, and ends when and as the test says.
    struct SlowDisk {
        end: Sender<io::Result<()>>,
        begun: UnboundedReceiver<()>,
    }

    impl SlowDisk {
        fn new() -> (Self, Sync) {
            let (end, ends) = channel();
            let (begin, begun) = unbounded_channel();
            let sync = move || {
                let _ = begin.send(());
                ends.recv().unwrap_or(Ok(()))
            };
            (Self { end, begun }, Box::new(sync))
        }

        async fn begins(&mut self) {
            within_reason(self.begun.recv()).await.unwrap();
        }

        /// The next sync that has not ended does, or the next to come.
        fn ends(&self) {
            self.end.send(Ok(())).unwrap();
        }

        fn fails(&self) {
            self.end.send(Err(io::Error::other("no spare sectors"))).unwrap();
        }
    }

    async fn within_reason<T>(future: impl Future<Output = T>) -> T {
        tokio::time::timeout(Duration::from_secs(30), future).await.unwrap()
    }

    /// There is always room, and what leaves is written down.
    #[derive(Default)]
    struct OpenExpress(Mutex<Vec<(EventId, DestinationId)>>);

    impl OpenExpress {
        fn left(&self) -> Vec<(EventId, DestinationId)> {
            std::mem::take(&mut self.0.lock().unwrap())
        }
    }

    impl Express for OpenExpress {
        fn reserve(&self, _: &Destination) -> Option<Timestamp> {
            Some(NOW + Duration::from_secs(60))
        }

        fn cancel(&self, _: DestinationId) {}

        fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
            let deliveries = deliveries.iter().map(|delivery| (delivery.event_id, delivery.claim.destination_id));
            self.0.lock().unwrap().extend(deliveries);
        }
    }

    /// A store with destinations that have a limit, if any, of so many a period.
    async fn store(path: &Path, limits: &[Option<Period>]) -> (Arc<SqliteStore>, SlowDisk) {
        let (mut disk, sync) = SlowDisk::new();
        let store = Arc::new(SqliteStore::open_syncing(path, |_| sync).await.unwrap());
        for (number, limit) in (1..).zip(limits) {
            let mut destination = destination(number);
            let limits = limit.and_then(|period| RateLimit::new(10, period)).into_iter().collect();
            destination.settings.rate_limits = RateLimits::new(limits).unwrap();
            disk.ends();
            store.create_destination(destination).await.unwrap();
            disk.begins().await;
        }
        (store, disk)
    }

    fn ingest(store: &Arc<SqliteStore>, events: Vec<NewEvent>) -> JoinHandle<Vec<Outcome>> {
        let store = store.clone();
        tokio::spawn(async move { store.ingest(events).await.unwrap() })
    }

    #[tokio::test]
    async fn an_event_is_acknowledged_once_it_is_on_disk_and_leaves_before_where_nothing_forbids() {
        let directory = tempfile::tempdir().unwrap();
        let limits = [None, Some(Period::Second), Some(Period::Hour)];
        let (store, mut disk) = store(&directory.path().join("weir.db"), &limits).await;
        let express = Arc::new(OpenExpress::default());
        store.connect(express.clone());
        let (plain, keyed) = (event(1), with_key(event(2), "key"));
        let ids = [plain.id, keyed.id];
        let ingesting = ingest(&store, vec![matched(plain), matched(keyed)]);

        disk.begins().await;
        let [unlimited, by_second, by_hour] = [1, 2, 3].map(destination_id);
        assert_eq!(express.left(), [(ids[0], unlimited), (ids[0], by_second)]);
        assert!(!ingesting.is_finished(), "it was acknowledged before it was on disk");

        disk.ends();
        let answers = within_reason(ingesting).await.unwrap();
        assert!(answers.iter().all(|answer| answer.as_ref().is_ok_and(|ingested| ingested.deliveries == 3)));
        let late = [(ids[0], by_hour), (ids[1], unlimited), (ids[1], by_second), (ids[1], by_hour)];
        assert_eq!(express.left(), late);
    }

    #[tokio::test]
    async fn what_is_synced_is_the_log_that_commits_are_written_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.db");
        let (tell, told) = channel();
        let sync = |log: File| -> Sync {
            Box::new(move || {
                log.sync_data()?;
                let _ = tell.send(log.metadata()?);
                Ok(())
            })
        };
        let store = SqliteStore::open_syncing(&path, sync).await.unwrap();
        let wal = fs::metadata(directory.path().join("weir.db-wal")).unwrap();
        store.create_destination(destination(1)).await.unwrap();
        let synced = told.try_recv().unwrap();
        assert_eq!((synced.dev(), synced.ino()), (wal.dev(), wal.ino()));
        assert!(synced.len() > wal.len(), "nothing had been written to it");
        store.close().await;
    }

    #[tokio::test]
    async fn results_are_recorded_while_events_wait_for_the_disk_and_claims_wait_with_them() {
        let directory = tempfile::tempdir().unwrap();
        let (store, mut disk) = store(&directory.path().join("weir.db"), &[None]).await;
        disk.ends();
        ingest(&store, vec![matched(event(1)), matched(event(2))]).await.unwrap();
        disk.begins().await;
        let now = NOW + Duration::from_secs(1);
        let claims = store.claim(vec![request(1, 1)], now).await.unwrap();

        let ingesting = ingest(&store, vec![matched(event(3)), matched(event(4))]);
        disk.begins().await;
        // What it claims may be of an event that nobody has been told of yet.
        let claiming = store.claim(vec![request(1, 8)], now);
        tokio::pin!(claiming);
        assert!((&mut claiming).now_or_never().is_none());
        let results =
            claims[0].deliveries.iter().map(|claimed| Arc::new(result(claimed, Verdict::Delivered))).collect();
        // Its commit comes after that of the claim.
        within_reason(store.settle(results)).await.unwrap();
        assert!((&mut claiming).now_or_never().is_none() && !ingesting.is_finished());

        disk.ends();
        within_reason(ingesting).await.unwrap();
        assert_eq!(within_reason(claiming).await.unwrap()[0].deliveries.len(), 3);
    }

    #[tokio::test]
    async fn what_gathers_during_a_sync_shares_the_next() {
        let directory = tempfile::tempdir().unwrap();
        let (store, mut disk) = store(&directory.path().join("weir.db"), &[None]).await;
        let first = ingest(&store, (1..20).map(|number| matched(event(number))).collect());
        disk.begins().await;
        let mut others: Vec<_> = (20..40).map(|number| store.ingest(vec![matched(event(number))])).collect();
        assert!(others.iter_mut().all(|other| other.now_or_never().is_none()));
        disk.ends();
        within_reason(first).await.unwrap();
        disk.begins().await;
        disk.ends();
        for other in others {
            within_reason(other).await.unwrap();
        }
        assert!(disk.begun.try_recv().is_err(), "it was synced a third time");
    }

    #[tokio::test]
    async fn a_few_events_do_not_wait_for_the_sync_of_those_before() {
        let directory = tempfile::tempdir().unwrap();
        let (store, mut disk) = store(&directory.path().join("weir.db"), &[None]).await;
        let express = Arc::new(OpenExpress::default());
        store.connect(express.clone());
        let first = ingest(&store, vec![matched(event(1))]);
        disk.begins().await;
        let second = ingest(&store, vec![matched(event(2))]);
        within_reason(async {
            let mut left = 0;
            while left < 2 {
                left += express.left().len();
                tokio::task::yield_now().await;
            }
        })
        .await;
        assert!(!first.is_finished() && !second.is_finished());
        disk.ends();
        disk.ends();
        within_reason(first).await.unwrap();
        within_reason(second).await.unwrap();
    }

    #[tokio::test]
    async fn after_a_sync_that_failed_nothing_is_acknowledged_any_more() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.db");
        let (store, mut disk) = store(&path, &[None, Some(Period::Hour)]).await;
        let express = Arc::new(OpenExpress::default());
        store.connect(express.clone());
        let ingesting = tokio::spawn({
            let store = store.clone();
            async move { store.ingest(vec![matched(event(1))]).await }
        });
        disk.begins().await;
        disk.fails();
        let error = within_reason(ingesting).await.unwrap().unwrap_err();
        assert!(matches!(&error, StoreError::Unavailable(reason) if reason.contains("no spare sectors")), "{error}");
        assert_eq!(express.left().len(), 1, "what waited for the disk left without it");
        disk.ends();
        assert!(store.ingest(vec![matched(event(2))]).await.is_err());
        assert!(store.check().await.is_err(), "it says that it is well");
        store.close().await;

        let again = SqliteStore::open(&path).await.unwrap();
        again.ingest(vec![matched(event(2))]).await.unwrap()[0].as_ref().unwrap();
        again.close().await;
    }
}
