//! No delivery is sent before its event is on disk.

use std::sync::{
    Arc,
    mpsc::{Sender, channel},
};

use sqlx::{PgConnection, raw_sql};
use tokio::{runtime::Handle, sync::Mutex, task::block_in_place};
use weir_core::{Destination, DestinationId, Timestamp, claim::ClaimedDelivery};
use weir_store::{Destinations as _, FastPath, Ingest as _};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, creation, destination, event},
};

/// Records, at the end of each transaction that stores deliveries, the position of the write-ahead log and whether the
/// commit waits for it.
const WATCH_COMMITS: &str = "
CREATE TABLE commits (delivery_id uuid, log_position pg_lsn, waits text);
CREATE FUNCTION note_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO commits VALUES (NEW.id, pg_current_wal_insert_lsn(), current_setting('synchronous_commit'));
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER note_commit AFTER INSERT ON deliveries DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW EXECUTE FUNCTION note_commit();";

const IS_ON_DISK: &str = "
SELECT coalesce((SELECT waits = 'on' AND log_position <= pg_current_wal_flush_lsn() FROM commits WHERE delivery_id = $1), false)";

/// Checks the database, on a connection of its own, before it accepts the admitted deliveries.
struct WatchedFastPath {
    connection: Mutex<PgConnection>,
    on_disk: Sender<Vec<bool>>,
}

impl FastPath for WatchedFastPath {
    fn reserve(&self, _: &Destination, _: DestinationId) -> Option<Timestamp> {
        Some(NOW)
    }

    fn cancel(&self, _: DestinationId) {}

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        let check = async {
            let mut connection = self.connection.lock().await;
            let mut on_disk = Vec::new();
            for delivery in deliveries {
                let id = sqlx::types::Uuid::from_bytes(*delivery.claim.delivery_id.as_bytes());
                on_disk.push(sqlx::query_scalar(IS_ON_DISK).bind(id).fetch_one(&mut *connection).await.unwrap());
            }
            self.on_disk.send(on_disk).unwrap();
        };
        block_in_place(|| Handle::current().block_on(check));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_delivery_is_admitted_before_its_event_is_on_disk() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    let mut connection = database.connect().await;
    raw_sql(WATCH_COMMITS).execute(&mut connection).await.unwrap();
    let (on_disk, admitted) = channel();
    store.connect(Arc::new(WatchedFastPath { connection: Mutex::new(connection), on_disk }));
    // The first call meets a destination that is not cached, and the next ones a cached destination. The last call has
    // many events.
    for numbers in [1..2, 2..3, 3..20] {
        let events = numbers.clone().count();
        assert!(store.ingest(numbers.map(event).collect()).await.unwrap().iter().all(Result::is_ok));
        assert_eq!(admitted.try_recv().unwrap(), vec![true; events]);
    }
}
