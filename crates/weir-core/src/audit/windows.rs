//! Windows of what somebody else saw: the fullest ones, and the sends that did not fit. All functions take sends earliest first.
//!
//! The audit's own look at windows is `super::sliding`, which needs no list; where nothing is in doubt the two agree.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::in_force::{InForce, Windows};
use crate::time::Timestamp;

/// A half-open window and how many sends started in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub start: Timestamp,
    pub sends: u64,
}

/// The fullest of the windows that the UTC calendar makes: whole seconds, minutes, hours, days. The first of equals.
pub fn worst_calendar(sends: &[Timestamp], window: Duration) -> Option<Window> {
    let start = |at: Timestamp| calendar_start(at, window);
    let windows = sends.chunk_by(|a, b| start(*a) == start(*b));
    first_largest(windows.map(|inside| Window { start: start(inside[0]), sends: inside.len() as u64 }))
}

/// Where the calendar's window around `at` begins.
pub(super) fn calendar_start(at: Timestamp, window: Duration) -> Timestamp {
    // The epoch began with a second, a minute, an hour and a day of UTC, and engine time has no leap seconds.
    Timestamp::from_nanos(at.as_nanos().div_euclid(nanos(window)) * nanos(window))
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

/// A send as somebody else saw it: it left no later than `seen`, and no earlier than `earliest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedSend {
    pub seen: Timestamp,
    pub earliest: Timestamp,
}

/// How many sends were one too many, even if the send that opens their window left as early as it may have: sends whose window
/// holds more than the limit that judges it. `windows` may be shorter than the period, and the grace longer, by what sightings
/// are known to be off.
///
/// A sighting that was late makes the next ones look too close, so only the opening one has the benefit of the doubt.
pub fn certain_violations(sightings: &[ObservedSend], windows: &Windows, in_force: &InForce) -> u64 {
    let bindings = in_force.bindings(windows);
    let mut over = 0;
    let mut violations = 0;
    for (index, sighting) in sightings.iter().enumerate() {
        let last = sighting.seen;
        over += bindings[over..].iter().take_while(|binding| binding.is_over(last, windows)).count();
        let breaks = bindings[over..].iter().take_while(|binding| binding.from <= last).any(|binding| {
            let opening = usize::try_from(binding.limit.bound()).ok().and_then(|bound| index.checked_sub(bound));
            let begin = binding.from.max(windows.earliest(last));
            opening.is_some_and(|opening| sightings[opening].earliest >= begin)
        });
        violations += u64::from(breaks);
    }
    violations
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
    use super::*;
    use crate::limit::{Period, RateLimit, RateLimits};

    const SECOND: Duration = Duration::from_secs(1);

    fn at(millis: &[i64]) -> Vec<Timestamp> {
        millis.iter().copied().map(Timestamp::from_millis).collect()
    }

    #[test]
    fn a_full_tick_beside_a_full_tick_keeps_the_calendar_and_breaks_the_limit() {
        let sends = at(&[1_900, 1_950, 1_990, 2_000, 2_050, 2_100]);
        assert_eq!(worst_calendar(&sends, SECOND), Some(Window { start: Timestamp::from_secs(1), sends: 3 }));
        assert_eq!(worst_sliding(&sends, SECOND), Some(Window { start: Timestamp::from_millis(1_900), sends: 6 }));
    }

    #[test]
    fn a_sighting_that_may_have_been_late_opens_its_window_earlier() {
        let once = RateLimits::new(vec![RateLimit::new(1, Period::Second).unwrap()]).unwrap();
        let in_force = InForce::new(&[(Timestamp::MIN, once)], Period::Second);
        let seen = |seen: i64, late: i64| ObservedSend {
            seen: Timestamp::from_millis(seen),
            earliest: Timestamp::from_millis(seen - late),
        };
        let violations =
            |sightings: [ObservedSend; 2]| certain_violations(&sightings, &Windows::of(Period::Second), &in_force);
        assert_eq!(violations([seen(0, 0), seen(990, 0)]), 1);
        assert_eq!(violations([seen(0, 10), seen(990, 0)]), 0);
        assert_eq!(violations([seen(0, 0), seen(990, 10)]), 1);
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
}
