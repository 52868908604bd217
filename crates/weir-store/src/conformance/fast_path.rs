//! The fast path: new deliveries are claimed as they are stored.

use parking_lot::Mutex;

use super::{
    limit_keys::{flow, keyed, of_key},
    message_groups::{in_order, ordered},
    *,
};
use crate::{FastPath, Recovered};

/// A fast path with limited room that records its calls.
#[derive(Default)]
pub(super) struct FakeFastPath {
    calls: Mutex<Calls>,
}

#[derive(Default)]
struct Calls {
    room: usize,
    reserved: Vec<DestinationId>,
    cancelled: Vec<DestinationId>,
    admitted: Vec<ClaimedDelivery>,
}

const EXPIRES_AT: Timestamp = Timestamp::from_secs(1_800_000_090);

impl FakeFastPath {
    fn with_calls<T>(&self, f: impl FnOnce(&mut Calls) -> T) -> T {
        f(&mut self.calls.lock())
    }

    pub(super) fn admitted(&self) -> Vec<ClaimedDelivery> {
        self.with_calls(|calls| std::mem::take(&mut calls.admitted))
    }
}

impl FastPath for FakeFastPath {
    fn reserve(&self, _: &Destination, flow: DestinationId) -> Option<Timestamp> {
        self.with_calls(|calls| {
            calls.room = calls.room.checked_sub(1)?;
            calls.reserved.push(flow);
            Some(EXPIRES_AT)
        })
    }

    fn cancel(&self, flow: DestinationId) {
        self.with_calls(|calls| {
            calls.room += 1;
            calls.cancelled.push(flow);
        });
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        self.with_calls(|calls| calls.admitted.extend(deliveries));
    }
}

impl Subject {
    /// Connects a fast path with room for `room` deliveries, and creates destination 1.
    pub(super) async fn fast_path(&self, room: usize) -> Arc<FakeFastPath> {
        let fake = Arc::new(FakeFastPath::default());
        fake.with_calls(|calls| calls.room = room);
        self.store.connect(fake.clone());
        self.create_many(1).await;
        fake
    }

    async fn one_by_fast_path(&self) -> ClaimedDelivery {
        let fast_path = self.fast_path(1).await;
        self.post(1, [1]).await;
        fast_path.admitted().remove(0)
    }
}

pub async fn a_fast_path_delivery_is_stored_as_claimed(subject: Subject) {
    let fast_path = subject.fast_path(1).await;
    let answer = subject.ingest(vec![matched(event(1))]).await.remove(0);
    assert_eq!((answer.deliveries, answer.wake), (1, vec![]), "no destination needs a wake");
    let admitted = fast_path.admitted();
    let [claimed] = &admitted[..] else { panic!("one delivery: {admitted:?}") };
    assert_eq!((number_of(claimed), claimed.attempts, claimed.expires_at), (1, 0, EXPIRES_AT));
    assert_eq!((claimed.event_id, claimed.event_created_at), (event(1).id, event(1).created_at));
    assert_eq!(claimed.destination.as_ref().map(|found| found.id), Some(destination_id(1)));
    let delivery = subject.delivery(claimed.claim.delivery_id).await;
    assert_eq!((delivery.state, delivery.next_attempt_at), (DeliveryState::Delivering, None));
    assert!(subject.claim(1, 9).await.is_empty(), "it is claimed already");
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("count");
    assert_eq!((counts.pending, counts.delivering), (0, 1));
    let history = subject.store.send_history(&[destination_id(1)]).await.expect("read");
    assert!(history[0].unsettled);
    let filter = DeliveryFilter { states: vec![DeliveryState::Delivering], ..DeliveryFilter::default() };
    assert_eq!(subject.deliveries(filter).await.len(), 1);
}

pub async fn a_fast_path_delivery_of_a_limit_key_is_claimed_for_its_flow(subject: Subject) {
    let fast_path = Arc::new(FakeFastPath::default());
    fast_path.with_calls(|calls| calls.room = 1);
    subject.store.connect(fast_path.clone());
    subject.create(keyed(1)).await;
    let answers = subject.ingest(vec![named(of_key(1, "b"), &[1]), named(of_key(2, "c"), &[1])]).await;
    assert_eq!(answers.iter().map(|answer| answer.wake.clone()).collect::<Vec<_>>(), [vec![], vec![flow("c")]]);
    assert_eq!(fast_path.with_calls(|calls| calls.reserved.clone()), [flow("b")]);
    let claimed = fast_path.admitted().remove(0);
    assert_eq!((claimed.flow_id, claimed.claim.destination_id), (flow("b"), destination_id(1)));
    // It is one of the flow, also after a loss of the queue.
    let unsettled = subject.histories(&[flow("b"), flow("c")]).await;
    assert_eq!(unsettled.iter().map(|of| of.unsettled).collect::<Vec<_>>(), [true, false]);
    assert!(subject.claim_key("b", 9).await.is_empty());
    subject.sent(&claimed, Verdict::Delivered, 3).await;
    assert_eq!(subject.flow_sends(&[flow("b"), flow("c")], 0).await, [1, 0]);
}

pub async fn a_delivery_without_room_on_the_fast_path_waits(subject: Subject) {
    let fast_path = subject.fast_path(1).await;
    let answers = subject.ingest(vec![matched(event(1)), matched(event(2))]).await;
    assert_eq!(answers[1].wake, [destination_id(1)]);
    assert_eq!(fast_path.admitted().iter().map(number_of).collect::<Vec<_>>(), [1]);
    assert_eq!(subject.claim(1, 9).await.iter().map(number_of).collect::<Vec<_>>(), [2]);
}

pub async fn a_fast_path_claim_is_settled_like_any_other(subject: Subject) {
    let claimed = subject.one_by_fast_path().await;
    let settled = subject.settle(result(&claimed, Verdict::Retry { at: NOW + seconds(5) })).await;
    assert_eq!(settled, Settlement::Settled(DeliveryState::Retrying));
    assert_eq!(subject.settle(result(&claimed, Verdict::Delivered)).await, Settlement::ClaimLost);
    let again = subject.claim(1, 9).await.remove(0);
    assert_eq!((again.attempts, again.claim == claimed.claim), (1, false));
    subject.settle(result(&again, Verdict::Delivered)).await;
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Delivered);
    assert_eq!(subject.attempts(claimed.claim.delivery_id).await.len(), 2);
}

pub async fn a_released_fast_path_claim_waits_like_any_other(subject: Subject) {
    let claimed = subject.one_by_fast_path().await;
    assert_eq!(subject.store.release(vec![claimed.claim], NOW + seconds(2)).await.expect("release"), 1);
    let delivery = subject.delivery(claimed.claim.delivery_id).await;
    assert_eq!((delivery.state, delivery.attempts), (DeliveryState::Pending, 0));
    assert_eq!(delivery.next_attempt_at, Some(event(1).created_at));
    let counts = subject.store.destination_counts(destination_id(1)).await.expect("count");
    assert_eq!((counts.pending, counts.delivering), (1, 0));
    let again = subject.claim(1, 9).await.remove(0);
    assert_eq!((again.attempts, again.claim == claimed.claim), (0, false));
}

pub async fn a_fast_path_claim_survives_the_process(mut subject: Subject) {
    let claimed = subject.one_by_fast_path().await;
    subject.reopen().await;
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Delivering);
    assert!(subject.claim(1, 9).await.is_empty());
    let recovered = subject.store.recover_claims(NOW + seconds(91), false, 100).await.expect("recover");
    assert_eq!(recovered, Recovered { retried: 1, ..Recovered::default() });
    let attempts = subject.attempts(claimed.claim.delivery_id).await;
    assert_eq!((attempts.len(), attempts[0].outcome), (1, AttemptOutcome::Unknown));
    assert_eq!(subject.claims(vec![request(1, 9)], NOW + seconds(91)).await[0].deliveries.len(), 1);
}

pub async fn a_fast_path_claim_of_a_deleted_destination_is_cancelled_when_released(subject: Subject) {
    let claimed = subject.one_by_fast_path().await;
    subject.delete(1).await;
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Delivering, "it may be in flight");
    subject.store.release(vec![claimed.claim], NOW + seconds(2)).await.expect("release");
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Cancelled);
}

pub async fn deliveries_to_a_paused_destination_do_not_take_the_fast_path(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    subject.pause(1).await;
    let answer = subject.ingest(vec![matched(event(1))]).await.remove(0);
    assert_eq!((answer.deliveries, answer.wake), (1, vec![]));
    assert!(fast_path.admitted().is_empty());
}

pub async fn reserved_room_is_freed_when_the_delivery_is_not_stored(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    let keyed = || matched(with_key(event(1), "once"));
    subject.ingest(vec![keyed()]).await;
    assert!(subject.ingest(vec![keyed()]).await[0].duplicate);
    let answers = subject.store.ingest(vec![named(event(2), &[1]), named(event(3), &[7])]).await.expect("ingest");
    assert!(answers[0].is_ok() && answers[1].is_err());
    assert_eq!(fast_path.admitted().iter().map(number_of).collect::<Vec<_>>(), [1, 2]);
    let kept = fast_path.with_calls(|calls| calls.reserved.len() - calls.cancelled.len());
    assert_eq!(kept, 2, "each reservation was either admitted or cancelled");
}

pub async fn a_delayed_event_does_not_take_the_fast_path(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    let mut delayed = event(1);
    delayed.options.deliver_at = Some(delayed.created_at + Duration::from_nanos(1));
    let mut past = event(2);
    past.options.deliver_at = Some(past.created_at);
    let answers = subject.ingest(vec![matched(delayed), matched(past)]).await;
    assert_eq!(answers[0].wake, [destination_id(1)]);
    assert_eq!(fast_path.admitted().iter().map(number_of).collect::<Vec<_>>(), [2]);
}

pub async fn an_event_with_a_coalesce_key_does_not_take_the_fast_path(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    let mut coalescing = event(1);
    coalescing.options.coalesce_key = Some("a".to_owned());
    let answer = subject.ingest(vec![matched(coalescing)]).await.remove(0);
    assert_eq!(answer.wake, [destination_id(1)]);
    assert!(fast_path.admitted().is_empty());
}

pub async fn an_ordered_delivery_does_not_take_the_fast_path(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    subject.create(ordered(2, None)).await;
    let answer = subject.ingest(vec![named(in_order(1, "a"), &[1, 2])]).await.remove(0);
    assert_eq!(answer.wake, [destination_id(2)]);
    assert_eq!(fast_path.admitted().len(), 1, "to the destination that is not ordered");
}
