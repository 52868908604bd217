//! What other limits would have done with recorded deliveries.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::{Latency, RateLimit, references};

/// What the tried limits would have done with the recorded deliveries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Simulation {
    /// The range that was played. It begins later than asked for if `truncated`.
    pub from: Timestamp,
    pub to: Timestamp,
    /// The deliveries that were due in the range, or waited at its start; times `scale`.
    pub deliveries: u64,
    /// Whether the range had more deliveries than a simulation takes: a million, or two million attempts. Then the latest
    /// are played.
    pub truncated: bool,
    /// Whether the destination has limits for single limit keys: they were not played, so what waited for them really was
    /// sent later than here.
    #[serde(default)]
    #[schema(required = true)]
    pub ignores_key_limits: bool,
    pub backlog_max: BacklogMax,
    /// The deliveries that would wait at the end of the range.
    pub backlog_end: u64,
    /// When the last of them would be sent; null if there are none, or if that takes centuries.
    pub drained_at: Option<Timestamp>,
    /// The deliveries that would expire before they are sent.
    pub would_expire: u64,
    pub latency_ms: Latency,
    /// What the same deliveries really took.
    pub recorded_latency_ms: Latency,
    /// The tried limits, the shortest period first.
    pub rate_limits: Vec<SimulatedLimit>,
    /// `grows`: the backlog grows until the end of the range. `drains`: it does not.
    #[schema(pattern = "^(drains|grows)$", example = "drains")]
    pub verdict: String,
    /// The smallest limit with which 99 of 100 deliveries would be answered within the target. It has the period, the
    /// burst and the margin of the first tried limit, or is per second; alone, without the others. Null: none is enough,
    /// or nothing was due.
    pub smallest_limit: Option<RateLimit>,
    /// 120 steps of the range.
    pub series: Vec<SimulationPoint>,
}

/// The largest backlog, and when it would be reached first.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BacklogMax {
    pub at: Timestamp,
    pub count: u64,
}

/// How far a tried limit would be used.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SimulatedLimit {
    pub limit: u32,
    #[schema(schema_with = references::period)]
    pub period: String,
    pub burst: u32,
    /// Sends ÷ (limit × span ÷ period), without gaps longer than one period.
    pub utilisation: Option<f64>,
}

/// A step of the range: the time from the point before it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SimulationPoint {
    pub at: Timestamp,
    /// The attempts that became due.
    pub due: u64,
    pub sent: u64,
    /// The deliveries that wait at `at`.
    pub backlog: u64,
    /// Those that really waited.
    pub recorded_backlog: u64,
}
