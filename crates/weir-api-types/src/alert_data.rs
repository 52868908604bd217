//! What an alert says: the `data` of its event, and of the alerts that are true now. The same type writes it and reads it.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;
use weir_core::{
    Destination, LimitGroup, Timestamp,
    alert::{Alert, AlertPolicy, DestinationStatus, GroupAlert, GroupStatus, Measure},
    destination::ALL_TENANTS,
    stall::Outage,
};

/// What an alert says. Each type of alerts has some of the fields. It contains neither the URL nor headers of a destination,
/// because its recipients are not the owner of the destination.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertData {
    /// The destination that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    pub destination_id: Option<String>,
    /// The limit group that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(example = "lgr_01h2xcejqtf2nbrexx3vqjhp41")]
    pub limit_group_id: Option<String>,
    /// The name of the destination or the group at that time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The tenant of the destination or the group; `*`: of all.
    pub tenant: String,
    /// The measures of a backlog that are above their thresholds: `backlog_depth`, `oldest_age_s`, `drain_beyond_ttl`. The
    /// alert that ends another has the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasons: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub thresholds: Option<AlertThresholds>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<AlertBacklog>,
    /// The limit keys of the destination that wait for limits of their own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit_keys: Option<AlertLimitKeys>,
    /// How many members the group holds back.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub members: Option<u64>,
    /// Whether at least as much arrives at the members of the group as is sent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub never_drains: Option<bool>,
    /// Null: the group has no limits now.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub limit_per_s: Option<Option<f64>>,
    /// Of all members of the group, in the last minute, as `sends_per_s`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub arrivals_per_s: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sends_per_s: Option<f64>,
    /// Why, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, as a word.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    /// Since when it has lasted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub since: Option<Timestamp>,
    /// When the next send tries whether the receiver answers again.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub next_probe_at: Option<Option<Timestamp>>,
    /// The dead letters since the last alert about them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<u64>,
    /// All dead letters of the destination.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<u64>,
    /// The sends that were looked at, and how many of them were refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sends: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<u64>,
    /// The setting that helps against refusals within the limit, its value, and the period of its limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub setting: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<u32>,
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub period: Option<Option<String>>,
    /// What the receiver took while it refused; null: too little was sent to say.
    #[serde(deserialize_with = "given", skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<f64>)]
    pub takes_per_s: Option<Option<f64>>,
    /// The adaptive pace.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_s: Option<f64>,
    /// What it was within the last hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usual_per_s: Option<f64>,
    /// How many destinations a fault of Weir itself stalls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destinations: Option<u64>,
}

/// The thresholds of the measures that an alert names, as far as they are numbers that are set.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertThresholds {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog_depth: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub oldest_age_s: Option<u32>,
}

/// What waited when an alert was raised.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertBacklog {
    pub waiting: u64,
    pub oldest_age_s: u64,
    /// The time until it is sent; null if it never is, or nobody knows.
    pub drain_eta_s: Option<u64>,
}

/// Limit keys that wait for limits of their own.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(default)]
pub struct AlertLimitKeys {
    /// Those that take longest.
    pub named: Vec<String>,
    /// How many others there are.
    pub more: u64,
}

impl AlertData {
    /// Of an alert about a destination. `policy` has the thresholds of the destination.
    pub fn of_destination(
        about: &Destination,
        alert: &Alert,
        status: &DestinationStatus,
        policy: &AlertPolicy,
    ) -> Self {
        let settings = &about.settings;
        let data = Self {
            destination_id: Some(about.id.to_string()),
            name: Some(settings.name.clone()),
            tenant: settings.tenant.clone(),
            ..Self::default()
        };
        let backlog = Some(AlertBacklog {
            waiting: status.waiting,
            oldest_age_s: status.oldest_age.as_secs(),
            drain_eta_s: status.drains_in.map(|drains| drains.as_secs()),
        });
        // Each alert adds the condition behind it.
        match alert {
            // The alert that ends another says the same things as that one.
            Alert::BacklogHigh(measures) | Alert::BacklogCleared(measures) => {
                let keys = &status.bound_keys;
                let named: Vec<_> = keys.named.iter().map(|key| key.as_str().to_owned()).collect();
                let more = keys.count.saturating_sub(named.len()) as u64;
                let limit_keys = (!named.is_empty()).then_some(AlertLimitKeys { named, more });
                Self { backlog, limit_keys, ..data.measured(measures, policy) }
            }
            Alert::BreakerOpened { reason } => {
                Self { reason: Some(reason.clone()), next_probe_at: Some(about.breaker.next_probe_at()), ..data }
            }
            Alert::Paused { reason } => Self { reason: Some(reason.clone()), ..data },
            Alert::Dead { new } => Self { new: Some(*new), dead_letters: Some(status.undelivered), ..data },
            Alert::Refused(refusals) => {
                let (setting, value, period) = refusals.remedy.parts();
                Self {
                    reason: Some(refusals.sentence()),
                    cause: Some(refusals.cause.as_str().to_owned()),
                    sends: Some(refusals.sends.into()),
                    refused: Some(refusals.refused.into()),
                    setting: Some(setting.to_owned()),
                    value: Some(value),
                    period: Some(period.map(|period| period.to_string())),
                    ..data
                }
            }
            Alert::Stalled(late) => Self {
                reason: Some(late.fault.sentence().to_owned()),
                cause: Some(late.fault.as_str().to_owned()),
                since: Some(late.since),
                backlog,
                ..data
            },
            Alert::RateLowered(fall) => Self {
                per_s: Some(thousandths(fall.per_s)),
                usual_per_s: Some(thousandths(fall.usual_per_s)),
                reason: Some(fall.detail.clone()),
                cause: Some(fall.reason.to_string()),
                since: Some(fall.at),
                backlog,
                ..data
            },
            Alert::RateRestored(Some(fall)) => Self { per_s: Some(thousandths(fall.per_s)), ..data },
            Alert::Refusing(refusing) => Self {
                reason: Some(refusing.sentence(&settings.rate_limits, settings.adaptive)),
                sends: Some(refusing.sends),
                refused: Some(refusing.refused),
                takes_per_s: Some(refusing.takes_per_s.map(thousandths)),
                ..data
            },
            Alert::RateRestored(None)
            | Alert::BreakerClosed
            | Alert::Admitted
            | Alert::Recovered
            | Alert::Accepting => data,
        }
    }

    /// Of an alert about a limit group. `policy` has the general thresholds.
    pub fn of_group(
        about: &LimitGroup,
        alert: &GroupAlert,
        status: &GroupStatus,
        policy: &AlertPolicy,
        now: Timestamp,
    ) -> Self {
        let data = Self {
            limit_group_id: Some(about.id.to_string()),
            name: Some(about.name.clone()),
            tenant: about.tenant.as_deref().unwrap_or(ALL_TENANTS).to_owned(),
            members: Some(status.members),
            backlog: Some(AlertBacklog {
                waiting: status.waiting,
                oldest_age_s: status.oldest_age.as_secs(),
                drain_eta_s: status.drains_in.map(|drains| drains.as_secs()),
            }),
            never_drains: Some(status.never_drains()),
            limit_per_s: Some(about.at(now).rate_limits.per_second().map(thousandths)),
            arrivals_per_s: Some(thousandths(status.arrivals_per_s)),
            sends_per_s: Some(thousandths(status.sends_per_s)),
            ..Self::default()
        };
        data.measured(alert.measures(), policy)
    }

    /// Of an alert about the installation, to somebody who sees so many of the stalled destinations. `None`: it sends again.
    pub fn of_outage(outage: Option<Outage>, destinations: u64) -> Self {
        let wait = if destinations == 1 { "destination waits" } else { "destinations wait" };
        let data = Self { tenant: ALL_TENANTS.to_owned(), ..Self::default() };
        match outage {
            Some(outage) => Self {
                reason: Some(format!("{}; {destinations} {wait}", outage.reason())),
                cause: Some(outage.fault.as_str().to_owned()),
                since: Some(outage.since),
                destinations: Some(destinations),
                ..data
            },
            None => data,
        }
    }

    /// With the measures above their thresholds, and these.
    fn measured(self, measures: &[Measure], policy: &AlertPolicy) -> Self {
        let has = |measure: &Measure| measures.contains(measure);
        let thresholds = AlertThresholds {
            backlog_depth: policy.backlog_depth.filter(|_| has(&Measure::BacklogDepth)),
            oldest_age_s: policy.oldest_age_s.filter(|_| has(&Measure::OldestAgeS)),
        };
        let reasons = measures.iter().map(Measure::to_string).collect();
        Self { reasons: Some(reasons), thresholds: Some(thresholds), ..self }
    }
}

fn thousandths(rate: f64) -> f64 {
    (rate * 1_000.0).round() / 1_000.0
}

/// Tells `null` from an absent field.
pub(crate) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Option<Option<T>>, D::Error> {
    Deserialize::deserialize(deserializer).map(Some)
}
