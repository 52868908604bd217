//! Rate limits: R sends per window W with a burst B, at most one limit per period.

use std::{num::NonZeroU32, time::Duration};

/// The largest `limit` (and `burst`) accepted. At a million a second the spacing is still longer than a microsecond,
/// the resolution of the clock of Redis.
pub const MAX_LIMIT: u32 = 1_000_000;
/// The slot width of limits whose slots may overlap. A slot that was granted before an edit must be over 100 ms after
/// the edit.
pub const NARROW_SLOT: Duration = Duration::from_millis(10);
/// How many limits a destination may have: one per period.
pub const MAX_LIMITS: usize = 4;

/// The window of a limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Period {
    Second,
    Minute,
    Hour,
    Day,
}

impl Period {
    /// Every period, the shortest first.
    pub const ALL: [Self; 4] = [Self::Second, Self::Minute, Self::Hour, Self::Day];

    /// The window length W.
    pub const fn window(self) -> Duration {
        Duration::from_secs(match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 3_600,
            Self::Day => 86_400,
        })
    }

    /// The widest slot J of a limit of this period: 1 % of the window of a second, and 1/600 of a longer window, at
    /// most 2.5 s. With a longer window a process may stall longer before it misses a slot.
    pub const fn widest_slot(self) -> Duration {
        Duration::from_millis(match self {
            Self::Second => 10,
            Self::Minute => 100,
            Self::Hour | Self::Day => 2_500,
        })
    }

    /// The name in JSON and in the store.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
        }
    }

    /// The period with this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|period| period.as_str() == name)
    }
}

/// At most `limit` sends in every window of one `period`; `limit + burst − 1` when `burst` is above 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RateLimit {
    pub limit: NonZeroU32,
    pub period: Period,
    pub burst: NonZeroU32,
}

impl RateLimit {
    /// A limit without burst. `None` when `limit` is 0 or above [`MAX_LIMIT`].
    pub fn new(limit: u32, period: Period) -> Option<Self> {
        Self::with_burst(limit, period, 1)
    }

    /// A limit with a burst, both 1 to [`MAX_LIMIT`].
    pub fn with_burst(limit: u32, period: Period, burst: u32) -> Option<Self> {
        if limit > MAX_LIMIT || burst > MAX_LIMIT {
            return None;
        }
        Some(Self { limit: NonZeroU32::new(limit)?, period, burst: NonZeroU32::new(burst)? })
    }

    /// The slot width J. Wide slots never overlap, so after an edit at most one wide slot may still be used. Slots are
    /// narrow when they would overlap otherwise: with a short spacing or a burst.
    pub fn slot_width(&self) -> Duration {
        let widest = self.period.widest_slot();
        let is_separate = self.burst.get() == 1 && self.spacing_with(widest) >= widest;
        if is_separate { widest } else { NARROW_SLOT }
    }

    /// The spacing T = (W + J) / R of slot starts, in nanoseconds, rounded up so that R spacings never fall short of W
    /// + J.
    pub fn spacing(&self) -> Duration {
        self.spacing_with(self.slot_width())
    }

    fn spacing_with(&self, slot_width: Duration) -> Duration {
        let span = (self.period.window() + slot_width).as_nanos() as u64;
        Duration::from_nanos(span.div_ceil(u64::from(self.limit.get())))
    }

    /// W + J, the length of R spacings.
    pub fn span(&self) -> Duration {
        self.period.window() + self.slot_width()
    }

    /// The most sends that any sliding window may hold: R + B − 1.
    pub fn bound(&self) -> u64 {
        u64::from(self.limit.get()) + u64::from(self.burst.get()) - 1
    }

    /// The limit as sends per second.
    pub fn per_second(&self) -> f64 {
        f64::from(self.limit.get()) / self.period.window().as_secs_f64()
    }
}

/// Why a set of limits is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLimits {
    #[error("at most {MAX_LIMITS} limits, one per period")]
    TooMany,
    #[error("period `{}` appears twice; give each period one limit", .0.as_str())]
    DuplicatePeriod(Period),
}

/// The limits of one destination: at most one per period, the shortest period first. Empty means unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RateLimits(Vec<RateLimit>);

impl RateLimits {
    /// No limit at all.
    pub const UNLIMITED: Self = Self(Vec::new());

    pub fn new(mut limits: Vec<RateLimit>) -> Result<Self, InvalidLimits> {
        if limits.len() > MAX_LIMITS {
            return Err(InvalidLimits::TooMany);
        }
        limits.sort_by_key(|limit| limit.period);
        match limits.windows(2).find(|pair| pair[0].period == pair[1].period) {
            Some(pair) => Err(InvalidLimits::DuplicatePeriod(pair[0].period)),
            None => Ok(Self(limits)),
        }
    }

    pub fn as_slice(&self) -> &[RateLimit] {
        &self.0
    }

    pub fn is_unlimited(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a machine can lose its power and be back within a window, so sends must be on disk to be counted. No
    /// machine is back within a second.
    pub fn outlast_a_restart(&self) -> bool {
        self.0.iter().any(|limit| limit.period > Period::Second)
    }

    /// The most permits that may wait in the delivery queue: the smallest bound; `None` when unlimited.
    pub fn max_queued(&self) -> Option<u64> {
        self.0.iter().map(RateLimit::bound).min()
    }

    /// The sustained rate in sends per second, by the limit that binds; `None` when unlimited.
    pub fn per_second(&self) -> Option<f64> {
        self.0.iter().map(RateLimit::per_second).reduce(f64::min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spacing_is_window_plus_slot_over_limit() {
        assert_eq!(RateLimit::new(1, Period::Second).unwrap().spacing(), Duration::from_millis(1_010));
        assert_eq!(RateLimit::new(1000, Period::Second).unwrap().spacing(), Duration::from_micros(1_010));
        assert_eq!(RateLimit::new(30, Period::Minute).unwrap().spacing(), Duration::from_nanos(2_003_333_334));
    }

    #[test]
    fn slots_are_wide_when_they_cannot_overlap_and_narrow_otherwise() {
        let width =
            |limit, period, burst| RateLimit::with_burst(limit, period, burst).unwrap().slot_width().as_millis();
        assert_eq!([1, 100, 1_000].map(|limit| width(limit, Period::Second, 1)), [10; 3]);
        assert_eq!([1, 300, 601, 602].map(|limit| width(limit, Period::Minute, 1)), [100, 100, 100, 10]);
        assert_eq!([1, 1_440, 1_442].map(|limit| width(limit, Period::Hour, 1)), [2_500, 2_500, 10]);
        assert_eq!(width(1, Period::Day, 1), 2_500);
        assert_eq!(width(1, Period::Day, 2), 10, "a burst's slots overlap");
    }

    #[test]
    fn limits_of_zero_out_of_range_or_with_the_same_period_are_refused() {
        assert_eq!(RateLimit::new(0, Period::Second), None);
        assert_eq!(RateLimit::new(MAX_LIMIT + 1, Period::Second), None);
        assert_eq!(RateLimit::with_burst(1, Period::Second, 0), None);
        let second = RateLimit::new(1, Period::Second).unwrap();
        assert_eq!(RateLimits::new(vec![second, second]), Err(InvalidLimits::DuplicatePeriod(Period::Second)));
        assert_eq!(RateLimits::new(vec![second; 5]), Err(InvalidLimits::TooMany));
    }
}
