//! Events with many destinations: the bounds of a commit, the turns of tenants, and the limits.

use tokio::time::Instant;

use super::*;
use crate::{DestinationLimits, IngestRefusal, MOST_DELIVERIES_OF_COMMIT, NamedCreation};

/// The most destinations that a tenant has in these tests.
const MANY: u128 = 64;

impl Subject {
    /// Creates destinations of a tenant that take every event, with these numbers.
    async fn create_in(&self, tenant: &str, numbers: impl IntoIterator<Item = u128>) {
        for number in numbers {
            self.create(in_tenant(number, tenant)).await;
        }
    }
}

fn posted_to(tenant: &str, numbers: impl IntoIterator<Item = u64>) -> Vec<NewEvent> {
    let events = numbers.into_iter().map(|number| Event { tenant: tenant.to_owned(), ..event(number) });
    events.map(matched).collect()
}

pub async fn a_batch_with_many_deliveries_is_stored_in_several_commits(subject: Subject) {
    subject.create_in("acme", 1..=MANY).await;
    let events: Arc<[NewEvent]> = posted_to("acme", 1..=300).into();
    let mut results = Vec::new();
    let mut commits = 0;
    while results.len() < events.len() {
        let part = subject.store.ingest_part(&events, results.len()).await.expect("ingest");
        let deliveries: u32 = part.iter().flatten().map(|ingested| ingested.deliveries).sum();
        assert!((1..=MOST_DELIVERIES_OF_COMMIT).contains(&(deliveries as usize)), "{deliveries} deliveries");
        results.extend(part);
        commits += 1;
    }
    assert_eq!(commits, 3, "300 events with 64 deliveries each");
    // The answers are in the order of the events, and each event has all its deliveries.
    for (new, result) in events.iter().zip(results) {
        let ingested = result.expect("an accepted event");
        assert_eq!((ingested.event.id, u128::from(ingested.deliveries)), (new.event.id, MANY));
    }
}

pub async fn a_key_that_is_used_again_in_a_later_commit_of_a_batch_is_one_event(subject: Subject) {
    subject.create_in("acme", 1..=MANY).await;
    let mut events = posted_to("acme", 1..=200);
    for index in [0, 199] {
        events[index].event.idempotency_key = Some("order-1".to_owned());
    }
    let answers = subject.ingest(events).await;
    assert_eq!(answers.iter().filter(|answer| answer.duplicate).count(), 1);
    assert!(answers[199].duplicate && answers[199].event.id == answers[0].event.id);
}

pub async fn an_event_with_too_many_destinations_is_refused_alone(subject: Subject) {
    subject.create_in("acme", 1..=3).await;
    subject.create_in("globex", 4..=5).await;
    subject.store.limit_destinations(DestinationLimits { of_event: 2, ..DestinationLimits::default() });
    let named = |number: u64, destinations: &[u128]| {
        let mut new = named(event(number), destinations);
        new.event.tenant = "acme".to_owned();
        new
    };
    let mut events = posted_to("acme", [1]);
    events.extend([named(2, &[1, 2]), named(3, &[1, 2, 3]), named(4, &[1, 2, 2, 1])]);
    events.extend(posted_to("globex", [5]));
    let results = subject.store.ingest(events).await.expect("ingest");
    let deliveries: Vec<_> = results.iter().map(|result| result.as_ref().map(|it| it.deliveries).ok()).collect();
    assert_eq!(deliveries, [None, Some(2), None, Some(2), Some(2)]);
    let too_many = IngestRefusal::TooManyDestinations { destinations: 3, most: 2 };
    assert_eq!(results[0].as_ref().err(), Some(&too_many));
    // Nothing of the refused events is stored.
    assert_eq!(subject.deliveries(DeliveryFilter::default()).await.len(), 6);
}

pub async fn a_tenant_has_at_most_as_many_destinations_as_its_limit(subject: Subject) {
    subject.store.limit_destinations(DestinationLimits { of_tenant: 3, ..DestinationLimits::default() });
    subject.create_in("acme", 1..=2).await;
    // Of several at once, only one finds room.
    let creations = (10..20u128).map(|number| {
        let store = Arc::clone(&subject.store);
        let created = async move { store.create_destination(in_tenant(number, "acme"), creation()).await };
        tokio::spawn(created)
    });
    let mut created = 0;
    for creation in creations.collect::<Vec<_>>() {
        created += u32::from(creation.await.expect("a call").expect("create").into_new().is_some());
    }
    assert_eq!(created, 1);
    let named = in_tenant(30, "acme");
    let full = subject.store.create_named_destination(named.clone(), activity()).await.expect("create");
    assert_eq!(full, NamedCreation::Full);
    // Another tenant has a limit of its own, and a deletion makes room.
    subject.create_in("globex", 4..=6).await;
    subject.delete(1).await;
    assert!(subject.store.create_named_destination(named, activity()).await.expect("create").is_new());
}

pub async fn a_small_event_beside_huge_batches_waits_for_few_commits(subject: Subject) {
    subject.create_in("acme", 1..=MANY).await;
    subject.create_in("globex", [1_000]).await;
    // Each tenant has posted before.
    subject.ingest(posted_to("acme", [2_000_000])).await;
    subject.ingest(posted_to("globex", [2_000_001])).await;
    // Eight batches that need two commits each, all at once.
    let batches = (0..8u64).map(|batch| {
        let (store, events) = (Arc::clone(&subject.store), posted_to("acme", batch * 1_000 + 1..=batch * 1_000 + 256));
        tokio::spawn(async move { store.ingest(events).await })
    });
    let began = Instant::now();
    let batches: Vec<_> = batches.collect();
    let mut waits = Vec::new();
    let mut number = 1_000_000;
    while batches.iter().any(|batch| !batch.is_finished()) {
        number += 1;
        let posted = Instant::now();
        subject.ingest(posted_to("globex", [number])).await;
        waits.push(posted.elapsed());
    }
    let took = began.elapsed();
    waits.sort();
    // In the order of arrival each would wait for eight of the sixteen commits, half of the time. In turns it waits for
    // those that run when it arrives; more is the noise of the machine.
    let (median, longest) = (waits[waits.len() / 2], waits[waits.len() - 1]);
    let is_undisturbed = median <= took / 4 && longest <= took / 2;
    assert!(is_undisturbed, "{} small events: p50 {median:?}, at most {longest:?}, in {took:?}", waits.len());
    for batch in batches {
        let results = batch.await.expect("a call").expect("ingest");
        assert!(results.iter().flatten().all(|ingested| u128::from(ingested.deliveries) == MANY));
    }
}
