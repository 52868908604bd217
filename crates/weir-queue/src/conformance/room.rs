//! Outstanding permits, and jobs that wait for room.

use std::time::Duration;

use weir_core::{
    Period, RateLimits,
    plan::{LEAD, NextRun},
};

use super::{Subject, granted, per, per_second};
use crate::{Publication, SlotAnswer, Terms};

pub async fn a_lease_counts_what_is_queued_and_in_flight(subject: Subject) {
    let permits = subject.permits(per_second(10), 3, NextRun::Now).await;
    subject.slot(&permits[0]).await;
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (2, 1));
    subject.publish(lease, per_second(10), 0, NextRun::Now).await;
    subject.settle(&permits[0]).await;
    subject.hand_back(&permits[1], false).await;
    subject.hand_back(&permits[2], false).await;
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (0, 0));
}

pub async fn a_settle_runs_a_job_that_waits_for_room(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::OnSettle).await;
    subject.assert_nothing_due().await;
    subject.settle(&permits[0]).await;
    subject.claim().await;
}

pub async fn a_settle_during_a_run_is_not_missed(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::Now).await;
    let lease = subject.claim().await;
    subject.settle(&permits[0]).await;
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::OnSettle).await;
    subject.claim().await;
}

/// At a limit whose next slot opens later a run for the freed room would find nothing that it may publish. Thousands of
/// destinations with one request at a time, each at its limit or held, would need a second run for each request.
pub async fn a_settle_runs_a_job_when_its_next_slot_opens(subject: Subject) {
    let limits = per_second(1);
    let permits = subject.permits(limits.clone(), 1, NextRun::OnSettle).await;
    let slot = subject.slot(&permits[0]).await;
    subject.settle(&permits[0]).await;
    subject.assert_nothing_due().await;
    let lease = subject.claim().await;
    let next = slot.start + limits.as_slice()[0].spacing();
    let early = next.since(lease.due);
    assert!(early >= LEAD && early < Duration::from_millis(500), "shortly before the next slot: {early:?}");
    // The same when the attempt ends during the run, and the destination is held meanwhile.
    subject.publish(lease, limits.clone(), 1, NextRun::Now).await;
    let permit = subject.take(1).await.remove(0);
    subject.slot(&permit).await;
    let lease = subject.claim().await;
    let until = subject.clock.now() + Duration::from_secs(2);
    subject.hold_many(until).await;
    subject.settle(&permit).await;
    subject.publish(lease, limits, 0, NextRun::OnSettle).await;
    subject.assert_nothing_due().await;
    assert!(until.since(subject.claim().await.due) < Duration::from_millis(500), "shortly before the end of the hold");
}

/// A worker that stops hands its permits back. With a limit of one per hour this must not cost an hour.
pub async fn a_permit_handed_back_before_its_slot_costs_no_slot(subject: Subject) {
    let limits = per(1, Period::HOUR);
    let unused = subject.permits(limits.clone(), 1, NextRun::Paced).await.remove(0);
    subject.hand_back(&unused, false).await;
    let lease = subject.claim().await;
    subject.publish(lease, limits.clone(), 1, NextRun::Stop).await;
    let permit = subject.take(1).await.remove(0);
    let slot = subject.slot(&permit).await;
    assert!(slot.start <= subject.clock.now() + subject.precision);
    subject.settle(&permit).await;
    let next = subject.permits(limits, 1, NextRun::Stop).await.remove(0);
    assert_eq!(subject.ask_for_slot(&next).await, SlotAnswer::Withdrawn, "the next slot is an hour away");
}

pub async fn a_permit_without_room_waits_for_the_end_of_an_attempt(subject: Subject) {
    let limits = RateLimits::UNLIMITED;
    let permits = subject.permits(limits.clone(), 3, NextRun::Now).await;
    let lease = subject.claim().await;
    let terms = Terms { max_in_flight: 2, ..subject.terms(&limits) };
    let publication = Publication {
        lease,
        terms: Some(terms),
        recovered: None,
        groups: Vec::new(),
        pace: None,
        deliveries: vec![],
        next: NextRun::Now,
    };
    subject.queue.publish(vec![publication]).await.expect("publish");
    subject.slot(&permits[0]).await;
    subject.slot(&permits[1]).await;
    assert_eq!(subject.ask_for_slot(&permits[2]).await, SlotAnswer::NoRoom);
    assert_eq!(subject.claim().await.queued, 1, "it still waits");
    subject.settle(&permits[0]).await;
    granted(subject.ask_for_slot(&permits[2]).await);
}

pub async fn a_lease_reports_how_many_attempts_end_until_new_permits_are_ready(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 4, NextRun::Now).await;
    for permit in &permits {
        granted(subject.ask_prepared_in(permit, Some(Duration::from_millis(1_500))).await);
        subject.settle(permit).await;
    }
    let lease = subject.claim().await;
    assert!((2..=128).contains(&lease.ahead), "four ended since the run began: {}", lease.ahead);
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::Now).await;
    assert_eq!(subject.claim().await.ahead, 0, "none has ended since");
}

pub async fn a_crowded_destination_gets_fewer_permits_until_attempts_end(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 3, NextRun::Now).await;
    subject.slot(&permits[0]).await;
    subject.slot(&permits[1]).await;
    subject.hand_back(&permits[2], true).await;
    let lease = subject.claim().await;
    assert_eq!(lease.max_outstanding, Some(2));
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::OnSettle).await;
    subject.settle(&permits[0]).await;
    assert_eq!(subject.claim().await.max_outstanding, Some(3));
}

pub async fn a_crowded_permit_starts_no_run(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::OnSettle).await;
    subject.hand_back(&permits[0], true).await;
    subject.assert_nothing_due().await;
    subject.settle(&permits[1]).await;
    subject.claim().await;
}

pub async fn a_crowded_paced_permit_starts_no_run(subject: Subject) {
    let permits = subject.permits(per_second(1), 1, NextRun::Paced).await;
    subject.hand_back(&permits[0], true).await;
    subject.assert_nothing_due().await;
}

pub async fn an_expired_permit_is_withdrawn_and_no_longer_counted(subject: Subject) {
    let lease = subject.begin_run().await;
    let limits = per_second(10);
    let deliveries = vec![subject.delivery(1, Duration::ZERO)];
    subject.publish_these(lease, limits, deliveries, NextRun::Now).await;
    let permit = subject.take(1).await.remove(0);
    assert_eq!(subject.ask_for_slot(&permit).await, SlotAnswer::Withdrawn);
    assert_eq!(subject.claim().await.queued, 0);
}

pub async fn permits_whose_workers_died_are_no_longer_counted_once_their_claims_expire(subject: Subject) {
    let lease = subject.begin_run().await;
    let limits = per_second(10);
    let deliveries = [1, 2].map(|number| subject.delivery(number, Duration::from_secs(1))).to_vec();
    let expires_at = deliveries[1].expires_at;
    subject.publish_these(lease, limits.clone(), deliveries, NextRun::Now).await;
    let permit = subject.take(2).await.remove(0);
    subject.slot(&permit).await;
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (1, 1));
    subject.publish(lease, limits, 0, NextRun::At(expires_at)).await;
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (0, 0));
}
