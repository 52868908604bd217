//! The algorithm of Kubernetes' HorizontalPodAutoscaler (`autoscaling/v2`, metrics of type `External`) as pure
//! decisions.
//!
//! Every function takes the time as an argument, counted from any origin. The order of the steps is that of Kubernetes:
//!
//! ```text
//! metrics ─► a proposal for each ─► the largest ─► stabilised (windows) ─► limited (policies, min, max) ─► replicas
//!                └ a failed metric has no proposal and prevents scaling in
//! ```
//!
//! `tests.rs` contains the cases of Kubernetes' own tests.

mod history;
#[cfg(test)]
mod tests;

use std::time::Duration;

pub(crate) use history::History;

/// A quantity in thousandths, as Kubernetes computes with it.
pub(crate) type Milli = i64;

/// The default tolerance: a ratio this close to 1 changes nothing.
pub(crate) const TOLERANCE: f64 = 0.1;

/// The target of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// For the metric divided by the number of replicas.
    AverageValue(Milli),
    /// For the metric itself.
    Value(Milli),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Select {
    /// The policy that allows the largest change.
    Max,
    Min,
    Disabled,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Amount {
    Pods(u32),
    Percent(u32),
}

/// The largest change in any period of this length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Policy {
    pub(crate) amount: Amount,
    pub(crate) period: Duration,
}

/// The rules of one direction of `behavior`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Rules {
    /// The stabilisation window.
    pub(crate) window: Duration,
    pub(crate) select: Select,
    pub(crate) policies: Vec<Policy>,
    pub(crate) tolerance: f64,
}

impl Rules {
    /// The default of Kubernetes for `behavior.scaleUp`.
    pub(crate) fn default_up() -> Self {
        let period = Duration::from_secs(15);
        let policies =
            vec![Policy { amount: Amount::Pods(4), period }, Policy { amount: Amount::Percent(100), period }];
        Self { window: Duration::ZERO, select: Select::Max, policies, tolerance: TOLERANCE }
    }

    /// The default of Kubernetes for `behavior.scaleDown`.
    pub(crate) fn default_down() -> Self {
        let policies = vec![Policy { amount: Amount::Percent(100), period: Duration::from_secs(15) }];
        Self { window: Duration::from_secs(300), select: Select::Max, policies, tolerance: TOLERANCE }
    }
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bounds {
    pub(crate) min: u32,
    pub(crate) max: u32,
    pub(crate) up: Rules,
    pub(crate) down: Rules,
}

/// The current state of the Deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Replicas {
    /// The desired number (`spec.replicas`).
    pub(crate) wanted: u32,
    /// The existing number, ready or not.
    pub(crate) current: u32,
    pub(crate) ready: u32,
}

/// The result of one metric's query; `value` is `None` when the query failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Reading {
    pub(crate) target: Target,
    pub(crate) value: Option<Milli>,
}

/// A decision and the values that led to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Decision {
    /// The proposal of each metric, in the order of the metrics.
    pub(crate) proposals: Vec<Option<u32>>,
    /// The largest proposal, or why there is none.
    pub(crate) desired: Result<u32, Blocked>,
    /// The decided number of replicas.
    pub(crate) replicas: u32,
}

/// Why the metrics did not decide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// No metric has a value.
    NoMetric,
    /// One metric has no value, and the others would have scaled in.
    MissingMetric,
    /// The number was outside the bounds, which is corrected at once.
    OutOfBounds,
}

/// The number of replicas that one metric proposes.
pub(crate) fn proposal(target: Target, value: Milli, replicas: Replicas, bounds: &Bounds) -> u32 {
    let is_near = |ratio: f64| 1.0 - bounds.down.tolerance <= ratio && ratio <= 1.0 + bounds.up.tolerance;
    match target {
        Target::AverageValue(average) => {
            let ratio = value as f64 / (average as f64 * f64::from(replicas.current));
            if is_near(ratio) { replicas.current } else { count(value as f64 / average as f64) }
        }
        Target::Value(wanted) => {
            let ratio = value as f64 / wanted as f64;
            match replicas.wanted {
                // With no replicas there is no number to multiply.
                0 => count(ratio),
                wanted if is_near(ratio) => wanted,
                _ => count(ratio * f64::from(replicas.ready)),
            }
        }
    }
}

/// Rounds up. NaN becomes 0.
fn count(replicas: f64) -> u32 {
    replicas.ceil().clamp(0.0, f64::from(i32::MAX)) as u32
}

/// The largest of the proposals. A missing metric might have proposed more, so a missing metric prevents scaling in.
pub(crate) fn largest(proposals: &[Option<u32>], wanted: u32) -> Result<u32, Blocked> {
    let largest = proposals.iter().flatten().copied().max().ok_or(Blocked::NoMetric)?;
    let is_missing = proposals.contains(&None);
    if is_missing && largest < wanted { Err(Blocked::MissingMetric) } else { Ok(largest) }
}
