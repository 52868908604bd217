//! Indexes that take more disk than their entries need are rebuilt, after a pass of the retention.

use sqlx::{AssertSqlSafe, PgConnection, query_scalar, raw_sql};
use weir_core::retention::Retention;
use weir_store::{Prune as _, PrunePosition};
use weir_store_postgres::PostgresStore;

use crate::{database::Database, fixtures::NOW};

/// Deliveries that have ended, and an index over them with leaves that are nearly empty, as a drained backlog leaves
/// them.
const BLOATED: &str = "
INSERT INTO deliveries (id, event_id, destination_id, state, next_attempt_at, created_at, updated_at)
SELECT gen_random_uuid(), gen_random_uuid(), gen_random_uuid(), 3, 1, 1, 1 FROM generate_series(1, 30000);
ALTER INDEX deliveries_of_destination SET (fillfactor = 10);
REINDEX INDEX deliveries_of_destination;
ALTER INDEX deliveries_of_destination RESET (fillfactor);
ANALYZE deliveries";

async fn run(connection: &mut PgConnection, sql: impl Into<String>) -> Result<(), sqlx::Error> {
    raw_sql(AssertSqlSafe(sql.into())).execute(connection).await.map(drop)
}

async fn size(connection: &mut PgConnection, index: &str) -> i64 {
    let size = query_scalar("SELECT pg_relation_size($1::text::regclass)").bind(index);
    size.fetch_one(connection).await.unwrap()
}

async fn invalid_indexes(connection: &mut PgConnection) -> Vec<String> {
    let names = "SELECT indexrelid::regclass::text FROM pg_index WHERE NOT indisvalid";
    query_scalar(names).fetch_all(connection).await.unwrap()
}

async fn compact(store: &PostgresStore) -> u64 {
    // The process that prunes also compacts.
    store.prune_some(&Retention::default().cutoffs(NOW), PrunePosition::START).await.unwrap();
    store.compact().await.unwrap()
}

#[tokio::test]
async fn an_index_that_is_much_larger_than_its_entries_is_rebuilt_once() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let mut connection = database.connect().await;
    run(&mut connection, BLOATED).await.unwrap();
    let before = size(&mut connection, "deliveries_of_destination").await;
    let others = size(&mut connection, "deliveries_pkey").await;

    let freed = compact(&store).await;

    let after = size(&mut connection, "deliveries_of_destination").await;
    assert_eq!(freed, u64::try_from(before - after).unwrap());
    assert!(after * 5 < before, "{before} bytes became {after}");
    assert_eq!(size(&mut connection, "deliveries_pkey").await, others, "an index that is no larger than it must be");
    assert_eq!(compact(&store).await, 0);
}

/// A writer that does not end keeps a rebuild waiting until it is cancelled.
#[tokio::test]
async fn what_an_interrupted_rebuild_left_behind_is_dropped() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let (mut writer, mut rebuilding) = (database.connect().await, database.connect().await);
    run(&mut writer, "BEGIN; DELETE FROM deliveries WHERE false").await.unwrap();
    run(&mut rebuilding, "SET statement_timeout = '100ms'").await.unwrap();
    let rebuilt = run(&mut rebuilding, "REINDEX INDEX CONCURRENTLY deliveries_due").await;
    assert!(rebuilt.is_err());
    run(&mut writer, "COMMIT").await.unwrap();
    assert_eq!(invalid_indexes(&mut rebuilding).await, ["deliveries_due_ccnew"]);

    compact(&store).await;

    assert_eq!(invalid_indexes(&mut rebuilding).await, Vec::<String>::new());
}

#[tokio::test]
async fn a_pass_drops_a_bounded_number_of_indexes_and_the_next_one_the_others() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let mut connection = database.connect().await;
    for number in 0..9 {
        run(&mut connection, format!("CREATE INDEX left{number}_ccnew ON deliveries (id)")).await.unwrap();
    }
    let invalid = "UPDATE pg_index SET indisvalid = false WHERE indexrelid::regclass::text LIKE 'left%'";
    run(&mut connection, invalid).await.unwrap();
    compact(&store).await;
    assert_eq!(invalid_indexes(&mut connection).await.len(), 1);
    compact(&store).await;
    assert_eq!(invalid_indexes(&mut connection).await, Vec::<String>::new());
}

#[tokio::test]
async fn only_the_process_that_prunes_compacts() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let other = PostgresStore::open(&database.url(), NOW).await.unwrap();
    run(&mut database.connect().await, BLOATED).await.unwrap();
    store.prune_some(&Retention::default().cutoffs(NOW), PrunePosition::START).await.unwrap();
    assert_eq!(compact(&other).await, 0);
    assert!(compact(&store).await > 0);
}
