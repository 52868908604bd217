//! The alerts that have been raised for a destination, and which are to be raised now.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{
    Alert, AlertPolicy, CLEARED_BELOW, DEAD_LETTER_INTERVAL, DestinationStatus, Measure, RATE_INTERVAL, SEEN_LASTS,
};
use crate::{fault::Outage, time::Timestamp};

/// How exactly the last sign is recorded, so that a record is not written with every look.
const SEEN_STEP: Duration = Duration::from_secs(60);

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
    /// While there is an alert about a receiver that refuses many sends: when that was seen last. Absent as `refused`.
    #[serde(default)]
    refusing_at: Option<Timestamp>,
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
impl AlertState {
    /// The alerts that are to be raised now.
    pub fn alerts(&self, policy: &AlertPolicy, status: &DestinationStatus, now: Timestamp) -> Vec<Alert> {
        let mut alerts = Vec::new();
        alerts.extend(self.backlog_alert(&threshold_ratios(policy, status), now));
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
        // One alert when the receiver refuses many sends, and one when it has refused few for long enough.
        match (status.refusing, self.refusing_at) {
            (Some(refusing), None) if refusing.is_much() => alerts.push(Alert::Refusing(refusing)),
            (Some(refusing), Some(at)) if !refusing.is_still_much() && now >= at + SEEN_LASTS => {
                alerts.push(Alert::Accepting);
            }
            _ => {}
        }
        alerts
    }

    /// The state after an alert about this outage, or about the end of one, if there is an alert to raise. The
    /// installation is recorded as a destination that is stalled.
    pub fn outage_alert(self, outage: Option<Option<Outage>>) -> Option<Self> {
        match (outage, self.stalled) {
            (Some(Some(_)), false) => Some(Self { stalled: true, ..self }),
            (Some(None), true) => Some(Self { stalled: false, ..self }),
            _ => None,
        }
    }

    /// What is wrong now, whether an alert has said so or not. A backlog that an alert has called high counts as high
    /// until it has cleared. All dead letters count, not only the new ones.
    pub fn problems(&self, policy: &AlertPolicy, status: &DestinationStatus, now: Timestamp) -> Vec<Alert> {
        let mut problems = Self::default().alerts(policy, status, Timestamp::MIN);
        let is_high = problems.iter().any(|problem| matches!(problem, Alert::BacklogHigh(_)));
        if let Some(measures) = self.still_high(&threshold_ratios(policy, status), now).filter(|_| !is_high) {
            problems.insert(0, Alert::BacklogHigh(measures));
        }
        if let Some(refusing) = status.refusing.filter(|it| self.is_refusing() && it.is_still_much() && !it.is_much()) {
            problems.push(Alert::Refusing(refusing));
        }
        problems
    }

    /// The alert about a backlog with these measures, if one is to be raised. It is high when one measure reaches its
    /// threshold, and has cleared when every measure is well below. Between the two bounds nothing changes.
    pub(super) fn backlog_alert(&self, ratios: &[(Measure, f64)], now: Timestamp) -> Option<Alert> {
        let high = high(ratios);
        match self.backlog_high {
            false if !high.is_empty() => Some(Alert::BacklogHigh(high)),
            true if self.is_cleared(ratios, now) => Some(Alert::BacklogCleared(self.measures())),
            _ => None,
        }
    }

    /// The measures of the alert about a backlog that has not cleared.
    pub(super) fn still_high(&self, ratios: &[(Measure, f64)], now: Timestamp) -> Option<Vec<Measure>> {
        (self.backlog_high && !self.is_cleared(ratios, now)).then(|| self.measures())
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

    /// Whether the last alert about refused sends said that the receiver refuses many.
    pub fn is_refusing(&self) -> bool {
        self.refusing_at.is_some()
    }

    /// The state without the conditions whose end raises no alert: a pause that is over, and dead letters that were
    /// replayed or deleted. While alerts about dead letters are disabled, all of them count as alerted.
    pub fn reconciled(self, policy: &AlertPolicy, status: &DestinationStatus, now: Timestamp) -> Self {
        let dead = if policy.dead_letters.is_some() { self.dead.min(status.undelivered) } else { status.undelivered };
        let is_refusing = || status.refusing.is_some_and(|refusing| refusing.is_still_much());
        let refusing_at = self.refusing_at.map(|at| if is_seen_again(at, now) && is_refusing() { now } else { at });
        let is_paused = self.paused && status.paused.is_some();
        Self { paused: is_paused, dead, refusing_at, ..self }.seen(|| threshold_ratios(policy, status), now)
    }

    /// Notes that deliveries of the backlog still expire, if they do.
    pub(super) fn seen(self, ratios: impl FnOnce() -> Vec<(Measure, f64)>, now: Timestamp) -> Self {
        let Some(_) = self.expiring_at.filter(|at| is_seen_again(*at, now)) else { return self };
        let is_expiring =
            ratios().iter().any(|(measure, ratio)| *measure == Measure::DrainBeyondTtl && *ratio >= CLEARED_BELOW);
        if is_expiring { Self { expiring_at: Some(now), ..self } } else { self }
    }

    /// Whether a backlog with these measures is well below each threshold, and has been for long enough.
    fn is_cleared(&self, ratios: &[(Measure, f64)], now: Timestamp) -> bool {
        let is_watched = ratios.iter().any(|(measure, _)| *measure == Measure::DrainBeyondTtl);
        ratios.iter().all(|(_, ratio)| *ratio < CLEARED_BELOW)
            && !(is_watched && self.expiring_at.is_some_and(|at| now < at + SEEN_LASTS))
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
            Alert::Refusing(_) => Self { refusing_at: Some(now), ..self },
            Alert::Accepting => Self { refusing_at: None, ..self },
        }
    }
}

/// Whether it is time to note again what was seen then.
fn is_seen_again(at: Timestamp, now: Timestamp) -> bool {
    now >= at + SEEN_STEP
}

/// The measures that have reached their thresholds.
pub(super) fn high(ratios: &[(Measure, f64)]) -> Vec<Measure> {
    ratios.iter().filter(|(_, ratio)| *ratio >= 1.0).map(|(measure, _)| *measure).collect()
}

/// Each enabled measure divided by its threshold: 1 is at the threshold.
pub(super) fn threshold_ratios(policy: &AlertPolicy, status: &DestinationStatus) -> Vec<(Measure, f64)> {
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
mod tests;
