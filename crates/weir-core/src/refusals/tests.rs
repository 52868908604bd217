//! Receivers as they are found in the world, with the sends of Weir's limiter before them.

use proptest::prelude::*;

use super::*;
use crate::limiter::Limiter;

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

/// Windows with and without a name.
const PERIODS: [Period; 7] =
    [Period::SECOND, Period::MINUTE, Period::HOUR, Period::DAY, seconds(2), seconds(10), seconds(7_200)];

const fn seconds(seconds: u32) -> Period {
    Period::from_seconds(seconds).unwrap()
}

fn limits(limit: u32, period: Period) -> RateLimits {
    RateLimits::new(RateLimit::new(limit, period).into_iter().collect()).unwrap()
}

/// A number that looks random, 0 to 1, for a step of a test.
fn chance(step: usize, salt: u64) -> f64 {
    let mixed = (step as u64).wrapping_add(salt << 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ (mixed >> 32)) % 10_000) as f64 / 10_000.0
}

/// Sends under a backlog: each starts anywhere in its slot.
fn starts(limits: &RateLimits, count: usize) -> Vec<Timestamp> {
    let mut limiter = Limiter::new(limits);
    let mut now = NOW;
    let slots = (0..count).map(|step| {
        let slot = limiter.take(now);
        now = slot.start;
        slot.start + slot.end.since(slot.start).mul_f64(chance(step, 1) * 0.99)
    });
    let mut starts: Vec<_> = slots.collect();
    starts.sort_unstable();
    starts
}

/// What a receiver makes of sends that arrive after `delay`.
fn judged(
    starts: &[Timestamp],
    delay: impl Fn(usize) -> Duration,
    mut admits: impl FnMut(Timestamp) -> bool,
) -> Vec<JudgedSend> {
    let send = |(step, &at): (usize, &Timestamp)| JudgedSend { at, is_refused: !admits(at + delay(step)) };
    starts.iter().enumerate().map(send).collect()
}

/// A receiver with a sliding log of what it admitted.
fn sliding(most: usize, window: Duration) -> impl FnMut(Timestamp) -> bool {
    let mut admitted: Vec<Timestamp> = Vec::new();
    move |at| {
        admitted.retain(|before| at.since(*before) < window);
        let admits = admitted.len() < most;
        if admits {
            admitted.push(at);
        }
        admits
    }
}

/// A receiver that wants a least time after the last send that it admitted.
fn spaced(interval: Duration) -> impl FnMut(Timestamp) -> bool {
    let mut last = Timestamp::MIN;
    move |at| {
        let admits = at.since(last) >= interval;
        if admits {
            last = at;
        }
        admits
    }
}

/// A receiver whose windows begin with the calendar.
fn fixed(most: u32, window: Duration) -> impl FnMut(Timestamp) -> bool {
    let (mut begin, mut count) = (Timestamp::MIN, 0);
    move |at| {
        if at.floor(window) != begin {
            (begin, count) = (at.floor(window), 0);
        }
        count += 1;
        count <= most
    }
}

fn no_delay(_: usize) -> Duration {
    Duration::ZERO
}

fn up_to_50_ms(step: usize) -> Duration {
    Duration::from_millis(50).mul_f64(chance(step, 2))
}

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn a_receiver_with_a_least_time_between_two_sends_is_diagnosed_as_spacing() {
    for (limit, period, interval_ms) in
        [(2, Period::SECOND, 510), (10, Period::SECOND, 102), (100, Period::SECOND, 11), (60, Period::MINUTE, 1_020)]
    {
        let limits = limits(limit, period);
        let interval = period.window() / limit;
        let sends = judged(&starts(&limits, 400), no_delay, spaced(interval));
        let found = diagnose(&limits, &sends).unwrap();
        assert_eq!((found.cause, found.sends), (Cause::Spacing, 400), "{limit} per {period:?}: {found:?}");
        assert_eq!(found.remedy, Remedy::Interval { min_interval_ms: interval_ms });
    }
}

#[test]
fn a_moving_window_behind_a_network_with_jitter_is_diagnosed_as_jitter() {
    for (limit, period, margin_ms) in [(1, Period::SECOND, 50), (2, Period::SECOND, 50), (10, Period::SECOND, 50)] {
        let limits = limits(limit, period);
        let sends = judged(&starts(&limits, 600), up_to_50_ms, sliding(limit as usize, period.window()));
        let found = diagnose(&limits, &sends).unwrap();
        assert_eq!(found.cause, Cause::Jitter, "{limit} per {period:?}: {found:?}");
        assert_eq!(found.remedy, Remedy::Margin { period, margin_ms });
    }
}

#[test]
fn a_receiver_that_admits_fewer_is_diagnosed_as_a_lower_limit_with_what_it_admits() {
    let ten = limits(10, Period::SECOND);
    let starts = starts(&ten, 300);
    for most in [2, 5, 7] {
        let seen: [Vec<JudgedSend>; 2] =
            [judged(&starts, no_delay, sliding(most as usize, SECOND)), judged(&starts, no_delay, fixed(most, SECOND))];
        for sends in seen {
            let found = diagnose(&ten, &sends).unwrap();
            assert_eq!(found.cause, Cause::LowerLimit, "{most}: {found:?}");
            assert_eq!(found.remedy, Remedy::Limit { limit: most, period: Period::SECOND }, "{found:?}");
        }
    }
    let minute = judged(&starts, no_delay, sliding(20, Duration::from_secs(60)));
    // Of the sends of half a minute, no refusal has a whole minute before it.
    assert_eq!(diagnose(&ten, &minute).map(|found| found.cause), None);
    let longer = judged(&super::tests::starts(&ten, 1_500), no_delay, sliding(20, Duration::from_secs(60)));
    let found = diagnose(&ten, &longer).unwrap();
    assert_eq!(found.remedy, Remedy::Limit { limit: 20, period: Period::MINUTE });
}

#[test]
fn a_destination_without_a_limit_gets_the_one_that_its_receiver_admits() {
    let starts: Vec<_> = (0..200).map(|step| NOW + Duration::from_millis(30 * step)).collect();
    let sends = judged(&starts, no_delay, sliding(2, SECOND));
    let found = diagnose(&RateLimits::UNLIMITED, &sends).unwrap();
    assert_eq!((found.cause, found.remedy), (Cause::LowerLimit, Remedy::Limit { limit: 2, period: Period::SECOND }));
    assert!(found.sentence().ends_with("it admits fewer sends than the limit; set a limit of 2 per second"));
}

#[test]
fn few_refusals_and_sends_beyond_the_limit_are_not_diagnosed() {
    let ten = limits(10, Period::SECOND);
    let mut sends = judged(&starts(&ten, 1_000), no_delay, |_| true);
    assert_eq!(diagnose(&ten, &sends), None);
    sends[500].is_refused = true;
    sends[700].is_refused = true;
    assert_eq!(diagnose(&ten, &sends), None, "two of them");
    for at in [100, 200, 300] {
        sends[at].is_refused = true;
    }
    assert!(diagnose(&ten, &sends).is_some());
    assert_eq!(diagnose(&limits(9, Period::SECOND), &sends), None, "they do not keep this limit");
    assert_eq!(diagnose(&ten, &[]), None);
}

proptest! {
    #[test]
    fn any_sends_are_diagnosed_without_a_panic_and_never_with_more_than_the_limit(
        gaps in prop::collection::vec((0_u64..3_000, any::<bool>()), 0..200), limit in 1_u32..50, period in 0..PERIODS.len(),
    ) {
        let limits = limits(limit, PERIODS[period]);
        let mut at = NOW;
        let sends: Vec<_> = gaps.iter().map(|&(gap, is_refused)| {
            at = at + Duration::from_millis(gap);
            JudgedSend { at, is_refused }
        }).collect();
        for limits in [&limits, &RateLimits::UNLIMITED] {
            if let Some(found) = diagnose(limits, &sends) {
                prop_assert!(found.refused as usize >= FEWEST && found.refused <= found.sends);
                if let (Remedy::Limit { limit: advised, period }, Some(own)) = (found.remedy, limits.as_slice().first()) {
                    prop_assert!(advised >= 1 && (period != own.period || advised < own.limit.get().max(2)));
                }
            }
        }
    }
}
