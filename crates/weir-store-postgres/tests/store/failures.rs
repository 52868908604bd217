//! Lost connections and failed operations.

use std::{sync::Arc, time::Duration};

use sqlx::AssertSqlSafe;
use weir_core::outcome::Verdict;
use weir_store::{
    Destinations as _, History as _, Hold, Ingest as _, Obstacle, Outbox as _, Processes as _, Results as _,
    RunDestinations as _, Settlement, StoreError, StoreResult,
};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, creation, destination, destination_id, event, request, result},
    processes::with_key,
};

const OF_THE_STORE: &str = "FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()";

/// Ends every connection of the store, like a restart of the server. Returns how many there were.
pub(crate) async fn terminate(database: &Database) -> i64 {
    let terminate = AssertSqlSafe(format!("SELECT count(pg_terminate_backend(pid)) {OF_THE_STORE}"));
    sqlx::query_scalar(terminate).fetch_one(&mut database.connect().await).await.unwrap()
}

/// Asks the server until every connection of the store has ended: the server notices an end a moment later.
async fn all_connections_gone(database: &Database) {
    let mut connection = database.connect().await;
    for _ in 0..10_000 {
        let count = AssertSqlSafe(format!("SELECT count(*) {OF_THE_STORE}"));
        let open: i64 = sqlx::query_scalar(count).fetch_one(&mut connection).await.unwrap();
        if open == 0 {
            return;
        }
    }
    panic!("connections are still open");
}

/// Repeats a call until it succeeds. Every error must be `Unavailable`, and a few calls must be enough.
pub(crate) async fn answered<T>(mut ask: impl AsyncFnMut() -> StoreResult<T>) -> T {
    for _ in 0..20 {
        match ask().await {
            Ok(answer) => return answer,
            Err(error) => assert!(matches!(error, StoreError::Unavailable(_)), "{error}"),
        }
    }
    panic!("the store did not reconnect");
}

#[tokio::test]
async fn the_store_works_again_after_its_connections_were_lost() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    let now = NOW + Duration::from_secs(10);
    for round in 1..=3 {
        // Repeated with one idempotency key, like a producer does.
        let new = || vec![with_key(event(round), &format!("order {round}"))];
        let posted = answered(async || store.ingest(new()).await).await.remove(0).unwrap();
        assert_eq!(posted.deliveries, 1);
        let found = answered(async || store.destinations(&[destination_id(1)]).await).await;
        assert!(found[0].is_some());
        let claims = answered(async || store.claim(vec![request(1, 9)], now).await).await;
        let claimed = &claims[0].deliveries;
        assert_eq!(claimed.len(), 1);
        let released = answered(async || store.release(vec![claimed[0].claim], now).await).await;
        assert_eq!(released, 1);
        let mut durable = request(1, 9);
        durable.durable = true;
        let claims = answered(async || store.claim(vec![durable.clone()], now).await).await;
        let results = vec![Arc::new(result(&claims[0].deliveries[0], Verdict::Delivered))];
        let settled = answered(async || store.settle(results.clone()).await).await;
        assert!(matches!(settled[0], Settlement::Settled(_)));
        let hold = Hold { id: destination_id(1), until: now, reason: "busy".to_owned(), sent_at: NOW, now: NOW };
        answered(async || store.hold_destinations(vec![hold.clone()]).await).await;
        answered(async || store.check().await).await;
        assert!(terminate(&database).await > 0);
    }
    assert_eq!(answered(async || store.destination_counts(destination_id(1)).await).await.pending, 0);
}

/// Sets whether new sessions of the database may write. An existing session keeps its setting.
async fn set_read_only(database: &Database, is_read_only: bool) {
    let set = format!(
        "SET TRANSACTION READ WRITE;
        DO $$ BEGIN EXECUTE format(
            'ALTER DATABASE %I SET default_transaction_read_only = {is_read_only}', current_database()
        ); END $$"
    );
    sqlx::raw_sql(AssertSqlSafe(set)).execute(&mut database.connect().await).await.unwrap();
    terminate(database).await;
}

#[tokio::test]
async fn a_database_that_is_read_only_is_not_ready_and_says_so() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.register_process().await.unwrap();
    set_read_only(&database, true).await;
    // The first beat finds a connection that was ended, the next one a database that cannot be written.
    let refused = async || loop {
        match store.beat(None).await {
            Err(error @ StoreError::CannotWrite { .. }) => return error,
            Err(StoreError::Unavailable(_)) => {}
            answer => panic!("{answer:?}"),
        }
    };
    let error = refused().await;
    assert!(matches!(error, StoreError::CannotWrite { obstacle: Obstacle::ReadOnly, .. }), "{error}");
    // Reads still work, so only the failed write shows it.
    let ready = store.check().await;
    assert!(matches!(ready, Err(StoreError::CannotWrite { obstacle: Obstacle::ReadOnly, .. })), "{ready:?}");
    let error = PostgresStore::open(&database.url(), NOW).await.unwrap_err().to_string();
    assert!(error.contains("takes no writes, because it is read-only"), "{error}");

    set_read_only(&database, false).await;
    answered(async || store.ingest(vec![event(1)]).await).await.remove(0).unwrap();
    assert!(answered(async || store.beat(None).await).await);
}

#[tokio::test]
async fn a_closed_store_refuses_further_work() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.ingest(vec![event(1)]).await.unwrap();
    store.close().await;
    store.close().await;
    assert!(matches!(store.check().await, Err(StoreError::Unavailable(_))));
    assert!(matches!(store.ingest(vec![event(2)]).await, Err(StoreError::Unavailable(_))));
    all_connections_gone(&database).await;
}

#[tokio::test]
async fn operations_sent_before_the_store_closes_are_answered() {
    let database = Database::migrated().await;
    let store = Arc::new(PostgresStore::open(&database.url(), NOW).await.unwrap());
    // Each task is polled once, in order, so that every event is in the inbox before the store closes.
    let posts = async {
        let posts: Vec<_> = (1..=50)
            .map(|number| {
                let store = Arc::clone(&store);
                tokio::spawn(async move { store.ingest(vec![event(number)]).await })
            })
            .collect();
        tokio::task::yield_now().await;
        store.close().await;
        posts
    };
    for post in posts.await {
        assert!(post.await.unwrap().is_ok());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_cannot_be_stored_does_not_fail_others_of_its_group() {
    let database = Database::migrated().await;
    let store = Arc::new(PostgresStore::open(&database.url(), NOW).await.unwrap());
    store.create_destination(destination(1), creation()).await.unwrap();
    store.ingest((1..=40).map(event).collect()).await.unwrap();
    let claimed = store.claim(vec![request(1, 40)], NOW + Duration::from_secs(10)).await.unwrap().remove(0).deliveries;
    let settles: Vec<_> = claimed
        .iter()
        .enumerate()
        .map(|(index, claimed)| {
            let mut result = result(claimed, Verdict::Delivered);
            if index == 7 {
                result.attempt.number = u32::MAX;
            }
            let store = Arc::clone(&store);
            tokio::spawn(async move { store.settle(vec![result.into()]).await })
        })
        .collect();
    for (index, settle) in settles.into_iter().enumerate() {
        let settled = settle.await.unwrap();
        match index {
            7 => assert!(matches!(settled, Err(StoreError::Failed(_)))),
            _ => assert!(matches!(settled.unwrap()[0], Settlement::Settled(_))),
        }
    }
}

#[tokio::test]
async fn an_answer_with_the_character_zero_is_recorded() {
    let database = Database::migrated().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    store.ingest(vec![event(1)]).await.unwrap();
    let claimed = store.claim(vec![request(1, 1)], NOW + Duration::from_secs(1)).await.unwrap().remove(0).deliveries;
    let mut result = result(&claimed[0], Verdict::Failed);
    result.attempt.response_body = Some("a\0b".to_owned());
    result.attempt.error = Some("c\0d".to_owned());
    store.settle(vec![result.into()]).await.unwrap();
    let attempt = store.delivery(claimed[0].claim.delivery_id).await.unwrap().unwrap().attempts.remove(0);
    assert_eq!(attempt.response_body.as_deref(), Some("a\0b"));
    assert_eq!(attempt.error.as_deref(), Some("c\u{fffd}d"));
}

/// Small groups do not run at the same time, unless the running one takes long.
#[tokio::test]
async fn an_event_does_not_wait_for_another_that_waits_for_a_lock() {
    let database = Database::migrated().await;
    let store = Arc::new(PostgresStore::open(&database.url(), NOW).await.unwrap());
    store.create_destination(destination(1), creation()).await.unwrap();
    let mut other = database.connect().await;
    let mut transaction = sqlx::Connection::begin(&mut other).await.unwrap();
    sqlx::query("INSERT INTO idempotency_keys VALUES ('acme', 'taken', '00000000-0000-0000-0000-000000000000', 0)")
        .execute(&mut *transaction)
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let store = Arc::clone(&store);
        async move { store.ingest(vec![with_key(event(1), "taken")]).await }
    });
    let mut observer = database.connect().await;
    let waits = format!("SELECT count(*) {OF_THE_STORE} AND wait_event_type = 'Lock'");
    while sqlx::query_scalar::<_, i64>(AssertSqlSafe(waits.clone())).fetch_one(&mut observer).await.unwrap() == 0 {}
    let stored = tokio::time::timeout(Duration::from_secs(5), store.ingest(vec![event(2)])).await;
    stored.expect("the event is stored in time").unwrap();
    assert!(!waiting.is_finished(), "the other transaction holds the key");
    transaction.rollback().await.unwrap();
    waiting.await.unwrap().unwrap();
}
