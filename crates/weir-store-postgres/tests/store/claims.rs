//! Claims that follow each other.

use std::time::Duration;

use weir_core::claim::ClaimedDelivery;
use weir_store::{Destinations as _, Ingest as _, Outbox as _};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, destination, event, event_at, request},
};

/// When the events of what is claimed were created, in milliseconds after [`NOW`].
async fn claim(store: &PostgresStore, limit: u32) -> Vec<u128> {
    let claims = store.claim(vec![request(1, limit)], NOW + Duration::from_secs(10)).await.unwrap().remove(0);
    let created = |claimed: &ClaimedDelivery| claimed.event_created_at.since(NOW).as_millis();
    claims.deliveries.iter().map(created).collect()
}

#[tokio::test]
async fn what_is_due_before_the_last_claim_is_found_by_the_first_that_would_come_back_short() {
    let database = Database::create().await;
    let store = PostgresStore::open(&database.url(), NOW).await.unwrap();
    store.create_destination(destination(1)).await.unwrap();
    store.ingest((1..=6).map(event).collect()).await.unwrap();
    assert_eq!(claim(&store, 4).await, [1, 2, 3, 4]);
    // Another process' clock is behind.
    store.ingest(vec![event_at(7, NOW)]).await.unwrap();
    assert_eq!(claim(&store, 3).await, [0, 5, 6]);
    assert_eq!(claim(&store, 3).await, [0_u128; 0]);
}
