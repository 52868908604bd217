//! Deliveries that are admitted without a run.

use std::{sync::Arc, time::Duration};

use weir_core::{DeliveryId, Destination, RateLimits, Timestamp, claim::ClaimedDelivery, plan::NextRun};

use super::{SOON, Subject, destination, per_second, settings};
use crate::{Permit, Published, Room};

impl Subject {
    /// A run that found nothing more to do: the destination has no backlog, and its cursors are known.
    async fn run_dry(&self, limits: RateLimits) {
        let lease = self.begin_run().await;
        assert!(matches!(self.publish(lease, limits, 0, NextRun::Stop).await, Published::Done));
    }

    fn try_reserve(&self, of: &Destination) -> bool {
        self.queue.reserve(of, self.clock.now() + SOON).is_kept()
    }

    /// Keeps room for a permit. A queue that has to guess may need a moment.
    async fn reserve(&self, of: &Destination) {
        let until = self.clock.now() + SOON;
        while !self.try_reserve(of) {
            assert!(self.clock.now() < until, "there is no room");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn admit(&self, number: u8, of: &Destination) {
        let delivery = self.delivery(number, SOON);
        self.queue.admit(vec![ClaimedDelivery { destination: Some(Arc::new(of.clone())), ..delivery }]);
    }

    /// The permit of a delivery that is admitted; tried again when it comes back, since a queue may guess.
    async fn admitted(&self, number: u8, of: &Destination) -> Permit {
        loop {
            self.reserve(of).await;
            self.admit(number, of);
            tokio::select! {
                permits = self.take(1) => return permits.into_iter().next().expect("one was taken"),
                _ = self.queue.declined() => {}
            }
        }
    }

    /// A queue that has to guess may keep room, and declines.
    async fn assert_not_admitted(&self, number: u8, of: &Destination) {
        if self.try_reserve(of) {
            self.admit(number, of);
            assert_eq!(self.declined(1).await.len(), 1);
        }
    }

    async fn declined(&self, count: usize) -> Vec<ClaimedDelivery> {
        let mut declined = Vec::new();
        while declined.len() < count {
            declined.extend(tokio::time::timeout(SOON, self.queue.declined()).await.expect("deliveries are declined"));
        }
        declined
    }
}

pub async fn a_delivery_is_admitted_without_a_run(subject: Subject) {
    let unlimited = settings(&RateLimits::UNLIMITED, 64);
    subject.run_dry(RateLimits::UNLIMITED).await;
    let permit = subject.admitted(7, &unlimited).await;
    assert_eq!(permit.delivery.claim.delivery_id, DeliveryId::from_bytes([7; 16]));
    let slot = subject.slot(&permit, true).await;
    tokio::time::sleep(slot.start.since(subject.clock.now())).await;
    assert!(subject.queue.start(permit.id));
    subject.queue.settle(&[permit.id]).await.expect("settle");
    assert!(subject.admitted(8, &unlimited).await.slot.is_some(), "a warm permit comes with its slot");
    subject.assert_nothing_due().await;
}

pub async fn nothing_is_admitted_to_a_destination_that_never_ran(subject: Subject) {
    assert!(!subject.try_reserve(&settings(&RateLimits::UNLIMITED, 64)), "its cursors are not known");
}

pub async fn an_admitted_delivery_takes_its_slot_off_the_same_cursor(subject: Subject) {
    let limits = per_second(10);
    let spacing = Duration::from_millis(101);
    let first = subject.permits(limits.clone(), 1, NextRun::Stop).await.remove(0);
    let slot = subject.slot(&first, true).await;
    let admitted = subject.admitted(7, &settings(&limits, 64)).await.slot.expect("a warm permit has its slot");
    assert!(admitted.start + subject.precision * 2 >= slot.start + spacing, "{admitted:?} after {slot:?}");
    let lease = subject.begin_run().await;
    assert!(matches!(subject.publish(lease, limits, 1, NextRun::Stop).await, Published::Done));
    let next = subject.take(1).await.remove(0).slot.expect("a warm permit has its slot");
    assert!(next.start + subject.precision * 2 >= admitted.start + spacing, "{next:?} after {admitted:?}");
}

pub async fn no_more_are_admitted_than_may_be_in_flight(subject: Subject) {
    let two = settings(&RateLimits::UNLIMITED, 2);
    subject.run_dry(RateLimits::UNLIMITED).await;
    subject.admitted(1, &two).await;
    subject.admitted(2, &two).await;
    assert!(!subject.try_reserve(&two), "two are out");
    let lease = subject.begin_run().await;
    assert_eq!(lease.queued, 2, "a run counts what was admitted");
}

pub async fn nothing_is_admitted_while_a_backlog_waits(subject: Subject) {
    subject.permits(RateLimits::UNLIMITED, 1, NextRun::Now).await;
    subject.assert_not_admitted(7, &settings(&RateLimits::UNLIMITED, 64)).await;
}

pub async fn what_is_live_is_admitted_beside_a_lane_that_has_filled_its_horizon(subject: Subject) {
    let (soon, limits) = (subject.clock.now() + Duration::from_secs(3_600), per_second(200));
    let mut last = Timestamp::MIN;
    for permit in subject.permits(limits.clone(), 4, NextRun::Soon(soon)).await {
        last = subject.slot(&permit, true).await.start;
    }
    let admitted = subject.admitted(7, &settings(&limits, 64)).await.slot.expect("a warm permit has its slot");
    assert!(admitted.start + subject.precision * 2 >= last + Duration::from_millis(5), "{admitted:?} after {last:?}");
    let slow = per_second(10);
    subject.permits(slow.clone(), 2, NextRun::Soon(soon)).await;
    // Its next slot is far away.
    subject.assert_not_admitted(8, &settings(&slow, 64)).await;
}

pub async fn what_is_admitted_after_a_suspension_comes_back(subject: Subject) {
    let unlimited = settings(&RateLimits::UNLIMITED, 64);
    subject.run_dry(RateLimits::UNLIMITED).await;
    subject.reserve(&unlimited).await;
    subject.edit(true).await;
    subject.admit(7, &unlimited);
    let declined = subject.declined(1).await;
    assert_eq!(declined[0].claim.delivery_id, DeliveryId::from_bytes([7; 16]));
    assert!(!subject.try_reserve(&unlimited));
}

pub async fn room_that_was_given_up_is_there_again(subject: Subject) {
    let one = settings(&RateLimits::UNLIMITED, 1);
    subject.run_dry(RateLimits::UNLIMITED).await;
    subject.reserve(&one).await;
    assert!(!subject.try_reserve(&one));
    subject.queue.unreserve(destination(1));
    subject.reserve(&one).await;
}

pub async fn want_of_room_is_told_from_a_backlog(subject: Subject) {
    let one = settings(&RateLimits::UNLIMITED, 1);
    let room = || subject.queue.reserve(&one, subject.clock.now() + SOON);
    assert_eq!(room(), Room::Closed, "nothing is known of it");
    subject.run_dry(RateLimits::UNLIMITED).await;
    subject.reserve(&one).await;
    assert_eq!(room(), Room::Full);
    subject.permits(RateLimits::UNLIMITED, 1, NextRun::OnSettle).await;
    assert_eq!(room(), Room::Closed, "more waits than there is room for");
}

pub async fn nothing_is_admitted_under_limits_that_the_cursors_do_not_follow(subject: Subject) {
    let (before, after) = (per_second(10), per_second(5));
    subject.run_dry(before).await;
    let edited = settings(&after, 64);
    // The announcement of the edit is lost, or late.
    subject.assert_not_admitted(7, &edited).await;
    subject.run_dry(after).await;
    subject.admitted(7, &edited).await;
}
