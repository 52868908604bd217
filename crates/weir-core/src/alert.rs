//! Alerts: what an operator is told of a destination, and when.
//!
//! Each is an event of a type that begins with `weir.`, made once when something begins and once when it is over. What has been
//! told stands in the record ([`AlertState`]), so that nobody is told twice and a restart forgets nothing.
//!
//! A backlog that hovers about a threshold would be told of all the time. So it counts as cleared only below
//! [`CLEARED_BELOW`] of every threshold, and dead letters are told of once a [`QUIET`] at most.

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::time::Timestamp;

/// A backlog has cleared when each of its measures is below this part of its threshold.
pub const CLEARED_BELOW: f64 = 0.8;
/// The shortest time between two alerts about dead letters of one destination.
pub const QUIET: Duration = Duration::from_secs(60);
/// What the thresholds on counts may be.
pub const COUNTS: std::ops::RangeInclusive<u32> = 1..=1_000_000_000;
/// What `oldest_age_s` may be: up to a year.
pub const AGE_S: std::ops::RangeInclusive<u32> = 1..=31_536_000;

/// The thresholds above which a destination is told of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct AlertPolicy {
    /// Deliveries that wait, in [`COUNTS`]; `None`: never.
    pub backlog_depth: Option<u32>,
    /// Of the oldest delivery that waits, in [`AGE_S`]; `None`: never.
    pub oldest_age_s: Option<u32>,
    /// Whether a backlog is high that drains, at the destination's limit, only after deliveries of it have expired.
    pub drain_beyond_ttl: bool,
    /// Dead letters since the last alert about them, in [`COUNTS`]; `None`: never.
    pub dead_letters: Option<u32>,
}

impl Default for AlertPolicy {
    fn default() -> Self {
        Self { backlog_depth: None, oldest_age_s: None, drain_beyond_ttl: true, dead_letters: Some(1) }
    }
}

/// What one destination has instead of the policy of all.
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

/// A field that is there, `null` or not.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<u32>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl AlertOverrides {
    /// The policy of a destination with these.
    pub fn over(&self, policy: &AlertPolicy) -> AlertPolicy {
        AlertPolicy {
            backlog_depth: self.backlog_depth.unwrap_or(policy.backlog_depth),
            oldest_age_s: self.oldest_age_s.unwrap_or(policy.oldest_age_s),
            drain_beyond_ttl: self.drain_beyond_ttl.unwrap_or(policy.drain_beyond_ttl),
            dead_letters: self.dead_letters.unwrap_or(policy.dead_letters),
        }
    }
}

/// What there is to tell of a destination now.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Seen {
    /// Deliveries that wait.
    pub waiting: u64,
    /// Of the oldest of them.
    pub oldest_age: Duration,
    /// Until all that waits is sent, at the destination's limit; `None` when it has none.
    pub drains_in: Option<Duration>,
    /// Until what came last is given up.
    pub life: Duration,
    /// Why the breaker is not closed.
    pub breaker: Option<String>,
    /// Why Weir paused it.
    pub paused: Option<String>,
    /// Dead letters that lie there.
    pub dead: u64,
}

/// What has been told of a destination. The default is nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AlertState {
    backlog_high: bool,
    breaker_opened: bool,
    paused: bool,
    /// Dead letters that need no telling.
    dead: u64,
    dead_at: Option<Timestamp>,
}

/// A measure of a backlog that is above its threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    BacklogDepth,
    OldestAgeS,
    DrainBeyondTtl,
}

/// Something to tell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Alert {
    BacklogHigh(Vec<Measure>),
    BacklogCleared,
    BreakerOpened {
        reason: String,
    },
    BreakerClosed,
    Paused {
        reason: String,
    },
    /// So many have died since the last such alert.
    Dead {
        new: u64,
    },
}

impl Alert {
    /// The type of its event.
    pub const fn event_type(&self) -> &'static str {
        match self {
            Self::BacklogHigh(_) => "weir.backlog.high",
            Self::BacklogCleared => "weir.backlog.cleared",
            Self::BreakerOpened { .. } => "weir.breaker.opened",
            Self::BreakerClosed => "weir.breaker.closed",
            Self::Paused { .. } => "weir.destination.paused",
            Self::Dead { .. } => DEAD,
        }
    }
}

/// The type of the events about dead letters.
pub const DEAD: &str = "weir.delivery.dead";

impl AlertState {
    /// What is left to tell, given what has been told before.
    pub fn alerts(&self, policy: &AlertPolicy, seen: &Seen, now: Timestamp) -> Vec<Alert> {
        let mut alerts = Vec::new();
        let strains = strains(policy, seen);
        let high: Vec<Measure> = strains.iter().filter(|(_, strain)| *strain >= 1.0).map(|(of, _)| *of).collect();
        let is_calm = strains.iter().all(|(_, strain)| *strain < CLEARED_BELOW);
        match self.backlog_high {
            false if !high.is_empty() => alerts.push(Alert::BacklogHigh(high)),
            true if is_calm => alerts.push(Alert::BacklogCleared),
            _ => {}
        }
        match (&seen.breaker, self.breaker_opened) {
            (Some(reason), false) => alerts.push(Alert::BreakerOpened { reason: reason.clone() }),
            (None, true) => alerts.push(Alert::BreakerClosed),
            _ => {}
        }
        if let Some(reason) = seen.paused.as_ref().filter(|_| !self.paused) {
            alerts.push(Alert::Paused { reason: reason.clone() });
        }
        let new = seen.dead.saturating_sub(self.dead);
        let is_quiet = self.dead_at.is_some_and(|at| now < at + QUIET);
        if policy.dead_letters.is_some_and(|most| new >= most.into()) && !is_quiet {
            alerts.push(Alert::Dead { new });
        }
        alerts
    }

    /// What is forgotten without a word: a pause that is over, and dead letters that were replayed or deleted. Those of a
    /// destination whose dead letters interest nobody need no telling later, either.
    pub fn tidied(self, policy: &AlertPolicy, seen: &Seen) -> Self {
        let dead = if policy.dead_letters.is_some() { self.dead.min(seen.dead) } else { seen.dead };
        Self { paused: self.paused && seen.paused.is_some(), dead, ..self }
    }

    /// After an alert.
    pub fn with(self, alert: &Alert, now: Timestamp) -> Self {
        match alert {
            Alert::BacklogHigh(_) => Self { backlog_high: true, ..self },
            Alert::BacklogCleared => Self { backlog_high: false, ..self },
            Alert::BreakerOpened { .. } => Self { breaker_opened: true, ..self },
            Alert::BreakerClosed => Self { breaker_opened: false, ..self },
            Alert::Paused { .. } => Self { paused: true, ..self },
            Alert::Dead { new } => Self { dead: self.dead + new, dead_at: Some(now), ..self },
        }
    }
}

/// How each measure stands to its threshold: 1 is at it.
fn strains(policy: &AlertPolicy, seen: &Seen) -> Vec<(Measure, f64)> {
    let beyond = match seen.drains_in {
        Some(drains_in) if policy.drain_beyond_ttl && seen.waiting > 0 => {
            // What is given up at once is of no use to the one who would send it, however soon.
            Some(drains_in.as_secs_f64() / seen.life.as_secs_f64().max(f64::MIN_POSITIVE))
        }
        _ => None,
    };
    let depth = policy.backlog_depth.map(|most| seen.waiting as f64 / f64::from(most));
    let age = policy.oldest_age_s.map(|most| seen.oldest_age.as_secs_f64() / f64::from(most));
    [(Measure::BacklogDepth, depth), (Measure::OldestAgeS, age), (Measure::DrainBeyondTtl, beyond)]
        .into_iter()
        .filter_map(|(measure, strain)| Some((measure, strain?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_000_000);

    fn policy() -> AlertPolicy {
        AlertPolicy { backlog_depth: Some(100), oldest_age_s: Some(60), drain_beyond_ttl: true, dead_letters: Some(5) }
    }

    fn waiting(count: u64) -> Seen {
        Seen { waiting: count, life: Duration::from_secs(3_600), ..Seen::default() }
    }

    /// Tells everything there is to tell, and answers its types.
    fn tell(told: &mut AlertState, policy: &AlertPolicy, seen: &Seen, now: Timestamp) -> Vec<&'static str> {
        *told = told.tidied(policy, seen);
        let alerts = told.alerts(policy, seen, now);
        *told = alerts.iter().fold(*told, |told, alert| told.with(alert, now));
        alerts.iter().map(Alert::event_type).collect()
    }

    #[test]
    fn a_backlog_is_told_of_once_and_clears_well_below_its_threshold() {
        let mut told = AlertState::default();
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
            assert_eq!(tell(&mut told, &policy(), &waiting(count), NOW), expected, "{count}");
        }
    }

    #[test]
    fn each_measure_raises_and_is_named() {
        let old = Seen { oldest_age: Duration::from_secs(60), ..waiting(1) };
        assert_eq!(AlertState::default().alerts(&policy(), &old, NOW), [Alert::BacklogHigh(vec![Measure::OldestAgeS])]);
        let late = Seen { drains_in: Some(Duration::from_secs(3_600)), ..waiting(100) };
        assert_eq!(
            AlertState::default().alerts(&policy(), &late, NOW),
            [Alert::BacklogHigh(vec![Measure::BacklogDepth, Measure::DrainBeyondTtl])]
        );
        let hopeless = Seen { drains_in: Some(Duration::from_secs(1)), life: Duration::ZERO, ..waiting(1) };
        assert_eq!(
            AlertState::default().alerts(&policy(), &hopeless, NOW),
            [Alert::BacklogHigh(vec![Measure::DrainBeyondTtl])]
        );
    }

    #[test]
    fn a_threshold_that_is_taken_away_clears() {
        let mut told = AlertState::default();
        tell(&mut told, &policy(), &waiting(500), NOW);
        let none = AlertPolicy { backlog_depth: None, ..policy() };
        assert_eq!(tell(&mut told, &none, &waiting(500), NOW), ["weir.backlog.cleared"]);
    }

    #[test]
    fn a_breaker_and_a_pause_are_told_of_once_each_time() {
        let mut told = AlertState::default();
        let open = Seen { breaker: Some("10 failures in a row".to_owned()), ..Seen::default() };
        let paused = Seen { paused: Some("410 Gone".to_owned()), ..Seen::default() };
        let steps = [
            (&open, vec!["weir.breaker.opened"]),
            (&open, vec![]),
            (&paused, vec!["weir.breaker.closed", "weir.destination.paused"]),
            (&paused, vec![]),
            (&Seen::default(), vec![]),
            (&paused, vec!["weir.destination.paused"]),
        ];
        for (seen, expected) in steps {
            assert_eq!(tell(&mut told, &policy(), seen, NOW), expected, "{seen:?}");
        }
    }

    #[test]
    fn dead_letters_are_told_of_by_the_handful_and_not_too_often() {
        let mut told = AlertState::default();
        let dead = |count| Seen { dead: count, ..Seen::default() };
        let later = |secs| NOW + Duration::from_secs(secs);
        let steps = [
            (dead(4), 0, None),
            (dead(5), 1, Some(5)),
            (dead(20), 2, None),
            (dead(20), 61, Some(15)),
            (dead(24), 200, None),
            // Twenty were replayed, and four more died.
            (dead(4), 300, None),
            (dead(9), 400, Some(5)),
        ];
        for (seen, at, expected) in steps {
            told = told.tidied(&policy(), &seen);
            let alerts = told.alerts(&policy(), &seen, later(at));
            assert_eq!(alerts, Vec::from_iter(expected.map(|new| Alert::Dead { new })), "at {at} s");
            told = alerts.iter().fold(told, |told, alert| told.with(alert, later(at)));
        }
    }

    #[test]
    fn dead_letters_of_a_time_when_nobody_cared_are_not_told_of_later() {
        let mut told = AlertState::default();
        let off = AlertPolicy { dead_letters: None, ..policy() };
        assert!(tell(&mut told, &off, &Seen { dead: 50, ..Seen::default() }, NOW).is_empty());
        assert!(tell(&mut told, &policy(), &Seen { dead: 54, ..Seen::default() }, NOW).is_empty());
        assert_eq!(tell(&mut told, &policy(), &Seen { dead: 55, ..Seen::default() }, NOW), [DEAD]);
    }

    #[test]
    fn an_override_says_what_it_names_and_null_is_off() {
        let overrides: AlertOverrides = serde_json::from_str(r#"{"backlog_depth": null, "dead_letters": 9}"#).unwrap();
        assert_eq!(overrides.over(&policy()), AlertPolicy { backlog_depth: None, dead_letters: Some(9), ..policy() });
        assert_eq!(serde_json::to_string(&overrides).unwrap(), r#"{"backlog_depth":null,"dead_letters":9}"#);
    }

    proptest! {
        #[test]
        fn highs_and_cleareds_take_turns(counts in proptest::collection::vec(0_u64..300, 1..50)) {
            let mut told = AlertState::default();
            let mut told_of = Vec::new();
            for count in counts {
                let types = tell(&mut told, &policy(), &waiting(count), NOW);
                let expected = if count >= 100 { "weir.backlog.high" } else { "weir.backlog.cleared" };
                prop_assert!(types.iter().all(|of| *of == expected));
                told_of.extend(types);
            }
            for (index, of) in told_of.iter().enumerate() {
                prop_assert_eq!(*of, ["weir.backlog.high", "weir.backlog.cleared"][index % 2]);
            }
        }

        #[test]
        fn every_dead_letter_is_told_of_once(deaths in proptest::collection::vec(0_u64..20, 1..50)) {
            let mut told = AlertState::default();
            let (mut dead, mut reported, mut now) = (0, 0, NOW);
            for new in deaths {
                dead += new;
                now = now + QUIET;
                let seen = Seen { dead, ..Seen::default() };
                for alert in told.alerts(&policy(), &seen, now) {
                    let Alert::Dead { new } = alert else { panic!("{alert:?}") };
                    reported += new;
                    told = told.with(&alert, now);
                }
                prop_assert!(reported <= dead && dead - reported < 5);
            }
        }
    }
}
