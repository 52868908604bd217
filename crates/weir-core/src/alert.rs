//! Alerts: which events Weir sends about a destination's condition, and when.
//!
//! Each alert is an event whose type begins with `weir.`. A condition that lasts raises one alert when it begins and
//! one when it ends. The alerts that have been raised are recorded ([`AlertState`]), so no alert is raised twice and a
//! restart forgets none.
//!
//! A backlog that stays near a threshold must not raise alerts all the time. So it counts as cleared only when it is
//! below [`CLEARED_BELOW`] of every threshold. An alert about dead letters is raised at most once in
//! [`DEAD_LETTER_INTERVAL`].

mod alert_type;
mod group;
mod state;

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

pub use self::{
    alert_type::AlertType,
    group::{GroupAlert, GroupStatus, NEVER_DRAINS_AFTER},
    state::{AlertRecord, AlertState},
};
use crate::{adaptive::Fall, fault::Late, limit_key::LimitKey, refusals::Refusals, refusing::Refusing};

/// A backlog has cleared when each of its measures is below this fraction of its threshold. A backlog that stays close
/// to a threshold would otherwise raise and clear its alert again and again.
pub const CLEARED_BELOW: f64 = 0.8;
/// The shortest time between two alerts about dead letters of one destination: a destination that fails for good has
/// one dead letter after another, and an operator needs one message a minute at most.
pub const DEAD_LETTER_INTERVAL: Duration = Duration::from_secs(60);
/// An alert about deliveries that expire, or about a receiver that refuses many sends, ends this long after that was last seen.
/// Both come and go, and an alert for each time would tell nothing new.
pub const SEEN_LASTS: Duration = Duration::from_secs(600);
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
    /// The time until the backlog is sent, at the destination's limit or its lower pace; `None` without both.
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
    /// What its receiver answered of late. `None`: nothing is known.
    pub refusing: Option<Refusing>,
    /// The limit keys that wait for their own limits.
    pub bound_keys: BoundKeys,
}

/// Limit keys of a destination that wait, and whose own limits allow less than their part of its rate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct BoundKeys {
    /// At most [`Self::NAMED`], those first that take longest.
    pub named: Vec<LimitKey>,
    /// All of them.
    pub count: usize,
    /// The time until the last of them is sent, without new events.
    pub drains_in: Option<Duration>,
}

impl BoundKeys {
    /// A text with more names is read by nobody.
    pub const NAMED: usize = 3;
}

/// A measure of a backlog that is above its threshold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::Display)]
#[strum(serialize_all = "snake_case")]
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
    /// The receiver answers many sends with 429.
    Refusing(Refusing),
    /// It no longer does.
    Accepting,
}

impl Alert {
    /// The type of the alert's event.
    pub const fn alert_type(&self) -> AlertType {
        match self {
            Self::BacklogHigh(_) => AlertType::BacklogHigh,
            Self::BacklogCleared(_) => AlertType::BacklogCleared,
            Self::BreakerOpened { .. } => AlertType::BreakerOpened,
            Self::BreakerClosed => AlertType::BreakerClosed,
            Self::Paused { .. } => AlertType::Paused,
            Self::Dead { .. } => AlertType::Dead,
            Self::Refused(_) => AlertType::Refused,
            Self::Admitted => AlertType::Admitted,
            Self::Stalled(_) => AlertType::Stalled,
            Self::Recovered => AlertType::Recovered,
            Self::RateLowered(_) => AlertType::RateLowered,
            Self::RateRestored(_) => AlertType::RateRestored,
            Self::Refusing(_) => AlertType::Refusing,
            Self::Accepting => AlertType::Accepting,
        }
    }
}
