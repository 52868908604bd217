//! What counts as out, and jobs that wait for room.

use std::time::Duration;

use weir_core::{RateLimits, plan::NextRun};

use super::{Subject, per_second};
use crate::{SlotAnswer, SlotRequest};

pub async fn a_lease_counts_what_is_queued_and_in_flight(subject: Subject) {
    let permits = subject.permits(per_second(10), 3, NextRun::Now).await;
    subject.slot(&permits[0], true).await;
    assert!(subject.queue.start(permits[0].id));
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (2, 1));
    subject.publish(lease, per_second(10), 0, NextRun::Now).await;
    subject.queue.settle(&[permits[0].id]).await.expect("settle");
    subject.queue.hand_back(&[permits[1].id, permits[2].id]).await.expect("hand back");
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (0, 0));
}

pub async fn a_settle_runs_a_job_that_waits_for_room(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::OnSettle).await;
    subject.assert_nothing_due().await;
    subject.queue.settle(&[permits[0].id]).await.expect("settle");
    subject.claim().await;
}

pub async fn a_settle_during_a_run_is_not_missed(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::Now).await;
    let lease = subject.claim().await;
    subject.queue.settle(&[permits[0].id]).await.expect("settle");
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::OnSettle).await;
    subject.claim().await;
}

pub async fn a_job_that_waits_for_a_claim_runs_at_its_wake(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::OnWake).await;
    subject.queue.settle(&[permits[0].id]).await.expect("settle");
    subject.assert_nothing_due().await;
    let lease = subject.begin_run().await;
    // The claim ended while the run was under way.
    subject.wake(subject.clock.now()).await;
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::OnWake).await;
    subject.claim().await;
}

pub async fn an_expired_permit_is_withdrawn_and_no_longer_counted(subject: Subject) {
    let lease = subject.begin_run().await;
    let limits = per_second(10);
    let deliveries = vec![subject.delivery(1, Duration::ZERO)];
    subject.publish_these(lease, limits, deliveries, NextRun::Now).await;
    let permit = subject.take(1).await.remove(0);
    assert_eq!(subject.ask_for_slot(&permit, SlotRequest::WARM).await, SlotAnswer::Withdrawn);
    assert!(!subject.queue.start(permit.id));
    assert_eq!(subject.claim().await.queued, 0);
}

pub async fn permits_whose_workers_died_are_no_longer_counted_once_their_claims_expire(subject: Subject) {
    let lease = subject.begin_run().await;
    let limits = per_second(10);
    let deliveries = [1, 2].map(|number| subject.delivery(number, Duration::from_secs(1))).to_vec();
    let expires_at = deliveries[1].expires_at;
    subject.publish_these(lease, limits.clone(), deliveries, NextRun::Now).await;
    let permit = subject.take(2).await.remove(0);
    subject.slot(&permit, true).await;
    assert!(subject.queue.start(permit.id));
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (1, 1));
    subject.publish(lease, limits, 0, NextRun::At(expires_at)).await;
    let lease = subject.claim().await;
    assert_eq!((lease.queued, lease.in_flight), (0, 0));
}
