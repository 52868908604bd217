//! The state of the file survives a restart of the engine.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{path::Path, sync::Arc, time::Duration};

use weir_core::{DeliveryState, claim::ClaimedDelivery, outcome::Verdict};
use weir_store::{
    Destinations as _, History as _, Ingest as _, Outbox as _, Recovered, Results as _,
    conformance::{NOW, creation, destination, event, matched, request, result},
};
use weir_store_sqlite::SqliteStore;

async fn claim(store: &SqliteStore, limit: u32) -> Vec<ClaimedDelivery> {
    store.claim(vec![request(1, limit)], NOW + Duration::from_secs(1)).await.unwrap().remove(0).deliveries
}

/// Claims five deliveries in two calls: one is delivered, one is retried at once, one is released, two stay claimed.
async fn claim_and_stop(path: &Path) -> Vec<ClaimedDelivery> {
    let store = SqliteStore::open(path).await.unwrap();
    store.create_destination(destination(1), creation()).await.unwrap();
    store.ingest((1..=5).map(|number| matched(event(number))).collect()).await.unwrap();
    let mut claimed = claim(&store, 4).await;
    claimed.extend(claim(&store, 4).await);
    let results = [result(&claimed[0], Verdict::Delivered), result(&claimed[1], Verdict::Retry { at: NOW })];
    store.settle(results.map(Arc::new).into()).await.unwrap();
    assert_eq!(store.release(vec![claimed[2].claim], NOW).await.unwrap(), 1);
    store.close().await;
    claimed
}

#[tokio::test]
async fn after_a_restart_only_unfinished_claims_have_an_unknown_outcome() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    let claimed = claim_and_stop(&path).await;
    assert_eq!(claimed.len(), 5);
    let store = SqliteStore::open(&path).await.unwrap();
    let state = async |index: usize| {
        let delivery = store.delivery(claimed[index].claim.delivery_id).await.unwrap().unwrap().delivery;
        (delivery.state, delivery.attempts)
    };
    assert_eq!(state(0).await, (DeliveryState::Delivered, 1));
    assert_eq!(state(1).await, (DeliveryState::Retrying, 1));
    assert_eq!(state(2).await, (DeliveryState::Pending, 0));
    assert_eq!(state(3).await, (DeliveryState::Delivering, 0));
    assert_eq!(state(4).await, (DeliveryState::Delivering, 0));

    let recovered = store.recover_claims(NOW + Duration::from_secs(3), true, 100).await.unwrap();
    assert_eq!(recovered, Recovered { retried: 2, ..Recovered::default() });
    assert_eq!(state(2).await, (DeliveryState::Pending, 0));
    assert_eq!(state(3).await, (DeliveryState::Retrying, 1));
    store.close().await;

    let store = SqliteStore::open(&path).await.unwrap();
    let again = store.recover_claims(NOW + Duration::from_secs(4), true, 100).await.unwrap();
    assert_eq!(again, Recovered::default());
    store.close().await;
}
