//! Permits and their slots.

use std::time::Duration;

use weir_core::{
    Limiter, Period, RateLimit, RateLimits, Timestamp, limit::UNLIMITED_SLOT_WIDTH, limiter::GRANT_AHEAD, plan::NextRun,
};

use super::{SOON, Subject, granted, per, per_minute, per_second};
use crate::{Publication, SlotAnswer};

pub async fn permits_are_taken_in_the_order_of_publication(subject: Subject) {
    let permits = subject.permits(per_second(10), 5, NextRun::Stop).await;
    let order: Vec<_> = permits.iter().map(|permit| permit.delivery.claim.delivery_id.as_bytes()[0]).collect();
    assert_eq!(order, [0, 1, 2, 3, 4]);
}

pub async fn permits_carry_the_time_at_which_their_slots_are_expected(subject: Subject) {
    let before = subject.clock.now();
    let permits = subject.permits(per_second(10), 3, NextRun::Now).await;
    let first = permits[0].expected_at.expect("a run paces its permits");
    assert!(first + subject.precision >= before && first <= subject.clock.now() + subject.precision);
    for (permit, n) in permits.iter().zip(0..) {
        subject.assert_starts(permit.expected_at.expect("paced"), first + Duration::from_millis(101) * n);
    }
    let lease = subject.claim().await;
    subject.publish(lease, per_second(10), 1, NextRun::Stop).await;
    let next = subject.take(1).await.remove(0).expected_at.expect("paced");
    assert!(next + subject.precision >= first + Duration::from_millis(303), "the three outstanding permits come first");
}

pub async fn slots_of_a_backlog_are_one_spacing_apart(subject: Subject) {
    let permits = subject.permits(per_second(10), 3, NextRun::Stop).await;
    let asked_at = subject.clock.now();
    let first = subject.slot(&permits[0]).await;
    let starts_now =
        first.start + subject.precision >= asked_at && first.start <= subject.clock.now() + subject.precision;
    assert!(starts_now, "an idle destination's slot starts now");
    subject.assert_wide(first, Duration::from_millis(10));
    let mut before = first.start;
    for permit in &permits[1..] {
        let start = subject.slot(permit).await.start;
        subject.assert_starts(start, before + Duration::from_millis(101));
        before = start;
    }
}

pub async fn a_slot_is_granted_at_most_40_ms_ahead(subject: Subject) {
    let permits = subject.permits(per_second(2), 2, NextRun::Stop).await;
    let first = subject.slot(&permits[0]).await;
    let SlotAnswer::Later(start) = subject.ask_for_slot(&permits[1]).await else {
        panic!("the next slot is 505 ms away")
    };
    subject.assert_starts(start, first.start + Duration::from_millis(505));
    subject.until(start - GRANT_AHEAD / 2).await;
    let second = granted(subject.ask_for_slot(&permits[1]).await);
    subject.assert_starts(second.start, start);
}

pub async fn the_first_request_gets_the_first_slot(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    let first = subject.slot(&permits[1]).await;
    let second = subject.slot(&permits[0]).await;
    subject.assert_starts(second.start, first.start + Duration::from_millis(101));
}

pub async fn a_missed_slot_is_replaced_by_a_later_one(subject: Subject) {
    let permits = subject.permits(per_second(10), 1, NextRun::Stop).await;
    let first = subject.slot(&permits[0]).await;
    let again = subject.slot(&permits[0]).await;
    subject.assert_starts(again.start, first.start + Duration::from_millis(101));
}

pub async fn a_missed_slot_that_is_still_the_last_gives_its_spacing_back(subject: Subject) {
    let both = |limits: [RateLimits; 2]| {
        let each = limits.iter().flat_map(|limits| limits.as_slice().to_vec()).collect();
        RateLimits::new(each).expect("two periods")
    };
    let permits = subject.permits(both([per_second(2), per_minute(60)]), 2, NextRun::Stop).await;
    let first = subject.slot(&permits[0]).await;
    let mut missed = first;
    for _ in 0..3 {
        missed = granted(subject.ask_after_miss(&permits[0], missed).await);
        assert!(missed.start <= subject.clock.now() + subject.precision, "it starts at once, not a spacing later");
    }
    // The next slot is one spacing of each limit after the only slot that counts.
    subject.assert_starts(subject.slot(&permits[1]).await.start, missed.start + spacing(60, Period::MINUTE));
}

pub async fn a_missed_slot_gives_nothing_back_after_another_was_granted(subject: Subject) {
    let permits = subject.permits(per_second(30), 2, NextRun::Stop).await;
    let missed = subject.slot(&permits[0]).await;
    let last = subject.slot(&permits[1]).await;
    let again = start_of(subject.ask_after_miss(&permits[0], missed).await);
    let earliest = last.start + spacing(30, Period::SECOND);
    assert!(again + subject.precision >= earliest, "the last slot may still be used");
}

pub async fn a_slot_is_not_given_back_after_an_edit(subject: Subject) {
    let permits = subject.permits(per_second(2), 1, NextRun::Stop).await;
    let missed = subject.slot(&permits[0]).await;
    subject.edit(&per_second(4), false).await;
    let start = start_of(subject.ask_after_miss(&permits[0], missed).await);
    assert!(start + subject.precision >= missed.start + spacing(4, Period::SECOND));
}

fn spacing(limit: u32, period: Period) -> Duration {
    RateLimit::new(limit, period).expect("a limit").spacing()
}

/// The start of the next slot, granted or not.
pub(super) fn start_of(answer: SlotAnswer) -> Timestamp {
    match answer {
        SlotAnswer::Granted(slot, _) => slot.start,
        SlotAnswer::Later(start) => start,
        answer => panic!("the next slot is near: {answer:?}"),
    }
}

pub async fn cursors_survive_a_stop(subject: Subject) {
    let first = subject.permits(per_second(10), 1, NextRun::Stop).await;
    let first_slot = subject.slot(&first[0]).await;
    subject.settle(&first[0]).await;
    let second = subject.permits(per_second(10), 1, NextRun::Stop).await;
    let again = subject.slot(&second[0]).await;
    assert!(again.start + subject.precision >= first_slot.start + Duration::from_millis(101));
}

pub async fn unknown_cursors_continue_from_the_recovered_ones(subject: Subject) {
    let lease = subject.begin_run().await;
    assert!(lease.cursors.is_none());
    let last_start = subject.clock.now() + Duration::from_millis(500);
    let terms = subject.terms(&per_second(10));
    let recovered = Some(Limiter::recovered(&terms.limits, Some(last_start)));
    let deliveries = vec![subject.delivery(1, SOON)];
    let publication = Publication {
        lease,
        terms: Some(terms),
        recovered,
        groups: Vec::new(),
        pace: None,
        deliveries,
        next: NextRun::Stop,
    };
    subject.queue.publish(vec![publication]).await.expect("publish");
    let permit = subject.take(1).await.remove(0);
    subject.assert_starts(subject.slot(&permit).await.start, last_start + Duration::from_millis(101));
}

pub async fn an_unlimited_permit_has_a_slot_that_starts_now(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::Stop).await;
    for permit in &permits {
        let slot = granted(subject.ask_for_slot(permit).await);
        assert!(slot.start <= subject.clock.now() + subject.precision);
        subject.assert_wide(slot, UNLIMITED_SLOT_WIDTH);
    }
}

pub async fn a_slot_of_a_long_window_is_wide(subject: Subject) {
    let permits = subject.permits(per(1, Period::HOUR), 1, NextRun::Stop).await;
    subject.assert_wide(granted(subject.ask_for_slot(&permits[0]).await), Duration::from_millis(2_500));
}

pub async fn a_lease_reports_how_long_workers_prepare(subject: Subject) {
    let permits = subject.permits(per_minute(60), 1, NextRun::Paced).await;
    granted(subject.ask_prepared_in(&permits[0], Some(Duration::from_millis(500))).await);
    let lease = subject.begin_run().await;
    assert!(lease.preparation + Duration::from_millis(1) >= Duration::from_millis(500), "{:?}", lease.preparation);
}
