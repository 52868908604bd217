//! The JSON view of an audit. `weir audit` reads it as the [`AuditReport`] of `weir-core`, so both have the same JSON.

use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{
    Timestamp,
    audit::{self, AuditReport, LatencyPercentiles},
};

use crate::readers::texts::{DeliveryIdText, PeriodText};

/// The audit of a destination's recorded send starts.
#[derive(Debug, Serialize, ToSchema)]
#[schema(as = Audit)]
pub(crate) struct AuditView {
    /// The start of the audited range.
    #[schema(value_type = String, format = DateTime)]
    from: Timestamp,
    /// The end of the audited range; null: until now.
    #[schema(value_type = Option<String>, format = DateTime)]
    to: Option<Timestamp>,
    /// The number of sends, including sends of unknown outcome.
    sends: u64,
    /// One entry for each limit that was in force in the range: the shortest period first, and for one period the
    /// latest limit first.
    rate_limits: Vec<LimitAudit>,
    /// One entry for each minimum interval that was in force in the range, the latest first.
    min_intervals: Vec<MinIntervalAudit>,
    /// The earliest sends of unknown outcome. Their process died before it recorded a result, so they may or may not
    /// have started. They count at their latest possible instant. All sends of one crash share this instant, so a
    /// violation that depends on them is only a possible violation.
    #[schema(max_items = 100)]
    unknown_sends: Vec<UnknownSend>,
    /// The number of sends of unknown outcome.
    unknown_sends_total: u64,
    delivery_latency_ms: Latency,
    /// The data of a chart; null if nothing was sent.
    series: Option<Series>,
}

/// The audit of one limit, over the time that it was in force.
#[derive(Debug, Serialize, ToSchema)]
struct LimitAudit {
    limit: u32,
    #[schema(value_type = PeriodText)]
    period: &'static str,
    burst: u32,
    /// The calendar window (UTC) with the most sends, among the windows that this limit applies to.
    worst_calendar_window: Option<Window>,
    /// The half-open window of one period with the most sends, wherever it begins, among the windows that this limit
    /// applies to. Of the limits of one period, the largest one in force during a window applies to it. A limit counts
    /// as in force until 100 ms after it was replaced.
    worst_sliding_window: Option<Window>,
    /// The number of sends that exceed this limit in a window, without counting sends of unknown outcome.
    violations: u64,
    /// The number of further sends that exceed it if the sends of unknown outcome started at their latest instant.
    possible_violations: u64,
    /// Sends ÷ (limit × span ÷ period), without gaps longer than one period.
    utilisation: Option<f64>,
}

/// The audit of one minimum interval, over the time that it was in force. A gap across an edit is judged by the shorter
/// interval.
#[derive(Debug, Serialize, ToSchema)]
struct MinIntervalAudit {
    min_interval_ms: u32,
    /// The shortest time between two successive sends, without counting sends of unknown outcome.
    least_gap_ms: Option<f64>,
    /// The number of these gaps that are shorter than the interval.
    violations: u64,
    /// The number of further gaps that are shorter if the sends of unknown outcome started at their latest instant.
    possible_violations: u64,
}

/// A send whose outcome was not recorded.
#[derive(Debug, Serialize, ToSchema)]
struct UnknownSend {
    #[schema(value_type = DeliveryIdText)]
    delivery_id: weir_core::DeliveryId,
    /// The number of the attempt.
    number: u32,
    /// The latest instant at which the send may have started.
    #[schema(value_type = String, format = DateTime)]
    latest_at: Timestamp,
}

/// A window and the number of its sends.
#[derive(Debug, Serialize, ToSchema)]
struct Window {
    #[schema(value_type = String, format = DateTime)]
    start: Timestamp,
    sends: u64,
}

/// The time from an event's creation, or its `deliver_at`, to the end of the response, in milliseconds with three
/// decimals.
#[derive(Debug, Serialize, ToSchema)]
struct Latency {
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

/// The number of sends per time bucket.
#[derive(Debug, Serialize, ToSchema)]
struct Series {
    #[schema(value_type = String, format = DateTime)]
    start: Timestamp,
    bucket_ms: u64,
    counts: Vec<u32>,
    caps: Vec<SeriesCap>,
}

/// The maximum number of sends that the limits allow per bucket, from an instant on.
#[derive(Debug, Serialize, ToSchema)]
struct SeriesCap {
    #[schema(value_type = String, format = DateTime)]
    at: Timestamp,
    /// Null: unlimited.
    sends: Option<u64>,
}

impl From<AuditReport> for AuditView {
    fn from(report: AuditReport) -> Self {
        let LatencyPercentiles { p50, p95, p99, max } = report.delivery_latency_ms;
        Self {
            from: report.from,
            to: report.to,
            sends: report.sends,
            rate_limits: report.rate_limits.into_iter().map(LimitAudit::from).collect(),
            min_intervals: report.min_intervals.into_iter().map(MinIntervalAudit::from).collect(),
            unknown_sends: report.unknown_sends.into_iter().map(UnknownSend::from).collect(),
            unknown_sends_total: report.unknown_sends_total,
            delivery_latency_ms: Latency { p50, p95, p99, max },
            series: report.series.map(Series::from),
        }
    }
}

impl From<audit::LimitAudit> for LimitAudit {
    fn from(audit: audit::LimitAudit) -> Self {
        Self {
            limit: audit.limit,
            period: audit.period.as_str(),
            burst: audit.burst,
            worst_calendar_window: audit.worst_calendar_window.map(Window::from),
            worst_sliding_window: audit.worst_sliding_window.map(Window::from),
            violations: audit.violations,
            possible_violations: audit.possible_violations,
            utilisation: audit.utilisation,
        }
    }
}

impl From<audit::MinIntervalAudit> for MinIntervalAudit {
    fn from(audit: audit::MinIntervalAudit) -> Self {
        let audit::MinIntervalAudit { min_interval_ms, least_gap_ms, violations, possible_violations } = audit;
        Self { min_interval_ms, least_gap_ms, violations, possible_violations }
    }
}

impl From<audit::Window> for Window {
    fn from(audit::Window { start, sends }: audit::Window) -> Self {
        Self { start, sends }
    }
}

impl From<audit::UnknownSend> for UnknownSend {
    fn from(audit::UnknownSend { delivery_id, number, latest_at }: audit::UnknownSend) -> Self {
        Self { delivery_id, number, latest_at }
    }
}

impl From<audit::Series> for Series {
    fn from(series: audit::Series) -> Self {
        let audit::Series { start, bucket_ms, counts, caps } = series;
        Self {
            start,
            bucket_ms,
            counts,
            caps: caps.into_iter().map(|cap| SeriesCap { at: cap.at, sends: cap.sends }).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use weir_core::{DeliveryId, Period, RateLimit, RateLimits, audit::Auditor};

    use super::*;

    #[test]
    fn the_view_of_an_audit_is_the_json_of_the_report() {
        let limits = RateLimits::new(vec![RateLimit::new(1, Period::Second).unwrap()]).unwrap();
        let mut auditor = Auditor::new(vec![(Timestamp::MIN, limits)], Timestamp::MIN, Timestamp::MAX);
        auditor.send(Timestamp::from_secs(1));
        auditor.delivered(Duration::from_micros(1_500));
        let delivery_id = DeliveryId::from_bytes([1; 16]);
        auditor.unknown_send(audit::UnknownSend { delivery_id, number: 1, latest_at: Timestamp::from_secs(2) });
        let report = auditor.report();
        assert!(!report.rate_limits.is_empty() && !report.unknown_sends.is_empty() && report.series.is_some());
        let view = serde_json::to_value(AuditView::from(report.clone())).unwrap();
        assert_eq!(view, serde_json::to_value(report).unwrap());
    }
}
