//! Which limit of one period held when. An edit takes effect within [`EDIT_GRACE`], so the old limit counts that long.

use std::time::Duration;

use crate::{
    limit::{Period, RateLimit, RateLimits},
    time::Timestamp,
};

/// How long after an edit sends may still be paced by the limits before it.
pub const EDIT_GRACE: Duration = Duration::from_millis(100);

/// The limits of one period over time, earliest first, without gaps.
#[derive(Debug, Clone)]
pub struct InForce(Vec<Stretch>);

/// A time in which one limit, or none, of the period was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stretch {
    /// When it was set; of the first stretch, the far past.
    pub from: Timestamp,
    /// When it was replaced, without the grace; of the last stretch, the far future.
    pub until: Timestamp,
    /// `None`: no limit of this period.
    pub limit: Option<RateLimit>,
}

impl Stretch {
    /// Until when sends may have been paced by it.
    fn counts_until(&self) -> Timestamp {
        self.until + EDIT_GRACE
    }

    fn bound(&self) -> Option<u64> {
        self.limit.map(|limit| limit.bound())
    }
}

impl InForce {
    /// `changes` come oldest first. What the oldest set also holds for the time before it.
    pub fn new(changes: &[(Timestamp, RateLimits)], period: Period) -> Self {
        let mut stretches: Vec<Stretch> = Vec::new();
        for (at, limits) in changes {
            let limit = limits.as_slice().iter().copied().find(|limit| limit.period == period);
            match stretches.last_mut() {
                // An edit of another period's limit changes nothing here.
                Some(last) if last.limit == limit => {}
                Some(last) => {
                    last.until = *at;
                    stretches.push(Stretch { from: *at, until: Timestamp::MAX, limit });
                }
                None => stretches.push(Stretch { from: Timestamp::MIN, until: Timestamp::MAX, limit }),
            }
        }
        Self(stretches)
    }

    pub fn stretches(&self) -> &[Stretch] {
        &self.0
    }

    /// The limit set at `at`.
    pub fn limit_at(&self, at: Timestamp) -> Option<RateLimit> {
        let after = self.0.partition_point(|stretch| stretch.from <= at);
        self.0[..after].last().and_then(|stretch| stretch.limit)
    }

    /// The bound of the window `(last − window, last]`: the largest in force at any of its instants. `None` when it touches
    /// a time without a limit of this period.
    pub fn bound(&self, last: Timestamp, window: Duration) -> Option<u64> {
        let before_window = last - window;
        let begin = self.0.partition_point(|stretch| stretch.counts_until() <= before_window);
        let end = self.0.partition_point(|stretch| stretch.from <= last);
        let mut largest = None;
        for stretch in &self.0[begin..end] {
            largest = largest.max(Some(stretch.bound()?));
        }
        largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_second(limit: u32) -> RateLimits {
        RateLimits::new(vec![RateLimit::new(limit, Period::Second).unwrap()]).unwrap()
    }

    fn bound(in_force: &InForce, last_ms: i64) -> Option<u64> {
        in_force.bound(Timestamp::from_millis(last_ms), Period::Second.window())
    }

    #[test]
    fn a_lowered_limit_binds_the_windows_that_begin_after_the_grace() {
        let in_force = InForce::new(
            &[(Timestamp::MIN, per_second(100)), (Timestamp::from_secs(10), per_second(10))],
            Period::Second,
        );
        assert_eq!(bound(&in_force, 9_999), Some(100));
        assert_eq!(bound(&in_force, 11_099), Some(100));
        assert_eq!(bound(&in_force, 11_100), Some(10));
    }

    #[test]
    fn a_raised_limit_binds_at_once() {
        let in_force = InForce::new(
            &[(Timestamp::MIN, per_second(10)), (Timestamp::from_secs(10), per_second(100))],
            Period::Second,
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
        let in_force = InForce::new(&changes, Period::Second);
        let bounds = [9_999, 10_000, 21_099, 21_100].map(|last| bound(&in_force, last));
        assert_eq!(bounds, [Some(10), None, None, Some(10)]);
    }

    #[test]
    fn the_oldest_limits_hold_for_the_time_before_them() {
        let in_force = InForce::new(&[(Timestamp::from_secs(10), per_second(3))], Period::Second);
        assert_eq!(bound(&in_force, 2_000), Some(3));
    }

    #[test]
    fn edits_of_another_period_and_of_nothing_are_passed_over() {
        let both =
            RateLimits::new(vec![RateLimit::new(3, Period::Second).unwrap(), RateLimit::new(9, Period::Hour).unwrap()])
                .unwrap();
        let changes = [
            (Timestamp::MIN, per_second(3)),
            (Timestamp::from_secs(10), both),
            (Timestamp::from_secs(20), per_second(3)),
        ];
        assert_eq!(InForce::new(&changes, Period::Second).stretches().len(), 1);
        let hours = InForce::new(&changes, Period::Hour);
        assert_eq!(hours.stretches().len(), 3);
        assert_eq!(hours.limit_at(Timestamp::from_secs(9)), None);
        assert_eq!(hours.limit_at(Timestamp::from_secs(10)).map(|limit| limit.limit.get()), Some(9));
    }

    #[test]
    fn a_burst_is_part_of_the_bound() {
        let limits = RateLimits::new(vec![RateLimit::with_burst(10, Period::Second, 5).unwrap()]).unwrap();
        let in_force = InForce::new(&[(Timestamp::MIN, limits)], Period::Second);
        assert_eq!(bound(&in_force, 5_000), Some(14));
    }
}
