//! Alerts about limit groups: the members that a group holds back wait for one cause, so one alert tells of them all.

use std::time::Duration;

use super::{
    Alert, AlertPolicy, AlertState, AlertType, DestinationStatus, Measure,
    state::{high, threshold_ratios},
};
use crate::time::Timestamp;

/// A backlog never drains if at least as many deliveries arrive as are sent. An alert says so only when the oldest delivery
/// has waited for this time, because limits are made to spread a burst over some minutes.
pub const NEVER_DRAINS_AFTER: Duration = Duration::from_secs(300);

/// The backlog of the members that a group holds back. The default is none.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupStatus {
    /// How many members it holds back.
    pub members: u64,
    /// Their waiting deliveries.
    pub waiting: u64,
    pub oldest_age: Duration,
    /// The time until these are sent at what the group leaves them; `None` if they never are, or nobody knows.
    pub drains_in: Option<Duration>,
    /// Of all members, in the last minute.
    pub arrivals_per_s: f64,
    pub sends_per_s: f64,
    /// Whether at least as much arrives as is sent.
    grows: bool,
    /// The largest ratio of each measure to its threshold: of the group by the general thresholds, and of each of these members by
    /// its own.
    ratios: Vec<(Measure, f64)>,
}

impl GroupStatus {
    /// A group without a backlog yet, whose members get and send this much.
    pub fn new(arrivals_per_s: f64, sends_per_s: f64) -> Self {
        let grows = arrivals_per_s > 0.0 && arrivals_per_s >= sends_per_s;
        Self { arrivals_per_s, sends_per_s, grows, ..Self::default() }
    }

    /// While somebody holds the group, nothing is sent, and that says nothing of later.
    pub fn held(self) -> Self {
        Self { grows: false, ..self }
    }

    /// Adds a member that the group holds back. `policy` has the thresholds of the member.
    pub fn add(&mut self, status: &DestinationStatus, policy: &AlertPolicy) {
        self.members += 1;
        self.waiting += status.waiting;
        self.oldest_age = self.oldest_age.max(status.oldest_age);
        self.drains_in = self.drains_in.max(status.drains_in);
        self.raise(threshold_ratios(policy, status));
    }

    /// Adds the sums of the group, by the general thresholds. Called when all members are there.
    pub fn sum_up(mut self, policy: &AlertPolicy) -> Self {
        let (waiting, oldest_age) = (self.waiting, self.oldest_age);
        self.raise(threshold_ratios(
            policy,
            &DestinationStatus { waiting, oldest_age, ..DestinationStatus::default() },
        ));
        let never_drains = self.never_drains();
        if never_drains {
            self.drains_in = None;
        }
        if policy.drain_beyond_ttl {
            // Also for a group without a backlog: one that comes and goes has caught up when none was seen for a while.
            self.raise(vec![(Measure::DrainBeyondTtl, if never_drains { f64::INFINITY } else { 0.0 })]);
        }
        self
    }

    /// Whether what waits has waited for long, and grows.
    pub fn never_drains(&self) -> bool {
        self.grows && self.waiting > 0 && self.oldest_age >= NEVER_DRAINS_AFTER
    }

    fn raise(&mut self, ratios: Vec<(Measure, f64)>) {
        for (measure, ratio) in ratios {
            match self.ratios.iter_mut().find(|(known, _)| *known == measure) {
                Some((_, known)) => *known = known.max(ratio),
                None => self.ratios.push((measure, ratio)),
            }
        }
    }
}

/// An alert about a group.
#[derive(Debug, Clone, PartialEq)]
pub enum GroupAlert {
    Behind(Vec<Measure>),
    /// With the measures of the alert that it ends.
    CaughtUp(Vec<Measure>),
}

impl GroupAlert {
    pub const fn alert_type(&self) -> AlertType {
        match self {
            Self::Behind(_) => AlertType::GroupBehind,
            Self::CaughtUp(_) => AlertType::GroupCaughtUp,
        }
    }

    pub fn measures(&self) -> &[Measure] {
        let (Self::Behind(measures) | Self::CaughtUp(measures)) = self;
        measures
    }
}

/// A group is recorded as a destination with the same backlog.
impl AlertState {
    /// The alert about a group that is to be raised now, and the state after it.
    pub fn group_alert(self, status: &GroupStatus, now: Timestamp) -> (Self, Option<GroupAlert>) {
        let state = self.seen(|| status.ratios.clone(), now);
        match state.backlog_alert(&status.ratios, now) {
            Some(Alert::BacklogHigh(measures)) => {
                (state.with(&Alert::BacklogHigh(measures.clone()), now), Some(GroupAlert::Behind(measures)))
            }
            Some(Alert::BacklogCleared(measures)) => {
                (state.with(&Alert::BacklogCleared(measures.clone()), now), Some(GroupAlert::CaughtUp(measures)))
            }
            _ => (state, None),
        }
    }

    /// By which measures a group is behind now, whether an alert has said so or not.
    pub fn group_is_behind(&self, status: &GroupStatus, now: Timestamp) -> Option<Vec<Measure>> {
        let high = high(&status.ratios);
        if high.is_empty() { self.still_high(&status.ratios, now) } else { Some(high) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn policy() -> AlertPolicy {
        AlertPolicy { backlog_depth: Some(1_000), oldest_age_s: None, ..AlertPolicy::default() }
    }

    fn member(waiting: u64, age_s: u64, drains_s: u64) -> DestinationStatus {
        DestinationStatus {
            waiting,
            oldest_age: Duration::from_secs(age_s),
            drains_in: Some(Duration::from_secs(drains_s)),
            remaining_life: Duration::from_secs(3_600),
            ..DestinationStatus::default()
        }
    }

    fn status(rates: (f64, f64), members: &[DestinationStatus]) -> GroupStatus {
        let mut group = GroupStatus::new(rates.0, rates.1);
        members.iter().for_each(|member| group.add(member, &policy()));
        group.sum_up(&policy())
    }

    fn behind(status: &GroupStatus) -> Option<Vec<Measure>> {
        AlertState::default().group_is_behind(status, NOW)
    }

    #[test]
    fn the_backlogs_of_members_count_together_and_each_by_its_own_thresholds() {
        let shrinks = (1.0, 2.0);
        let half = member(500, 10, 60);
        assert_eq!(behind(&status(shrinks, &[member(499, 10, 60), half.clone()])), None);
        let full = status(shrinks, &[half.clone(), half.clone()]);
        assert_eq!(behind(&full), Some(vec![Measure::BacklogDepth]));
        assert_eq!((full.members, full.waiting, full.drains_in), (2, 1_000, Some(Duration::from_secs(60))));
        let mut strict = GroupStatus::new(1.0, 2.0);
        strict.add(&half, &AlertPolicy { oldest_age_s: Some(10), ..policy() });
        assert_eq!(behind(&strict.sum_up(&policy())), Some(vec![Measure::OldestAgeS]));
        assert_eq!(behind(&status(shrinks, &[member(1, 1, 3_600)])), Some(vec![Measure::DrainBeyondTtl]));
        assert_eq!(behind(&status(shrinks, &[])), None);
    }

    #[test]
    fn a_group_to_which_more_comes_than_goes_is_behind_after_five_minutes() {
        for (rates, age_s, never) in [
            ((10.0, 10.0), 300, true),
            ((10.0, 10.0), 299, false),
            ((9.9, 10.0), 300, false),
            // Nothing comes, and nothing goes: for example a hold.
            ((0.0, 0.0), 300, false),
        ] {
            let found = status(rates, &[member(5, age_s, 60)]);
            assert_eq!((found.never_drains(), found.drains_in.is_none()), (never, never), "{rates:?} {age_s}");
            assert_eq!(behind(&found), never.then(|| vec![Measure::DrainBeyondTtl]));
        }
        let mut off = GroupStatus::new(10.0, 10.0);
        let policy = AlertPolicy { drain_beyond_ttl: false, ..policy() };
        off.add(&member(5, 900, 60), &policy);
        assert_eq!(behind(&off.sum_up(&policy)), None);
    }

    #[test]
    fn a_group_is_told_of_once_and_has_caught_up_when_it_was_for_ten_minutes() {
        let high = status((10.0, 10.0), &[member(5, 600, 60)]);
        let (told, alert) = AlertState::default().group_alert(&high, NOW);
        assert_eq!(alert, Some(GroupAlert::Behind(vec![Measure::DrainBeyondTtl])));
        assert_eq!(told.group_alert(&high, NOW).1, None);
        let at = |minutes: u64| NOW + Duration::from_secs(60 * minutes);
        let (told, alert) = told.group_alert(&high, at(2));
        assert_eq!(alert, None);
        let none = GroupStatus::new(0.0, 0.0).sum_up(&policy());
        let (told, alert) = told.group_alert(&none, at(11));
        assert_eq!((alert, told.group_is_behind(&none, at(11)).is_some()), (None, true));
        let (told, alert) = told.group_alert(&none, at(12));
        assert_eq!(alert, Some(GroupAlert::CaughtUp(vec![Measure::DrainBeyondTtl])));
        assert_eq!((told, told.group_is_behind(&none, at(12))), (AlertState::default(), None));
    }
}
