//! Latencies in buckets of a fixed precision. The number of buckets depends on the longest latency, not on the number
//! of latencies.

use std::time::Duration;

use super::LatencyPercentiles;

/// Below 2^11 microseconds, each microsecond has a bucket. Above, the range from one power of two to the next is
/// divided into 2^10 buckets, so no bucket is wider than a thousandth of its latencies.
const EXACT_BITS: u32 = 11;

/// The number of latencies in each bucket. A latency of an hour needs 22,000 buckets, of a year 36,000, and the longest
/// 57,000.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    buckets: Vec<u64>,
    count: u64,
    max_us: u64,
}

impl Histogram {
    pub(super) fn record(&mut self, latency: Duration) {
        let micros = u64::try_from(latency.as_micros()).unwrap_or(u64::MAX);
        let bucket = bucket(micros);
        if bucket >= self.buckets.len() {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.count += 1;
        self.max_us = self.max_us.max(micros);
    }

    /// Percentiles by nearest rank: the smallest latency that at least this share of all latencies does not exceed. A
    /// percentile is at most a thousandth too low. The maximum is exact.
    pub(super) fn percentiles(&self) -> LatencyPercentiles {
        let milliseconds = |micros: u64| micros as f64 / 1_000.0;
        // Counts from the shortest latency up, until the rank is reached.
        let rank = |percent: u64| {
            let rank = (self.count * percent).div_ceil(100);
            let mut seen = 0;
            let reaches = |held: &u64| {
                seen += held;
                seen >= rank
            };
            self.buckets.iter().position(reaches).map(|bucket| milliseconds(smallest(bucket)))
        };
        let max = (self.count > 0).then(|| milliseconds(self.max_us));
        LatencyPercentiles { p50: rank(50), p95: rank(95), p99: rank(99), max }
    }
}

fn bucket(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(EXACT_BITS);
    ((u64::from(shift) << (EXACT_BITS - 1)) + (micros >> shift)) as usize
}

/// The smallest latency of a bucket, in microseconds.
fn smallest(bucket: usize) -> u64 {
    let half = 1 << (EXACT_BITS - 1);
    let bucket = bucket as u64;
    let shift = (bucket / half).saturating_sub(1);
    (bucket - shift * half) << shift
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn percentiles(latencies: impl IntoIterator<Item = Duration>) -> LatencyPercentiles {
        let mut histogram = Histogram::default();
        latencies.into_iter().for_each(|latency| histogram.record(latency));
        histogram.percentiles()
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let of_hundred = percentiles((1..=100).rev().map(|n| Duration::from_micros(n * 20)));
        let expected = LatencyPercentiles { p50: Some(1.0), p95: Some(1.9), p99: Some(1.98), max: Some(2.0) };
        assert_eq!(of_hundred, expected);
        assert_eq!(percentiles([Duration::from_micros(7)]).p50, Some(0.007));
        assert_eq!(percentiles([]), LatencyPercentiles::default());
    }

    #[test]
    fn the_longest_latency_needs_no_more_than_57_000_buckets() {
        assert!(bucket(u64::MAX) < 57_000);
        assert_eq!(percentiles([Duration::MAX]).max, Some(u64::MAX as f64 / 1_000.0));
    }

    proptest! {
        #[test]
        fn a_bucket_begins_at_most_a_thousandth_below_its_latencies(micros in any::<u64>(), bits in 0_u32..64) {
            let micros = micros >> bits;
            let begins = smallest(bucket(micros));
            prop_assert!(begins <= micros && (micros - begins) as f64 <= micros as f64 / 1_000.0, "{begins} for {micros}");
            prop_assert_eq!(bucket(begins), bucket(micros));
        }

        #[test]
        fn percentiles_agree_with_a_sorted_list(mut micros in proptest::collection::vec(0_u64..100_000_000, 1..200)) {
            let found = percentiles(micros.iter().copied().map(Duration::from_micros));
            micros.sort_unstable();
            for (percent, found) in [(50, found.p50), (95, found.p95), (99, found.p99), (100, found.max)] {
                let exact = micros[(micros.len() * percent).div_ceil(100) - 1] as f64 / 1_000.0;
                prop_assert!(found.is_some_and(|found| found <= exact && found >= exact * 0.999), "{found:?}, {exact}");
            }
        }
    }
}
