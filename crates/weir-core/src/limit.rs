//! Rate limits: R sends per window W with a burst B and a margin, at most one limit per period; and the least interval
//! between two sends.

use std::{collections::BTreeSet, fmt, num::NonZeroU32, ops::RangeInclusive, time::Duration};

/// The largest `limit` (and `burst`) accepted. At a million a second the spacing is still longer than a microsecond,
/// the resolution of the clock of Redis.
pub const MAX_LIMIT: u32 = 1_000_000;
/// The slot width of limits whose slots may overlap. A slot that was granted before an edit must be over 100 ms after
/// the edit.
pub const NARROW_SLOT: Duration = Duration::from_millis(10);
/// The width of a slot of an unlimited destination. It bounds how long a send may still start after a pause: together
/// with [`GRANT_AHEAD`](crate::limiter::GRANT_AHEAD) less than 100 ms.
pub const UNLIMITED_SLOT_WIDTH: Duration = Duration::from_millis(50);
/// How many limits a destination may have, each of another period.
pub const MAX_LIMITS: usize = 4;
/// The largest margin of a limit: far more than a network delays a request without losing it.
pub const MAX_MARGIN_MS: u32 = 10_000;
/// The accepted minimum intervals. A longer one is a limit per minute, hour or day.
pub const MIN_INTERVAL_MS: RangeInclusive<u32> = 1..=60_000;
/// With a minimum interval m, slots are at most m / 16 wide: starts are m + m / 16 apart, so 94 % of the sends that m
/// allows are made.
pub const SLOTS_PER_INTERVAL: u64 = 16;
/// A limit of the window shape counts its slots in so many buckets.
pub const BUCKETS: u64 = 600;
/// No slot is narrower: a worker must wake and write in this time, even if the error of its clock is taken from both
/// ends. With an interval of 10 ms, 87 % of the sends that it allows are made.
pub const NARROWEST_SLOT: Duration = Duration::from_micros(1_500);

/// The window of a limit: 1 to 86,400 whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(NonZeroU32);

/// The windows with a name, the shortest first.
const NAMES: [(Period, &str); 4] =
    [(Period::SECOND, "second"), (Period::MINUTE, "minute"), (Period::HOUR, "hour"), (Period::DAY, "day")];

impl Period {
    pub const SECOND: Self = Self(NonZeroU32::MIN);
    pub const MINUTE: Self = Self(NonZeroU32::new(60).unwrap());
    pub const HOUR: Self = Self(NonZeroU32::new(3_600).unwrap());
    pub const DAY: Self = Self(NonZeroU32::new(86_400).unwrap());
    /// The windows with a name, the shortest first.
    pub const NAMED: [Self; 4] = [Self::SECOND, Self::MINUTE, Self::HOUR, Self::DAY];

    /// `None` for 0, and for more than a day.
    pub const fn from_seconds(seconds: u32) -> Option<Self> {
        match NonZeroU32::new(seconds) {
            Some(seconds) if seconds.get() <= Self::DAY.0.get() => Some(Self(seconds)),
            _ => None,
        }
    }

    pub const fn as_seconds(self) -> u32 {
        self.0.get()
    }

    /// The window length W.
    pub const fn window(self) -> Duration {
        Duration::from_secs(self.0.get() as u64)
    }

    /// The widest slot J of a limit of this period: 1/600 of the window in whole microseconds, at least 10 ms and at
    /// most 2.5 s. With a longer window a process may stall longer before it misses a slot.
    pub const fn widest_slot(self) -> Duration {
        let micros = self.0.get() as u64 * 1_000_000 / 600;
        Duration::from_micros(if micros < 10_000 {
            10_000
        } else if micros > 2_500_000 {
            2_500_000
        } else {
            micros
        })
    }

    pub fn has_name(self) -> bool {
        Self::NAMED.contains(&self)
    }

    /// The seconds of a period without a name: `window_s` in answers.
    pub fn unnamed_seconds(self) -> Option<u32> {
        (!self.has_name()).then(|| self.as_seconds())
    }

    /// The period of a text, as it is displayed. A number of seconds may be that of a period with a name.
    pub fn parse(text: &str) -> Option<Self> {
        let named = NAMES.into_iter().find(|(_, name)| *name == text).map(|(period, _)| period);
        // Digits only, so that each text has one meaning: not `+5s`.
        let seconds = || text.strip_suffix('s').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        named.or_else(|| Self::from_seconds(seconds()?.parse().ok()?))
    }
}

/// `second`, `minute`, `hour`, `day`, or seconds such as `10s`: the text in JSON and in the store.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.into_iter().find(|(period, _)| period == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "{}s", self.0),
        }
    }
}

/// What decides how fast a backlog is sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bound {
    Limit(RateLimit),
    MinInterval(MinInterval),
    MaxInFlight,
    /// The adaptive pace.
    Adaptive,
    /// The share of its limit group.
    Group,
    /// The limits of the limit keys that wait.
    Key,
}

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
    pub const ALL: [Self; 2] = [Self::Even, Self::Window];

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

    /// The limit counting requests.
    pub fn as_requests(&self) -> Self {
        Self { unit: Unit::Request, ..*self }
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

/// The least time between the starts of two sends. Slots are narrow, and each begins at least this time after the end of
/// the one before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MinInterval(NonZeroU32);

impl MinInterval {
    /// `None` outside of [`MIN_INTERVAL_MS`].
    pub fn from_millis(millis: u32) -> Option<Self> {
        NonZeroU32::new(millis).filter(|millis| MIN_INTERVAL_MS.contains(&millis.get())).map(Self)
    }

    pub fn as_millis(self) -> u32 {
        self.0.get()
    }

    pub fn as_duration(self) -> Duration {
        Duration::from_millis(self.0.get().into())
    }

    /// The width of slots that would be `ordinary` wide without the interval.
    fn slot_width(self, ordinary: Duration) -> Duration {
        // In whole microseconds, the resolution of the clock of Redis.
        let narrow = Duration::from_micros(u64::from(self.0.get()) * 1_000 / SLOTS_PER_INTERVAL);
        narrow.max(NARROWEST_SLOT).min(ordinary)
    }
}

/// The width of the slots of a destination: that of its narrowest limit, and less with a minimum interval. Slots of
/// every width up to its own keep a limit.
pub(crate) fn slot_width<'l>(
    of_periods: impl IntoIterator<Item = &'l RateLimit>,
    min_interval: Option<MinInterval>,
) -> Duration {
    let ordinary = of_periods.into_iter().map(RateLimit::slot_width).min();
    match min_interval {
        Some(interval) => interval.slot_width(ordinary.unwrap_or(NARROW_SLOT)),
        None => ordinary.unwrap_or(UNLIMITED_SLOT_WIDTH),
    }
}

/// Why a set of limits is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLimits {
    #[error("at most {MAX_LIMITS} limits, one per period")]
    TooMany,
    #[error("period `{0}` appears twice; give each period one limit")]
    DuplicatePeriod(Period),
}

/// The limits of one destination: at most one per period, the shortest period first, and the least interval between two
/// sends. Without any of them it is unlimited.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct RateLimits {
    of_periods: Vec<RateLimit>,
    min_interval: Option<MinInterval>,
}

impl RateLimits {
    /// No limit at all.
    pub const UNLIMITED: Self = Self { of_periods: Vec::new(), min_interval: None };

    pub fn new(mut limits: Vec<RateLimit>) -> Result<Self, InvalidLimits> {
        if limits.len() > MAX_LIMITS {
            return Err(InvalidLimits::TooMany);
        }
        limits.sort_by_key(|limit| limit.period);
        match limits.windows(2).find(|pair| pair[0].period == pair[1].period) {
            Some(pair) => Err(InvalidLimits::DuplicatePeriod(pair[0].period)),
            None => Ok(Self { of_periods: limits, min_interval: None }),
        }
    }

    /// The same limits with another minimum interval.
    pub fn with_min_interval(self, min_interval: Option<MinInterval>) -> Self {
        Self { min_interval, ..self }
    }

    /// The same limits without their margins.
    pub fn without_margins(&self) -> Self {
        Self { of_periods: self.of_periods.iter().map(RateLimit::without_margin).collect(), ..self.clone() }
    }

    /// The same limits, all of them even: an estimate where nobody knows what was sent in their windows.
    pub fn evenly(&self) -> Self {
        let even = |limit: &RateLimit| RateLimit { shape: Shape::Even, ..*limit };
        Self { of_periods: self.of_periods.iter().map(even).collect(), ..self.clone() }
    }

    /// The limits of periods.
    pub fn as_slice(&self) -> &[RateLimit] {
        &self.of_periods
    }

    /// The limits of periods that have this shape.
    pub fn of_shape(&self, shape: Shape) -> impl Iterator<Item = &RateLimit> {
        self.of_periods.iter().filter(move |limit| limit.shape == shape)
    }

    /// The periods in which any of these limits counts this unit, the shortest first.
    pub fn periods<'l>(all: impl IntoIterator<Item = &'l Self>, unit: Unit) -> BTreeSet<Period> {
        let limits = all.into_iter().flat_map(|limits| &limits.of_periods);
        limits.filter(|limit| limit.unit == unit).map(|limit| limit.period).collect()
    }

    /// The limits without those in costs.
    pub fn of_requests(&self) -> Self {
        let of_periods = self.of_periods.iter().filter(|limit| !limit.is_in_costs()).copied().collect();
        Self { of_periods, ..self.clone() }
    }

    /// The limit, if there is one, that a single send of this cost exceeds: it can never be sent.
    pub fn too_low_for(&self, cost: u32) -> Option<&RateLimit> {
        self.of_periods.iter().find(|limit| limit.taken_by(cost) > limit.limit.get())
    }

    pub fn min_interval(&self) -> Option<MinInterval> {
        self.min_interval
    }

    pub fn is_unlimited(&self) -> bool {
        self.of_periods.is_empty() && self.min_interval.is_none()
    }

    /// Whether a machine can lose its power and be back within a window, so sends must be on disk to be counted. No
    /// machine is back within a second.
    pub fn outlast_a_restart(&self) -> bool {
        let no_restart = Period::SECOND.window();
        self.of_periods.iter().any(|limit| limit.period > Period::SECOND || limit.margin() > no_restart)
            || self.min_interval.is_some_and(|interval| interval.as_duration() > no_restart)
    }

    /// The most permits that may wait in the delivery queue: the smallest bound; `None` when unlimited.
    pub fn max_queued(&self) -> Option<u64> {
        self.of_periods.iter().map(RateLimit::bound).min()
    }

    /// What bounds the sustained rate most, and this rate in sends per second, of a cost of 1; `None` when unlimited.
    pub fn strictest(&self) -> Option<(f64, Bound)> {
        self.strictest_at(1.0)
    }

    /// The same for sends of this mean cost.
    pub fn strictest_at(&self, cost: f64) -> Option<(f64, Bound)> {
        let width = slot_width(&self.of_periods, self.min_interval);
        let of_interval = self.min_interval.map(|interval| {
            let spacing = interval.as_duration() + width;
            (1.0 / spacing.as_secs_f64(), Bound::MinInterval(interval))
        });
        let per_second = |limit: &RateLimit| limit.per_second() / if limit.is_in_costs() { cost } else { 1.0 };
        let of_limits = self.of_periods.iter().map(|limit| (per_second(limit), Bound::Limit(*limit)));
        of_limits.chain(of_interval).min_by(|a, b| a.0.total_cmp(&b.0))
    }

    /// The sustained rate in sends per second; `None` when unlimited.
    pub fn per_second(&self) -> Option<f64> {
        self.per_second_at(1.0)
    }

    /// The same for sends of this mean cost.
    pub fn per_second_at(&self, cost: f64) -> Option<f64> {
        self.strictest_at(cost).map(|(per_second, _)| per_second)
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
    fn a_period_is_read_as_it_is_written() {
        for text in ["second", "2s", "10s", "59s", "minute", "61s", "hour", "86399s", "day"] {
            assert_eq!(Period::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Period::parse("60s"), Some(Period::MINUTE));
        for wrong in ["", "s", "0s", "86401s", "+5s", "-5s", "1.5s", "5", "5m", "Second", "99999999999s"] {
            assert_eq!(Period::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_longer_window_has_wider_slots() {
        let widest = |seconds| Period::from_seconds(seconds).unwrap().widest_slot().as_micros();
        assert_eq!(
            [1, 2, 6, 10, 60, 3_600, 86_400].map(widest),
            [10_000, 10_000, 10_000, 16_666, 100_000, 2_500_000, 2_500_000]
        );
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
