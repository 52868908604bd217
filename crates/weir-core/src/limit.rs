//! Rate limits: R sends per window W with a burst B and a margin. `period` has the windows, `rate_limits` the limits of a
//! destination together.

mod period;
mod rate_limits;

use std::{num::NonZeroU32, time::Duration};

pub(crate) use self::rate_limits::slot_width;
pub use self::{
    period::Period,
    rate_limits::{
        Bound, InvalidLimits, MAX_LIMITS, MIN_INTERVAL_MS, MinInterval, NARROWEST_SLOT, RateLimits, SLOTS_PER_INTERVAL,
    },
};

/// The largest `limit` (and `burst`) accepted. At a million a second the spacing is still longer than a microsecond,
/// the resolution of the clock of Redis.
pub const MAX_LIMIT: u32 = 1_000_000;
/// The slot width of limits whose slots may overlap. A slot that was granted before an edit must be over 100 ms after
/// the edit.
pub const NARROW_SLOT: Duration = Duration::from_millis(10);
/// The width of a slot of an unlimited destination. It bounds how long a send may still start after a pause: together
/// with [`GRANT_AHEAD`](crate::limiter::GRANT_AHEAD) less than 100 ms.
pub const UNLIMITED_SLOT_WIDTH: Duration = Duration::from_millis(50);
/// The largest margin of a limit: far more than a network delays a request without losing it.
pub const MAX_MARGIN_MS: u32 = 10_000;
/// A limit of the window shape counts its slots in so many buckets.
pub const BUCKETS: u64 = 600;

/// How the sends of a limit may lie in its window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Shape {
    /// A spacing apart.
    #[default]
    Even,
    /// Anywhere: all of them may start at once.
    Window,
}

impl Shape {
    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// What a limit counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case", const_into_str)]
pub enum Unit {
    /// Each send as one.
    #[default]
    Request,
    /// Each send as the cost of its event. Such a limit has the window shape.
    Cost,
}

impl Unit {
    pub const ALL: [Self; 2] = [Self::Request, Self::Cost];

    pub const fn as_str(self) -> &'static str {
        self.into_str()
    }

    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }
}

/// At most `limit` sends in every window of one `period`; `limit + burst − 1` when `burst` is above 1.
///
/// With a margin the same number of sends fits into a longer window, of a period and the margin. A receiver that counts
/// by arrival sees at most `limit` requests per period, if its network delays no request by more than the margin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RateLimit {
    pub limit: NonZeroU32,
    pub period: Period,
    pub burst: NonZeroU32,
    /// At most [`MAX_MARGIN_MS`].
    margin_ms: u32,
    shape: Shape,
    unit: Unit,
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
        Some(Self {
            limit: NonZeroU32::new(limit)?,
            period,
            burst: NonZeroU32::new(burst)?,
            margin_ms: 0,
            shape: Shape::Even,
            unit: Unit::Request,
        })
    }

    /// The limit in another shape. `None` for a window with a burst: it allows all sends at once as it is.
    pub fn with_shape(self, shape: Shape) -> Option<Self> {
        (shape == Shape::Even || self.burst.get() == 1).then_some(Self { shape, ..self })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The shape in answers: none for the usual one.
    pub fn unusual_shape(&self) -> Option<String> {
        (self.shape != Shape::Even).then(|| self.shape.as_str().to_owned())
    }

    pub fn is_window(&self) -> bool {
        self.shape == Shape::Window
    }

    /// The limit counting costs, in the window shape. `None` with a burst.
    pub fn in_costs(self) -> Option<Self> {
        Some(Self { unit: Unit::Cost, ..self.with_shape(Shape::Window)? })
    }

    pub fn unit(&self) -> Unit {
        self.unit
    }

    pub fn is_in_costs(&self) -> bool {
        self.unit == Unit::Cost
    }

    /// The unit in answers: none for the usual one.
    pub fn unusual_unit(&self) -> Option<String> {
        self.is_in_costs().then(|| self.unit.as_str().to_owned())
    }

    /// How much of the limit a send takes whose event has this cost.
    pub fn taken_by(&self, cost: u32) -> u32 {
        if self.is_in_costs() { cost } else { 1 }
    }

    /// The limit with another margin. `None` when it is above [`MAX_MARGIN_MS`].
    pub fn with_margin(self, margin_ms: u32) -> Option<Self> {
        (margin_ms <= MAX_MARGIN_MS).then_some(Self { margin_ms, ..self })
    }

    /// The same limit without its margin.
    pub fn without_margin(&self) -> Self {
        Self { margin_ms: 0, ..*self }
    }

    /// The same limit in the window shape.
    pub fn as_window(&self) -> Self {
        Self { shape: Shape::Window, burst: NonZeroU32::MIN, ..*self }
    }

    /// The limit as a judge of windows sees it: neither margin nor shape changes how many sends a window may hold.
    pub fn as_judged(&self) -> Self {
        Self { shape: Shape::Even, ..self.without_margin() }
    }

    pub fn margin_ms(&self) -> u32 {
        self.margin_ms
    }

    pub fn margin(&self) -> Duration {
        Duration::from_millis(self.margin_ms.into())
    }

    /// The slot width J. Wide slots never overlap, so after an edit at most one wide slot may still be used. Slots are
    /// narrow when they would overlap otherwise: with a short spacing or a burst. In the window shape they overlap, and
    /// are as wide as those of an unlimited destination at most.
    pub fn slot_width(&self) -> Duration {
        let widest = self.period.widest_slot();
        if self.is_window() {
            return widest.min(UNLIMITED_SLOT_WIDTH);
        }
        let is_separate = self.burst.get() == 1 && self.spacing_with(widest) >= widest;
        if is_separate { widest } else { NARROW_SLOT }
    }

    /// The spacing T = (W + J + margin) / R of slot starts, in nanoseconds, rounded up so that R spacings never fall
    /// short of W + J + margin.
    pub fn spacing(&self) -> Duration {
        self.spacing_with(self.slot_width())
    }

    fn spacing_with(&self, slot_width: Duration) -> Duration {
        let span = (self.period.window() + slot_width + self.margin()).as_nanos() as u64;
        Duration::from_nanos(span.div_ceil(u64::from(self.limit.get())))
    }

    /// In a limit of the window shape, slots are counted in buckets of a 600th of the window and margin, in whole
    /// microseconds.
    pub fn bucket(&self) -> Duration {
        let micros = (self.period.window() + self.margin()).as_micros() as u64;
        Duration::from_micros(micros.div_ceil(BUCKETS))
    }

    /// W + J + margin, the length of R spacings.
    pub fn span(&self) -> Duration {
        self.period.window() + self.slot_width() + self.margin()
    }

    /// The most sends that any sliding window may hold: R + B − 1.
    pub fn bound(&self) -> u64 {
        u64::from(self.limit.get()) + u64::from(self.burst.get()) - 1
    }

    /// The sends per second that limit and margin allow in the long run.
    pub fn per_second(&self) -> f64 {
        f64::from(self.limit.get()) / (self.period.window() + self.margin()).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spacing_is_window_plus_slot_over_limit() {
        assert_eq!(RateLimit::new(1, Period::SECOND).unwrap().spacing(), Duration::from_millis(1_010));
        assert_eq!(RateLimit::new(1000, Period::SECOND).unwrap().spacing(), Duration::from_micros(1_010));
        assert_eq!(RateLimit::new(30, Period::MINUTE).unwrap().spacing(), Duration::from_nanos(2_003_333_334));
    }

    #[test]
    fn slots_are_wide_when_they_cannot_overlap_and_narrow_otherwise() {
        let width =
            |limit, period, burst| RateLimit::with_burst(limit, period, burst).unwrap().slot_width().as_millis();
        assert_eq!([1, 100, 1_000].map(|limit| width(limit, Period::SECOND, 1)), [10; 3]);
        assert_eq!([1, 300, 601, 602].map(|limit| width(limit, Period::MINUTE, 1)), [100, 100, 100, 10]);
        assert_eq!([1, 1_440, 1_442].map(|limit| width(limit, Period::HOUR, 1)), [2_500, 2_500, 10]);
        assert_eq!(width(1, Period::DAY, 1), 2_500);
        assert_eq!(width(1, Period::DAY, 2), 10, "a burst's slots overlap");
    }

    #[test]
    fn limits_of_zero_out_of_range_or_with_the_same_period_are_refused() {
        assert_eq!(RateLimit::new(0, Period::SECOND), None);
        assert_eq!(RateLimit::new(MAX_LIMIT + 1, Period::SECOND), None);
        assert_eq!(RateLimit::with_burst(1, Period::SECOND, 0), None);
        let second = RateLimit::new(1, Period::SECOND).unwrap();
        assert_eq!(RateLimits::new(vec![second, second]), Err(InvalidLimits::DuplicatePeriod(Period::SECOND)));
        assert_eq!(RateLimits::new(vec![second; 5]), Err(InvalidLimits::TooMany));
    }
}
