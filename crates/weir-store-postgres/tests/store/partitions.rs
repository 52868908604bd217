//! A day has its partitions before it begins, and when it is asked for.

use std::{collections::BTreeSet, time::Duration};

use sqlx::raw_sql;
use weir_core::{Timestamp, outcome::Verdict};
use weir_store::{ClaimRequest, Destinations as _, History as _, Ingest as _, Outbox as _, Results as _};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, destination, destination_id, event, event_at, result},
};

const DAY: Duration = Duration::from_secs(86_400);

async fn partitions(database: &Database, parent: &str) -> BTreeSet<String> {
    let children = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = $1::regclass";
    let rows = sqlx::query_scalar(children).bind(parent).fetch_all(&mut database.connect().await).await;
    rows.unwrap().into_iter().collect()
}

#[tokio::test]
async fn the_days_ahead_have_partitions_at_open() {
    let database = Database::create().await;
    let _store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    for parent in ["events", "attempts"] {
        let found = partitions(&database, parent).await;
        for day in 14..=22 {
            assert!(found.contains(&format!("{parent}_202701{day}")), "{day}: {found:?}");
        }
        assert_eq!(found.len(), 9);
    }
}

#[tokio::test]
async fn maintenance_makes_the_next_days() {
    let database = Database::create().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let other = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let later = NOW + DAY * 3;
    let (first, second) = tokio::join!(store.maintain(later), other.maintain(later));
    first.unwrap();
    second.unwrap();
    store.maintain(later).await.unwrap();
    assert_eq!(partitions(&database, "events").await.len(), 12);
    assert!(partitions(&database, "attempts").await.contains("attempts_20270125"));
}

/// A clock far off is no reason to lose an event: its day is made before it is stored.
#[tokio::test]
async fn an_event_of_any_time_is_stored_and_delivered() {
    let database = Database::create().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.create_destination(destination(1)).await.unwrap();
    let times = [Timestamp::MIN, Timestamp::from_secs(86_400), NOW - DAY * 400, NOW + DAY * 400, Timestamp::MAX];
    let events: Vec<_> = (1..).zip(times).map(|(number, time)| event_at(number, time)).collect();
    store.ingest(events.clone()).await.unwrap();
    let request =
        ClaimRequest { destination_id: destination_id(1), limit: 9, expires_at: Timestamp::MAX, durable: false };
    let claimed = store.claim(vec![request], Timestamp::MAX).await.unwrap().remove(0).deliveries;
    assert!(claimed.iter().map(|claimed| claimed.event_id).eq(events.iter().map(|new| new.event.id)));
    store.settle(claimed.iter().map(|claimed| result(claimed, Verdict::Delivered)).collect()).await.unwrap();
    for (new, claimed) in events.iter().zip(&claimed) {
        assert_eq!(store.event(new.event.id).await.unwrap().as_ref(), Some(&new.event));
        let deliveries = store.event_deliveries(new.event.id).await.unwrap();
        assert_eq!(deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [claimed.claim.delivery_id]);
        assert_eq!(store.delivery(claimed.claim.delivery_id).await.unwrap().unwrap().attempts.len(), 1);
    }
}

#[tokio::test]
async fn a_day_that_was_dropped_is_made_again_for_a_late_event() {
    let database = Database::create().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.ingest(vec![event(1)]).await.unwrap();
    let drop = "DROP TABLE events_20270115; DROP TABLE attempts_20270115";
    raw_sql(drop).execute(&mut database.connect().await).await.unwrap();
    store.ingest(vec![event(2)]).await.unwrap();
    assert_eq!(store.event(event(1).event.id).await.unwrap(), None);
    assert_eq!(store.event(event(2).event.id).await.unwrap(), Some(event(2).event));
    assert_eq!(partitions(&database, "attempts").await.len(), 9);
}
