//! The state of the file survives a restart of the engine.

#![expect(clippy::unwrap_used, reason = "tests")]

use std::{path::Path, sync::Arc, time::Duration};

use weir_core::{
    AttemptId, DeliveryState, Destination, DestinationId, EventId, RateLimits, Timestamp,
    claim::ClaimedDelivery,
    delivery::{Attempt, AttemptOutcome},
    event::{DeliveryOptions, Event, EventBody},
    order::DeliveryOrder,
    outcome::Verdict,
};
use weir_store::{
    AttemptResult, ClaimRequest, Destinations as _, History as _, Ingest as _, MessageGroups as _,
    MessageGroupsRepaired, NewEvent, Outbox as _, Recovered, Results as _, conformance,
};
use weir_store_sqlite::SqliteStore;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const TO: DestinationId = DestinationId::from_bytes([7; 16]);

fn destination() -> Destination {
    let mut destination = conformance::destination(1);
    destination.id = TO;
    destination.settings.tenant = "default".to_owned();
    destination.settings.rate_limits = RateLimits::UNLIMITED;
    destination
}

fn event(number: u64) -> NewEvent {
    let created_at = NOW + Duration::from_millis(number);
    let id = EventId::new(created_at, number.into());
    let event_type = "video.created".to_owned();
    let body = EventBody::freeze(id, &event_type, created_at, "{}");
    let event = Event {
        id,
        tenant: "default".to_owned(),
        event_type,
        created_at,
        idempotency_key: None,
        options: DeliveryOptions::default(),
        body,
    };
    NewEvent { event, destinations: Some(vec![TO]), random: number.into() }
}

async fn claim(store: &SqliteStore, limit: u32) -> Vec<ClaimedDelivery> {
    let request = ClaimRequest { destination_id: TO, limit, expires_at: NOW + Duration::from_secs(90), durable: false };
    store.claim(vec![request], NOW + Duration::from_secs(1)).await.unwrap().remove(0).deliveries
}

fn ended(claimed: &ClaimedDelivery, verdict: Verdict) -> Arc<AttemptResult> {
    let now = NOW + Duration::from_secs(2);
    let attempt = Attempt {
        id: AttemptId::new(now, 1),
        delivery_id: claimed.claim.delivery_id,
        number: claimed.attempts + 1,
        sent_at: Some(now),
        duration_ms: 1,
        outcome: if verdict == Verdict::Delivered { AttemptOutcome::Delivered } else { AttemptOutcome::Retryable },
        status_code: Some(200),
        error: None,
        failure: None,
        response_body: None,
    };
    Arc::new(AttemptResult { claim: claimed.claim, attempt, verdict, now })
}

/// Claims five deliveries in two calls: one is delivered, one is retried at once, one is released, two stay claimed.
async fn claim_and_stop(path: &Path) -> Vec<ClaimedDelivery> {
    let store = SqliteStore::open(path).await.unwrap();
    store.create_destination(destination()).await.unwrap();
    store.ingest((1..=5).map(event).collect()).await.unwrap();
    let mut claimed = claim(&store, 4).await;
    claimed.extend(claim(&store, 4).await);
    let results = vec![ended(&claimed[0], Verdict::Delivered), ended(&claimed[1], Verdict::Retry { at: NOW })];
    store.settle(results).await.unwrap();
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

/// The store never leaves a message group without a head, but an older version or a manual edit of the file may.
#[tokio::test]
async fn a_message_group_without_a_head_gets_one_by_the_next_repair() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weir.db");
    let store = SqliteStore::open(&path).await.unwrap();
    let mut ordered = destination();
    ordered.settings.order = DeliveryOrder::new(true, None);
    store.create_destination(ordered).await.unwrap();
    let in_order = |(number, key): (u64, &str)| {
        let mut new = event(number);
        new.event.options.ordering_key = Some(key.to_owned());
        new
    };
    let events = [(1, "a"), (2, "a"), (3, "a"), (4, "b"), (5, "b"), (6, "c")];
    store.ingest(events.map(in_order).into()).await.unwrap();
    store.close().await;
    let ended =
        "UPDATE deliveries SET state = 3 WHERE ordering_key IN ('a', 'b') AND next_attempt_at < 9223372036854775807";
    rusqlite::Connection::open(&path).unwrap().execute_batch(ended).unwrap();
    let store = SqliteStore::open(&path).await.unwrap();
    assert_eq!(claim(&store, 9).await.len(), 1, "only the third group has a head");
    let first = store.repair_message_groups(None, 2).await.unwrap();
    assert_eq!(first.advanced, 2);
    let rest = store.repair_message_groups(first.next, 2).await.unwrap();
    assert_eq!(rest, MessageGroupsRepaired { advanced: 0, next: None });
    assert_eq!(claim(&store, 9).await.len(), 2);
    assert_eq!(store.repair_message_groups(None, 9).await.unwrap().advanced, 0, "each group has a head");
}
