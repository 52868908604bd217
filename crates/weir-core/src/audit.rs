//! The one judge of send starts: did a destination keep its limits, how much of them did it use, how long did events take?
//!
//! Pure and exact: no sampling, no buckets. Every half-open window of a period's length is looked at, wherever it begins,
//! because the worst one always begins at a send. The parts:
//!
//! - [`windows`]: the fullest calendar and sliding windows, and the sends that broke a limit;
//! - [`usage`]: how much of what was allowed was sent;
//! - [`in_force`]: which limit of a period held when, edits included;
//! - [`series`]: the same sends counted in buckets, for a picture.
//!
//! The report serialises to the JSON of `GET /v1/destinations/{id}/audit` and reads back from it.

pub mod in_force;
pub mod series;
pub mod usage;
pub mod windows;

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    limit::{Period, RateLimit, RateLimits},
    time::Timestamp,
};

pub use series::Series;
pub use windows::Window;

use in_force::InForce;

/// What is judged.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Every send start, in any order.
    pub sends: &'a [Timestamp],
    /// The limits and when each came into force. Empty when they never changed. The oldest also holds for the time before.
    pub limit_changes: &'a [(Timestamp, RateLimits)],
    /// The limits to report on: the current ones.
    pub limits: &'a RateLimits,
    /// For each delivered event, from its creation to the end of the answer.
    pub latencies: &'a [Duration],
}

/// The judgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AuditReport {
    pub sends: u64,
    /// One per current limit, the shortest period first.
    pub rate_limits: Vec<LimitAudit>,
    pub delivery_latency_ms: LatencyPercentiles,
    /// `None` when nothing was sent.
    pub series: Option<Series>,
}

impl AuditReport {
    /// The sends that broke a limit, summed over the limits.
    pub fn violations(&self) -> u64 {
        self.rate_limits.iter().map(|limit| limit.violations).sum()
    }
}

/// The judgement on one limit.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LimitAudit {
    pub limit: u32,
    #[serde(serialize_with = "period_name", deserialize_with = "period_of_name")]
    pub period: Period,
    pub burst: u32,
    /// The fullest period by the UTC calendar.
    pub worst_calendar_window: Option<Window>,
    /// The fullest half-open window of one period's length, wherever it begins.
    pub worst_sliding_window: Option<Window>,
    /// How many sends were one too many, by the limits in force at their time.
    pub violations: u64,
    /// Sends ÷ what the limit allowed meanwhile; see [`usage::utilisation`].
    pub utilisation: Option<f64>,
}

/// Latencies in milliseconds, by nearest rank.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LatencyPercentiles {
    pub p50: Option<f64>,
    pub p95: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

/// Judges the evidence.
pub fn audit(evidence: &Evidence<'_>) -> AuditReport {
    let mut sends = evidence.sends.to_vec();
    sends.sort_unstable();
    let mut changes = evidence.limit_changes.to_vec();
    changes.sort_by_key(|(at, _)| *at);
    if changes.is_empty() {
        changes.push((Timestamp::MIN, evidence.limits.clone()));
    }
    AuditReport {
        sends: sends.len() as u64,
        rate_limits: evidence.limits.as_slice().iter().map(|limit| audit_limit(&sends, &changes, limit)).collect(),
        delivery_latency_ms: percentiles(evidence.latencies),
        series: series::series(&sends, &changes),
    }
}

fn audit_limit(sends: &[Timestamp], changes: &[(Timestamp, RateLimits)], limit: &RateLimit) -> LimitAudit {
    let in_force = InForce::new(changes, limit.period);
    let window = limit.period.window();
    LimitAudit {
        limit: limit.limit.get(),
        period: limit.period,
        burst: limit.burst.get(),
        worst_calendar_window: windows::worst_calendar(sends, window),
        worst_sliding_window: windows::worst_sliding(sends, window),
        violations: windows::violations(sends, window, &in_force),
        utilisation: usage::utilisation(sends, limit.period, &in_force),
    }
}

/// Exact percentiles by nearest rank: the smallest latency that at least this share of all does not exceed.
fn percentiles(latencies: &[Duration]) -> LatencyPercentiles {
    let mut sorted = latencies.to_vec();
    sorted.sort_unstable();
    let rank = |percent: usize| {
        let index = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
        // Whole microseconds: more digits than any clock here deserves would only fill the page.
        sorted.get(index).map(|latency| latency.as_micros() as f64 / 1_000.0)
    };
    LatencyPercentiles { p50: rank(50), p95: rank(95), p99: rank(99), max: rank(100) }
}

fn period_name<S: Serializer>(period: &Period, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(period.as_str())
}

fn period_of_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Period, D::Error> {
    let name = String::deserialize(deserializer)?;
    Period::parse(&name).ok_or_else(|| de::Error::custom(format!("`{name}` is not a period")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn per_second(limit: u32) -> RateLimits {
        RateLimits::new(vec![RateLimit::new(limit, Period::Second).unwrap()]).unwrap()
    }

    #[test]
    fn the_report_has_the_shape_of_the_api() {
        let sends: Vec<_> = (0..4).map(|n| Timestamp::from_millis(1_763_710_200_250 + n * 500)).collect();
        let latencies = [Duration::from_micros(1_500), Duration::from_millis(4)];
        let limits = per_second(2);
        let report = audit(&Evidence { sends: &sends, limit_changes: &[], limits: &limits, latencies: &latencies });
        let json = serde_json::to_value(&report).unwrap();
        let expected = serde_json::json!({
            "sends": 4,
            "rate_limits": [{
                "limit": 2, "period": "second", "burst": 1,
                "worst_calendar_window": {"start": "2025-11-21T07:30:00.000Z", "sends": 2},
                "worst_sliding_window": {"start": "2025-11-21T07:30:00.250Z", "sends": 2},
                "violations": 0, "utilisation": 1.25
            }],
            "delivery_latency_ms": {"p50": 1.5, "p95": 4.0, "p99": 4.0, "max": 4.0},
            "series": {
                "start": "2025-11-21T07:30:00.000Z", "bucket_ms": 1000, "counts": [2, 2],
                "caps": [{"at": "2025-11-21T07:30:00.000Z", "sends": 2}]
            }
        });
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_value::<AuditReport>(json).unwrap(), report);
    }

    #[test]
    fn nothing_sent_is_null_and_not_zero() {
        let limits = per_second(2);
        let report = audit(&Evidence { sends: &[], limit_changes: &[], limits: &limits, latencies: &[] });
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["sends"], 0);
        assert_eq!(json["rate_limits"][0]["violations"], 0);
        for pointer in [
            "/rate_limits/0/worst_calendar_window",
            "/rate_limits/0/utilisation",
            "/delivery_latency_ms/p50",
            "/series",
        ] {
            assert_eq!(json.pointer(pointer), Some(&serde_json::Value::Null), "{pointer}");
        }
    }

    #[test]
    fn an_unlimited_destination_has_no_limits_to_judge() {
        let sends = [Timestamp::from_secs(5); 3];
        let unlimited = RateLimits::UNLIMITED;
        let report = audit(&Evidence { sends: &sends, limit_changes: &[], limits: &unlimited, latencies: &[] });
        assert_eq!((report.sends, report.rate_limits.len(), report.violations()), (3, 0, 0));
    }

    #[test]
    fn the_order_of_the_sends_does_not_matter() {
        let sends: Vec<_> = [5_000, 1_000, 1_300, 1_600, 4_900].map(Timestamp::from_millis).to_vec();
        let mut reversed = sends.clone();
        reversed.reverse();
        let limits = per_second(2);
        let judge =
            |sends: &[Timestamp]| audit(&Evidence { sends, limit_changes: &[], limits: &limits, latencies: &[] });
        assert_eq!(judge(&sends), judge(&reversed));
        assert_eq!(judge(&sends).violations(), 1);
    }

    #[test]
    fn percentiles_are_by_nearest_rank() {
        let hundred: Vec<_> = (1..=100).rev().map(Duration::from_millis).collect();
        let of_hundred = percentiles(&hundred);
        assert_eq!(
            of_hundred,
            LatencyPercentiles { p50: Some(50.0), p95: Some(95.0), p99: Some(99.0), max: Some(100.0) }
        );
        assert_eq!(percentiles(&hundred[..1]).p50, Some(100.0));
    }
}
