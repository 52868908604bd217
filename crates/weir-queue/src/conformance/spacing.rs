//! Minimum intervals between two sends, and margins of limits.
//!
//! The gap between two slots is checked without tolerance: a send may start anywhere in its slot.

use std::time::Duration;

use weir_core::{
    Limiter, Period, RateLimit, RateLimits, Slot, Timestamp, claim::ClaimedDelivery, limit::MinInterval, limiter::Ring,
    plan::NextRun,
};

use super::{SOON, Subject, granted, per_second, slots::start_of};
use crate::{Publication, SlotAnswer};

/// The same limits with a minimum interval.
fn spaced(limits: RateLimits, millis: u32) -> RateLimits {
    limits.with_min_interval(MinInterval::from_millis(millis))
}

/// Asserts that no send of the second slot can start within the interval after one of the first slot.
fn assert_apart(first: Slot, second: Slot, millis: u64) {
    let least = Duration::from_millis(millis);
    assert!(second.start >= first.end + least, "{second:?} is less than {least:?} after {first:?}");
}

pub async fn slots_of_a_minimum_interval_are_never_closer_than_it(subject: Subject) {
    // Neither a limit with a burst nor the lack of any limit undercuts it.
    let burst = RateLimits::new(RateLimit::with_burst(100, Period::SECOND, 9).into_iter().collect());
    for limits in [burst.expect("one limit"), RateLimits::UNLIMITED] {
        subject.edit(&spaced(limits.clone(), 80), false).await;
        let permits = subject.permits(spaced(limits, 80), 4, NextRun::Stop).await;
        let mut last = subject.slot(&permits[0]).await;
        subject.assert_wide(last, Duration::from_millis(5));
        for permit in &permits[1..] {
            let slot = subject.slot(permit).await;
            assert_apart(last, slot, 80);
            subject.assert_starts(slot.start, last.start + Duration::from_millis(85));
            last = slot;
        }
    }
}

pub async fn a_window_may_be_any_number_of_seconds(subject: Subject) {
    // 40 in 20 s, and 200 in 10 s: other slots than those of a second or a minute.
    for (limit, seconds) in [(40, 20), (200, 10)] {
        let period = Period::from_seconds(seconds).expect("at most a day");
        let limits = super::per(limit, period);
        let spacing = limits.as_slice()[0].spacing();
        subject.edit(&limits, false).await;
        let permits = subject.permits(limits, 3, NextRun::Stop).await;
        let mut last = subject.slot(&permits[0]).await;
        for permit in &permits[1..] {
            let slot = subject.slot(permit).await;
            subject.assert_starts(slot.start, last.start + spacing);
            assert!(slot.end.since(slot.start) <= period.widest_slot(), "{slot:?}");
            last = slot;
        }
    }
}

pub async fn permits_of_a_minimum_interval_carry_the_times_of_its_slots(subject: Subject) {
    let permits = subject.permits(spaced(RateLimits::UNLIMITED, 80), 3, NextRun::Now).await;
    let first = permits[0].expected_at.expect("a run paces its permits");
    for (permit, n) in permits.iter().zip(0..) {
        subject.assert_starts(permit.expected_at.expect("paced"), first + Duration::from_millis(85) * n);
    }
}

pub async fn a_minimum_interval_counts_from_the_last_slot_across_edits(subject: Subject) {
    let permits = subject.permits(RateLimits::UNLIMITED, 7, NextRun::Stop).await;
    let mut last = subject.slot(&permits[0]).await;
    // Set, raised, lowered, with a limit, removed and set again.
    let edits = [
        (spaced(RateLimits::UNLIMITED, 100), 100),
        (spaced(RateLimits::UNLIMITED, 300), 300),
        (spaced(RateLimits::UNLIMITED, 50), 50),
        (spaced(per_second(100), 150), 150),
        (per_second(100), 0),
        (spaced(per_second(100), 100), 100),
    ];
    for ((limits, millis), permit) in edits.into_iter().zip(&permits[1..]) {
        subject.edit(&limits, false).await;
        let slot = subject.slot(permit).await;
        assert_apart(last, slot, millis);
        last = slot;
    }
}

pub async fn a_missed_slot_of_a_minimum_interval_gives_its_time_back(subject: Subject) {
    let permits = subject.permits(spaced(RateLimits::UNLIMITED, 300), 2, NextRun::Stop).await;
    let first = subject.slot(&permits[0]).await;
    let missed = granted(subject.ask_after_miss(&permits[0], first).await);
    assert!(missed.start <= subject.clock.now() + subject.precision, "nothing was sent, so it starts at once");
    let last = granted(subject.ask_after_miss(&permits[0], missed).await);
    assert_apart(last, subject.slot(&permits[1]).await, 300);
}

pub async fn a_minimum_interval_counts_after_a_recovered_send_and_after_a_hold(subject: Subject) {
    let lease = subject.begin_run().await;
    let last_send = subject.clock.now();
    let terms = subject.terms(&spaced(RateLimits::UNLIMITED, 200));
    let recovered = Some(Limiter::recovered(&terms.limits, Some(last_send)));
    let deliveries = (0..3).map(|number| subject.delivery(number, SOON)).collect();
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
    let permits = subject.take(3).await;
    let first = subject.slot(&permits[0]).await;
    assert!(first.start + subject.precision >= last_send + Duration::from_millis(200));
    // A hold that ends within the interval, and one that ends after it. One send at a time follows a hold.
    subject.settle(&permits[0]).await;
    subject.hold_many(first.end + Duration::from_millis(100)).await;
    let second = subject.slot(&permits[1]).await;
    assert_apart(first, second, 200);
    subject.settle(&permits[1]).await;
    let until = second.end + Duration::from_millis(400);
    subject.hold_many(until).await;
    subject.assert_starts(subject.slot(&permits[2]).await.start, until);
}

pub async fn a_minimum_interval_survives_a_stop(subject: Subject) {
    let limits = spaced(RateLimits::UNLIMITED, 200);
    let first = subject.permits(limits.clone(), 1, NextRun::Stop).await;
    let slot = subject.slot(&first[0]).await;
    subject.settle(&first[0]).await;
    let second = subject.permits(limits, 1, NextRun::Stop).await;
    assert_apart(slot, subject.slot(&second[0]).await, 200);
}

pub async fn a_lease_has_the_margins_and_the_minimum_interval(subject: Subject) {
    let margin = RateLimit::new(10, Period::SECOND).and_then(|limit| limit.with_margin(50));
    let limits = spaced(RateLimits::new(margin.into_iter().collect()).expect("one limit"), 70);
    subject.permits(limits.clone(), 1, NextRun::Now).await;
    let cursors = subject.claim().await.cursors.expect("known");
    assert!(cursors.follows(&limits) && !cursors.follows(&per_second(10)));
}

pub async fn a_margin_makes_the_spacing_longer(subject: Subject) {
    let limit = |margin| RateLimit::new(10, Period::SECOND).and_then(|limit| limit.with_margin(margin));
    let limits = |margin| RateLimits::new(limit(margin).into_iter().collect()).expect("one limit");
    let permits = subject.permits(limits(50), 3, NextRun::Stop).await;
    let first = subject.slot(&permits[0]).await;
    let second = subject.slot(&permits[1]).await;
    subject.assert_starts(second.start, first.start + Duration::from_millis(106));
    subject.edit(&limits(1_000), false).await;
    let SlotAnswer::Later(start) = subject.ask_for_slot(&permits[2]).await else { panic!("it is 201 ms away") };
    subject.assert_starts(start, second.start + Duration::from_millis(201));
}

/// A limit of the window shape.
fn window(limit: u32, period: Period) -> RateLimits {
    let limit = RateLimit::new(limit, period).map(|limit| limit.as_window());
    RateLimits::new(limit.into_iter().collect()).expect("one limit")
}

pub async fn a_window_lets_its_sends_start_at_once_and_keeps_them_across_edits(subject: Subject) {
    let window = |limit| window(limit, Period::SECOND);
    let permits = subject.permits(window(3), 5, NextRun::Stop).await;
    let first = granted(subject.ask_for_slot(&permits[0]).await);
    for permit in &permits[1..3] {
        granted(subject.ask_for_slot(permit).await);
    }
    // The next one starts a window after the end of the first, and less than two buckets later: in this shape or evenly.
    let least = first.end + Period::SECOND.window();
    let assert_next = |start: Timestamp| {
        let most = (least + Duration::from_millis(4)).max(subject.clock.now());
        assert!(start + subject.precision >= least && start <= most + subject.precision, "{start:?} {least:?}");
    };
    for limits in [window(3), per_second(3), window(3)] {
        subject.edit(&limits, false).await;
        assert_next(start_of(subject.ask_for_slot(&permits[3]).await));
    }
    let cursors = subject.begin_run().await.cursors.expect("known");
    assert!(cursors.follows(&window(3)), "{cursors:?}");
    assert_next(cursors.next_start(first.start));
    // One more is free at once, and nothing that was sent is forgotten.
    subject.edit(&window(4), false).await;
    granted(subject.ask_for_slot(&permits[3]).await);
    let fifth = subject.slot(&permits[4]).await;
    assert!(fifth.start + subject.precision >= least, "{fifth:?}");
}

pub async fn a_slot_under_a_limit_in_costs_takes_the_cost_of_its_event(subject: Subject) {
    let points = |limit: u32| {
        let limit = RateLimit::new(limit, Period::SECOND).and_then(RateLimit::in_costs);
        RateLimits::new(limit.into_iter().collect()).expect("one limit")
    };
    let costs = [60, 40, 80, 1, 90];
    let delivery = |(number, cost)| ClaimedDelivery { cost, ..subject.delivery(number, SOON) };
    let deliveries = (0..).zip(costs).map(delivery).collect();
    let lease = subject.begin_run().await;
    subject.publish_these(lease, points(100), deliveries, NextRun::Stop).await;
    let permits = subject.take(5).await;
    assert_eq!(permits.iter().map(|permit| permit.delivery.cost).collect::<Vec<_>>(), costs);
    let first = granted(subject.ask_for_slot(&permits[0]).await);
    let second = granted(subject.ask_for_slot(&permits[1]).await);
    // The window is full; what waits for the room of both is not overtaken by what would fit before.
    let least = |slot: Slot| slot.end + Period::SECOND.window() - subject.precision;
    assert!(start_of(subject.ask_for_slot(&permits[2]).await) >= least(second));
    assert!(start_of(subject.ask_for_slot(&permits[3]).await) >= least(first));
    // Nobody owes a slot to what would fit before.
    let progress = subject.progress().await.0;
    assert!(progress.next_start.expect("known") >= least(second), "{progress:?}");
    assert!(subject.slot(&permits[2]).await.start >= least(second));
    granted(subject.ask_for_slot(&permits[3]).await);
    let cursors = subject.begin_run().await.cursors.expect("known");
    assert!(cursors.follows(&points(100)), "{cursors:?}");
    assert!(cursors.next_start_of(20, second.start) > cursors.next_start_of(19, second.start));
    // What costs more than a lowered limit is never granted, and does not hold up what does not.
    subject.edit(&points(89), false).await;
    assert_eq!(subject.ask_for_slot(&permits[4]).await, SlotAnswer::AboveLimit);
}

pub async fn a_window_continues_from_what_is_recorded(subject: Subject) {
    let lease = subject.begin_run().await;
    let terms = subject.terms(&window(3, Period::MINUTE));
    let limit = terms.limits.as_slice()[0];
    let sent_at = subject.clock.now() - Duration::from_secs(59);
    let mut limiter = Limiter::recovered(&terms.limits, Some(sent_at));
    let mut ring = Ring::new(limit);
    ring.count(sent_at, 2);
    limiter.recall(ring);
    let recovered = Some(limiter);
    let deliveries = (0..2).map(|number| subject.delivery(number, SOON)).collect();
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
    let permits = subject.take(2).await;
    granted(subject.ask_for_slot(&permits[0]).await);
    let next = subject.slot(&permits[1]).await;
    assert!(next.start + subject.precision >= sent_at + Period::MINUTE.window(), "{next:?}");
}
