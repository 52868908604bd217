//! What leaves before its event is on disk.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
    mpsc::{Receiver, Sender, channel},
};

use tokio::task::{JoinHandle, block_in_place};
use weir_core::{Destination, DestinationId, EventId, Timestamp, claim::ClaimedDelivery};
use weir_store::{
    Destinations as _, Express, History as _, Ingest as _, NewEvent, StoreError, StoreResult, intake::Outcome,
};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    failures::{answered, terminate},
    fixtures::{NOW, destination, event},
    processes::with_key,
};

/// There is room for so many; whoever hands deliveries over waits until the test has seen them.
struct WatchedExpress {
    left: Sender<Vec<EventId>>,
    seen: Mutex<Receiver<()>>,
    room: AtomicUsize,
}

impl Express for WatchedExpress {
    fn reserve(&self, _: &Destination) -> Option<Timestamp> {
        let room = self.room.fetch_update(SeqCst, SeqCst, |room| room.checked_sub(1));
        room.is_ok().then_some(NOW)
    }

    fn cancel(&self, _: DestinationId) {}

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        self.left.send(deliveries.iter().map(|delivery| delivery.event_id).collect()).unwrap();
        block_in_place(|| self.seen.lock().unwrap().recv().unwrap());
    }
}

struct Posting {
    store: Arc<PostgresStore>,
    left: Receiver<Vec<EventId>>,
    seen: Sender<()>,
}

impl Posting {
    /// To one destination without a limit.
    async fn to(database: &Database, room: usize) -> Self {
        let store = Arc::new(PostgresStore::open(&database.url(), NOW).await.unwrap());
        store.create_destination(destination(1)).await.unwrap();
        // The first event finds a destination that this process does not know.
        store.ingest(vec![event(1)]).await.unwrap();
        let ((left, leaving), (see, seen)) = (channel(), channel());
        store.connect(Arc::new(WatchedExpress { left, seen: Mutex::new(seen), room: room.into() }));
        Self { store, left: leaving, seen: see }
    }

    fn post(&self, events: Vec<NewEvent>) -> JoinHandle<StoreResult<Vec<Outcome>>> {
        let store = self.store.clone();
        tokio::spawn(async move { store.ingest(events).await })
    }

    fn next_to_leave(&self) -> Vec<EventId> {
        block_in_place(|| self.left.recv().unwrap())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_delivery_without_a_key_leaves_before_its_event_is_acknowledged() {
    let database = Database::create().await;
    let posting = Posting::to(&database, 2).await;
    let (plain, keyed) = (event(2), with_key(event(3), "order 3"));
    let ids = [plain.event.id, keyed.event.id];
    let posted = posting.post(vec![plain, keyed]);
    assert_eq!(posting.next_to_leave(), ids[..1]);
    assert!(!posted.is_finished());
    posting.seen.send(()).unwrap();
    assert_eq!(posting.next_to_leave(), ids[1..], "after the flush");
    posting.seen.send(()).unwrap();
    assert!(posted.await.unwrap().unwrap().iter().all(Result::is_ok));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_could_not_be_flushed_is_not_acknowledged_and_what_waited_for_it_does_not_leave() {
    let database = Database::create().await;
    let posting = Posting::to(&database, 2).await;
    let (plain, keyed) = (event(2), with_key(event(3), "order 3"));
    let id = plain.event.id;
    let posted = posting.post(vec![plain, keyed]);
    assert_eq!(posting.next_to_leave(), [id]);
    terminate(&database).await;
    posting.seen.send(()).unwrap();
    let error = posted.await.unwrap().unwrap_err();
    assert!(matches!(error, StoreError::Unavailable(_)), "{error}");
    assert!(posting.left.try_recv().is_err());
    // The server itself went on, so it has what had committed.
    assert!(answered(async || posting.store.event(id).await).await.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_leaves_early_beside_an_event_with_a_key_that_a_run_may_send() {
    let database = Database::create().await;
    let posting = Posting::to(&database, 1).await;
    let plain = event(2);
    let id = plain.event.id;
    let posted = posting.post(vec![plain, with_key(event(3), "order 3")]);
    assert_eq!(posting.next_to_leave(), [id]);
    terminate(&database).await;
    posting.seen.send(()).unwrap();
    assert!(posted.await.unwrap().is_ok(), "it left before it was on disk");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_events_leave_together_when_they_are_on_disk() {
    let database = Database::create().await;
    let posting = Posting::to(&database, 8).await;
    let events: Vec<NewEvent> = (2..10).map(event).collect();
    let ids: Vec<EventId> = events.iter().map(|new| new.event.id).collect();
    let posted = posting.post(events);
    assert_eq!(posting.next_to_leave(), ids);
    terminate(&database).await;
    posting.seen.send(()).unwrap();
    assert!(posted.await.unwrap().is_ok(), "they left before they were on disk");
}
