//! What can be seen in a few steps. The behaviour over hours is judged by the trials of `weir-pace-trials`.

use super::*;

fn at(ms: i64) -> Timestamp {
    Timestamp::from_millis(1_800_000_000_000 + ms)
}

fn new() -> AdaptiveRate {
    AdaptiveRate::new(Settings::default(), 100, None, at(0))
}

/// Sends by the pace for a second from `from_ms` on, and reports these answers at its end.
fn second(rate: &mut AdaptiveRate, from_ms: i64, ok: u32, bad: u32) -> Option<Change> {
    let generation = rate.generation();
    let until = at(from_ms + 1_000);
    while let Some(start) = rate.next_start(0).map(|start| start.max(at(from_ms))).filter(|start| *start < until) {
        rate.take(start);
    }
    let mut sample = Sample { generation, ..Sample::default() };
    (0..ok).for_each(|_| sample.add(Verdict::Ok, 0.05, 5));
    (0..bad).for_each(|_| sample.add(Verdict::Throttled, 0.01, 5));
    rate.observe(&sample, until);
    rate.step(until)
}

#[test]
fn slots_of_the_pace_are_apart_by_its_reciprocal() {
    let mut rate = new();
    rate.take(at(0));
    assert_eq!(rate.next_start(1), Some(at(100)));
    rate.take(at(250));
    assert_eq!(rate.next_start(1), Some(at(350)));
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
fn answers_to_permits_from_before_a_cut_are_ignored() {
    let mut rate = new();
    second(&mut rate, 0, 5, 5);
    let (generation, pace) = (rate.generation(), rate.per_s(at(1_000)));
    let late = Sample { generation: generation - 1, bad: 50, throttled: 50, ..Sample::default() };
    rate.observe(&late, at(1_100));
    rate.step(at(1_500));
    assert_eq!((rate.generation(), rate.per_s(at(1_500))), (generation, pace));
}

#[test]
fn a_retry_after_holds_until_one_probe_is_answered() {
    let mut rate = new();
    let sample = Sample { held_until: Some(at(5_000)), bad: 1, throttled: 1, ..Sample::default() };
    rate.observe(&sample, at(1_000));
    assert_eq!((rate.next_start(0), rate.reason().0), (Some(at(5_000)), Reason::Held));
    rate.take(at(5_000));
    assert!(rate.next_start(1) > Some(at(20_000)), "one probe at a time");
    let mut answer = Sample { generation: rate.generation(), ..Sample::default() };
    answer.add(Verdict::Ok, 0.05, 1);
    rate.observe(&answer, at(5_100));
    assert!(rate.next_start(0) < Some(at(7_000)));
}

#[test]
fn a_lowered_limit_binds_at_once_and_a_raised_one_is_grown_into() {
    let mut rate = new();
    rate.bound(Some(4.0));
    assert_eq!(rate.per_s(at(0)), 4.0);
    rate.bound(Some(400.0));
    assert_eq!(rate.per_s(at(0)), 4.0);
}

#[test]
fn a_full_window_waits_for_an_answer() {
    let mut rate = AdaptiveRate::new(Settings::default(), 7, None, at(0));
    assert!(rate.next_start(6).is_some());
    assert_eq!(rate.next_start(7), None);
}

#[test]
fn late_answers_bound_nothing_where_latency_is_off() {
    let settings = Settings { latency: false, ..Settings::default() };
    let mut rate = AdaptiveRate::new(settings, 5, None, at(0));
    for epoch in 0..10 {
        assert_eq!(rate.next_start(5), None);
        let mut sample = Sample { generation: rate.generation(), ..Sample::default() };
        (0..50).for_each(|_| sample.add(Verdict::Ok, 1.0 + f64::from(epoch), 5));
        rate.observe(&sample, at(1_000 * i64::from(epoch + 1)));
        rate.step(at(1_000 * i64::from(epoch + 1)));
        assert_eq!(rate.window(), 5);
    }
}

#[test]
fn an_announced_quota_caps_the_pace_until_its_end() {
    let mut rate = new();
    let quota = Some(Quota { remaining: 20, reset: at(10_000) });
    rate.observe(&Sample { quota, ..Sample::default() }, at(0));
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
    let resumed = |is_fresh| AdaptiveRate::resumed(copy.clone(), is_fresh, at(3_000)).per_s(at(3_000)) / pace;
    assert!((resumed(true) - 0.8).abs() < 1e-9 && (resumed(false) - 0.5).abs() < 1e-9);
}
