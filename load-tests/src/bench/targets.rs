//! What is asked of the figures, all of it.
//!
//! Asked of two cores that client and receiver share with the engine; ratios are to the ceiling of the same run.

use super::{SetUp, SetUp::*, Topic, figure::Figure};

/// What a figure, or its ratio to the ceiling, should be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Asked {
    OfCeilingAtLeast(f64),
    AtLeast(f64),
    AtMost(f64),
}

struct Target {
    topic: Topic,
    /// `None`: every one that it is measured on.
    set_up: Option<SetUp>,
    /// The figure's, or how it begins when it ends with a dot.
    id: &'static str,
    asked: Asked,
}

const fn target(topic: Topic, set_up: Option<SetUp>, id: &'static str, asked: Asked) -> Target {
    Target { topic, set_up, id, asked }
}

const TARGETS: [Target; 20] = [
    target(Topic::Throughput, Some(Embedded), "single", Asked::OfCeilingAtLeast(0.13)),
    target(Topic::Throughput, Some(Embedded), "batch", Asked::OfCeilingAtLeast(0.25)),
    target(Topic::Throughput, Some(Scaled), "single", Asked::OfCeilingAtLeast(0.075)),
    target(Topic::Throughput, Some(Scaled), "batch", Asked::OfCeilingAtLeast(0.14)),
    target(Topic::Throughput, Some(Roles), "single", Asked::OfCeilingAtLeast(0.06)),
    target(Topic::Throughput, Some(Roles), "batch", Asked::OfCeilingAtLeast(0.09)),
    target(Topic::Latency, Some(Embedded), "p50.500", Asked::AtMost(0.9)),
    target(Topic::Latency, Some(Embedded), "p99.500", Asked::AtMost(4.0)),
    target(Topic::Latency, Some(Scaled), "p50.500", Asked::AtMost(1.6)),
    target(Topic::Latency, Some(Scaled), "p99.500", Asked::AtMost(6.0)),
    target(Topic::Latency, Some(Roles), "p50.500", Asked::AtMost(2.5)),
    target(Topic::Destinations, None, "many_against_few", Asked::AtMost(1.5)),
    target(Topic::Backlog, None, "large_against_small", Asked::AtMost(1.2)),
    target(Topic::Edit, None, "worst.", Asked::AtMost(100.0)),
    target(Topic::Limits, None, "used.", Asked::AtLeast(0.985)),
    target(Topic::Limits, None, "fullest", Asked::AtMost(1.0)),
    target(Topic::Limits, None, "above", Asked::AtMost(0.0)),
    target(Topic::Overload, None, "of_most.", Asked::AtLeast(0.85)),
    target(Topic::Overload, None, "above", Asked::AtMost(0.0)),
    target(Topic::Overload, None, "left", Asked::AtMost(0.0)),
];

/// What is asked of a figure, if anything is.
pub(crate) fn asked(topic: Topic, set_up: SetUp, id: &str) -> Option<Asked> {
    let is_it = |target: &&Target| {
        let is_named = if target.id.ends_with('.') { id.starts_with(target.id) } else { id == target.id };
        target.topic == topic && target.set_up.is_none_or(|of| of == set_up) && is_named
    };
    TARGETS.iter().find(is_it).map(|target| target.asked)
}

impl Asked {
    pub(crate) fn is_met_by(self, figure: &Figure) -> bool {
        match self {
            Self::OfCeilingAtLeast(least) => figure.ceiling.is_some_and(|ceiling| ceiling.ratio >= least),
            Self::AtLeast(least) => figure.value >= least,
            Self::AtMost(most) => figure.value <= most,
        }
    }

    /// As it stands beside the figure.
    pub(crate) fn write(self, figure: &Figure) -> String {
        match self {
            // To a tenth of a percent, which is left out where it is none.
            Self::OfCeilingAtLeast(least) => format!("≥ {} %", (least * 1_000.0).round() / 10.0),
            Self::AtLeast(least) => format!("≥ {}", figure.unit.write(least)),
            Self::AtMost(most) => format!("≤ {}", figure.unit.write(most)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{super::figure::Unit, *};

    #[test]
    fn each_set_up_is_asked_for_its_own() {
        assert_eq!(asked(Topic::Throughput, Embedded, "single"), Some(Asked::OfCeilingAtLeast(0.13)));
        assert_eq!(asked(Topic::Throughput, Scaled, "single"), Some(Asked::OfCeilingAtLeast(0.075)));
        assert_eq!(asked(Topic::Throughput, Roles, "single"), Some(Asked::OfCeilingAtLeast(0.06)));
        assert_eq!(asked(Topic::Latency, Roles, "p50.500"), Some(Asked::AtMost(2.5)));
        assert_eq!(asked(Topic::Latency, Roles, "p99.500"), None);
        assert_eq!(asked(Topic::Limits, Scaled, "used.2000"), Some(Asked::AtLeast(0.985)));
        assert_eq!(asked(Topic::Limits, Scaled, "unused.2000"), None);
        assert_eq!(asked(Topic::Latency, Embedded, "p50.5000"), None);
    }

    #[test]
    fn a_ratio_that_was_not_measured_meets_nothing() {
        let figure = Figure::new("single", "single", Unit::PerSecond, 5_000.0);
        let asked = Asked::OfCeilingAtLeast(0.13);
        assert!(!asked.is_met_by(&figure));
        assert!(asked.is_met_by(&figure.beside(&[5_000.0], &[20_000.0])));
    }

    #[test]
    fn bounds_include_themselves() {
        let figure = Figure::new("p50.500", "p50", Unit::Ms, 0.6);
        assert!(Asked::AtMost(0.6).is_met_by(&figure) && Asked::AtLeast(0.6).is_met_by(&figure));
        assert!(!Asked::AtMost(0.59).is_met_by(&figure));
        assert_eq!(Asked::AtMost(0.6).write(&figure), "≤ 0.60 ms");
    }

    #[test]
    fn shares_are_written_as_exactly_as_they_are_asked_for() {
        let figure = Figure::new("single", "single", Unit::PerSecond, 5_000.0);
        let written = [0.06, 0.075, 0.14].map(|least| Asked::OfCeilingAtLeast(least).write(&figure));
        assert_eq!(written, ["≥ 6 %", "≥ 7.5 %", "≥ 14 %"]);
    }
}
