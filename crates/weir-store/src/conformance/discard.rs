//! Discards: dead letters that are settled.

use super::*;
use crate::{DISCARDABLE, DISCARDED_AT_ONCE, ErrorFilter, discard};

/// All dead letters of destination `number`.
fn dead_letters(number: u128) -> DeliveryFilter {
    let destination_id = Some(destination_id(number));
    DeliveryFilter { destination_id, states: DISCARDABLE.to_vec(), ..DeliveryFilter::default() }
}

impl Subject {
    /// Discards what matches. Returns the number, which must equal the count before.
    async fn discard(&self, filter: DeliveryFilter) -> u64 {
        let counted = self.store.count_discard(&filter).await.expect("count");
        let discarded = discard(&*self.store, filter, NOW + seconds(60), activity()).await.expect("discard");
        assert_eq!((counted.value, counted.capped), (discarded, false));
        discarded
    }

    /// The dead letters and the cancelled deliveries of destination `number`, by the counters.
    async fn settled(&self, number: u128) -> (u64, u64) {
        let counts = self.store.counts(&[destination_id(number)]).await.expect("counts").remove(0);
        (counts.dead_letters(), counts.of(DeliveryState::Cancelled))
    }
}

pub async fn a_discard_settles_only_dead_letters_and_their_counters_fall(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=7).await;
    subject.post(2, [8]).await;
    let claimed = subject.claim(1, 5).await;
    let later = Verdict::Retry { at: NOW + seconds(600) };
    for (claimed, verdict) in claimed.iter().zip([Verdict::Delivered, Verdict::Dead, Verdict::Failed, later]) {
        subject.settle(result(claimed, verdict)).await;
    }
    let other = subject.claim(2, 1).await.remove(0);
    subject.settle(result(&other, Verdict::Dead)).await;
    assert_eq!(subject.settled(1).await, (2, 0));
    assert_eq!(subject.discard(dead_letters(1)).await, 2);
    assert_eq!((subject.settled(1).await, subject.settled(2).await), ((0, 2), (1, 0)));
    assert_eq!(subject.discard(dead_letters(1)).await, 0);
    for (claimed, state) in claimed.iter().zip([
        DeliveryState::Delivered,
        DeliveryState::Cancelled,
        DeliveryState::Cancelled,
        DeliveryState::Retrying,
        DeliveryState::Delivering,
    ]) {
        assert_eq!(subject.state(claimed.claim.delivery_id).await, state);
    }
    // Its attempts stay, and it can be sent again.
    let id = claimed[1].claim.delivery_id;
    assert_eq!(subject.attempts(id).await.len(), 1);
    assert_eq!(subject.delivery(id).await.updated_at, NOW + seconds(60));
    let retried = subject.store.retry_delivery(id, NOW + seconds(61), activity()).await.expect("retry");
    assert!(retried.is_done());
    // What waits again is no dead letter, although its id was read before.
    let again = subject.store.discard_deliveries(vec![id], NOW + seconds(62), &activity(), 0).await;
    assert_eq!(again.expect("discard"), 0);
    assert_eq!(subject.state(id).await, DeliveryState::Pending);
}

pub async fn a_discard_takes_only_the_dead_letters_that_match(subject: Subject) {
    subject.create_many(1).await;
    let foreign = Event { tenant: "other".to_owned(), ..event(9) };
    subject.ingest((1..=4).map(|number| named(event(number), &[1])).collect()).await;
    let claimed = subject.claim(1, 4).await;
    for (claimed, status) in claimed.iter().zip([503, 503, 404, 500]) {
        let mut dead = result(claimed, if status == 404 { Verdict::Failed } else { Verdict::Dead });
        (dead.attempt.status_code, dead.attempt.outcome) = (Some(status), AttemptOutcome::Retryable);
        subject.settle(dead).await;
    }
    let tenants = TenantScope::one(foreign.tenant);
    assert_eq!(subject.discard(DeliveryFilter { tenants, ..dead_letters(1) }).await, 0);
    let error = Some(ErrorFilter::Status(503));
    let from = Some(claimed[1].event_created_at);
    assert_eq!(subject.discard(DeliveryFilter { error, from, ..dead_letters(1) }).await, 1);
    let failed = DeliveryFilter { states: vec![DeliveryState::Failed], ..dead_letters(1) };
    assert_eq!(subject.discard(failed).await, 1);
    assert_eq!(subject.settled(1).await, (2, 2));
    assert_eq!(subject.discard(dead_letters(1)).await, 2);
}

pub async fn a_long_discard_runs_in_steps_and_its_activity_counts_them_all(subject: Subject) {
    let total = u64::from(DISCARDED_AT_ONCE) * 2 + 7;
    subject.create_many(1).await;
    for first in (0..total).step_by(500) {
        subject.post(1, first..(first + 500).min(total)).await;
    }
    for claimed in subject.claim(1, total as u32).await.chunks(500) {
        let dead = claimed.iter().map(|claimed| Arc::new(result(claimed, Verdict::Dead))).collect();
        subject.store.settle(dead).await.expect("settle");
    }
    assert_eq!(subject.discard(dead_letters(1)).await, total);
    assert_eq!(subject.settled(1).await, (0, total));
    let recorded = subject.store.list_activity(&crate::ActivityFilter::default(), page(200)).await.expect("list").rows;
    let counts: Vec<_> = recorded.iter().filter_map(|row| row.after.as_ref()?.get("discarded")).collect();
    assert_eq!(counts, [total]);
}
