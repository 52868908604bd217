//! Alerts: which events Weir sends about a destination's condition, and when.
//!
//! Each alert is an event whose type begins with `weir.`. A condition that lasts raises one alert when it begins and
//! one when it ends. The alerts that have been raised are recorded ([`AlertState`]), so no alert is raised twice and a
//! restart forgets none.
//!
//! A backlog that stays near a threshold must not raise alerts all the time. So it counts as cleared only when it is
//! below [`CLEARED_BELOW`] of every threshold. An alert about dead letters is raised at most once in
//! [`DEAD_LETTER_INTERVAL`].

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{adaptive::Fall, fault::Late, refusals::Refusals, time::Timestamp};

/// A backlog has cleared when each of its measures is below this fraction of its threshold. A backlog that stays close
/// to a threshold would otherwise raise and clear its alert again and again.
pub const CLEARED_BELOW: f64 = 0.8;
/// The shortest time between two alerts about dead letters of one destination: a destination that fails for good has
/// one dead letter after another, and an operator needs one message a minute at most.
pub const DEAD_LETTER_INTERVAL: Duration = Duration::from_secs(60);
/// How long a backlog counts as one whose deliveries expire after the last sign of it. Where only some deliveries have a
/// `ttl_s`, they come and go, and an alert that follows each of them tells nothing.
pub const EXPIRING_LASTS: Duration = Duration::from_secs(600);
/// How exactly the last sign is recorded, so that a record is not written with every look.
const EXPIRING_STEP: Duration = Duration::from_secs(60);
/// The shortest time between two alerts about the pace of one destination: a receiver that counts longer windows may lower it
/// again and again.
pub const RATE_INTERVAL: Duration = Duration::from_secs(600);
/// The allowed range of thresholds on counts.
pub const COUNTS: std::ops::RangeInclusive<u32> = 1..=1_000_000_000;
/// The allowed range of `oldest_age_s`: up to a year.
pub const AGE_S: std::ops::RangeInclusive<u32> = 1..=31_536_000;

/// The thresholds at which a destination raises alerts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertPolicy {
    /// Waiting deliveries, in [`COUNTS`]; `None` disables the threshold.
    pub backlog_depth: Option<u32>,
    /// The age of the oldest waiting delivery, in [`AGE_S`]; `None` disables the threshold.
    pub oldest_age_s: Option<u32>,
    /// Whether a backlog counts as high when deliveries in it expire before the destination's limit lets it drain.
    pub drain_beyond_ttl: bool,
    /// Dead letters since the last alert about them, in [`COUNTS`]; `None` disables the threshold.
    pub dead_letters: Option<u32>,
}

impl Default for AlertPolicy {
    fn default() -> Self {
        Self { backlog_depth: None, oldest_age_s: None, drain_beyond_ttl: true, dead_letters: Some(1) }
    }
}

/// The settings of one destination that replace those of the general policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct AlertOverrides {
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub backlog_depth: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub oldest_age_s: Option<Option<u32>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drain_beyond_ttl: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub dead_letters: Option<Option<u32>>,
}

/// A field that is present, with a value or `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl AlertOverrides {
    /// The general policy with these overrides.
    pub fn apply_to(&self, policy: &AlertPolicy) -> AlertPolicy {
        AlertPolicy {
            backlog_depth: self.backlog_depth.unwrap_or(policy.backlog_depth),
            oldest_age_s: self.oldest_age_s.unwrap_or(policy.oldest_age_s),
            drain_beyond_ttl: self.drain_beyond_ttl.unwrap_or(policy.drain_beyond_ttl),
            dead_letters: self.dead_letters.unwrap_or(policy.dead_letters),
        }
    }
}

/// The current condition of a destination, as far as alerts depend on it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct DestinationStatus {
    /// Waiting deliveries.
    pub waiting: u64,
    /// The age of the oldest waiting delivery.
    pub oldest_age: Duration,
    /// The time until the backlog is sent, at the destination's limit; `None` without a limit.
    pub drains_in: Option<Duration>,
    /// The time until the newest waiting delivery is given up.
    pub remaining_life: Duration,
    /// Why the breaker is not closed.
    pub breaker: Option<String>,
    /// Why Weir paused the destination.
    pub paused: Option<String>,
    /// Dead letters of the destination: `dead` or `failed`.
    pub undelivered: u64,
    /// Refusals within the limit. `None`: not looked at, so nothing is known of them.
    pub refused: Option<Option<Refusals>>,
    /// A start that is late by Weir's fault. `None`: nothing is known.
    pub stalled: Option<Option<Late>>,
    /// How its adaptive pace stands against what it was. `None`: nothing is known; `Some(None)`: it is not adaptive.
    pub pace: Option<Option<Fall>>,
}

/// The alerts that have been raised for a destination. The default is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AlertState {
    backlog_high: bool,
    breaker_opened: bool,
    paused: bool,
    /// Dead letters that need no alert any more.
    dead: u64,
    dead_at: Option<Timestamp>,
    /// Absent in states that an earlier version recorded.
    #[serde(default)]
    refused: bool,
    #[serde(default)]
    stalled: bool,
    /// The pace from which it fell, in thousandths of a send a second; 0: it has not fallen.
    #[serde(default)]
    fallen_from: u64,
    #[serde(default)]
    fallen_at: Option<Timestamp>,
    /// The measures of the alert about the backlog, by their places in [`Measure::ALL`]. Absent as `refused`.
    #[serde(default)]
    measures: [bool; Measure::ALL.len()],
    /// While the alert about the backlog names [`Measure::DrainBeyondTtl`]: when that was seen last. Absent as `refused`.
    #[serde(default)]
    expiring_at: Option<Timestamp>,
}

/// The alerts about a destination, as a store records them. Not every alert has recipients, but each is in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AlertRecord {
    /// The alerts that had recipients. A later subscriber still gets the others.
    #[serde(flatten)]
    pub told: AlertState,
    /// The alerts in the history. Absent in records of an earlier version, whose history had what was told.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    history: Option<AlertState>,
}

impl AlertRecord {
    pub fn new(told: AlertState, history: AlertState) -> Self {
        Self { told, history: Some(history) }
    }

    /// The alerts in the history.
    pub fn history(&self) -> AlertState {
        self.history.unwrap_or(self.told)
    }
}

/// A measure of a backlog that is above its threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    BacklogDepth,
    OldestAgeS,
    DrainBeyondTtl,
}

impl Measure {
    pub const ALL: [Self; 3] = [Self::BacklogDepth, Self::OldestAgeS, Self::DrainBeyondTtl];
}

/// An alert to raise.
#[derive(Debug, Clone, PartialEq)]
pub enum Alert {
    BacklogHigh(Vec<Measure>),
    /// With the measures of the alert that it ends.
    BacklogCleared(Vec<Measure>),
    BreakerOpened {
        reason: String,
    },
    BreakerClosed,
    Paused {
        reason: String,
    },
    /// There are `new` dead letters since the last alert about them.
    Dead {
        new: u64,
    },
    /// The receiver refuses sends although they keep the limit.
    Refused(Refusals),
    /// It no longer does.
    Admitted,
    /// Deliveries are due, the limits allow them, and none starts.
    Stalled(Late),
    /// It is sent to again.
    Recovered,
    /// The adaptive pace is less than half of what it was.
    RateLowered(Fall),
    /// It is about what it was, or no longer adaptive, which has no pace.
    RateRestored(Option<Fall>),
}

impl Alert {
    /// The type of the alert's event.
    pub const fn event_type(&self) -> &'static str {
        match self {
            Self::BacklogHigh(_) => "weir.backlog.high",
            Self::BacklogCleared(_) => "weir.backlog.cleared",
            Self::BreakerOpened { .. } => "weir.breaker.opened",
            Self::BreakerClosed => "weir.breaker.closed",
            Self::Paused { .. } => "weir.destination.paused",
            Self::Dead { .. } => DEAD,
            Self::Refused(_) => "weir.destination.refused",
            Self::Admitted => "weir.destination.admitted",
            Self::Stalled(_) => "weir.destination.stalled",
            Self::Recovered => "weir.destination.recovered",
            Self::RateLowered(_) => "weir.rate.lowered",
            Self::RateRestored(_) => "weir.rate.restored",
        }
    }
}

/// The type of the events about dead letters.
pub const DEAD: &str = "weir.delivery.dead";

impl AlertState {
    /// The alerts that are to be raised now.
    pub fn alerts(&self, policy: &AlertPolicy, status: &DestinationStatus, now: Timestamp) -> Vec<Alert> {
        let mut alerts = Vec::new();
        // The backlog is high when one measure reaches its threshold. It has cleared when every measure is well below.
        let ratios = threshold_ratios(policy, status);
        let high: Vec<Measure> =
            ratios.iter().filter(|(_, ratio)| *ratio >= 1.0).map(|(measure, _)| *measure).collect();
        let is_cleared = self.is_cleared(&ratios, now);
        // A change raises an alert. Between the two bounds nothing changes.
        match self.backlog_high {
            false if !high.is_empty() => alerts.push(Alert::BacklogHigh(high)),
            true if is_cleared => alerts.push(Alert::BacklogCleared(self.measures())),
            _ => {}
        }
        // One alert when the breaker opens, and one when it closes.
        match (&status.breaker, self.breaker_opened) {
            (Some(reason), false) => alerts.push(Alert::BreakerOpened { reason: reason.clone() }),
            (None, true) => alerts.push(Alert::BreakerClosed),
            _ => {}
        }
        // A pause by Weir raises one alert. Its end raises none.
        if let Some(reason) = status.paused.as_ref().filter(|_| !self.paused) {
            alerts.push(Alert::Paused { reason: reason.clone() });
        }
        // Dead letters since the last alert about them, and no alert too soon after that one.
        let new = status.undelivered.saturating_sub(self.dead);
        let is_too_soon = self.has_told_of_dead_letters(DEAD_LETTER_INTERVAL, now);
        if policy.dead_letters.is_some_and(|threshold| new >= threshold.into()) && !is_too_soon {
            alerts.push(Alert::Dead { new });
        }
        // One alert when refusals within the limit begin, and one when they have ended.
        match (status.refused, self.refused) {
            (Some(Some(refusals)), false) => alerts.push(Alert::Refused(refusals)),
            (Some(None), true) => alerts.push(Alert::Admitted),
            _ => {}
        }
        // One alert when a stall begins, and one when it has ended.
        match (status.stalled, self.stalled) {
            (Some(Some(late)), false) => alerts.push(Alert::Stalled(late)),
            (Some(None), true) => alerts.push(Alert::Recovered),
            _ => {}
        }
        // One alert when the pace has fallen, and one when it is about what it was.
        let is_recent = self.fallen_at.is_some_and(|at| now < at + RATE_INTERVAL);
        match (&status.pace, self.fallen_from) {
            (Some(Some(fall)), 0) if fall.is_deep() && !is_recent => alerts.push(Alert::RateLowered(fall.clone())),
            (Some(Some(fall)), from) if from > 0 && fall.per_s * 1_000.0 >= CLEARED_BELOW * from as f64 => {
                alerts.push(Alert::RateRestored(Some(fall.clone())));
            }
            (Some(None), from) if from > 0 => alerts.push(Alert::RateRestored(None)),
            _ => {}
        }
        alerts
    }

    /// What is wrong now, whether an alert has said so or not. A backlog that an alert has called high counts as high
    /// until it has cleared. All dead letters count, not only the new ones.
    pub fn problems(&self, policy: &AlertPolicy, status: &DestinationStatus, now: Timestamp) -> Vec<Alert> {
        let mut problems = Self::default().alerts(policy, status, Timestamp::MIN);
        let is_high = problems.iter().any(|problem| matches!(problem, Alert::BacklogHigh(_)));
        if self.backlog_high && !is_high && !self.is_cleared(&threshold_ratios(policy, status), now) {
            problems.insert(0, Alert::BacklogHigh(self.measures()));
        }
        problems
    }

    /// The measures that the last alert about the backlog named.
    fn measures(&self) -> Vec<Measure> {
        Measure::ALL
            .into_iter()
            .zip(self.measures)
            .filter(|(_, is_high)| *is_high)
            .map(|(measure, _)| measure)
            .collect()
    }

    /// Whether there was an alert about dead letters less than this time ago.
    pub fn has_told_of_dead_letters(&self, within: Duration, now: Timestamp) -> bool {
        self.dead_at.is_some_and(|at| now < at + within)
    }

    /// Whether the last alert about refusals within the limit said that there are some.
    pub fn is_refused(&self) -> bool {
        self.refused
    }

    /// The state without the conditions whose end raises no alert: a pause that is over, and dead letters that were
    /// replayed or deleted. While alerts about dead letters are disabled, all of them count as alerted.
    pub fn reconciled(self, policy: &AlertPolicy, status: &DestinationStatus, now: Timestamp) -> Self {
        let dead = if policy.dead_letters.is_some() { self.dead.min(status.undelivered) } else { status.undelivered };
        let is_expiring = || {
            let ratios = threshold_ratios(policy, status);
            ratios.iter().any(|(measure, ratio)| *measure == Measure::DrainBeyondTtl && *ratio >= CLEARED_BELOW)
        };
        let expiring_at = self.expiring_at.map(|at| if now >= at + EXPIRING_STEP && is_expiring() { now } else { at });
        Self { paused: self.paused && status.paused.is_some(), dead, expiring_at, ..self }
    }

    /// Whether a backlog with these measures is well below each threshold, and has been for long enough.
    fn is_cleared(&self, ratios: &[(Measure, f64)], now: Timestamp) -> bool {
        let is_watched = ratios.iter().any(|(measure, _)| *measure == Measure::DrainBeyondTtl);
        ratios.iter().all(|(_, ratio)| *ratio < CLEARED_BELOW)
            && !(is_watched && self.expiring_at.is_some_and(|at| now < at + EXPIRING_LASTS))
    }

    /// The state after this alert was raised.
    pub fn with(self, alert: &Alert, now: Timestamp) -> Self {
        match alert {
            Alert::BacklogHigh(high) => Self {
                backlog_high: true,
                measures: Measure::ALL.map(|measure| high.contains(&measure)),
                expiring_at: high.contains(&Measure::DrainBeyondTtl).then_some(now),
                ..self
            },
            Alert::BacklogCleared(_) => {
                Self { backlog_high: false, measures: Default::default(), expiring_at: None, ..self }
            }
            Alert::BreakerOpened { .. } => Self { breaker_opened: true, ..self },
            Alert::BreakerClosed => Self { breaker_opened: false, ..self },
            Alert::Paused { .. } => Self { paused: true, ..self },
            Alert::Dead { new } => Self { dead: self.dead + new, dead_at: Some(now), ..self },
            Alert::Refused(_) => Self { refused: true, ..self },
            Alert::Admitted => Self { refused: false, ..self },
            Alert::Stalled(_) => Self { stalled: true, ..self },
            Alert::Recovered => Self { stalled: false, ..self },
            Alert::RateLowered(fall) => {
                // A pace below a thousandth does not exist.
                let fallen_from = ((fall.usual_per_s * 1_000.0).round() as u64).max(1);
                Self { fallen_from, fallen_at: Some(now), ..self }
            }
            Alert::RateRestored(_) => Self { fallen_from: 0, ..self },
        }
    }
}

/// Each enabled measure divided by its threshold: 1 is at the threshold.
fn threshold_ratios(policy: &AlertPolicy, status: &DestinationStatus) -> Vec<(Measure, f64)> {
    let drain = match status.drains_in {
        Some(drains_in) if policy.drain_beyond_ttl && status.waiting > 0 => {
            // With no remaining life any time to drain is too long, so the ratio becomes very large.
            Some(drains_in.as_secs_f64() / status.remaining_life.as_secs_f64().max(f64::MIN_POSITIVE))
        }
        _ => None,
    };
    let depth = policy.backlog_depth.map(|threshold| status.waiting as f64 / f64::from(threshold));
    let age = policy.oldest_age_s.map(|threshold| status.oldest_age.as_secs_f64() / f64::from(threshold));
    [(Measure::BacklogDepth, depth), (Measure::OldestAgeS, age), (Measure::DrainBeyondTtl, drain)]
        .into_iter()
        .filter_map(|(measure, ratio)| Some((measure, ratio?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{
        refusals::{Cause, Remedy},
        stall::Fault,
    };

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn policy() -> AlertPolicy {
        AlertPolicy { backlog_depth: Some(100), oldest_age_s: Some(60), drain_beyond_ttl: true, dead_letters: Some(5) }
    }

    fn waiting(count: u64) -> DestinationStatus {
        DestinationStatus { waiting: count, remaining_life: Duration::from_secs(3_600), ..DestinationStatus::default() }
    }

    /// Raises all alerts that are due, and returns their types.
    fn raise(
        state: &mut AlertState,
        policy: &AlertPolicy,
        status: &DestinationStatus,
        now: Timestamp,
    ) -> Vec<&'static str> {
        *state = state.reconciled(policy, status, now);
        let alerts = state.alerts(policy, status, now);
        *state = alerts.iter().fold(*state, |state, alert| state.with(alert, now));
        alerts.iter().map(Alert::event_type).collect()
    }

    #[test]
    fn a_high_backlog_raises_one_alert_and_clears_well_below_its_threshold() {
        let mut state = AlertState::default();
        let steps = [
            (99, vec![]),
            (100, vec!["weir.backlog.high"]),
            (5_000, vec![]),
            (99, vec![]),
            (80, vec![]),
            (79, vec!["weir.backlog.cleared"]),
            (80, vec![]),
            (100, vec!["weir.backlog.high"]),
        ];
        for (count, expected) in steps {
            assert_eq!(raise(&mut state, &policy(), &waiting(count), NOW), expected, "{count}");
        }
    }

    #[test]
    fn each_measure_raises_an_alert_that_names_it() {
        let old = DestinationStatus { oldest_age: Duration::from_secs(60), ..waiting(1) };
        assert_eq!(AlertState::default().alerts(&policy(), &old, NOW), [Alert::BacklogHigh(vec![Measure::OldestAgeS])]);
        let late = DestinationStatus { drains_in: Some(Duration::from_secs(3_600)), ..waiting(100) };
        assert_eq!(
            AlertState::default().alerts(&policy(), &late, NOW),
            [Alert::BacklogHigh(vec![Measure::BacklogDepth, Measure::DrainBeyondTtl])]
        );
        let hopeless =
            DestinationStatus { drains_in: Some(Duration::from_secs(1)), remaining_life: Duration::ZERO, ..waiting(1) };
        assert_eq!(
            AlertState::default().alerts(&policy(), &hopeless, NOW),
            [Alert::BacklogHigh(vec![Measure::DrainBeyondTtl])]
        );
    }

    #[test]
    fn a_threshold_that_is_removed_clears_the_backlog() {
        let mut state = AlertState::default();
        raise(&mut state, &policy(), &waiting(500), NOW);
        let none = AlertPolicy { backlog_depth: None, ..policy() };
        assert_eq!(raise(&mut state, &none, &waiting(500), NOW), ["weir.backlog.cleared"]);
    }

    #[test]
    fn the_alert_that_ends_another_names_the_same_measures() {
        let high = Alert::BacklogHigh(vec![Measure::BacklogDepth, Measure::DrainBeyondTtl]);
        let state = AlertState::default().with(&high, NOW);
        let cleared = [Alert::BacklogCleared(vec![Measure::BacklogDepth, Measure::DrainBeyondTtl])];
        assert_eq!(state.alerts(&policy(), &waiting(1), NOW + EXPIRING_LASTS), cleared);
        assert_eq!(state.with(&cleared[0], NOW), AlertState::default());
    }

    #[test]
    fn deliveries_that_expire_now_and_then_raise_one_alert_that_lasts_until_they_have_stopped() {
        let at = |secs| NOW + Duration::from_secs(secs);
        let ttl = |secs| DestinationStatus {
            drains_in: Some(Duration::from_secs(100)),
            remaining_life: Duration::from_secs(secs),
            ..waiting(1)
        };
        let mut state = AlertState::default();
        assert_eq!(raise(&mut state, &policy(), &ttl(60), NOW), ["weir.backlog.high"]);
        for minute in 1..30 {
            assert!(raise(&mut state, &policy(), &ttl(3_600), at(minute * 60 - 30)).is_empty(), "none of them waits");
            assert!(raise(&mut state, &policy(), &ttl(60), at(minute * 60)).is_empty(), "one of them waits again");
        }
        let last = 29 * 60 + EXPIRING_LASTS.as_secs();
        assert!(raise(&mut state, &policy(), &ttl(3_600), at(last - 1)).is_empty());
        assert_eq!(state.problems(&policy(), &ttl(3_600), at(last - 1)).len(), 1, "it is still listed");
        assert_eq!(raise(&mut state, &policy(), &ttl(3_600), at(last)), ["weir.backlog.cleared"]);
    }

    #[test]
    fn a_fallen_pace_raises_one_alert_and_one_when_it_is_about_what_it_was() {
        let mut state = AlertState::default();
        let pace = |per_s: f64| {
            let (reason, detail) = (crate::adaptive::Reason::Throttled, "12 of 340 answers were 429".to_owned());
            let fall = Fall { usual_per_s: 100.0, per_s, at: NOW, reason, detail };
            DestinationStatus { pace: Some(Some(fall)), ..waiting(0) }
        };
        let after = |secs| NOW + Duration::from_secs(secs);
        assert!(raise(&mut state, &policy(), &pace(50.0), NOW).is_empty());
        assert_eq!(raise(&mut state, &policy(), &pace(49.0), NOW), ["weir.rate.lowered"]);
        assert!(raise(&mut state, &policy(), &pace(10.0), after(5)).is_empty());
        // Nothing is known of a pace that did not change.
        assert!(raise(&mut state, &policy(), &waiting(0), after(9)).is_empty());
        assert!(raise(&mut state, &policy(), &pace(79.0), after(20)).is_empty());
        assert_eq!(raise(&mut state, &policy(), &pace(80.0), after(30)), ["weir.rate.restored"]);
        // Not again within ten minutes.
        assert!(raise(&mut state, &policy(), &pace(10.0), after(599)).is_empty());
        assert_eq!(raise(&mut state, &policy(), &pace(10.0), after(600)), ["weir.rate.lowered"]);
        let off = DestinationStatus { pace: Some(None), ..waiting(0) };
        assert_eq!(raise(&mut state, &policy(), &off, after(700)), ["weir.rate.restored"]);
        assert!(raise(&mut state, &policy(), &off, after(800)).is_empty());
    }

    #[test]
    fn what_is_wrong_does_not_depend_on_what_was_told() {
        let status = DestinationStatus { undelivered: 7, breaker: Some("3 failures".to_owned()), ..waiting(500) };
        let wrong = |state: AlertState, status: &DestinationStatus| {
            state.problems(&policy(), status, NOW).iter().map(Alert::event_type).collect::<Vec<_>>()
        };
        let all = ["weir.backlog.high", "weir.breaker.opened", DEAD];
        assert_eq!(wrong(AlertState::default(), &status), all);
        let told = status_told(&status);
        assert_eq!(wrong(told, &status), all, "it is still so");
        // Below the threshold, but not cleared.
        assert_eq!(wrong(told, &waiting(90)), ["weir.backlog.high"]);
        assert_eq!(wrong(AlertState::default(), &waiting(90)), Vec::<&str>::new());
        assert_eq!(wrong(told, &waiting(10)), Vec::<&str>::new());
    }

    fn status_told(status: &DestinationStatus) -> AlertState {
        let none = AlertState::default();
        none.alerts(&policy(), status, NOW).iter().fold(none, |state, alert| state.with(alert, NOW))
    }

    #[test]
    fn a_record_of_an_earlier_version_has_told_all_of_its_history() {
        let state = AlertState { backlog_high: true, dead: 3, ..AlertState::default() };
        let read: AlertRecord = serde_json::from_str(&serde_json::to_string(&state).unwrap()).unwrap();
        assert_eq!((read.told, read.history()), (state, state));
        let record = AlertRecord::new(AlertState::default(), state);
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<AlertRecord>(&text).unwrap(), record);
        // A process of an earlier version reads what was told, and ignores the rest.
        assert_eq!(serde_json::from_str::<AlertState>(&text).unwrap(), AlertState::default());
    }

    #[test]
    fn each_opening_of_a_breaker_and_each_pause_raises_one_alert() {
        let mut state = AlertState::default();
        let open =
            DestinationStatus { breaker: Some("10 failures in a row".to_owned()), ..DestinationStatus::default() };
        let paused = DestinationStatus { paused: Some("410 Gone".to_owned()), ..DestinationStatus::default() };
        let steps = [
            (&open, vec!["weir.breaker.opened"]),
            (&open, vec![]),
            (&paused, vec!["weir.breaker.closed", "weir.destination.paused"]),
            (&paused, vec![]),
            (&DestinationStatus::default(), vec![]),
            (&paused, vec!["weir.destination.paused"]),
        ];
        for (status, expected) in steps {
            assert_eq!(raise(&mut state, &policy(), status, NOW), expected, "{status:?}");
        }
    }

    #[test]
    fn refusals_within_the_limit_raise_one_alert_and_one_when_they_have_ended() {
        let refusals = Refusals {
            cause: Cause::Spacing,
            remedy: Remedy::Interval { min_interval_ms: 102 },
            sends: 400,
            refused: 60,
        };
        let status = |refused| DestinationStatus { refused, ..DestinationStatus::default() };
        let mut state = AlertState::default();
        let steps = [
            (None, vec![]),
            (Some(None), vec![]),
            (Some(Some(refusals)), vec!["weir.destination.refused"]),
            (Some(Some(refusals)), vec![]),
            // Another process may not have looked at this destination.
            (None, vec![]),
            (Some(None), vec!["weir.destination.admitted"]),
            (Some(None), vec![]),
        ];
        for (refused, expected) in steps {
            assert_eq!(raise(&mut state, &policy(), &status(refused), NOW), expected, "{refused:?}");
        }
    }

    #[test]
    fn a_stall_raises_one_alert_when_it_begins_and_one_when_it_ends() {
        let late = Late { since: NOW, fault: Fault::NoWorker };
        let status = |stalled| DestinationStatus { stalled, ..DestinationStatus::default() };
        let mut state = AlertState::default();
        let steps = [
            (Some(None), vec![]),
            (Some(Some(late)), vec!["weir.destination.stalled"]),
            (Some(Some(Late { fault: Fault::QueueAway, ..late })), vec![]),
            // This process began a moment ago.
            (None, vec![]),
            (Some(None), vec!["weir.destination.recovered"]),
            (Some(None), vec![]),
        ];
        for (stalled, expected) in steps {
            assert_eq!(raise(&mut state, &policy(), &status(stalled), NOW), expected, "{stalled:?}");
        }
    }

    #[test]
    fn a_state_that_an_earlier_version_recorded_is_read() {
        let recorded = r#"{"backlog_high":true,"breaker_opened":false,"paused":false,"dead":3,"dead_at":null}"#;
        let state: AlertState = serde_json::from_str(recorded).unwrap();
        assert_eq!(state, AlertState { backlog_high: true, dead: 3, ..AlertState::default() });
    }

    #[test]
    fn dead_letters_raise_an_alert_at_their_threshold_and_once_a_minute_at_most() {
        let mut state = AlertState::default();
        let dead = |count| DestinationStatus { undelivered: count, ..DestinationStatus::default() };
        let later = |secs| NOW + Duration::from_secs(secs);
        let steps = [
            (dead(4), 0, None),
            (dead(5), 1, Some(5)),
            (dead(20), 2, None),
            (dead(20), 61, Some(15)),
            (dead(24), 200, None),
            // Twenty dead letters were replayed, and four more deliveries died.
            (dead(4), 300, None),
            (dead(9), 400, Some(5)),
        ];
        for (status, at, expected) in steps {
            state = state.reconciled(&policy(), &status, later(at));
            let alerts = state.alerts(&policy(), &status, later(at));
            assert_eq!(alerts, Vec::from_iter(expected.map(|new| Alert::Dead { new })), "at {at} s");
            state = alerts.iter().fold(state, |state, alert| state.with(alert, later(at)));
        }
    }

    #[test]
    fn dead_letters_from_a_time_without_a_threshold_raise_no_alert_later() {
        let mut state = AlertState::default();
        let off = AlertPolicy { dead_letters: None, ..policy() };
        assert!(
            raise(&mut state, &off, &DestinationStatus { undelivered: 50, ..DestinationStatus::default() }, NOW)
                .is_empty()
        );
        assert!(
            raise(&mut state, &policy(), &DestinationStatus { undelivered: 54, ..DestinationStatus::default() }, NOW)
                .is_empty()
        );
        assert_eq!(
            raise(&mut state, &policy(), &DestinationStatus { undelivered: 55, ..DestinationStatus::default() }, NOW),
            [DEAD]
        );
    }

    #[test]
    fn an_override_replaces_only_the_fields_it_names_and_null_disables() {
        let overrides: AlertOverrides = serde_json::from_str(r#"{"backlog_depth": null, "dead_letters": 9}"#).unwrap();
        assert_eq!(
            overrides.apply_to(&policy()),
            AlertPolicy { backlog_depth: None, dead_letters: Some(9), ..policy() }
        );
        assert_eq!(serde_json::to_string(&overrides).unwrap(), r#"{"backlog_depth":null,"dead_letters":9}"#);
    }

    proptest! {
        #[test]
        fn high_and_cleared_alerts_alternate(counts in proptest::collection::vec(0_u64..300, 1..50)) {
            let mut state = AlertState::default();
            let mut raised = Vec::new();
            for count in counts {
                let types = raise(&mut state, &policy(), &waiting(count), NOW);
                let expected = if count >= 100 { "weir.backlog.high" } else { "weir.backlog.cleared" };
                prop_assert!(types.iter().all(|event_type| *event_type == expected));
                raised.extend(types);
            }
            for (index, event_type) in raised.iter().enumerate() {
                prop_assert_eq!(*event_type, ["weir.backlog.high", "weir.backlog.cleared"][index % 2]);
            }
        }

        #[test]
        fn every_dead_letter_is_counted_in_one_alert(deaths in proptest::collection::vec(0_u64..20, 1..50)) {
            let mut state = AlertState::default();
            let (mut dead, mut reported, mut now) = (0, 0, NOW);
            for new in deaths {
                dead += new;
                now = now + DEAD_LETTER_INTERVAL;
                let status = DestinationStatus { undelivered: dead, ..DestinationStatus::default() };
                for alert in state.alerts(&policy(), &status, now) {
                    let Alert::Dead { new } = alert else { panic!("{alert:?}") };
                    reported += new;
                    state = state.with(&alert, now);
                }
                prop_assert!(reported <= dead && dead - reported < 5);
            }
        }
    }
}
