//! The windows of limits.

use std::{fmt, num::NonZeroU32, time::Duration};

/// The window of a limit: 1 to 86,400 whole seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Period(NonZeroU32);

/// The names of [`Period::NAMED`].
const NAMES: [&str; 4] = ["second", "minute", "hour", "day"];

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

    fn name(self) -> Option<&'static str> {
        Self::NAMED.iter().zip(NAMES).find(|(named, _)| **named == self).map(|(_, name)| name)
    }

    pub fn has_name(self) -> bool {
        self.name().is_some()
    }

    /// The seconds of a period without a name: `window_s` in answers.
    pub fn unnamed_seconds(self) -> Option<u32> {
        (!self.has_name()).then(|| self.as_seconds())
    }

    /// The period of a text, as it is displayed. A number of seconds may be that of a period with a name.
    pub fn parse(text: &str) -> Option<Self> {
        let named = Self::NAMED.into_iter().find(|period| period.name() == Some(text));
        // Digits only, so that each text has one meaning: not `+5s`.
        let seconds = || text.strip_suffix('s').filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
        named.or_else(|| Self::from_seconds(seconds()?.parse().ok()?))
    }
}

/// `second`, `minute`, `hour`, `day`, or seconds such as `10s`: the text in JSON and in the store.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}s", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
