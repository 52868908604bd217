//! Nothing leaves before its event is on disk.

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
    fixtures::{NOW, destination, event},
};

/// Notes at the end of each transaction that stores deliveries where the log has got to and whether the commit waits for it.
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

/// Looks at the database, on a connection of its own, before it takes what has left.
struct WatchedFastPath {
    connection: Mutex<PgConnection>,
    on_disk: Sender<Vec<bool>>,
}

impl FastPath for WatchedFastPath {
    fn reserve(&self, _: &Destination) -> Option<Timestamp> {
        Some(NOW)
    }

    fn cancel(&self, _: DestinationId) {}

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        let look = async {
            let mut connection = self.connection.lock().await;
            let mut on_disk = Vec::new();
            for delivery in deliveries {
                let id = sqlx::types::Uuid::from_bytes(*delivery.claim.delivery_id.as_bytes());
                on_disk.push(sqlx::query_scalar(IS_ON_DISK).bind(id).fetch_one(&mut *connection).await.unwrap());
            }
            self.on_disk.send(on_disk).unwrap();
        };
        block_in_place(|| Handle::current().block_on(look));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_handed_over_before_its_event_is_on_disk() {
    let database = Database::create().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.create_destination(destination(1)).await.unwrap();
    let mut connection = database.connect().await;
    raw_sql(WATCH_COMMITS).execute(&mut connection).await.unwrap();
    let (on_disk, left) = channel();
    store.connect(Arc::new(WatchedFastPath { connection: Mutex::new(connection), on_disk }));
    // The first finds a destination that this process does not know, the next what it knows; one event, and many.
    for numbers in [1..2, 2..3, 3..20] {
        let events = numbers.clone().count();
        assert!(store.ingest(numbers.map(event).collect()).await.unwrap().iter().all(Result::is_ok));
        assert_eq!(left.try_recv().unwrap(), vec![true; events]);
    }
}
