//! Bodies are stored without their heads where no program of the version before may read them.

use sqlx::{AssertSqlSafe, raw_sql};
use weir_core::{Timestamp, claim::ClaimedBody};
use weir_store::{Destinations as _, History as _, Ingest as _, Outbox as _};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, creation, destination, event, request},
};

/// Stores an event, checks that each read has its whole body, and returns the stored offset, the first byte of the body,
/// and the oldest program that may start.
async fn stored(database: &Database, stored_before: Option<Timestamp>) -> (i32, u8, i32) {
    PostgresStore::migrate(&database.url()).await.unwrap();
    let mut connection = database.connect().await;
    if let Some(time) = stored_before {
        let set = format!("UPDATE body_heads SET stored_before = {}", time.as_nanos());
        raw_sql(AssertSqlSafe(set)).execute(&mut connection).await.unwrap();
    }
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    let new = event(1);
    let expected = new.event.clone();
    store.ingest(vec![new]).await.unwrap();
    assert_eq!(store.event(expected.id).await.unwrap().as_ref(), Some(&expected));
    assert_eq!(store.bodies(&[expected.id]).await.unwrap(), [Some(expected.body.clone())]);
    // Another process has no body in its memory.
    let other = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let claims = other.claim(vec![request(1, 9)], expected.created_at).await.unwrap();
    assert_eq!(claims[0].deliveries[0].body, ClaimedBody::Inline(expected.body));
    let row = "SELECT data_offset, get_byte(body, 0), oldest_program FROM events, schema_marker";
    let (offset, first, oldest): (i32, i32, i32) = sqlx::query_as(row).fetch_one(&mut connection).await.unwrap();
    (offset, first as u8, oldest)
}

#[tokio::test]
async fn a_new_database_has_no_heads_and_excludes_programs_that_need_them() {
    let (offset, first, oldest) = stored(&Database::create().await, None).await;
    assert!(offset < 0, "{offset}");
    assert_eq!((first, oldest), (event(1).event.body.data()[0], 42));
}

#[tokio::test]
async fn heads_are_stored_while_programs_of_the_version_before_may_read_them() {
    let (offset, first, oldest) =
        stored(&Database::create().await, Some(NOW + std::time::Duration::from_secs(60))).await;
    assert_eq!((offset, first, oldest), (event(1).event.body.data_offset() as i32, b'{', 1));
}
