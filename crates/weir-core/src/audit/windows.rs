//! Windows over sends that an outside observer saw: the fullest windows, and the sends that exceeded a bound. All
//! functions take sends earliest first.
//!
//! The audit itself uses `super::sliding`, which needs no list of sends. When the instants of all sends are known, both
//! agree.

use std::{ops::Range, time::Duration};

use serde::{Deserialize, Serialize};

use super::in_force::{InForce, Windows};
use crate::time::Timestamp;

/// A half-open window and how many sends started in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub start: Timestamp,
    pub sends: u64,
}

/// The fullest calendar window (UTC): a whole second, minute, hour or day, or that many seconds counted from the Unix
/// epoch. Of equal windows the first.
pub fn worst_calendar(sends: &[Timestamp], window: Duration) -> Option<Window> {
    let start = |at: Timestamp| calendar_start(at, window);
    let windows = sends.chunk_by(|a, b| start(*a) == start(*b));
    first_largest(windows.map(|inside| Window { start: start(inside[0]), sends: inside.len() as u64 }))
}

/// The beginning of the calendar window that contains `at`.
pub(super) fn calendar_start(at: Timestamp, window: Duration) -> Timestamp {
    // The Unix epoch is the beginning of a UTC second, minute, hour and day, and engine time has no leap seconds.
    Timestamp::from_nanos(at.as_nanos().div_euclid(nanos(window)) * nanos(window))
}

/// The fullest window `[start, start + window)` over every `start`. Of equal windows the first.
///
/// Moving the start of a window forward to its first send loses no send and may add some at its end. So one of the
/// fullest windows begins at a send.
pub fn worst_sliding(sends: &[Timestamp], window: Duration) -> Option<Window> {
    first_largest(
        trailing(sends, window).map(|(first, last)| Window { start: sends[first], sends: (last - first + 1) as u64 }),
    )
}

/// For each send, the number of sends in the window that ends just after it: the input of a distribution of windows.
pub fn counts(sends: &[Timestamp], window: Duration) -> impl Iterator<Item = u64> {
    trailing(sends, window).map(|(first, last)| (last - first + 1) as u64)
}

/// For each of `buckets` intervals of `step` from `from` on, how much the fullest window `[start, start + window)` holds
/// that ends in the interval. It covers windows that end at the beginning of the interval, so a window that is full at
/// the end of one interval counts in the next one too. `sends` begin at least one window before `from`. `held`: what a
/// window with these sends holds, by their indices: their number, or the sum of their costs.
pub fn fullest_by_bucket(
    sends: &[Timestamp],
    held: impl Fn(Range<usize>) -> u64,
    window: Duration,
    from: Timestamp,
    step: Duration,
    buckets: usize,
) -> Vec<u64> {
    let mut fullest = vec![0; buckets];
    let (mut first, mut beyond, mut begin) = (0, 0, from);
    let mut trailing = trailing(sends, window).map(|(first, last)| (sends[last], held(first..last + 1))).peekable();
    while trailing.next_if(|(at, _)| *at < from).is_some() {}
    for fullest in &mut fullest {
        // The window that ends at the beginning of the interval.
        while sends.get(beyond).is_some_and(|at| *at < begin) {
            beyond += 1;
        }
        while first < beyond && sends[first] < begin.before(window) {
            first += 1;
        }
        *fullest = held(first..beyond);
        // Of all windows that end later in the interval, a fullest one ends just after a send. So only these windows
        // are compared.
        begin = begin + step;
        while let Some((_, holds)) = trailing.next_if(|(at, _)| *at < begin) {
            *fullest = holds.max(*fullest);
        }
    }
    fullest
}

/// A send that an outside observer saw. It started no later than `seen` and no earlier than `earliest`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObservedSend {
    pub seen: Timestamp,
    pub earliest: Timestamp,
}

/// How many sends certainly exceeded a bound: the window that ends with the send holds too many sends even if the first
/// of them started at its earliest instant. To allow for the error of the observer, `windows` may be shorter than the
/// period and have a longer grace.
///
/// When a send is observed late, the sends after it look too close to it. So only the first send of a window is taken
/// at its earliest instant.
pub fn certain_violations(sends: &[ObservedSend], windows: &Windows, in_force: &InForce) -> u64 {
    let window_limits = in_force.window_limits(windows);
    let mut over = 0;
    let mut violations = 0;
    for (index, send) in sends.iter().enumerate() {
        let last = send.seen;
        // These limits judge no window with this send or a later one.
        over += window_limits[over..].iter().take_while(|judge| judge.is_over(last, windows)).count();
        // The window holds more sends than the bound if it also holds the send that is `bound` places earlier.
        let breaks = window_limits[over..].iter().take_while(|judge| judge.from <= last).any(|judge| {
            let first = usize::try_from(judge.limit.bound()).ok().and_then(|bound| index.checked_sub(bound));
            let begin = judge.from.max(windows.earliest(last));
            first.is_some_and(|first| sends[first].earliest >= begin)
        });
        violations += u64::from(breaks);
    }
    violations
}

/// For each send, the indices of the first and the last send in the window that ends just after it.
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
    fn two_full_calendar_windows_side_by_side_can_break_the_limit() {
        let sends = at(&[1_900, 1_950, 1_990, 2_000, 2_050, 2_100]);
        assert_eq!(worst_calendar(&sends, SECOND), Some(Window { start: Timestamp::from_secs(1), sends: 3 }));
        assert_eq!(worst_sliding(&sends, SECOND), Some(Window { start: Timestamp::from_millis(1_900), sends: 6 }));
    }

    fn count(sends: Range<usize>) -> u64 {
        sends.len() as u64
    }

    #[test]
    fn the_window_with_the_highest_cost_may_have_fewer_sends() {
        let (sends, costs) = (at(&[100, 200, 300, 2_000, 2_900]), [1, 1, 1, 7, 2]);
        let cost = |sends: Range<usize>| costs[sends].iter().sum();
        assert_eq!(fullest_by_bucket(&sends, cost, SECOND, Timestamp::from_secs(0), SECOND, 4), [3, 3, 9, 9]);
        assert_eq!(fullest_by_bucket(&sends, count, SECOND, Timestamp::from_secs(0), SECOND, 4), [3, 3, 2, 2]);
    }

    #[test]
    fn the_fullest_window_of_a_bucket_may_begin_before_it() {
        let sends = at(&[100, 900, 1_050, 1_850, 1_900, 3_200]);
        let of = |from: i64, step: i64, buckets| {
            let step = Duration::from_millis(step as u64);
            fullest_by_bucket(&sends, count, SECOND, Timestamp::from_millis(from), step, buckets)
        };
        // At 2 s the window from 1 s on still has three sends.
        assert_eq!(of(0, 1_000, 5), [2, 3, 3, 1, 1]);
        assert_eq!(of(1_000, 500, 4), [3, 3, 3, 2], "from a later beginning, in shorter buckets");
        assert_eq!(of(0, 10_000, 1), [3], "at any zoom");
        assert_eq!(of(8_000, 1_000, 2), [0, 0]);
        assert_eq!(fullest_by_bucket(&[], count, SECOND, Timestamp::MIN, SECOND, 2), [0, 0]);
    }

    #[test]
    fn the_first_send_of_a_window_counts_at_its_earliest_instant() {
        let once = RateLimits::new(vec![RateLimit::new(1, Period::SECOND).unwrap()]).unwrap();
        let in_force = InForce::new(&[(Timestamp::MIN, once)], Period::SECOND);
        let seen = |seen: i64, late: i64| ObservedSend {
            seen: Timestamp::from_millis(seen),
            earliest: Timestamp::from_millis(seen - late),
        };
        let violations = |sends: [ObservedSend; 2]| certain_violations(&sends, &Windows::of(Period::SECOND), &in_force);
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
        let starts = Period::NAMED.map(|period| start(send, period));
        let whole = [
            "2026-11-21T07:54:06.000Z",
            "2026-11-21T07:54:00.000Z",
            "2026-11-21T07:00:00.000Z",
            "2026-11-21T00:00:00.000Z",
        ];
        assert_eq!(starts, whole);
    }
}
