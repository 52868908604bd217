//! Tests of what SQLite makes of the statements: the index each must use, and that a long backlog costs nothing.

use sqlx::{Connection as _, SqliteConnection};
use weir_core::{DeliveryState, DestinationId, EventId, Timestamp};
use weir_store::{DeliveryFilter, EventFilter, PageRequest};

use crate::{
    claims::{BODIES, CLAIM, DUE, NEXT_DUE},
    destinations::{COUNTS, RECENT_SENDS},
    history::{SENDS, deliveries_page, events_page},
    ingest::KNOWN_KEYS,
    outbox::{ABANDONED, DUE_DESTINATIONS, RELEASE, SEND_HISTORY},
    results::{HELD, SETTLE},
    rows::text,
    schema,
    sql::{Values, fetch},
};

async fn database() -> SqliteConnection {
    let mut connection = SqliteConnection::connect("sqlite::memory:").await.unwrap();
    schema::migrate(&mut connection).await.unwrap();
    connection
}

async fn plan(connection: &mut SqliteConnection, sql: &str) -> String {
    let rows = fetch(connection, format!("EXPLAIN QUERY PLAN {sql}"), Values::default()).await.unwrap();
    rows.iter().map(|row| text(row, 3).unwrap()).collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn hot_statements_use_their_indexes_at_every_size() {
    let mut connection = database().await;
    for size in [1, 2, 4, 8, 16, 32, 64, 128, 256, 512] {
        for (name, batch, index) in [
            ("settle", &SETTLE, "SEARCH deliveries USING PRIMARY KEY (id=?)"),
            ("release", &RELEASE, "SEARCH deliveries USING PRIMARY KEY (id=?)"),
            ("held", &HELD, "SEARCH d USING PRIMARY KEY (id=?)"),
            ("known keys", &KNOWN_KEYS, "SEARCH e USING INDEX events_idempotency (tenant=? AND idempotency_key=?)"),
            ("known keys", &KNOWN_KEYS, "SEARCH d USING COVERING INDEX deliveries_of_event (event_id=?)"),
            ("next due", &NEXT_DUE, "USING COVERING INDEX deliveries_due (destination_id=?)"),
            ("bodies", &BODIES, "USING INDEX events_id (id=?)"),
            ("send history", &SEND_HISTORY, "USING COVERING INDEX attempts_of_destination (destination_id=?"),
        ] {
            let plan = plan(&mut connection, &batch.sql(size)).await;
            assert!(plan.contains(index), "{name} of {size}:\n{plan}");
            assert!(!plan.contains("AUTOMATIC"), "{name} of {size}:\n{plan}");
            assert!(!plan.contains("SCAN deliveries"), "{name} of {size}:\n{plan}");
        }
    }
    let searched = "SEARCH deliveries USING COVERING INDEX deliveries_due (destination_id=? AND next_attempt_at<?)";
    for arms in [1, 2, 4, 8, 16, 32, 64] {
        for (batch, looked_up) in
            [(&DUE, "SEARCH d USING PRIMARY KEY (id=?)"), (&CLAIM, "SEARCH deliveries USING PRIMARY KEY (id=?)")]
        {
            let plan = plan(&mut connection, &batch.sql(arms)).await;
            assert_eq!(plan.matches(searched).count(), arms, "{plan}");
            assert!(plan.contains(looked_up), "{plan}");
            assert!(!plan.contains("TEMP B-TREE"), "{plan}");
        }
    }
}

#[tokio::test]
async fn reads_use_their_indexes() {
    let mut connection = database().await;
    for (name, sql, index) in [
        ("counts", COUNTS, "USING COVERING INDEX deliveries_due (destination_id=?)"),
        ("counts", COUNTS, "USING COVERING INDEX deliveries_claimed (destination_id=?)"),
        ("recent sends", RECENT_SENDS, "USING COVERING INDEX attempts_of_destination (destination_id=? AND sent_at>?"),
        ("sends", SENDS, "USING INDEX attempts_of_destination (destination_id=? AND sent_at>?"),
        ("abandoned", ABANDONED, "USING INDEX deliveries_claimed"),
        ("due", DUE_DESTINATIONS, "USING COVERING INDEX deliveries_due (destination_id>?)"),
    ] {
        let plan = plan(&mut connection, sql).await;
        assert!(plan.contains(index), "{name}:\n{plan}");
    }
}

#[tokio::test]
async fn lists_walk_one_index_without_sorting() {
    let mut connection = database().await;
    let page = PageRequest { before: Some([7; 16]), limit: 50 };
    let destination_id = Some(DestinationId::from_bytes([1; 16]));
    let failed = Some(DeliveryState::Failed);
    let base = DeliveryFilter { from: Some(Timestamp::from_secs(9)), ..DeliveryFilter::default() };
    let filters = [
        (base.clone(), "USING PRIMARY KEY (id>? AND id<?)"),
        (DeliveryFilter { state: failed, ..base.clone() }, "deliveries_ended (state=? AND id>? AND id<?)"),
        (
            DeliveryFilter { destination_id, ..base.clone() },
            "deliveries_of_destination (destination_id=? AND id>? AND id<?)",
        ),
        (
            DeliveryFilter { destination_id, state: failed, ..base.clone() },
            "deliveries_ended_of_destination (destination_id=? AND state=? AND id>? AND id<?)",
        ),
    ];
    for (filter, index) in filters {
        let plan = plan(&mut connection, &deliveries_page(&filter, page).0).await;
        assert!(plan.contains(index), "{filter:?}:\n{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{filter:?}:\n{plan}");
    }
    // These sort, but only what they show: a few deliveries of one event, or what waits or is under way.
    let sorted = [
        (
            DeliveryFilter { event_id: Some(EventId::from_bytes([1; 16])), ..base.clone() },
            "deliveries_of_event (event_id=?",
        ),
        (DeliveryFilter { state: Some(DeliveryState::Retrying), ..base.clone() }, "deliveries_due"),
        (
            DeliveryFilter { state: Some(DeliveryState::Delivering), destination_id, ..base },
            "deliveries_claimed (destination_id=?",
        ),
    ];
    for (filter, index) in sorted {
        let plan = plan(&mut connection, &deliveries_page(&filter, page).0).await;
        assert!(plan.contains(index), "{filter:?}:\n{plan}");
    }
    let by_tenant = EventFilter { tenant: Some("a".to_owned()), ..EventFilter::default() };
    let by_type = EventFilter { event_type: Some("a".to_owned()), ..EventFilter::default() };
    for filter in [EventFilter::default(), by_tenant, by_type] {
        let plan = plan(&mut connection, &events_page(&filter, page).0).await;
        assert!(plan.contains("events_id (id<?)"), "{filter:?}:\n{plan}");
        assert!(!plan.contains("TEMP B-TREE"), "{filter:?}:\n{plan}");
    }
}

#[tokio::test]
async fn the_bundled_sqlite_has_the_fix_of_the_wal_reset_bug() {
    let mut connection = database().await;
    let rows = fetch(&mut connection, "SELECT sqlite_version()", Values::default()).await.unwrap();
    let version = text(&rows[0], 0).unwrap();
    let numbers: Vec<u32> = version.split('.').map(|number| number.parse().unwrap()).collect();
    assert!(numbers >= vec![3, 51, 3], "{version}");
}
