//! The most recent alerts: events that Weir itself sends about a destination, each in words.

use serde::Deserialize;
use weir_api_types::List;
use weir_core::Timestamp;

use crate::{
    client::ApiPath, example::Example, frame::Me, live_region::LiveRegion, names::Names, refusal::Refusal,
    units::Units as _, visit::Visit,
};

/// The alerts that the page lists.
const SHOWN: usize = 20;
/// The events that the page reads. Weir's own events include test events, which are no alerts.
const READ: &str = "100";

/// A type of alerts.
pub(super) struct Kind {
    pub(super) event_type: &'static str,
    /// In plain words.
    pub(super) name: &'static str,
    tone: &'static str,
    /// When it is sent.
    pub(super) when: &'static str,
}

const fn kind(event_type: &'static str, name: &'static str, tone: &'static str, when: &'static str) -> Kind {
    Kind { event_type, name, tone, when }
}

pub(super) const KINDS: [Kind; 10] = [
    kind("weir.backlog.high", "Backlog high", "warn", "It is above a threshold, or drains too late"),
    kind("weir.backlog.cleared", "Backlog cleared", "good", "It is below 80 % of each threshold again"),
    kind("weir.breaker.opened", "Breaker opened", "bad", "The receiver fails"),
    kind("weir.breaker.closed", "Breaker closed", "good", "The receiver answers again"),
    kind("weir.destination.paused", "Paused by Weir", "warn", "For example after a 410 Gone"),
    kind(
        "weir.destination.refused",
        "Refused within the limit",
        "warn",
        "The receiver refuses sends that keep the limit",
    ),
    kind("weir.destination.admitted", "No more refusals", "good", "None for five minutes, or since an edit"),
    kind("weir.destination.stalled", "Stalled", "bad", "Deliveries are due, the limits allow them, and none is sent"),
    kind("weir.destination.recovered", "Sends again", "good", "The stall has ended"),
    kind("weir.delivery.dead", "Dead letters", "bad", "At most one alert a minute for each destination"),
];

/// An alert, as the list of events has it.
#[derive(Debug, Deserialize)]
pub(super) struct Alert {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) event_type: String,
    pub(super) created_at: Timestamp,
    #[serde(default)]
    data: Data,
}

/// What an alert says. Each type has some of the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Data {
    destination_id: String,
    /// The name of the destination at that time.
    name: String,
    reasons: Vec<String>,
    backlog: Backlog,
    reason: String,
    new: u64,
    dead_letters: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Backlog {
    waiting: u64,
    oldest_age_s: f64,
    drain_eta_s: Option<f64>,
}

impl Alert {
    fn kind(&self) -> Option<&'static Kind> {
        KINDS.iter().find(|kind| kind.event_type == self.event_type)
    }

    pub(super) fn name(&self) -> &str {
        self.kind().map_or(&self.event_type, |kind| kind.name)
    }

    pub(super) fn tone(&self) -> &'static str {
        self.kind().map_or("", |kind| kind.tone)
    }

    pub(super) fn destination(&self) -> &str {
        &self.data.destination_id
    }

    /// The name of its destination at that time, or else how it is called now.
    pub(super) fn label(&self, names: &Names) -> String {
        if self.data.name.trim().is_empty() { names.of(&self.data.destination_id) } else { self.data.name.clone() }
    }

    /// What it says, in a sentence.
    pub(super) fn text(&self) -> String {
        let Data { backlog, reason, new, dead_letters, .. } = &self.data;
        match self.event_type.as_str() {
            "weir.backlog.high" => self.high(),
            "weir.backlog.cleared" if backlog.waiting == 0 => "Nothing waits any more.".to_owned(),
            "weir.backlog.cleared" => format!("Only {} now.", waiting(backlog.waiting)),
            "weir.breaker.closed" => "The receiver answers again.".to_owned(),
            "weir.destination.admitted" => "The receiver admits what keeps the limit.".to_owned(),
            "weir.destination.recovered" => "Weir sends to it again.".to_owned(),
            "weir.delivery.dead" if new == dead_letters => format!("{}.", counted(*new, "dead letter", "dead letters")),
            "weir.delivery.dead" => {
                format!("{}, {} in all.", counted(*new, "new dead letter", "new dead letters"), dead_letters.count())
            }
            _ if reason.is_empty() => String::new(),
            _ => format!("{}.", capitalised(reason)),
        }
    }

    /// Why a backlog is high: the measures above their thresholds.
    fn high(&self) -> String {
        let Data { backlog, reasons, .. } = &self.data;
        let has = |reason: &str| reasons.iter().any(|given| given == reason);
        let mut text = capitalised(&waiting(backlog.waiting));
        if has("oldest_age_s") {
            text.push_str(&format!(", the oldest for {}", backlog.oldest_age_s.seconds()));
        }
        text.push('.');
        if has("drain_beyond_ttl") {
            text.push_str(" Some expire before the backlog drains");
            text.push_str(&backlog.drain_eta_s.map_or_else(String::new, |eta| format!(" (in {})", eta.seconds())));
            text.push('.');
        }
        text
    }
}

fn counted(count: u64, one: &str, many: &str) -> String {
    format!("{} {}", count.count(), if count == 1 { one } else { many })
}

fn waiting(count: u64) -> String {
    counted(count, "delivery waits", "deliveries wait")
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// The list: the part of the page that live updates replace.
pub(super) struct RecentAlerts {
    pub(super) base: String,
    pub(super) alerts: Vec<Alert>,
    pub(super) names: Names,
    /// There may be more alerts, although the list has room for them: the newest of Weir's own events are test events,
    /// or belong to other tenants.
    pub(super) is_partial: bool,
    /// For the empty state.
    pub(super) example: Example,
    pub(super) live: Option<LiveRegion>,
}

impl RecentAlerts {
    /// The list, with the version of what the API answered.
    pub(super) async fn read(visit: &Visit, me: &Me) -> Result<(Self, String), Refusal> {
        let path = ApiPath::of(["events"]).with("type", "weir.*").with("include", "data").with("limit", READ);
        let (page, version) = visit.api.get_versioned::<List<Alert>>(&path).await?;
        let mut alerts = page.data;
        alerts.retain(|alert| alert.kind().is_some());
        alerts.truncate(SHOWN);
        let unnamed = alerts.iter().filter(|alert| alert.data.name.trim().is_empty());
        let names = Names::read(visit, unnamed.map(Alert::destination)).await;
        let (base, example) = (visit.site.base.clone(), Example::new(visit, me));
        let fragment = format!("{base}/fragments/alerts");
        let live = Some(match me.is_bound() {
            true => LiveRegion::slow(fragment),
            false => LiveRegion::prompt(fragment, &version),
        });
        let is_partial = page.next_cursor.is_some() && alerts.len() < SHOWN;
        Ok((Self { base, is_partial, alerts, names, example, live }, version))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn text(event_type: &str, data: Value) -> String {
        let at = "2025-11-21T07:30:00.000Z";
        let event = json!({"id": "evt_1", "type": event_type, "created_at": at, "data": data});
        serde_json::from_value::<Alert>(event).unwrap().text()
    }

    #[test]
    fn a_high_backlog_says_which_measures_are_above_their_thresholds() {
        let high = |reasons: &[&str], waiting: u64, eta: Value| {
            let backlog = json!({"waiting": waiting, "oldest_age_s": 185, "drain_eta_s": eta});
            text("weir.backlog.high", json!({"name": "Acme", "reasons": reasons, "backlog": backlog}))
        };
        assert_eq!(high(&["backlog_depth"], 1_234, json!(60)), "1,234 deliveries wait.");
        assert_eq!(high(&["oldest_age_s"], 1, Value::Null), "1 delivery waits, the oldest for 3 min 5 s.");
        assert_eq!(
            high(&["backlog_depth", "drain_beyond_ttl"], 9, json!(7_200)),
            "9 deliveries wait. Some expire before the backlog drains (in 2 h)."
        );
    }

    #[test]
    fn each_alert_says_what_happened() {
        let backlog = |waiting: u64| json!({"backlog": {"waiting": waiting, "oldest_age_s": 0, "drain_eta_s": null}});
        for (event_type, data, expected) in [
            ("weir.backlog.cleared", backlog(0), "Nothing waits any more."),
            ("weir.backlog.cleared", backlog(3), "Only 3 deliveries wait now."),
            ("weir.breaker.opened", json!({"reason": "10 failures in a row"}), "10 failures in a row."),
            ("weir.breaker.closed", json!({}), "The receiver answers again."),
            ("weir.destination.paused", json!({"reason": "the endpoint is gone"}), "The endpoint is gone."),
            ("weir.destination.refused", json!({"reason": "it refuses; set a limit"}), "It refuses; set a limit."),
            ("weir.destination.admitted", json!({}), "The receiver admits what keeps the limit."),
            ("weir.delivery.dead", json!({"new": 1, "dead_letters": 1}), "1 dead letter."),
            ("weir.delivery.dead", json!({"new": 3, "dead_letters": 10}), "3 new dead letters, 10 in all."),
            ("weir.other", json!({}), ""),
        ] {
            assert_eq!(text(event_type, data), expected, "{event_type}");
        }
    }
}
