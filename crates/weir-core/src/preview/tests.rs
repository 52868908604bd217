use proptest::prelude::*;

use super::*;
use crate::limit::{Period, RateLimit, RateLimits};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);

fn limits(of: &[(u32, Period, u32)]) -> RateLimits {
    RateLimits::new(of.iter().map(|&(r, w, b)| RateLimit::with_burst(r, w, b).unwrap()).collect()).unwrap()
}

/// A destination that has just sent, so no burst is left.
fn busy(of: &[(u32, Period, u32)]) -> Limiter {
    Limiter::recovered(&limits(of), Some(NOW))
}

fn drained_in(forecast: &Forecast, waiting: u64, inflow_per_s: f64) -> Option<f64> {
    forecast.drain(waiting, inflow_per_s).after().map(|time| (time.as_secs_f64() * 1_000.0).round() / 1_000.0)
}

#[test]
fn a_backlog_is_sent_at_the_spacing_of_the_limit() {
    let forecast = Forecast::new(&busy(&[(10, Period::SECOND, 1)]), None, NOW);
    assert_eq!(drained_in(&forecast, 100, 0.0), Some(10.1));
    // Half of the slots are taken by new deliveries.
    assert_eq!(drained_in(&forecast, 100, 5.0), Some(20.503));
    assert_eq!(forecast.drain(100, 10.0), Drain::Never);
    assert_eq!(forecast.drain(0, 1_000.0), Drain::After(Duration::ZERO));
    assert_eq!(forecast.bound(), Some(Bound::Limit(RateLimit::new(10, Period::SECOND).unwrap())));
}

#[test]
fn the_strictest_bound_decides_and_max_in_flight_is_one() {
    let limits = [(100, Period::SECOND, 1), (600, Period::MINUTE, 1)];
    let answers = |max_in_flight, ms| Some(Answers { max_in_flight, time: Duration::from_millis(ms) });
    for (answers, expected, per_second) in [
        (None, Bound::Limit(RateLimit::new(600, Period::MINUTE).unwrap()), 9.983),
        (answers(64, 50), Bound::Limit(RateLimit::new(600, Period::MINUTE).unwrap()), 9.983),
        (answers(4, 1_000), Bound::MaxInFlight, 4.0),
    ] {
        let forecast = Forecast::new(&busy(&limits), answers, NOW);
        assert_eq!(forecast.bound(), Some(expected));
        assert!((forecast.per_second().unwrap() - per_second).abs() < 0.001, "{forecast:?}");
    }
    let unlimited = Forecast::new(&Limiter::new(&RateLimits::UNLIMITED), answers(10, 100), NOW);
    assert_eq!((unlimited.bound(), drained_in(&unlimited, 1_000, 0.0)), (Some(Bound::MaxInFlight), Some(10.0)));
}

#[test]
fn without_a_known_bound_nothing_is_forecast() {
    let forecast = Forecast::new(&Limiter::new(&RateLimits::UNLIMITED), None, NOW);
    assert_eq!((forecast.per_second(), forecast.bound(), forecast.drain(1, 0.0)), (None, None, Drain::Unknown));
    assert_eq!((Drain::Unknown.is_expected(), Drain::Never.is_expected()), (None, Some(false)));
}

#[test]
fn after_an_override_the_backlog_is_sent_by_the_limit_below() {
    let end = NOW + Duration::from_secs(10);
    let over = |during, below| {
        let then = Forecast::new(&Limiter::recovered(&limits(&[(below, Period::SECOND, 1)]), Some(end)), None, end);
        Forecast::new(&busy(&[(during, Period::SECOND, 1)]), None, NOW).until(end, then)
    };
    // 495 are sent in ten seconds, and the others at 10/s or 100/s.
    assert_eq!(drained_in(&over(50, 10), 490, 0.0), Some(9.898));
    assert_eq!(drained_in(&over(50, 10), 595, 0.0), Some(20.1));
    assert_eq!(over(50, 10).start_of(505), end + Duration::from_millis(1_010));
    assert_eq!(over(50, 10).drain(595, 20.0), Drain::Never);
    assert_eq!(drained_in(&over(5, 100), 1_049, 0.0), Some(20.1));
    // More arrives than is sent until the end, and less afterwards.
    assert!(over(5, 100).drain(1_000, 50.0).after().is_some_and(|after| after > Duration::from_secs(25)));
    assert_eq!(over(50, 10).per_second().map(f64::round), Some(50.0));
}

#[test]
fn a_hold_delays_the_whole_drain() {
    let mut limiter = busy(&[(10, Period::SECOND, 1)]);
    limiter.hold(NOW + Duration::from_secs(60));
    assert_eq!(drained_in(&Forecast::new(&limiter, None, NOW), 100, 0.0), Some(69.999));
    let mut unlimited = Limiter::new(&RateLimits::UNLIMITED);
    unlimited.hold(NOW + Duration::from_secs(60));
    let answers = Answers { max_in_flight: 1, time: Duration::from_secs(1) };
    assert_eq!(drained_in(&Forecast::new(&unlimited, Some(answers), NOW), 5, 0.0), Some(65.0));
}

#[test]
fn a_burst_can_drain_a_small_backlog_even_if_the_inflow_is_above_the_limit() {
    let idle = Limiter::new(&limits(&[(1, Period::SECOND, 50)]));
    let forecast = Forecast::new(&idle, None, NOW);
    assert_eq!(forecast.drain(50, 2.0), Drain::After(Duration::ZERO));
    assert_eq!(forecast.drain(60, 2.0), Drain::Never);
    assert_eq!(Forecast::new(&busy(&[(1, Period::SECOND, 50)]), None, NOW).drain(50, 2.0), Drain::Never);
}

#[test]
fn deliveries_that_arrived_at_once_are_no_inflow() {
    assert_eq!([(0.0, 300.0), (300.0, 0.0), (2.0, 10.0)].map(|(a, b)| steady_inflow(a, b)), [0.0, 0.0, 2.0]);
}

#[test]
fn the_first_expiry_is_where_the_sends_fall_behind_the_expiries() {
    let forecast = Forecast::new(&busy(&[(10, Period::SECOND, 1)]), None, NOW);
    let at = |seconds: u64| NOW + Duration::from_secs(seconds);
    // 1,000 deliveries take 101 s.
    let first = |oldest, newest| forecast.first_expiry(1_000, Expiries { oldest: at(oldest), newest: at(newest) });
    assert_eq!(first(10, 102), None);
    assert_eq!(first(0, 200), Some(at(0)));
    // They came at 20/s, and each may wait 60 s: the first that is late is sent after 30 s more than the oldest had.
    let expiry = first(20, 70).unwrap().since(NOW).as_secs_f64();
    assert!((39.0..40.5).contains(&expiry), "{expiry}");
    assert_eq!(forecast.first_expiry(1, Expiries { oldest: at(1), newest: at(1) }), None);
    assert_eq!(forecast.first_expiry(0, Expiries { oldest: at(0), newest: at(0) }), None);
    assert_eq!(
        Forecast::new(&Limiter::new(&RateLimits::UNLIMITED), None, NOW)
            .first_expiry(9, Expiries { oldest: at(1), newest: at(1) }),
        None
    );
}

/// Sends slot by slot with the real limiter, and returns the start of the slot after which nothing waits; `None` if
/// that takes more than `max` slots.
fn drained_by(limiter: &Limiter, waiting: u64, inflow_per_s: f64, max: u64) -> Option<Timestamp> {
    let (mut limiter, mut now) = (limiter.clone(), NOW);
    (1..=max).find_map(|sent| {
        now = limiter.take(now).start;
        let arrived = (inflow_per_s * now.since(NOW).as_secs_f64()) as u64;
        (sent >= waiting + arrived).then_some(now)
    })
}

fn arbitrary_limits() -> impl Strategy<Value = RateLimits> {
    let limit = |period| {
        proptest::option::of((1u32..2_000, 1u32..50).prop_map(move |(limit, burst)| {
            // Limits of comparable rates, so that they bind in turn.
            RateLimit::with_burst(limit.saturating_mul(period_factor(period)), period, burst).unwrap()
        }))
    };
    let all = (limit(Period::SECOND), limit(Period::MINUTE), limit(Period::HOUR));
    all.prop_filter_map("at least one limit", |(second, minute, hour)| {
        let limits: Vec<_> = [second, minute, hour].into_iter().flatten().collect();
        (!limits.is_empty()).then(|| RateLimits::new(limits).unwrap())
    })
}

fn period_factor(period: Period) -> u32 {
    match period {
        Period::SECOND => 1,
        Period::MINUTE => 20,
        _ => 400,
    }
}

proptest! {
    #[test]
    fn the_forecast_equals_the_slots_that_the_limiter_hands_out(
        limits in arbitrary_limits(),
        taken in 0u32..100,
        hold_ms in prop_oneof![Just(0u64), 1u64..5_000],
        waiting in 1u64..1_500,
        load in prop_oneof![Just(0.0), 0.0f64..0.9],
    ) {
        // Some slots were taken before.
        let mut limiter = Limiter::new(&limits);
        let mut before = NOW - Duration::from_secs(1);
        for _ in 0..taken {
            before = limiter.take(before).start;
            if before >= NOW {
                break;
            }
        }
        limiter.hold(NOW + Duration::from_millis(hold_ms));
        let forecast = Forecast::new(&limiter, None, NOW);
        let inflow_per_s = load * forecast.per_second().unwrap();
        let tolerance = limits.as_slice().iter().map(RateLimit::spacing).sum::<Duration>() + Duration::from_micros(1);
        let real = drained_by(&limiter, waiting, inflow_per_s, 1_000_000).unwrap();
        let forecast = NOW + forecast.drain(waiting, inflow_per_s).after().unwrap();
        // A delivery that arrives within the tolerance around the end is part of the backlog in one of the two
        // calculations only. It moves the end by more than the tolerance.
        let allowed = if load == 0.0 { tolerance } else { tolerance.mul_f64(1.0 + 2.0 / (1.0 - load)) };
        let apart = forecast.since(real).max(real.since(forecast));
        prop_assert!(apart <= allowed, "{:?}, {:?}, {allowed:?}", forecast.since(NOW), real.since(NOW));
    }

    #[test]
    fn a_backlog_never_drains_if_more_arrives_than_the_limits_allow(
        limits in arbitrary_limits(),
        waiting in 10u64..1_500,
        load in 1.1f64..3.0,
    ) {
        let limiter = Limiter::recovered(&limits, Some(NOW));
        let forecast = Forecast::new(&limiter, None, NOW);
        let inflow_per_s = load * forecast.per_second().unwrap();
        prop_assert_eq!(forecast.drain(waiting, inflow_per_s), Drain::Never);
        prop_assert_eq!(drained_by(&limiter, waiting, inflow_per_s, 10_000), None);
    }

    #[test]
    fn the_start_of_a_send_is_the_estimate_of_the_limiter(limits in arbitrary_limits(), n in 1u32..10_000) {
        let limiter = Limiter::recovered(&limits, Some(NOW));
        let expected = limiter.start_after(n - 1, NOW);
        let start = Forecast::new(&limiter, None, NOW).start_of(n.into());
        prop_assert!(start.since(expected).max(expected.since(start)) < Duration::from_micros(10));
    }
}
