//! Engine time: one monotonic timeline in nanoseconds since the Unix epoch, read only through a [`Clock`].
//!
//! Slots, cursors, due times and send starts all live on this timeline. It never goes backwards, even if the wall clock
//! does. Nanoseconds in an `i64` reach the year 2262, and keep the spacing of a million sends a second exact to 0.1 %.

use std::{
    fmt,
    ops::{Add, Sub},
    str::FromStr,
    time::Duration,
};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// An instant of engine time: nanoseconds since the Unix epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Timestamp(i64);

impl Timestamp {
    /// Before every instant that the engine uses.
    pub const MIN: Self = Self(0);
    /// After every instant that the engine uses.
    pub const MAX: Self = Self(i64::MAX);

    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    pub const fn from_millis(millis: i64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    pub const fn from_secs(secs: i64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn as_nanos(self) -> i64 {
        self.0
    }

    /// Whole milliseconds since the Unix epoch.
    pub const fn as_millis(self) -> i64 {
        self.0.div_euclid(1_000_000)
    }

    /// Whole seconds since the Unix epoch.
    pub const fn as_secs(self) -> i64 {
        self.0.div_euclid(1_000_000_000)
    }

    /// The time since `earlier`; zero when `earlier` is later.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0).max(0).unsigned_abs())
    }

    /// `self + duration`, at most [`Timestamp::MAX`].
    pub fn after(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// The latest whole multiple of `step` since the Unix epoch that is not after `self`.
    pub fn floor(self, step: Duration) -> Self {
        Self(self.0 - self.0.rem_euclid(nanos(step).max(1)))
    }

    /// `self - duration`, without overflow.
    pub fn before(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }
}

fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

impl Add<Duration> for Timestamp {
    type Output = Self;
    fn add(self, duration: Duration) -> Self {
        self.after(duration)
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Self;
    fn sub(self, duration: Duration) -> Self {
        self.before(duration)
    }
}

/// RFC 3339 in UTC with milliseconds: the format of times in the API.
impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instant = jiff::Timestamp::from_millisecond(self.as_millis()).map_err(|_| fmt::Error)?;
        write!(f, "{instant:.3}")
    }
}

/// The text is not an RFC 3339 time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be an RFC 3339 time such as 2026-11-21T07:30:00.000Z")]
pub struct InvalidTimestamp;

/// A time before [`Timestamp::MIN`] (1970) or after [`Timestamp::MAX`] (2262) becomes that time.
impl FromStr for Timestamp {
    type Err = InvalidTimestamp;
    fn from_str(text: &str) -> Result<Self, InvalidTimestamp> {
        let instant: jiff::Timestamp = text.parse().map_err(|_| InvalidTimestamp)?;
        let nanos = instant.as_nanosecond().clamp(Self::MIN.0.into(), Self::MAX.0.into());
        i64::try_from(nanos).map(Self).map_err(|_| InvalidTimestamp)
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Timestamp {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(de::Error::custom)
    }
}

/// A duration in words, with its two largest units, rounded to the smaller one: `850 ms`, `1.3 s`, `12 s`,
/// `3 min 5 s`, `4 d 3 h`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InWords(pub Duration);

impl fmt::Display for InWords {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs_f64();
        if seconds < 0.999_5 {
            return write!(f, "{} ms", (seconds * 1_000.0).round());
        }
        if seconds < 9.95 {
            return write!(f, "{} s", (seconds * 10.0).round() / 10.0);
        }
        let whole = seconds.round() as u64;
        let (size, unit, smaller_size, smaller) = match whole {
            0..60 => return write!(f, "{whole} s"),
            60..3_600 => (60, "min", 1, "s"),
            3_600..86_400 => (3_600, "h", 60, "min"),
            _ => (86_400, "d", 3_600, "h"),
        };
        write!(f, "{} {unit}", whole / size)?;
        match whole % size / smaller_size {
            0 => Ok(()),
            rest => write!(f, " {rest} {smaller}"),
        }
    }
}

/// The source of time for the engine. The process provides one clock; tests provide their own.
pub trait Clock: Send + Sync + 'static {
    /// Engine time: monotonic.
    fn now(&self) -> Timestamp;
    /// The wall clock, for times that other machines compare with their own (signatures). It may jump.
    fn wall(&self) -> Timestamp;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_displayed_in_utc_with_milliseconds() {
        assert_eq!(Timestamp::from_nanos(1_763_710_200_123_456_789).to_string(), "2025-11-21T07:30:00.123Z");
        assert_eq!(Timestamp::from_secs(1_763_710_200).to_string(), "2025-11-21T07:30:00.000Z");
    }

    #[test]
    fn displayed_times_are_parsed_back() {
        let shown: Timestamp = "2025-11-21T08:30:00.5+01:00".parse().unwrap();
        assert_eq!(shown.to_string(), "2025-11-21T07:30:00.500Z");
        assert_eq!("yesterday".parse::<Timestamp>(), Err(InvalidTimestamp));
        assert_eq!("1363-03-21T08:17:29Z".parse(), Ok(Timestamp::MIN));
        assert_eq!("3000-01-01T00:00:00Z".parse(), Ok(Timestamp::MAX));
    }

    #[test]
    fn durations_in_words_have_their_two_largest_units() {
        let seconds = [0.0, 0.85, 0.999_9, 1.25, 9.97, 12.4, 59.7, 185.0, 3_600.0, 11_520.0, 356_400.0];
        let words = seconds.map(|seconds| InWords(Duration::from_secs_f64(seconds)).to_string());
        let expected =
            ["0 ms", "850 ms", "1 s", "1.3 s", "10 s", "12 s", "1 min", "3 min 5 s", "1 h", "3 h 12 min", "4 d 3 h"];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_time_is_rounded_down_to_a_whole_step() {
        let step = Duration::from_secs(10);
        assert_eq!(Timestamp::from_secs(29).floor(step), Timestamp::from_secs(20));
        assert_eq!(Timestamp::from_secs(30).floor(step), Timestamp::from_secs(30));
        assert_eq!(Timestamp::from_secs(-1).floor(step), Timestamp::from_secs(-10));
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Timestamp::MAX + Duration::from_secs(1), Timestamp::MAX);
        assert_eq!(Timestamp::from_secs(1).since(Timestamp::from_secs(2)), Duration::ZERO);
    }
}
