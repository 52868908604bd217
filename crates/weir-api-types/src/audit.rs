//! The audit. `weir_core::audit::AuditReport` has the same JSON; a test of the API compares the two.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::references;

/// The audit of a destination's recorded send starts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Audit {
    /// The start of the audited range.
    pub from: Timestamp,
    /// The end of the audited range; null: until now.
    pub to: Option<Timestamp>,
    /// The number of sends, including sends of unknown outcome.
    pub sends: u64,
    /// One entry for each limit that was in force in the range: the shortest period first, and for one period the
    /// latest limit first.
    pub rate_limits: Vec<LimitAudit>,
    /// One entry for each minimum interval that was in force in the range, the latest first.
    pub min_intervals: Vec<MinIntervalAudit>,
    /// The earliest sends of unknown outcome. Their process died before it recorded a result, so they may or may not
    /// have started. They count at their latest possible instant. All sends of one crash share this instant, so a
    /// violation that depends on them is only a possible violation.
    #[schema(max_items = 100)]
    pub unknown_sends: Vec<UnknownSend>,
    /// The number of sends of unknown outcome.
    pub unknown_sends_total: u64,
    pub delivery_latency_ms: Latency,
    /// The data of a chart; null if nothing was sent.
    pub series: Option<Series>,
}

/// The audit of one limit, over the time that it was in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitAudit {
    pub limit: u32,
    #[schema(schema_with = references::period)]
    pub period: String,
    pub burst: u32,
    /// `cost`: `sends` and the numbers below are sums of costs. Absent for a limit in requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = references::unit)]
    pub unit: Option<String>,
    /// The calendar window (UTC) with the most sends, among the windows that this limit applies to.
    pub worst_calendar_window: Option<Window>,
    /// The half-open window of one period with the most sends, wherever it begins, among the windows that this limit
    /// applies to. Of the limits of one period, the largest one in force during a window applies to it. A limit counts
    /// as in force until 100 ms after it was replaced.
    pub worst_sliding_window: Option<Window>,
    /// The number of sends that exceed this limit in a window, without counting sends of unknown outcome.
    pub violations: u64,
    /// The number of further sends that exceed it if the sends of unknown outcome started at their latest instant.
    pub possible_violations: u64,
    /// Sends ÷ (limit × span ÷ period), without gaps longer than one period.
    pub utilisation: Option<f64>,
}

/// The audit of one minimum interval, over the time that it was in force. A gap across an edit is judged by the shorter
/// interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MinIntervalAudit {
    pub min_interval_ms: u32,
    /// The shortest time between two successive sends, without counting sends of unknown outcome.
    pub least_gap_ms: Option<f64>,
    /// The number of these gaps that are shorter than the interval.
    pub violations: u64,
    /// The number of further gaps that are shorter if the sends of unknown outcome started at their latest instant.
    pub possible_violations: u64,
}

/// A send whose outcome was not recorded.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UnknownSend {
    #[schema(schema_with = references::delivery_id)]
    pub delivery_id: String,
    /// The number of the attempt.
    pub number: u32,
    /// The latest instant at which the send may have started.
    pub latest_at: Timestamp,
}

/// A window and the number of its sends.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Window {
    pub start: Timestamp,
    pub sends: u64,
}

/// The time from an event's creation, or its `deliver_at`, to the end of the response, in milliseconds with three
/// decimals.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Latency {
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

/// The number of sends per time bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Series {
    pub start: Timestamp,
    pub bucket_ms: u64,
    pub counts: Vec<u32>,
    pub caps: Vec<SeriesCap>,
}

/// The maximum number of sends that the limits allow per bucket, from an instant on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SeriesCap {
    pub at: Timestamp,
    /// Null: unlimited.
    pub sends: Option<u64>,
}
