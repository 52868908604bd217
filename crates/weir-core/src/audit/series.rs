//! The sends counted in equal buckets, with the most that a bucket may hold: what a picture of the audit needs.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{limit::RateLimits, time::Timestamp};

/// The most buckets of a series; longer times get longer buckets.
pub const MAX_BUCKETS: usize = 2_000;

/// Bucket lengths in seconds that a reader can divide by; beyond the last, multiples of it.
const LENGTHS_S: [u64; 13] = [1, 2, 5, 10, 30, 60, 300, 600, 1_800, 3_600, 21_600, 43_200, 86_400];

/// Sends per bucket, from the bucket of the first send to the bucket of the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// Where the first bucket begins, a whole multiple of the bucket's length.
    pub start: Timestamp,
    pub bucket_ms: u64,
    pub counts: Vec<u32>,
    /// The most that one bucket may hold, from an instant to the next change. The first holds from `start`.
    pub caps: Vec<Cap>,
}

/// The most sends that a bucket may hold, from `at` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cap {
    pub at: Timestamp,
    /// `None`: unlimited.
    pub sends: Option<u64>,
}

/// Counts `sends`, earliest first, under limits that changed as `changes` say, oldest first.
pub fn series(sends: &[Timestamp], changes: &[(Timestamp, RateLimits)]) -> Option<Series> {
    let (first, last) = (*sends.first()?, *sends.last()?);
    let bucket_s = bucket_length_s(first, last);
    let bucket = Duration::from_secs(bucket_s);
    let number = |at: Timestamp| at.as_secs().div_euclid(bucket_s as i64);
    let start = Timestamp::from_secs(number(first) * bucket_s as i64);
    let mut counts = vec![0; (number(last) - number(first) + 1) as usize];
    for send in sends {
        counts[(number(*send) - number(first)) as usize] += 1;
    }
    Some(Series { start, bucket_ms: bucket_s * 1_000, counts, caps: caps(start, last, bucket, changes) })
}

fn bucket_length_s(first: Timestamp, last: Timestamp) -> u64 {
    // One bucket more than the length: the first and the last are seldom whole.
    let fits = |length_s: &u64| last.since(first).as_secs() / length_s + 2 <= MAX_BUCKETS as u64;
    let largest = LENGTHS_S[LENGTHS_S.len() - 1];
    LENGTHS_S.into_iter().find(fits).unwrap_or_else(|| {
        let days = last.since(first).as_secs().div_ceil(largest * (MAX_BUCKETS as u64 - 2));
        days * largest
    })
}

/// The caps that matter between `start` and `last`. What the oldest change set also holds for the time before it.
fn caps(start: Timestamp, last: Timestamp, bucket: Duration, changes: &[(Timestamp, RateLimits)]) -> Vec<Cap> {
    let mut caps: Vec<Cap> = Vec::new();
    for (at, limits) in changes {
        let cap = Cap { at: start.max(*at), sends: most_in(limits, bucket) };
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

/// The most sends that limits allow in any time of this length: `limit × ⌈length ÷ window⌉ + burst − 1` of the strictest.
fn most_in(limits: &RateLimits, length: Duration) -> Option<u64> {
    let most = |windows: u64, limit: u64, bound: u64| limit * (windows - 1) + bound;
    let allowed = limits.as_slice().iter().map(|limit| {
        let windows = length.as_secs().div_ceil(limit.period.window().as_secs()).max(1);
        most(windows, u64::from(limit.limit.get()), limit.bound())
    });
    allowed.min()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::{Period, RateLimit};

    fn limits(all: &[(u32, Period)]) -> RateLimits {
        RateLimits::new(all.iter().map(|(limit, period)| RateLimit::new(*limit, *period).unwrap()).collect()).unwrap()
    }

    #[test]
    fn sends_are_counted_by_whole_seconds() {
        let sends = [1_900, 2_000, 2_999, 5_000].map(Timestamp::from_millis);
        let series = series(&sends, &[(Timestamp::MIN, limits(&[(2, Period::Second)]))]).unwrap();
        assert_eq!((series.start, series.bucket_ms), (Timestamp::from_secs(1), 1_000));
        assert_eq!(series.counts, [1, 2, 0, 0, 1]);
        assert_eq!(series.caps, [Cap { at: Timestamp::from_secs(1), sends: Some(2) }]);
    }

    #[test]
    fn a_long_time_gets_longer_buckets() {
        for days in [1, 30, 400, 40_000] {
            let sends = [Timestamp::from_secs(0), Timestamp::from_secs(days * 86_400)];
            let series = series(&sends, &[]).unwrap();
            assert!(series.counts.len() <= MAX_BUCKETS, "{days} days make {} buckets", series.counts.len());
            assert_eq!(series.counts.iter().sum::<u32>(), 2);
        }
    }

    #[test]
    fn a_cap_steps_at_each_edit_inside_the_series() {
        let rate = |limit| limits(&[(limit, Period::Second)]);
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
        let both = limits(&[(10, Period::Second), (300, Period::Minute)]);
        assert_eq!(most_in(&both, Duration::from_secs(1)), Some(10));
        assert_eq!(most_in(&both, Duration::from_secs(10)), Some(100));
        assert_eq!(most_in(&both, Duration::from_secs(60)), Some(300));
        assert_eq!(most_in(&RateLimits::UNLIMITED, Duration::from_secs(1)), None);
    }
}
