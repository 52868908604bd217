//! Judges limits in every window: at the receiver with a slack for the network, and in Weir's record without slack.
//!
//! Calendar windows are a subset of the windows that begin anywhere, so a limit that holds in all windows holds in them
//! too. They are reported as well, because receivers often count by the calendar.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use weir_core::{
    Period, RateLimits, Timestamp,
    audit::{
        Window,
        in_force::{EDIT_GRACE, InForce, Windows},
        usage,
        windows::{self, ObservedSend},
    },
    limit::Unit,
};

use crate::{
    recording::{Arrival, LimitChange, Recording},
    run::SLACK,
};

/// The judgement on the limits of one period, over the destinations of a group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LimitJudgement {
    pub(crate) period: String,
    /// The bound of the last limit, burst included.
    pub(crate) bound: Option<u64>,
    /// The most arrivals in any window of the period's length less the slack, and in any calendar window.
    pub(crate) worst_sliding: u64,
    pub(crate) worst_calendar: u64,
    /// Arrivals above the limit.
    pub(crate) violations: u64,
    /// Arrivals above the limit that a stall of the receiver explains.
    pub(crate) excused: u64,
    /// The same for the recorded send starts, without slack.
    pub(crate) recorded_worst_sliding: Option<u64>,
    pub(crate) recorded_worst_calendar: Option<u64>,
    pub(crate) recorded_violations: u64,
    /// The lowest of the destinations.
    pub(crate) utilisation: Option<f64>,
}

impl LimitJudgement {
    /// Combines two judgements: the worst of each figure.
    fn combined_with(self, other: Self) -> Self {
        let utilisation = [self.utilisation, other.utilisation].into_iter().flatten().reduce(f64::min);
        Self {
            worst_sliding: self.worst_sliding.max(other.worst_sliding),
            worst_calendar: self.worst_calendar.max(other.worst_calendar),
            violations: self.violations + other.violations,
            excused: self.excused + other.excused,
            recorded_worst_sliding: self.recorded_worst_sliding.max(other.recorded_worst_sliding),
            recorded_worst_calendar: self.recorded_worst_calendar.max(other.recorded_worst_calendar),
            recorded_violations: self.recorded_violations + other.recorded_violations,
            utilisation,
            ..self
        }
    }
}

pub(crate) fn judge(recording: &Recording, group: usize, breaches: &mut Vec<String>) -> Vec<LimitJudgement> {
    let name = &recording.groups[group].name;
    let judged: Vec<_> = limited_periods(recording, group)
        .into_iter()
        .filter_map(|period| judge_period(recording, group, period))
        .collect();
    // A limit must hold at the receiver and in Weir's record.
    for limit in &judged {
        let period = &limit.period;
        if limit.violations > 0 {
            breaches.push(format!(
                "{name}: {} arrivals above the limit of a {period}; the fullest window holds {}",
                limit.violations, limit.worst_sliding
            ));
        }
        if limit.recorded_violations > 0 {
            breaches
                .push(format!("{name}: {} recorded sends above the limit of a {period}", limit.recorded_violations));
        }
    }

    // Every arrival must be in Weir's record.
    let (unrecorded, unaudited) = record_gaps(recording, group);
    if unrecorded > 0 {
        breaches.push(format!("{name}: {unrecorded} arrivals are not in Weir's record"));
    }
    // Without an audit the record of a destination is not judged at all.
    if unaudited > 0 {
        breaches.push(format!("{name}: {unaudited} destinations have no audit"));
    }
    judged
}

/// The number of arrivals that are missing in Weir's record, counted only in a run without faults, and the number of
/// destinations without an audit.
fn record_gaps(recording: &Recording, group: usize) -> (u64, usize) {
    if !recording.groups[group].expect.delivered {
        return (0, 0);
    }
    let mut gaps = (0, 0);
    for number in recording.of_group(group) {
        match &recording.destinations[number as usize].audit {
            Some(audit) if recording.faults.is_empty() => {
                gaps.0 += (recording.at(number).len() as u64).saturating_sub(audit.sends);
            }
            Some(_) => {}
            None => gaps.1 += 1,
        }
    }
    gaps
}

fn limited_periods(recording: &Recording, group: usize) -> BTreeSet<Period> {
    let destinations = recording.of_group(group).map(|number| &recording.destinations[number as usize]);
    let changes: Vec<_> = destinations.flat_map(|destination| &destination.limits).collect();
    RateLimits::periods(changes.iter().map(|change| &change.limits), Unit::Request)
}

fn judge_period(recording: &Recording, group: usize, period: Period) -> Option<LimitJudgement> {
    let mut judgement: Option<LimitJudgement> = None;
    for number in recording.of_group(group) {
        let destination = &recording.destinations[number as usize];
        // A destination that never had a limit for this period is not judged.
        if destination.limits.iter().all(|change| limit_of(&change.limits, period).is_none()) {
            continue;
        }
        let in_force = InForce::new(&changes(&destination.limits, period), period);
        let mut one = judge_destination(recording.at(number), period, &in_force, &destination.limits);
        // The audit has a row for each limit of the period; the worst of them counts.
        for recorded in destination
            .audit
            .iter()
            .flat_map(|audit| &audit.rate_limits)
            .filter(|l| l.period == period && l.unit.is_none())
        {
            let most = |window: Option<Window>| Some(window.map_or(0, |window| window.sends));
            one.recorded_worst_sliding = one.recorded_worst_sliding.max(most(recorded.worst_sliding_window));
            one.recorded_worst_calendar = one.recorded_worst_calendar.max(most(recorded.worst_calendar_window));
            one.recorded_violations += recorded.violations;
        }
        // The judgement of the group is the worst of its destinations.
        judgement = Some(match judgement {
            Some(others) => others.combined_with(one),
            None => one,
        });
    }
    judgement
}

fn judge_destination(
    arrivals: &[Arrival],
    period: Period,
    in_force: &InForce,
    limits: &[LimitChange],
) -> LimitJudgement {
    // An arrival may be later than its send by the slack. So windows are shorter by it, and the grace of edits is
    // longer.
    let windows = Windows { length: period.window() - SLACK, grace: EDIT_GRACE + SLACK, ..Windows::of(period) };
    let seen: Vec<Timestamp> = arrivals.iter().map(|arrival| arrival.at).collect();
    let violations_with = |earliest: fn(&Arrival) -> Timestamp| {
        let sightings: Vec<_> =
            arrivals.iter().map(|arrival| ObservedSend { seen: arrival.at, earliest: earliest(arrival) }).collect();
        windows::certain_violations(&sightings, &windows, in_force)
    };
    // An arrival in a stall may have been sent when the stall began. Violations that this explains are excused.
    let violations = violations_with(|arrival| arrival.at - arrival.stalled);
    LimitJudgement {
        period: period.to_string(),
        bound: limits.last().and_then(|change| limit_of(&change.limits, period)),
        worst_sliding: windows::worst_sliding(&seen, windows.length).map_or(0, |window| window.sends),
        worst_calendar: windows::worst_calendar(&seen, period.window()).map_or(0, |window| window.sends),
        violations,
        excused: violations_with(|arrival| arrival.at) - violations,
        recorded_worst_sliding: None,
        recorded_worst_calendar: None,
        recorded_violations: 0,
        utilisation: usage::utilisation(&seen, period, in_force),
    }
}

/// The bound of a period's limit.
fn limit_of(limits: &RateLimits, period: Period) -> Option<u64> {
    limits.of_requests().as_slice().iter().find(|limit| limit.period == period).map(weir_core::RateLimit::bound)
}

/// When the limit of a period changed, in the engine's favour: a looser limit counts from the request, a stricter one
/// from the answer, because the edit may have bound at any time between the two.
pub(crate) fn changes(limits: &[LimitChange], period: Period) -> Vec<(Timestamp, RateLimits)> {
    let mut before: Option<Option<u64>> = None;
    let at = |change: &LimitChange| {
        let bound = limit_of(&change.limits, period);
        let is_stricter = before.is_some_and(|before| match (before, bound) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(before), Some(bound)) => bound < before,
        });
        before = Some(bound);
        (if is_stricter { change.answered } else { change.sent }, change.limits.clone())
    };
    limits.iter().map(at).collect()
}
