//! Judges limits in every window: at the receiver with a slack for the network, and in Weir's record without slack.
//!
//! Calendar windows are a subset of the windows that begin anywhere, so a limit that holds in all windows holds in them
//! too. They are reported as well, because receivers often count by the calendar.

use std::fmt;

use serde::{Deserialize, Serialize};
use weir_core::{
    Period, RateLimit, RateLimits, Timestamp,
    audit::{
        AuditReport, Window,
        in_force::{EDIT_GRACE, InForce, Windows},
        utilisation,
        windows::{self, ObservedSend},
    },
    limit::Unit,
};

use crate::{
    recording::{Arrival, LimitChange, Recording},
    run::SLACK,
};

/// The judgement on the limits of one period and unit, over the destinations of a group, or of a limit group. In costs
/// all numbers of arrivals are sums of costs.
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
    /// Those that exist only if sends of unknown outcome started at their latest instants. They are no breach.
    #[serde(default)]
    pub(crate) recorded_possible: u64,
    /// The lowest of the destinations.
    pub(crate) utilisation: Option<f64>,
}

impl LimitJudgement {
    /// Combines two judgements: the worst of each figure.
    pub(super) fn combined_with(self, other: Self) -> Self {
        let utilisation = [self.utilisation, other.utilisation].into_iter().flatten().reduce(f64::min);
        Self {
            worst_sliding: self.worst_sliding.max(other.worst_sliding),
            worst_calendar: self.worst_calendar.max(other.worst_calendar),
            violations: self.violations + other.violations,
            excused: self.excused + other.excused,
            recorded_worst_sliding: self.recorded_worst_sliding.max(other.recorded_worst_sliding),
            recorded_worst_calendar: self.recorded_worst_calendar.max(other.recorded_worst_calendar),
            recorded_violations: self.recorded_violations + other.recorded_violations,
            recorded_possible: self.recorded_possible + other.recorded_possible,
            utilisation,
            ..self
        }
    }
}

/// The use of the strictest limit: the one that is used most.
pub(super) fn used(limits: &[LimitJudgement]) -> Option<f64> {
    limits.iter().filter_map(|limit| limit.utilisation).reduce(f64::max)
}

pub(crate) fn judge(recording: &Recording, group: usize, breaches: &mut Vec<String>) -> Vec<LimitJudgement> {
    let name = &recording.groups[group].name;
    let limits = recording.of_group(group).flat_map(|number| &recording.destinations[number as usize].limits);
    let counted: Vec<_> = Counted::by(limits).collect();
    let judged: Vec<_> =
        counted.into_iter().filter_map(|counted| judge_destinations(recording, group, counted)).collect();
    report_violations(name, &judged, breaches);

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

/// A limit must hold at the receiver and in Weir's record.
pub(super) fn report_violations(name: &str, judged: &[LimitJudgement], breaches: &mut Vec<String>) {
    for limit in judged {
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

/// What a limit counts: requests or costs, in windows of a period.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    pub(crate) period: Period,
    unit: Unit,
}

impl Counted {
    pub(crate) fn requests(period: Period) -> Self {
        Self { period, unit: Unit::Request }
    }

    /// All that these limits have ever counted.
    pub(crate) fn by<'c>(changes: impl Iterator<Item = &'c LimitChange> + Clone) -> impl Iterator<Item = Self> {
        let of = move |unit| {
            let periods = RateLimits::periods(changes.clone().map(|change| &change.limits), unit);
            periods.into_iter().map(move |period| Self { period, unit })
        };
        Unit::ALL.into_iter().flat_map(of)
    }

    fn limit_in(self, limits: &RateLimits) -> Option<RateLimit> {
        limits.as_slice().iter().find(|limit| (limit.period, limit.unit()) == (self.period, self.unit)).copied()
    }

    fn in_force(self, changes: &[LimitChange]) -> InForce {
        InForce::of_unit(&self::changes(changes, self), self.period, self.unit)
    }

    /// In costs an arrival with a cost of n counts as n arrivals at one instant.
    fn units(self, arrivals: &[Arrived]) -> Vec<Arrived> {
        let units = |arrival: &Arrived| match self.unit {
            Unit::Request => 1,
            Unit::Cost => arrival.cost as usize,
        };
        arrivals.iter().flat_map(|arrival| std::iter::repeat_n(*arrival, units(arrival))).collect()
    }

    /// Arrivals above the limit that nothing explains.
    pub(super) fn violations(self, arrivals: &[Arrived], changes: &[LimitChange]) -> u64 {
        violations(&self.units(arrivals), self.period, &self.in_force(changes), |arrival| arrival.earliest)
    }
}

/// `minute`, or `minute in costs`.
impl fmt::Display for Counted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = if self.unit == Unit::Cost { " in costs" } else { "" };
        write!(f, "{}{of}", self.period)
    }
}

/// An arrival as a limit sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Arrived {
    pub(super) at: Timestamp,
    /// An arrival in a stall may have been sent when the stall began.
    pub(super) earliest: Timestamp,
    pub(super) cost: u32,
}

impl Arrived {
    pub(super) fn of(recording: &Recording, arrival: &Arrival) -> Self {
        Self { at: arrival.at, earliest: arrival.at - arrival.stalled, cost: recording.cost_of(arrival) }
    }
}

/// The judgement of the group is the worst of its destinations.
fn judge_destinations(recording: &Recording, group: usize, counted: Counted) -> Option<LimitJudgement> {
    let of = |number: u32| {
        let destination = &recording.destinations[number as usize];
        let arrivals: Vec<_> = recording.at(number).iter().map(|arrival| Arrived::of(recording, arrival)).collect();
        judge_limit(&arrivals, counted, &destination.limits, destination.audit.as_ref())
    };
    recording.of_group(group).filter_map(of).reduce(LimitJudgement::combined_with)
}

/// Judges one limit of a budget over the arrivals that count in it. `None` if the budget never had such a limit.
pub(super) fn judge_limit(
    arrivals: &[Arrived],
    counted: Counted,
    limits: &[LimitChange],
    audit: Option<&AuditReport>,
) -> Option<LimitJudgement> {
    if limits.iter().all(|change| counted.limit_in(&change.limits).is_none()) {
        return None;
    }
    let Counted { period, unit } = counted;
    let in_force = counted.in_force(limits);
    let arrivals = counted.units(arrivals);
    let seen: Vec<Timestamp> = arrivals.iter().map(|arrival| arrival.at).collect();
    let violated = violations(&arrivals, period, &in_force, |arrival| arrival.earliest);
    let mut judgement = LimitJudgement {
        period: counted.to_string(),
        bound: limits.last().and_then(|change| counted.limit_in(&change.limits)).map(|limit| limit.bound()),
        worst_sliding: windows::worst_sliding(&seen, period.window() - SLACK).map_or(0, |window| window.sends),
        worst_calendar: windows::worst_calendar(&seen, period.window()).map_or(0, |window| window.sends),
        violations: violated,
        excused: violations(&arrivals, period, &in_force, |arrival| arrival.at) - violated,
        recorded_worst_sliding: None,
        recorded_worst_calendar: None,
        recorded_violations: 0,
        recorded_possible: 0,
        utilisation: utilisation::utilisation(&seen, period, &in_force),
    };
    // The audit has a row for each limit of the period; the worst of them counts.
    let rows = audit.iter().flat_map(|audit| &audit.rate_limits);
    for recorded in rows.filter(|row| row.period == period && row.unit.is_some() == (unit == Unit::Cost)) {
        let most = |window: Option<Window>| Some(window.map_or(0, |window| window.sends));
        judgement.recorded_worst_sliding = judgement.recorded_worst_sliding.max(most(recorded.worst_sliding_window));
        judgement.recorded_worst_calendar = judgement.recorded_worst_calendar.max(most(recorded.worst_calendar_window));
        judgement.recorded_violations += recorded.violations;
        judgement.recorded_possible += recorded.possible_violations;
    }
    Some(judgement)
}

fn violations(units: &[Arrived], period: Period, in_force: &InForce, earliest: impl Fn(&Arrived) -> Timestamp) -> u64 {
    // An arrival may be later than its send by the slack. So windows are shorter by it, and the grace of edits is
    // longer.
    let windows = Windows { length: period.window() - SLACK, grace: EDIT_GRACE + SLACK, ..Windows::of(period) };
    let sightings = units.iter().map(|arrival| ObservedSend { seen: arrival.at, earliest: earliest(arrival) });
    windows::certain_violations(&sightings.collect::<Vec<_>>(), &windows, in_force)
}

/// When a limit changed, in the engine's favour: a looser limit counts from the request, a stricter one from the answer,
/// because the edit may have bound at any time between the two.
pub(crate) fn changes(limits: &[LimitChange], counted: Counted) -> Vec<(Timestamp, RateLimits)> {
    let mut before: Option<Option<u64>> = None;
    let at = |change: &LimitChange| {
        let bound = counted.limit_in(&change.limits).map(|limit| limit.bound());
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
