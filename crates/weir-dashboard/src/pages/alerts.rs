//! The most recent alerts, and the alert policy of all destinations.

use askama::Template;
use axum::extract::Query;
use http::{Method, StatusCode};
use serde::Deserialize;
use weir_core::alert::AlertPolicy;

use super::{
    recent_alerts::{KINDS, RecentAlerts},
    thresholds::{self, Thresholds},
};
use crate::{
    client::{ApiPath, Call},
    fields::Fields,
    frame::{Frame, Section},
    units::Units as _,
    visit::{Answered, Visit},
};

#[derive(Template)]
#[template(path = "alerts.html")]
struct AlertsPage {
    frame: Frame,
    thresholds: Thresholds,
    recent: RecentAlerts,
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

pub(crate) async fn show(visit: Visit) -> Answered {
    let policy: AlertPolicy = visit.api.get(&ApiPath::of(["alerts"])).await?;
    page(&visit, StatusCode::OK, Thresholds::of(&policy)).await
}

async fn page(visit: &Visit, status: StatusCode, thresholds: Thresholds) -> Answered {
    let me = visit.me().await?;
    let (recent, _) = RecentAlerts::read(visit, &me).await?;
    let frame = visit.frame(me, Section::Alerts, "Alerts").live("");
    visit.page_with(status, &AlertsPage { frame, thresholds, recent })
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
            page(&visit, refusal.status, Thresholds::refused(fields, &refusal)).await
        }
        answer => {
            let done = "The thresholds are saved, and in effect within ten seconds.";
            visit.after("/alerts", answer, |_| done.to_owned())
        }
    }
}
