use super::*;
use crate::{
    Period, RateLimit,
    hints::{UsedUp, Wait},
};

const NOW: Timestamp = Timestamp::from_secs(1_000_000);
const SECOND: Duration = Duration::from_secs(1);
/// Nearly all requests are accepted.
const RARE: RefusalTrend = RefusalTrend { are_rare: true, lasts: Duration::ZERO };
const OFTEN: RefusalTrend = RefusalTrend { are_rare: false, lasts: Duration::ZERO };

/// The first attempt of a delivery that was created now.
fn circumstances<'c>(policy: &'c RetryPolicy, limits: &'c RateLimits, refusals: RefusalTrend) -> Circumstances<'c> {
    let (is_adaptive, jitter) = (false, 0.5);
    Circumstances { policy, limits, is_adaptive, attempt: 1, created_at: NOW, now: NOW, jitter, refusals }
}

fn judged_with(result: &SendResult, limits: &RateLimits, refusals: RefusalTrend) -> Decision {
    judge(result, &circumstances(&RetryPolicy::default(), limits, refusals))
}

fn judged(result: &SendResult) -> Decision {
    judged_with(result, &RateLimits::UNLIMITED, OFTEN)
}

fn limit(limit: u32, period: Period) -> RateLimits {
    RateLimits::new(vec![RateLimit::new(limit, period).unwrap()]).unwrap()
}

/// An answer with these headers.
fn answer(status: u16, headers: &[(&str, &str)]) -> SendResult {
    let headers = headers.iter().map(|(name, value)| (*name, value.as_bytes()));
    SendResult::Answer { status, hints: Hints::read(headers, NOW) }
}

/// For how long the destination is held, and which header asked for it.
fn hold(effect: &Effect) -> Option<(Duration, &str)> {
    match effect {
        Effect::Hold(hold) => Some((hold.until.since(NOW), &hold.header)),
        Effect::None => None,
        Effect::Pause => panic!("paused"),
    }
}

fn held_ms(effect: &Effect) -> Option<u128> {
    hold(effect).map(|(delay, _)| delay.as_millis())
}

fn retried_after(decision: &Decision) -> Duration {
    let Verdict::Retry { at } = decision.verdict else { panic!("{:?}", decision.verdict) };
    at.since(NOW)
}

#[test]
fn the_status_decides_between_delivered_retry_and_failed() {
    for status in [200, 201, 204, 299] {
        assert_eq!(judged(&answer(status, &[])).verdict, Verdict::Delivered, "{status}");
    }
    for status in [408, 425, 429, 500, 502, 503, 504, 599] {
        assert_eq!(retried_after(&judged(&answer(status, &[]))), 5 * SECOND, "{status}");
    }
    for status in [100, 300, 301, 302, 304, 307, 400, 401, 403, 404, 409, 410, 422] {
        assert_eq!(judged(&answer(status, &[])).verdict, Verdict::Failed, "{status}");
    }
    for failure in Failure::ALL {
        assert_eq!(retried_after(&judged(&SendResult::Failure(failure))), 5 * SECOND, "{failure:?}");
    }
}

#[test]
fn gone_pauses_the_destination() {
    assert_eq!(judged(&answer(410, &[])).effect, Effect::Pause);
    assert_eq!(judged(&answer(410, &[("retry-after", "60")])).effect, Effect::Pause);
    assert_eq!(judged(&answer(404, &[])).effect, Effect::None);
}

#[test]
fn a_refusal_with_a_wait_holds_the_destination_for_an_hour_at_most() {
    for status in [403, 429, 503] {
        let asked = |value| judged(&answer(status, &[("retry-after", value)]));
        let minute = asked("60");
        assert_eq!(hold(&minute.effect), Some((60 * SECOND, "retry-after: 60")), "{status}");
        assert_eq!((retried_after(&minute), minute.outcome), (60 * SECOND, AttemptOutcome::Retryable), "{status}");
        for far in ["1000000", "99999999999999999999999", "Fri, 31 Dec 2100 23:59:59 GMT"] {
            assert_eq!(hold(&asked(far).effect).unwrap().0, MAX_HOLD, "{status} {far}");
        }
    }
    for status in [200, 404, 500] {
        assert_eq!(judged(&answer(status, &[("retry-after", "60")])).effect, Effect::None, "{status}");
    }
}

#[test]
fn a_refusal_is_retried_when_the_receiver_says_and_another_failure_not_before_its_own_delay() {
    assert_eq!(retried_after(&judged(&answer(429, &[("retry-after", "2")]))), 2 * SECOND);
    assert_eq!(retried_after(&judged(&answer(503, &[("retry-after", "2")]))), 5 * SECOND);
}

/// GitHub answers its limits with 403.
#[test]
fn a_403_with_a_used_up_quota_is_retried_and_one_without_is_not() {
    let used_up = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")];
    let refused = judged(&answer(403, &used_up));
    assert_eq!((retried_after(&refused), refused.refusal), (60 * SECOND, Some(Refusal::TooMany)));
    assert_eq!(hold(&refused.effect), Some((60 * SECOND, "x-ratelimit-reset: 60")));
    let left = [("x-ratelimit-remaining", "1"), ("x-ratelimit-reset", "60")];
    assert_eq!(judged(&answer(403, &left)).verdict, Verdict::Failed);
    assert_eq!(judged(&answer(403, &[("retry-after", "soon")])).verdict, Verdict::Failed);
}

#[test]
fn a_refusal_holds_for_the_longer_of_retry_after_and_quota() {
    let quota = [("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", "60")];
    let both = |seconds| judged(&answer(429, &[quota[0], quota[1], ("retry-after", seconds)])).effect;
    assert_eq!(hold(&both("30")), Some((60 * SECOND, "x-ratelimit-reset: 60")));
    assert_eq!(hold(&both("90")), Some((90 * SECOND, "retry-after: 90")));
    assert_eq!(hold(&both("60")), Some((60 * SECOND, "retry-after: 60")));
    let guess = [("ratelimit", r#""a";r=0"#), ("ratelimit-policy", r#""a";q=9;w=30"#), ("retry-after", "2")];
    assert_eq!(held_ms(&judged(&answer(429, &guess)).effect), Some(2_000), "the window is no time that was named");
    assert_eq!(held_ms(&judged(&answer(429, &guess[..2])).effect), Some(30_000));
}

#[test]
fn a_reset_alone_counts_only_on_a_refusal_without_another_hint() {
    let reset = ("x-ratelimit-reset-after", "5.5");
    let refused = judged(&answer(429, &[reset]));
    assert_eq!(hold(&refused.effect), Some((Duration::from_millis(5_500), "x-ratelimit-reset-after: 5.5")));
    assert_eq!(held_ms(&judged(&answer(429, &[reset, ("retry-after", "2")])).effect), Some(2_000));
    assert_eq!(held_ms(&judged(&answer(429, &[reset, ("x-ratelimit-remaining", "3")])).effect), Some(1_000));
    assert_eq!(judged(&answer(200, &[reset])).effect, Effect::None);
    assert_eq!(judged(&answer(403, &[reset])).verdict, Verdict::Failed);
}

#[test]
fn a_finer_hint_wins_over_one_that_is_the_same_rounded_up() {
    let table = [
        ("1", ("x-retry-in", "7.8ms"), 7),
        ("1", ("retry-after-ms", "400"), 400),
        ("2", ("x-retry-in", "1.2s"), 1_200),
        ("2", ("x-retry-in", "7.8ms"), 2_000),
        ("1", ("x-retry-in", "3.5s"), 3_500),
        ("65", ("retry-after", "64.57"), 64_570),
        ("2.5", ("retry-after-ms", "400"), 2_500),
    ];
    for (seconds, finer, expected) in table {
        let decision = judged(&answer(429, &[("retry-after", seconds), finer]));
        assert_eq!(held_ms(&decision.effect), Some(expected), "{seconds} {finer:?}");
        assert_eq!(retried_after(&decision).as_millis(), expected, "{seconds} {finer:?}");
    }
    let of_quota = [("retry-after", "65"), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset-after", "64.57")];
    assert_eq!(held_ms(&judged(&answer(429, &of_quota)).effect), Some(64_570));
}

#[test]
fn under_our_own_limit_a_rare_refusal_costs_at_most_the_spacing() {
    let second = answer(429, &[("retry-after", "1")]);
    let hundred = limit(100, Period::SECOND);
    let rare = judged_with(&second, &hundred, RARE);
    assert_eq!(rare.effect, Effect::None, "the limit keeps its spacing anyway");
    assert_eq!(retried_after(&rare), SECOND, "the delivery waits");
    assert_eq!(held_ms(&judged_with(&second, &hundred, OFTEN).effect), Some(1_000));
    assert_eq!(held_ms(&judged_with(&second, &RateLimits::UNLIMITED, RARE).effect), Some(1_000));
    // With a burst the limit does not keep the spacing.
    let burst = RateLimits::new(vec![RateLimit::with_burst(100, Period::SECOND, 5).unwrap()]).unwrap();
    assert_eq!(held_ms(&judged_with(&second, &burst, RARE).effect), Some(10));
    // More than rounding.
    for (value, expected) in [("2", 2_000), ("1.0", 1_000), ("500ms", 500)] {
        let hold = held_ms(&judged_with(&answer(429, &[("retry-after", value)]), &hundred, RARE).effect);
        assert_eq!(hold, Some(expected), "{value}");
    }
    // Traefik: the hint is shorter than the spacing, however many refusals there are.
    let traefik = answer(429, &[("retry-after", "1"), ("x-retry-in", "7.8ms")]);
    assert_eq!(judged_with(&traefik, &hundred, OFTEN).effect, Effect::None);
    // A limit of one a minute waits longer anyway.
    let slow = judged_with(&answer(429, &[("retry-after", "37")]), &limit(1, Period::MINUTE), OFTEN);
    assert_eq!(slow.effect, Effect::None);
}

#[test]
fn a_destination_that_refuses_everything_is_asked_less_often() {
    let held = |retry_after, secs| {
        let lasting = RefusalTrend { are_rare: false, lasts: Duration::from_secs(secs) };
        let decision = judged_with(&answer(429, &[("retry-after", retry_after)]), &RateLimits::UNLIMITED, lasting);
        let held = held_ms(&decision.effect).unwrap();
        assert_eq!(retried_after(&decision).as_millis(), held, "the delivery waits for the end of the hold");
        held
    };
    assert_eq!([0, 2, 4, 8, 20, 4_000].map(|secs| held("1", secs)), [1_000, 1_000, 1_500, 3_000, 7_500, 7_500]);
    assert_eq!(held("60", 4_000), 60_000, "a longer wait is kept as it is");
}

#[test]
fn a_refusal_without_a_wait_holds_an_unlimited_destination_for_a_second() {
    for headers in [&[][..], &[("retry-after", "0")], &[("retry-after", "soon")]] {
        let decision = judged(&answer(429, headers));
        assert_eq!(hold(&decision.effect), Some((SECOND, "429 without a time")), "{headers:?}");
        assert_eq!(retried_after(&decision), 5 * SECOND, "its own delay is longer");
    }
    assert_eq!(judged(&answer(503, &[("retry-after", "0")])).effect, Effect::None);
    let lasting = |secs: u64| RefusalTrend { are_rare: false, lasts: Duration::from_secs(secs) };
    let held = |limits: &RateLimits, secs| held_ms(&judged_with(&answer(429, &[]), limits, lasting(secs)).effect);
    let ten = limit(10, Period::SECOND);
    assert_eq!([0, 5, 9].map(|secs| held(&ten, secs)), [None; 3]);
    assert_eq!([10, 40, 1_000].map(|secs| held(&ten, secs)), [Some(5_000), Some(20_000), Some(60_000)]);
    assert_eq!([1, 10].map(|secs| held(&RateLimits::UNLIMITED, secs)), [Some(1_000), Some(5_000)]);
}

#[test]
fn an_announcement_on_a_success_holds_only_below_our_own_limit_and_for_a_window_at_most() {
    let ten_a_second = &limit(10, Period::SECOND);
    let ten_a_minute = &limit(10, Period::MINUTE);
    let unlimited = &RateLimits::UNLIMITED;
    let x =
        |limit, reset| vec![("x-ratelimit-limit", limit), ("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset)];
    let draft = |policy, reset| vec![("ratelimit-policy", policy), ("ratelimit", reset)];
    #[rustfmt::skip]
    let table = [
        // express-rate-limit, fastify, Flask-Limiter at the same limit as ours.
        (ten_a_second, x("10", "1"), None),
        (ten_a_second, x("10", "2"), None),
        (ten_a_second, draft("10;w=1", "limit=10, remaining=0, reset=1"), None),
        (ten_a_second, draft(r#""d";q=10;w=1"#, r#""d";r=0;t=1"#), None),
        (ten_a_minute, draft(r#""d";q=10;w=60"#, r#""d";r=0;t=37"#), None),
        (ten_a_minute, x("10", "37"), None),
        // A higher limit.
        (ten_a_second, x("100", "1"), None),
        (ten_a_second, x("5000", "400"), None),
        // A lower limit.
        (ten_a_second, draft(r#""d";q=5;w=1"#, r#""d";r=0;t=1"#), Some(1_000)),
        (ten_a_second, draft(r#""d";q=10;w=60"#, r#""d";r=0;t=37"#), Some(37_000)),
        (ten_a_second, x("5000", "1500"), Some(1_500_000)),
        (ten_a_second, x("10", "37"), Some(37_000)),
        // Never longer than the window.
        (ten_a_second, draft(r#""d";q=5;w=1"#, r#""d";r=0;t=3000"#), Some(1_000)),
        (unlimited, draft(r#""d";q=5;w=2"#, r#""d";r=0;t=3000"#), Some(2_000)),
        // Without a limit of our own every announcement counts.
        (unlimited, x("1000000", "2"), Some(2_000)),
    ];
    for (limits, headers, expected) in table {
        for status in [200, 404, 500] {
            let effect = judged_with(&answer(status, &headers), limits, RARE).effect;
            assert_eq!(held_ms(&effect), expected, "{status} {limits:?} {headers:?}");
        }
    }
    // The quota is not named: its window tells whether it is another limit than ours.
    let unnamed = |reset| answer(200, &[("x-ratelimit-remaining", "0"), ("x-ratelimit-reset", reset)]);
    let held = |reset| held_ms(&judged_with(&unnamed(reset), ten_a_second, RARE).effect);
    assert_eq!([held("1"), held("2"), held("30")], [None, None, Some(30_000)]);
    // On a refusal it always counts.
    let refused = judged_with(&answer(429, &x("10", "5")), ten_a_second, RARE);
    assert_eq!(held_ms(&refused.effect), Some(5_000));
}

#[test]
fn refusals_do_not_count_against_the_attempts_unless_the_policy_says_so() {
    let used_up = [("ratelimit", r#""d";r=0;t=1"#)];
    let results = [
        (answer(429, &[]), false),
        (answer(429, &[("retry-after", "1")]), false),
        (answer(403, &[("retry-after", "1")]), false),
        (answer(503, &used_up), false),
        (answer(503, &[("retry-after", "1")]), true),
        (answer(500, &used_up), true),
        (SendResult::Failure(Failure::Timeout), true),
    ];
    for (result, always_counts) in results {
        for refusals_count in [false, true] {
            let policy = RetryPolicy { max_attempts: 3, refusals_count, ..RetryPolicy::default() };
            let limits = RateLimits::UNLIMITED;
            let last = Circumstances { attempt: 3, ..circumstances(&policy, &limits, OFTEN) };
            let decision = judge(&result, &last);
            let counts = always_counts || refusals_count;
            assert_eq!((decision.is_counted, decision.verdict == Verdict::Dead), (counts, counts), "{result:?}");
            let old = Circumstances { created_at: NOW - Duration::from_secs(72 * 3_600), ..last };
            assert_eq!(judge(&result, &old).verdict, Verdict::Dead, "the age bounds them: {result:?}");
        }
    }
}

#[test]
fn an_exhausted_delivery_is_dead_and_a_hold_still_holds() {
    let policy = RetryPolicy { max_attempts: 1, refusals_count: true, ..RetryPolicy::default() };
    let result = answer(429, &[("retry-after", "1")]);
    let decision = judge(&result, &circumstances(&policy, &RateLimits::UNLIMITED, OFTEN));
    assert_eq!((decision.verdict, held_ms(&decision.effect)), (Verdict::Dead, Some(1_000)));
}

#[test]
fn a_refusal_of_an_adaptive_destination_holds_it_only_for_a_time_that_was_said() {
    let policy = RetryPolicy::default();
    let held = |headers: &[(&str, &str)], is_adaptive| {
        let limits = RateLimits::UNLIMITED;
        let usual = circumstances(&policy, &limits, OFTEN);
        held_ms(&judge(&answer(429, headers), &Circumstances { is_adaptive, ..usual }).effect)
    };
    assert_eq!([held(&[], false).is_some(), held(&[], true).is_some()], [true, false]);
    assert_eq!(held(&[("retry-after", "7")], true), Some(7_000));
}

#[test]
fn no_hint_causes_a_panic() {
    let extremes = [Duration::ZERO, Duration::from_nanos(1), Duration::MAX];
    for delay in extremes {
        for rounding in extremes {
            let wait = Wait { delay, rounding, header: String::new() };
            for (quota, window) in
                [(None, None), (Some(0), Some(Duration::ZERO)), (Some(u64::MAX), Some(Duration::MAX))]
            {
                let used_up = UsedUp { wait: wait.clone(), quota, window, is_guess: false };
                let hints = Hints {
                    retry_after: vec![wait.clone()],
                    used_up: vec![used_up],
                    left: Some((u32::MAX, delay)),
                    resets: vec![wait.clone()],
                    malformed: None,
                };
                for status in [200, 403, 429, 503] {
                    let result = SendResult::Answer { status, hints: hints.clone() };
                    for limits in [RateLimits::UNLIMITED, limit(1, Period::DAY), limit(1_000_000, Period::SECOND)] {
                        let effect = judged_with(&result, &limits, OFTEN).effect;
                        assert!(hold(&effect).is_none_or(|(delay, _)| delay <= MAX_HOLD));
                    }
                }
            }
        }
    }
}
