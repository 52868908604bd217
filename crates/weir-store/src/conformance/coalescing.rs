//! Coalescing: deliveries are superseded by newer ones of their key.

use super::*;
use crate::{DeliveryAction, Recovered};

fn of_key(number: u64, key: &str) -> Event {
    let mut event = event(number);
    event.options.coalesce_key = Some(key.to_owned());
    event
}

impl Subject {
    async fn update(&self, number: u64, key: &str) {
        self.ingest(vec![named(of_key(number, key), &[1])]).await;
    }

    /// The states of the deliveries to destination 1, the oldest first.
    async fn states(&self) -> Vec<DeliveryState> {
        let filter = DeliveryFilter { destination_id: Some(destination_id(1)), ..DeliveryFilter::default() };
        self.deliveries(filter).await.iter().rev().map(|delivery| delivery.state).collect()
    }

    async fn count_in(&self, state: DeliveryState) -> usize {
        self.deliveries(DeliveryFilter { states: vec![state], ..DeliveryFilter::default() }).await.len()
    }
}

use DeliveryState::{Delivered, Delivering, Pending, Retrying, Superseded};

pub async fn a_waiting_delivery_is_superseded_by_a_newer_event_of_its_key(mut subject: Subject) {
    subject.create_many(2).await;
    let first = of_key(1, "a");
    let mut other_type = of_key(4, "a");
    other_type.event_type = "video.deleted".to_owned();
    let others = vec![named(of_key(2, "b"), &[1]), named(event(3), &[1]), named(other_type, &[1])];
    subject.ingest(vec![named(first.clone(), &[1, 2])]).await;
    subject.ingest(others).await;
    subject.reopen().await;
    assert_eq!(subject.store.event(first.id).await.expect("read"), Some(first.clone()));
    subject.update(5, "a").await;
    assert_eq!(subject.states().await, [Superseded, Pending, Pending, Pending, Pending]);
    let deliveries = subject.store.event_deliveries(first.id).await.expect("read");
    let elsewhere = deliveries.iter().find(|delivery| delivery.destination_id == destination_id(2)).expect("another");
    assert_eq!(elsewhere.state, Pending, "another destination is not affected");
    let superseded = deliveries.iter().find(|delivery| delivery.state == Superseded).expect("the first");
    assert_eq!((superseded.next_attempt_at, superseded.updated_at), (None, event(5).created_at));
    assert!(subject.claim(1, 9).await.iter().map(number_of).eq([2, 3, 4, 5]));
}

pub async fn only_the_last_event_of_a_coalesce_key_in_one_call_waits(subject: Subject) {
    subject.create_many(1).await;
    subject.update(1, "a").await;
    let keys = ["a", "b", "a", "a", "b"];
    let events = keys.iter().zip(2..).map(|(key, number)| named(of_key(number, key), &[1]));
    let answers = subject.ingest(events.collect()).await;
    assert!(answers.iter().all(|answer| answer.deliveries == 1));
    assert_eq!(
        subject.states().await,
        [Superseded, Superseded, Superseded, Superseded, Pending, Pending],
        "the last of each key waits"
    );
    assert!(subject.claim(1, 9).await.iter().map(number_of).eq([5, 6]));
}

pub async fn an_event_that_is_not_stored_supersedes_nothing(subject: Subject) {
    subject.create_many(1).await;
    subject.ingest(vec![named(with_key(of_key(1, "a"), "once"), &[1])]).await;
    let events = vec![named(with_key(of_key(2, "a"), "once"), &[1]), named(of_key(3, "a"), &[1, 7])];
    let answers = subject.store.ingest(events).await.expect("ingest");
    assert!(answers[0].as_ref().is_ok_and(|answer| answer.duplicate) && answers[1].is_err());
    assert_eq!(subject.states().await, [Pending]);
}

pub async fn a_retrying_delivery_is_superseded_and_keeps_its_history(subject: Subject) {
    subject.create_many(1).await;
    subject.update(1, "a").await;
    let claimed = subject.claim(1, 1).await.remove(0);
    subject.settle(result(&claimed, Verdict::Retry { at: NOW + seconds(60) })).await;
    assert_eq!(subject.states().await, [Retrying]);
    subject.update(2, "a").await;
    assert_eq!(subject.states().await, [Superseded, Pending]);
    assert_eq!(subject.attempts(claimed.claim.delivery_id).await.len(), 1);
}

pub async fn a_replaced_delivery_in_flight_continues_and_does_not_wait_again(mut subject: Subject) {
    subject.create_many(1).await;
    for (number, key) in (1..).zip(["delivered", "retried", "released", "recovered"]) {
        subject.update(number, key).await;
    }
    let claimed = subject.claim(1, 4).await;
    for (number, key) in (5..).zip(["delivered", "retried", "released", "recovered"]) {
        subject.update(number, key).await;
    }
    let newer = [Pending; 4];
    assert_eq!(subject.states().await[..4], [Delivering; 4]);
    let settled = subject.settle(result(&claimed[0], Verdict::Delivered)).await;
    assert_eq!(settled, Settlement::Settled(Delivered));
    let settled = subject.settle(result(&claimed[1], Verdict::Retry { at: NOW + seconds(2) })).await;
    assert_eq!(settled, Settlement::Settled(Superseded));
    assert_eq!(subject.attempts(claimed[1].claim.delivery_id).await.len(), 1);
    assert_eq!(subject.store.release(vec![claimed[2].claim], NOW + seconds(2)).await.expect("release"), 1);
    subject.reopen().await;
    let recovered = subject.store.recover_claims(NOW + seconds(70), false, 9).await.expect("recover");
    assert_eq!(recovered, Recovered { superseded: 1, ..Recovered::default() });
    assert_eq!(subject.states().await[..4], [Delivered, Superseded, Superseded, Superseded]);
    assert_eq!(subject.states().await[4..], newer);
    assert!(subject.claim(1, 9).await.iter().map(number_of).eq(5..=8));
}

pub async fn a_superseded_delivery_can_be_retried_by_hand(subject: Subject) {
    subject.create_many(1).await;
    subject.update(1, "a").await;
    let claimed = subject.claim(1, 1).await.remove(0);
    subject.update(2, "a").await;
    subject.store.release(vec![claimed.claim], NOW + seconds(2)).await.expect("release");
    let retried =
        subject.store.retry_delivery(claimed.claim.delivery_id, NOW + seconds(8), activity()).await.expect("retry");
    assert_eq!(retried, DeliveryAction::Done { destination_id: destination_id(1) });
    let again = subject.claim(1, 9).await;
    assert!(again.iter().map(number_of).eq([2, 1]));
    subject.settle(result(&again[1], Verdict::Retry { at: NOW + seconds(9) })).await;
    assert_eq!(subject.state(claimed.claim.delivery_id).await, Retrying, "no newer event was stored since");
    subject.update(3, "a").await;
    assert_eq!(subject.state(claimed.claim.delivery_id).await, Superseded);
}

pub async fn a_burst_of_one_key_leaves_only_the_last_delivery_waiting(subject: Subject) {
    subject.create_many(1).await;
    let producers = (0..8).map(|producer| {
        let store = Arc::clone(&subject.store);
        tokio::spawn(async move {
            for round in 0..25 {
                let numbers = (0..5).map(|n| 1 + producer * 125 + round * 5 + n);
                let events = numbers.map(|number| named(of_key(number, "a"), &[1])).collect();
                store.ingest(events).await.expect("ingest");
            }
        })
    });
    let store = Arc::clone(&subject.store);
    let consumer = tokio::spawn(async move {
        for round in 0..20 {
            let claims = store.claim(vec![request(1, 9)], NOW + seconds(10)).await.expect("claim").remove(0);
            assert!(claims.deliveries.len() <= 1, "at most one delivery of the key waits");
            let Some(claimed) = claims.deliveries.first() else { continue };
            match round % 3 {
                0 => drop(store.release(vec![claimed.claim], NOW).await.expect("release")),
                ended => {
                    let verdict = if ended == 1 { Verdict::Retry { at: NOW } } else { Verdict::Delivered };
                    drop(store.settle(vec![result(claimed, verdict).into()]).await.expect("settle"));
                }
            }
        }
    });
    for task in producers.chain([consumer]).collect::<Vec<_>>() {
        task.await.expect("joined");
    }
    let waiting = subject.count_in(Pending).await + subject.count_in(Retrying).await;
    assert!(waiting <= 1, "{waiting} wait");
    let mut events = 0;
    let mut request = page(200);
    loop {
        let page = subject.store.list_deliveries(&DeliveryFilter::default(), request).await.expect("list");
        events +=
            page.rows.iter().filter(|row| [Pending, Retrying, Delivered, Superseded].contains(&row.state)).count();
        request.before = page.next;
        if page.next.is_none() {
            break;
        }
    }
    assert_eq!(events, 1_000, "none is lost");
    subject.update(2_000, "a").await;
    let last = subject.claim(1, 9).await;
    assert!(last.iter().map(number_of).eq([2_000]));
}
