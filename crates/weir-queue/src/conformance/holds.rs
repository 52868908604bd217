//! Holds, their release, and the slow start after them.

use std::time::Duration;

use weir_core::{RateLimits, Timestamp, plan::NextRun};

use super::{Subject, granted, per_second};
use crate::{Permit, SlotAnswer};

/// Longer than a permit waits for its slot, so that the permits of a held destination are withdrawn.
const LONG: Duration = Duration::from_secs(60);
/// A hold that ends soon.
const SHORT: Duration = Duration::from_millis(150);

pub async fn a_hold_moves_the_next_slot_of_outstanding_permits(subject: Subject) {
    let permits = subject.permits(per_second(10), 2, NextRun::Stop).await;
    subject.slot(&permits[0]).await;
    let until = subject.clock.now() + Duration::from_secs(1);
    subject.hold_many(until).await;
    let SlotAnswer::Later(start) = subject.ask_for_slot(&permits[1]).await else { panic!("the destination is held") };
    subject.assert_starts(start, until);
    subject.hold_many(until + Duration::from_secs(60)).await;
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::Withdrawn);
    subject.hold_many(until).await;
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::Withdrawn, "a hold is never shortened");
}

pub async fn a_release_frees_the_next_slot_at_once(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::Stop).await;
    let sent_at = subject.slot(&permits[0]).await.start;
    subject.hold(sent_at + LONG, sent_at).await;
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::Withdrawn);
    subject.settle(&permits[0]).await;
    subject.release(&RateLimits::UNLIMITED, subject.clock.now(), Timestamp::MIN).await;
    // The job is due at once, and the permit that is still out gets its slot.
    subject.claim().await;
    subject.slot(&permits[1]).await;
}

pub async fn a_hold_of_a_send_from_before_the_release_is_ignored_and_a_later_one_counts(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 2, NextRun::Stop).await;
    let sent_at = subject.slot(&permits[0]).await.start;
    subject.settle(&permits[0]).await;
    let released_at = sent_at + subject.precision + Duration::from_millis(1);
    subject.until(released_at).await;
    subject.release(&RateLimits::UNLIMITED, released_at, Timestamp::MIN).await;
    subject.hold(sent_at + LONG, sent_at).await;
    assert!(matches!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::Granted(..)));
    let until = released_at + LONG;
    subject.hold(until, released_at).await;
    let lease = subject.claim().await;
    let held_until = lease.cursors.expect("known cursors").held_until();
    assert!(held_until.since(until) + until.since(held_until) <= subject.precision, "{held_until:?}");
}

pub async fn terms_bring_the_hold_that_the_store_knows_unless_it_was_released_since(subject: Subject) {
    let limits = RateLimits::UNLIMITED;
    let permits = subject.permits(limits.clone(), 1, NextRun::Stop).await;
    let now = subject.clock.now();
    subject.release(&limits, now, now + LONG).await;
    assert_eq!(subject.ask_for_slot(&permits[0]).await, SlotAnswer::Withdrawn, "held since the release");
    subject.release(&limits, now + Duration::from_millis(1), Timestamp::MIN).await;
    // A destination that was read before the release.
    subject.release(&limits, now, now + LONG).await;
    subject.slot(&permits[0]).await;
}

/// Waits until a hold has ended, and returns the permit that got a slot first.
async fn probe<'p>(subject: &Subject, permits: &'p [Permit], until: Timestamp) -> (&'p Permit, Timestamp) {
    subject.until(until + subject.precision).await;
    (&permits[0], subject.slot(&permits[0]).await.start)
}

pub async fn after_a_hold_one_send_is_in_flight_until_it_is_answered(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 8, NextRun::Stop).await;
    let until = subject.clock.now() + SHORT;
    subject.hold(until, until - SHORT).await;
    let (first, sent_at) = probe(&subject, &permits, until).await;
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::NoRoom);
    subject.settle_answered(first, sent_at).await;
    // Two, then four: each answer makes room for one more.
    for sending in [&permits[1..3], &permits[3..7]] {
        for permit in sending {
            granted(subject.ask_for_slot(permit).await);
        }
        assert_eq!(subject.ask_for_slot(&permits[7]).await, SlotAnswer::NoRoom);
        for permit in sending {
            subject.settle_answered(permit, subject.clock.now()).await;
        }
    }
}

pub async fn sends_from_before_the_end_of_a_hold_and_refused_ones_do_not_end_its_slow_start(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 4, NextRun::Stop).await;
    let before = subject.slot(&permits[0]).await.start;
    let until = subject.clock.now() + SHORT;
    subject.hold(until, before).await;
    // It still counts as in flight after the hold, and says nothing about the receiver after it.
    subject.until(until + subject.precision).await;
    assert_eq!(subject.ask_for_slot(&permits[1]).await, SlotAnswer::NoRoom);
    subject.settle_answered(&permits[0], before).await;
    granted(subject.ask_for_slot(&permits[1]).await);
    assert_eq!(subject.ask_for_slot(&permits[2]).await, SlotAnswer::NoRoom);
    subject.settle(&permits[1]).await;
    granted(subject.ask_for_slot(&permits[2]).await);
    assert_eq!(subject.ask_for_slot(&permits[3]).await, SlotAnswer::NoRoom);
}

pub async fn a_slow_start_does_not_stop_at_a_probe_that_ends_without_an_answer(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 4, NextRun::Stop).await;
    let until = subject.clock.now() + SHORT;
    subject.hold(until, until - SHORT).await;
    let (first, _) = probe(&subject, &permits, until).await;
    subject.hand_back(first, false).await;
    let second = granted(subject.ask_for_slot(&permits[1]).await);
    // A probe that has missed its slot asks again, and has its room already.
    let second = granted(subject.ask_after_miss(&permits[1], second).await);
    subject.settle_answered(&permits[1], second.start).await;
    granted(subject.ask_for_slot(&permits[2]).await);
    granted(subject.ask_for_slot(&permits[3]).await);
}

pub async fn another_hold_begins_the_slow_start_again(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 4, NextRun::Stop).await;
    let until = subject.clock.now() + SHORT;
    subject.hold(until, until - SHORT).await;
    let (first, sent_at) = probe(&subject, &permits, until).await;
    subject.settle_answered(first, sent_at).await;
    let again = subject.clock.now() + SHORT;
    subject.hold(again, sent_at).await;
    subject.until(again + subject.precision).await;
    subject.slot(&permits[1]).await;
    assert_eq!(subject.ask_for_slot(&permits[2]).await, SlotAnswer::NoRoom);
}

pub async fn a_lease_reports_the_slow_start(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 1, NextRun::Now).await;
    let until = subject.clock.now() + SHORT;
    subject.hold(until, until - SHORT).await;
    let (first, sent_at) = probe(&subject, &permits, until).await;
    let lease = subject.claim().await;
    assert_eq!(lease.max_outstanding, Some(1));
    subject.settle_answered(first, sent_at).await;
    subject.publish(lease, RateLimits::UNLIMITED, 0, NextRun::Now).await;
    assert_eq!(subject.claim().await.max_outstanding, Some(2));
}
