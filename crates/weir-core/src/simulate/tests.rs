use proptest::prelude::*;

use super::*;
use crate::{Period, RateLimit};

const START: i64 = 1_800_000_000_000;

fn at(ms: u64) -> Timestamp {
    Timestamp::from_millis(START + ms as i64)
}

fn attempt(waited_ms: u32, duration_ms: u32, retried_after_ms: u32) -> PastAttempt {
    PastAttempt { waited_ms, duration_ms, retried_after_ms }
}

fn per_second(number: u32) -> RateLimit {
    RateLimit::new(number, Period::SECOND).unwrap()
}

fn trial(limit: u32) -> Trial {
    Trial {
        limits: RateLimits::new(vec![per_second(limit)]).unwrap(),
        max_in_flight: 1_000,
        scale: 1.0,
        repeats_failures: true,
        from: at(0),
        to: at(60_000),
    }
}

/// Deliveries that become due every `every` ms and are answered after 50 ms, as `limit` per second sent them.
fn recorded(count: u64, every: u64, limit: u32) -> Past {
    let spacing_us = u64::from(1_010_000 / limit);
    let mut past = Past::default();
    let mut free_us = 0;
    for i in 0..count {
        let start_us = (i * every * 1_000).max(free_us);
        free_us = start_us + spacing_us;
        let waited_ms = (start_us / 1_000 - i * every) as u32;
        past.push(at(i * every), None, Fate::Delivered, &[attempt(waited_ms, 50, 0)]);
    }
    past
}

#[test]
fn the_recorded_limit_reproduces_the_recorded_latency() {
    let past = recorded(1_000, 45, 20);
    let seen = simulate(&past, &trial(20));
    let (simulated, recorded) = (seen.audit.delivery_latency_ms, seen.recorded_latency_ms);
    for (simulated, recorded) in [(simulated.p50, recorded.p50), (simulated.p99, recorded.p99)] {
        let (simulated, recorded) = (simulated.unwrap(), recorded.unwrap());
        assert!((simulated - recorded).abs() <= (0.02 * recorded).max(20.0), "{simulated} {recorded}");
    }
    for Point { backlog, recorded_backlog, .. } in seen.series {
        assert!(backlog.abs_diff(recorded_backlog) <= 1, "{backlog} {recorded_backlog}");
    }
}

#[test]
fn a_limit_below_the_traffic_grows_and_a_limit_above_it_drains() {
    let past = recorded(1_200, 50, 50);
    let grows = simulate(&past, &trial(10));
    assert_eq!((grows.verdict, grows.deliveries), (Verdict::Grows, 1_200));
    // Twenty become due each second, and ten less a hundredth are sent.
    assert!((595..=610).contains(&grows.backlog_end), "{}", grows.backlog_end);
    assert_eq!(grows.series.last().unwrap().backlog, grows.backlog_end);
    let drains = simulate(&past, &trial(30));
    assert_eq!((drains.verdict, drains.backlog_end), (Verdict::Drains, 0));
    assert!(drains.audit.rate_limits[0].worst_sliding_window.unwrap().sends <= 30);
}

#[test]
fn the_smallest_limit_is_just_above_the_traffic() {
    let past = recorded(1_200, 50, 50);
    let found = smallest_limit(&past, &trial(1), per_second(1), ms(2_000)).unwrap();
    assert!((20..=21).contains(&found.limit.get()), "{found:?}");
    let doubled = Trial { scale: 2.0, ..trial(1) };
    let found = smallest_limit(&past, &doubled, per_second(1), ms(2_000)).unwrap();
    assert!((40..=42).contains(&found.limit.get()), "{found:?}");
    // No limit makes an answer quicker.
    assert_eq!(smallest_limit(&past, &trial(1), per_second(1), ms(10)), None);
}

#[test]
fn the_search_finds_the_smallest_limit_where_its_estimate_is_far_away() {
    // Each delivery is sent three times, so three times the limit is needed.
    let mut retried = Past::default();
    for i in (0..2_000).rev() {
        retried.push(at(i * 100), None, Fate::Delivered, &[attempt(0, 5, 50), attempt(0, 5, 50), attempt(0, 5, 0)]);
    }
    let found = smallest_limit(&retried, &trial(1), per_second(1), ms(2_000)).unwrap();
    assert!((30..=31).contains(&found.limit.get()), "{found:?}");
    // With one place in flight and answers of 50 ms, no limit is enough for 30 sends a second.
    let narrow = Trial { max_in_flight: 1, ..trial(1) };
    let slow = recorded(2_000, 30, 40);
    assert_eq!(smallest_limit(&slow, &narrow, per_second(1), ms(2_000)), None);
}

#[test]
fn a_retry_keeps_its_delay_after_the_simulated_failure() {
    let mut past = Past::default();
    past.push(at(0), None, Fate::Delivered, &[attempt(700, 100, 5_000), attempt(3_000, 200, 0)]);
    let seen = simulate(&past, &trial(10));
    assert_eq!((seen.deliveries, seen.audit.sends, seen.audit.delivery_latency_ms.max), (1, 2, Some(5_300.0)));
    assert_eq!(seen.recorded_latency_ms.max, Some(9_000.0));
    let once = simulate(&past, &Trial { repeats_failures: false, ..trial(10) });
    assert_eq!((once.audit.sends, once.audit.delivery_latency_ms.max), (1, Some(200.0)));
}

#[test]
fn of_deliveries_that_become_due_at_one_instant_the_first_goes_first() {
    let mut past = Past::default();
    for duration_ms in [50, 1_000] {
        past.push(at(0), None, Fate::Delivered, &[attempt(0, duration_ms, 0)]);
    }
    let longest = simulate(&past, &trial(1)).audit.delivery_latency_ms.max.unwrap();
    assert!((1_050.0..1_100.0).contains(&longest), "{longest}");
}

#[test]
fn requests_wait_for_a_place() {
    let mut past = Past::default();
    for _ in 0..10 {
        past.push(at(0), None, Fate::Delivered, &[attempt(0, 1_000, 0)]);
    }
    let seen = simulate(&past, &Trial { max_in_flight: 2, ..trial(100) });
    let longest = seen.audit.delivery_latency_ms.max.unwrap();
    assert!((5_000.0..5_100.0).contains(&longest), "{longest}");
}

#[test]
fn a_delivery_that_waits_too_long_expires() {
    let mut past = Past::default();
    for _ in 0..10 {
        past.push(at(0), Some(at(4_500)), Fate::Delivered, &[attempt(0, 1, 0)]);
    }
    let seen = simulate(&past, &trial(1));
    assert_eq!((seen.would_expire, seen.audit.sends, seen.backlog_end), (5, 5, 0));
}

/// What waits is taken to succeed, and nothing is sent before the range.
#[test]
fn a_backlog_from_before_the_range_is_sent_in_it() {
    let mut past = Past::default();
    for _ in 0..10 {
        past.push(at(0), None, Fate::Unsent, &[attempt(u32::MAX, 10, 0)]);
    }
    let seen = simulate(&past, &Trial { from: at(20_000), ..trial(1) });
    assert_eq!((seen.deliveries, seen.recorded_latency_ms.max), (10, None));
    assert_eq!((seen.series[0].recorded_backlog, seen.series[119].recorded_backlog), (10, 10));
    let longest = seen.audit.delivery_latency_ms.max.unwrap();
    assert!((29_000.0..29_200.0).contains(&longest), "{longest}");
}

/// A backlog that lasts longer than a [`Timestamp`] counts.
#[test]
fn a_limit_for_centuries_has_no_end() {
    let mut past = Past::default();
    for _ in 0..100_000 {
        past.push(at(0), None, Fate::Delivered, &[attempt(0, 10, 0)]);
    }
    let limits = RateLimits::new(vec![RateLimit::new(1, Period::DAY).unwrap()]).unwrap();
    let seen = simulate(&past, &Trial { limits, ..trial(1) });
    assert_eq!((seen.drained_at, seen.backlog_end, seen.verdict), (None, 99_999, Verdict::Drains));
}

#[test]
fn an_unlimited_destination_sends_at_once() {
    let seen = simulate(&recorded(100, 10, 1), &Trial { limits: RateLimits::default(), ..trial(1) });
    assert_eq!((seen.audit.delivery_latency_ms.max, seen.audit.rate_limits.len()), (Some(50.0), 0));
}

fn arbitrary_past() -> impl Strategy<Value = Past> {
    let one =
        (0_u32..3_000, 1_u32..3_000, 0_u32..20_000).prop_map(|(waited, took, delay)| attempt(waited, took, delay));
    let delivery = (0_u64..30_000, prop::collection::vec(one, 1..4));
    prop::collection::vec(delivery, 1..150).prop_map(|deliveries| {
        let mut past = Past::default();
        for (due, attempts) in deliveries {
            past.push(at(due), None, Fate::Delivered, &attempts);
        }
        past
    })
}

proptest! {
    /// With one send for each delivery the order is the same under each limit, so a larger limit delays nothing.
    #[test]
    fn latency_falls_when_the_limit_rises(
        past in arbitrary_past(),
        limit in 1_u32..50,
        more in 0_u32..50,
        places in 1_u32..20,
    ) {
        let with = |limit| {
            let trial = Trial { repeats_failures: false, max_in_flight: places, ..trial(limit) };
            simulate(&past, &trial).audit.delivery_latency_ms
        };
        let (small, large) = (with(limit), with(limit + more));
        let is_no_later = large.p50 <= small.p50 && large.p99 <= small.p99 && large.max <= small.max;
        prop_assert!(is_no_later, "{small:?} {large:?}");
    }

    #[test]
    fn the_audit_finds_no_violation(
        past in arbitrary_past(),
        limit in 1_u32..50,
        burst in 1_u32..10,
        places in 1_u32..20,
    ) {
        let limit = RateLimit::with_burst(limit, Period::SECOND, burst).unwrap();
        let limits = RateLimits::new(vec![limit, RateLimit::new(200, Period::MINUTE).unwrap()]).unwrap();
        let seen = simulate(&past, &Trial { limits, max_in_flight: places, ..trial(1) });
        prop_assert!(seen.audit.rate_limits.iter().all(|limit| limit.violations == 0), "{:?}", seen.audit.rate_limits);
        prop_assert!(seen.audit.sends >= past.len() as u64);
    }
}
