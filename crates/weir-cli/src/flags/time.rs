//! Times as people write them: `2h`, `yesterday`, a date, or RFC 3339. Dates are those of UTC, as all times that the
//! commands print.

use std::{str::FromStr, time::Duration};

use serde::Serialize;
use weir_core::Timestamp;

use crate::clock::wall_clock;

const DAY: Duration = Duration::from_secs(86_400);
/// The longest span: no record is older, and no key is valid for longer.
const LONGEST: Duration = Duration::from_secs(36_500 * 86_400);

/// A time in the past: `2h` is two hours ago. In JSON it is a time of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct PastTime(pub Timestamp);

/// A time to come: `2h` is in two hours. In JSON it is a time of the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct ComingTime(pub Timestamp);

/// A span of time, such as `90s` or `5m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span(pub Duration);

impl FromStr for Span {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        span(text.trim()).map(Self).ok_or_else(|| format!("`{text}` is no span of time; use 10s, 5m or 1h"))
    }
}

impl FromStr for PastTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let now = wall_clock();
        let text = text.trim();
        let span = span(text.strip_suffix("ago").unwrap_or(text).trim_end());
        span.map(|span| now.before(span)).or_else(|| named(text, now)).map(Self).ok_or_else(|| {
            format!("`{text}` is not a time; use a span such as 90s, 15m, 2h or 3d (that long ago), today, yesterday, a date such as 2026-11-26, or a time such as 2026-11-26T04:30:00Z")
        })
    }
}

impl FromStr for ComingTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let now = wall_clock();
        let text = text.trim();
        let after = text.strip_prefix('+').or_else(|| text.strip_prefix("in ")).unwrap_or(text);
        span(after).map(|span| now + span).or_else(|| named(text, now)).map(Self).ok_or_else(|| {
            format!("`{text}` is not a time; use a span such as 90s, 15m, 2h or 3d (from now), tomorrow, a date such as 2026-11-26, or a time such as 2026-11-26T04:30:00Z")
        })
    }
}

/// A span of time, such as `90s`, `1h30m` or `2 days`.
fn span(text: &str) -> Option<Duration> {
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|char: char| !char.is_ascii_digit())?;
        let (number, after) = rest.split_at(digits);
        let after = after.trim_start();
        let letters = after.find(|char: char| !char.is_ascii_alphabetic()).unwrap_or(after.len());
        let (unit, next) = after.split_at(letters);
        let seconds: u64 = match unit {
            "s" | "sec" | "secs" | "second" | "seconds" => 1,
            "m" | "min" | "mins" | "minute" | "minutes" => 60,
            "h" | "hr" | "hrs" | "hour" | "hours" => 3_600,
            "d" | "day" | "days" => 86_400,
            "w" | "week" | "weeks" => 7 * 86_400,
            _ => return None,
        };
        total += Duration::from_secs(number.parse::<u64>().ok()?.checked_mul(seconds)?);
        if total > LONGEST {
            return None;
        }
        rest = next.trim_start();
    }
    Some(total).filter(|_| !text.is_empty())
}

/// A time that needs no span: a word, a date, or RFC 3339 with or without its zone.
fn named(text: &str, now: Timestamp) -> Option<Timestamp> {
    let today = || midnight(now.to_string().split('T').next()?);
    match text.to_ascii_lowercase().as_str() {
        "now" => return Some(now),
        "today" => return today(),
        "yesterday" => return Some(today()?.before(DAY)),
        "tomorrow" => return Some(today()? + DAY),
        _ => {}
    }
    // A date, and a time of day without its zone.
    let with_t = text.replacen(' ', "T", 1);
    let seconds = || format!("{with_t}:00Z").parse().ok();
    text.parse().ok().or_else(|| midnight(text)).or_else(|| format!("{with_t}Z").parse().ok()).or_else(seconds)
}

/// The beginning of a day.
fn midnight(date: &str) -> Option<Timestamp> {
    (date.len() == "2026-11-26".len()).then(|| format!("{date}T00:00:00Z").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-11-26T04:30:10.500Z";

    fn named_at(text: &str) -> Option<String> {
        named(text, NOW.parse().unwrap()).map(|time| time.to_string())
    }

    #[test]
    fn spans_are_read_with_their_units() {
        let seconds = |text| span(text).map(|span| span.as_secs());
        for (text, expected) in [
            ("90s", 90),
            ("15m", 900),
            ("2h", 7_200),
            ("3d", 259_200),
            ("1h30m", 5_400),
            ("2 hours", 7_200),
            ("1w", 604_800),
        ] {
            assert_eq!(seconds(text), Some(expected), "{text}");
        }
        for wrong in ["", "2", "h", "2x", "-2h", "1.5h", "99999999999999999999s", "40000d", "2h ago"] {
            assert_eq!(seconds(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn days_and_dates_begin_at_midnight_of_utc() {
        assert_eq!(named_at("now").as_deref(), Some(NOW));
        for (text, expected) in [
            ("today", "2026-11-26T00:00:00.000Z"),
            ("Yesterday", "2026-11-25T00:00:00.000Z"),
            ("tomorrow", "2026-11-27T00:00:00.000Z"),
            ("2026-11-20", "2026-11-20T00:00:00.000Z"),
            ("2026-11-20 07:30", "2026-11-20T07:30:00.000Z"),
            ("2026-11-20T07:30:15", "2026-11-20T07:30:15.000Z"),
            ("2026-11-20T07:30:15+02:00", "2026-11-20T05:30:15.000Z"),
        ] {
            assert_eq!(named_at(text).as_deref(), Some(expected), "{text}");
        }
        for wrong in ["", "soon", "2026-13-01", "2026-11-2", "26.11.2026", "2026-11-20T99:00", "2026-11-20T99:00Z"] {
            assert_eq!(named_at(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_span_is_in_the_past_or_to_come_by_its_flag() {
        let now = wall_clock();
        let PastTime(past) = "2h".parse().unwrap();
        let ComingTime(coming) = "2h".parse().unwrap();
        assert!(past < now && now < coming);
        assert_eq!("2h ago".parse::<PastTime>().unwrap().0.since(past).as_secs(), 0);
        assert!("soon".parse::<PastTime>().unwrap_err().contains("yesterday"));
        assert!("2h ago".parse::<ComingTime>().unwrap_err().contains("from now"));
    }
}
