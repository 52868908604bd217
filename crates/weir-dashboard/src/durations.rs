//! Durations in forms, as people write them: `72 h`, `10 s`, `1 h 30 min`. A number without a unit is refused: nobody can
//! see whether it means milliseconds or seconds.

use std::fmt;

/// The units, the longest first, with the words that people use for them and their milliseconds.
const UNITS: [(&[&str], u64); 5] = [
    (&["d", "day", "days"], 86_400_000),
    (&["h", "hr", "hour", "hours"], 3_600_000),
    (&["min", "m", "minute", "minutes"], 60_000),
    (&["s", "sec", "second", "seconds"], 1_000),
    (&["ms", "millisecond", "milliseconds"], 1),
];
/// A hundred years: longer than every setting.
const MAX_MS: f64 = 3_155_760_000_000.0;
/// Shorter ones are written in hours: people say 72 h.
const DAYS_FROM_MS: u64 = 4 * 86_400_000;

/// A duration that is written without a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Millis(pub(crate) u64);

impl Millis {
    /// Reads what was typed, or says what is wrong with it.
    pub(crate) fn parse(text: &str) -> Result<Self, &'static str> {
        const NONE: &str = "must be a duration, such as 500 ms, 15 s or 72 h";
        let mut rest = text.trim();
        let mut total = 0.0;
        if rest.is_empty() {
            return Err(NONE);
        }
        while !rest.is_empty() {
            let (number, after) = split_where(rest, |c| !c.is_ascii_digit() && c != '.');
            let (word, after) = split_where(after.trim_start(), |c| !c.is_alphabetic());
            let number: f64 = number.parse().map_err(|_| NONE)?;
            if word.is_empty() {
                return Err("needs a unit, such as 500 ms, 15 s or 72 h");
            }
            let word = word.to_lowercase();
            let unit = UNITS.iter().find(|(words, _)| words.contains(&&*word)).ok_or(NONE)?;
            total += number * unit.1 as f64;
            rest = after.trim_start_matches([' ', '\u{a0}']);
        }
        if total > MAX_MS {
            return Err("is too long");
        }
        let millis = total.round();
        // A sum of decimal fractions is not exact.
        if (total - millis).abs() > 1e-6 * total.max(1.0) {
            Err("must be whole milliseconds")
        } else {
            Ok(Self(millis as u64))
        }
    }
}

fn split_where(text: &str, ends: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(ends).unwrap_or(text.len()))
}

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 {
            return f.write_str("0 s");
        }
        let units = if self.0 < DAYS_FROM_MS { &UNITS[1..] } else { &UNITS[..] };
        let mut rest = self.0;
        let mut gap = "";
        for (words, length) in units {
            let count = rest / length;
            rest %= length;
            if count > 0 {
                write!(f, "{gap}{count} {}", words[0])?;
                gap = " ";
            }
        }
        Ok(())
    }
}

/// The unit in which the API has a duration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ApiUnit {
    Millis,
    Seconds,
}

impl ApiUnit {
    /// The unit in the name of a field: `timeout_ms`, `max_age_s`.
    pub(crate) fn of_name(name: &str) -> Option<Self> {
        if name.ends_with("_per_s") {
            return None;
        }
        match name.rsplit_once('_')?.1 {
            "ms" => Some(Self::Millis),
            "s" => Some(Self::Seconds),
            _ => None,
        }
    }

    const fn millis(self) -> u64 {
        match self {
            Self::Millis => 1,
            Self::Seconds => 1_000,
        }
    }

    /// A value of the API as a form shows it.
    pub(crate) fn shown(self, value: u64) -> String {
        Millis(value.saturating_mul(self.millis())).to_string()
    }

    /// What was typed as a value of the API, or what is wrong with it.
    pub(crate) fn typed(self, text: &str) -> Result<u64, &'static str> {
        let Millis(millis) = Millis::parse(text)?;
        if millis.is_multiple_of(self.millis()) { Ok(millis / self.millis()) } else { Err("must be whole seconds") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_read_as_people_write_it() {
        for (text, millis) in [
            ("72 h", 259_200_000),
            ("72h", 259_200_000),
            ("10 s", 10_000),
            ("500ms", 500),
            ("1 h 30 min", 5_400_000),
            ("1h30m", 5_400_000),
            (" 1.5 Hours ", 5_400_000),
            ("0.1 s", 100),
            ("3 days", 259_200_000),
            ("15\u{a0}s", 15_000),
            ("0 s", 0),
        ] {
            assert_eq!(Millis::parse(text), Ok(Millis(millis)), "{text}");
        }
    }

    #[test]
    fn a_number_without_a_unit_and_other_texts_are_refused() {
        for (text, reason) in [
            ("15", "needs a unit"),
            ("1 h 30", "needs a unit"),
            ("", "must be a duration"),
            ("soon", "must be a duration"),
            ("-1 s", "must be a duration"),
            ("1 week", "must be a duration"),
            ("1..5 s", "must be a duration"),
            ("0.5 ms", "must be whole milliseconds"),
            ("9999999 d", "is too long"),
        ] {
            let refused = Millis::parse(text).unwrap_err();
            assert!(refused.starts_with(reason), "{text}: {refused}");
        }
        assert_eq!(ApiUnit::Seconds.typed("1500 ms"), Err("must be whole seconds"));
        assert_eq!(ApiUnit::Seconds.typed("2 min"), Ok(120));
    }

    #[test]
    fn a_duration_is_written_without_a_loss() {
        let shown = [0, 1, 1_500, 15_000, 90_000, 86_400_000, 259_200_000, 604_800_000, 31_536_000_000];
        let expected = ["0 s", "1 ms", "1 s 500 ms", "15 s", "1 min 30 s", "24 h", "72 h", "7 d", "365 d"];
        assert_eq!(shown.map(|millis| Millis(millis).to_string()), expected);
        for millis in shown {
            assert_eq!(Millis::parse(&Millis(millis).to_string()), Ok(Millis(millis)));
        }
        assert_eq!(
            (ApiUnit::of_name("timeout_ms"), ApiUnit::of_name("max_age_s")),
            (Some(ApiUnit::Millis), Some(ApiUnit::Seconds))
        );
        assert_eq!((ApiUnit::of_name("headers"), ApiUnit::of_name("rate_limits")), (None, None));
    }
}
