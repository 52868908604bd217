//! The targets of all figures.
//!
//! They are for a machine with two cores that client and receiver share with the engine. Ratios are to the ceiling of
//! the same run.

use super::{SetUp, SetUp::*, Topic, figure::Figure};

/// The bound of a figure, or of its ratio to the ceiling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Bound {
    OfCeilingAtLeast(f64),
    AtLeast(f64),
    AtMost(f64),
}

struct Target {
    topic: Topic,
    /// `None`: every set-up on which the topic is measured.
    set_up: Option<SetUp>,
    /// The id of the figure, or a prefix of it that ends with a dot.
    id: &'static str,
    bound: Bound,
}

const fn target(topic: Topic, set_up: Option<SetUp>, id: &'static str, bound: Bound) -> Target {
    Target { topic, set_up, id, bound }
}

const TARGETS: [Target; 26] = [
    target(Topic::Throughput, Some(Embedded), "single", Bound::OfCeilingAtLeast(0.13)),
    target(Topic::Throughput, Some(Embedded), "batch", Bound::OfCeilingAtLeast(0.25)),
    target(Topic::Throughput, Some(Scaled), "single", Bound::OfCeilingAtLeast(0.075)),
    target(Topic::Throughput, Some(Scaled), "batch", Bound::OfCeilingAtLeast(0.14)),
    target(Topic::Throughput, Some(Roles), "single", Bound::OfCeilingAtLeast(0.06)),
    target(Topic::Throughput, Some(Roles), "batch", Bound::OfCeilingAtLeast(0.09)),
    target(Topic::Latency, Some(Embedded), "p50.500", Bound::AtMost(0.9)),
    target(Topic::Latency, Some(Embedded), "p99.500", Bound::AtMost(4.0)),
    target(Topic::Latency, Some(Scaled), "p50.500", Bound::AtMost(1.6)),
    target(Topic::Latency, Some(Scaled), "p99.500", Bound::AtMost(6.0)),
    target(Topic::Latency, Some(Roles), "p50.500", Bound::AtMost(2.5)),
    target(Topic::Destinations, None, "many_against_few", Bound::AtMost(1.5)),
    target(Topic::Keys, None, "many_against_one", Bound::AtMost(1.5)),
    target(Topic::FanOut, None, "many", Bound::AtLeast(2_000.0)),
    target(Topic::Backlog, None, "large_against_small", Bound::AtMost(1.2)),
    target(Topic::Backlog, None, "simulated.1000000", Bound::AtMost(2_000.0)),
    target(Topic::Edit, None, "worst.", Bound::AtMost(100.0)),
    target(Topic::Limits, None, "used.", Bound::AtLeast(0.985)),
    target(Topic::Limits, None, "fullest", Bound::AtMost(1.0)),
    target(Topic::Limits, None, "above", Bound::AtMost(0.0)),
    target(Topic::Overload, None, "of_most.", Bound::AtLeast(0.85)),
    target(Topic::Overload, None, "above", Bound::AtMost(0.0)),
    target(Topic::Overload, None, "left", Bound::AtMost(0.0)),
    target(Topic::Viewers, None, "p99.", Bound::AtMost(100.0)),
    target(Topic::Viewers, None, "share", Bound::AtLeast(0.98)),
    target(Topic::Retention, None, "against_accepted", Bound::AtLeast(1.5)),
];

/// The bound of a figure that has a target.
pub(crate) fn bound_of(topic: Topic, set_up: SetUp, id: &str) -> Option<Bound> {
    let is_it = |target: &&Target| {
        let is_named = if target.id.ends_with('.') { id.starts_with(target.id) } else { id == target.id };
        target.topic == topic && target.set_up.is_none_or(|of| of == set_up) && is_named
    };
    TARGETS.iter().find(is_it).map(|target| target.bound)
}

impl Bound {
    pub(crate) fn is_met_by(self, figure: &Figure) -> bool {
        match self {
            Self::OfCeilingAtLeast(least) => figure.ceiling.is_some_and(|ceiling| ceiling.ratio >= least),
            Self::AtLeast(least) => figure.value >= least,
            Self::AtMost(most) => figure.value <= most,
        }
    }

    /// The text beside the figure.
    pub(crate) fn write(self, figure: &Figure) -> String {
        match self {
            // To a tenth of a per cent; `.0` is not shown.
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
    fn each_set_up_has_its_own_targets() {
        assert_eq!(bound_of(Topic::Throughput, Embedded, "single"), Some(Bound::OfCeilingAtLeast(0.13)));
        assert_eq!(bound_of(Topic::Throughput, Scaled, "single"), Some(Bound::OfCeilingAtLeast(0.075)));
        assert_eq!(bound_of(Topic::Throughput, Roles, "single"), Some(Bound::OfCeilingAtLeast(0.06)));
        assert_eq!(bound_of(Topic::Latency, Roles, "p50.500"), Some(Bound::AtMost(2.5)));
        assert_eq!(bound_of(Topic::Latency, Roles, "p99.500"), None);
        assert_eq!(bound_of(Topic::Limits, Scaled, "used.2000"), Some(Bound::AtLeast(0.985)));
        assert_eq!(bound_of(Topic::Limits, Scaled, "unused.2000"), None);
        assert_eq!(bound_of(Topic::Latency, Embedded, "p50.5000"), None);
    }

    #[test]
    fn a_missing_ratio_does_not_meet_its_target() {
        let figure = Figure::new("single", "single", Unit::PerSecond, 5_000.0);
        let bound = Bound::OfCeilingAtLeast(0.13);
        assert!(!bound.is_met_by(&figure));
        assert!(bound.is_met_by(&figure.beside(&[5_000.0], &[20_000.0])));
    }

    #[test]
    fn a_figure_at_the_bound_meets_it() {
        let figure = Figure::new("p50.500", "p50", Unit::Ms, 0.6);
        assert!(Bound::AtMost(0.6).is_met_by(&figure) && Bound::AtLeast(0.6).is_met_by(&figure));
        assert!(!Bound::AtMost(0.59).is_met_by(&figure));
        assert_eq!(Bound::AtMost(0.6).write(&figure), "≤ 0.60 ms");
    }

    #[test]
    fn shares_are_written_exactly() {
        let figure = Figure::new("single", "single", Unit::PerSecond, 5_000.0);
        let written = [0.06, 0.075, 0.14].map(|least| Bound::OfCeilingAtLeast(least).write(&figure));
        assert_eq!(written, ["≥ 6 %", "≥ 7.5 %", "≥ 14 %"]);
    }
}
