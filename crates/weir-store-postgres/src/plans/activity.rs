//! The plans of the activity log and of the answers of idempotency keys.

use weir_core::ApiKeyId;
use weir_store::{ActivityFilter, ActorFilter};

use super::*;
use crate::activity::{PRUNE_ACTIVITY, PRUNE_ANSWERS, page_select};

/// Twenty thousand activities of a thousand destinations, actors and tenants, and as many answers.
const ACTIVITIES: &str = "
INSERT INTO activity (id, destination_id, key_id, at, action, actor, tenant)
SELECT ('01a3185c-5000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid,
    ('01a3185c-5000-7000-9000-' || lpad(to_hex(n % 1000), 12, '0'))::uuid,
    ('01a3185c-5000-7000-a000-' || lpad(to_hex(n % 1000), 12, '0'))::uuid,
    1800000000000000000 + n, 'destination.edited', 'actor ' || n % 1000, 'tenant ' || n % 1000
FROM generate_series(1, 20000) AS n;
INSERT INTO keyed_answers (key, request, answer, at)
SELECT sha256(convert_to(n::text, 'UTF8')), sha256('request'), '{}', 1800000000000000000 + n
FROM generate_series(1, 20000) AS n;
VACUUM ANALYZE activity, keyed_answers";

async fn with_activities() -> (Database, PgConnection) {
    let database = Database::migrated().await;
    Box::pin(PostgresStore::open(&database.url(), NOW)).await.unwrap().close().await;
    let options = open::options(&database.url()).unwrap();
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    // Several statements in one call are one transaction, and VACUUM cannot run in one.
    for statement in ACTIVITIES.split(";\n") {
        raw_sql(AssertSqlSafe(statement.to_owned())).execute(&mut connection).await.unwrap();
    }
    (database, connection)
}

#[tokio::test]
async fn pages_of_the_activity_log_read_one_index_backwards() {
    let (_database, mut connection) = with_activities().await;
    let page = PageRequest { before: Some([7; 16]), limit: 50 };
    let none = ActivityFilter::default;
    let of = |tenants: &[&str]| Some(tenants.iter().map(|&tenant| tenant.to_owned()).collect());
    let actor = |actor| ActivityFilter { actor: Some(actor), ..none() };
    let to_one = ActivityFilter { destination_id: Some(destination_id(1)), ..none() };
    let times = (Some(NOW), Some(NOW + Duration::from_secs(9)));
    for (filter, index) in [
        (none(), "Backward using activity_pkey"),
        (ActivityFilter { from: times.0, to: times.1, ..none() }, "Backward using activity_pkey"),
        (to_one.clone(), "Backward using activity_of_destination"),
        (ActivityFilter { from: times.0, to: times.1, ..to_one }, "Backward using activity_of_destination"),
        (actor(ActorFilter::Name("ann".to_owned())), "Backward using activity_of_actor"),
        (ActivityFilter { tenants: of(&["acme"]), ..none() }, "Backward using activity_of_tenant"),
        // There is no index by the key of the actor. The index by tenant does not have the rows of several tenants in
        // the order of the list. The planner either reads and sorts them, or reads the log backwards; this depends on
        // the number of tenants.
        (actor(ActorFilter::Key(ApiKeyId::from_bytes([1; 16]))), "Backward using activity_pkey"),
        (ActivityFilter { tenants: of(&["acme", "globex"]), ..none() }, "activity_"),
    ] {
        for scans in ["on", "off"] {
            let sql = sql(page_select(&filter, page));
            assert_plan_with(scans, &mut connection, "activity", &sql, &[index], ["activity"; 3]).await;
        }
    }
}

#[tokio::test]
async fn pruning_the_activity_log_reads_only_what_it_deletes() {
    let (_database, mut connection) = with_activities().await;
    let activity = ["Index Only Scan using activity_pkey", "Index Scan using activity_pkey on activity"];
    let answers = ["Index Scan using keyed_answers_by_age", "Index Scan using keyed_answers_pkey on keyed_answers"];
    for (name, sql, expected) in [("activity", PRUNE_ACTIVITY, activity), ("answers", PRUNE_ANSWERS, answers)] {
        let tables = ["activity", "keyed_answers", "keyed_answers"];
        assert_plan_with("off", &mut connection, name, sql, &expected, tables).await;
    }
}
