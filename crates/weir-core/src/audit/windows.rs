//! Windows: the fullest ones, and the sends that did not fit. All functions take send starts earliest first.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::in_force::InForce;
use crate::time::Timestamp;

/// A half-open window and how many sends started in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub start: Timestamp,
    pub sends: u64,
}

/// The fullest of the windows that the UTC calendar makes: whole seconds, minutes, hours, days. The first of equals.
pub fn worst_calendar(sends: &[Timestamp], window: Duration) -> Option<Window> {
    // The epoch began with a second, a minute, an hour and a day of UTC, and engine time has no leap seconds.
    let number = |at: Timestamp| at.as_nanos().div_euclid(nanos(window));
    first_largest(sends.chunk_by(|a, b| number(*a) == number(*b)).map(|inside| Window {
        start: Timestamp::from_nanos(number(inside[0]) * nanos(window)),
        sends: inside.len() as u64,
    }))
}

/// The fullest window `[start, start + window)` over every `start`. The first of equals.
///
/// Moving a window's start forward to its first send loses nothing and may gain at the other end, so that one of the fullest
/// begins at a send.
pub fn worst_sliding(sends: &[Timestamp], window: Duration) -> Option<Window> {
    first_largest(
        trailing(sends, window).map(|(first, last)| Window { start: sends[first], sends: (last - first + 1) as u64 }),
    )
}

/// For each send, how many the window that ends just after it holds: what a distribution of windows is made of.
pub fn counts(sends: &[Timestamp], window: Duration) -> impl Iterator<Item = u64> {
    trailing(sends, window).map(|(first, last)| (last - first + 1) as u64)
}

/// How many sends were one too many: sends whose window `(send − window, send]` holds more than the bound in force.
///
/// Equally: sends `i` with `s_i − s_{i−bound} < window`.
pub fn violations(sends: &[Timestamp], window: Duration, in_force: &InForce) -> u64 {
    let too_many = |&(first, last): &(usize, usize)| {
        let held = (last - first + 1) as u64;
        in_force.bound(sends[last], window).is_some_and(|bound| held > bound)
    };
    trailing(sends, window).filter(too_many).count() as u64
}

/// A send as somebody else saw it: it left no later than `seen`, and no earlier than `earliest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sighting {
    pub seen: Timestamp,
    pub earliest: Timestamp,
}

/// As [`violations`], of sightings in the order of `seen`: those that were one too many even if the send that opens their
/// window left as early as it may have. `window` may be shorter than the period by what sightings are known to be off.
///
/// A sighting that was late makes the next ones look too close, so only the opening one has the benefit of the doubt.
pub fn certain_violations(sightings: &[Sighting], window: Duration, in_force: &InForce) -> u64 {
    let too_close = |&(last, sighting): &(usize, &Sighting)| {
        let Some(bound) = in_force.bound(sighting.seen, window) else { return false };
        let opening = usize::try_from(bound).ok().and_then(|bound| last.checked_sub(bound));
        opening.is_some_and(|opening| sighting.seen.since(sightings[opening].earliest) < window)
    };
    sightings.iter().enumerate().filter(too_close).count() as u64
}

/// For each send, the indices of the first and the last send of the window that ends just after it.
fn trailing(sends: &[Timestamp], window: Duration) -> impl Iterator<Item = (usize, usize)> {
    let mut first = 0;
    (0..sends.len()).map(move |last| {
        while sends[last].since(sends[first]) >= window {
            first += 1;
        }
        (first, last)
    })
}

fn first_largest(windows: impl Iterator<Item = Window>) -> Option<Window> {
    windows.reduce(|best, next| if next.sends > best.sends { next } else { best })
}

fn nanos(window: Duration) -> i64 {
    i64::try_from(window.as_nanos()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::limit::{Period, RateLimit, RateLimits};

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: &[i64]) -> Vec<Timestamp> {
        millis.iter().copied().map(Timestamp::from_millis).collect()
    }

    fn limited(limit: u32, burst: u32) -> RateLimits {
        RateLimits::new(vec![RateLimit::with_burst(limit, Period::Second, burst).unwrap()]).unwrap()
    }

    fn always(limits: RateLimits) -> InForce {
        InForce::new(&[(Timestamp::MIN, limits)], Period::Second)
    }

    #[test]
    fn a_window_is_half_open() {
        let in_force = always(limited(2, 1));
        assert_eq!(violations(&at(&[0, 500, 1_000]), SECOND, &in_force), 0);
        assert_eq!(violations(&at(&[0, 500, 999]), SECOND, &in_force), 1);
        assert_eq!(
            worst_sliding(&at(&[0, 500, 1_000]), SECOND),
            Some(Window { start: Timestamp::from_millis(0), sends: 2 })
        );
    }

    #[test]
    fn a_full_tick_beside_a_full_tick_keeps_the_calendar_and_breaks_the_limit() {
        let sends = at(&[1_900, 1_950, 1_990, 2_000, 2_050, 2_100]);
        assert_eq!(worst_calendar(&sends, SECOND), Some(Window { start: Timestamp::from_secs(1), sends: 3 }));
        assert_eq!(worst_sliding(&sends, SECOND), Some(Window { start: Timestamp::from_millis(1_900), sends: 6 }));
        assert_eq!(violations(&sends, SECOND, &always(limited(3, 1))), 3);
    }

    #[test]
    fn a_sighting_that_may_have_been_late_opens_its_window_earlier() {
        let in_force = always(limited(1, 1));
        let seen = |seen: i64, late: i64| Sighting {
            seen: Timestamp::from_millis(seen),
            earliest: Timestamp::from_millis(seen - late),
        };
        assert_eq!(certain_violations(&[seen(0, 0), seen(990, 0)], SECOND, &in_force), 1);
        assert_eq!(certain_violations(&[seen(0, 10), seen(990, 0)], SECOND, &in_force), 0);
        assert_eq!(certain_violations(&[seen(0, 0), seen(990, 10)], SECOND, &in_force), 1);
    }

    #[test]
    fn calendar_windows_begin_at_whole_periods_of_utc() {
        let start = |shown: &str, period: Period| {
            worst_calendar(&[shown.parse().unwrap()], period.window()).unwrap().start.to_string()
        };
        let send = "2026-11-21T07:54:06.789Z";
        let starts = Period::ALL.map(|period| start(send, period));
        let whole = [
            "2026-11-21T07:54:06.000Z",
            "2026-11-21T07:54:00.000Z",
            "2026-11-21T07:00:00.000Z",
            "2026-11-21T00:00:00.000Z",
        ];
        assert_eq!(starts, whole);
    }

    #[test]
    fn a_burst_may_fill_a_window_beyond_the_limit() {
        let sends = at(&[0, 0, 0, 0, 0, 500]);
        assert_eq!(violations(&sends, SECOND, &always(limited(2, 5))), 0);
        assert_eq!(violations(&sends, SECOND, &always(limited(2, 4))), 1);
    }

    #[test]
    fn a_window_across_an_edit_is_held_to_the_larger_limit() {
        let lowered =
            InForce::new(&[(Timestamp::MIN, limited(4, 1)), (Timestamp::from_secs(5), limited(1, 1))], Period::Second);
        assert_eq!(violations(&at(&[4_200, 4_400, 4_600, 5_050]), SECOND, &lowered), 0);
        assert_eq!(violations(&at(&[7_000, 7_400]), SECOND, &lowered), 1);
        let raised =
            InForce::new(&[(Timestamp::MIN, limited(1, 1)), (Timestamp::from_secs(5), limited(4, 1))], Period::Second);
        assert_eq!(violations(&at(&[4_200, 5_001, 5_002, 5_003]), SECOND, &raised), 0);
        assert_eq!(violations(&at(&[4_200, 4_900, 5_001]), SECOND, &raised), 1);
    }

    /// The same question asked of every window that can matter, without cleverness.
    fn brute_sliding(sends: &[Timestamp], window: Duration) -> u64 {
        let inside =
            |start: &Timestamp| sends.iter().filter(|send| *start <= **send && **send < *start + window).count() as u64;
        sends.iter().map(inside).max().unwrap_or(0)
    }

    fn brute_violations(sends: &[Timestamp], window: Duration, changes: &[(Timestamp, RateLimits)]) -> u64 {
        let bound_of = |limits: &RateLimits| limits.as_slice().first().map(RateLimit::bound);
        let judge = |(last, &send): (usize, &Timestamp)| {
            let held = sends[..=last]
                .iter()
                .filter(|other| send.as_nanos() - other.as_nanos() < window.as_nanos() as i64)
                .count() as u64;
            let touched = changes.iter().enumerate().filter(|(n, (from, _))| {
                let until = changes.get(n + 1).map_or(i64::MAX, |(next, _)| next.as_nanos() + 100_000_000);
                (*n == 0 || *from <= send) && until > send.as_nanos() - window.as_nanos() as i64
            });
            let bounds: Vec<_> = touched.map(|(_, (_, limits))| bound_of(limits)).collect();
            !bounds.contains(&None) && bounds.into_iter().flatten().max().is_some_and(|bound| held > bound)
        };
        sends.iter().enumerate().map(judge).filter(|violates| *violates).count() as u64
    }

    fn any_limits() -> impl Strategy<Value = RateLimits> {
        prop_oneof![1 => Just(RateLimits::UNLIMITED), 6 => (1_u32..8, 1_u32..4).prop_map(|(limit, burst)| limited(limit, burst))]
    }

    proptest! {
        #[test]
        fn the_judge_agrees_with_brute_force(
            mut millis in proptest::collection::vec(0_i64..6_000, 0..120),
            mut edits in proptest::collection::vec((0_i64..6_000, any_limits()), 1..5),
        ) {
            millis.sort_unstable();
            edits.sort_by_key(|(at, _)| *at);
            let sends = at(&millis);
            let changes: Vec<_> = edits.into_iter().map(|(at, limits)| (Timestamp::from_millis(at), limits)).collect();
            let in_force = InForce::new(&changes, Period::Second);
            prop_assert_eq!(worst_sliding(&sends, SECOND).map_or(0, |worst| worst.sends), brute_sliding(&sends, SECOND));
            prop_assert_eq!(violations(&sends, SECOND, &in_force), brute_violations(&sends, SECOND, &changes));
        }

        #[test]
        fn sightings_without_a_doubt_are_judged_as_sends(
            mut millis in proptest::collection::vec(0_i64..8_000, 0..60),
            limits in proptest::collection::vec(1_u32..6, 1..4),
        ) {
            millis.sort_unstable();
            let changes: Vec<_> =
                limits.iter().zip(0..).map(|(limit, n)| (Timestamp::from_millis(n * 2_500), limited(*limit, 1))).collect();
            let in_force = InForce::new(&changes, Period::Second);
            let sends = at(&millis);
            let sightings: Vec<_> = sends.iter().map(|send| Sighting { seen: *send, earliest: *send }).collect();
            prop_assert_eq!(
                certain_violations(&sightings, SECOND, &in_force),
                violations(&sends, SECOND, &in_force)
            );
        }

        #[test]
        fn a_violation_is_the_distance_over_the_bound(
            mut millis in proptest::collection::vec(0_i64..3_000, 0..60),
            limit in 1_u32..10,
        ) {
            millis.sort_unstable();
            let bound = limit as usize;
            let too_close = (bound..millis.len()).filter(|i| millis[*i] - millis[i - bound] < 1_000).count() as u64;
            prop_assert_eq!(violations(&at(&millis), SECOND, &always(limited(limit, 1))), too_close);
        }
    }
}
