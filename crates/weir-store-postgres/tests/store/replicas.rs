//! Reads from a streaming replica: which reads use it, and when the primary answers instead.

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, query_scalar, raw_sql};
use weir_sealing::Keyring;
use weir_store::{
    Destinations as _, EventFilter, History as _, Ingest as _, Lists as _, PageRequest, SendsRequest, with_replica,
};
use weir_store_postgres::{Connections, PostgresStore};
use weir_test_support::Postgres;

use crate::fixtures::{NOW, creation, destination, destination_id, event};

struct Pair {
    primary: Postgres,
    replica: Postgres,
    store: PostgresStore,
}

impl Pair {
    /// Servers of their own, because a test stops and promotes them. The store has a destination.
    async fn start() -> Self {
        let primary = Postgres::start_primary().await.unwrap();
        let replica = primary.start_replica().await.unwrap();
        let connections = Connections { replica: Some(replica.url()), ..Connections::default() };
        let store = PostgresStore::open_with(&primary.url(), connections, NOW, Keyring::default()).await.unwrap();
        store.create_destination(destination(1), creation()).await.unwrap();
        Self { primary, replica, store }
    }

    async fn post(&self, number: u64) {
        self.store.ingest_part(&[event(number)].into(), 0).await.unwrap();
    }

    /// How many events a list has, as a request reads it that may use the replica.
    async fn listed(&self) -> usize {
        let page = PageRequest { before: None, limit: 50 };
        with_replica(self.store.list_events(&EventFilter::default(), page)).await.unwrap().rows.len()
    }

    /// Whether the replica has answered a statement with this text since the last question.
    async fn replica_read(&self, text: &str) -> bool {
        let mut connection = PgConnection::connect(&self.replica.url()).await.unwrap();
        let asked =
            "SELECT count(*) > 0 FROM pg_stat_activity WHERE position($1 IN query) > 0 AND pid <> pg_backend_pid()";
        query_scalar(asked).bind(text).fetch_one(&mut connection).await.unwrap()
    }

    async fn run_on_replica(&self, sql: &str) {
        let mut connection = PgConnection::connect(&self.replica.url()).await.unwrap();
        raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.unwrap();
    }
}

#[tokio::test]
async fn a_list_from_the_replica_shows_what_was_stored_a_moment_ago() {
    let pair = Pair::start().await;
    for number in 1..=20 {
        pair.post(number).await;
        assert_eq!(pair.listed().await as u64, number);
    }
    assert!(pair.replica_read("FROM events e").await);
    let sends = SendsRequest {
        destination_id: destination_id(1),
        from: NOW,
        to: weir_core::Timestamp::MAX,
        after: None,
        limit: 9,
    };
    assert_eq!(with_replica(pair.store.sends(sends)).await.unwrap(), []);
}

#[tokio::test]
async fn a_read_that_may_decide_something_is_answered_by_the_primary() {
    let pair = Pair::start().await;
    pair.post(1).await;
    let page = PageRequest { before: None, limit: 50 };
    assert_eq!(pair.store.list_events(&EventFilter::default(), page).await.unwrap().rows.len(), 1);
    assert!(!pair.replica_read("FROM events e").await);
}

#[tokio::test]
async fn a_replica_that_is_behind_is_passed_over_until_it_has_caught_up() {
    let pair = Pair::start().await;
    pair.post(1).await;
    assert_eq!(pair.listed().await, 1);
    pair.run_on_replica("SELECT pg_wal_replay_pause()").await;
    pair.post(2).await;
    assert_eq!(pair.listed().await, 2, "the primary answers");
    pair.run_on_replica("SELECT pg_wal_replay_resume()").await;
    while pair.store.check_replica().await == Some(false) {}
    pair.post(3).await;
    assert_eq!(pair.listed().await, 3);
}

#[tokio::test]
async fn a_replica_that_stops_is_passed_over_and_used_again_when_it_is_back() {
    let mut pair = Pair::start().await;
    pair.post(1).await;
    assert_eq!(pair.listed().await, 1);
    pair.replica.stop().await.unwrap();
    pair.post(2).await;
    assert_eq!(pair.listed().await, 2, "the primary answers");
    pair.replica.start_again().await.unwrap();
    while pair.store.check_replica().await == Some(false) {}
    pair.post(3).await;
    assert_eq!(pair.listed().await, 3);
    assert!(pair.replica_read("FROM events e").await);
}

/// After its promotion it has another history.
#[tokio::test]
async fn a_promoted_replica_is_not_read_any_more() {
    let pair = Pair::start().await;
    pair.post(1).await;
    assert_eq!(pair.listed().await, 1);
    pair.run_on_replica("SELECT pg_promote(wait => true)").await;
    pair.run_on_replica("TRUNCATE events").await;
    assert_eq!(pair.listed().await, 1);
    drop(pair.primary);
}
