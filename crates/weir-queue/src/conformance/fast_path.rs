//! Deliveries that are admitted without a run.

use std::{sync::Arc, time::Duration};

use weir_core::{
    DeliveryId, Destination, DestinationId, RateLimits, claim::ClaimedDelivery, limit::MinInterval, plan::NextRun,
};

use super::{SOON, Subject, destination, granted, per_second};
use crate::{Permit, Published};

impl Subject {
    /// A run that finds no deliveries: the destination has no backlog, and its cursors are known.
    async fn run_without_backlog(&self, limits: RateLimits) {
        let lease = self.begin_run().await;
        assert!(matches!(self.publish(lease, limits, 0, NextRun::Stop).await, Published::Done));
    }

    fn try_reserve(&self, of: &Destination) -> bool {
        self.queue.reserve(of, of.id)
    }

    /// Reserves room for a permit. A queue that only estimates the room may need a moment.
    async fn reserve(&self, of: &Destination, flow: DestinationId) {
        let until = self.clock.now() + SOON;
        while !self.queue.reserve(of, flow) {
            assert!(self.clock.now() < until, "there is no room");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    fn admit(&self, number: u8, of: &Destination, flow: DestinationId) {
        let delivery = ClaimedDelivery { flow_id: flow, ..self.delivery(number, SOON) };
        self.queue.admit(vec![ClaimedDelivery { destination: Some(Arc::new(of.clone())), ..delivery }]);
    }

    /// Admits a delivery and takes its permit. Tries again when the delivery is declined, because a queue may only
    /// estimate the room.
    pub(super) async fn admitted(&self, number: u8, of: &Destination) -> Permit {
        self.admitted_to(number, of, of.id).await
    }

    /// The same of a flow of this destination.
    pub(super) async fn admitted_to(&self, number: u8, of: &Destination, flow: DestinationId) -> Permit {
        loop {
            self.reserve(of, flow).await;
            self.admit(number, of, flow);
            tokio::select! {
                permits = self.take(1) => return permits.into_iter().next().expect("a permit"),
                _ = self.queue.declined() => {}
            }
        }
    }

    /// A queue that only estimates the room may reserve it, and then declines the delivery.
    pub(super) async fn assert_not_admitted(&self, number: u8, of: &Destination) {
        self.assert_not_admitted_to(number, of, of.id).await;
    }

    /// The same of a flow of this destination.
    pub(super) async fn assert_not_admitted_to(&self, number: u8, of: &Destination, flow: DestinationId) {
        if self.queue.reserve(of, flow) {
            self.admit(number, of, flow);
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
    let unlimited = subject.destination(&RateLimits::UNLIMITED, 64);
    subject.run_without_backlog(RateLimits::UNLIMITED).await;
    let permit = subject.admitted(7, &unlimited).await;
    assert_eq!(permit.delivery.claim.delivery_id, DeliveryId::from_bytes([7; 16]));
    assert_eq!(permit.expected_at, None, "the worker asks as soon as it is ready");
    granted(subject.ask_for_slot(&permit).await);
    subject.settle(&permit).await;
    subject.admitted(8, &unlimited).await;
    subject.assert_nothing_due().await;
}

pub async fn nothing_is_admitted_to_a_destination_that_never_ran(subject: Subject) {
    assert!(!subject.try_reserve(&subject.destination(&RateLimits::UNLIMITED, 64)), "its cursors are not known");
}

pub async fn an_admitted_delivery_takes_its_slot_from_the_same_cursor(subject: Subject) {
    let limits = per_second(10);
    let spacing = Duration::from_millis(101);
    let first = subject.permits(limits.clone(), 1, NextRun::Stop).await.remove(0);
    let slot = subject.slot(&first).await;
    let admitted = subject.admitted(7, &subject.destination(&limits, 64)).await;
    let admitted = subject.slot(&admitted).await;
    assert!(admitted.start + subject.precision * 2 >= slot.start + spacing, "{admitted:?} after {slot:?}");
    let lease = subject.begin_run().await;
    assert!(matches!(subject.publish(lease, limits, 1, NextRun::Stop).await, Published::Done));
    let next = subject.take(1).await.remove(0);
    let next = subject.slot(&next).await;
    assert!(next.start + subject.precision * 2 >= admitted.start + spacing, "{next:?} after {admitted:?}");
}

pub async fn admissions_stop_at_max_in_flight(subject: Subject) {
    let two = subject.destination(&RateLimits::UNLIMITED, 2);
    let lease = subject.begin_run().await;
    let terms = crate::Terms::of(&two, subject.clock.now());
    assert!(matches!(subject.publish_under(lease, terms, Vec::new(), NextRun::Stop).await, Published::Done));
    subject.admitted(1, &two).await;
    subject.admitted(2, &two).await;
    subject.assert_not_admitted(3, &two).await;
    let lease = subject.begin_run().await;
    assert_eq!(lease.queued, 2, "a run counts admitted permits");
}

pub async fn nothing_is_admitted_while_there_is_a_backlog(subject: Subject) {
    subject.permits(RateLimits::UNLIMITED, 1, NextRun::Now).await;
    subject.assert_not_admitted(7, &subject.destination(&RateLimits::UNLIMITED, 64)).await;
}

pub async fn a_live_delivery_is_admitted_during_a_replay_and_goes_first(subject: Subject) {
    let (soon, limits) = (subject.clock.now() + Duration::from_secs(3_600), per_second(200));
    let replay = subject.permits(limits.clone(), 4, NextRun::Soon(soon)).await;
    let admitted = subject.admitted(7, &subject.destination(&limits, 64)).await;
    let live = subject.slot(&admitted).await;
    let replayed = subject.slot(&replay[0]).await;
    assert!(live.start < replayed.start, "{live:?} before {replayed:?}");
    let slow = per_second(10);
    subject.permits(slow.clone(), 2, NextRun::Soon(soon)).await;
    // The next slot is far away.
    subject.assert_not_admitted(8, &subject.destination(&slow, 64)).await;
}

pub async fn a_delivery_admitted_after_a_suspension_is_declined(subject: Subject) {
    let unlimited = subject.destination(&RateLimits::UNLIMITED, 64);
    subject.run_without_backlog(RateLimits::UNLIMITED).await;
    subject.reserve(&unlimited, unlimited.id).await;
    subject.edit(&RateLimits::UNLIMITED, true).await;
    subject.admit(7, &unlimited, unlimited.id);
    let declined = subject.declined(1).await;
    assert_eq!(declined[0].claim.delivery_id, DeliveryId::from_bytes([7; 16]));
    assert!(!subject.try_reserve(&unlimited));
}

pub async fn released_room_can_be_reserved_again(subject: Subject) {
    let one = subject.destination(&RateLimits::UNLIMITED, 1);
    let lease = subject.begin_run().await;
    let terms = crate::Terms::of(&one, subject.clock.now());
    assert!(matches!(subject.publish_under(lease, terms, Vec::new(), NextRun::Stop).await, Published::Done));
    subject.reserve(&one, one.id).await;
    assert!(!subject.try_reserve(&one));
    subject.queue.unreserve(destination(1));
    subject.reserve(&one, one.id).await;
}

pub async fn nothing_is_admitted_under_terms_that_the_job_does_not_know(subject: Subject) {
    subject.run_without_backlog(per_second(10)).await;
    let before = subject.destination(&per_second(10), 64);
    // The notification of an edit is lost or late.
    let edited = Destination { updated_at: before.updated_at + Duration::from_secs(100), ..before };
    subject.assert_not_admitted(7, &edited).await;
    let lease = subject.begin_run().await;
    let terms = crate::Terms::of(&edited, subject.clock.now());
    assert!(matches!(subject.publish_under(lease, terms, Vec::new(), NextRun::Stop).await, Published::Done));
    subject.admitted(7, &edited).await;
}

pub async fn deliveries_are_admitted_one_at_a_time_within_a_minimum_interval(subject: Subject) {
    let limits = RateLimits::UNLIMITED.with_min_interval(MinInterval::from_millis(60_000));
    let spaced = subject.destination(&limits, 64);
    subject.run_without_backlog(limits).await;
    let permit = subject.admitted(7, &spaced).await;
    subject.assert_not_admitted(8, &spaced).await;
    granted(subject.ask_for_slot(&permit).await);
    subject.settle(&permit).await;
    subject.assert_not_admitted(9, &spaced).await;
}
