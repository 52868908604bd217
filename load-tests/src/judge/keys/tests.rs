//! Recordings that break the promises of limit keys: the judge must name each breach.

use super::super::{judge, tests};
use crate::recording::{LimitChange, Recording};

/// A destination with a limit a second for each of its keys, and an event with this key for each arrival.
fn keyed(of_each: u32, of_all: u32, arrivals: &[(u32, i64)]) -> Recording {
    let at: Vec<_> = arrivals.iter().map(|(_, ms)| *ms).collect();
    let mut recording = tests::recording(of_all, &at);
    let limits = tests::limits(of_each);
    recording.destinations[0].key_limits = vec![LimitChange { sent: tests::at(0), answered: tests::at(0), limits }];
    for (event, (key, _)) in recording.events.iter_mut().zip(arrivals) {
        event.limit_key = Some(*key);
    }
    recording
}

/// Of one key every 100 ms, and of another in between.
fn two_keys() -> Vec<(u32, i64)> {
    (0..30).map(|n| (n % 2, 20 + i64::from(n) * 50)).collect()
}

#[track_caller]
fn assert_breach(recording: &Recording, expected: &str) {
    let breaches = judge(recording).breaches;
    assert!(breaches.iter().any(|breach| breach.starts_with(expected)), "{expected} is not in {breaches:?}");
}

#[test]
fn keys_that_keep_their_limits_pass_with_the_worst_of_them_in_the_report() {
    let judged = judge(&keyed(10, 20, &two_keys()));
    assert_eq!(judged.breaches, Vec::<String>::new());
    let keys = judged.groups[0].keys.as_ref().unwrap();
    assert_eq!((keys.keys, keys.limits[0].bound, keys.limits[0].worst_sliding), (2, Some(10), 10));
}

#[test]
fn a_destination_that_skips_the_limit_of_a_key_is_found() {
    assert_breach(&keyed(5, 20, &two_keys()), "limit keys of partner ×2: ");
}

#[test]
fn a_key_that_skips_the_budget_of_its_destination_is_found() {
    assert_breach(&keyed(10, 15, &two_keys()), "partner: ");
}

#[test]
fn a_key_that_waits_too_long_beside_a_busy_one_is_found() {
    let mut arrivals: Vec<(u32, i64)> = (0..20).map(|n| (0, 20 + n * 100)).collect();
    arrivals.push((1, 2_020));
    let mut recording = keyed(20, 20, &arrivals);
    recording.groups[0].expect.keys_within_s = Some(2.5);
    assert_eq!(judge(&recording).breaches, Vec::<String>::new());
    recording.groups[0].expect.keys_within_s = Some(1.0);
    assert_breach(&recording, "partner: a limit key waited 2.0200 s, where 1 s was expected");
}
