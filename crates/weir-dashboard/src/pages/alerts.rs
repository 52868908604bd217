//! The alert policy of all destinations.

use askama::Template;
use http::Method;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::{
    client::{ApiPath, Call},
    example::Example,
    fields::Fields,
    flash::Flash,
    frame::{Frame, Section},
    visit::{Answered, Visit},
};

/// The thresholds; `None` is off.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Policy {
    backlog_depth: Option<u64>,
    oldest_age_s: Option<u64>,
    drain_beyond_ttl: bool,
    dead_letters: Option<u64>,
}

/// The types of alerts, and when each is sent.
const EVENTS: [(&str, &str); 6] = [
    ("weir.backlog.high", "A backlog is above a threshold, or drains too late"),
    ("weir.backlog.cleared", "The backlog is below 80 % of each threshold again"),
    ("weir.breaker.opened", "A breaker opened: the receiver fails"),
    ("weir.breaker.closed", "The receiver answers again"),
    ("weir.destination.paused", "Weir paused a destination"),
    ("weir.delivery.dead", "Dead letters, at most once a minute for each destination"),
];

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
    policy: Policy,
    example: Example,
}

fn shown(threshold: &Option<u64>) -> String {
    threshold.map(|threshold| threshold.to_string()).unwrap_or_default()
}

pub(crate) async fn show(visit: Visit) -> Answered {
    let path = ApiPath::of(["alerts"]);
    let (me, policy) = tokio::try_join!(visit.me(), visit.api.get(&path))?;
    let example = Example::new(&visit, &me);
    let frame = visit.frame(me, Section::Alerts, "Alerts");
    visit.page(&AlertsPage { frame, policy, example })
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
