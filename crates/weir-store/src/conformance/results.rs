//! Results of attempts, and manual retries and cancellations.

use super::*;
use crate::DeliveryAction;

const LATER: Verdict = Verdict::Retry { at: Timestamp::from_secs(1_800_000_060) };

impl Subject {
    async fn retry(&self, id: DeliveryId) -> DeliveryAction {
        self.store.retry_delivery(id, NOW + seconds(8), activity()).await.expect("retry")
    }

    async fn cancel(&self, id: DeliveryId) -> DeliveryAction {
        self.store.cancel_delivery(id, NOW + seconds(8), activity()).await.expect("cancel")
    }
}

const DONE: fn() -> DeliveryAction = || DeliveryAction::Done { destination_id: destination_id(1) };

pub async fn every_verdict_leads_to_its_state(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=4).await;
    let verdicts = [
        (Verdict::Delivered, DeliveryState::Delivered, None),
        (LATER, DeliveryState::Retrying, Some(NOW + seconds(60))),
        (Verdict::Failed, DeliveryState::Failed, None),
        (Verdict::Dead, DeliveryState::Dead, None),
    ];
    for (claimed, (verdict, state, due)) in subject.claim(1, 4).await.iter().zip(verdicts) {
        let result = result(claimed, verdict);
        let now = result.now;
        assert_eq!(subject.settle(result).await, Settlement::Settled(state));
        let delivery = subject.delivery(claimed.claim.delivery_id).await;
        assert_eq!((delivery.state, delivery.next_attempt_at, delivery.attempts), (state, due, 1));
        assert_eq!(delivery.updated_at, now);
    }
}

pub async fn an_attempt_is_recorded_in_full(subject: Subject) {
    let first = subject.one_claimed().await;
    let mut failed = result(&first, Verdict::Retry { at: NOW + seconds(2) });
    failed.attempt.status_code = Some(503);
    failed.attempt.error = Some("503 Service Unavailable".to_owned());
    failed.attempt.response_body = Some("é".repeat(8 * 1024));
    subject.settle(failed.clone()).await;
    let second = subject.claim(1, 1).await.remove(0);
    let mut delivered = result(&second, Verdict::Delivered);
    delivered.attempt.response_body = None;
    delivered.attempt.details = weir_core::delivery::AttemptDetails::default();
    subject.settle(delivered.clone()).await;
    assert_eq!(subject.attempts(first.claim.delivery_id).await, [failed.attempt, delivered.attempt]);
}

/// A refusal: it does not count against `max_attempts`.
fn refused(claimed: &ClaimedDelivery) -> AttemptResult {
    AttemptResult { is_counted: false, ..result(claimed, Verdict::Retry { at: NOW + seconds(2) }) }
}

pub async fn refusals_raise_the_number_of_attempts_and_are_not_counted(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=2).await;
    for attempts in 0..3 {
        let mut claimed = subject.claim(1, 2).await;
        claimed.sort_by_key(|claimed| claimed.event_id);
        let [refused_one, failed_one] = &claimed[..] else { panic!("{} claims", claimed.len()) };
        let counts = claimed.iter().map(|one| (one.attempts, one.attempts_before)).collect::<Vec<_>>();
        assert_eq!(counts, [(attempts, attempts), (attempts, 0)]);
        let results = [refused(refused_one), result(failed_one, Verdict::Retry { at: NOW + seconds(2) })];
        subject.store.settle(results.map(Arc::new).to_vec()).await.expect("settle");
    }
    // A claim that is given back unsent leaves the delivery as it was.
    let mut claimed = subject.claim(1, 2).await;
    claimed.sort_by_key(|claimed| claimed.event_id);
    let claimed = claimed.remove(0);
    subject.store.release(vec![claimed.claim], NOW).await.expect("release");
    let delivery = subject.delivery(claimed.claim.delivery_id).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Retrying, 3));
}

pub async fn a_recovered_delivery_that_was_only_refused_has_attempts_left(subject: Subject) {
    let mut twice = destination(1);
    twice.settings.retry.max_attempts = 2;
    subject.create(twice).await;
    subject.post(1, [1]).await;
    for _ in 0..3 {
        let claimed = subject.claim(1, 1).await.remove(0);
        subject.settle(refused(&claimed)).await;
    }
    for state in [DeliveryState::Retrying, DeliveryState::Dead] {
        let claimed = subject.claim(1, 1).await.remove(0);
        subject.recover(10, true, 9).await;
        assert_eq!(subject.state(claimed.claim.delivery_id).await, state);
    }
}

pub async fn settlements_are_returned_in_the_order_of_the_results(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=600).await;
    let claimed = subject.claim(1, 600).await;
    subject.store.release(vec![claimed[7].claim], NOW).await.expect("release");
    let verdict = |index: usize| {
        if index.is_multiple_of(2) { Verdict::Delivered } else { Verdict::Failed }
    };
    let results =
        claimed.iter().enumerate().map(|(index, claimed)| Arc::new(result(claimed, verdict(index)))).collect();
    let settled = subject.store.settle(results).await.expect("settle");
    assert_eq!(settled.len(), 600);
    for (index, settled) in settled.into_iter().enumerate() {
        let expected = match index {
            7 => Settlement::ClaimLost,
            even if even.is_multiple_of(2) => Settlement::Settled(DeliveryState::Delivered),
            _ => Settlement::Settled(DeliveryState::Failed),
        };
        assert_eq!(settled, expected, "{index}");
    }
}

pub async fn a_lost_claim_settles_nothing(subject: Subject) {
    let first = subject.one_claimed().await;
    subject.store.release(vec![first.claim], NOW).await.expect("release");
    assert_eq!(subject.settle(result(&first, Verdict::Delivered)).await, Settlement::ClaimLost);
    let second = subject.claim(1, 1).await.remove(0);
    assert_eq!(subject.settle(result(&first, Verdict::Delivered)).await, Settlement::ClaimLost);
    assert_eq!(subject.state(first.claim.delivery_id).await, DeliveryState::Delivering);
    assert!(subject.attempts(first.claim.delivery_id).await.is_empty());
    let delivered = Settlement::Settled(DeliveryState::Delivered);
    assert_eq!(subject.settle(result(&second, Verdict::Delivered)).await, delivered);
    assert_eq!(subject.settle(result(&second, Verdict::Failed)).await, Settlement::ClaimLost);
    assert_eq!(subject.attempts(first.claim.delivery_id).await.len(), 1);
}

pub async fn only_the_first_of_two_results_for_one_claim_counts(subject: Subject) {
    let claimed = subject.one_claimed().await;
    let results = [Verdict::Failed, Verdict::Delivered].map(|verdict| Arc::new(result(&claimed, verdict))).to_vec();
    let settled = subject.store.settle(results).await.expect("settle");
    assert_eq!(settled, [Settlement::Settled(DeliveryState::Failed), Settlement::ClaimLost]);
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Failed);
    assert_eq!(subject.attempts(claimed.claim.delivery_id).await.len(), 1);
}

pub async fn a_retry_of_a_deleted_destination_is_cancelled(subject: Subject) {
    let claimed = subject.one_claimed().await;
    subject.delete(1).await;
    let cancelled = Settlement::Settled(DeliveryState::Cancelled);
    assert_eq!(subject.settle(result(&claimed, LATER)).await, cancelled);
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Cancelled);
    assert_eq!(subject.attempts(claimed.claim.delivery_id).await.len(), 1);
}

pub async fn a_retried_delivery_is_claimed_again_when_due(subject: Subject) {
    let first = subject.one_claimed().await;
    subject.settle(result(&first, LATER)).await;
    let early = subject.claims(vec![request(1, 1)], NOW + seconds(59)).await.remove(0);
    assert_eq!((early.deliveries.len(), early.next_due), (0, Some(NOW + seconds(60))));
    let second = subject.claims(vec![request(1, 1)], NOW + seconds(60)).await.remove(0).deliveries.remove(0);
    assert_eq!((second.attempts, second.claim.delivery_id), (1, first.claim.delivery_id));
    assert_eq!(second.body, first.body);
}

pub async fn an_ended_delivery_is_retried_by_hand(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=4).await;
    let claimed = subject.claim(1, 3).await;
    for (claimed, verdict) in claimed.iter().zip([Verdict::Delivered, Verdict::Failed, Verdict::Dead]) {
        subject.settle(result(claimed, verdict)).await;
    }
    let waiting = DeliveryFilter { states: vec![DeliveryState::Pending], ..DeliveryFilter::default() };
    let cancelled = subject.deliveries(waiting).await.remove(0).id;
    subject.cancel(cancelled).await;
    let ended = claimed.iter().map(|claimed| (claimed.claim.delivery_id, 1)).chain([(cancelled, 0)]);
    for (id, attempts) in ended.collect::<Vec<_>>() {
        assert_eq!(subject.retry(id).await, DONE());
        let delivery = subject.delivery(id).await;
        assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, attempts));
        assert_eq!(delivery.next_attempt_at, Some(NOW + seconds(8)));
    }
    let again = subject.claim(1, 9).await;
    assert_eq!(again.iter().map(|claimed| claimed.attempts).sum::<u32>(), 3);
    assert_eq!(again.len(), 4);
}

pub async fn a_waiting_delivery_retried_by_hand_is_due_at_once(subject: Subject) {
    let claimed = subject.one_claimed().await;
    subject.settle(result(&claimed, LATER)).await;
    let id = claimed.claim.delivery_id;
    assert_eq!(subject.retry(id).await, DONE());
    let delivery = subject.delivery(id).await;
    assert_eq!((delivery.state, delivery.next_attempt_at), (DeliveryState::Retrying, Some(NOW + seconds(8))));
    let later = subject.store.retry_delivery(id, NOW + seconds(30), activity()).await.expect("retry");
    assert_eq!(later, DONE());
    assert_eq!(subject.delivery(id).await.next_attempt_at, Some(NOW + seconds(8)));
    assert_eq!(subject.claim(1, 1).await.len(), 1);
}

pub async fn a_delivery_in_flight_is_not_retried_by_hand(subject: Subject) {
    let claimed = subject.one_claimed().await;
    let refused = DeliveryAction::Refused(DeliveryState::Delivering);
    assert_eq!(subject.retry(claimed.claim.delivery_id).await, refused);
    let delivered = Settlement::Settled(DeliveryState::Delivered);
    assert_eq!(subject.settle(result(&claimed, Verdict::Delivered)).await, delivered);
}

pub async fn a_delivery_of_a_deleted_destination_is_not_retried_by_hand(subject: Subject) {
    let claimed = subject.one_claimed().await;
    subject.settle(result(&claimed, Verdict::Failed)).await;
    subject.delete(1).await;
    assert_eq!(subject.retry(claimed.claim.delivery_id).await, DeliveryAction::DestinationGone);
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Failed);
}

pub async fn only_waiting_deliveries_are_cancelled_by_hand(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [1, 2]).await;
    let claimed = subject.claim(1, 1).await.remove(0);
    let id = claimed.claim.delivery_id;
    assert_eq!(subject.cancel(id).await, DeliveryAction::Refused(DeliveryState::Delivering));
    subject.settle(result(&claimed, LATER)).await;
    assert_eq!(subject.cancel(id).await, DONE());
    let delivery = subject.delivery(id).await;
    assert_eq!((delivery.state, delivery.next_attempt_at), (DeliveryState::Cancelled, None));
    assert_eq!(subject.cancel(id).await, DeliveryAction::Refused(DeliveryState::Cancelled));
    assert_eq!(subject.claims(vec![request(1, 9)], NOW + seconds(99)).await[0].deliveries.len(), 1);
}

pub async fn unknown_deliveries_are_not_found(subject: Subject) {
    let id = DeliveryId::new(NOW, 1);
    assert_eq!(subject.retry(id).await, DeliveryAction::NotFound);
    assert_eq!(subject.cancel(id).await, DeliveryAction::NotFound);
    assert!(subject.store.delivery(id).await.expect("read").is_none());
}

pub async fn ingested_equals_the_sum_over_the_states(subject: Subject) {
    subject.create_many(2).await;
    let producers = (0..8).map(|producer| {
        let store = Arc::clone(&subject.store);
        tokio::spawn(async move {
            for number in 0..10 {
                let posted = store.ingest(vec![matched(event(producer * 10 + number))]).await;
                posted.expect("ingest").remove(0).expect("accepted");
            }
        })
    });
    let consumers = (0..4).map(|consumer| {
        let store = Arc::clone(&subject.store);
        tokio::spawn(async move {
            for round in 0..10 {
                let claims = store.claim(vec![request(1, 3), request(2, 3)], NOW + seconds(10)).await.expect("claim");
                let claimed: Vec<_> = claims.into_iter().flat_map(|claims| claims.deliveries).collect();
                let (released, settled) = claimed.split_at(claimed.len() / 3);
                store.release(released.iter().map(|claimed| claimed.claim).collect(), NOW).await.expect("release");
                let verdicts = [Verdict::Delivered, LATER, Verdict::Failed, Verdict::Dead];
                let verdict = verdicts[(consumer + round) % 4];
                let results = settled.iter().map(|claimed| Arc::new(result(claimed, verdict))).collect();
                let settled = store.settle(results).await.expect("settle");
                assert!(settled.iter().all(|settled| *settled != Settlement::ClaimLost));
            }
        })
    });
    let tasks: Vec<_> = producers.chain(consumers).collect();
    for task in tasks {
        task.await.expect("joined");
    }
    let mut total = 0;
    for state in DeliveryState::ALL {
        total += subject.deliveries(DeliveryFilter { states: vec![state], ..DeliveryFilter::default() }).await.len();
    }
    assert_eq!(total, 160);
}
