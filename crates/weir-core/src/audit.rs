//! Judges send starts: did a destination keep its limits, how much of them did it use, and how long did events take?
//!
//! The audit is exact, without sampling or buckets. It examines every half-open window of a period's length inside the
//! judged range, wherever the window begins. Sends are added one by one, earliest first. An [`Auditor`] keeps only the
//! sends of the longest window of a limit (8 bytes each, 16 bytes with an unknown outcome; at most 32 MB), the edits of
//! the limits, and less than 1 MB of other data, however many sends a range has.
//!
//! A send has an unknown outcome when its sender died before the answer. It counts at the latest instant at which it
//! may have started. It started earlier, or never, and all such sends of one crash share that instant. So the report
//! names it and windows count it, but a violation that exists only because of such sends is reported as a possible
//! violation. The parts:
//!
//! - [`in_force`]: the limit of each period at each time, after every edit, and the limit that applies to a window;
//! - `sliding`: the fullest calendar and sliding windows of each limit, and the sends that broke the limit;
//! - `gaps`: the shortest gap between two sends, and the gaps shorter than the minimum interval;
//! - [`utilisation`]: the ratio of sends to the sends that were allowed;
//! - [`series`]: the same sends counted in buckets, for a chart;
//! - `latency`: percentiles with a precision of a thousandth;
//! - [`windows`]: the same rules for sends that an outside observer saw; for the load tests.

mod gaps;
pub mod in_force;
mod latency;
mod recent;
mod report;
pub mod series;
mod sliding;
pub mod utilisation;
pub mod windows;

use std::time::Duration;

use crate::{
    limit::{RateLimits, Unit},
    time::Timestamp,
};

pub use report::{AuditReport, LatencyPercentiles, LimitAudit, MAX_UNKNOWN_NAMED, MinIntervalAudit, UnknownSend};
pub use series::Series;
pub use windows::Window;

use gaps::Gaps;
use in_force::InForce;
use latency::Histogram;
use recent::Recent;
use sliding::Sliding;
use utilisation::Utilisation;

/// The limits of one unit. A send with a cost of n counts in costs as n sends at one instant.
#[derive(Debug)]
struct OfUnit {
    recent: Recent,
    /// The periods that have a limit in the range, the shortest first.
    periods: Vec<(Sliding, Utilisation)>,
}

impl OfUnit {
    fn new(unit: Unit, changes: &[(Timestamp, RateLimits)], from: Timestamp, to: Timestamp) -> Self {
        // A period without a limit in the range has nothing to judge.
        let judges = |period| {
            let in_force = InForce::of_unit(changes, period, unit);
            let sliding = Sliding::new(period, &in_force, from, to);
            (!sliding.findings().is_empty()).then(|| (sliding, Utilisation::new(period, &in_force)))
        };
        let periods = RateLimits::periods(changes.iter().map(|(_, limits)| limits), unit);
        Self { recent: Recent::default(), periods: periods.into_iter().filter_map(judges).collect() }
    }

    fn judge(&mut self, at: Timestamp, is_unknown: bool) {
        self.recent.push(at, is_unknown);
        let mut needed: Option<Timestamp> = None;
        for (sliding, utilisation) in &mut self.periods {
            utilisation.send(at);
            let since = sliding.send(at, is_unknown, &self.recent);
            needed = needed.into_iter().chain(since).min();
        }
        self.recent.keep_from(needed);
    }
}

/// Judges sends one by one.
#[derive(Debug)]
pub struct Auditor {
    from: Timestamp,
    to: Timestamp,
    limit_changes: Vec<(Timestamp, RateLimits)>,
    /// The limits in requests, and those in costs.
    units: [OfUnit; 2],
    gaps: Gaps,
    sends: u64,
    unknown_sends: Vec<UnknownSend>,
    unknown_sends_total: u64,
    latencies: Histogram,
    counter: series::Counter,
}

impl Auditor {
    /// An auditor of the sends in `[from, to)`. `limit_changes` are the limits and when each came into force, oldest
    /// first. The oldest limits also apply to the time before them.
    pub fn new(limit_changes: Vec<(Timestamp, RateLimits)>, from: Timestamp, to: Timestamp) -> Self {
        let units = Unit::ALL.map(|unit| OfUnit::new(unit, &limit_changes, from, to));
        let gaps = Gaps::new(&limit_changes, from, to);
        Self {
            from,
            to,
            limit_changes,
            units,
            gaps,
            sends: 0,
            unknown_sends: Vec::new(),
            unknown_sends_total: 0,
            latencies: Histogram::default(),
            counter: series::Counter::default(),
        }
    }

    /// Adds a send with a cost of 1. Sends are added earliest first, those of unknown outcome included.
    pub fn send(&mut self, at: Timestamp) {
        self.send_of(1, at);
    }

    /// Adds a send whose event has this cost.
    pub fn send_of(&mut self, cost: u32, at: Timestamp) {
        self.judge(at, cost, false);
    }

    /// Adds a send of unknown outcome. It counts at its latest instant.
    pub fn unknown_send(&mut self, send: UnknownSend, cost: u32) {
        self.unknown_sends_total += 1;
        if self.unknown_sends.len() < MAX_UNKNOWN_NAMED {
            self.unknown_sends.push(send);
        }
        self.judge(send.latest_at, cost, true);
    }

    /// Adds a call of a caller outside Weir, which started in a slot that ended at `latest_at`, if it did. It counts there, as
    /// a send of unknown outcome does.
    pub fn reserved_call(&mut self, cost: u32, latest_at: Timestamp) {
        self.judge(latest_at, cost, true);
    }

    fn judge(&mut self, at: Timestamp, cost: u32, is_unknown: bool) {
        self.sends += 1;
        self.counter.send(at);
        let [of_requests, of_costs] = &mut self.units;
        of_requests.judge(at, is_unknown);
        if !of_costs.periods.is_empty() {
            (0..cost).for_each(|_| of_costs.judge(at, is_unknown));
        }
        self.gaps.send(at, is_unknown);
    }

    /// Adds the latency of a delivered event, from its creation to the end of the answer.
    pub fn delivered(&mut self, latency: Duration) {
        self.latencies.record(latency);
    }

    /// The report on everything added so far.
    pub fn report(self) -> AuditReport {
        // One row for each limit that was in force in the range, also if it was removed later.
        let limits = |(sliding, utilisation): &(Sliding, Utilisation)| {
            let audit_of = |found: &sliding::Findings| LimitAudit {
                limit: found.limit.limit.get(),
                period: found.limit.period,
                burst: found.limit.burst.get(),
                unit: found.limit.unusual_unit(),
                worst_calendar_window: found.calendar,
                worst_sliding_window: found.sliding,
                violations: found.violations,
                possible_violations: found.possible_violations,
                // Sends and times under another limit of the same period do not count for this one.
                utilisation: utilisation.ratio(|limit| limit == Some(found.limit)),
            };
            sliding.findings().iter().map(audit_of).collect::<Vec<_>>()
        };
        AuditReport {
            from: self.from,
            // `null` for a range without an end.
            to: (self.to < Timestamp::MAX).then_some(self.to),
            sends: self.sends,
            rate_limits: self.units.iter().flat_map(|unit| &unit.periods).flat_map(limits).collect(),
            min_intervals: self.gaps.into_findings(),
            unknown_sends: self.unknown_sends,
            unknown_sends_total: self.unknown_sends_total,
            delivery_latency_ms: self.latencies.percentiles(),
            series: self.counter.series(&self.limit_changes),
        }
    }
}

/// The complete input of an audit, for a caller that has all of it in memory.
#[derive(Debug, Clone, Copy)]
pub struct Evidence<'a> {
    /// Every send start, in any order.
    pub sends: &'a [Timestamp],
    /// The limits and when each came into force, in any order. The oldest limits also apply to the time before them.
    pub limit_changes: &'a [(Timestamp, RateLimits)],
    /// The latency of each delivered event, from its creation to the end of the answer.
    pub latencies: &'a [Duration],
}

/// Judges the evidence.
pub fn audit(evidence: &Evidence<'_>) -> AuditReport {
    let mut changes = evidence.limit_changes.to_vec();
    changes.sort_by_key(|(at, _)| *at);
    let mut auditor = Auditor::new(changes, Timestamp::MIN, Timestamp::MAX);
    let mut sends = evidence.sends.to_vec();
    sends.sort_unstable();
    sends.iter().for_each(|send| auditor.send(*send));
    evidence.latencies.iter().for_each(|latency| auditor.delivered(*latency));
    auditor.report()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        id::DeliveryId,
        limit::{Period, RateLimit},
    };

    fn limits(all: &[(u32, Period)]) -> RateLimits {
        RateLimits::new(all.iter().map(|(limit, period)| RateLimit::new(*limit, *period).unwrap()).collect()).unwrap()
    }

    fn per_second(limit: u32) -> RateLimits {
        limits(&[(limit, Period::SECOND)])
    }

    fn always(limits: RateLimits) -> [(Timestamp, RateLimits); 1] {
        [(Timestamp::MIN, limits)]
    }

    fn judge(sends: &[Timestamp], limit_changes: &[(Timestamp, RateLimits)]) -> AuditReport {
        audit(&Evidence { sends, limit_changes, latencies: &[] })
    }

    #[test]
    fn the_report_has_the_shape_of_the_api() {
        let start = Timestamp::from_millis(1_763_710_200_250);
        let limits = always(per_second(2)).to_vec();
        let mut auditor = Auditor::new(limits, Timestamp::from_secs(1_763_710_200), Timestamp::MAX);
        for n in 0..3 {
            auditor.send(start + Duration::from_millis(n * 500));
        }
        let unknown = UnknownSend {
            delivery_id: DeliveryId::from_bytes([0; 16]),
            number: 2,
            latest_at: start + Duration::from_millis(1_500),
        };
        auditor.unknown_send(unknown, 1);
        auditor.delivered(Duration::from_micros(1_500));
        auditor.delivered(Duration::from_micros(4_001));
        let report = auditor.report();
        let json = serde_json::to_value(&report).unwrap();
        let expected = serde_json::json!({
            "from": "2025-11-21T07:30:00.000Z", "to": null,
            "sends": 4,
            "min_intervals": [],
            "rate_limits": [{
                "limit": 2, "period": "second", "burst": 1,
                "worst_calendar_window": {"start": "2025-11-21T07:30:00.000Z", "sends": 2},
                "worst_sliding_window": {"start": "2025-11-21T07:30:00.250Z", "sends": 2},
                "violations": 0, "possible_violations": 0, "utilisation": 1.25
            }],
            "unknown_sends": [{
                "delivery_id": unknown.delivery_id.to_string(), "number": 2, "latest_at": "2025-11-21T07:30:01.750Z"
            }],
            "unknown_sends_total": 1,
            "delivery_latency_ms": {"p50": 1.5, "p95": 4.0, "p99": 4.0, "max": 4.001},
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
        let json = serde_json::to_value(judge(&[], &always(per_second(2)))).unwrap();
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
        let report = judge(&[Timestamp::from_secs(5); 3], &always(RateLimits::UNLIMITED));
        assert_eq!((report.sends, report.rate_limits.len(), report.violations()), (3, 0, 0));
    }

    #[test]
    fn a_limit_in_costs_is_judged_by_the_sums_and_one_in_requests_by_the_sends() {
        let points = RateLimit::new(10, Period::MINUTE).unwrap().in_costs().unwrap();
        let both = RateLimits::new(vec![RateLimit::new(2, Period::SECOND).unwrap(), points]).unwrap();
        let mut auditor = Auditor::new(always(both).to_vec(), Timestamp::MIN, Timestamp::MAX);
        for (second, cost) in [(1, 4), (2, 6), (62, 5), (63, 6)] {
            auditor.send_of(cost, Timestamp::from_secs(second));
        }
        let report = auditor.report();
        let rows: Vec<_> = report.rate_limits.iter().map(|row| (row.unit.as_deref(), row.violations)).collect();
        assert_eq!(rows, [(None, 0), (Some("cost"), 1)], "the last window holds 11");
        assert_eq!(report.rate_limits[1].worst_sliding_window.map(|window| window.sends), Some(11));
        assert_eq!(report.sends, 4);
    }

    #[test]
    fn the_order_of_the_evidence_does_not_matter() {
        let mut sends: Vec<_> = [5_000, 1_000, 1_300, 1_600, 4_900].map(Timestamp::from_millis).to_vec();
        let judged = judge(&sends, &always(per_second(2)));
        sends.reverse();
        assert_eq!(judge(&sends, &always(per_second(2))), judged);
        assert_eq!(judged.violations(), 1);
    }

    #[test]
    fn every_limit_that_was_in_force_has_a_row_even_after_its_removal() {
        let at = Timestamp::from_secs;
        let changes = [
            (at(0), limits(&[(10, Period::SECOND), (100, Period::MINUTE)])),
            (at(10), per_second(5)),
            (at(20), RateLimits::UNLIMITED),
            (at(30), per_second(10)),
        ];
        // Eleven sends in the last second of the limit of 10, six in the last second of the limit of 5, then sends
        // without a limit.
        let burst =
            |end_s: i64, count: i64| (0..count).map(move |n| Timestamp::from_millis(end_s * 1_000 - 900 + n * 10));
        let sends: Vec<_> = burst(10, 11).chain(burst(20, 6)).chain(burst(29, 80)).collect();
        let report = judge(&sends, &changes);
        let rows: Vec<_> = report.rate_limits.iter().map(|row| (row.limit, row.period, row.violations)).collect();
        assert_eq!(rows, [(10, Period::SECOND, 1), (5, Period::SECOND, 1), (100, Period::MINUTE, 0)]);
        let fullest = |row: &LimitAudit| row.worst_sliding_window.map(|window| window.sends);
        assert_eq!(report.rate_limits.iter().map(fullest).collect::<Vec<_>>(), [Some(11), Some(6), Some(11)]);
    }

    #[test]
    fn a_limit_that_was_in_force_only_outside_the_range_has_no_row() {
        let at = Timestamp::from_secs;
        let changes = vec![(at(0), per_second(10)), (at(10), per_second(5)), (at(20), per_second(1))];
        let rows = |from, to| {
            let report = Auditor::new(changes.clone(), from, to).report();
            report.rate_limits.iter().map(|row| row.limit).collect::<Vec<_>>()
        };
        assert_eq!(rows(at(12), at(18)), [5]);
        assert_eq!(rows(at(9), at(18)), [5, 10]);
        assert_eq!(rows(at(30), Timestamp::MAX), [1]);
    }

    #[test]
    fn sends_of_unknown_outcome_count_and_the_first_of_them_are_named() {
        let mut auditor = Auditor::new(always(per_second(1)).to_vec(), Timestamp::MIN, Timestamp::MAX);
        auditor.send(Timestamp::from_secs(9));
        for number in 1..=150 {
            let latest_at = Timestamp::from_millis(9_500 + i64::from(number));
            auditor.unknown_send(UnknownSend { delivery_id: DeliveryId::from_bytes([1; 16]), number, latest_at }, 1);
        }
        let report = auditor.report();
        assert_eq!((report.sends, report.unknown_sends_total), (151, 150));
        assert_eq!((report.violations(), report.possible_violations()), (0, 150));
        assert_eq!(report.rate_limits[0].worst_sliding_window.map(|window| window.sends), Some(151));
        let named: Vec<_> = report.unknown_sends.iter().map(|send| send.number).collect();
        assert_eq!(named, (1..=100).collect::<Vec<_>>());
    }

    #[test]
    fn after_a_million_sends_only_those_of_the_longest_window_are_kept() {
        let changes = [
            (Timestamp::MIN, limits(&[(100, Period::SECOND), (3_000, Period::MINUTE)])),
            (Timestamp::from_secs(3_000), per_second(50)),
            (Timestamp::from_secs(6_000), RateLimits::UNLIMITED),
        ];
        let mut auditor = Auditor::new(changes.to_vec(), Timestamp::MIN, Timestamp::MAX);
        let mut most = 0;
        for n in 0..1_000_000 {
            auditor.send(Timestamp::from_millis(n * 20));
            auditor.delivered(Duration::from_micros(n as u64));
            let bound = match n * 20 {
                ..3_000_000 => 3_000,
                3_000_000..6_000_000 => 50,
                _ => 0,
            };
            assert!(
                auditor.units[0].recent.len() <= bound,
                "{} sends are kept after {n}",
                auditor.units[0].recent.len()
            );
            most = most.max(auditor.units[0].recent.len());
        }
        assert_eq!(most, 3_000);
        let report = auditor.report();
        assert_eq!((report.sends, report.violations()), (1_000_000, 0));
        assert!(report.series.is_some_and(|series| series.counts.len() <= series::MAX_BUCKETS));
    }

    #[test]
    fn a_limit_that_is_far_exceeded_keeps_no_more_sends_than_the_largest_bound() {
        let mut auditor = Auditor::new(always(limits(&[(1, Period::DAY)])).to_vec(), Timestamp::MIN, Timestamp::MAX);
        let sends = recent::MAX_RECENT as u64 + 1_000;
        (0..sends).for_each(|n| auditor.send(Timestamp::from_nanos(n as i64)));
        assert_eq!(auditor.units[0].recent.len(), recent::MAX_RECENT);
        assert_eq!(auditor.report().violations(), sends - 1);
    }
}
