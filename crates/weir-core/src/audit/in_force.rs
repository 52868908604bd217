//! Which limit of one period was in force when, and which limit judges a window.
//!
//! A window is judged by the largest limit in force during it. An edit takes effect within [`EDIT_GRACE`]: the old
//! limit counts until then, so the new limit alone judges the windows that begin at edit + grace or later. A window
//! that touches a time without a limit of the period is not judged. A window that begins before the removal of a limit
//! is cut off at the removal and judged.
//!
//! ```text
//!   limit 10, lowered to 1 at e        windows that begin before e + 100 ms: 10; later windows: 1
//!   limit 10, raised to 20 at e        windows that end by e: 10; windows that end later: 20
//!   limit 10, removed at e             windows are cut off at e: 10
//! ```

use std::{collections::BTreeSet, time::Duration};

use crate::{
    limit::{Period, RateLimit, RateLimits, Unit},
    time::Timestamp,
};

/// How long after an edit sends may still be paced by the limits before it.
pub const EDIT_GRACE: Duration = Duration::from_millis(100);

/// The resolution of [`Timestamp`].
const TICK: Duration = Duration::from_nanos(1);

/// The limits of one period over time, earliest first, without gaps.
#[derive(Debug, Clone)]
pub struct InForce(Vec<LimitInterval>);

/// An interval in which one limit of the period was set, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LimitInterval {
    /// When the limit was set. The first interval begins at [`Timestamp::MIN`].
    pub from: Timestamp,
    /// When the limit was replaced, without the grace. The last interval ends at [`Timestamp::MAX`].
    pub until: Timestamp,
    /// `None`: no limit of this period.
    pub limit: Option<RateLimit>,
}

impl LimitInterval {
    /// The end of the time in which the limit may have paced sends.
    pub(super) fn counts_until(&self) -> Timestamp {
        self.until + EDIT_GRACE
    }

    fn bound(&self) -> Option<u64> {
        self.limit.map(|limit| limit.bound())
    }
}

/// The limit that judges the windows which begin in `[from, until)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowLimit {
    pub from: Timestamp,
    pub until: Timestamp,
    /// No window reaches beyond this instant: the limit is removed then, or the judged range ends.
    pub end: Timestamp,
    pub limit: RateLimit,
}

/// Which windows are judged, and with which grace after an edit.
#[derive(Debug, Clone, Copy)]
pub struct Windows {
    pub length: Duration,
    /// How long after an edit the old limit counts.
    pub grace: Duration,
    /// The judged range: windows lie within `[from, to)`.
    pub from: Timestamp,
    pub to: Timestamp,
}

impl Windows {
    /// All windows of one period's length.
    pub const fn of(period: Period) -> Self {
        Self { length: period.window(), grace: EDIT_GRACE, from: Timestamp::MIN, to: Timestamp::MAX }
    }

    /// The beginning of the earliest window that ends with a send at `last`.
    pub(super) fn earliest(&self, last: Timestamp) -> Timestamp {
        last - self.length + TICK
    }
}

impl WindowLimit {
    /// Whether the limit judges no window that holds a send at `last` or later.
    pub(super) fn is_over(&self, last: Timestamp, windows: &Windows) -> bool {
        self.until <= windows.earliest(last) || self.end <= last
    }
}

impl InForce {
    /// The limits in requests. `changes` are ordered oldest first. The oldest limits also apply to the time before them.
    pub fn new(changes: &[(Timestamp, RateLimits)], period: Period) -> Self {
        Self::of_unit(changes, period, Unit::Request)
    }

    /// The limits of one unit.
    pub fn of_unit(changes: &[(Timestamp, RateLimits)], period: Period, unit: Unit) -> Self {
        let mut intervals: Vec<LimitInterval> = Vec::new();
        for (at, limits) in changes {
            // The margin is for the receiver, whose windows are those of the limit.
            let limit = limits.as_slice().iter().find(|limit| (limit.period, limit.unit()) == (period, unit));
            let limit = limit.map(RateLimit::as_judged);
            match intervals.last_mut() {
                // An edit of another period's limit changes nothing here.
                Some(last) if last.limit == limit => {}
                Some(last) => {
                    last.until = *at;
                    intervals.push(LimitInterval { from: *at, until: Timestamp::MAX, limit });
                }
                None => intervals.push(LimitInterval { from: Timestamp::MIN, until: Timestamp::MAX, limit }),
            }
        }
        Self(intervals)
    }

    pub fn intervals(&self) -> &[LimitInterval] {
        &self.0
    }

    /// The limit that is set at `at`.
    pub fn limit_at(&self, at: Timestamp) -> Option<RateLimit> {
        let after = self.0.partition_point(|interval| interval.from <= at);
        self.0[..after].last().and_then(|interval| interval.limit)
    }

    /// The bound of the window `(last − window, last]`: the largest bound in force at any instant of the window. `None`
    /// when the window touches a time without a limit of this period.
    pub fn bound(&self, last: Timestamp, window: Duration) -> Option<u64> {
        let before_window = last - window;
        let begin = self.0.partition_point(|interval| interval.counts_until() <= before_window);
        let end = self.0.partition_point(|interval| interval.from <= last);
        let mut largest = None;
        for interval in &self.0[begin..end] {
            largest = largest.max(Some(interval.bound()?));
        }
        largest
    }

    /// Which limit judges which windows, earliest first, without overlaps.
    pub fn window_limits(&self, windows: &Windows) -> Vec<WindowLimit> {
        let same_kind = |a: &LimitInterval, b: &LimitInterval| a.limit.is_some() == b.limit.is_some();
        let mut window_limits = Vec::new();
        for (n, intervals) in self.0.chunk_by(same_kind).enumerate() {
            // The grace also applies after a time without a limit. Nothing lies before the first interval.
            let grace = if n == 0 { Duration::ZERO } else { windows.grace };
            push_window_limits(intervals, grace, windows, &mut window_limits);
        }
        window_limits
    }
}

/// Appends the window limits of successive intervals that all have a limit, or all have none.
fn push_window_limits(
    intervals: &[LimitInterval],
    grace: Duration,
    windows: &Windows,
    window_limits: &mut Vec<WindowLimit>,
) {
    let (Some(first), Some(last)) = (intervals.first(), intervals.last()) else { return };
    // Windows begin at `begin` or later, and none reaches beyond `end`.
    let (begin, end) = ((first.from + grace).max(windows.from), last.until.min(windows.to));
    // A limit counts for the windows that reach its beginning, and stops counting for windows that begin after its
    // grace.
    let mut steps = Vec::new();
    for (index, interval) in intervals.iter().enumerate() {
        // An interval without a limit judges nothing, and neither does one that begins at the end or later.
        let (Some(limit), true) = (interval.limit, interval.from < end) else { continue };
        let enters = if index == 0 { begin } else { windows.earliest(interval.from).max(begin) };
        let leaves = if interval.until >= end { end } else { (interval.until + windows.grace).max(begin) };
        steps.push((enters, false, index, limit));
        steps.push((leaves, true, index, limit));
    }
    steps.sort_by_key(|&(at, leaves, index, _)| (at, leaves, index));
    // Between two steps the largest counting limit judges. Of equal limits the later one judges.
    let mut counting: BTreeSet<(u64, usize)> = BTreeSet::new();
    for (n, &(at, leaves, index, limit)) in steps.iter().enumerate() {
        match leaves {
            true => counting.remove(&(limit.bound(), index)),
            false => counting.insert((limit.bound(), index)),
        };
        let until = steps.get(n + 1).map_or(end, |next| next.0).min(end);
        let judge = counting.last().and_then(|&(_, index)| intervals[index].limit);
        // Steps at the same instant leave no windows between them.
        let (Some(limit), true) = (judge, at < until) else { continue };
        // If the same limit judges the next windows too, its entry becomes longer.
        match window_limits.last_mut() {
            Some(before) if before.limit == limit && before.until == at => before.until = until,
            _ => window_limits.push(WindowLimit { from: at, until, end, limit }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_second(limit: u32) -> RateLimits {
        RateLimits::new(vec![RateLimit::new(limit, Period::SECOND).unwrap()]).unwrap()
    }

    fn bound(in_force: &InForce, last_ms: i64) -> Option<u64> {
        in_force.bound(Timestamp::from_millis(last_ms), Period::SECOND.window())
    }

    #[test]
    fn a_lowered_limit_binds_the_windows_that_begin_after_the_grace() {
        let in_force = InForce::new(
            &[(Timestamp::MIN, per_second(100)), (Timestamp::from_secs(10), per_second(10))],
            Period::SECOND,
        );
        assert_eq!(bound(&in_force, 9_999), Some(100));
        assert_eq!(bound(&in_force, 11_099), Some(100));
        assert_eq!(bound(&in_force, 11_100), Some(10));
    }

    #[test]
    fn a_raised_limit_binds_at_once() {
        let in_force = InForce::new(
            &[(Timestamp::MIN, per_second(10)), (Timestamp::from_secs(10), per_second(100))],
            Period::SECOND,
        );
        assert_eq!(bound(&in_force, 9_999), Some(10));
        assert_eq!(bound(&in_force, 10_000), Some(100));
    }

    #[test]
    fn a_window_that_touches_a_time_without_a_limit_is_unbounded() {
        let changes = [
            (Timestamp::MIN, per_second(10)),
            (Timestamp::from_secs(10), RateLimits::UNLIMITED),
            (Timestamp::from_secs(20), per_second(10)),
        ];
        let in_force = InForce::new(&changes, Period::SECOND);
        let bounds = [9_999, 10_000, 21_099, 21_100].map(|last| bound(&in_force, last));
        assert_eq!(bounds, [Some(10), None, None, Some(10)]);
    }

    #[test]
    fn the_oldest_limits_hold_for_the_time_before_them() {
        let in_force = InForce::new(&[(Timestamp::from_secs(10), per_second(3))], Period::SECOND);
        assert_eq!(bound(&in_force, 2_000), Some(3));
    }

    #[test]
    fn edits_that_do_not_change_the_period_are_ignored() {
        let both =
            RateLimits::new(vec![RateLimit::new(3, Period::SECOND).unwrap(), RateLimit::new(9, Period::HOUR).unwrap()])
                .unwrap();
        let changes = [
            (Timestamp::MIN, per_second(3)),
            (Timestamp::from_secs(10), both),
            (Timestamp::from_secs(20), per_second(3)),
        ];
        assert_eq!(InForce::new(&changes, Period::SECOND).intervals().len(), 1);
        let hours = InForce::new(&changes, Period::HOUR);
        assert_eq!(hours.intervals().len(), 3);
        assert_eq!(hours.limit_at(Timestamp::from_secs(9)), None);
        assert_eq!(hours.limit_at(Timestamp::from_secs(10)).map(|limit| limit.limit.get()), Some(9));
    }

    #[test]
    fn a_burst_is_part_of_the_bound() {
        let limits = RateLimits::new(vec![RateLimit::with_burst(10, Period::SECOND, 5).unwrap()]).unwrap();
        let in_force = InForce::new(&[(Timestamp::MIN, limits)], Period::SECOND);
        assert_eq!(bound(&in_force, 5_000), Some(14));
    }

    fn windows() -> Windows {
        Windows::of(Period::SECOND)
    }

    /// `from`, `until` and `end` in milliseconds, and the limit, of each window limit.
    fn judged_by(changes: &[(i64, RateLimits)], windows: &Windows) -> Vec<(i64, i64, i64, u32)> {
        let changes: Vec<_> =
            changes.iter().map(|(ms, limits)| (Timestamp::from_millis(*ms), limits.clone())).collect();
        let far = |at: Timestamp| if at == Timestamp::MAX { i64::MAX } else { at.as_millis() };
        let shown = |w: WindowLimit| (far(w.from), far(w.until), far(w.end), w.limit.limit.get());
        InForce::new(&changes, Period::SECOND).window_limits(windows).into_iter().map(shown).collect()
    }

    const FAR: i64 = i64::MAX;

    #[test]
    fn a_lowered_limit_judges_windows_after_the_grace_and_a_raised_one_windows_that_reach_the_edit() {
        let lowered = [(0, per_second(10)), (5_000, per_second(1))];
        assert_eq!(judged_by(&lowered, &windows()), [(0, 5_100, FAR, 10), (5_100, FAR, FAR, 1)]);
        let raised = [(0, per_second(10)), (5_000, per_second(20))];
        assert_eq!(judged_by(&raised, &windows()), [(0, 4_000, FAR, 10), (4_000, FAR, FAR, 20)]);
        let there_and_back = [(0, per_second(10)), (5_000, per_second(1)), (5_500, per_second(10))];
        assert_eq!(
            judged_by(&there_and_back, &windows()),
            [(0, FAR, FAR, 10)],
            "the limit of 10 is in force during each window"
        );
    }

    #[test]
    fn windows_of_a_removed_limit_end_with_its_removal_and_those_of_an_added_limit_begin_after_the_grace() {
        let changes = [(0, per_second(10)), (5_000, RateLimits::UNLIMITED), (9_000, per_second(3))];
        assert_eq!(judged_by(&changes, &windows()), [(0, 5_000, 5_000, 10), (9_100, FAR, FAR, 3)]);
    }

    #[test]
    fn windows_lie_within_the_judged_range() {
        let changes = [(0, per_second(10)), (5_000, per_second(1)), (9_000, per_second(20))];
        let at = Timestamp::from_millis;
        let inside = Windows { from: at(5_200), to: at(8_999), ..windows() };
        assert_eq!(judged_by(&changes, &inside), [(5_200, 8_999, 8_999, 1)]);
        let across = Windows { from: at(5_050), to: at(9_001), ..windows() };
        let expected = [(5_050, 5_100, 9_001, 10), (5_100, 8_000, 9_001, 1), (8_000, 9_001, 9_001, 20)];
        assert_eq!(judged_by(&changes, &across), expected);
    }
}
