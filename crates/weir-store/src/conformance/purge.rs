//! Purges: waiting deliveries cancelled in bulk.

use super::*;
use crate::{Purge, PurgePosition, PurgeStep, Settlement};

const LATER: Verdict = Verdict::Retry { at: Timestamp::from_secs(1_800_000_060) };

/// A purge of all waiting deliveries of destination 1, begun 60 s after [`NOW`].
fn everything() -> Purge {
    let now = NOW + seconds(60);
    Purge {
        destination_id: destination_id(1),
        pending: true,
        retrying: true,
        event_type: None,
        limit_key: None,
        before: now,
        now,
    }
}

impl Subject {
    /// Runs a purge. Returns the number of cancelled deliveries, which must equal the count before.
    async fn purge(&self, purge: &Purge) -> u64 {
        let counted = self.store.count_purge(purge).await.expect("count");
        let cancelled = self.store.purge(purge, activity()).await.expect("purge");
        assert_eq!(counted, cancelled, "{purge:?}");
        cancelled
    }

    /// The number of deliveries of destination `number` in this state.
    async fn count(&self, number: u128, state: DeliveryState) -> usize {
        let filter =
            DeliveryFilter { destination_id: Some(destination_id(number)), states: vec![state], ..Default::default() };
        self.delivery_ids(&filter, 200).await.len()
    }
}

pub async fn a_purge_cancels_only_waiting_deliveries(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=8).await;
    subject.post(2, [9]).await;
    let claimed = subject.claim(1, 5).await;
    for (claimed, verdict) in claimed.iter().zip([Verdict::Delivered, Verdict::Dead, LATER, LATER]) {
        subject.settle(result(claimed, verdict)).await;
    }
    assert_eq!(subject.purge(&everything()).await, 5, "three pending, two retrying");
    assert_eq!(subject.purge(&everything()).await, 0);
    let cancelled = DeliveryFilter { states: vec![DeliveryState::Cancelled], ..DeliveryFilter::default() };
    for delivery in subject.deliveries(cancelled).await {
        assert_eq!((delivery.destination_id, delivery.updated_at), (destination_id(1), NOW + seconds(60)));
        assert_eq!(delivery.next_attempt_at, None);
    }
    for (number, state, count) in [
        (1, DeliveryState::Cancelled, 5),
        (1, DeliveryState::Delivered, 1),
        (1, DeliveryState::Dead, 1),
        (1, DeliveryState::Delivering, 1),
        (2, DeliveryState::Pending, 1),
    ] {
        assert_eq!(subject.count(number, state).await, count, "{number} {state:?}");
    }
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("counts");
    assert_eq!((counts.pending, counts.retrying, counts.delivering), (0, 0, 1));
    // The outstanding claim is settled like any other.
    let delivered = Settlement::Settled(DeliveryState::Delivered);
    assert_eq!(subject.settle(result(&claimed[4], Verdict::Delivered)).await, delivered);
    assert!(subject.claims(vec![request(1, 9)], NOW + seconds(99)).await[0].deliveries.is_empty());
}

pub async fn a_purge_cancels_only_the_given_states_types_and_times(subject: Subject) {
    subject.create_many(1).await;
    let types = ["video.created", "video.clip.cut", "videos.created", "order.paid", "weir.backlog.high"];
    let events = (0..15).map(|number| Event { event_type: types[number as usize % 5].to_owned(), ..event(number) });
    subject.ingest(events.map(|event| named(event, &[1])).collect()).await;
    // The first delivery of each type waits for a retry.
    for claimed in subject.claim(1, 5).await {
        subject.settle(result(&claimed, LATER)).await;
    }
    let of_type = |pattern: &str| Purge { event_type: Some(pattern.parse().expect("a pattern")), ..everything() };
    let pending = Purge { retrying: false, ..everything() };
    let retrying = Purge { pending: false, ..everything() };
    for (purge, expected) in [
        (Purge { pending: false, ..of_type("order.paid") }, 1),
        (Purge { before: event(8).created_at, ..of_type("order.paid") }, 0),
        (Purge { before: event(9).created_at, ..of_type("order.paid") }, 1),
        (of_type("order.*"), 1),
        (of_type("video.clip.cut.*"), 0),
        (of_type("video.*"), 6),
        (Purge { before: event(8).created_at, ..pending.clone() }, 1),
        (of_type("*"), 2),
        (retrying, 1),
        (pending, 2),
    ] {
        assert_eq!(subject.purge(&purge).await, expected, "{purge:?}");
    }
    assert_eq!(subject.count(1, DeliveryState::Cancelled).await, 15);
}

pub async fn counting_a_purge_changes_nothing(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=5).await;
    subject.post(2, [6]).await;
    let claimed = subject.claim(1, 2).await;
    subject.settle(result(&claimed[0], LATER)).await;
    for _ in 0..2 {
        assert_eq!(subject.store.count_purge(&everything()).await.expect("count"), 4, "three pending, one retrying");
    }
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("counts");
    assert_eq!((counts.pending, counts.retrying, counts.delivering), (3, 1, 1));
}

pub async fn a_long_purge_runs_in_steps_and_counts_all_deliveries(subject: Subject) {
    const COUNT: u64 = 3_000;
    subject.create_many(1).await;
    // Every third delivery stays, so a step that started from the beginning would find them again.
    let events = (0..COUNT).map(|number| {
        let event_type = if number.is_multiple_of(3) { "order.paid" } else { "video.created" };
        named(Event { event_type: event_type.to_owned(), ..event(number) }, &[1])
    });
    subject.ingest(events.collect()).await;
    let purge = Purge { event_type: Some("video.*".parse().expect("a pattern")), ..everything() };
    let (mut position, mut steps): (Option<PurgePosition>, Vec<PurgeStep>) = (None, Vec::new());
    loop {
        let step = subject.store.purge_some(&purge, position, &activity(), 0).await.expect("a step");
        steps.push(step);
        position = step.next;
        if position.is_none() {
            break;
        }
        // Between two steps deliveries are claimed and stored. The purge cancels neither the claimed nor the new ones.
        if steps.len() == 1 {
            let claimed = subject.claims(vec![request(1, 9)], NOW + seconds(10)).await.remove(0).deliveries;
            assert_eq!(numbers_of(&Claims { deliveries: claimed, next_due: None }), [0, 3, 6, 9, 12, 15, 18, 21, 24]);
            subject.ingest(vec![named(event_at(COUNT, purge.before), &[1])]).await;
        }
    }
    assert!(steps.len() >= 3 && steps.iter().all(|step| step.cancelled <= COUNT / 3), "{steps:?}");
    assert_eq!(steps.iter().map(|step| step.cancelled).sum::<u64>(), COUNT / 3 * 2);
    assert_eq!(subject.count(1, DeliveryState::Pending).await as u64, COUNT / 3 - 9 + 1);
}

pub async fn a_purge_beside_claims_loses_nothing_and_cancels_no_claimed_delivery(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 0..2_000).await;
    let store = Arc::clone(&subject.store);
    let worker = tokio::spawn(async move {
        let mut delivered = 0;
        loop {
            let claims = store.claim(vec![request(1, 25)], NOW + seconds(10)).await.expect("claim").remove(0);
            let results: Vec<_> =
                claims.deliveries.iter().map(|one| Arc::new(result(one, Verdict::Delivered))).collect();
            let settled = store.settle(results).await.expect("settle");
            assert!(settled.iter().all(|settled| *settled == Settlement::Settled(DeliveryState::Delivered)));
            delivered += settled.len();
            // A concurrent purge may make a claim return fewer deliveries than wait.
            let counts = store.destination_counts(destination_id(1)).await.expect("counts");
            if counts.pending == 0 {
                return delivered;
            }
        }
    });
    let cancelled = subject.store.purge(&everything(), activity()).await.expect("purge") as usize;
    let delivered = worker.await.expect("joined");
    assert_eq!(cancelled + delivered, 2_000);
    assert_eq!(subject.count(1, DeliveryState::Cancelled).await, cancelled);
    assert_eq!(subject.count(1, DeliveryState::Delivered).await, delivered);
}

pub async fn a_purge_works_while_the_destination_is_paused(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=3).await;
    subject.pause(1).await;
    assert_eq!(subject.purge(&everything()).await, 3);
}
