//! Edits and suspensions.

use std::time::Duration;

use weir_core::plan::NextRun;

use super::{SOON, Subject, destination, granted, per_second};
use crate::{Published, SlotAnswer, Terms, TermsChange};

pub async fn an_edit_runs_a_parked_job_at_once(subject: Subject) {
    subject.permits(per_second(1), 1, NextRun::Paced).await;
    subject.edit(&per_second(1), false).await;
    subject.claim().await;
}

pub async fn an_edit_during_a_run_causes_another_run(subject: Subject) {
    let lease = subject.begin_run().await;
    let read = subject.terms(&per_second(1));
    subject.edit(&per_second(2), false).await;
    let deliveries = vec![subject.delivery(1, SOON)];
    assert!(matches!(subject.publish_under(lease, read, deliveries, NextRun::Paced).await, Published::Stale(_)));
    subject.claim().await;
}

pub async fn an_edit_with_older_terms_changes_nothing(subject: Subject) {
    let permits = subject.permits(per_second(10), 1, NextRun::Stop).await;
    let old = subject.terms(&per_second(10));
    subject.edit(&per_second(10), false).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 0, NextRun::Stop).await;
    let late = TermsChange { destination_id: destination(1), terms: Terms { suspended: true, ..old } };
    subject.queue.edited(&[late]).await.expect("edit");
    granted(subject.ask_for_slot(&permits[0]).await);
}

pub async fn a_raised_limit_applies_to_outstanding_permits(subject: Subject) {
    let permits = subject.permits(per_second(1), 2, NextRun::Stop).await;
    let first = subject.slot(&permits[0]).await;
    subject.edit(&per_second(100), false).await;
    let second = granted(subject.ask_for_slot(&permits[1]).await);
    assert!(second.start + subject.precision >= first.start + Duration::from_micros(10_100));
    assert!(second.start < first.start + Duration::from_millis(900), "the old spacing no longer applies");
}

pub async fn a_lowered_limit_applies_to_outstanding_permits(subject: Subject) {
    let permits = subject.permits(per_second(100), 3, NextRun::Stop).await;
    let first = subject.slot(&permits[0]).await;
    subject.edit(&per_second(1), false).await;
    let SlotAnswer::Later(second) = subject.ask_for_slot(&permits[1]).await else {
        panic!("the next slot is 1 s away")
    };
    subject.assert_starts(second, first.start + Duration::from_millis(1_010));
}

pub async fn a_lowered_max_in_flight_applies_to_outstanding_permits(subject: Subject) {
    let limits = weir_core::RateLimits::UNLIMITED;
    let permits = subject.permits(limits.clone(), 3, NextRun::Stop).await;
    subject.slot(&permits[0]).await;
    let terms = Terms { max_in_flight: 1, version: LATE_VERSION, ..subject.terms(&limits) };
    subject.queue.edited(&[TermsChange { destination_id: destination(1), terms }]).await.expect("edit");
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::NoRoom);
    subject.settle(&permits[0]).await;
    granted(subject.ask_for_slot(&permits[2]).await);
}

/// Later than any edit that a test makes.
const LATE_VERSION: weir_core::Timestamp = weir_core::Timestamp::from_secs(1_000);

/// An override ends although no process announces it: its permits get no slot, and the parked job is due. The cursors stay.
pub async fn terms_that_are_over_grant_no_slot_and_run_the_job(subject: Subject) {
    let permits = subject.permits(per_second(100), 3, NextRun::Stop).await;
    let first = subject.slot(&permits[0]).await;
    let until = subject.clock.now() + Duration::from_millis(300);
    let version = LATE_VERSION;
    let overridden = Terms { until: Some(until), version, ..subject.terms(&per_second(100)) };
    let edit = TermsChange { destination_id: destination(1), terms: overridden.clone() };
    subject.queue.edited(&[edit]).await.expect("edit");
    let lease = subject.claim().await;
    let parked = NextRun::At(subject.clock.now() + Duration::from_secs(3_600));
    subject.publish_under(lease, overridden.clone(), Vec::new(), parked).await;
    let lease = subject.claim().await;
    assert!(subject.clock.now() + subject.precision >= until, "it is not over before");
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::Withdrawn);
    let version = version + Duration::from_micros(1);
    let below = Terms { version, ..subject.terms(&per_second(1)) };
    subject.publish_under(lease, below, Vec::new(), NextRun::Stop).await;
    // A run of a process whose clock is behind.
    let lease = subject.begin_run().await;
    let late = subject.publish_under(lease, overridden, Vec::new(), NextRun::Stop).await;
    assert!(matches!(late, Published::Stale(_)));
    let next = match subject.ask_for_slot(&permits[2]).await {
        SlotAnswer::Later(start) => start,
        answer => granted(answer).start,
    };
    assert!(next + subject.precision >= first.start + Duration::from_millis(1_010), "no window begins anew");
}

pub async fn a_suspended_destination_withdraws_its_permits(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    subject.slot(&permits[0]).await;
    subject.edit(&per_second(10), true).await;
    assert_eq!(subject.ask_for_slot(&permits[0]).await, SlotAnswer::Withdrawn, "its slot was missed");
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::Withdrawn);
}

pub async fn a_suspension_during_a_run_makes_its_publish_stale(subject: Subject) {
    let lease = subject.begin_run().await;
    let read = subject.terms(&per_second(10));
    subject.edit(&per_second(10), true).await;
    let deliveries = vec![subject.delivery(1, SOON)];
    assert!(matches!(subject.publish_under(lease, read, deliveries, NextRun::Stop).await, Published::Stale(_)));
    subject.claim().await;
}

pub async fn a_resumed_destination_publishes_again(subject: Subject) {
    subject.permits(per_second(10), 1, NextRun::Stop).await;
    subject.edit(&per_second(10), true).await;
    let lease = subject.claim().await;
    let suspended = Terms { suspended: true, ..subject.terms(&per_second(10)) };
    subject.publish_under(lease, suspended, Vec::new(), NextRun::Stop).await;
    subject.edit(&per_second(10), false).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 1, NextRun::Stop).await;
    let permit = subject.take(1).await.remove(0);
    granted(subject.ask_for_slot(&permit).await);
}

/// Like a breaker that is due for a probe: the destination was not edited since the breaker opened.
pub async fn a_run_under_the_same_terms_ends_a_suspension(subject: Subject) {
    subject.permits(per_second(10), 1, NextRun::Stop).await;
    subject.edit(&per_second(10), true).await;
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 1, NextRun::Stop).await;
    let permit = subject.take(1).await.remove(0);
    granted(subject.ask_for_slot(&permit).await);
}
