//! Numbers and times as people read them: [`Units`] gives the plain values of the API's answers these types, which write text,
//! or HTML for times.

use std::{fmt, time::Duration};

use askama::filters::HtmlSafe;
use weir_core::{Timestamp, time::InWords};

/// A whole number with commas: `12,345`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Count(pub(crate) u64);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = self.0.to_string();
        for (at, digit) in digits.chars().enumerate() {
            if at > 0 && (digits.len() - at).is_multiple_of(3) {
                f.write_str(",")?;
            }
            write!(f, "{digit}")?;
        }
        Ok(())
    }
}

/// A rate in the unit that people can count: `120/s`, `9.8/s`, `12/min`, `3/h`.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd)]
pub(crate) struct PerSecond(pub(crate) f64);

impl fmt::Display for PerSecond {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, unit) = unit_of(self.0);
        write!(f, "{}/{unit}", short(self.0.max(0.0) * seconds))
    }
}

/// The unit in which people can count a rate: its seconds and its name.
fn unit_of(per_s: f64) -> (f64, &'static str) {
    match per_s {
        rate if rate <= 0.0 || rate >= 0.1 => (1.0, "s"),
        rate if rate * 60.0 >= 0.1 => (60.0, "min"),
        rate if rate * 3_600.0 >= 0.1 => (3_600.0, "h"),
        _ => (86_400.0, "d"),
    }
}

/// Rates that are read beside each other: all in the unit of the largest, so that they can be compared.
pub(crate) fn in_one_unit<const N: usize>(rates: [f64; N]) -> [String; N] {
    let (seconds, unit) = unit_of(rates.into_iter().fold(0.0, f64::max));
    rates.map(|rate| match short(rate.max(0.0) * seconds) {
        // It would be read as none.
        rounded if rounded == "0" && rate > 0.0 => format!("< 0.01/{unit}"),
        rounded => format!("{rounded}/{unit}"),
    })
}

/// Three significant digits, without trailing zeros; commas from a thousand on.
fn short(value: f64) -> String {
    let digits = match value {
        value if value >= 100.0 => return Count(value.round() as u64).to_string(),
        value if value >= 10.0 => 1,
        _ => 2,
    };
    let text = format!("{value:.digits$}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// A duration with its two largest units: `850 ms`, `12 s`, `3 min 5 s`, `4 d 3 h`.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd)]
pub(crate) struct Seconds(pub(crate) f64);

impl Seconds {
    /// `12 s ago`, and `just now` below a second.
    pub(crate) fn ago(&self) -> String {
        if self.0 < 1.0 { "just now".to_owned() } else { format!("{self} ago") }
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A span that is too long for the type is no span of this system.
        InWords(Duration::try_from_secs_f64(self.0.max(0.0)).unwrap_or(Duration::MAX)).fmt(f)
    }
}

/// A share of 1 as a percentage: `97 %`. It rounds down near 100 %, so that 100 % means all.
#[derive(Debug, Clone, Copy, Default, PartialEq, PartialOrd)]
pub(crate) struct Share(pub(crate) f64);

impl Share {
    /// The width of a bar, in percent.
    pub(crate) fn width(&self) -> u32 {
        (self.0.clamp(0.0, 1.0) * 100.0).round() as u32
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = self.0 * 100.0;
        match percent {
            99.0..100.0 => write!(f, "{} %", (percent * 10.0).floor() / 10.0),
            percent if percent > 0.0 && percent < 1.0 => f.write_str("< 1 %"),
            percent => write!(f, "{} %", percent.round()),
        }
    }
}

/// An instant as `<time>`: the day and the clock in UTC. The script of the page shows it in the reader's zone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct At(pub(crate) Timestamp);

impl At {
    /// Only the clock: for instants of the last minutes.
    pub(crate) fn clock(&self) -> Clock {
        Clock(self.0)
    }

    /// Only the hour and the minute: for the ends of a picture.
    pub(crate) fn minute(&self) -> Minute {
        Minute(self.0)
    }

    /// The day and the clock in UTC as a text: for messages.
    pub(crate) fn plain(&self) -> String {
        let (day, clock) = day_and_clock(self.0);
        format!("{day} {clock}")
    }

    /// Counts up from the instant. `text` is what it has counted at the instant of the page, such as `3 min 5 s`.
    pub(crate) fn age(&self, text: Seconds) -> Age {
        Age(self.0, text)
    }

    /// How long ago the instant was, with the word. The page counts on.
    pub(crate) fn ago(&self, text: Seconds) -> Ago {
        Ago(self.0, text)
    }

    /// Counts down to the instant, without a word before it. `text` is what is left at the instant of the page.
    pub(crate) fn left(&self, text: Seconds) -> Left {
        Left(self.0, text)
    }

    /// Counts down to the instant.
    pub(crate) fn countdown(&self) -> Countdown {
        Countdown(self.0)
    }
}

/// `2026-11-21 07:30:00`, and the clock in it.
fn day_and_clock(at: Timestamp) -> (String, String) {
    let iso = at.to_string();
    let day = iso.get(..10).unwrap_or(&iso).to_owned();
    let clock = iso.get(11..19).unwrap_or_default().to_owned();
    (day, clock)
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (iso, (day, clock)) = (self.0, day_and_clock(self.0));
        write!(f, r#"<time datetime="{iso}" title="{iso}">{day} {clock}</time>"#)
    }
}

impl HtmlSafe for At {}

/// An instant as `<time>` with only the clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Clock(Timestamp);

impl fmt::Display for Clock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (iso, (_, clock)) = (self.0, day_and_clock(self.0));
        write!(f, r#"<time datetime="{iso}" title="{iso}" data-form="clock">{clock}</time>"#)
    }
}

impl HtmlSafe for Clock {}

/// An instant as `<time>` with only the hour and the minute.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Minute(Timestamp);

impl fmt::Display for Minute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (iso, (_, clock)) = (self.0, day_and_clock(self.0));
        let minute = clock.get(..5).unwrap_or_default();
        write!(f, r#"<time datetime="{iso}" title="{iso}" data-form="minute">{minute}</time>"#)
    }
}

impl HtmlSafe for Minute {}

/// An instant as `<time>` that counts down; without the script it shows the clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Countdown(Timestamp);

impl fmt::Display for Countdown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (iso, (_, clock)) = (self.0, day_and_clock(self.0));
        write!(f, r#"<time datetime="{iso}" title="{iso}" data-form="countdown">at {clock}</time>"#)
    }
}

impl HtmlSafe for Countdown {}

/// How long ago an instant was. The script counts on, so a page need not be read again for it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Age(Timestamp, Seconds);

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, r#"<time datetime="{0}" title="since {0}" data-form="age">{1}</time>"#, self.0, self.1)
    }
}

impl HtmlSafe for Age {}

/// How long ago an instant was: `12 s ago`, and `just now` below a second. The script counts on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ago(Timestamp, Seconds);

impl fmt::Display for Ago {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, r#"<time datetime="{0}" title="{0}" data-form="ago">{1}</time>"#, self.0, self.1.ago())
    }
}

impl HtmlSafe for Ago {}

/// How long it is until an instant. The script counts down.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left(Timestamp, Seconds);

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, r#"<time datetime="{0}" title="{0}" data-form="left">{1}</time>"#, self.0, self.1)
    }
}

impl HtmlSafe for Left {}

/// The numbers of the API's answers in their units.
pub(crate) trait Units: Copy {
    fn count(&self) -> Count
    where
        Self: Into<u64>,
    {
        Count((*self).into())
    }

    fn per_s(&self) -> PerSecond
    where
        Self: Into<f64>,
    {
        PerSecond((*self).into())
    }

    fn seconds(&self) -> Seconds
    where
        Self: Into<f64>,
    {
        Seconds((*self).into())
    }

    fn share(&self) -> Share
    where
        Self: Into<f64>,
    {
        Share((*self).into())
    }

    fn time(&self) -> At
    where
        Self: Into<Timestamp>,
    {
        At((*self).into())
    }
}

impl<T: Copy> Units for T {}

pub(crate) fn capitalised(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_have_commas() {
        let shown = [0, 7, 999, 1_000, 12_345, 1_234_567].map(|count| Count(count).to_string());
        assert_eq!(shown, ["0", "7", "999", "1,000", "12,345", "1,234,567"]);
    }

    #[test]
    fn rates_are_shown_in_a_unit_that_people_can_count() {
        let rates = [0.0, 0.5, 9.84, 12.34, 1_234.4, 1.0 / 60.0, 5.0 / 3_600.0, 0.000_3, 1.0 / 86_400.0];
        let shown = rates.map(|rate| PerSecond(rate).to_string());
        assert_eq!(shown, ["0/s", "0.5/s", "9.84/s", "12.3/s", "1,234/s", "1/min", "5/h", "1.08/h", "1/d"]);
    }

    #[test]
    fn rates_beside_each_other_have_one_unit() {
        assert_eq!(in_one_unit([9.84, 1.0 / 60.0]), ["9.84/s", "0.02/s"]);
        assert_eq!(in_one_unit([0.0, 1.0 / 60.0]), ["0/min", "1/min"]);
        assert_eq!(in_one_unit([20.0, 0.000_3]), ["20/s", "< 0.01/s"]);
        assert_eq!(in_one_unit([0.0, 0.0]), ["0/s", "0/s"]);
    }

    #[test]
    fn durations_have_their_two_largest_units() {
        let seconds = [0.0, 0.85, 1.25, 12.4, 59.7, 185.0, 3_600.0, 11_520.0, 356_400.0];
        let shown = seconds.map(|seconds| Seconds(seconds).to_string());
        let expected = ["0 ms", "850 ms", "1.3 s", "12 s", "1 min", "3 min 5 s", "1 h", "3 h 12 min", "4 d 3 h"];
        assert_eq!(shown, expected);
        assert_eq!([0.0, 0.9, 12.0].map(|seconds| Seconds(seconds).ago()), ["just now", "just now", "12 s ago"]);
    }

    #[test]
    fn a_percentage_is_100_only_when_nothing_is_missing() {
        let shown = [0.0, 0.001, 0.5, 0.97, 0.999_9, 1.0, 1.2].map(|share| Share(share).to_string());
        assert_eq!(shown, ["0 %", "< 1 %", "50 %", "97 %", "99.9 %", "100 %", "120 %"]);
        assert_eq!([0.0, 0.504, 1.2].map(|share| Share(share).width()), [0, 50, 100]);
    }

    #[test]
    fn an_instant_has_its_iso_time_for_the_script_and_the_tooltip() {
        let at = At(Timestamp::from_secs(1_763_710_200));
        let iso = "2025-11-21T07:30:00.000Z";
        assert_eq!(at.to_string(), format!(r#"<time datetime="{iso}" title="{iso}">2025-11-21 07:30:00</time>"#));
        assert!(at.clock().to_string().ends_with(">07:30:00</time>"));
        assert!(at.countdown().to_string().contains("data-form=\"countdown\">at 07:30:00<"));
    }
}
