//! Times in the values of headers: numbers with and without unit, and dates.

use std::time::Duration;

use crate::time::Timestamp;

/// The smallest number of seconds that is taken as a Unix time (the year 2001). Smaller ones are seconds from now.
const FIRST_UNIX_SECONDS: f64 = 1e9;
/// The smallest numbers that are taken as a Unix time in milliseconds, in microseconds and in nanoseconds (the year 1973
/// in each unit; the year 5138 in the next larger one).
const FIRST_UNIX_FINER: [(f64, f64); 3] = [(1e17, 1e9), (1e14, 1e6), (1e11, 1e3)];
const SECOND: Duration = Duration::from_secs(1);
/// A date has whole seconds, and the answer was a while under way: the `Date` of a receiver whose clock agrees with ours
/// lies this much before our time.
const AGREES_BEFORE: Duration = Duration::from_secs(2);
/// Synchronised clocks differ by a few milliseconds.
const AGREES_AFTER: Duration = Duration::from_millis(100);
/// Clocks that are wrong are wrong by seconds or hours. A `Date` that is further away is believed only where our own
/// time makes no sense.
const SANE_SKEW: Duration = Duration::from_secs(86_400);
/// The longest wait that is plausible with a `Date` that is far away.
const PLAUSIBLE: Duration = Duration::from_secs(3_600);
/// The most items of a list that are read; real ones have one to four.
const MAX_ITEMS: usize = 16;
/// The longest number. A longer one is no time.
const MAX_DIGITS: usize = 40;

/// The clock by which the receiver names instants.
pub(super) struct ServerClock {
    /// Our own time.
    pub(super) wall: Timestamp,
    /// The `Date` of the answer.
    pub(super) date: Option<Timestamp>,
}

impl ServerClock {
    /// The time until an instant of the receiver's clock, and the rounding that the comparison adds. The answer's own
    /// `Date` is the present by that clock, so a wrong clock does not matter.
    fn until(&self, instant: Timestamp) -> (Duration, Duration) {
        let (by_wall, rounding) = (instant.since(self.wall), SECOND);
        let Some(date) = self.date else { return (by_wall, Duration::ZERO) };
        let by_date = instant.since(date);
        let (before, after) = (self.wall.since(date), date.since(self.wall));
        if before <= AGREES_BEFORE && after <= AGREES_AFTER {
            // Our own time is finer than a date in whole seconds.
            return (by_wall, rounding);
        }
        let is_plausible = |wait: Duration| !wait.is_zero() && wait <= PLAUSIBLE;
        if before.max(after) <= SANE_SKEW || is_plausible(by_date) && !is_plausible(by_wall) {
            (by_date, rounding)
        } else {
            (by_wall, rounding)
        }
    }
}

/// The unit of a number without one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Unit {
    Seconds,
    Milliseconds,
}

impl Unit {
    /// The unit that the name of a header says.
    pub(super) fn of_name(name: &str) -> Self {
        let is_millis = ["-ms", "-millis", "-milliseconds"].iter().any(|end| name.ends_with(end));
        if is_millis { Self::Milliseconds } else { Self::Seconds }
    }
}

/// The wait that a value asks for, and how much shorter it may be in truth: the receiver has rounded it up.
pub(super) fn wait(value: &str, unit: Unit, clock: &ServerClock) -> Option<(Duration, Duration)> {
    let value = value.trim().trim_matches('"').trim();
    if let Some(number) = number(value) {
        return of_number(number, !value.contains('.'), unit, clock);
    }
    if let Some(instant) = date(value) {
        let (delay, rounding) = clock.until(instant);
        let is_whole = instant.as_nanos() % SECOND.as_nanos() as i64 == 0;
        return Some((delay, rounding + if is_whole { SECOND } else { Duration::ZERO }));
    }
    let duration = duration(value)?;
    Some((duration, if duration.subsec_nanos() == 0 { SECOND } else { Duration::ZERO }))
}

fn of_number(number: f64, is_whole: bool, unit: Unit, clock: &ServerClock) -> Option<(Duration, Duration)> {
    if number < 0.0 {
        return None;
    }
    let seconds = |number| Duration::try_from_secs_f64(number).unwrap_or(Duration::MAX);
    let finer = FIRST_UNIX_FINER.into_iter().find(|(first, _)| number >= *first);
    let is_instant = number >= FIRST_UNIX_SECONDS && (unit == Unit::Seconds || finer.is_some());
    if is_instant {
        let (delay, rounding) =
            clock.until(Timestamp::MIN.after(seconds(number / finer.map_or(1.0, |(_, unit)| unit))));
        let is_rounded = is_whole && finer.is_none();
        return Some((delay, rounding + if is_rounded { SECOND } else { Duration::ZERO }));
    }
    Some(match unit {
        Unit::Milliseconds => (seconds(number / 1e3), Duration::ZERO),
        Unit::Seconds => (seconds(number), if is_whole { SECOND } else { Duration::ZERO }),
    })
}

/// A decimal number, perhaps negative. Neither an exponent nor a name such as `inf`.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.trim();
    let digits = text.strip_prefix('-').unwrap_or(text);
    let is_number = digits.len() <= MAX_DIGITS
        && digits.starts_with(|c: char| c.is_ascii_digit())
        && digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    // Two points are refused by the parser.
    is_number.then(|| text.parse().ok()).flatten()
}

/// An HTTP date in each of its three forms, an ISO 8601 date (without a zone: UTC), or a date of an e-mail.
pub(super) fn date(text: &str) -> Option<Timestamp> {
    let text = text.trim().trim_matches('"');
    if let Ok(date) = httpdate::parse_http_date(text) {
        return Some(Timestamp::MIN.after(date.duration_since(std::time::UNIX_EPOCH).unwrap_or_default()));
    }
    if let Ok(instant) = text.parse() {
        return Some(instant);
    }
    if let Ok(local) = text.parse::<jiff::civil::DateTime>() {
        // A date alone is no time of a reset.
        let has_time = text.contains(':');
        return has_time.then(|| format!("{local}Z").parse().ok()).flatten();
    }
    let of_mail = jiff::fmt::rfc2822::parse(text).ok()?;
    Some(Timestamp::from_secs(of_mail.timestamp().as_second().max(0)))
}

/// A duration with units: `5s`, `7.8ms`, `1m2.5s`, `6m0s` as Go writes them, `5 seconds`, or `PT5S` (ISO 8601).
pub(super) fn duration(text: &str) -> Option<Duration> {
    let starts_well = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, 'P' | 'p'));
    let duration: jiff::SignedDuration = starts_well.then(|| text.trim().parse().ok()).flatten()?;
    Duration::try_from(duration).ok()
}

/// The items of a list, the first [`MAX_ITEMS`] of them. The comma of a date separates nothing: it follows the name of a weekday.
pub(super) fn items(list: &str) -> impl Iterator<Item = &str> {
    let mut rest = Some(list);
    std::iter::from_fn(move || {
        let text = rest?;
        let mut from = 0;
        let end = loop {
            match text[from..].find(',') {
                Some(at) if is_weekday(&text[..from + at]) => from += at + 1,
                Some(at) => break Some(from + at),
                None => break None,
            }
        };
        rest = end.map(|end| &text[end + 1..]);
        Some(end.map_or(text, |end| &text[..end]).trim())
    })
    // `5,` is a list of one, and an empty value is a list of one empty item.
    .filter(move |item| !item.is_empty() || list.trim().is_empty())
    .take(MAX_ITEMS)
}

fn is_weekday(text: &str) -> bool {
    let text = text.trim().trim_start_matches('"');
    let begins = ["mon", "tue", "wed", "thu", "fri", "sat", "sun"];
    text.bytes().all(|byte| byte.is_ascii_alphabetic())
        && text.get(..3).is_some_and(|begin| begins.iter().any(|day| begin.eq_ignore_ascii_case(day)))
}
