//! The plans of reservations.

use super::*;
use crate::reservations::{AFTER, COUNTS, HAS_RESERVED, LIST, PRUNE};

/// A hundred groups with two hundred reservations each.
const MANY_RESERVATIONS: &str = "
INSERT INTO reservations
SELECT gen_random_uuid(), md5((number % 100)::text)::uuid, 1, number, number, number, NULL
FROM generate_series(1, 20000) AS number;
ANALYZE reservations";

#[tokio::test]
async fn reservations_are_read_and_deleted_by_an_index() {
    let database = Database::migrated().await;
    let mut connection = PgConnection::connect_with(&open::options(&database.url()).unwrap()).await.unwrap();
    raw_sql(MANY_RESERVATIONS).execute(&mut connection).await.unwrap();
    for (name, sql, expected) in [
        ("list", LIST, &["reservations_of_group"][..]),
        ("those after one", AFTER, &["reservations_of_group"]),
        ("whether there are any", HAS_RESERVED, &["reservations_of_group"]),
        ("counts", COUNTS, &["reservations_of_group"]),
        ("prune", PRUNE, &["reservations_pkey"]),
    ] {
        assert_plan_with("on", &mut connection, name, sql, expected, ["reservations"; 3]).await;
    }
}
