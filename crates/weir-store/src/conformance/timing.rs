//! Delayed and expiring events.

use super::*;
use crate::DeliveryAction;

fn delayed(mut event: Event, until: Timestamp) -> Event {
    event.options.deliver_at = Some(until);
    event
}

fn expiring(mut event: Event, at: Timestamp) -> Event {
    event.options.expires_at = Some(at);
    event
}

fn in_state(state: DeliveryState) -> DeliveryFilter {
    DeliveryFilter { states: vec![state], ..DeliveryFilter::default() }
}

impl Subject {
    async fn claims_at(&self, limit: u32, now: Timestamp) -> Claims {
        self.claims(vec![request(1, limit)], now).await.remove(0)
    }

    async fn expire(&self, second: u64, limit: u32) -> u64 {
        self.store.expire_deliveries(NOW + seconds(second), limit).await.expect("expire")
    }
}

pub async fn a_delayed_event_is_due_at_its_time_and_not_before(mut subject: Subject) {
    subject.create_many(1).await;
    let at = NOW + seconds(60);
    let delayed = delayed(event(1), at);
    let answer = subject.ingest(vec![named(delayed.clone(), &[1])]).await.remove(0);
    assert_eq!((answer.event.due(), answer.wake), (at, vec![destination_id(1)]));
    subject.post(1, [2]).await;
    subject.reopen().await;
    assert_eq!(subject.store.event(delayed.id).await.expect("read"), Some(delayed.clone()));
    let delivery = subject.store.event_deliveries(delayed.id).await.expect("read").remove(0);
    assert_eq!((delivery.state, delivery.next_attempt_at), (DeliveryState::Pending, Some(at)));
    assert_eq!(delivery.created_at, delayed.created_at);
    let before = subject.claims_at(9, at - Duration::from_nanos(1)).await;
    assert_eq!((numbers_of(&before), before.next_due), (vec![2], Some(at)));
    let due = subject.store.due_destinations(at + seconds(1), None, 9).await.expect("list");
    assert_eq!(due.iter().map(|due| due.due).collect::<Vec<_>>(), [at]);
    let claimed = subject.claims_at(9, at).await;
    assert_eq!(numbers_of(&claimed), [1]);
    assert_eq!(claimed.deliveries[0].event_created_at, at, "its age counts from `deliver_at`");
}

pub async fn a_deliver_at_in_the_past_has_no_effect(subject: Subject) {
    subject.create_many(1).await;
    let past = delayed(event(1), NOW - seconds(60));
    subject.ingest(vec![named(past.clone(), &[1])]).await;
    assert_eq!(subject.store.event(past.id).await.expect("read"), Some(past.clone()));
    let delivery = subject.store.event_deliveries(past.id).await.expect("read").remove(0);
    assert_eq!(delivery.next_attempt_at, Some(past.created_at));
    assert_eq!(subject.claim(1, 9).await[0].event_created_at, past.created_at);
}

pub async fn the_age_of_a_delayed_delivery_counts_from_deliver_at(subject: Subject) {
    subject.create_many(1).await;
    let at = NOW + seconds(5);
    subject.ingest(vec![named(delayed(event(1), at), &[1])]).await;
    let claimed = subject.claim(1, 1).await.remove(0);
    let mut result = result(&claimed, Verdict::Delivered);
    result.attempt.sent_at = Some(NOW + seconds(6));
    subject.settle(result).await;
    let sends = subject.sends(1, Timestamp::MIN, Timestamp::MAX).await;
    let answered = NOW + seconds(6) + Duration::from_millis(20);
    assert_eq!(sends.iter().map(|send| send.delivered).collect::<Vec<_>>(), [Some((at, answered))]);
}

pub async fn a_repeated_key_returns_the_options_of_the_first_event(subject: Subject) {
    subject.create_many(1).await;
    let first = expiring(delayed(with_key(event(1), "once"), NOW + seconds(5)), NOW + seconds(9));
    subject.ingest(vec![matched(first.clone())]).await;
    let again = subject.ingest(vec![matched(with_key(event(2), "once"))]).await.remove(0);
    assert_eq!((again.duplicate, again.event, again.deliveries), (true, first, 1));
}

pub async fn an_expired_delivery_is_not_claimed(subject: Subject) {
    subject.create_many(1).await;
    let at = NOW + seconds(5);
    let mortal = [1, 2, 3].map(|number| named(expiring(event(number), at), &[1]));
    subject.ingest(mortal.into()).await;
    subject.post(1, [4, 5]).await;
    let in_time = subject.claims_at(1, at - Duration::from_nanos(1)).await;
    assert_eq!(numbers_of(&in_time), [1]);
    assert_eq!(subject.delivery(in_time.deliveries[0].claim.delivery_id).await.expires_at, Some(at));
    let late = subject.claims_at(3, at).await;
    assert_eq!((numbers_of(&late), late.next_due), (vec![4], Some(at)), "expired deliveries count against the limit");
    let expired = subject.deliveries(in_state(DeliveryState::Expired)).await;
    assert_eq!(expired.iter().map(|row| row.event_id).collect::<Vec<_>>(), [3, 2].map(|number| event(number).id));
    for delivery in expired {
        assert_eq!((delivery.next_attempt_at, delivery.updated_at, delivery.attempts), (None, at, 0));
        assert!(subject.attempts(delivery.id).await.is_empty());
    }
    let rest = subject.claims_at(3, at).await;
    assert_eq!((numbers_of(&rest), rest.next_due), (vec![5], None));
    let delivered = Settlement::Settled(DeliveryState::Delivered);
    assert_eq!(subject.settle(result(&in_time.deliveries[0], Verdict::Delivered)).await, delivered);
    assert_eq!(subject.expire(99, 9).await, 0, "an ended delivery does not expire");
}

pub async fn deliveries_that_cannot_be_sent_expire_too(subject: Subject) {
    subject.create_many(2).await;
    let mortal = |number: u64, second| named(expiring(event(number), NOW + seconds(second)), &[1]);
    subject.ingest(vec![mortal(1, 20), mortal(2, 22), mortal(3, 21), mortal(4, 60), mortal(5, 20)]).await;
    subject.post(1, [6]).await;
    let claimed = subject.claim(1, 1).await.remove(0);
    subject.pause(1).await;
    assert_eq!(subject.expire(19, 9).await, 0);
    assert_eq!(subject.expire(30, 2).await, 2, "in the order of their expiry");
    let events = async |state| {
        let mut rows: Vec<_> = subject.deliveries(in_state(state)).await.iter().map(|row| row.event_id).collect();
        rows.sort_unstable();
        rows
    };
    assert_eq!(events(DeliveryState::Expired).await, [3, 5].map(|number| event(number).id));
    assert_eq!(subject.expire(30, 9).await, 1);
    assert_eq!(events(DeliveryState::Pending).await, [4, 6].map(|number| event(number).id));
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("count");
    assert_eq!((counts.pending, counts.delivering), (2, 1), "a delivery in flight continues");
    let again = Verdict::Retry { at: NOW + seconds(31) };
    assert_eq!(subject.settle(result(&claimed, again)).await, Settlement::Settled(DeliveryState::Retrying));
    assert_eq!(subject.expire(30, 9).await, 1, "it expires when it waits again");
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Expired);
    assert_eq!(subject.attempts(claimed.claim.delivery_id).await.len(), 1);
}

pub async fn an_expired_delivery_is_not_retried_by_hand(subject: Subject) {
    subject.create_many(1).await;
    subject.ingest(vec![named(expiring(event(1), NOW + seconds(20)), &[1])]).await;
    let claimed = subject.claim(1, 1).await.remove(0);
    subject.settle(result(&claimed, Verdict::Dead)).await;
    let id = claimed.claim.delivery_id;
    let retry =
        async |second| subject.store.retry_delivery(id, NOW + seconds(second), activity()).await.expect("retry");
    assert_eq!(retry(20).await, DeliveryAction::Expired, "it would expire at once");
    assert_eq!(subject.state(id).await, DeliveryState::Dead);
    assert_eq!(retry(19).await, DeliveryAction::Done { destination_id: destination_id(1) });
    assert_eq!(retry(20).await, DeliveryAction::Expired, "also before a sweep expires it");
    assert_eq!(subject.expire(20, 9).await, 1);
    assert_eq!(retry(21).await, DeliveryAction::Expired);
    assert_eq!(subject.state(id).await, DeliveryState::Expired);
}
