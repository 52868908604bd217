//! The limits of a destination together: those of its periods, and the least interval between two sends.

use std::{collections::BTreeSet, num::NonZeroU32, ops::RangeInclusive, time::Duration};

use super::{NARROW_SLOT, Period, RateLimit, Shape, UNLIMITED_SLOT_WIDTH, Unit};

/// How many limits a destination may have, each of another period.
pub const MAX_LIMITS: usize = 4;
/// The accepted minimum intervals. A longer one is a limit per minute, hour or day.
pub const MIN_INTERVAL_MS: RangeInclusive<u32> = 1..=60_000;
/// With a minimum interval m, slots are at most m / 16 wide: starts are m + m / 16 apart, so 94 % of the sends that m
/// allows are made.
pub const SLOTS_PER_INTERVAL: u64 = 16;
/// No slot is narrower: a worker must wake and write in this time, even if the error of its clock is taken from both
/// ends. With an interval of 10 ms, 87 % of the sends that it allows are made.
pub const NARROWEST_SLOT: Duration = Duration::from_micros(1_500);

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
pub(crate) fn slot_width(of_limits: impl Iterator<Item = Duration>, min_interval: Option<MinInterval>) -> Duration {
    let ordinary = of_limits.min();
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
        let width = slot_width(self.of_periods.iter().map(RateLimit::slot_width), self.min_interval);
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
