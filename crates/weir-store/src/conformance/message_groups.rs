//! Message groups: strict order per key.

use super::*;
use crate::{DeliveryAction, Purge};

use DeliveryState::{Cancelled, Dead, Delivered, Expired, Failed, Pending, Retrying, Superseded};

/// Destination `number`, with delivery order by key.
pub(super) fn ordered(number: u128, skip_after_attempts: Option<u32>) -> Destination {
    let mut ordered = destination(number);
    ordered.settings.order = DeliveryOrder::new(true, skip_after_attempts.map(non_zero));
    ordered
}

pub(super) fn in_order(number: u64, key: &str) -> Event {
    let mut event = event(number);
    event.options.ordering_key = Some(key.to_owned());
    event
}

impl Subject {
    /// Creates destination 1, ordered, and stores these events in one call.
    pub(super) async fn with_message_groups(events: &[(u64, &str)], subject: Self) -> Self {
        subject.create(ordered(1, None)).await;
        subject.join(events).await;
        subject
    }

    async fn join(&self, events: &[(u64, &str)]) {
        self.ingest(events.iter().map(|&(number, key)| named(in_order(number, key), &[1])).collect()).await;
    }

    /// The numbers of the deliveries that can be claimed for destination 1 now. They are released again.
    pub(super) async fn claimable(&self) -> Vec<u64> {
        let claimed = self.claim(1, 100).await;
        let claims = claimed.iter().map(|claimed| claimed.claim).collect();
        self.store.release(claims, NOW + seconds(10)).await.expect("release");
        claimed.iter().map(number_of).collect()
    }

    async fn by_number(&self, number: u64) -> Delivery {
        self.store.event_deliveries(event(number).id).await.expect("read").remove(0)
    }
}

pub async fn one_delivery_of_a_key_is_claimed_at_a_time_in_the_order_of_storage(mut subject: Subject) {
    subject = Subject::with_message_groups(&[(1, "a"), (2, "a"), (3, "b"), (4, "a")], subject).await;
    // An older event that is stored later is delivered later.
    subject.join(&[(9, "b"), (5, "b")]).await;
    subject.reopen().await;
    assert_eq!(subject.store.event(event(1).id).await.expect("read"), Some(in_order(1, "a")));
    let mut sent = Vec::new();
    loop {
        let claims = subject.claims(vec![request(1, 9)], NOW + seconds(10)).await.remove(0);
        assert_eq!(claims.next_due, None, "a delivery behind a head is never due");
        let Some(first) = claims.deliveries.first() else { break };
        assert!(subject.claim(1, 9).await.is_empty(), "one of a key at a time");
        let counts = subject.store.destination_counts(destination_id(1)).await.expect("counts");
        assert_eq!(counts.delivering, claims.deliveries.len() as u64);
        assert_eq!((counts.pending, counts.retrying), (6 - sent.len() as u64 - counts.delivering, 0));
        let next_is_behind = !subject.store.due_destinations(Timestamp::MAX, None, 9).await.expect("due").is_empty();
        assert!(!next_is_behind, "deliveries behind a head cause no wake");
        sent.push(number_of(first));
        let settled = subject.settle(result(first, Verdict::Delivered)).await;
        assert_eq!(settled.state(), Some(Delivered));
        let others: Vec<_> = claims.deliveries[1..].iter().map(|claimed| claimed.claim).collect();
        subject.store.release(others, NOW + seconds(10)).await.expect("release");
    }
    let of = |key: &[u64]| sent.iter().copied().filter(|number| key.contains(number)).collect::<Vec<_>>();
    assert_eq!((of(&[1, 2, 4]), of(&[3, 5, 9])), (vec![1, 2, 4], vec![3, 9, 5]));
}

pub async fn a_delivery_behind_a_head_is_shown_as_pending_without_a_due_time(subject: Subject) {
    let subject = Subject::with_message_groups(&[(1, "a"), (2, "a")], subject).await;
    let (head, behind) = (subject.by_number(1).await, subject.by_number(2).await);
    assert_eq!((head.state, head.next_attempt_at), (Pending, Some(event(1).created_at)));
    assert_eq!((behind.state, behind.next_attempt_at), (Pending, None));
    let claims = subject.claims(vec![request(1, 0)], NOW).await.remove(0);
    assert_eq!(claims.next_due, Some(event(1).created_at));
    let head = subject.claim(1, 9).await.remove(0);
    let claims = subject.claims(vec![request(1, 0)], NOW).await.remove(0);
    assert_eq!(claims.next_due, None);
    let next_due = event(2).created_at;
    let settled = subject.settle(result(&head, Verdict::Delivered)).await;
    assert_eq!(settled, Settlement::Advanced { state: Delivered, next_due });
    assert_eq!(subject.by_number(2).await.next_attempt_at, Some(next_due));
    let last = subject.claim(1, 9).await.remove(0);
    assert_eq!(
        subject.settle(result(&last, Verdict::Delivered)).await,
        Settlement::Settled(Delivered),
        "the group is empty"
    );
}

pub async fn deliveries_without_a_key_or_an_ordered_destination_have_no_order(subject: Subject) {
    subject.create(ordered(1, None)).await;
    subject.create(destination(2)).await;
    subject.post(1, [1, 2]).await;
    let both = |number| named(in_order(number, "a"), &[1, 2]);
    subject.ingest(vec![both(3), both(4)]).await;
    assert_eq!(subject.claim(1, 9).await.iter().map(number_of).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(subject.claim(2, 9).await.iter().map(number_of).collect::<Vec<_>>(), [3, 4]);
}

/// The ways in which the head of a message group can end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Verdict(Verdict),
    Cancel,
    Purge,
    /// Expired by a claim.
    ExpiryInClaim,
    /// Expired by the sweep.
    Expiry,
    /// Superseded by a newer event of its coalesce key.
    Coalesced,
    /// Replaced by a newer event while it is in flight, and then it fails.
    Replaced,
    /// Replaced by a newer event while it is in flight, and then it is released.
    ReplacedUnsent,
    /// Its claim is recovered, and it has no attempts left.
    Recovery,
}

impl Subject {
    /// Ends the first event, which is the head of its message group.
    async fn end(&mut self, end: End) {
        let newer = |number| {
            let mut newer = event(number);
            newer.options.coalesce_key = Some("c".to_owned());
            vec![named(newer, &[1])]
        };
        let id = self.by_number(1).await.id;
        match end {
            End::Verdict(verdict) => {
                let head = self.claim(1, 1).await.remove(0);
                self.settle(result(&head, verdict)).await;
            }
            End::Cancel => drop(self.store.cancel_delivery(id, NOW + seconds(1), activity()).await.expect("cancel")),
            End::Purge => {
                let head: EventPattern = "head".parse().expect("a pattern");
                let (destination_id, now) = (destination_id(1), NOW + seconds(9));
                let purge = Purge {
                    destination_id,
                    pending: true,
                    retrying: true,
                    event_type: Some(head),
                    limit_key: None,
                    before: now,
                    now,
                };
                assert_eq!(self.store.purge(&purge, activity()).await.expect("purge"), 1);
            }
            End::ExpiryInClaim => {
                let claims = self.claims(vec![request(1, 1)], NOW + seconds(6)).await.remove(0);
                assert!(claims.deliveries.is_empty() && claims.next_due == Some(NOW + seconds(6)), "{claims:?}");
            }
            End::Expiry => assert_eq!(self.store.expire_deliveries(NOW + seconds(6), 9).await.expect("expire"), 1),
            End::Coalesced => drop(self.ingest(newer(50)).await),
            End::Replaced => {
                let head = self.claim(1, 1).await.remove(0);
                self.ingest(newer(50)).await;
                self.settle(result(&head, Verdict::Retry { at: NOW + seconds(2) })).await;
            }
            End::ReplacedUnsent => {
                let head = self.claim(1, 1).await.remove(0);
                self.ingest(newer(50)).await;
                self.store.release(vec![head.claim], NOW + seconds(2)).await.expect("release");
            }
            End::Recovery => {
                self.claim(1, 1).await;
                self.reopen().await;
                let recovered = self.store.recover_claims(NOW + seconds(61), false, 9).await.expect("recover");
                assert_eq!(recovered.dead, 1);
            }
        }
    }
}

/// The head ends in the given way, and exactly the next delivery of its message group becomes the head.
async fn head_ends(mut subject: Subject, end: End, state: DeliveryState) {
    let mut only_once = ordered(1, None);
    only_once.settings.retry.max_attempts = 1;
    subject.create(only_once).await;
    let mut head = in_order(1, "a");
    head.event_type = if end == End::Purge { "head".to_owned() } else { head.event_type };
    head.options.coalesce_key = Some("c".to_owned());
    if matches!(end, End::Expiry | End::ExpiryInClaim) {
        head.options.expires_at = Some(NOW + seconds(5));
    }
    let others = [(2, "a"), (3, "a"), (4, "b"), (5, "b")].map(|(number, key)| named(in_order(number, key), &[1]));
    subject.ingest([vec![named(head, &[1])], others.into()].concat()).await;
    assert!(subject.by_number(2).await.next_attempt_at.is_none(), "{end:?}");
    subject.end(end).await;
    assert_eq!(subject.by_number(1).await.state, state, "{end:?}");
    for (number, due) in [(2, true), (3, false), (4, true), (5, false)] {
        let delivery = subject.by_number(number).await;
        assert_eq!((delivery.state, delivery.next_attempt_at.is_some()), (Pending, due), "{end:?}: {number}");
    }
    let claimed = subject.claim(1, 9).await;
    assert_eq!(claimed.iter().map(number_of).filter(|number| *number < 9).collect::<Vec<_>>(), [2, 4], "{end:?}");
    // The other deliveries of the group follow.
    subject.settle(result(&claimed[0], Verdict::Delivered)).await;
    assert_eq!(subject.claim(1, 9).await.iter().map(number_of).collect::<Vec<_>>(), [3], "{end:?}");
}

pub async fn a_delivered_head_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::Verdict(Verdict::Delivered), Delivered).await;
}

pub async fn a_failed_head_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::Verdict(Verdict::Failed), Failed).await;
}

pub async fn a_dead_head_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::Verdict(Verdict::Dead), Dead).await;
}

pub async fn a_cancelled_head_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::Cancel, Cancelled).await;
}

pub async fn a_purged_head_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::Purge, Cancelled).await;
}

pub async fn a_head_expired_by_a_claim_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::ExpiryInClaim, Expired).await;
}

pub async fn a_head_expired_by_the_sweep_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::Expiry, Expired).await;
}

pub async fn a_superseded_head_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::Coalesced, Superseded).await;
}

pub async fn a_replaced_head_that_fails_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::Replaced, Superseded).await;
}

pub async fn a_replaced_head_that_is_released_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::ReplacedUnsent, Superseded).await;
}

pub async fn a_head_recovered_without_attempts_left_makes_the_next_delivery_the_head(subject: Subject) {
    head_ends(subject, End::Recovery, Dead).await;
}

pub async fn a_retried_released_or_recovered_head_stays_the_head(mut subject: Subject) {
    subject = Subject::with_message_groups(&[(1, "a"), (2, "a"), (3, "b")], subject).await;
    let claimed = subject.claim(1, 9).await;
    assert_eq!(claimed.iter().map(number_of).collect::<Vec<_>>(), [1, 3]);
    let settled = subject.settle(result(&claimed[0], Verdict::Retry { at: NOW + seconds(5) })).await;
    assert_eq!(settled, Settlement::Settled(Retrying));
    subject.store.release(vec![claimed[1].claim], NOW + seconds(2)).await.expect("release");
    assert_eq!(subject.claim(1, 9).await.iter().map(number_of).collect::<Vec<_>>(), [3, 1]);
    subject.reopen().await;
    let recovered = subject.store.recover_claims(NOW + seconds(2), true, 9).await.expect("recover");
    assert_eq!(recovered.retried, 2);
    let head = subject.claim(1, 9).await.into_iter().find(|claimed| number_of(claimed) == 1).expect("the head");
    assert_eq!(subject.by_number(2).await.next_attempt_at, None);
    subject.settle(result(&head, Verdict::Delivered)).await;
    assert_eq!(subject.claimable().await, [2]);
}

pub async fn a_head_that_fails_too_often_is_skipped_and_continues_without_order(subject: Subject) {
    subject.create(ordered(1, Some(2))).await;
    subject.join(&[(1, "a"), (2, "a"), (3, "a")]).await;
    let later = Verdict::Retry { at: NOW + seconds(3) };
    let head = subject.claim(1, 9).await.remove(0);
    assert_eq!(
        subject.settle(result(&head, later)).await,
        Settlement::Settled(Retrying),
        "one failure is below the limit"
    );
    let head = subject.claim(1, 9).await.remove(0);
    let settled = subject.settle(result(&head, later)).await;
    assert_eq!(settled, Settlement::Advanced { state: Retrying, next_due: event(2).created_at });
    let both = subject.claim(1, 9).await;
    assert_eq!(both.iter().map(number_of).collect::<Vec<_>>(), [2, 1], "the skipped delivery beside the new head");
    assert_eq!(subject.settle(result(&both[1], Verdict::Delivered)).await, Settlement::Settled(Delivered));
    assert_eq!(subject.by_number(3).await.next_attempt_at, None, "the skipped delivery is in no group");
    assert!(matches!(subject.settle(result(&both[0], Verdict::Dead)).await, Settlement::Advanced { .. }));
    assert_eq!(subject.claimable().await, [3]);
}

pub async fn deliveries_behind_a_head_can_end_without_breaking_the_group(subject: Subject) {
    subject.create(ordered(1, None)).await;
    let mut expiring = in_order(3, "a");
    expiring.options.expires_at = Some(NOW + seconds(5));
    subject.join(&[(1, "a"), (2, "a")]).await;
    subject.ingest(vec![named(expiring, &[1])]).await;
    subject.join(&[(4, "a")]).await;
    let behind = subject.by_number(2).await.id;
    let cancelled = subject.store.cancel_delivery(behind, NOW, activity()).await.expect("cancel");
    assert_eq!(cancelled, DeliveryAction::Done { destination_id: destination_id(1) });
    assert_eq!(subject.claimable().await, [1]);
    assert_eq!(subject.store.expire_deliveries(NOW + seconds(6), 9).await.expect("expire"), 1);
    assert_eq!(subject.by_number(3).await.state, Expired);
    let head = subject.claim(1, 9).await;
    assert_eq!(head.iter().map(number_of).collect::<Vec<_>>(), [1]);
    subject.settle(result(&head[0], Verdict::Delivered)).await;
    assert_eq!(subject.claimable().await, [4]);
}

pub async fn a_purge_cancels_long_and_many_message_groups_completely(subject: Subject) {
    subject.create(ordered(1, None)).await;
    let mut events: Vec<NewEvent> = Vec::new();
    for number in 1..=2_600 {
        let mut event = in_order(number, "long");
        // Some events have another type and stay.
        event.event_type = if number % 1_000 == 0 { "other".to_owned() } else { event.event_type };
        events.push(named(event, &[1]));
    }
    events.extend((1..=1_200).map(|number| named(in_order(2_600 + number, &format!("key {}", number % 600)), &[1])));
    subject.ingest(events).await;
    let now = NOW + seconds(60);
    let event_type = Some("video.created".parse().expect("a pattern"));
    let purge = Purge {
        destination_id: destination_id(1),
        pending: true,
        retrying: true,
        event_type,
        limit_key: None,
        before: now,
        now,
    };
    assert_eq!(subject.store.purge(&purge, activity()).await.expect("purge"), 3_798);
    assert_eq!(subject.claimable().await, [1_000], "the first remaining delivery is the head");
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("counts");
    assert_eq!(counts.pending, 2);
}

pub async fn message_groups_of_a_destination_that_is_no_longer_ordered_are_dissolved(subject: Subject) {
    let mut subject = Subject::with_message_groups(&[(1, "a"), (2, "a"), (3, "a"), (4, "b")], subject).await;
    assert_eq!(subject.store.dissolve_message_groups(9).await.expect("dissolve"), 0, "it is ordered");
    let in_flight = subject.claim(1, 1).await.remove(0);
    let current = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination");
    let current = subject.patch(&current, NOW + seconds(1), |settings| settings.order = DeliveryOrder::Any).await;
    assert_eq!(subject.store.dissolve_message_groups(3).await.expect("dissolve"), 3, "at most `limit` in one call");
    assert_eq!(subject.store.dissolve_message_groups(3).await.expect("dissolve"), 1);
    assert_eq!(subject.store.dissolve_message_groups(3).await.expect("dissolve"), 0);
    assert_eq!(subject.claimable().await, [2, 3, 4]);
    assert_eq!(subject.settle(result(&in_flight, Verdict::Delivered)).await, Settlement::Settled(Delivered));
    // Ordered again: only new events have an order.
    let again = |settings: &mut Settings| settings.order = DeliveryOrder::new(true, Some(non_zero(7)));
    let ordered = subject.patch(&current.expect("applied"), NOW + seconds(2), again).await.expect("applied");
    subject.join(&[(5, "a"), (6, "a")]).await;
    assert_eq!(subject.claimable().await, [2, 3, 4, 5]);
    subject.reopen().await;
    let read = subject.store.destination(destination_id(1)).await.expect("read").expect("a destination");
    assert_eq!(read.settings.order, ordered.settings.order);
}

pub async fn a_delivery_retried_by_hand_joins_its_message_group(subject: Subject) {
    let subject = Subject::with_message_groups(&[(1, "a"), (2, "a"), (3, "a")], subject).await;
    let retry = async |number| {
        let id = subject.by_number(number).await.id;
        let done = subject.store.retry_delivery(id, NOW + seconds(4), activity()).await.expect("retry");
        assert_eq!(done, DeliveryAction::Done { destination_id: destination_id(1) });
    };
    retry(2).await;
    assert_eq!(subject.claimable().await, [1], "a delivery behind the head stays there");
    let head = subject.claim(1, 9).await.remove(0);
    subject.settle(result(&head, Verdict::Dead)).await;
    let second = subject.claim(1, 9).await.remove(0);
    retry(1).await;
    assert_eq!(subject.by_number(1).await.next_attempt_at, None, "another delivery is in flight");
    subject.settle(result(&second, Verdict::Delivered)).await;
    let first = subject.claim(1, 9).await;
    assert_eq!(first.iter().map(number_of).collect::<Vec<_>>(), [1], "at its old position, before the third");
    subject.settle(result(&first[0], Verdict::Delivered)).await;
    let third = subject.claim(1, 9).await.remove(0);
    assert_eq!(subject.settle(result(&third, Verdict::Failed)).await, Settlement::Settled(Failed));
    retry(3).await;
    assert_eq!(subject.by_number(3).await.next_attempt_at, Some(event(3).created_at), "it is the head");
    assert_eq!(subject.claimable().await, [3]);
}

pub async fn a_delayed_head_that_is_retried_by_hand_is_due_at_once(subject: Subject) {
    subject.create(ordered(1, None)).await;
    let mut delayed = in_order(1, "a");
    delayed.options.deliver_at = Some(NOW + seconds(3_600));
    subject.ingest(vec![named(delayed, &[1])]).await;
    subject.join(&[(2, "a")]).await;
    assert!(subject.claimable().await.is_empty(), "a delayed head keeps the order of storage");
    let id = subject.by_number(1).await.id;
    subject.store.cancel_delivery(id, NOW, activity()).await.expect("cancel");
    assert_eq!(subject.claimable().await, [2]);
    let second = subject.claim(1, 1).await.remove(0);
    subject.settle(result(&second, Verdict::Delivered)).await;
    subject.store.retry_delivery(id, NOW + seconds(4), activity()).await.expect("retry");
    assert_eq!(subject.claimable().await, [1]);
}

pub async fn a_message_group_ends_with_its_deleted_destination(subject: Subject) {
    let subject = Subject::with_message_groups(&[(1, "a"), (2, "a"), (3, "b")], subject).await;
    let head = subject.claim(1, 1).await.remove(0);
    subject.delete(1).await;
    let settled = subject.settle(result(&head, Verdict::Retry { at: NOW + seconds(2) })).await;
    assert_eq!(settled, Settlement::Settled(Cancelled));
    for number in 1..=3 {
        assert_eq!(subject.by_number(number).await.state, Cancelled);
    }
    assert_eq!(
        subject.store.repair_message_groups(None, 9).await.expect("repair"),
        crate::MessageGroupsRepaired::default()
    );
}
