//! One figure of the table: its name, value, range over the repeats, and ratio to the ceiling.

use serde::{Deserialize, Serialize};

/// The unit of a figure, which defines its format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Unit {
    PerSecond,
    Ms,
    /// Microseconds of CPU time.
    CpuUs,
    /// Seconds of CPU time.
    CpuS,
    S,
    MiB,
    /// A number with a fraction, such as statements for each delivery.
    Count,
    /// A ratio of two figures.
    Times,
    /// A share of the allowed or possible amount; 1 is all of it.
    Share,
}

impl Unit {
    pub(crate) fn write(self, value: f64) -> String {
        match self {
            Self::PerSecond => format!("{value:.0}/s"),
            Self::Ms => format!("{value:.2} ms"),
            Self::CpuUs => format!("{value:.0} µs"),
            Self::CpuS => format!("{value:.2} s CPU"),
            Self::S => format!("{value:.1} s"),
            Self::MiB => format!("{value:.1} MiB"),
            // A whole number is written without decimals.
            Self::Count if value.fract() == 0.0 => format!("{value:.0}"),
            Self::Count => format!("{value:.3}"),
            Self::Times => format!("{value:.2} ×"),
            Self::Share => format!("{value:.4}"),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// The id in [`super::targets`].
    pub(crate) id: String,
    pub(crate) what: String,
    pub(crate) unit: Unit,
    /// The median of the repeats.
    pub(crate) value: f64,
    /// The lowest and the highest of several repeats.
    pub(crate) range: Option<(f64, f64)>,
    /// The figure of the bare client and receiver in the same unit, and the ratio to it.
    pub(crate) ceiling: Option<Ceiling>,
    pub(crate) remark: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ceiling {
    pub(crate) value: f64,
    pub(crate) ratio: f64,
}

impl Figure {
    pub(crate) fn new(id: impl Into<String>, what: impl Into<String>, unit: Unit, value: f64) -> Self {
        let (id, what, remark) = (id.into(), what.into(), String::new());
        Self { id, what, unit, value, range: None, ceiling: None, remark }
    }

    /// From several repeats; `None` without repeats.
    pub(crate) fn of(id: impl Into<String>, what: impl Into<String>, unit: Unit, repeats: &[f64]) -> Option<Self> {
        let mut figure = Self::new(id, what, unit, median(repeats)?);
        if repeats.len() > 1 {
            let least = repeats.iter().copied().fold(f64::INFINITY, f64::min);
            figure.range = Some((least, repeats.iter().copied().fold(f64::NEG_INFINITY, f64::max)));
        }
        Some(figure)
    }

    /// Adds the ceilings. Each repeat is compared with the ceiling measured next to it.
    pub(crate) fn beside(mut self, repeats: &[f64], ceilings: &[f64]) -> Self {
        let ratios: Vec<_> = repeats.iter().zip(ceilings).map(|(figure, ceiling)| figure / ceiling).collect();
        self.ceiling = median(ceilings).zip(median(&ratios)).map(|(value, ratio)| Ceiling { value, ratio });
        self
    }

    pub(crate) fn remark(mut self, remark: impl Into<String>) -> Self {
        self.remark = remark.into();
        self
    }
}

/// The middle value, or the mean of the two middle values.
pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len().checked_sub(1)? / 2;
    Some(if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle], sorted[middle + 1]) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_value() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!((median(&[7.0]), median(&[])), (Some(7.0), None));
    }

    #[test]
    fn a_ratio_is_the_median_of_the_repeats_ratios() {
        // A machine that is half as fast during one repeat is half as fast for its ceiling too.
        let (repeats, ceilings) = ([20.0, 10.0, 21.0], [100.0, 50.0, 100.0]);
        let figure = Figure::of("single", "single", Unit::PerSecond, &repeats).unwrap().beside(&repeats, &ceilings);
        assert_eq!((figure.value, figure.range), (20.0, Some((10.0, 21.0))));
        assert_eq!(figure.ceiling, Some(Ceiling { value: 100.0, ratio: 0.2 }));
    }

    #[test]
    fn a_single_measurement_has_no_range() {
        assert_eq!(Figure::of("a", "a", Unit::Ms, &[1.0]).and_then(|figure| figure.range), None);
        assert_eq!(Figure::of("a", "a", Unit::Ms, &[]), None);
    }
}
