//! The gaps between successive sends, judged by the minimum interval in force.
//!
//! An edit takes effect within [`EDIT_GRACE`], as with limits. A gap is judged by the shortest interval that counted at
//! any instant of it, and not at all if at some instant there was none.

use std::time::Duration;

use super::{in_force::EDIT_GRACE, report::MinIntervalAudit};
use crate::{
    limit::{MinInterval, RateLimits},
    time::Timestamp,
};

/// A time in which one interval was set, or none.
#[derive(Debug, Clone, Copy)]
struct Setting {
    from: Timestamp,
    /// With the grace after the edit that ended it.
    counts_until: Timestamp,
    min_interval: Option<MinInterval>,
}

/// The findings on one interval.
#[derive(Debug)]
struct Findings {
    min_interval: MinInterval,
    least: Option<Duration>,
    violations: u64,
    possible_violations: u64,
}

/// The gaps, send by send.
#[derive(Debug)]
pub(super) struct Gaps {
    /// Earliest first, without gaps between them.
    settings: Vec<Setting>,
    /// Of each interval that was in force in the range, the latest one first.
    findings: Vec<Findings>,
    last: Option<Timestamp>,
    last_known: Option<Timestamp>,
}

impl Gaps {
    /// `changes` are ordered oldest first. The oldest limits also apply to the time before them.
    pub(super) fn new(changes: &[(Timestamp, RateLimits)], from: Timestamp, to: Timestamp) -> Self {
        let mut settings: Vec<Setting> = Vec::new();
        for (at, limits) in changes {
            let min_interval = limits.min_interval();
            match settings.last_mut() {
                Some(last) if last.min_interval == min_interval => continue,
                Some(last) => last.counts_until = *at + EDIT_GRACE,
                None => {}
            }
            let from = if settings.is_empty() { Timestamp::MIN } else { *at };
            settings.push(Setting { from, counts_until: Timestamp::MAX, min_interval });
        }
        let mut findings: Vec<Findings> = Vec::new();
        for setting in settings.iter().rev().filter(|setting| setting.from < to && setting.counts_until > from) {
            if let Some(min_interval) = setting.min_interval
                && findings.iter().all(|found| found.min_interval != min_interval)
            {
                findings.push(Findings { min_interval, least: None, violations: 0, possible_violations: 0 });
            }
        }
        Self { settings, findings, last: None, last_known: None }
    }

    /// Adds a send. Sends are added earliest first.
    pub(super) fn send(&mut self, at: Timestamp, is_unknown: bool) {
        if self.findings.is_empty() {
            return;
        }
        let (last, last_known) = (self.last.replace(at), self.last_known);
        // A gap between two known sends is certain, even if a send of unknown outcome may lie in it.
        let mut breaks = false;
        if !is_unknown {
            self.last_known = Some(at);
            if let Some((gap, found)) = last_known.and_then(|last| self.judge(last, at)) {
                found.least = Some(found.least.map_or(gap, |least| least.min(gap)));
                breaks = gap < found.min_interval.as_duration();
                found.violations += u64::from(breaks);
            }
        }
        // The gap to a later send of unknown outcome is shorter.
        if !breaks && let Some((gap, found)) = last.and_then(|last| self.judge(last, at)) {
            found.possible_violations += u64::from(gap < found.min_interval.as_duration());
        }
    }

    /// The gap, and the interval that judges it.
    fn judge(&mut self, from: Timestamp, to: Timestamp) -> Option<(Duration, &mut Findings)> {
        let begin = self.settings.partition_point(|setting| setting.counts_until <= from);
        let end = self.settings.partition_point(|setting| setting.from <= to);
        // `None` is the smallest value.
        let shortest = self.settings[begin..end].iter().map(|setting| setting.min_interval).min()??;
        let found = self.findings.iter_mut().find(|found| found.min_interval == shortest)?;
        Some((to.since(from), found))
    }

    pub(super) fn into_findings(self) -> Vec<MinIntervalAudit> {
        let audit_of = |found: Findings| MinIntervalAudit {
            min_interval_ms: found.min_interval.as_millis(),
            least_gap_ms: found.least.map(|gap| gap.as_secs_f64() * 1_000.0),
            violations: found.violations,
            possible_violations: found.possible_violations,
        };
        self.findings.into_iter().map(audit_of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every(millis: impl Into<Option<u32>>) -> RateLimits {
        RateLimits::UNLIMITED.with_min_interval(millis.into().and_then(MinInterval::from_millis))
    }

    fn at(millis: i64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    /// Interval, shortest gap, violations and possible violations. A negative instant is that of an unknown send.
    fn judged(changes: &[(i64, RateLimits)], sends: &[i64]) -> Vec<(u32, Option<f64>, u64, u64)> {
        let changes: Vec<_> = changes.iter().map(|(millis, limits)| (at(*millis), limits.clone())).collect();
        let mut gaps = Gaps::new(&changes, Timestamp::MIN, Timestamp::MAX);
        for send in sends {
            gaps.send(at(send.abs()), *send < 0);
        }
        let row = |found: MinIntervalAudit| {
            (found.min_interval_ms, found.least_gap_ms, found.violations, found.possible_violations)
        };
        gaps.into_findings().into_iter().map(row).collect()
    }

    #[test]
    fn gaps_shorter_than_the_interval_are_violations() {
        assert_eq!(judged(&[(0, every(100))], &[0, 100, 200, 299, 500]), [(100, Some(99.0), 1, 0)]);
        assert_eq!(judged(&[(0, every(100))], &[7]), [(100, None, 0, 0)]);
        assert_eq!(judged(&[(0, every(None))], &[0, 1]), []);
    }

    #[test]
    fn a_gap_to_a_send_of_unknown_outcome_is_a_possible_violation() {
        assert_eq!(judged(&[(0, every(100))], &[10, -60, 130]), [(100, Some(120.0), 0, 2)]);
        assert_eq!(judged(&[(0, every(100))], &[10, -60, 70]), [(100, Some(60.0), 1, 1)]);
    }

    #[test]
    fn a_gap_across_an_edit_is_judged_by_the_shorter_interval() {
        let lowered = [(0, every(500)), (1_000, every(50))];
        assert_eq!(judged(&lowered, &[0, 990, 1_050, 1_090]), [(50, Some(40.0), 1, 0), (500, Some(990.0), 0, 0)]);
        let raised = [(0, every(50)), (1_000, every(500))];
        // The old interval counts until 100 ms after the edit.
        assert_eq!(judged(&raised, &[1_040, 1_090, 1_150]), [(500, None, 0, 0), (50, Some(50.0), 0, 0)]);
        assert_eq!(judged(&raised, &[1_100, 1_200]), [(500, Some(100.0), 1, 0), (50, None, 0, 0)]);
    }

    #[test]
    fn a_gap_that_touches_a_time_without_an_interval_is_not_judged() {
        let changes = [(0, every(100)), (1_000, every(None)), (2_000, every(100))];
        assert_eq!(judged(&changes, &[999, 1_001, 2_099, 2_110, 2_120]), [(100, Some(10.0), 1, 0)]);
    }
}
