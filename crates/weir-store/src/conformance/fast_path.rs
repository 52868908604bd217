//! How new deliveries are claimed as they are stored.

use std::sync::{Mutex, PoisonError};

use super::*;
use crate::{FastPath, Recovered};

/// A fast path with so much room, and what came of it.
#[derive(Default)]
pub(super) struct Fake {
    told: Mutex<AlertState>,
}

#[derive(Default)]
struct AlertState {
    room: usize,
    reserved: Vec<DestinationId>,
    cancelled: Vec<DestinationId>,
    admitted: Vec<ClaimedDelivery>,
}

const EXPIRES_AT: Timestamp = Timestamp::from_secs(1_800_000_090);

impl Fake {
    fn told<T>(&self, of: impl FnOnce(&mut AlertState) -> T) -> T {
        of(&mut self.told.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn admitted(&self) -> Vec<ClaimedDelivery> {
        self.told(|told| std::mem::take(&mut told.admitted))
    }
}

impl FastPath for Fake {
    fn reserve(&self, destination: &Destination) -> Option<Timestamp> {
        self.told(|told| {
            told.room = told.room.checked_sub(1)?;
            told.reserved.push(destination.id);
            Some(EXPIRES_AT)
        })
    }

    fn cancel(&self, destination_id: DestinationId) {
        self.told(|told| {
            told.room += 1;
            told.cancelled.push(destination_id);
        });
    }

    fn admit(&self, deliveries: Vec<ClaimedDelivery>) {
        self.told(|told| told.admitted.extend(deliveries));
    }
}

impl Subject {
    /// With A fast path that has room for `room` deliveries, and destination 1.
    pub(super) async fn fast_path(&self, room: usize) -> Arc<Fake> {
        let fake = Arc::new(Fake::default());
        fake.told(|told| told.room = room);
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

pub async fn a_delivery_that_goes_by_the_fast_path_is_stored_as_claimed(subject: Subject) {
    let fast_path = subject.fast_path(1).await;
    let answer = subject.ingest(vec![matched(event(1))]).await.remove(0);
    assert_eq!((answer.deliveries, answer.wake), (1, vec![]), "nobody need be woken");
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
    let filter = DeliveryFilter { state: Some(DeliveryState::Delivering), ..DeliveryFilter::default() };
    assert_eq!(subject.deliveries(filter).await.len(), 1);
}

pub async fn what_the_fast_path_has_no_room_for_waits(subject: Subject) {
    let fast_path = subject.fast_path(1).await;
    let answers = subject.ingest(vec![matched(event(1)), matched(event(2))]).await;
    assert_eq!(answers[1].wake, [destination_id(1)]);
    assert_eq!(fast_path.admitted().iter().map(number_of).collect::<Vec<_>>(), [1]);
    assert_eq!(subject.claim(1, 9).await.iter().map(number_of).collect::<Vec<_>>(), [2]);
}

pub async fn an_fast_path_claim_is_settled_like_any_other(subject: Subject) {
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

pub async fn an_fast_path_claim_given_back_waits_like_any_other(subject: Subject) {
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

pub async fn an_fast_path_claim_survives_the_process(mut subject: Subject) {
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

pub async fn an_fast_path_claim_of_a_deleted_destination_ends_with_it(subject: Subject) {
    let claimed = subject.one_by_fast_path().await;
    subject.delete(1).await;
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Delivering, "it may be on its way");
    subject.store.release(vec![claimed.claim], NOW + seconds(2)).await.expect("release");
    assert_eq!(subject.state(claimed.claim.delivery_id).await, DeliveryState::Cancelled);
}

pub async fn nothing_goes_to_a_paused_destination_by_the_fast_path(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    subject.pause(1).await;
    let answer = subject.ingest(vec![matched(event(1))]).await.remove(0);
    assert_eq!((answer.deliveries, answer.wake), (1, vec![]));
    assert!(fast_path.admitted().is_empty());
}

pub async fn room_kept_for_what_is_not_stored_is_given_up(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    let keyed = || matched(with_key(event(1), "once"));
    subject.ingest(vec![keyed()]).await;
    assert!(subject.ingest(vec![keyed()]).await[0].duplicate);
    let answers = subject.store.ingest(vec![named(event(2), &[1]), named(event(3), &[7])]).await.expect("ingest");
    assert!(answers[0].is_ok() && answers[1].is_err());
    assert_eq!(fast_path.admitted().iter().map(number_of).collect::<Vec<_>>(), [1, 2]);
    let kept = fast_path.told(|told| told.reserved.len() - told.cancelled.len());
    assert_eq!(kept, 2, "what was kept and not given up was admitted");
}

pub async fn a_delayed_event_does_not_go_by_the_fast_path(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    let mut delayed = event(1);
    delayed.options.deliver_at = Some(delayed.created_at + Duration::from_nanos(1));
    let mut past = event(2);
    past.options.deliver_at = Some(past.created_at);
    let answers = subject.ingest(vec![matched(delayed), matched(past)]).await;
    assert_eq!(answers[0].wake, [destination_id(1)]);
    assert_eq!(fast_path.admitted().iter().map(number_of).collect::<Vec<_>>(), [2]);
}

pub async fn what_coalesces_does_not_go_by_the_fast_path(subject: Subject) {
    let fast_path = subject.fast_path(9).await;
    let mut coalescing = event(1);
    coalescing.options.coalesce_key = Some("a".to_owned());
    let answer = subject.ingest(vec![matched(coalescing)]).await.remove(0);
    assert_eq!(answer.wake, [destination_id(1)]);
    assert!(fast_path.admitted().is_empty());
}
