//! Claims with conflicts.

use std::time::Duration;

use sqlx::raw_sql;
use weir_store::{Destinations as _, Ingest as _, Outbox as _};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, creation, destination, event, event_at, request},
};

/// The first claim of a delivery that is due at [`NOW`] fails with a deadlock. Sequences do not roll back, so the
/// failure occurs once.
const DEADLOCK_ONCE: &str = "
CREATE SEQUENCE tries;
CREATE FUNCTION deadlock_once() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.state = 1 AND NEW.next_attempt_at = 1800000000000000000 AND nextval('tries') = 1 THEN
        RAISE EXCEPTION 'deadlock detected' USING ERRCODE = '40P01';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER deadlock_once BEFORE UPDATE ON deliveries FOR EACH ROW EXECUTE FUNCTION deadlock_once();";

/// A claim that is in no answer would stay outstanding until it expires, and would block its message group.
#[tokio::test]
async fn a_claim_that_fails_and_is_repeated_leaves_no_other_claim() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    raw_sql(DEADLOCK_ONCE).execute(&mut database.connect().await).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    store.ingest((1..=6).map(event).collect()).await.unwrap();
    let claim = async |limit| {
        let claims = store.claim(vec![request(1, limit)], NOW + Duration::from_secs(10)).await.unwrap().remove(0);
        claims.deliveries.iter().map(|one| one.event_created_at.since(NOW).as_millis()).collect::<Vec<_>>()
    };
    assert_eq!(claim(4).await, [1, 2, 3, 4]);
    // An event from a process with a slow clock.
    store.ingest(vec![event_at(7, NOW)]).await.unwrap();
    assert_eq!(claim(3).await, [0, 5, 6]);
    let tries: i64 =
        sqlx::query_scalar("SELECT last_value FROM tries").fetch_one(&mut database.connect().await).await.unwrap();
    assert_eq!(tries, 2, "the claim met the deadlock");
}
