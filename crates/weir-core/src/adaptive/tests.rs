//! What can be seen in a few steps. The behaviour over hours is judged by the trials of `weir-pace-trials`.

use super::*;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + ms)
}

fn new() -> AdaptiveRate {
    AdaptiveRate::new(Settings::default(), 100, None, at(0))
}

/// A cursor that follows the pace, with these grants.
fn cursor(rate: &AdaptiveRate, now: Timestamp, granted: u32) -> PaceCursor {
    PaceCursor { granted, last_start: now, ..rate.cursor(now) }
}

/// Sends by the pace for a second from `from_ms` on, and reports these answers at its end, the bad ones as 429.
fn second(rate: &mut AdaptiveRate, from_ms: i64, ok: u32, bad: u32) -> Option<Change> {
    second_of(rate, from_ms, ok, (bad, Verdict::Throttled))
}

fn second_of(rate: &mut AdaptiveRate, from_ms: i64, ok: u32, (bad, verdict): (u32, Verdict)) -> Option<Change> {
    let until = at(from_ms + 1_000);
    let mut cursor = rate.cursor(at(from_ms));
    while cursor.start_after(0, at(from_ms)) < until {
        cursor.take(cursor.start_after(0, at(from_ms)), true);
    }
    let mut sample = Sample { generation: rate.generation, ..Sample::default() };
    (0..ok).for_each(|_| sample.add(Verdict::Ok, 0.05, 5));
    (0..bad).for_each(|_| sample.add(verdict, 0.01, 5));
    rate.learnt_at = until;
    let before = rate.per_s(until);
    rate.learn(&cursor, &[(until, sample)], until);
    Change::between(before, rate, until)
}

#[test]
fn slots_of_the_pace_are_apart_by_its_reciprocal() {
    let mut cursor = new().cursor(at(0));
    cursor.take(at(0), true);
    assert_eq!(cursor.next_start(), at(100));
    cursor.take(at(250), true);
    assert_eq!((cursor.next_start(), cursor.start_after(2, at(0)), cursor.granted), (at(350), at(550), 2));
    let slots = |until| cursor.slots_before(at(0), at(until), 9);
    assert_eq!([350, 351, 450, 451, 99_999].map(slots), [0, 1, 1, 2, 9]);
}

#[test]
fn the_pace_doubles_until_a_refusal_and_then_follows_what_was_taken() {
    let mut rate = new();
    assert_eq!(second(&mut rate, 0, 10, 0).map(|change| change.to_per_s), Some(20.0));
    assert_eq!(second(&mut rate, 1_000, 20, 0).map(|change| change.to_per_s), Some(40.0));
    second(&mut rate, 2_000, 40, 0);
    let change = second(&mut rate, 3_000, 50, 30).expect("a change");
    assert_eq!((change.reason, change.detail.as_str()), (Reason::Throttled, "30 of 80 answers were 429"));
    assert!((44.0..46.0).contains(&change.to_per_s), "{change:?}");
}

#[test]
fn one_refusal_among_many_answers_does_not_end_the_start() {
    let mut rate = new();
    let change = second(&mut rate, 0, 19, 1).expect("a change");
    assert_eq!((change.reason, change.to_per_s), (Reason::Starting, 20.0));
    assert_eq!(second(&mut rate, 1_000, 18, 2).map(|change| change.reason), None, "two wait for more answers");
}

#[test]
fn a_small_share_of_failures_is_told_from_a_limit_by_twice_the_pace() {
    let mut rate = new();
    let starts = |change: Option<Change>| change.map(|change| (change.reason, change.to_per_s));
    second(&mut rate, 0, 10, 0);
    assert_eq!(starts(second_of(&mut rate, 1_000, 18, (2, Verdict::Failed))), Some((Reason::Starting, 40.0)));
    assert_eq!(starts(second_of(&mut rate, 2_000, 37, (3, Verdict::Failed))), Some((Reason::Starting, 80.0)));
    // The receiver takes 50/s. What failed at 20/s is not believed to come from the pace.
    let change = second_of(&mut rate, 3_000, 48, (32, Verdict::Failed)).expect("a change");
    assert_eq!(change.reason, Reason::Throttled);
    assert!((0.02..0.06).contains(&rate.background), "{}", rate.background);
    // Half of what is sent is no small share, also of failures.
    let mut refusing = new();
    second_of(&mut refusing, 0, 10, (10, Verdict::Failed));
    assert!(refusing.per_s(at(1_000)) < 10.0);
}

#[test]
fn failures_at_the_share_of_the_background_lower_nothing_and_three_times_as_many_do() {
    let mut rate = new();
    (rate.rate, rate.ceiling, rate.next_background_test) = (50.0, Some(52.0), at(3_600_000));
    rate.set_background(0.05);
    for second in 0..60 {
        second_of(&mut rate, second * 1_000, 47, (2 + (second % 2) as u32, Verdict::Failed));
    }
    assert!(rate.per_s(at(60_000)) > 49.0, "{:?}", rate.status(at(60_000)));
    let throttled = (60..70).find_map(|second| {
        second_of(&mut rate, second * 1_000, 42, (8, Verdict::Failed))
            .filter(|change| change.reason == Reason::Throttled)
    });
    assert!(throttled.is_some(), "{:?}", rate.status(at(70_000)));
}

#[test]
fn errors_do_not_count_where_the_limit_says_429() {
    let mut rate = new();
    second(&mut rate, 0, 10, 0);
    second(&mut rate, 1_000, 10, 10);
    let pace = rate.per_s(at(2_000));
    let seconds = |rate: &mut AdaptiveRate, from: i64, (ok, failed): (u32, u32)| {
        (from..from + 20).find_map(|second| {
            second_of(rate, second * 1_000, ok, (failed, Verdict::Failed))
                .filter(|change| change.reason == Reason::Throttled)
        })
    };
    assert_eq!(seconds(&mut rate, 2, (9, 1)), None, "a tenth");
    assert!(rate.per_s(at(22_000)) >= pace);
    assert!(seconds(&mut rate, 22, (6, 4)).is_some(), "four tenths");
    // Where it has not, two failures of ten are waited for, and then believed.
    let mut other = new();
    (other.rate, other.ceiling) = (10.0, Some(11.0));
    assert!(seconds(&mut other, 0, (9, 1)).is_some());
}

#[test]
fn single_429s_at_a_pace_that_was_taken_before_lower_nothing() {
    let mut rate = new();
    (rate.rate, rate.ceiling, rate.rest_s, rate.rest_until) = (97.0, Some(100.0), 2.0 * REST_S, at(3_600_000));
    for from in 0..20 {
        second(&mut rate, from * 1_000, 95, if from % 2 == 0 { 2 } else { 0 });
    }
    assert!(rate.per_s(at(20_000)) >= 97.0, "{:?}", rate.status(at(20_000)));
    assert!(second(&mut rate, 20_000, 91, 6).is_some_and(|change| change.reason == Reason::Throttled));
}

#[test]
fn a_start_waits_for_twenty_answers_before_failures_end_it() {
    let mut rate = new();
    assert_eq!(second_of(&mut rate, 0, 9, (3, Verdict::Failed)), None);
    let change = second_of(&mut rate, 1_000, 20, (0, Verdict::Failed)).expect("a change");
    assert_eq!((change.reason, change.to_per_s), (Reason::Starting, 20.0));
}

#[test]
fn answers_to_permits_from_before_a_cut_are_ignored() {
    let mut rate = new();
    second(&mut rate, 0, 5, 5);
    let (generation, pace) = (rate.generation, rate.per_s(at(1_000)));
    let late = Sample { generation: generation - 1, bad: 50, throttled: 50, ..Sample::default() };
    rate.learn(&PaceCursor::default(), &[(at(1_100), late)], at(1_500));
    assert_eq!((rate.generation, rate.per_s(at(1_500))), (generation, pace));
}

#[test]
fn a_retry_after_holds_until_one_probe_is_answered() {
    let mut rate = new();
    let sample = Sample { held_until: Some(at(5_000)), bad: 1, throttled: 1, ..Sample::default() };
    rate.learn(&cursor(&rate, at(900), 1), &[(at(1_000), sample)], at(1_000));
    let mut held = PaceCursor { last_start: at(900), ..rate.cursor(at(1_000)) };
    assert_eq!((held.next_start(), rate.status(at(1_000)).reason), (at(5_000), Reason::Held));
    held.take(at(5_000), true);
    assert!(held.next_start() > at(20_000), "one probe at a time");
    let mut answer = Sample { generation: rate.generation, ..Sample::default() };
    answer.add(Verdict::Ok, 0.05, 1);
    rate.learn(&held, &[(at(5_100), answer)], at(5_100));
    held.follow(&rate.cursor(at(5_100)));
    assert!(held.next_start() < at(7_000));
}

#[test]
fn a_slot_that_was_granted_before_a_wall_was_known_is_no_probe() {
    let mut rate = new();
    let sample = Sample { held_until: Some(at(5_000)), bad: 1, throttled: 1, ..Sample::default() };
    rate.learn(&cursor(&rate, at(900), 1), &[(at(1_000), sample)], at(1_000));
    rate.learn(&cursor(&rate, at(1_010), 1), &[], at(1_050));
    assert_eq!(rate.cursor(at(1_050)).not_before, at(5_000));
}

#[test]
fn a_background_that_was_tested_is_left_alone_for_a_while_whatever_the_test_found() {
    for bad in [0, 20] {
        let mut rate = new();
        (rate.background, rate.ceiling, rate.rate) = (0.05, Some(20.0), 20.0);
        assert!(rate.tests_background(at(0)));
        rate.resolve(&Sample { ok: 400 - bad, bad, ..Sample::default() }, at(30_000));
        assert!(rate.doubt.is_none());
        assert_eq!(rate.next_background_test, at(330_000), "{bad} bad");
    }
}

#[test]
fn after_a_test_the_window_is_widened_step_by_step() {
    let mut rate = new();
    (rate.base, rate.rate, rate.widened) = (Some((1.0, 0.0)), 40.0, Some(20.0));
    let mut windows = Vec::new();
    for _ in 0..4 {
        rate.place_window();
        windows.push(rate.window());
        rate.may_widen();
    }
    assert_eq!((windows, rate.widened), (vec![20, 40, 64, 64], None));
}

#[test]
fn a_lowered_limit_binds_at_once_and_a_raised_one_is_grown_into() {
    let limited = |most| Settings { max_per_s: Some(most), ..Settings::default() };
    let mut rate = new();
    rate.configure(limited(4.0), 100, at(500));
    let status = rate.status(at(500));
    assert_eq!((status.per_s, status.reason, status.since), (4.0, Reason::AtLimit, at(500)));
    assert_eq!(status.detail, "the limit was lowered");
    rate.configure(limited(400.0), 100, at(600));
    assert_eq!(rate.per_s(at(600)), 4.0);
}

#[test]
fn the_hard_limits_and_the_operator_bound_the_pace() {
    let limits = |per_s| RateLimits::new(crate::RateLimit::new(per_s, crate::Period::SECOND).into_iter().collect());
    let most =
        |max_per_s, per_s| Settings { max_per_s, ..Settings::default() }.within(&limits(per_s).unwrap()).max_per_s;
    assert_eq!([most(None, 5), most(Some(3.0), 5), most(Some(9.0), 5)], [Some(5.0), Some(3.0), Some(5.0)]);
    assert_eq!(Settings::default().within(&RateLimits::UNLIMITED).max_per_s, None);
}

#[test]
fn late_answers_bound_nothing_where_latency_is_off() {
    let settings = Settings { latency: false, ..Settings::default() };
    let mut rate = AdaptiveRate::new(settings, 5, None, at(0));
    for epoch in 0..10 {
        let full = PaceCursor { was_full: true, ..rate.cursor(at(0)) };
        let mut sample = Sample { generation: rate.generation, ..Sample::default() };
        (0..50).for_each(|_| sample.add(Verdict::Ok, 1.0 + f64::from(epoch), 5));
        let now = at(1_000 * i64::from(epoch + 1));
        rate.learn(&full, &[(now, sample)], now);
        assert_eq!(rate.window(), 5);
    }
}

#[test]
fn after_a_quiet_time_refusals_count_against_the_sends_of_their_own_time() {
    let mut rate = new();
    second(&mut rate, 0, 10, 0);
    let later = 3_600_000;
    let sends = PaceCursor { granted: 4, last_start: at(later), ..rate.cursor(at(0)) };
    let report = Sample { generation: rate.generation, ok: 3, bad: 3, throttled: 3, ..Sample::default() };
    rate.learn(&sends, &[(at(later), report)], at(later));
    rate.learn(&PaceCursor::default(), &[(at(later + 1_000), report)], at(later + 1_000));
    assert!(rate.per_s(at(later + 1_000)) > 1.0, "{:?}", rate.status(at(later)));
}

#[test]
fn while_the_breaker_is_open_reports_say_nothing_and_then_the_pace_is_half() {
    let mut rate = new();
    rate.interrupt(true, at(0));
    assert_eq!(second(&mut rate, 0, 0, 10), None);
    assert_eq!(rate.per_s(at(1_000)), 10.0);
    rate.interrupt(false, at(2_000));
    assert_eq!(rate.per_s(at(2_000)), 5.0);
}

#[test]
fn the_store_gets_a_copy_after_a_change_of_a_tenth_and_at_most_every_ten_seconds() {
    let mut rate = new();
    assert!(rate.needs_copy(at(0)) && !rate.needs_copy(at(60_000)), "an unchanged pace has its copy");
    second(&mut rate, 0, 10, 0);
    assert!(!rate.needs_copy(at(9_999)) && rate.needs_copy(at(10_000)));
}

#[test]
fn an_announced_quota_caps_the_pace_until_its_end() {
    let mut rate = new();
    let quota = Some(Quota { remaining: 20, reset: at(10_000) });
    rate.learn(&PaceCursor::default(), &[(at(0), Sample { quota, ..Sample::default() })], at(0));
    assert_eq!(rate.per_s(at(9_999)), 1.9);
    assert_eq!(rate.per_s(at(10_000)), 10.0);
}

#[test]
fn the_state_is_small_and_survives_its_copy() {
    let mut rate = new();
    second(&mut rate, 0, 10, 0);
    second(&mut rate, 1_000, 12, 8);
    let json = serde_json::to_string(&rate).unwrap();
    assert!(json.len() < 2_048, "{} bytes", json.len());
    let copy: AdaptiveRate = serde_json::from_str(&json).unwrap();
    let pace = rate.per_s(at(2_000));
    let resumed = |ms| AdaptiveRate::resumed(copy.clone(), at(2_000), at(ms)).per_s(at(ms)) / pace;
    assert!((resumed(3_000) - 0.8).abs() < 1e-9 && (resumed(70_000) - 0.5).abs() < 1e-9);
}

#[test]
fn overload_is_bad_and_other_refusals_say_nothing_about_the_pace() {
    use crate::{
        hints::Hints,
        outcome::{Failure, SendResult},
    };
    let of = |status| Verdict::of(&SendResult::Answer { status, hints: Hints::default() });
    assert_eq!([200, 404, 500].map(of), [Some(Verdict::Ok); 3]);
    assert_eq!([429, 502, 503, 504].map(of)[0], Some(Verdict::Throttled));
    assert_eq!([502, 503, 504].map(of), [Some(Verdict::Failed); 3]);
    let failed = |failure| Verdict::of(&SendResult::Failure(failure));
    assert_eq!([failed(Failure::Timeout), failed(Failure::Connect)], [Some(Verdict::Failed); 2]);
    assert_eq!(failed(Failure::Forbidden), None);
}

#[test]
fn what_a_header_leaves_is_reported_and_a_hold_only_with_a_refusal() {
    use crate::{hints::Hints, outcome::SendResult};
    let hints = |value: &str| Hints::read([("ratelimit", value.as_bytes())], at(0));
    let of = |status, value| {
        let result = SendResult::Answer { status, hints: hints(value) };
        Sample::of(&result, Duration::from_millis(40), Some(at(9_000)), (7, 3), at(1_000)).unwrap()
    };
    let taken = of(200, r#""d";r=50;t=30, "m";r=10;t=20"#);
    assert_eq!(taken.quota, Some(Quota { remaining: 10, reset: at(21_000) }), "the scarcest one");
    assert_eq!((taken.generation, taken.ok, taken.held_until), (7, 1, None));
    let refused = of(429, r#""d";r=0;t=30"#);
    assert_eq!((refused.bad, refused.throttled, refused.least_bad_in_flight), (1, 1, 3));
    assert_eq!((refused.held_until, refused.quota), (Some(at(9_000)), None));
}

#[test]
fn reports_of_several_workers_add_up() {
    let answer = |verdict, in_flight| {
        let mut sample = Sample::default();
        sample.add(verdict, 0.05, in_flight);
        sample
    };
    let mut sum = answer(Verdict::Ok, 2);
    sum.merge(&Sample { held_until: Some(at(5)), ..answer(Verdict::Throttled, 9) });
    sum.merge(&answer(Verdict::Failed, 4));
    assert_eq!((sum.ok, sum.bad, sum.throttled, sum.least_bad_in_flight), (1, 2, 1, 4));
    assert_eq!(sum.held_until, Some(at(5)));
}

#[test]
fn a_slow_rate_is_said_per_minute_or_per_hour() {
    let said = [40.0, 2.5, 1.0, 0.5, 1.0 / 60.0, 0.0167, 0.001].map(in_words);
    let expected = [
        "40 per second",
        "2.5 per second",
        "1 per second",
        "30 per minute",
        "1 per minute",
        "1 per minute",
        "3.6 per hour",
    ];
    assert_eq!(said, expected);
}
