//! The result of an audit. It serialises to the JSON of `GET /v1/destinations/{id}/audit` and deserialises from it.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{Series, Window};
use crate::{id::DeliveryId, limit::Period, time::Timestamp};

/// How many sends of unknown outcome a report names: as many as an operator may look at. It counts all of them.
pub const MAX_UNKNOWN_NAMED: usize = 100;

/// The result of an audit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditReport {
    /// The judged range, `to` excluded. `None`: the range has no end.
    pub from: Timestamp,
    pub to: Option<Timestamp>,
    /// All sends, including those of unknown outcome.
    pub sends: u64,
    /// One entry for each limit that was in force in the range: the shortest period first, and within a period the
    /// latest limit first.
    pub rate_limits: Vec<LimitAudit>,
    /// One entry for each minimum interval that was in force in the range, the latest first. Servers of an earlier
    /// version do not send it.
    #[serde(default)]
    pub min_intervals: Vec<MinIntervalAudit>,
    /// The earliest sends of unknown outcome, at most [`MAX_UNKNOWN_NAMED`].
    pub unknown_sends: Vec<UnknownSend>,
    /// The number of all sends of unknown outcome.
    pub unknown_sends_total: u64,
    pub delivery_latency_ms: LatencyPercentiles,
    /// `None` when nothing was sent.
    pub series: Option<Series>,
}

impl AuditReport {
    /// The sends that broke a limit, summed over the limits, and the gaps shorter than the minimum interval.
    pub fn violations(&self) -> u64 {
        let gaps: u64 = self.min_intervals.iter().map(|interval| interval.violations).sum();
        gaps + self.rate_limits.iter().map(|limit| limit.violations).sum::<u64>()
    }

    /// The same if the sends of unknown outcome started at their latest instant: how many more there are.
    pub fn possible_violations(&self) -> u64 {
        let gaps: u64 = self.min_intervals.iter().map(|interval| interval.possible_violations).sum();
        gaps + self.rate_limits.iter().map(|limit| limit.possible_violations).sum::<u64>()
    }
}

/// The findings on one limit, over the time in which it was in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitAudit {
    pub limit: u32,
    #[serde(serialize_with = "period_name", deserialize_with = "period_of_name")]
    pub period: Period,
    pub burst: u32,
    /// `cost`: the windows of this limit hold costs, not sends. Absent for requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// The fullest calendar period (UTC) among the windows that this limit judges.
    pub worst_calendar_window: Option<Window>,
    /// The fullest half-open window of one period's length, wherever it begins, among the windows that this limit
    /// judges.
    pub worst_sliding_window: Option<Window>,
    /// How many sends exceeded the bound of a window that this limit judges, without counting sends of unknown outcome.
    pub violations: u64,
    /// How many further sends exceeded a bound if the sends of unknown outcome started at their latest instant.
    pub possible_violations: u64,
    /// Sends ÷ the sends that the limit allowed in the same time; see
    /// [`utilisation::utilisation`](super::utilisation::utilisation).
    pub utilisation: Option<f64>,
}

/// The findings on one minimum interval, over the time in which it was in force.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MinIntervalAudit {
    pub min_interval_ms: u32,
    /// The shortest time between the starts of two successive sends of known outcome.
    pub least_gap_ms: Option<f64>,
    /// How many gaps between two sends of known outcome were shorter than the interval.
    pub violations: u64,
    /// How many further gaps were shorter if the sends of unknown outcome started at their latest instant.
    pub possible_violations: u64,
}

/// A send whose outcome could not be recorded. If it started, it started no later than `latest_at`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnknownSend {
    pub delivery_id: DeliveryId,
    /// The number of the attempt within its delivery.
    pub number: u32,
    pub latest_at: Timestamp,
}

/// Latencies in milliseconds, by nearest rank, with a precision of a thousandth.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LatencyPercentiles {
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

fn period_name<S: Serializer>(period: &Period, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(period)
}

fn period_of_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Period, D::Error> {
    let name = String::deserialize(deserializer)?;
    Period::parse(&name).ok_or_else(|| de::Error::custom(format!("`{name}` is not a period")))
}
