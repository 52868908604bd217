//! Retention: old deliveries and events are deleted, and the others stay.

use weir_core::retention::{Cutoffs, Retention};

use super::*;
use crate::{PrunePosition, Pruned, StoreResult};

const DAY: Duration = Duration::from_secs(86_400);

/// The whole day of the events of a test is older than 14 days. Some stores keep events and attempts until then.
const LATER: Timestamp = Timestamp::from_secs(1_800_000_000 + 15 * 86_400);

fn fortnight() -> Cutoffs {
    Retention::default().cutoffs(LATER)
}

impl Subject {
    async fn prune(&self, cutoffs: &Cutoffs) -> Pruned {
        let (mut position, mut total) = (Some(PrunePosition::START), Pruned::default());
        while let Some(at) = position {
            let step = self.store.prune_some(cutoffs, at).await.expect("a step");
            total += step.pruned;
            position = step.next;
        }
        // Not every store drops days.
        Pruned { days: 0, ..total }
    }

    async fn is_kept(&self, event: &Event) -> StoreResult<bool> {
        Ok(self.store.event(event.id).await?.is_some())
    }

    async fn remaining(&self) -> Vec<DeliveryState> {
        let all = self.deliveries(DeliveryFilter::default()).await;
        all.iter().rev().map(|delivery| delivery.state).collect()
    }
}

pub async fn delivered_deliveries_are_pruned_with_their_events_and_dead_letters_stay(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=6).await;
    let claimed = subject.claim(1, 5).await;
    let later = Verdict::Retry { at: LATER };
    let verdicts = [Verdict::Delivered, Verdict::Failed, Verdict::Dead, later];
    for (claimed, verdict) in claimed.iter().zip(verdicts) {
        subject.settle(result(claimed, verdict)).await;
    }
    subject
        .store
        .cancel_delivery(subject.deliveries(DeliveryFilter::default()).await[0].id, NOW, activity())
        .await
        .expect("cancel");
    let early = Retention::default().cutoffs(NOW + DAY * 14);
    assert_eq!(subject.prune(&early).await, Pruned::default(), "not before the cutoff");
    let pruned = subject.prune(&fortnight()).await;
    assert_eq!((pruned.deliveries, pruned.attempts, pruned.events), (2, 1, 2));
    let (failed, dead) = (DeliveryState::Failed, DeliveryState::Dead);
    assert_eq!(subject.remaining().await, [failed, dead, DeliveryState::Retrying, DeliveryState::Delivering]);
    for (number, kept) in [(1, false), (2, true), (3, true), (4, true), (5, true), (6, false)] {
        assert_eq!(subject.is_kept(&event(number)).await.expect("read"), kept, "{number}");
    }
    let letter = subject.store.delivery(claimed[2].claim.delivery_id).await.expect("read").expect("a dead letter");
    assert_eq!((letter.attempts.len(), letter.delivery.last_attempt.is_some()), (1, true));
    assert!(subject.store.delivery(claimed[0].claim.delivery_id).await.expect("read").is_none());
    let sends = subject.sends(1, Timestamp::MIN, Timestamp::MAX).await;
    assert_eq!(sends.len(), 3, "the attempts of the remaining deliveries");
    assert_eq!(subject.prune(&fortnight()).await, Pruned::default(), "a second pass deletes nothing");
}

pub async fn each_final_state_has_its_own_retention(subject: Subject) {
    let days = |days: u32| Some(DAY * days);
    subject.create_many(1).await;
    subject.post(1, 1..=4).await;
    for (claimed, verdict) in subject.claim(1, 3).await.iter().zip([Verdict::Delivered, Verdict::Failed, Verdict::Dead])
    {
        subject.settle(result(claimed, verdict)).await;
    }
    subject
        .store
        .cancel_delivery(subject.deliveries(DeliveryFilter::default()).await[0].id, NOW, activity())
        .await
        .expect("cancel");
    let at = |day: u32| NOW + DAY * day + seconds(3_600);
    let retention = Retention { delivered: days(3), cancelled: days(1), dead: days(9) };
    let (delivered, failed, dead) = (DeliveryState::Delivered, DeliveryState::Failed, DeliveryState::Dead);
    for (day, remaining) in [
        (0, &[delivered, failed, dead, DeliveryState::Cancelled][..]),
        (1, &[delivered, failed, dead]),
        (3, &[failed, dead]),
        (8, &[failed, dead]),
        (9, &[]),
    ] {
        subject.prune(&retention.cutoffs(at(day))).await;
        assert_eq!(subject.remaining().await, remaining, "day {day}");
    }
    for number in 1..=4 {
        assert!(!subject.is_kept(&event(number)).await.expect("read"), "{number}");
    }
    let forever = Retention { delivered: None, cancelled: None, dead: None };
    assert_eq!(subject.prune(&forever.cutoffs(Timestamp::MAX)).await, Pruned::default());
}

pub async fn an_event_stays_as_long_as_one_of_its_deliveries(subject: Subject) {
    subject.create_many(2).await;
    subject.ingest(vec![matched(event(1)), matched(event(2))]).await;
    let first = subject.claim(1, 2).await;
    let second = subject.claim(2, 2).await;
    for claimed in first.iter().chain(&second[..1]) {
        subject.settle(result(claimed, Verdict::Delivered)).await;
    }
    subject.settle(result(&second[1], Verdict::Dead)).await;
    let pruned = subject.prune(&fortnight()).await;
    assert_eq!((pruned.deliveries, pruned.attempts), (3, 3));
    assert!(!subject.is_kept(&event(1)).await.expect("read"));
    assert!(subject.is_kept(&event(2)).await.expect("read"));
    let remaining = subject.store.event_deliveries(event(2).id).await.expect("read");
    assert_eq!(remaining.iter().map(|delivery| delivery.state).collect::<Vec<_>>(), [DeliveryState::Dead]);
    // A remaining dead letter can still be sent, because its body is kept.
    subject.store.retry_delivery(remaining[0].id, LATER, activity()).await.expect("retry");
    let again = subject.claims(vec![request(2, 1)], LATER).await.remove(0);
    assert_eq!(numbers_of(&again), [2]);
}

pub async fn the_age_of_a_delivery_counts_from_its_end(subject: Subject) {
    let claimed = subject.one_claimed().await;
    let mut late = result(&claimed, Verdict::Delivered);
    late.now = LATER - DAY;
    subject.settle(late).await;
    assert_eq!(subject.prune(&fortnight()).await, Pruned::default());
    assert_eq!(subject.remaining().await, [DeliveryState::Delivered]);
    assert!(subject.is_kept(&event(1)).await.expect("read"));
}

pub async fn idempotency_keys_are_pruned_with_their_events(subject: Subject) {
    subject.create_many(1).await;
    // On two days; one of them keeps a delivery.
    let (old, kept) = (with_key(event(1), "old"), with_key(event(2), "kept"));
    let before = NOW - DAY;
    let earlier = with_key(event_at(3, before), "earlier");
    subject.ingest(vec![matched(old), matched(kept), matched(earlier)]).await;
    for claimed in subject.claim(1, 9).await {
        let verdict = if number_of(&claimed) == 2 { Verdict::Dead } else { Verdict::Delivered };
        subject.settle(result(&claimed, verdict)).await;
    }
    subject.prune(&fortnight()).await;
    for (key, duplicate) in [("old", false), ("kept", true), ("earlier", false)] {
        let again = with_key(event_at(9, LATER), key);
        let again = Event { id: EventId::new(LATER, random(&event(9)) ^ u128::from(key.as_bytes()[0])), ..again };
        assert_eq!(subject.ingest(vec![matched(again)]).await[0].duplicate, duplicate, "{key}");
    }
}

pub async fn an_old_event_without_deliveries_is_pruned(subject: Subject) {
    subject.ingest(vec![matched(event(1)), matched(event_at(2, LATER - DAY))]).await;
    subject.prune(&fortnight()).await;
    assert!(!subject.is_kept(&event(1)).await.expect("read"));
    assert!(subject.is_kept(&event_at(2, LATER - DAY)).await.expect("read"));
}

pub async fn a_long_history_is_pruned_in_small_steps_beside_deliveries(subject: Subject) {
    const COUNT: u64 = 6_000;
    subject.create_many(1).await;
    subject.post(1, 0..COUNT).await;
    let mut results = Vec::new();
    for (index, claimed) in subject.claim(1, COUNT as u32).await.iter().enumerate() {
        let verdict = if index.is_multiple_of(5) { Verdict::Dead } else { Verdict::Delivered };
        results.push(Arc::new(result(claimed, verdict)));
    }
    for results in results.chunks(1_000) {
        subject.store.settle(results.to_vec()).await.expect("settle");
    }
    let (mut position, mut total, mut steps) = (Some(PrunePosition::START), Pruned::default(), 0);
    while let Some(at) = position {
        let step = subject.store.prune_some(&fortnight(), at).await.expect("a step");
        assert!(step.pruned.deliveries <= 5_000 && step.pruned.events <= 2_000, "{step:?}");
        // A delivery that is retried meanwhile stays.
        if steps == 0 {
            let newest = subject.deliveries(DeliveryFilter::default()).await.remove(0);
            subject.store.retry_delivery(newest.id, LATER, activity()).await.expect("retry");
        }
        total += step.pruned;
        steps += 1;
        position = step.next;
    }
    assert_eq!(total.deliveries, 4_799);
    for (number, kept) in [(0, true), (1, false), (2_504, false), (2_505, true), (COUNT - 2, false), (COUNT - 1, true)]
    {
        assert_eq!(subject.is_kept(&event(number)).await.expect("read"), kept, "{number}");
    }
    assert!(steps >= 4, "{steps}");
    let sends = subject.sends(1, Timestamp::MIN, Timestamp::MAX).await;
    assert_eq!(sends.len(), 1_201, "the attempts of the remaining deliveries");
    assert_eq!(subject.claims(vec![request(1, 9)], LATER).await[0].deliveries.len(), 1);
}
