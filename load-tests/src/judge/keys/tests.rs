//! Recordings that break the limits of keys: the judge must name each breach.

use serde_json::{Value, json};
use weir_core::{Limiter, RateLimits, Timestamp, audit::Evidence, budget};

use super::super::{judge, tests};
use crate::{
    recording::{KeyLimitChange, Recording},
    scenario::key_limits_in,
};

const KEYS: [&str; 3] = ["cus-0", "cus-1", "cus-2"];

fn settings(per_s: u32, overrides: &Value) -> Value {
    let rate_limits = json!([{"limit": per_s, "period": "second"}]);
    json!({"key_limits": {"key": "/key", "rate_limits": rate_limits, "overrides": overrides}})
}

fn change(ms: i64, settings: Value) -> KeyLimitChange {
    let limits = key_limits_in(&settings).unwrap().unwrap();
    KeyLimitChange { sent: tests::at(ms), answered: tests::at(ms), settings, limits }
}

/// Arrivals of keys by their number at one destination, which allows `limit` a second and each key four.
fn keyed(limit: u32, arrivals: &[(i64, u32)]) -> Recording {
    let times: Vec<i64> = arrivals.iter().map(|(ms, _)| *ms).collect();
    let mut recording = tests::recording(limit, &times);
    recording.limit_keys = KEYS.map(str::to_owned).to_vec();
    for (arrival, (_, key)) in recording.arrivals[0].iter_mut().zip(arrivals) {
        arrival.limit_key = Some(*key);
    }
    recording.destinations[0].key_limits = vec![change(0, settings(4, &json!({})))];
    recording
}

/// Sends of three keys with a backlog, by turns, from real limiters: four a second for each key, `limit` for the
/// destination. Which budgets a send takes is the choice of `budgets_of`: the first is that of the key.
fn played(limit: u32, budgets_of: impl Fn(usize) -> std::ops::Range<usize>) -> Recording {
    let mut of_keys = KEYS.map(|_| Limiter::new(&tests::limits(4)));
    let mut shared = Limiter::new(&tests::limits(limit));
    let mut arrivals = Vec::new();
    for ms in 0..10_000 {
        for turn in 0..KEYS.len() {
            let key = (turn + ms as usize / 100) % KEYS.len();
            let mut budgets = [&mut of_keys[key], &mut shared];
            let now = tests::at(ms);
            if budget::take(&mut budgets[budgets_of(key)], 1, now, now).is_ok() {
                arrivals.push((20 + ms, key as u32));
            }
        }
    }
    let mut recording = keyed(limit, &arrivals);
    // A Weir that has recorded nothing wrong: only the receiver can find a breach.
    let limit_changes = [(Timestamp::MIN, RateLimits::UNLIMITED)];
    let sends: Vec<_> = recording.arrivals[0].iter().map(|arrival| arrival.at).collect();
    let evidence = Evidence { sends: &sends, limit_changes: &limit_changes, latencies: &[] };
    recording.destinations[0].audit = Some(weir_core::audit::audit(&evidence));
    recording
}

#[track_caller]
fn assert_breach(recording: &Recording, expected: &str) {
    let breaches = judge(recording).breaches;
    assert!(breaches.iter().any(|breach| breach.starts_with(expected)), "{expected} is not in {breaches:?}");
}

#[test]
fn sends_that_take_both_budgets_pass() {
    let judgement = judge(&played(10, |_| 0..2));
    assert_eq!(judgement.breaches, Vec::<String>::new());
    let group = &judgement.groups[0];
    assert_eq!((group.keys, group.key_limits[0].bound), (3, Some(4)));
    assert!(group.limits[0].utilisation.unwrap() >= 0.985, "{:?}", group.limits);
}

#[test]
fn a_key_that_skips_the_budget_of_its_destination_is_found() {
    let skips = played(10, |key| if key == 2 { 0..1 } else { 0..2 });
    assert_breach(&skips, "partner: ");
    let breaches = judge(&skips).breaches;
    assert!(breaches.iter().all(|breach| !breach.contains("per key")), "{breaches:?}");
}

#[test]
fn a_destination_that_skips_the_budget_of_a_key_is_found() {
    // So much that the limits of the keys bind.
    let skips = played(20, |key| if key == 1 { 1..2 } else { 0..2 });
    assert_breach(&skips, "partner: per key: ");
    let breaches = judge(&skips).breaches;
    assert_eq!(breaches.len(), 1, "{breaches:?}");
}

#[test]
fn one_arrival_too_many_of_a_key_is_found_and_those_of_other_keys_do_not_count() {
    let mut arrivals: Vec<_> = (0..4).map(|n| (20 + n * 200, 0)).collect();
    arrivals.extend((0..4).map(|n| (30 + n * 200, 1)));
    arrivals.sort_unstable();
    let sound = keyed(100, &arrivals);
    assert_eq!(judge(&sound).breaches, Vec::<String>::new());
    arrivals.push((1_000, 1));
    assert_breach(&keyed(100, &arrivals), "partner: per key: 1 arrivals above the limit of a second");
    // Without a key it is of the empty one.
    let mut empty = keyed(100, &arrivals);
    empty.arrivals[0].last_mut().unwrap().limit_key = None;
    assert_eq!(judge(&empty).breaches, Vec::<String>::new());
}

#[test]
fn overrides_and_edits_bind_their_keys() {
    let arrivals: Vec<_> = (0..20).map(|n| (2_020 + n * 100, 0)).collect();
    assert_breach(&keyed(100, &arrivals), "partner: per key: ");
    let special = |key: &str| json!({ key: {"rate_limits": [{"limit": 10, "period": "second"}]} });
    let mut special_key = keyed(100, &arrivals);
    special_key.destinations[0].key_limits = vec![change(0, settings(4, &special(KEYS[0])))];
    assert_eq!(judge(&special_key).breaches, Vec::<String>::new());
    special_key.destinations[0].key_limits = vec![change(0, settings(4, &special(KEYS[1])))];
    assert_breach(&special_key, "partner: per key: ");
    // Raised before the first arrival, and lowered during the last ones.
    let mut edited = keyed(100, &arrivals);
    edited.destinations[0].key_limits.push(change(1_000, settings(10, &json!({}))));
    assert_eq!(judge(&edited).breaches, Vec::<String>::new());
    edited.destinations[0].key_limits.push(change(2_500, settings(2, &json!({}))));
    assert_breach(&edited, "partner: per key: ");
}
