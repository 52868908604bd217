//! Heartbeats: one process dies, or loses its connections, and another resolves its claims.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use sqlx::raw_sql;
use weir_core::{
    Destination, DestinationId, Timestamp,
    claim::{Claim, ClaimedDelivery},
    outcome::Verdict,
};
use weir_store::{
    Destinations as _, FastPath, Ingest as _, Outbox as _, ProcessBeat, Processes as _, Recovered, ReplaySteps as _,
    Results as _, Settlement, StoreError,
};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, creation, destination, destination_id, event, request, result},
    processes::two_processes,
};

const LATER: Timestamp = Timestamp::from_secs(1_800_000_010);

/// Admits every delivery.
#[derive(Default)]
struct OpenFastPath(Mutex<Vec<ClaimedDelivery>>);

impl FastPath for OpenFastPath {
    fn reserve(&self, _: &Destination, _: DestinationId) -> Option<Timestamp> {
        Some(NOW + Duration::from_secs(60))
    }

    fn cancel(&self, _: DestinationId) {}

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        self.0.lock().unwrap().extend(deliveries);
    }
}

async fn claim(store: &PostgresStore, limit: u32) -> Vec<ClaimedDelivery> {
    store.claim(vec![request(1, limit)], LATER).await.unwrap().remove(0).deliveries
}

/// Declares every other process dead, even if it beats. Returns how many.
async fn declare_all_dead_but(store: &PostgresStore, living: &[ProcessBeat]) -> usize {
    let mut dead = 0;
    for ProcessBeat { id, beat } in store.processes().await.unwrap() {
        if living.iter().all(|living| living.id != id) {
            assert!(store.declare_dead(id, beat).await.unwrap());
            dead += 1;
        }
    }
    dead
}

async fn orphans(store: &PostgresStore) -> HashSet<Claim> {
    store.orphaned_claims(99).await.unwrap().into_iter().collect()
}

/// A destination and two registered processes: the first is declared dead in the test, and the second observes it.
async fn mortal_and_observer() -> (Database, [Arc<PostgresStore>; 2], Vec<ProcessBeat>) {
    let (database, stores) = two_processes().await;
    stores[0].create_destination(destination(1), creation()).await.unwrap();
    stores[1].register_process().await.unwrap();
    let living = stores[1].processes().await.unwrap();
    stores[0].register_process().await.unwrap();
    (database, stores, living)
}

#[tokio::test]
async fn every_kind_of_claim_of_a_dead_process_is_orphaned() {
    let (database, [mortal, observer], living) = mortal_and_observer().await;
    mortal.ingest((1..=3).map(event).collect()).await.unwrap();
    let mut claimed = claim(&mortal, 1).await;
    claimed.extend(claim(&observer, 1).await);
    raw_sql("UPDATE deliveries SET is_replay = true WHERE state = 0")
        .execute(&mut database.connect().await)
        .await
        .unwrap();
    claimed.extend(mortal.claim_replays(vec![request(1, 9)], LATER).await.unwrap().remove(0).deliveries);
    let fast_path = Arc::new(OpenFastPath::default());
    mortal.connect(fast_path.clone());
    mortal.ingest(vec![event(4)]).await.unwrap();
    claimed.append(&mut fast_path.0.lock().unwrap());
    let [by_claim, by_observer, of_replay, by_fast_path] = &claimed[..] else { panic!("{claimed:?}") };
    assert!(orphans(&observer).await.is_empty());

    assert_eq!(declare_all_dead_but(&observer, &living).await, 1);
    let orphaned = [by_claim, of_replay, by_fast_path].map(|claimed| claimed.claim);
    assert_eq!(orphans(&observer).await, HashSet::from(orphaned));
    assert_eq!(observer.orphaned_claims(2).await.unwrap().len(), 2);

    let resolved = observer.resolve_claims(orphaned.to_vec(), LATER).await.unwrap();
    assert_eq!(resolved, Recovered { retried: 3, ..Recovered::default() });
    assert!(orphans(&observer).await.is_empty());
    let late = mortal.settle(vec![result(by_fast_path, Verdict::Delivered).into()]).await.unwrap();
    assert_eq!(late, [Settlement::ClaimLost]);
    let kept = observer.settle(vec![result(by_observer, Verdict::Delivered).into()]).await.unwrap();
    assert!(matches!(kept[0], Settlement::Settled(_)));
}

#[tokio::test]
async fn a_renewed_claim_belongs_to_the_process_that_renewed_it() {
    let (_database, [mortal, observer], living) = mortal_and_observer().await;
    mortal.ingest((1..=2).map(event).collect()).await.unwrap();
    let claimed = claim(&mortal, 2).await;
    assert_eq!(observer.renew_claims(vec![claimed[0].claim], LATER).await.unwrap(), 1);
    declare_all_dead_but(&observer, &living).await;
    assert_eq!(orphans(&observer).await, HashSet::from([claimed[1].claim]));
    observer.deregister().await.unwrap();
    assert_eq!(orphans(&mortal).await, HashSet::from([claimed[0].claim, claimed[1].claim]));
}

#[tokio::test]
async fn a_process_that_was_declared_dead_claims_nothing_until_it_registers_again() {
    let (_database, [mortal, observer], living) = mortal_and_observer().await;
    let fast_path = Arc::new(OpenFastPath::default());
    mortal.connect(fast_path.clone());
    // The destination is then cached, and the fast path is used.
    mortal.ingest(vec![event(1)]).await.unwrap();
    assert_eq!(fast_path.0.lock().unwrap().len(), 1);
    declare_all_dead_but(&observer, &living).await;
    let refused = mortal.claim(vec![request(1, 9)], LATER).await;
    assert!(matches!(refused, Err(StoreError::Unavailable(_))), "{refused:?}");
    for number in [2, 3] {
        let posted = mortal.ingest(vec![event(number)]).await.unwrap().remove(0).unwrap();
        assert_eq!((posted.deliveries, posted.wake), (1, vec![destination_id(1)]));
    }
    assert_eq!(fast_path.0.lock().unwrap().len(), 1);
    assert!(!mortal.beat(None).await.unwrap());

    let id = mortal.register_process().await.unwrap();
    assert!(living.iter().all(|living| living.id != id));
    assert!(mortal.beat(None).await.unwrap());
    assert_eq!(claim(&mortal, 9).await.len(), 2);
    assert_eq!(orphans(&observer).await.len(), 1, "the claim of its earlier registration");
}

#[tokio::test]
async fn a_process_with_a_new_beat_is_not_declared_dead() {
    let (_database, [mortal, observer], living) = mortal_and_observer().await;
    let of_mortal = async || {
        let all = observer.processes().await.unwrap();
        all.into_iter().find(|process| living.iter().all(|living| living.id != process.id))
    };
    let seen = of_mortal().await.unwrap();
    assert_eq!(of_mortal().await, Some(seen), "only the process itself raises its beat");
    assert!(mortal.beat(Some(-40_000_000)).await.unwrap());
    assert_ne!(of_mortal().await, Some(seen));
    let clocks = observer.running_processes().await.unwrap();
    let clock = clocks.iter().find(|process| process.id == seen.id).and_then(|process| process.clock_ahead_us);
    assert_eq!(clock, Some(-40_000_000), "others see its clock");
    assert!(!observer.declare_dead(seen.id, seen.beat).await.unwrap());
    assert!(mortal.beat(None).await.unwrap());
    let seen = of_mortal().await.unwrap();
    assert!(observer.declare_dead(seen.id, seen.beat).await.unwrap());
    assert!(!observer.declare_dead(seen.id, seen.beat).await.unwrap(), "a process is declared dead once");
}

#[tokio::test]
async fn a_process_that_deregisters_is_removed_at_once() {
    let (_database, [mortal, observer], living) = mortal_and_observer().await;
    mortal.deregister().await.unwrap();
    assert_eq!(observer.processes().await.unwrap(), living);
    assert!(!mortal.beat(None).await.unwrap());
    mortal.deregister().await.unwrap();
}
