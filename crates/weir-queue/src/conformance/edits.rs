//! Edits, suspensions and holds.

use std::time::Duration;

use weir_core::plan::NextRun;

use super::{Subject, destination, per_second};
use crate::{Published, SlotAnswer, SlotRequest};

pub async fn an_edit_runs_a_parked_job_at_once(subject: Subject) {
    subject.permits(per_second(1), 1, NextRun::Paced).await;
    subject.edit(false).await;
    subject.claim().await;
}

pub async fn an_edit_during_a_run_brings_another_run(subject: Subject) {
    let lease = subject.begin_run().await;
    subject.edit(false).await;
    // It may have read the limits of before the edit.
    assert!(matches!(subject.publish(lease, per_second(1), 1, NextRun::Paced).await, Published::Stale(_)));
    subject.claim().await;
}

pub async fn a_suspended_destination_withdraws_its_permits(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    subject.slot(&permits[0], true).await;
    subject.edit(true).await;
    assert!(!subject.queue.start(permits[0].id));
    assert_eq!(subject.ask_for_slot(&permits[1], SlotRequest::WARM).await, SlotAnswer::Withdrawn);
}

pub async fn a_suspension_during_a_run_makes_its_publish_stale(subject: Subject) {
    let lease = subject.begin_run().await;
    subject.edit(true).await;
    assert!(matches!(subject.publish(lease, per_second(10), 2, NextRun::Stop).await, Published::Stale(_)));
    subject.claim().await;
}

pub async fn a_resumed_destination_publishes_again(subject: Subject) {
    subject.permits(per_second(10), 1, NextRun::Stop).await;
    subject.edit(true).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 0, NextRun::Stop).await;
    subject.edit(false).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 1, NextRun::Stop).await;
    let permit = subject.take(1).await.remove(0);
    subject.slot(&permit, false).await;
    assert!(subject.queue.start(permit.id));
}

pub async fn a_hold_moves_the_next_slot_and_stops_what_is_published(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    subject.slot(&permits[0], true).await;
    let until = subject.clock.now() + Duration::from_secs(1);
    subject.queue.hold(destination(1), until).await.expect("hold");
    assert!(!subject.queue.start(permits[0].id));
    subject.assert_starts(subject.slot(&permits[1], true).await.start, until);
}
