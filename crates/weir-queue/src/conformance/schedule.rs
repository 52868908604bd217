//! The schedule: wakes, claims, leases, runs.

use std::time::Duration;

use weir_core::{RateLimits, plan::NextRun};

use super::{LEASE, Subject, destination, per_second};
use crate::{Published, Wake};

pub async fn a_woken_job_is_claimed_once(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    subject.wake(subject.clock.now()).await;
    assert_eq!(subject.claim_for(LEASE).await.len(), 1);
    subject.assert_nothing_due().await;
}

pub async fn a_claim_waits_for_a_wake(subject: Subject) {
    let (claimed, ()) = tokio::join!(subject.claim(), async { subject.wake(subject.clock.now()).await });
    assert_eq!(claimed.destination_id, destination(1));
}

pub async fn a_wake_pulls_a_parked_job_forward(subject: Subject) {
    subject.wake(subject.clock.now() + Duration::from_secs(3_600)).await;
    subject.assert_nothing_due().await;
    subject.wake(subject.clock.now()).await;
    subject.claim().await;
}

pub async fn a_job_with_only_replayed_deliveries_runs_soon_or_at_a_wake(subject: Subject) {
    let far = subject.clock.now() + Duration::from_secs(3_600);
    subject.permits(RateLimits::UNLIMITED, 1, NextRun::Soon(far)).await;
    subject.assert_nothing_due().await;
    let lease = subject.begin_run().await;
    let soon = subject.clock.now() + Duration::from_millis(20);
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::Soon(soon)).await;
    let lease = subject.claim().await;
    assert!(subject.clock.now() + subject.precision * 2 >= soon);
    // A wake during a run also counts.
    subject.wake(subject.clock.now()).await;
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::Soon(far)).await;
    subject.claim().await;
}

pub async fn a_later_wake_does_not_push_a_job_back(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    subject.wake(subject.clock.now() + Duration::from_secs(3_600)).await;
    subject.claim().await;
}

pub async fn a_later_wake_does_not_push_a_known_idle_job_back(subject: Subject) {
    subject.permits(per_second(10), 1, NextRun::Stop).await;
    subject.wake(subject.clock.now()).await;
    subject.wake(subject.clock.now() + Duration::from_secs(3_600)).await;
    subject.claim().await;
}

pub async fn a_wake_does_not_run_a_paced_job_early(subject: Subject) {
    subject.permits(per_second(1), 1, NextRun::Paced).await;
    subject.wake(subject.clock.now()).await;
    subject.assert_nothing_due().await;
}

pub async fn a_stop_removes_the_job(subject: Subject) {
    subject.permits(per_second(10), 1, NextRun::Stop).await;
    subject.assert_nothing_due().await;
}

pub async fn a_wake_during_a_run_survives_its_stop(subject: Subject) {
    let lease = subject.begin_run().await;
    subject.wake(subject.clock.now()).await;
    subject.publish(lease, per_second(10), 0, NextRun::Stop).await;
    subject.claim().await;
}

pub async fn a_wake_during_a_run_pulls_the_parked_job_forward(subject: Subject) {
    let lease = subject.begin_run().await;
    subject.wake(subject.clock.now()).await;
    let far = subject.clock.now() + Duration::from_secs(3_600);
    subject.publish(lease, per_second(10), 0, NextRun::At(far)).await;
    subject.claim().await;
}

pub async fn an_ended_lease_is_claimed_again_and_its_stale_epoch_publishes_nothing(subject: Subject) {
    subject.wake(subject.clock.now()).await;
    let stale = subject.claim_for(Duration::from_millis(20)).await.remove(0);
    let fresh = subject.claim().await;
    assert!(fresh.epoch > stale.epoch);
    let refused = subject.publish(stale, per_second(10), 3, NextRun::Stop).await;
    assert!(matches!(refused, Published::Stale(back) if back.len() == 3));
    assert!(matches!(subject.publish(fresh, per_second(10), 1, NextRun::Stop).await, Published::Done));
    assert_eq!(subject.take(1).await.len(), 1);
}

pub async fn a_publish_after_a_publish_of_the_same_lease_is_stale(subject: Subject) {
    let lease = subject.begin_run().await;
    assert!(matches!(subject.publish(lease.clone(), per_second(10), 1, NextRun::Stop).await, Published::Done));
    assert!(matches!(subject.publish(lease, per_second(10), 1, NextRun::Stop).await, Published::Stale(_)));
}

pub async fn a_run_that_continues_keeps_its_lease_and_publishes_again(subject: Subject) {
    let lease = subject.begin_run().await;
    let continued = subject.publish(lease.clone(), per_second(10), 2, NextRun::Continue).await;
    assert!(matches!(continued, Published::Done));
    assert_eq!(subject.take(2).await.len(), 2, "the permits are published before the run ends");
    // A wake during the run causes another run.
    subject.wake(subject.clock.now()).await;
    assert!(matches!(subject.publish(lease.clone(), per_second(10), 1, NextRun::Stop).await, Published::Done));
    assert_eq!(subject.take(1).await.len(), 1);
    let next = subject.claim().await;
    assert_eq!((next.epoch > lease.epoch, next.queued), (true, 3));
}

pub async fn one_destination_does_not_delay_another(subject: Subject) {
    subject.permits(per_second(1), 1, NextRun::Paced).await;
    subject.queue.wake(&[Wake { destination_id: destination(2), due: subject.clock.now() }]).await.expect("wake");
    assert_eq!(subject.claim().await.destination_id, destination(2));
}
