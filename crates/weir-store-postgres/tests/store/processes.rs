//! Several processes on one database: concurrent operations, and changes that another process must see.

use std::{collections::HashSet, sync::Arc, time::Duration};

use weir_core::{DeliveryState, outcome::Verdict};
use weir_store::{
    Deletion, DeliveryFilter, DestinationPatch, Destinations as _, History as _, Hold, Ingest as _, IngestRefusal,
    Lists as _, NewEvent, Outbox as _, PageRequest, Pause, Results as _, RunDestinations as _, Settlement,
    conformance::{activity, deletion},
};
use weir_store_postgres::PostgresStore;

use crate::{
    database::Database,
    fixtures::{NOW, creation, destination, destination_id, event, request, result},
};

pub(crate) fn with_key(mut new: NewEvent, key: &str) -> NewEvent {
    new.event.idempotency_key = Some(key.to_owned());
    new
}

/// Two stores on one database, which stand for two processes.
pub(crate) async fn two_processes() -> (Database, [Arc<PostgresStore>; 2]) {
    let database = Database::migrated().await;
    let open = async || Arc::new(PostgresStore::open(&database.url(), NOW).await.unwrap());
    let stores = [open().await, open().await];
    (database, stores)
}

#[tokio::test]
async fn a_new_database_is_opened_by_several_processes_at_once() {
    let database = Database::create().await;
    let url = database.url();
    let opened =
        tokio::join!(PostgresStore::open(&url, NOW), PostgresStore::open(&url, NOW), PostgresStore::open(&url, NOW),);
    for store in [opened.0, opened.1, opened.2] {
        store.unwrap().check().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_processes_never_claim_one_delivery() {
    let (_database, stores) = two_processes().await;
    for number in 1..=3 {
        stores[0].create_destination(destination(number), creation()).await.unwrap();
    }
    stores[0].ingest((1..=200).map(event).collect()).await.unwrap();
    let claimers: Vec<_> = (0..8)
        .map(|claimer| {
            let store = Arc::clone(&stores[claimer % 2]);
            tokio::spawn(async move {
                let mut claimed = Vec::new();
                loop {
                    let requests = (1..=3).map(|number| request(number, 4)).collect();
                    let claims = store.claim(requests, NOW + Duration::from_secs(10)).await.unwrap();
                    assert!(claims.iter().all(|claims| claims.deliveries.len() <= 4));
                    let before = claimed.len();
                    claimed.extend(claims.into_iter().flat_map(|claims| claims.deliveries));
                    if claimed.len() == before {
                        return claimed;
                    }
                }
            })
        })
        .collect();
    let mut claimed = HashSet::new();
    for claimer in claimers {
        for delivery in claimer.await.unwrap() {
            assert!(claimed.insert(delivery.claim.delivery_id), "claimed twice");
        }
    }
    assert_eq!(claimed.len(), 600);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_key_posted_to_two_processes_is_one_event() {
    let (_database, stores) = two_processes().await;
    stores[0].create_destination(destination(1), creation()).await.unwrap();
    for round in 0..10 {
        let posts: Vec<_> = (1..=8)
            .map(|number| {
                let store = Arc::clone(&stores[number as usize % 2]);
                let new = with_key(event(round * 100 + number), &format!("order {round}"));
                tokio::spawn(async move { store.ingest(vec![new]).await.unwrap().remove(0).unwrap() })
            })
            .collect();
        let mut answers = Vec::new();
        for post in posts {
            answers.push(post.await.unwrap());
        }
        assert_eq!(answers.iter().filter(|answer| !answer.duplicate).count(), 1);
        assert!(answers.iter().all(|answer| answer.event == answers[0].event && answer.deliveries == 1));
    }
    assert_eq!(stores[0].destination_counts(destination_id(1)).await.unwrap().pending, 10);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_coalesce_key_posted_to_two_processes_leaves_one_waiting_delivery() {
    let (_database, stores) = two_processes().await;
    stores[0].create_destination(destination(1), creation()).await.unwrap();
    for round in 0..50 {
        let posts: Vec<_> = (1..=4)
            .map(|number| {
                let store = Arc::clone(&stores[number as usize % 2]);
                let mut new = event(round * 100 + number);
                new.event.options.coalesce_key = Some("a".to_owned());
                tokio::spawn(async move { store.ingest(vec![new]).await.unwrap().remove(0).unwrap() })
            })
            .collect();
        for post in posts {
            post.await.unwrap();
        }
        assert_eq!(stores[0].destination_counts(destination_id(1)).await.unwrap().pending, 1, "round {round}");
    }
}

#[tokio::test]
async fn an_edit_is_seen_by_another_process_at_once() {
    let (database, [editor, other]) = two_processes().await;
    let first = editor.create_destination(destination(1), creation()).await.unwrap().into_new().unwrap();
    assert_eq!(other.destinations(&[first.id]).await.unwrap(), [Some(Arc::clone(&first))]);
    assert_eq!(other.ingest(vec![event(1)]).await.unwrap()[0].as_ref().unwrap().deliveries, 1);

    let mut settings = first.settings.clone();
    settings.event_types = vec!["order.*".parse().unwrap()];
    let patch = DestinationPatch {
        id: first.id,
        expected_updated_at: NOW,
        settings,
        temporary: None,
        closes_breaker: false,
        lifts_hold: false,
        now: NOW + Duration::from_secs(1),
        made_at: NOW + Duration::from_secs(1),
    };
    let edited = editor.patch_destination(patch, activity().into()).await.unwrap().into_new().flatten().unwrap();
    assert_eq!(other.destinations(&[first.id]).await.unwrap(), [Some(edited)]);
    assert_eq!(other.ingest(vec![event(2)]).await.unwrap()[0].as_ref().unwrap().deliveries, 0);

    // The version stays: otherwise events would wait until their process has read the destination again.
    let version = async || -> i64 {
        sqlx::query_scalar("SELECT version FROM destinations").fetch_one(&mut database.connect().await).await.unwrap()
    };
    let before = version().await;
    for until in [60, 90] {
        let until = NOW + Duration::from_secs(until);
        let hold = Hold { id: first.id, until, reason: "busy".to_owned(), sent_at: NOW, now: NOW };
        editor.hold_destinations(vec![hold]).await.unwrap();
        let held = other.destination(first.id).await.unwrap().unwrap();
        assert_eq!(held.held_until, Some(until));
    }
    assert_eq!(version().await, before);

    let pause = Pause { id: first.id, reason: "gone".to_owned(), now: NOW + Duration::from_secs(2) };
    assert_eq!(editor.pause_destinations(vec![pause]).await.unwrap(), [true]);
    assert!(other.claim(vec![request(1, 9)], NOW + Duration::from_secs(9)).await.unwrap()[0].deliveries.is_empty());

    let deleted = editor.delete_destination(deletion(1, Duration::from_secs(3)), activity()).await.unwrap();
    assert_eq!(deleted, Deletion::Deleted);
    assert_eq!(other.destinations(&[first.id]).await.unwrap(), [None]);
    let mut named = event(3);
    named.destinations = Some(vec![first.id]);
    let refused = other.ingest(vec![named]).await.unwrap().remove(0);
    assert!(matches!(refused, Err(IngestRefusal::UnknownDestination { index: 0 })));
}

/// One process posts events and claims, releases and settles deliveries while another deletes the destination. No
/// delivery of the destination waits afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_leaves_no_waiting_delivery() {
    let (_database, [deleter, worker]) = two_processes().await;
    for round in 1..=12 {
        let id = deleter.create_destination(destination(round), creation()).await.unwrap().into_new().unwrap().id;
        let numbers = round as u64 * 1_000..;
        let post = tokio::spawn({
            let worker = Arc::clone(&worker);
            async move {
                for number in numbers {
                    let posted = worker.ingest(vec![event(number)]).await.unwrap().remove(0).unwrap();
                    if posted.deliveries == 0 {
                        return;
                    }
                }
            }
        });
        let work = tokio::spawn({
            let worker = Arc::clone(&worker);
            async move {
                loop {
                    let now = NOW + Duration::from_secs(60);
                    let claimed = worker.claim(vec![request(round, 5)], now).await.unwrap().remove(0).deliveries;
                    if claimed.is_empty() && worker.destination(id).await.unwrap().is_none() {
                        return;
                    }
                    let (released, settled) = claimed.split_at(claimed.len() / 2);
                    worker.release(released.iter().map(|claimed| claimed.claim).collect(), now).await.unwrap();
                    let retry = |claimed| Arc::new(result(claimed, Verdict::Retry { at: NOW }));
                    worker.settle(settled.iter().map(retry).collect()).await.unwrap();
                }
            }
        });
        // Wait for some retries, so that the deletion meets deliveries in every state.
        while worker.destination_counts(id).await.unwrap().retrying < 3 {
            tokio::task::yield_now().await;
        }
        let deleted = deleter.delete_destination(deletion(round, Duration::from_secs(70)), activity()).await.unwrap();
        assert_eq!(deleted, Deletion::Deleted);
        post.await.unwrap();
        work.await.unwrap();
        let counts = deleter.destination_counts(id).await.unwrap();
        assert_eq!((counts.pending, counts.retrying, counts.delivering), (0, 0, 0), "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_abandoned_claim_is_recovered_by_one_process() {
    let (_database, stores) = two_processes().await;
    stores[0].create_destination(destination(1), creation()).await.unwrap();
    stores[0].ingest((1..=300).map(event).collect()).await.unwrap();
    let claimed = stores[0].claim(vec![request(1, 300)], NOW + Duration::from_secs(1)).await.unwrap().remove(0);
    assert_eq!(claimed.deliveries.len(), 300);
    let recover = |store: &Arc<PostgresStore>| {
        let store = Arc::clone(store);
        tokio::spawn(async move {
            let mut recovered = 0;
            loop {
                let some = store.recover_claims(NOW + Duration::from_secs(61), false, 40).await.unwrap();
                if some.retried == 0 {
                    return recovered;
                }
                recovered += some.retried;
            }
        })
    };
    let [first, second] = stores.each_ref().map(recover);
    assert_eq!(first.await.unwrap() + second.await.unwrap(), 300);
    // A late result of the first process.
    let late = stores[0].settle(vec![result(&claimed.deliveries[0], Verdict::Delivered).into()]).await.unwrap();
    assert_eq!(late, [Settlement::ClaimLost]);
    let detail = stores[1].delivery(claimed.deliveries[0].claim.delivery_id).await.unwrap().unwrap();
    assert_eq!((detail.delivery.state, detail.attempts.len()), (DeliveryState::Retrying, 1));
    let page = PageRequest { before: None, limit: 200 };
    let waiting = DeliveryFilter { states: vec![DeliveryState::Delivering], ..DeliveryFilter::default() };
    assert!(stores[1].list_deliveries(&waiting, page).await.unwrap().rows.is_empty());
}
