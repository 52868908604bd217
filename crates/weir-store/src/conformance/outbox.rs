//! Claims of due deliveries, and releases.

use std::collections::HashSet;

use super::*;

pub async fn a_claim_takes_the_oldest_due_first(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [3, 1]).await;
    subject.post(1, [4, 2, 5]).await;
    assert!(subject.claim(1, 2).await.iter().map(number_of).eq([1, 2]));
    assert!(subject.claim(1, 9).await.iter().map(number_of).eq([3, 4, 5]));
    assert!(subject.claim(1, 9).await.is_empty());
}

pub async fn a_retry_that_is_due_later_is_claimed_later(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [1, 2, 3]).await;
    let oldest = subject.claim(1, 1).await.remove(0);
    subject.settle(result(&oldest, Verdict::Retry { at: NOW + seconds(5) })).await;
    assert!(subject.claim(1, 1).await.iter().map(number_of).eq([2]));
    assert!(subject.claim(1, 9).await.iter().map(number_of).eq([3, 1]));
}

pub async fn a_claim_has_the_data_that_a_worker_needs(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [1]).await;
    let mut request = request(1, 1);
    request.durable = true;
    let claimed = subject.claims(vec![request.clone()], NOW + seconds(5)).await.remove(0).deliveries.remove(0);
    let event = event(1);
    assert_eq!((claimed.event_id, claimed.event_created_at), (event.id, event.created_at));
    assert_eq!((claimed.attempts, claimed.expires_at), (0, request.expires_at));
    assert_eq!((claimed.claim.destination_id, claimed.body), (destination_id(1), ClaimedBody::Inline(event.body)));
    let delivery = subject.delivery(claimed.claim.delivery_id).await;
    assert_eq!((delivery.state, delivery.next_attempt_at), (DeliveryState::Delivering, None));
    assert_eq!(delivery.updated_at, NOW + seconds(5));
}

pub async fn claims_are_returned_in_the_order_of_the_requests(subject: Subject) {
    subject.create_many(4).await;
    subject.post(3, [1, 2]).await;
    subject.post(1, [3]).await;
    subject.post(2, [4, 5]).await;
    let requests = [2, 4, 3, 9, 1].map(|number| request(number, 5)).to_vec();
    let claims = subject.claims(requests, NOW + seconds(10)).await;
    let numbers: Vec<_> = claims.iter().map(numbers_of).collect();
    assert_eq!(numbers, [vec![4, 5], vec![], vec![1, 2], vec![], vec![3]]);
}

pub async fn a_flooded_destination_does_not_starve_another(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, 1..=500).await;
    subject.post(2, [501]).await;
    let claims = subject.claims(vec![request(1, 10), request(2, 10)], NOW + seconds(10)).await;
    assert_eq!((claims[0].deliveries.len(), claims[1].deliveries.len()), (10, 1));
}

pub async fn a_delivery_that_is_not_due_is_not_claimed(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [1, 2, 3]).await;
    let just_due = subject.claims(vec![request(1, 9)], event(2).created_at).await.remove(0);
    assert_eq!(numbers_of(&just_due), [1, 2]);
}

pub async fn a_claim_below_its_limit_returns_the_next_due_time(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, [1, 2, 3]).await;
    let claims = subject.claims(vec![request(1, 9), request(2, 9)], event(2).created_at).await;
    assert_eq!(claims[0].next_due, Some(event(3).created_at));
    assert_eq!(claims[1].next_due, None);
    let enough = subject.claims(vec![request(1, 1)], NOW + seconds(10)).await.remove(0);
    assert_eq!(enough.deliveries.len(), 1);
    let empty = subject.claims(vec![request(1, 1)], NOW + seconds(10)).await.remove(0);
    assert_eq!((empty.deliveries.len(), empty.next_due), (0, None));
}

pub async fn a_claim_with_limit_zero_returns_only_the_next_due_time(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, [7]).await;
    let claims = subject.claims(vec![request(1, 0)], NOW + seconds(10)).await.remove(0);
    assert_eq!((claims.deliveries.len(), claims.next_due), (0, Some(event(7).created_at)));
    assert_eq!(subject.claim(1, 1).await.len(), 1);
}

pub async fn two_requests_for_one_destination_share_its_due_deliveries(subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=5).await;
    let claims = subject.claims(vec![request(1, 2), request(1, 9)], NOW + seconds(10)).await;
    assert_eq!(numbers_of(&claims[0]), [1, 2]);
    assert_eq!(numbers_of(&claims[1]), [3, 4, 5]);
}

pub async fn concurrent_claims_never_share_a_delivery(subject: Subject) {
    subject.create_many(3).await;
    for number in 1..=3 {
        subject.post(number, (1..=100).map(|event| event + 1_000 * number as u64)).await;
    }
    let calls = (0..40).map(|_| {
        let store = Arc::clone(&subject.store);
        let requests = (1..=3).map(|number| request(number, 3)).collect();
        tokio::spawn(async move { store.claim(requests, NOW + seconds(10)).await.expect("claim") })
    });
    let mut claimed = HashSet::new();
    for call in calls.collect::<Vec<_>>() {
        for claims in call.await.expect("joined") {
            assert!(claims.deliveries.len() <= 3);
            for delivery in claims.deliveries {
                assert!(claimed.insert(delivery.claim.delivery_id), "claimed twice");
            }
        }
    }
    assert_eq!(claimed.len(), 300);
}

pub async fn nothing_is_claimed_for_paused_and_deleted_destinations(subject: Subject) {
    subject.create_many(2).await;
    subject.post(1, [1]).await;
    subject.post(2, [2]).await;
    subject.pause(1).await;
    subject.delete(2).await;
    let claims = subject.claims(vec![request(1, 9), request(2, 9)], NOW + seconds(10)).await;
    assert!(claims.iter().all(|claims| claims.deliveries.is_empty()));
    let paused = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination");
    subject.patch(&paused, NOW + seconds(3), |settings| settings.paused = false).await.expect("applied");
    assert_eq!(subject.claim(1, 9).await.len(), 1);
}

pub async fn a_released_delivery_is_due_as_before_and_not_counted(subject: Subject) {
    let first = subject.one_claimed().await;
    assert_eq!(subject.store.release(vec![first.claim], NOW + seconds(2)).await.expect("release"), 1);
    let delivery = subject.delivery(first.claim.delivery_id).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 0));
    assert_eq!(delivery.next_attempt_at, Some(event(1).created_at));
    let second = subject.claim(1, 1).await.remove(0);
    assert_ne!(second.claim.epoch, first.claim.epoch);
    let due = NOW + seconds(5);
    subject.settle(result(&second, Verdict::Retry { at: due })).await;
    let third = subject.claim(1, 1).await.remove(0);
    assert_eq!(third.attempts, 1);
    subject.store.release(vec![third.claim], NOW + seconds(6)).await.expect("release");
    let delivery = subject.delivery(first.claim.delivery_id).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Retrying, 1));
    assert_eq!(delivery.next_attempt_at, Some(due));
    assert_eq!(subject.attempts(first.claim.delivery_id).await.len(), 1);
}

pub async fn a_claim_is_released_once(subject: Subject) {
    let first = subject.one_claimed().await.claim;
    assert_eq!(subject.store.release(vec![first, first], NOW).await.expect("release"), 1);
    let second = subject.claim(1, 1).await.remove(0);
    assert_eq!(subject.store.release(vec![first], NOW).await.expect("release"), 0);
    assert_eq!(subject.state(first.delivery_id).await, DeliveryState::Delivering);
    subject.settle(result(&second, Verdict::Delivered)).await;
    assert_eq!(subject.store.release(vec![second.claim], NOW).await.expect("release"), 0);
    assert_eq!(subject.state(first.delivery_id).await, DeliveryState::Delivered);
}

pub async fn a_delivery_of_a_deleted_destination_is_cancelled_when_released(subject: Subject) {
    let claimed = subject.one_claimed().await;
    subject.delete(1).await;
    subject.store.release(vec![claimed.claim], NOW + seconds(2)).await.expect("release");
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Cancelled);
}

pub async fn due_destinations_are_listed_in_the_order_of_ids(subject: Subject) {
    subject.create_many(6).await;
    for number in [5, 2, 4, 1] {
        subject.post(number, [number as u64 * 10, number as u64 * 10 + 1, number as u64 * 10 + 2]).await;
    }
    let due = async |before, after: Option<u128>, limit| {
        let rows = subject.store.due_destinations(before, after.map(destination_id), limit).await.expect("list");
        rows.into_iter().map(|row| (row.destination_id, row.due)).collect::<Vec<_>>()
    };
    let row = |number: u128| (destination_id(number), event(number as u64 * 10).created_at);
    assert_eq!(due(NOW + seconds(10), None, 9).await, [1, 2, 4, 5].map(row));
    assert_eq!(due(NOW + seconds(10), None, 2).await, [1, 2].map(row));
    assert_eq!(due(NOW + seconds(10), Some(2), 2).await, [4, 5].map(row));
    assert_eq!(due(NOW + seconds(10), Some(5), 9).await, []);
    assert_eq!(due(event(20).created_at, None, 9).await, [1].map(row));
    subject.claim(1, 9).await;
    assert_eq!(due(NOW + seconds(10), None, 1).await, [2].map(row));
}

pub async fn paused_and_deleted_destinations_are_not_due(subject: Subject) {
    subject.create_many(3).await;
    for number in 1..=3 {
        subject.post(number, [number as u64]).await;
    }
    subject.pause(1).await;
    subject.delete(2).await;
    let due = subject.store.due_destinations(NOW + seconds(10), None, 1).await.expect("list");
    assert_eq!(due.iter().map(|due| due.destination_id).collect::<Vec<_>>(), [destination_id(3)]);
}

pub async fn old_bodies_are_claimed_as_well_as_recent_ones(mut subject: Subject) {
    subject.create_many(1).await;
    subject.post(1, 1..=150).await;
    subject.reopen().await;
    subject.post(1, 151..=200).await;
    let claimed = subject.claim(1, 200).await;
    assert!(claimed.iter().map(number_of).eq(1..=200));
    assert!(claimed.iter().zip(1..).all(|(claimed, number)| claimed.body == ClaimedBody::Inline(event(number).body)));
}
