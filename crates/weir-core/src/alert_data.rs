//! What an alert says: the `data` of its event, and of the alerts that are true now.

use serde_json::{Value, json};

use crate::{
    alert::{Alert, AlertPolicy, DestinationStatus, GroupAlert, GroupStatus, Measure},
    destination::{ALL_TENANTS, Destination},
    limit_group::LimitGroup,
    time::Timestamp,
};

/// The `data` of an alert about a destination. It contains neither the URL nor headers, because the recipients are not
/// the destination's owner. `policy` has the thresholds of the destination.
pub fn alert_data(about: &Destination, alert: &Alert, status: &DestinationStatus, policy: &AlertPolicy) -> Value {
    let settings = &about.settings;
    let mut data = json!({"destination_id": about.id.to_string(), "name": settings.name, "tenant": settings.tenant});
    let backlog = || {
        json!({
            "waiting": status.waiting,
            "oldest_age_s": status.oldest_age.as_secs(),
            "drain_eta_s": status.drains_in.map(|drains| drains.as_secs()),
        })
    };
    // Each alert adds the condition behind it.
    match alert {
        // The alert that ends another says the same things as that one.
        Alert::BacklogHigh(measures) | Alert::BacklogCleared(measures) => {
            data["reasons"] = json!(measures);
            data["thresholds"] = thresholds(measures, policy);
            data["backlog"] = backlog();
            let keys = &status.bound_keys;
            if !keys.named.is_empty() {
                let named: Vec<_> = keys.named.iter().map(|key| key.as_str()).collect();
                data["limit_keys"] = json!({"named": named, "more": keys.count.saturating_sub(named.len())});
            }
        }
        Alert::BreakerOpened { reason } => {
            data["reason"] = json!(reason);
            data["next_probe_at"] = json!(about.breaker.next_probe_at().map(|at| at.to_string()));
        }
        Alert::Paused { reason } => data["reason"] = json!(reason),
        Alert::Dead { new } => {
            data["new"] = json!(new);
            data["dead_letters"] = json!(status.undelivered);
        }
        Alert::Refused(refusals) => {
            let (setting, value, period) = refusals.remedy.parts();
            data["reason"] = json!(refusals.sentence());
            data["cause"] = json!(refusals.cause.as_str());
            data["sends"] = json!(refusals.sends);
            data["refused"] = json!(refusals.refused);
            data["setting"] = json!(setting);
            data["value"] = json!(value);
            data["period"] = json!(period.map(|period| period.to_string()));
        }
        Alert::Stalled(late) => {
            data["reason"] = json!(late.fault.sentence());
            data["cause"] = json!(late.fault.as_str());
            data["since"] = json!(late.since.to_string());
            data["backlog"] = backlog();
        }
        Alert::RateLowered(fall) | Alert::RateRestored(Some(fall)) => {
            data["per_s"] = json!(thousandths(fall.per_s));
            if matches!(alert, Alert::RateLowered(_)) {
                data["usual_per_s"] = json!(thousandths(fall.usual_per_s));
                data["reason"] = json!(fall.detail);
                data["cause"] = json!(fall.reason.to_string());
                data["since"] = json!(fall.at.to_string());
                data["backlog"] = backlog();
            }
        }
        Alert::Refusing(refusing) => {
            data["reason"] = json!(refusing.sentence(&settings.rate_limits, settings.adaptive));
            data["sends"] = json!(refusing.sends);
            data["refused"] = json!(refusing.refused);
            data["takes_per_s"] = json!(refusing.takes_per_s.map(thousandths));
        }
        Alert::RateRestored(None) | Alert::BreakerClosed | Alert::Admitted | Alert::Recovered | Alert::Accepting => {}
    }
    data
}

/// The `data` of an alert about a limit group. `policy` has the general thresholds.
pub fn group_alert_data(
    about: &LimitGroup,
    alert: &GroupAlert,
    status: &GroupStatus,
    policy: &AlertPolicy,
    now: Timestamp,
) -> Value {
    json!({
        "limit_group_id": about.id.to_string(),
        "name": about.name,
        "tenant": about.tenant.as_deref().unwrap_or(ALL_TENANTS),
        "reasons": alert.measures(),
        "thresholds": thresholds(alert.measures(), policy),
        "members": status.members,
        "backlog": {
            "waiting": status.waiting,
            "oldest_age_s": status.oldest_age.as_secs(),
            "drain_eta_s": status.drains_in.map(|drains| drains.as_secs()),
        },
        "never_drains": status.never_drains(),
        "limit_per_s": about.at(now).rate_limits.per_second().map(thousandths),
        "arrivals_per_s": thousandths(status.arrivals_per_s),
        "sends_per_s": thousandths(status.sends_per_s),
    })
}

fn thousandths(rate: f64) -> f64 {
    (rate * 1_000.0).round() / 1_000.0
}

/// The thresholds of these measures, as far as they are numbers that are set.
fn thresholds(measures: &[Measure], policy: &AlertPolicy) -> Value {
    let threshold = |measure: &Measure| match measure {
        Measure::BacklogDepth => Some(("backlog_depth".to_owned(), json!(policy.backlog_depth?))),
        Measure::OldestAgeS => Some(("oldest_age_s".to_owned(), json!(policy.oldest_age_s?))),
        Measure::DrainBeyondTtl => None,
    };
    Value::Object(measures.iter().filter_map(threshold).collect())
}
