//! What is wrong now, the most recent alerts, and the alert policy of all destinations.

use askama::Template;
use axum::extract::Query;
use http::{Method, StatusCode};
use serde::Deserialize;
use weir_core::alert::AlertPolicy;

use super::{
    active_alerts::{ActiveAlerts, ActiveFilter, ActiveText as _},
    alert_texts::KINDS,
    recent_alerts::RecentAlerts,
    thresholds::{self, Thresholds},
};
use crate::{
    client::{ApiPath, Call},
    fields::Fields,
    frame::{Also, Frame, Section},
    units::Units as _,
    visit::{Answered, Visit},
};

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    frame: Frame,
    /// Of the installation, so a key that is bound to tenants does not see them.
    thresholds: Option<Thresholds>,
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

pub(crate) async fn show(visit: Visit, Query(filter): Query<ActiveFilter>) -> Answered {
    page(&visit, StatusCode::OK, None, filter).await
}

/// The page, with the thresholds that were typed, or else with those that are set.
async fn page(visit: &Visit, status: StatusCode, typed: Option<Thresholds>, filter: ActiveFilter) -> Answered {
    let (me, active) = tokio::try_join!(visit.me(), ActiveAlerts::read(visit, filter))?;
    let thresholds = match typed {
        Some(typed) => Some(typed),
        None if me.is_bound() => None,
        None => Some(Thresholds::of(&visit.api.get::<AlertPolicy>(&ApiPath::of(["alerts"])).await?)),
    };
    let (recent, _) = RecentAlerts::read(visit, &me).await?;
    let frame = visit.frame(me, Section::Alerts, "Alerts").live(Also::Events.query());
    visit.page_with(status, &AlertsPage { frame, thresholds, active, recent })
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
    let call = Call::new(Method::PUT, &ApiPath::of(["alerts"])).json(&thresholds::body(&fields))?;
    match visit.api.send(&call).await {
        // The form keeps what was typed.
        Err(refusal) if refusal.status == StatusCode::UNPROCESSABLE_ENTITY => {
            page(&visit, refusal.status, Some(Thresholds::refused(fields, &refusal)), ActiveFilter::default()).await
        }
        answer => {
            let done = "The thresholds are saved, and in effect within ten seconds.";
            visit.after("/alerts", answer, |_| done.to_owned())
        }
    }
}
