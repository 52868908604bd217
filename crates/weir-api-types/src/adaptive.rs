//! The adaptive pace of a destination.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

/// A pace that finds itself below the limits, within these bounds.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Adaptive {
    /// The pace never falls below this.
    #[schema(minimum = 0.0001, maximum = 1_000_000, example = 0.0167)]
    pub min_per_s: f64,
    /// Null: as fast as the receiver takes it, below the limits.
    #[schema(minimum = 0.0001, maximum = 1_000_000)]
    pub max_per_s: Option<f64>,
    /// Whether late answers bound the requests in flight too.
    pub latency: bool,
}

/// The pace of an adaptive destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AdaptiveRate {
    #[schema(example = 18.0)]
    pub per_s: f64,
    /// Since when it has this reason.
    pub since: Timestamp,
    /// `starting`: nothing was refused yet, and it doubles. `growing`: it rises. `resting`: it waits below what was refused.
    /// `throttled`: refusals lowered it. `latency`: late answers bound it. `advertised`: the receiver announced what it takes.
    /// `held`: the receiver takes nothing. `at_limit`: a limit is lower. `idle`: fewer deliveries are due than it allows.
    pub reason: String,
    #[schema(example = "12 of 340 answers were 429")]
    pub detail: String,
}

/// One change of a pace, by a tenth or more.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RateChange {
    pub at: Timestamp,
    #[schema(example = 100.0)]
    pub from_per_s: f64,
    #[schema(example = 18.0)]
    pub to_per_s: f64,
    /// As in `adaptive_rate`.
    pub reason: String,
    #[schema(example = "12 of 340 answers were 429")]
    pub detail: String,
}

/// The pace of a destination and its changes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RateHistory {
    /// The present pace; null: the destination is not adaptive, or has not sent yet.
    pub adaptive_rate: Option<AdaptiveRate>,
    /// Only for a destination with neither a limit nor an adaptive pace: what such a pace would be. Nothing is changed.
    pub observed: Option<ObservedRate>,
    /// Newest first.
    pub data: Vec<RateChange>,
    pub next_cursor: Option<String>,
}

/// What an adaptive pace would be, by the sends of the last hour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ObservedRate {
    /// The most that an adaptive pace would send; null: the receiver refused nothing, so nothing would bound it.
    #[schema(example = 97.0)]
    pub per_s: Option<f64>,
    /// The fastest ten seconds without a failure; null: each had one.
    #[schema(example = 88.3)]
    pub fastest_per_s: Option<f64>,
    /// In how many of the stretches of ten seconds the receiver refused, of how many with sends.
    pub refusing: u32,
    pub stretches: u32,
    /// All of it in one sentence.
    pub text: String,
}
