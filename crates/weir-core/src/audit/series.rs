//! The sends counted in equal buckets, with the most sends that a bucket may hold: the data of the audit's chart.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{limit::RateLimits, time::Timestamp};

/// The most buckets of a series; longer ranges get longer buckets. The chart is less than a thousand pixels wide, so
/// more buckets would not be seen.
pub const MAX_BUCKETS: usize = 2_000;

/// Bucket lengths in seconds. Each is a multiple of the one before, so that counts can be merged. Longer lengths double
/// the last.
const LENGTHS_S: [u64; 12] = [1, 2, 10, 30, 60, 300, 600, 1_800, 3_600, 21_600, 43_200, 86_400];

/// Sends per bucket, from the bucket of the first send to the bucket of the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// The beginning of the first bucket, a whole multiple of the bucket's length.
    pub start: Timestamp,
    pub bucket_ms: u64,
    pub counts: Vec<u32>,
    /// The most sends that one bucket may hold. Each entry applies from its instant until the next entry; the first
    /// applies from `start`.
    pub caps: Vec<Cap>,
}

/// The most sends that a bucket may hold, from `at` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    pub at: Timestamp,
    /// `None`: unlimited.
    pub sends: Option<u64>,
}

/// Counts sends in buckets of a second. When there would be more than [`MAX_BUCKETS`], the buckets become longer.
#[derive(Debug, Default)]
pub(super) struct Counter {
    bucket_s: u64,
    /// The number of the first bucket since the epoch.
    first: i64,
    counts: Vec<u32>,
    last: Option<Timestamp>,
}

impl Counter {
    /// Adds a send. Sends are added earliest first.
    pub(super) fn send(&mut self, at: Timestamp) {
        // The series begins with the second of the first send.
        if self.last.is_none() {
            (self.bucket_s, self.first) = (LENGTHS_S[0], at.as_secs());
        }
        self.last = Some(at);
        // A send beyond the last bucket makes all buckets longer.
        while self.place(at) >= MAX_BUCKETS {
            self.lengthen();
        }
        let place = self.place(at);
        if place >= self.counts.len() {
            self.counts.resize(place + 1, 0);
        }
        self.counts[place] = self.counts[place].saturating_add(1);
    }

    fn place(&self, at: Timestamp) -> usize {
        usize::try_from(at.as_secs().div_euclid(self.bucket_s as i64) - self.first).unwrap_or(0)
    }

    /// Merges the counts into buckets of the next length, a multiple of the current one.
    fn lengthen(&mut self) {
        let next = LENGTHS_S.into_iter().find(|length_s| *length_s > self.bucket_s).unwrap_or(self.bucket_s * 2);
        // The new buckets begin at multiples of their length, so each old bucket lies in one of them.
        let factor = (next / self.bucket_s) as i64;
        let first = self.first.div_euclid(factor);
        let mut counts: Vec<u32> = Vec::new();
        for (number, count) in (self.first..).zip(self.counts.drain(..)) {
            let place = usize::try_from(number.div_euclid(factor) - first).unwrap_or(0);
            if place >= counts.len() {
                counts.resize(place + 1, 0);
            }
            counts[place] = counts[place].saturating_add(count);
        }
        *self = Self { bucket_s: next, first, counts, last: self.last };
    }

    /// The series. `changes` are the limits and when each came into force, oldest first. `None` when nothing was sent.
    pub(super) fn series(self, changes: &[(Timestamp, RateLimits)]) -> Option<Series> {
        let start = Timestamp::from_secs(self.first * self.bucket_s as i64);
        let caps = caps(start, self.last?, Duration::from_secs(self.bucket_s), changes);
        Some(Series { start, bucket_ms: self.bucket_s * 1_000, counts: self.counts, caps })
    }
}

/// The caps between `start` and `last`. The oldest limits also apply to the time before them.
fn caps(start: Timestamp, last: Timestamp, bucket: Duration, changes: &[(Timestamp, RateLimits)]) -> Vec<Cap> {
    let mut caps: Vec<Cap> = Vec::new();
    for (at, limits) in changes {
        let cap = Cap { at: start.max(*at), sends: most_in(limits, bucket) };
        // The oldest limits apply from the start. Later ones count if they change the cap before the last send.
        match caps.last_mut() {
            None => caps.push(Cap { at: start, ..cap }),
            Some(_) if *at > last => break,
            Some(before) if before.sends == cap.sends => {}
            Some(before) if *at <= start => *before = cap,
            Some(_) => caps.push(cap),
        }
    }
    caps
}

/// The most sends that limits allow in any interval of this length: `limit × ⌈length ÷ window⌉ + burst − 1` of the
/// strictest, or one for each minimum interval that has begun. A limit in costs allows as many of cost 1.
fn most_in(limits: &RateLimits, length: Duration) -> Option<u64> {
    let most = |windows: u64, limit: u64, bound: u64| limit * (windows - 1) + bound;
    let allowed = limits.as_slice().iter().map(|limit| {
        let windows = length.as_secs().div_ceil(limit.period.window().as_secs()).max(1);
        most(windows, u64::from(limit.limit.get()), limit.bound())
    });
    let spaced = limits.min_interval().map(|interval| length.as_millis().div_ceil(interval.as_millis().into()) as u64);
    allowed.chain(spaced).min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{MinInterval, Period, RateLimit};

    fn series(sends: &[Timestamp], changes: &[(Timestamp, RateLimits)]) -> Option<Series> {
        let mut counter = Counter::default();
        sends.iter().for_each(|send| counter.send(*send));
        counter.series(changes)
    }

    fn limits(all: &[(u32, Period)]) -> RateLimits {
        RateLimits::new(all.iter().map(|(limit, period)| RateLimit::new(*limit, *period).unwrap()).collect()).unwrap()
    }

    #[test]
    fn sends_are_counted_by_whole_seconds() {
        let sends = [1_900, 2_000, 2_999, 5_000].map(Timestamp::from_millis);
        let series = series(&sends, &[(Timestamp::MIN, limits(&[(2, Period::SECOND)]))]).unwrap();
        assert_eq!((series.start, series.bucket_ms), (Timestamp::from_secs(1), 1_000));
        assert_eq!(series.counts, [1, 2, 0, 0, 1]);
        assert_eq!(series.caps, [Cap { at: Timestamp::from_secs(1), sends: Some(2) }]);
    }

    #[test]
    fn a_long_range_gets_longer_buckets() {
        for days in [1, 30, 400, 40_000] {
            let sends = [Timestamp::from_secs(0), Timestamp::from_secs(days * 86_400)];
            let series = series(&sends, &[]).unwrap();
            assert!(series.counts.len() <= MAX_BUCKETS, "{days} days make {} buckets", series.counts.len());
            assert_eq!(series.counts.iter().sum::<u32>(), 2);
        }
    }

    #[test]
    fn merged_buckets_count_the_sends_of_their_interval() {
        let sends: Vec<_> = (0..9_000).map(|n| Timestamp::from_secs(1_763_710_207 + n)).collect();
        let series = series(&sends, &[]).unwrap();
        assert_eq!((series.start, series.bucket_ms), (Timestamp::from_secs(1_763_710_200), 10_000));
        let (first, rest) = series.counts.split_first().unwrap();
        let (last, middle) = rest.split_last().unwrap();
        assert!(*first == 3 && *last == 7 && middle.iter().all(|count| *count == 10), "{:?}", series.counts);
    }

    #[test]
    fn a_cap_steps_at_each_edit_inside_the_series() {
        let rate = |limit| limits(&[(limit, Period::SECOND)]);
        let at = Timestamp::from_secs;
        let changes = [
            (at(1), rate(5)),
            (at(2), rate(6)),
            (at(12), rate(7)),
            (at(13), rate(7)),
            (at(14), RateLimits::UNLIMITED),
            (at(99), rate(8)),
        ];
        let series = series(&[at(10), at(20)], &changes).unwrap();
        let expected = [(at(10), Some(6)), (at(12), Some(7)), (at(14), None)].map(|(at, sends)| Cap { at, sends });
        assert_eq!(series.caps, expected);
    }

    #[test]
    fn the_cap_of_a_bucket_is_that_of_the_strictest_limit() {
        let both = limits(&[(10, Period::SECOND), (300, Period::MINUTE)]);
        assert_eq!(most_in(&both, Duration::from_secs(1)), Some(10));
        assert_eq!(most_in(&both, Duration::from_secs(10)), Some(100));
        assert_eq!(most_in(&both, Duration::from_secs(60)), Some(300));
        assert_eq!(most_in(&RateLimits::UNLIMITED, Duration::from_secs(1)), None);
        let spaced = |millis| RateLimits::UNLIMITED.with_min_interval(MinInterval::from_millis(millis));
        assert_eq!(
            [300, 1_000, 7_000].map(|millis| most_in(&spaced(millis), Duration::from_secs(1))),
            [4, 1, 1].map(Some)
        );
    }
}
