//! Replays of ordered deliveries, which join their message groups.

use super::{
    message_groups::{in_order, ordered},
    replays::{CLAIMED, all_dead, replay_id},
    *,
};
use crate::ReplayFigures;

pub async fn a_replayed_ordered_delivery_joins_its_message_group(subject: Subject) {
    subject.create(ordered(1, None)).await;
    let keyed = |number: u64, key: &str| named(in_order(number, key), &[1]);
    subject.ingest(vec![keyed(1, "a"), keyed(2, "a"), keyed(3, "b"), named(event(4), &[1])]).await;
    loop {
        let claimed = subject.claim(1, 9).await;
        if claimed.is_empty() {
            break;
        }
        subject
            .store
            .settle(claimed.iter().map(|one| Arc::new(result(one, Verdict::Dead))).collect())
            .await
            .expect("settle");
    }
    subject.ingest(vec![keyed(5, "a")]).await;
    let of_a = subject.claim(1, 9).await.remove(0);
    assert_eq!(subject.begin(1, all_dead()).await, 4);
    assert_eq!(subject.steps(1).await, 4);
    assert_eq!(numbers_of(&subject.claim_replay(1, 9).await), [4], "without a key");
    let live = async || subject.claims(vec![request(1, 9)], CLAIMED).await.remove(0);
    let of_b = live().await;
    assert_eq!(numbers_of(&of_b), [3], "the head of the other key is in flight");
    assert_eq!(of_b.deliveries[0].attempts_before, 1, "a replay starts the retries again");
    subject.settle_later(&of_a, Verdict::Delivered).await;
    for number in [1, 2] {
        let next = live().await;
        assert_eq!(numbers_of(&next), [number], "one after the other, in the order of storage");
        subject.settle_later(&next.deliveries[0], Verdict::Delivered).await;
    }
    assert_eq!(subject.figures(1).await, ReplayFigures { total: 4, delivered: 2, failed: 0, cancelled: 0 });
}

pub async fn a_cancelled_replay_restores_its_message_groups(subject: Subject) {
    subject.create(ordered(1, None)).await;
    let keyed = |number: u64| named(in_order(number, "a"), &[1]);
    for number in 1..=3 {
        subject.ingest(vec![keyed(number)]).await;
        let claimed = subject.claim(1, 1).await.remove(0);
        subject.settle(result(&claimed, Verdict::Dead)).await;
    }
    subject.begin(1, all_dead()).await;
    subject.steps(1).await;
    let head = subject.claims(vec![request(1, 9)], CLAIMED).await.remove(0).deliveries.remove(0);
    subject.ingest(vec![keyed(4)]).await;
    subject.store.cancel_replay(replay_id(1), CLAIMED, activity()).await.expect("cancel");
    assert_eq!(subject.steps(1).await, 2, "waiting deliveries return to their previous state");
    assert_eq!(subject.in_state(1, DeliveryState::Dead).await, 2);
    subject.settle_later(&head, Verdict::Delivered).await;
    let next = subject.claims(vec![request(1, 9)], CLAIMED).await.remove(0);
    assert_eq!(numbers_of(&next), [4]);
}
