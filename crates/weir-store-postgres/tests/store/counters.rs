//! The trigger that counts updated deliveries.

use sqlx::{AssertSqlSafe, PgConnection, raw_sql};
use weir_store::{CountChanges as _, Destinations as _, Ingest as _};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, creation, destination, event},
};

/// The changes that an update appends for each destination: of the pending, and of the cancelled deliveries.
async fn appended(connection: &mut PgConnection, update: &str) -> Vec<(Option<i32>, Option<i32>)> {
    raw_sql(AssertSqlSafe(update.to_owned())).execute(&mut *connection).await.unwrap();
    let taken = "WITH taken AS (DELETE FROM count_changes RETURNING *) SELECT pending, cancelled FROM taken";
    sqlx::query_as(taken).fetch_all(connection).await.unwrap()
}

#[tokio::test]
async fn an_update_appends_a_row_for_each_destination_whose_states_change() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    for number in 1..=3 {
        store.create_destination(destination(number), creation()).await.unwrap();
    }
    store.ingest((1..=5).map(event).collect()).await.unwrap();
    store.fold_changes().await.unwrap();
    let mut connection = database.connect().await;
    let delayed = "UPDATE deliveries SET next_attempt_at = next_attempt_at + 1";
    assert_eq!(appended(&mut connection, delayed).await, [], "no state changes");
    let cancelled = "UPDATE deliveries SET state = 6";
    assert_eq!(appended(&mut connection, cancelled).await, [(Some(-5), Some(5)); 3]);
    let one_of_each = "UPDATE deliveries d SET state = 0 FROM (
        SELECT DISTINCT ON (destination_id) id FROM deliveries ORDER BY destination_id, id
    ) chosen WHERE d.id = chosen.id";
    assert_eq!(appended(&mut connection, one_of_each).await, [(Some(1), Some(-1)); 3]);
    // In each destination one delivery is now pending and four are cancelled. Afterwards it is so again, with others.
    let exchanged = "UPDATE deliveries d SET state = 6 - state FROM (
        SELECT id FROM (
            SELECT id, row_number() OVER (PARTITION BY destination_id ORDER BY state, id) FROM deliveries
        ) numbered WHERE row_number <= 2
    ) chosen WHERE d.id = chosen.id";
    assert_eq!(appended(&mut connection, exchanged).await, [], "each state has as many deliveries as before");
}
