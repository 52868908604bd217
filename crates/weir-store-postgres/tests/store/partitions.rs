//! A day has partitions before it begins, and gets missing ones when an event needs them.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use sqlx::raw_sql;
use weir_core::{Timestamp, claim::ClaimedDelivery, outcome::Verdict, retention::Retention};
use weir_store::conformance::activity;
use weir_store::{
    ClaimRequest, Destinations as _, History as _, Ingest as _, NewEvent, Outbox as _, Prune as _, PrunePosition,
    Pruned, Results as _,
};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, creation, destination, event, event_at, request, result},
};

const DAY: Duration = Duration::from_secs(86_400);

async fn partitions(database: &Database, parent: &str) -> BTreeSet<String> {
    let children = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = $1::regclass";
    let rows = sqlx::query_scalar(children).bind(parent).fetch_all(&mut database.connect().await).await;
    rows.unwrap().into_iter().collect()
}

async fn claim(store: &PostgresStore, limit: u32, now: Timestamp) -> Vec<ClaimedDelivery> {
    let request = ClaimRequest { expires_at: Timestamp::MAX, ..request(1, limit) };
    store.claim(vec![request], now).await.unwrap().remove(0).deliveries
}

/// The `number`-th event, which has its number as its key.
fn keyed(number: u64, created_at: Timestamp) -> NewEvent {
    let mut new = event_at(number, created_at);
    new.event.idempotency_key = Some(number.to_string());
    new
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
    let database = Database::migrated().await;
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

/// An event with a wrong time is not lost: its partition is made before it is stored.
#[tokio::test]
async fn an_event_of_any_time_is_stored_and_delivered() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    let times = [Timestamp::MIN, Timestamp::from_secs(86_400), NOW - DAY * 400, NOW + DAY * 400, Timestamp::MAX];
    let events: Vec<_> = (1..).zip(times).map(|(number, time)| event_at(number, time)).collect();
    store.ingest(events.clone()).await.unwrap();
    let claimed = claim(&store, 9, Timestamp::MAX).await;
    assert!(claimed.iter().map(|claimed| claimed.event_id).eq(events.iter().map(|new| new.event.id)));
    store.settle(claimed.iter().map(|claimed| Arc::new(result(claimed, Verdict::Delivered))).collect()).await.unwrap();
    for (new, claimed) in events.iter().zip(&claimed) {
        assert_eq!(store.event(new.event.id).await.unwrap().as_ref(), Some(&new.event));
        let deliveries = store.event_deliveries(new.event.id).await.unwrap();
        assert_eq!(deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), [claimed.claim.delivery_id]);
        assert_eq!(store.delivery(claimed.claim.delivery_id).await.unwrap().unwrap().attempts.len(), 1);
    }
}

#[tokio::test]
async fn a_day_that_was_dropped_is_made_again_for_a_late_event() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.ingest(vec![event(1)]).await.unwrap();
    let drop = "DROP TABLE events_20270115; DROP TABLE attempts_20270115";
    raw_sql(drop).execute(&mut database.connect().await).await.unwrap();
    store.ingest(vec![event(2)]).await.unwrap();
    assert_eq!(store.event(event(1).event.id).await.unwrap(), None);
    assert_eq!(store.event(event(2).event.id).await.unwrap(), Some(event(2).event));
    assert_eq!(partitions(&database, "attempts").await.len(), 9);
}

/// All three days are older than the retention of 14 days at this time.
const LATER: Timestamp = Timestamp::from_secs(1_800_000_000 + 20 * 86_400);

async fn prune(store: &PostgresStore) -> Pruned {
    prune_at(store, LATER).await
}

async fn prune_at(store: &PostgresStore, now: Timestamp) -> Pruned {
    let cutoffs = Retention::default().cutoffs(now);
    let (mut position, mut total) = (Some(PrunePosition::START), Pruned::default());
    while let Some(at) = position {
        let step = store.prune_some(&cutoffs, at).await.unwrap();
        total += step.pruned;
        position = step.next;
    }
    total
}

/// Three days with two deliveries each: all are delivered, except one dead letter on the second day and one waiting
/// delivery on the third.
async fn three_days(store: &PostgresStore) {
    store.create_destination(destination(1), creation()).await.unwrap();
    let events = (0..6).map(|number| keyed(number, NOW + DAY * (number as u32 / 2) + Duration::from_millis(number)));
    store.ingest(events.collect()).await.unwrap();
    let claimed = claim(store, 5, LATER).await;
    let verdict = |index: usize| if index == 3 { Verdict::Dead } else { Verdict::Delivered };
    let results = claimed.iter().enumerate().map(|(index, claimed)| result(claimed, verdict(index)));
    store.settle(results.map(Arc::new).collect()).await.unwrap();
}

#[tokio::test]
async fn a_day_without_deliveries_is_dropped() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    three_days(&store).await;
    let before = partitions(&database, "events").await;
    let pruned = prune(&store).await;
    // Old days that never had an event are dropped too.
    assert_eq!((pruned.deliveries, pruned.attempts, pruned.events), (4, 2, 2), "what is on the two days that stay");
    for parent in ["events", "attempts"] {
        let after = partitions(&database, parent).await;
        for (day, kept) in [(14, false), (15, false), (16, true), (17, true), (22, true)] {
            assert_eq!(after.contains(&format!("{parent}_202701{day}")), kept, "{parent} {day}: {after:?}");
        }
        assert_eq!(before.len() as u64 - pruned.days, after.len() as u64);
    }
    let keys = "SELECT idempotency_key FROM idempotency_keys ORDER BY idempotency_key";
    let keys: Vec<String> = sqlx::query_scalar(keys).fetch_all(&mut database.connect().await).await.unwrap();
    assert_eq!(keys, ["3", "5"], "the keys of the dead letter and of the waiting delivery");
    assert_eq!(prune(&store).await, Pruned::default());
    // The partitions of a dropped day are made again for a late event.
    store.ingest(vec![event(9)]).await.unwrap();
    assert_eq!(store.event(event(9).event.id).await.unwrap(), Some(event(9).event));
}

/// How many steps of a pass read rows of kept days one by one.
async fn steps_by_row(store: &PostgresStore, retention: &Retention) -> usize {
    let cutoffs = retention.cutoffs(LATER + DAY * 60);
    let (mut position, mut steps) = (Some(PrunePosition::START), 0);
    while let Some(at) = position {
        steps += usize::from(matches!(at, PrunePosition::Events(_) | PrunePosition::Attempts(_)));
        position = store.prune_some(&cutoffs, at).await.unwrap().next;
    }
    steps
}

#[tokio::test]
async fn the_rows_of_a_day_that_is_kept_are_not_read_again_while_nothing_of_it_may_go() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    three_days(&store).await;
    assert_eq!(steps_by_row(&store, &Retention::default()).await, 4, "two days keep a delivery");
    assert_eq!(steps_by_row(&store, &Retention::default()).await, 0);
    // Another process does not know it.
    let other = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.close().await;
    assert_eq!(taken_over(async || steps_by_row(&other, &Retention::default()).await).await, 4);
    // The day of the dead letter goes, and the other one has not changed.
    assert_eq!(steps_by_row(&other, &Retention { dead: Some(DAY), ..Retention::default() }).await, 0);
    assert!(!partitions(&database, "events").await.contains("events_20270116"));
}

#[tokio::test]
async fn attempts_and_events_stay_until_their_whole_day_is_old() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    delivered(&store, 2, |_| Verdict::Delivered).await;
    // The events are of 08:00.
    let pruned = prune_at(&store, NOW + DAY * 14 + Duration::from_secs(3_600)).await;
    assert_eq!((pruned.deliveries, pruned.attempts, pruned.events), (2, 0, 0));
    assert!(store.event(event(1).event.id).await.unwrap().is_some());
    assert!(store.event_deliveries(event(1).event.id).await.unwrap().is_empty());
    let days = prune_at(&store, NOW + DAY * 14 + Duration::from_secs(16 * 3_600)).await.days;
    assert_eq!((days, store.event(event(1).event.id).await.unwrap()), (1, None), "at midnight");
    assert!(!partitions(&database, "attempts").await.contains("attempts_20270115"));
}

/// So many events with keys on one day, each with one delivery that has ended as `verdict` says.
async fn delivered(store: &PostgresStore, count: u64, verdict: fn(usize) -> Verdict) {
    store.create_destination(destination(1), creation()).await.unwrap();
    let events = (1..=count).map(|number| keyed(number, NOW + Duration::from_millis(number)));
    store.ingest(events.collect()).await.unwrap();
    let claimed = claim(store, count as u32, LATER).await;
    let results = claimed.iter().enumerate().map(|(index, claimed)| result(claimed, verdict(index)));
    store.settle(results.map(Arc::new).collect()).await.unwrap();
}

const MANY: u64 = 1_200;

#[tokio::test]
async fn a_few_dead_letters_outlive_the_partitions_of_their_day() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    delivered(&store, MANY, |index| if index % 400 == 7 { Verdict::Dead } else { Verdict::Delivered }).await;
    let old = "SELECT 'events_20270115'::regclass::oid::bigint";
    let old_oid: i64 = sqlx::query_scalar(old).fetch_one(&mut database.connect().await).await.unwrap();
    let before = partitions(&database, "events").await;
    let pruned = prune(&store).await;
    assert_eq!((pruned.deliveries, pruned.attempts, pruned.events), (MANY - 3, 0, 0));
    let new_oid: i64 = sqlx::query_scalar(old).fetch_one(&mut database.connect().await).await.unwrap();
    assert_ne!(old_oid, new_oid, "the partition was replaced");
    let rows = "SELECT (SELECT count(*) FROM events), (SELECT count(*) FROM attempts), (SELECT count(*) FROM idempotency_keys)";
    let rows: (i64, i64, i64) = sqlx::query_as(rows).fetch_one(&mut database.connect().await).await.unwrap();
    assert_eq!(rows, (3, 3, 3));
    assert!(partitions(&database, "events").await.is_subset(&before));
    assert_eq!(prune(&store).await, Pruned::default(), "a second pass finds nothing to do");
    // They can be sent again: the body is there, and the new attempt has a place.
    let kept = store.event(event(8).event.id).await.unwrap().expect("the event of a dead letter");
    assert_eq!(kept.idempotency_key.as_deref(), Some("8"));
    let letter = store.event_deliveries(kept.id).await.unwrap().remove(0);
    store.retry_delivery(letter.id, LATER, activity()).await.unwrap();
    let claimed = claim(&store, 9, LATER).await;
    store.settle(claimed.iter().map(|one| Arc::new(result(one, Verdict::Delivered))).collect()).await.unwrap();
    assert_eq!(store.delivery(letter.id).await.unwrap().unwrap().attempts.len(), 2);
    // When the last ones are deleted too, so is the day.
    let forever = Retention { dead: Some(DAY), ..Retention::default() };
    let (mut position, cutoffs) = (Some(PrunePosition::START), forever.cutoffs(LATER + DAY * 60));
    while let Some(at) = position {
        position = store.prune_some(&cutoffs, at).await.unwrap().next;
    }
    assert!(!partitions(&database, "events").await.contains("events_20270115"));
}

#[tokio::test]
async fn a_day_in_use_is_not_copied_and_keeps_its_rows() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    delivered(&store, MANY, |index| if index == 7 { Verdict::Dead } else { Verdict::Delivered }).await;
    // A reader, then a writer of the day. The day is the last that is old, so its rows are not deleted one by one yet.
    for lock in ["attempts_20270115 IN ACCESS SHARE MODE", "events_20270115 IN ROW EXCLUSIVE MODE"] {
        let mut other = database.connect().await;
        raw_sql(sqlx::AssertSqlSafe(format!("BEGIN; LOCK TABLE {lock}"))).execute(&mut other).await.unwrap();
        let pruned = prune_at(&store, NOW + DAY * 15).await;
        assert_eq!((pruned.events, pruned.attempts), (0, 0), "{lock}");
        assert!(store.event(event(1).event.id).await.unwrap().is_some(), "{lock}");
        raw_sql("COMMIT").execute(&mut other).await.unwrap();
    }
    assert_eq!(prune_at(&store, NOW + DAY * 15).await.days, 1);
    assert!(store.event(event(1).event.id).await.unwrap().is_none());
    assert!(store.event(event(8).event.id).await.unwrap().is_some());
}

#[tokio::test]
async fn pruning_does_not_wait_for_a_day_in_use() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let mut other = database.connect().await;
    raw_sql("BEGIN; LOCK TABLE events_20270114 IN ACCESS SHARE MODE").execute(&mut other).await.unwrap();
    prune(&store).await;
    assert!(partitions(&database, "events").await.contains("events_20270114"));
    raw_sql("COMMIT").execute(&mut other).await.unwrap();
    assert!(prune(&store).await.days >= 1);
    assert!(!partitions(&database, "events").await.contains("events_20270114"));
}

#[tokio::test]
async fn one_process_prunes_at_a_time_and_another_takes_over() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    let other = PostgresStore::open(&database.url(), NOW).await.unwrap();
    three_days(&store).await;
    let cutoffs = Retention::default().cutoffs(LATER);
    store.prune_some(&cutoffs, PrunePosition::Events([0xff; 16])).await.unwrap();
    assert_eq!(prune(&other).await, Pruned::default());
    store.close().await;
    assert_eq!(taken_over(async || prune(&other).await).await.deliveries, 4);
}

/// What the first pass does that may prune, after the process that pruned before has closed: the server notices the end
/// of that connection a moment later, and a pass before that does nothing.
async fn taken_over<T: Default + PartialEq>(pass: impl AsyncFn() -> T) -> T {
    let first = async {
        loop {
            let done = pass().await;
            if done != T::default() {
                return done;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), first).await.unwrap()
}
