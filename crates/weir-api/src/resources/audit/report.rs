//! The audit in the document. `weir-core` serialises the audit itself; a test compares its fields with these types.

#![expect(dead_code, reason = "used only as schemas, never constructed")]

use utoipa::ToSchema;

/// The audit of a destination's recorded send starts.
#[derive(ToSchema)]
pub(crate) struct Audit {
    /// The start of the audited range.
    #[schema(format = DateTime)]
    from: String,
    /// The end of the audited range; null: until now.
    #[schema(format = DateTime)]
    to: Option<String>,
    /// The number of sends, including sends of unknown outcome.
    sends: u64,
    /// One entry for each limit that was in force in the range: the shortest period first, and for one period the
    /// latest limit first.
    rate_limits: Vec<LimitAudit>,
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
#[derive(ToSchema)]
struct LimitAudit {
    limit: u32,
    #[schema(pattern = "^(second|minute|hour|day)$")]
    period: String,
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

/// A send whose outcome was not recorded.
#[derive(ToSchema)]
struct UnknownSend {
    delivery_id: String,
    /// The number of the attempt.
    number: u32,
    /// The latest instant at which the send may have started.
    #[schema(format = DateTime)]
    latest_at: String,
}

/// A window and the number of its sends.
#[derive(ToSchema)]
struct Window {
    #[schema(format = DateTime)]
    start: String,
    sends: u64,
}

/// The time from an event's creation, or its `deliver_at`, to the end of the response, in milliseconds with three
/// decimals.
#[derive(ToSchema)]
struct Latency {
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

/// The number of sends per time bucket.
#[derive(ToSchema)]
struct Series {
    #[schema(format = DateTime)]
    start: String,
    bucket_ms: u64,
    counts: Vec<u32>,
    caps: Vec<SeriesCap>,
}

/// The maximum number of sends that the limits allow per bucket, from an instant on.
#[derive(ToSchema)]
struct SeriesCap {
    #[schema(format = DateTime)]
    at: String,
    /// Null: unlimited.
    sends: Option<u64>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;
    use utoipa::PartialSchema;

    use super::*;

    #[test]
    fn the_described_audit_matches_the_audit_that_is_shown() {
        use weir_core::{
            DeliveryId, Period, RateLimit, RateLimits, Timestamp,
            audit::{self, Auditor},
        };
        fn names(value: &Value) -> BTreeSet<&String> {
            value.as_object().unwrap().keys().collect()
        }
        let limits = RateLimits::new(vec![RateLimit::new(1, Period::Second).unwrap()]).unwrap();
        let mut auditor = Auditor::new(vec![(Timestamp::MIN, limits)], Timestamp::MIN, Timestamp::MAX);
        let delivery_id = DeliveryId::from_bytes([1; 16]);
        auditor.unknown_send(audit::UnknownSend { delivery_id, number: 1, latest_at: Timestamp::from_secs(1) });
        let shown = serde_json::to_value(auditor.report()).unwrap();
        fn described<T: PartialSchema>() -> Value {
            serde_json::to_value(T::schema()).unwrap()["properties"].clone()
        }
        let table = [
            (described::<Audit>(), &shown),
            (described::<LimitAudit>(), &shown["rate_limits"][0]),
            (described::<Window>(), &shown["rate_limits"][0]["worst_sliding_window"]),
            (described::<UnknownSend>(), &shown["unknown_sends"][0]),
            (described::<Latency>(), &shown["delivery_latency_ms"]),
            (described::<Series>(), &shown["series"]),
            (described::<SeriesCap>(), &shown["series"]["caps"][0]),
        ];
        for (schema, value) in table {
            assert_eq!(names(&schema), names(value));
        }
    }
}
