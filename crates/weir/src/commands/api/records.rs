//! What the API answers, as far as the commands show it. A field that an older server does not have gets its default.

use std::fmt;

use serde::Deserialize;
use weir_core::Timestamp;

use crate::cli::limit::LimitText;

#[derive(Debug, Deserialize)]
pub(in crate::commands) struct Destination {
    pub(in crate::commands) id: String,
    #[serde(default)]
    pub(in crate::commands) name: String,
    pub(super) url: String,
    pub(super) tenant: String,
    pub(super) event_types: Vec<String>,
    pub(super) rate_limits: Vec<LimitText>,
    #[serde(default)]
    pub(super) min_interval_ms: Option<u32>,
    pub(super) paused: bool,
    pub(super) paused_reason: Option<String>,
    pub(super) held_until: Option<Timestamp>,
    pub(super) held_reason: Option<String>,
    pub(super) breaker_state: String,
    pub(super) breaker_reason: Option<String>,
    pub(super) next_probe_at: Option<Timestamp>,
    /// While the secret before the last rotation also signs.
    #[serde(default)]
    pub(super) previous_secret_valid_until: Option<Timestamp>,
}

impl Destination {
    /// The name, or the id of a destination without a name.
    pub(in crate::commands) fn title(&self) -> &str {
        if self.name.is_empty() { &self.id } else { &self.name }
    }

    /// The name and the id.
    pub(super) fn label(&self) -> String {
        if self.name.is_empty() { self.id.clone() } else { format!("{} ({})", self.name, self.id) }
    }

    /// The limits and the minimum interval; a destination without any is unlimited.
    pub(super) fn limits(&self) -> String {
        let interval = self.min_interval_ms.map(|millis| format!("{millis} ms apart"));
        let limits: Vec<_> = self.rate_limits.iter().map(ToString::to_string).chain(interval).collect();
        if limits.is_empty() { "unlimited".to_owned() } else { limits.join(", ") }
    }

    /// In a word, whether deliveries are sent to the destination.
    pub(super) fn state(&self) -> &'static str {
        match self.breaker_state.as_str() {
            _ if self.paused => "paused",
            "open" => "breaker open",
            "half_open" => "probing",
            _ if self.held_until.is_some() => "held",
            _ => "active",
        }
    }

    /// Why nothing is sent to the destination, and until when.
    pub(super) fn reason(&self) -> Option<String> {
        let until = |until: Option<Timestamp>, reason: &Option<String>| {
            let until = until.map(|until| format!("until {until}"));
            [until, reason.clone()].into_iter().flatten().collect::<Vec<_>>().join(": ")
        };
        match self.state() {
            "paused" => self.paused_reason.clone(),
            "breaker open" | "probing" => Some(until(self.next_probe_at, &self.breaker_reason)),
            "held" => Some(until(self.held_until, &self.held_reason)),
            _ => None,
        }
    }
}

/// A destination that was just created.
#[derive(Debug, Deserialize)]
pub(super) struct Created {
    #[serde(flatten)]
    pub(super) destination: Destination,
    pub(super) secret: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Secret {
    pub(super) secret: String,
    pub(super) public_key: Option<String>,
    pub(super) public_key_hex: Option<String>,
    pub(super) previous_valid_until: Option<Timestamp>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Backlog {
    pub(super) pending: u64,
    pub(super) retrying: u64,
    pub(super) delivering: u64,
    pub(super) oldest_age_s: Option<f64>,
    pub(super) achieved_per_s: f64,
    pub(super) inflow_per_s: f64,
    pub(super) drain_eta_s: Option<f64>,
    pub(super) drains: Option<bool>,
}

/// The number of deliveries that a dry run has counted.
#[derive(Debug, Deserialize)]
pub(super) struct Total {
    pub(super) total: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct Purged {
    pub(super) cancelled: u64,
}

#[derive(Debug, Deserialize)]
pub(super) struct AcceptedEvent {
    pub(super) id: String,
    pub(super) deliveries: u32,
    pub(super) duplicate: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Event {
    pub(super) id: String,
    #[serde(rename = "type")]
    pub(super) event_type: String,
    pub(super) tenant: String,
    pub(super) created_at: Timestamp,
    pub(super) idempotency_key: Option<String>,
    pub(super) deliver_at: Option<Timestamp>,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) coalesce_key: Option<String>,
    pub(super) ordering_key: Option<String>,
    pub(super) data: Option<Box<serde_json::value::RawValue>>,
    #[serde(default)]
    pub(super) deliveries: Vec<Delivery>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Delivery {
    pub(super) id: String,
    pub(super) event_id: String,
    pub(super) event_type: String,
    pub(super) destination_id: String,
    pub(super) state: String,
    pub(super) attempt_count: u32,
    pub(super) next_attempt_at: Option<Timestamp>,
    #[serde(default)]
    pub(super) waits_for: Option<WaitsFor>,
    pub(super) expires_at: Option<Timestamp>,
    pub(super) created_at: Timestamp,
    pub(super) updated_at: Timestamp,
    pub(super) last_error: Option<String>,
    pub(super) last_error_kind: Option<String>,
    pub(super) last_status_code: Option<u16>,
    #[serde(default)]
    pub(super) attempts: Vec<Attempt>,
}

/// What keeps a due delivery from being sent.
#[derive(Debug, Deserialize)]
pub(super) struct WaitsFor {
    reason: String,
    until: Option<Timestamp>,
    detail: Option<String>,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} of its destination", self.reason)?;
        if let Some(until) = self.until {
            write!(f, " until {until}")?;
        }
        match &self.detail {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

/// A sentence that follows what was accepted.
fn waits(waits_for: Option<&WaitsFor>) -> String {
    waits_for.map(|waits_for| format!("\nIt waits for {waits_for}")).unwrap_or_default()
}

impl Delivery {
    /// What it waits for, in a line of its own; empty if it waits for nothing.
    pub(super) fn waits(&self) -> String {
        waits(self.waits_for.as_ref())
    }

    /// The last answer in a word: its status, or the kind of the error.
    pub(super) fn answer(&self) -> Option<String> {
        self.last_status_code.map(|status| status.to_string()).or_else(|| self.last_error_kind.clone())
    }
}

/// Deliveries that failed in the same way.
#[derive(Debug, Deserialize)]
pub(super) struct Group {
    pub(super) destination_id: String,
    pub(super) destination_name: String,
    pub(super) state: String,
    pub(super) error: Option<String>,
    pub(super) deliveries: u64,
    pub(super) newest_at: Timestamp,
    pub(super) example_id: String,
}

#[derive(Debug, Deserialize)]
pub(super) struct Groups {
    pub(super) data: Vec<Group>,
    pub(super) scanned: u64,
    /// Whether there are more deliveries than were counted.
    pub(super) capped: bool,
}

#[derive(Debug, Deserialize)]
pub(super) struct Attempt {
    pub(super) number: u32,
    pub(super) sent_at: Option<Timestamp>,
    pub(super) status_code: Option<u16>,
    pub(super) duration_ms: u32,
    pub(super) error: Option<String>,
    pub(super) outcome: String,
    pub(super) response_body: Option<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Replay {
    pub(super) id: String,
    pub(super) state: String,
    pub(super) states: Vec<String>,
    pub(super) destination: Option<String>,
    pub(super) tenant: Option<String>,
    pub(super) event_type: Option<String>,
    pub(super) error: Option<String>,
    pub(super) from: Option<Timestamp>,
    pub(super) to: Option<Timestamp>,
    pub(super) total: u64,
    pub(super) delivered: u64,
    pub(super) failed: u64,
    pub(super) cancelled: u64,
    pub(super) remaining: u64,
    pub(super) eta_s: Option<f64>,
    #[serde(default)]
    waits_for: Option<WaitsFor>,
    pub(super) created_at: Timestamp,
    pub(super) ended_at: Option<Timestamp>,
}

impl Replay {
    /// What it waits for, in a line of its own; empty if it waits for nothing.
    pub(super) fn waits(&self) -> String {
        waits(self.waits_for.as_ref())
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct Key {
    pub(super) id: String,
    pub(super) name: String,
    pub(super) role: String,
    pub(super) tenants: Option<Vec<String>>,
    pub(super) created_at: Timestamp,
    pub(super) expires_at: Option<Timestamp>,
    /// Only in the answer that creates the key.
    pub(super) secret: Option<String>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_state_of_a_destination_is_its_strongest_reason_not_to_send() {
        let state = |changes: serde_json::Value| {
            let mut destination = json!({
                "id": "dst_1", "url": "https://a.example/", "tenant": "default", "event_types": ["*"],
                "rate_limits": [], "paused": false, "breaker_state": "closed",
            });
            destination.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
            let destination: Destination = serde_json::from_value(destination).unwrap();
            (destination.state(), destination.reason())
        };
        let until = "2026-11-26T04:30:00.000Z";
        assert_eq!(state(json!({})), ("active", None));
        assert_eq!(
            state(json!({"held_until": until, "held_reason": "Retry-After"})),
            ("held", Some(format!("until {until}: Retry-After")))
        );
        let open = json!({"held_until": until, "breaker_state": "open", "breaker_reason": "10 failures in a row"});
        assert_eq!(state(open), ("breaker open", Some("10 failures in a row".to_owned())));
        assert_eq!(state(json!({"paused": true, "breaker_state": "open"})), ("paused", None));
    }
}
