//! Permits and their slots.

use std::time::Duration;

use weir_core::{Limiter, RateLimits, limiter::UNLIMITED_SLOT_WIDTH, plan::NextRun};

use super::{SOON, Subject, destination, granted, per_minute, per_second};
use crate::{Publication, SLOT_HORIZON, SlotAnswer, SlotRequest};

pub async fn permits_come_in_the_order_they_were_published(subject: Subject) {
    let permits = subject.permits(per_second(10), 5, NextRun::Stop).await;
    let order: Vec<_> = permits.iter().map(|permit| permit.delivery.claim.delivery_id.as_bytes()[0]).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

pub async fn a_cold_destination_takes_its_slots_when_connections_stand(subject: Subject) {
    let permits = subject.permits(per_second(10), 3, NextRun::Stop).await;
    assert!(permits.iter().all(|permit| permit.slot.is_none()));
    let asked_at = subject.clock.now();
    let first = subject.slot(&permits[0], false).await;
    let starts_now = first.start >= asked_at && first.start <= subject.clock.now() + subject.precision;
    assert!(starts_now, "an idle destination's slot starts now");
    let second = subject.slot(&permits[1], false).await;
    subject.assert_starts(second.start, first.start + Duration::from_millis(101));
    subject.assert_wide(second, Duration::from_millis(10));
}

pub async fn a_warm_destination_is_published_with_slots_t_apart(subject: Subject) {
    let permits = subject.permits(per_second(10), 1, NextRun::Now).await;
    let first = subject.slot(&permits[0], true).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 3, NextRun::Stop).await;
    for (permit, n) in subject.take(3).await.iter().zip(1..) {
        subject.assert_starts(permit.slot.expect("warm").start, first.start + Duration::from_millis(101) * n);
    }
}

pub async fn a_missed_slot_is_replaced_by_a_later_one(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    let first = subject.slot(&permits[0], true).await;
    assert!(subject.queue.start(permits[0].id));
    let again = subject.slot(&permits[0], true).await;
    subject.assert_starts(again.start, first.start + Duration::from_millis(101));
    assert!(subject.queue.start(permits[0].id), "back in the queue, it may be started again");
}

/// Of a limit of one a minute the next would be a minute away.
pub async fn a_missed_slot_that_is_the_last_costs_its_time_alone(subject: Subject) {
    let permits = subject.permits(per_minute(1), 2, NextRun::Stop).await;
    let missed = subject.slot(&permits[0], true).await;
    assert!(subject.queue.start(permits[0].id));
    let asked_at = subject.clock.now();
    let again = granted(subject.exchange(&permits[0]).await);
    let starts_now =
        again.start >= missed.start.max(asked_at) && again.start <= subject.clock.now() + subject.precision;
    assert!(starts_now, "{again:?} in exchange for {missed:?}");
    assert!(subject.queue.start(permits[0].id), "back in the queue, it may be started again");
    let second = subject.ask_for_slot(&permits[1], SlotRequest::WARM).await;
    assert_eq!(second, SlotAnswer::Withdrawn, "the window has its one send");
}

pub async fn a_missed_slot_that_another_follows_is_not_had_again(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    let first = subject.slot(&permits[0], true).await;
    subject.slot(&permits[1], true).await;
    let again = granted(subject.exchange(&permits[0]).await);
    subject.assert_starts(again.start, first.start + Duration::from_millis(202));
    let once_more = granted(subject.exchange(&permits[0]).await);
    subject.assert_starts(once_more.start, again.start);
}

pub async fn a_missed_slot_of_other_limits_is_not_had_again(subject: Subject) {
    let permit = subject.permits(per_second(1), 1, NextRun::Now).await.remove(0);
    let missed = subject.slot(&permit, true).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(2), 0, NextRun::Stop).await;
    let again = granted(subject.exchange(&permit).await);
    subject.assert_starts(again.start, missed.start + Duration::from_millis(505));
}

/// The hold may end sooner than the next slot would come.
pub async fn a_missed_slot_of_a_destination_that_is_held_is_not_given_back(subject: Subject) {
    let permits = subject.permits(per_minute(1), 2, NextRun::Stop).await;
    subject.slot(&permits[0], true).await;
    let held_until = subject.clock.now() + SLOT_HORIZON + Duration::from_millis(300);
    subject.queue.hold(destination(1), held_until).await.expect("hold");
    assert_eq!(subject.exchange(&permits[0]).await, SlotAnswer::Withdrawn);
    tokio::time::sleep(Duration::from_millis(400)).await;
    let second = subject.ask_for_slot(&permits[1], SlotRequest::WARM).await;
    assert_eq!(second, SlotAnswer::Withdrawn, "nobody knows whether the first was sent");
}

pub async fn cursors_survive_a_stop(subject: Subject) {
    let first = subject.permits(per_second(10), 1, NextRun::Stop).await;
    let first_slot = subject.slot(&first[0], false).await;
    let second = subject.permits(per_second(10), 1, NextRun::Stop).await;
    let again = subject.slot(&second[0], false).await;
    assert!(again.start + subject.precision >= first_slot.start + Duration::from_millis(101));
}

pub async fn unknown_cursors_continue_from_the_recovered_ones(subject: Subject) {
    let lease = subject.begin_run().await;
    assert!(lease.issued.is_none());
    let last_start = subject.clock.now() + Duration::from_secs(1);
    let recovered = Some(Limiter::recovered(&per_second(10), Some(last_start)));
    let deliveries = vec![subject.delivery(1, SOON)];
    let publication = Publication { lease, limits: per_second(10), recovered, deliveries, next: NextRun::Stop };
    subject.queue.publish(vec![publication]).await.expect("publish");
    let permit = subject.take(1).await.remove(0);
    subject.assert_starts(subject.slot(&permit, false).await.start, last_start + Duration::from_millis(101));
}

pub async fn new_limits_apply_from_the_next_publish(subject: Subject) {
    let permits = subject.permits(per_second(1), 1, NextRun::Now).await;
    let first = subject.slot(&permits[0], true).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(100), 1, NextRun::Stop).await;
    let slot = subject.take(1).await[0].slot.expect("warm");
    assert!(slot.start + subject.precision >= first.start + Duration::from_micros(10_100));
    assert!(slot.start < first.start + Duration::from_millis(900), "the old spacing no longer holds it");
}

pub async fn an_unlimited_permit_has_a_slot_that_starts_now(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::Stop).await;
    let slot = subject.slot(&permits[0], true).await;
    assert!(slot.start <= subject.clock.now() + subject.precision);
    subject.assert_wide(slot, UNLIMITED_SLOT_WIDTH);
}

pub async fn a_slot_beyond_the_horizon_is_not_granted(subject: Subject) {
    let permit = subject.permits(per_minute(1), 1, NextRun::Stop).await.remove(0);
    subject.slot(&permit, true).await;
    assert_eq!(subject.ask_for_slot(&permit, SlotRequest::WARM).await, SlotAnswer::Withdrawn);
}

pub async fn a_permit_that_found_no_slot_does_not_slow_the_pace(subject: Subject) {
    let permits = subject.permits(per_minute(25), 2, NextRun::Paced).await;
    let first = subject.slot(&permits[0], false).await;
    assert_eq!(subject.ask_for_slot(&permits[1], SlotRequest::COLD).await, SlotAnswer::Withdrawn);
    let lease = subject.claim().await;
    let spacing = Duration::from_millis(2_404);
    assert!(lease.due <= first.start + spacing, "for the slot that the second did not get");
    subject.assert_starts(lease.issued.expect("known").next_start(lease.due), first.start + spacing);
}

pub async fn a_permit_is_started_once(subject: Subject) {
    let permits = subject.permits(per_second(10), 1, NextRun::Stop).await;
    subject.slot(&permits[0], true).await;
    assert!(subject.queue.start(permits[0].id));
    assert!(!subject.queue.start(permits[0].id));
}
