//! The history and the health of a destination.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::{ErrorCount, RateLimit, RefusedWithinLimit, references};

/// What happened at a destination in each bucket of a range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct History {
    /// The length of a bucket.
    pub step: String,
    /// The beginning of the first bucket.
    pub from: Timestamp,
    /// The end of the last bucket.
    pub to: Timestamp,
    pub data: Vec<HistoryBucket>,
    #[schema(schema_with = references::periods_left_out)]
    pub windows_left_out: Vec<String>,
    /// The errors of the buckets are not counted, because the range has more than 200,000 sends.
    pub errors_left_out: bool,
    /// The answer times, by the minute or by the hour; parts in which nothing was sent have none. Kept for eight days.
    pub latencies: Vec<HistoryLatency>,
    /// The limits at the beginning of the range, if there were any, and each change of them in the range.
    pub limit_changes: Vec<LimitChange>,
}

/// One bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryBucket {
    /// The beginning of the bucket.
    pub at: Timestamp,
    /// Sends that started.
    pub sends: u64,
    /// Attempts that succeeded.
    pub delivered: u64,
    /// Attempts that did not succeed, including those of unknown outcome and those that could not connect.
    pub failed: u64,
    /// New deliveries.
    pub arrivals: u64,
    /// Deliveries that wait at the end of the bucket.
    pub backlog: u64,
    /// The fullest window of each limit that is in force in the bucket, the shortest period first.
    pub max_window: Vec<MaxWindow>,
    /// How the attempts of the bucket failed, the most frequent error first. Empty if nothing failed, or if `errors_left_out`.
    /// `connect` stands for every attempt that found no connection.
    pub errors: Vec<ErrorCount>,
}

/// How long the receiver took to answer in a part of a range.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HistoryLatency {
    /// The beginning of the part.
    pub at: Timestamp,
    /// The length of the part in seconds: a minute, or an hour in long ranges and for parts older than seven hours.
    pub step_s: u32,
    /// Milliseconds, within 10 %.
    pub p50: f64,
    pub p95: f64,
}

/// The fullest window of one limit that ends in a bucket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct MaxWindow {
    #[schema(schema_with = references::period)]
    pub period: String,
    /// `cost`: the limit counts costs, and `sends` and `limit` are sums of costs. Absent: it counts requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = references::unit)]
    pub unit: Option<String>,
    /// The most sends in a window of this length, wherever it begins, that ends in the bucket.
    pub sends: u64,
    /// The most sends that the limits allow in such a window: `limit + burst − 1` of the largest limit in force in it.
    pub limit: u64,
}

/// Limits that apply from an instant on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitChange {
    pub at: Timestamp,
    pub rate_limits: Vec<RateLimit>,
    /// Null: none.
    #[schema(minimum = 1, maximum = 60_000)]
    pub min_interval_ms: Option<u32>,
}

/// How the attempts of a destination went.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DestinationHealth {
    pub window: String,
    /// The share of attempts that succeeded; null without attempts.
    pub success_ratio: Option<f64>,
    /// From the start of a request to the end of its response or to its failure, of requests that were sent. Within 10 %.
    pub latency_ms: HealthLatency,
    /// How many delivered deliveries needed each number of attempts, the smallest number first.
    pub attempts: Vec<HealthAttempts>,
    pub attempts_made: u64,
    /// Attempts that succeeded. Each has delivered a delivery.
    pub delivered: u64,
    /// Attempts that did not succeed.
    pub failed: u64,
    /// Deliveries that became `dead` or `failed`.
    pub dead: u64,
    /// When the last attempt succeeded, also before the window; null if none is known.
    pub last_success_at: Option<Timestamp>,
    /// Refusals within the limit in the last five minutes, whatever the window; null if there are none.
    pub refused_within_limit: Option<RefusedWithinLimit>,
}

/// Percentiles in milliseconds; null if nothing was sent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HealthLatency {
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
}

/// How many deliveries needed a number of attempts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HealthAttempts {
    pub number: u32,
    pub deliveries: u64,
}
