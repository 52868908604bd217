//! The highest numbers of requests in flight of each second, as a histogram of fixed size.

/// Numbers below this have a bucket each.
const EXACT: u32 = 16;
/// Buckets for each doubling above, so that a figure is at most an eighth too high.
const STEPS: u32 = 8;
/// Enough for numbers up to a million.
const BUCKETS: usize = 16 + 17 * 8;

/// One-second peaks.
#[derive(Debug, Clone)]
pub struct Peaks {
    counts: Box<[u32; BUCKETS]>,
    total: u32,
    most: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PeakFigures {
    /// The seconds with a request.
    pub seconds: u32,
    /// At most an eighth too high.
    pub p99: u32,
    pub most: u32,
    /// A limit that these peaks stay below: ⌈1.5 × p99.9⌉. `None` before the first second.
    pub suggested: Option<u32>,
}

impl Default for Peaks {
    fn default() -> Self {
        Self { counts: Box::new([0; BUCKETS]), total: 0, most: 0 }
    }
}

impl Peaks {
    pub fn add(&mut self, peak: u32) {
        self.most = self.most.max(peak);
        self.total = self.total.saturating_add(1);
        let count = &mut self.counts[bucket(peak)];
        *count = count.saturating_add(1);
    }

    pub fn figures(&self) -> PeakFigures {
        let suggested = (self.total > 0).then(|| (f64::from(self.quantile(0.999)) * 1.5).ceil() as u32);
        PeakFigures { seconds: self.total, p99: self.quantile(0.99), most: self.most, suggested }
    }

    /// The smallest number that this part of the seconds does not exceed, rounded up to the end of its bucket.
    fn quantile(&self, part: f64) -> u32 {
        let wanted = (f64::from(self.total) * part).ceil() as u32;
        let mut seen = 0;
        let found = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        });
        found.map_or(0, |bucket| last_of(bucket as u32).min(self.most))
    }
}

fn bucket(number: u32) -> usize {
    let index = match number.checked_ilog2() {
        Some(log) if number >= EXACT => EXACT + (log - 4) * STEPS + (number >> (log - 3)) - STEPS,
        _ => number,
    };
    (index as usize).min(BUCKETS - 1)
}

/// The largest number of a bucket.
fn last_of(bucket: u32) -> u32 {
    if bucket < EXACT {
        return bucket;
    }
    let (log, step) = ((bucket - EXACT) / STEPS + 4, (bucket - EXACT) % STEPS);
    ((STEPS + step + 1) << (log - 3)) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_is_at_most_an_eighth_wide() {
        let mut last = 0;
        for number in 0..2_000_000 {
            let (index, end) = (bucket(number), last_of(bucket(number) as u32));
            assert!(index >= last && index < BUCKETS, "{number}");
            assert!(index == BUCKETS - 1 || end >= number && f64::from(end) <= f64::from(number) * 1.125, "{number}");
            last = index;
        }
    }

    #[test]
    fn the_suggested_limit_is_one_and_a_half_times_the_peak_of_all_but_one_second_of_a_thousand() {
        let mut peaks = Peaks::default();
        assert_eq!(peaks.figures(), PeakFigures::default());
        for _ in 0..999 {
            peaks.add(11);
        }
        peaks.add(900);
        assert_eq!(peaks.figures(), PeakFigures { seconds: 1_000, p99: 11, most: 900, suggested: Some(17) });
    }
}
