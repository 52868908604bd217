//! What is wrong now, the most recent alerts, and the alert policy of all destinations.

use askama::Template;
use axum::extract::Query;
use http::Method;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_core::alert::AlertPolicy;

use super::{
    active_alerts::{ActiveAlerts, ActiveFilter, ActiveText as _},
    alert_texts::KINDS,
    recent_alerts::RecentAlerts,
};
use crate::{
    client::{ApiPath, Call},
    fields::Fields,
    flash::Flash,
    frame::{Also, Frame, Section},
    units::Units as _,
    visit::{Answered, Visit},
};

/// The thresholds that are numbers, with their labels.
const THRESHOLDS: [(&str, &str); 3] = [
    ("backlog_depth", "Waiting deliveries of a destination"),
    ("oldest_age_s", "Age of the oldest one, in seconds"),
    ("dead_letters", "Dead letters since the last alert"),
];

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    frame: Frame,
    /// Of the installation, so a key that is bound to tenants does not see it.
    policy: Option<AlertPolicy>,
    active: ActiveAlerts,
    recent: RecentAlerts,
}

#[derive(Template)]
#[template(path = "alerts_active.html")]
struct AlertsActive {
    active: ActiveAlerts,
}

#[derive(Template)]
#[template(path = "alerts_recent.html")]
struct AlertsRecent {
    recent: RecentAlerts,
}

/// The version of the list that the browser has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Seen {
    seen: String,
}

fn shown(threshold: &Option<u32>) -> String {
    threshold.map(|threshold| threshold.to_string()).unwrap_or_default()
}

pub(crate) async fn show(visit: Visit, Query(filter): Query<ActiveFilter>) -> Answered {
    let (me, active) = tokio::try_join!(visit.me(), ActiveAlerts::read(&visit, filter))?;
    let policy = if me.is_bound() { None } else { Some(visit.api.get(&ApiPath::of(["alerts"])).await?) };
    let (recent, _) = RecentAlerts::read(&visit, &me).await?;
    let frame = visit.frame(me, Section::Alerts, "Alerts").live(Also::Events.query());
    visit.page(&AlertsPage { frame, policy, active, recent })
}

/// What is wrong now, for live updates.
pub(crate) async fn active_fragment(visit: Visit, Query(filter): Query<ActiveFilter>) -> Answered {
    let active = ActiveAlerts::read(&visit, filter).await?;
    visit.fragment(&AlertsActive { active })
}

/// The recent alerts, for live updates.
pub(crate) async fn fragment(visit: Visit, Query(Seen { seen }): Query<Seen>) -> Answered {
    let me = visit.me().await?;
    let (recent, version) = RecentAlerts::read(&visit, &me).await?;
    if version == seen { visit.unchanged() } else { visit.fragment(&AlertsRecent { recent }) }
}

pub(crate) async fn set(visit: Visit, fields: Fields) -> Answered {
    let mut policy = json!({ "drain_beyond_ttl": fields.is_ticked("drain_beyond_ttl") });
    for (name, label) in THRESHOLDS {
        policy[name] = match fields.text(name) {
            "" => Value::Null,
            text => match text.parse::<u64>() {
                Ok(threshold) => json!(threshold),
                Err(_) => {
                    let error = format!("Not saved: “{label}” must be a whole number.");
                    return visit.redirect("/alerts", Some(Flash::error(error)));
                }
            },
        };
    }
    let call = Call::new(Method::PUT, &ApiPath::of(["alerts"])).json(&policy)?;
    let answer = visit.api.send(&call).await;
    visit.after("/alerts", answer, |_| "The thresholds are saved, and in effect within ten seconds.".to_owned())
}
