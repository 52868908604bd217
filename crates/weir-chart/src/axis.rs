//! Axes: the map from values to positions, and which values get a label.

use weir_core::Timestamp;

/// An axis with its labels.
#[derive(Debug, Clone)]
pub struct Axis {
    pub(crate) name: String,
    from: f64,
    to: f64,
    is_logarithmic: bool,
    pub(crate) ticks: Vec<(f64, String)>,
    /// How the labels of an axis of times are written, for pages that show them in another zone.
    pub(crate) time_form: Option<TimeForm>,
}

/// How a time is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeForm {
    Day,
    MonthMinute,
    Minute,
    Clock,
}

impl TimeForm {
    /// The form for labels that are `step` apart on an axis of this length, in milliseconds.
    const fn of(step: i64, span: i64) -> Self {
        match (step, span) {
            (86_400_000.., _) => Self::Day,
            (_, 86_400_001..) => Self::MonthMinute,
            (60_000.., _) => Self::Minute,
            _ => Self::Clock,
        }
    }

    /// The value of `data-form`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Day => "day",
            Self::MonthMinute => "monthminute",
            Self::Minute => "minute",
            Self::Clock => "clock",
        }
    }

    /// The form of a label at which another day begins.
    const fn with_day(self) -> Self {
        match self {
            Self::Minute | Self::Clock => Self::MonthMinute,
            Self::Day | Self::MonthMinute => self,
        }
    }

    fn label(self, at_ms: i64) -> String {
        // `2025-11-21T07:30:00.000Z`
        let shown = Timestamp::from_millis(at_ms).to_string();
        let (day, clock) = shown.split_once('T').unwrap_or((&shown, ""));
        let (seconds, minutes) = (clock.get(..8).unwrap_or(clock), clock.get(..5).unwrap_or(clock));
        match self {
            Self::Day => day.to_owned(),
            Self::MonthMinute => format!("{} {minutes}", day.get(5..).unwrap_or(day)),
            Self::Minute => minutes.to_owned(),
            Self::Clock => seconds.to_owned(),
        }
    }
}

impl Axis {
    /// From 0 to `to`, with at most `most` round steps between the labels.
    pub fn linear(to: f64, most: usize, label: impl Fn(f64) -> String) -> Self {
        let to = to.max(1e-3);
        let step = round_step(to / most as f64);
        // A value that a rounding error has put beyond the end still gets its label.
        let last = (to / step + 1e-9) as usize;
        Self::new(0.0, to, false, (0..=last).map(|n| n as f64 * step), label)
    }

    /// Whole numbers from 0 to a round one, at least `highest`.
    pub fn counts(highest: u64) -> Self {
        let step = round_step(highest as f64 / 4.0).max(1.0) as u64;
        let last = highest.div_ceil(step).max(1);
        Self::new(0.0, (last * step) as f64, false, (0..=last).map(|n| (n * step) as f64), |count| count.to_string())
    }

    /// Logarithmic, with a label at each power of ten.
    pub fn logarithmic(from: f64, to: f64, label: impl Fn(f64) -> String) -> Self {
        let decades = from.log10().ceil() as i32..=to.log10().floor() as i32;
        Self::new(from, to, true, decades.map(|decade| 10_f64.powi(decade)), label)
    }

    /// Times, in milliseconds since 1970, with at most nine labels at whole units of the clock.
    pub fn times(from_ms: i64, until_ms: i64) -> Self {
        let (form, ticks) = time_ticks(from_ms, until_ms);
        let mut last_day = None;
        let label = |at_ms: i64| {
            let is_next_day = last_day.replace(day_of(at_ms)).is_some_and(|last| last != day_of(at_ms));
            // Where the day changes, a clock alone would be read as one of the first day. The script of the pages does the same.
            (at_ms as f64, if is_next_day { form.with_day().label(at_ms) } else { form.label(at_ms) })
        };
        let ticks = ticks.map(label).collect();
        let (from, to) = (from_ms as f64, until_ms as f64);
        Self { name: String::new(), from, to, is_logarithmic: false, ticks, time_form: Some(form) }
    }

    /// The same axis of times with its days beside it: `2025-11-21 UTC`, or the first and the last one.
    pub fn named_by_days(self) -> Self {
        let (first, last) = (day_of(self.from as i64), day_of(self.last_ms()));
        let name = if first == last { format!("{first} UTC") } else { format!("{first} to {last} UTC") };
        self.named(name)
    }

    /// The last instant of an axis of times: its end is that of the last bucket.
    pub(crate) fn last_ms(&self) -> i64 {
        (self.to as i64 - 1).max(self.from as i64)
    }

    pub(crate) const fn first_ms(&self) -> i64 {
        self.from as i64
    }

    fn new(
        from: f64,
        to: f64,
        is_logarithmic: bool,
        ticks: impl Iterator<Item = f64>,
        label: impl Fn(f64) -> String,
    ) -> Self {
        let ticks = ticks.map(|tick| (tick, label(tick))).collect();
        Self { name: String::new(), from, to, is_logarithmic, ticks, time_form: None }
    }

    /// The same axis with a name beside it.
    pub fn named(self, name: impl Into<String>) -> Self {
        Self { name: name.into(), ..self }
    }

    /// Where a value lies between the beginning of the axis (0) and its end (1). A value outside lies on the edge.
    pub(crate) fn share(&self, value: f64) -> f64 {
        let place = |value: f64| if self.is_logarithmic { value.max(f64::MIN_POSITIVE).log10() } else { value };
        ((place(value) - place(self.from)) / (place(self.to) - place(self.from))).clamp(0.0, 1.0)
    }
}

/// `2025-11-21`
fn day_of(at_ms: i64) -> String {
    Timestamp::from_millis(at_ms).to_string().chars().take(10).collect()
}

/// The smallest of 1, 2, 5, 10, 20, 50 and so on, also below 1, that is at least `least`.
fn round_step(least: f64) -> f64 {
    let magnitude = 10_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].map(|factor| factor * magnitude).into_iter().find(|step| *step >= least).unwrap_or(10.0 * magnitude)
}

/// Steps between time labels in milliseconds. Each divides the next larger unit of the clock.
const STEPS_MS: [i64; 17] = [
    1_000,
    2_000,
    5_000,
    10_000,
    30_000,
    60_000,
    120_000,
    300_000,
    600_000,
    1_800_000,
    3_600_000,
    7_200_000,
    21_600_000,
    43_200_000,
    86_400_000,
    604_800_000,
    2_592_000_000,
];

/// Round times between two instants, at most nine, and how to write them.
fn time_ticks(from_ms: i64, until_ms: i64) -> (TimeForm, impl Iterator<Item = i64>) {
    let span = (until_ms - from_ms).max(1);
    let step = STEPS_MS.into_iter().find(|step| span / step <= 8).unwrap_or(span / 8);
    let first = from_ms.div_euclid(step) * step;
    let inside = (0..=10).map(move |n| first + n * step).filter(move |at| (from_ms..=until_ms).contains(at));
    (TimeForm::of(step, span), inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(axis: &Axis) -> Vec<f64> {
        axis.ticks.iter().map(|(value, _)| *value).collect()
    }

    #[test]
    fn counts_get_labels_in_round_steps_up_to_the_highest() {
        assert_eq!(values(&Axis::counts(0)), [0.0, 1.0]);
        assert_eq!(values(&Axis::counts(1)), [0.0, 1.0]);
        assert_eq!(values(&Axis::counts(10)), [0.0, 5.0, 10.0]);
        assert_eq!(values(&Axis::counts(1_000)), [0.0, 500.0, 1_000.0]);
        assert_eq!(values(&Axis::counts(11)), [0.0, 5.0, 10.0, 15.0]);
        for highest in 1..3_000 {
            let ticks = values(&Axis::counts(highest));
            let last = ticks[ticks.len() - 1];
            assert!((2..=6).contains(&ticks.len()) && last >= highest as f64, "{highest}: {ticks:?}");
        }
    }

    #[test]
    fn a_linear_axis_has_round_labels_and_ends_at_its_end() {
        let axis = Axis::linear(0.35, 5, |value| format!("{value:.1}"));
        let labels: Vec<_> = axis.ticks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["0.0", "0.1", "0.2", "0.3"]);
        assert_eq!(axis.share(0.35), 1.0);
        assert_eq!(values(&Axis::linear(345.0, 5, |_| String::new())), [0.0, 100.0, 200.0, 300.0]);
        assert_eq!(values(&Axis::linear(0.0, 5, |_| String::new())).first(), Some(&0.0), "never empty");
    }

    #[test]
    fn a_logarithmic_axis_has_a_label_at_each_power_of_ten() {
        let axis = Axis::logarithmic(0.1, 2_000.0, |value| value.to_string());
        let labels: Vec<_> = axis.ticks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["0.1", "1", "10", "100", "1000"]);
        let decades = Axis::logarithmic(1.0, 100.0, |value| value.to_string());
        assert_eq!([1.0, 10.0, 100.0].map(|value| decades.share(value)), [0.0, 0.5, 1.0]);
    }

    #[test]
    fn times_get_labels_at_whole_units_of_the_clock() {
        let axis = Axis::times(1_763_710_203_000, 1_763_710_223_000);
        let labels: Vec<_> = axis.ticks.iter().map(|(_, label)| label.as_str()).collect();
        assert_eq!(labels, ["07:30:05", "07:30:10", "07:30:15", "07:30:20"]);
        let year = Axis::times(1_763_710_203_000, 1_763_710_203_000 + 365 * 86_400_000);
        assert!((2..=10).contains(&year.ticks.len()), "{year:?}");
    }

    #[test]
    fn an_axis_over_midnight_says_where_the_day_changes() {
        // 2025-11-21T23:40:00Z
        let from = 1_763_768_400_000;
        let labels = |minutes: i64| {
            let axis = Axis::times(from, from + minutes * 60_000).named_by_days();
            let labels: Vec<_> = axis.ticks.iter().map(|(_, label)| label.clone()).collect();
            (labels.join(", "), axis.name)
        };
        let days = |text: &str, days: &str| (text.to_owned(), format!("{days} UTC"));
        let both = "2025-11-21 to 2025-11-22";
        assert_eq!(labels(40), days("23:40, 23:45, 23:50, 23:55, 11-22 00:00, 00:05, 00:10, 00:15, 00:20", both));
        assert_eq!(labels(20), days("23:40, 23:45, 23:50, 23:55, 11-22 00:00", "2025-11-21"));
        assert_eq!(labels(15), days("23:40, 23:42, 23:44, 23:46, 23:48, 23:50, 23:52, 23:54", "2025-11-21"));
        assert_eq!(labels(48 * 60).1, "2025-11-21 to 2025-11-23 UTC");
    }

    #[test]
    fn values_outside_an_axis_lie_on_its_edge() {
        let axis = Axis::linear(10.0, 5, |_| String::new());
        assert_eq!([-1.0, 5.0, 11.0].map(|value| axis.share(value)), [0.0, 0.5, 1.0]);
    }
}
