//! What the commands show of the API's answers.

use weir_api_types::{Delivery, Destination, HELD_BY_GROUP, Override, RateLimit, WaitsFor};
use weir_core::Timestamp;

use crate::flags::limit::LimitText;

/// A destination in words.
pub(crate) trait InWords {
    /// The name, or the id of a destination without a name.
    fn title(&self) -> &str;

    /// The name and the id.
    fn label(&self) -> String;

    /// The limits and the minimum interval; a destination without any is unlimited.
    fn limits(&self) -> String;

    /// The override of its limits, with its end and its reason.
    fn overridden(&self) -> Option<String>;

    /// In a word, whether deliveries are sent to the destination.
    fn state(&self) -> &'static str;

    /// Why nothing is sent to the destination, and until when.
    fn reason(&self) -> Option<String>;
}

impl InWords for Destination {
    fn title(&self) -> &str {
        if self.settings.name.is_empty() { &self.id } else { &self.settings.name }
    }

    fn label(&self) -> String {
        if self.settings.name.is_empty() { self.id.clone() } else { format!("{} ({})", self.settings.name, self.id) }
    }

    fn limits(&self) -> String {
        limits_of(&self.settings.rate_limits, self.settings.min_interval_ms)
    }

    fn overridden(&self) -> Option<String> {
        self.overridden.as_ref().map(for_a_while)
    }

    fn state(&self) -> &'static str {
        match self.breaker_state.as_str() {
            _ if self.settings.paused => "paused",
            "open" => "breaker open",
            "half_open" => "probing",
            _ if self.held_until.is_some() => "held",
            _ => "active",
        }
    }

    fn reason(&self) -> Option<String> {
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

/// The limits and the minimum interval, as people write them.
pub(super) fn limits_of(limits: &[RateLimit], min_interval_ms: Option<u32>) -> String {
    let interval = min_interval_ms.map(|millis| format!("{millis} ms apart"));
    let limits: Vec<_> = limits.iter().map(|limit| LimitText(limit.clone()).to_string()).chain(interval).collect();
    if limits.is_empty() { "unlimited".to_owned() } else { limits.join(", ") }
}

/// The limits in force: those of an override, with its end.
pub(super) fn in_force(limits: &[RateLimit], min_interval_ms: Option<u32>, overridden: Option<&Override>) -> String {
    let Some(of) = overridden else { return limits_of(limits, min_interval_ms) };
    let limits = limits_of(of.rate_limits.as_deref().unwrap_or(limits), min_interval_ms);
    let in_flight = of.max_in_flight.map(|most| format!(", {most} in flight")).unwrap_or_default();
    format!("{limits}{in_flight} until {}", minute(of.until))
}

/// The minute and the day: where there is no room for both, the minute is left.
pub(super) fn minute(at: Timestamp) -> String {
    let at = at.to_string();
    match (at.get(..10), at.get(11..16)) {
        (Some(day), Some(minute)) => format!("{minute} UTC on {day}"),
        _ => at,
    }
}

/// An override, or a hold, which has no limits: `50/second until 2026-11-27T18:00:00.000Z: launch day`.
pub(super) fn for_a_while(of: &Override) -> String {
    let limits = of.rate_limits.as_ref().map(|limits| limits_of(limits, None));
    let in_flight = of.max_in_flight.map(|most| format!("{most} in flight"));
    let limits: Vec<_> = limits.into_iter().chain(in_flight).collect();
    let until = format!("until {}: {}", of.until, of.reason);
    if limits.is_empty() { until } else { format!("{} {until}", limits.join(", ")) }
}

/// Why a waiting delivery is not sent yet.
pub(super) fn waits_for(waits_for: &WaitsFor) -> String {
    let until = waits_for.until.map(|until| format!(" until {until}")).unwrap_or_default();
    let detail = waits_for.detail.as_ref().map(|detail| format!(": {detail}")).unwrap_or_default();
    let by = waits_for.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
    let since = waits_for.since.map(|since| format!(" since {since}")).unwrap_or_default();
    match &*waits_for.reason {
        "order" => "an earlier delivery of its ordering key".to_owned(),
        "due" => format!("its time{until}"),
        "key" => "its limit key, which is paused".to_owned(),
        "turn" => match &waits_for.ahead {
            Some(ahead) => format!("its turn, with {}{} ahead", ahead.value, if ahead.capped { "+" } else { "" }),
            None => "its turn".to_owned(),
        },
        "hold" if waits_for.detail.as_deref() == Some(HELD_BY_GROUP) => {
            format!("the end of the hold of its limit group{until}")
        }
        reason => format!("the {reason} of its destination{by}{since}{until}{detail}"),
    }
}

/// What an accepted delivery or replay waits for, in a line of its own; empty if it waits for nothing.
pub(super) fn waits(found: Option<&WaitsFor>) -> String {
    // One that is sent at once waits for nothing worth a line.
    let is_next =
        |found: &&WaitsFor| found.reason == "turn" && found.ahead.as_ref().is_none_or(|ahead| ahead.value == 0);
    let found = found.filter(|found| !is_next(found));
    found.map(|found| format!("\nIt waits for {}", waits_for(found))).unwrap_or_default()
}

/// The last answer in a word: its status, or the kind of the error.
pub(super) fn answer(delivery: &Delivery) -> Option<String> {
    delivery.last_status_code.map(|status| status.to_string()).or_else(|| delivery.last_error_kind.clone())
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::{Value, json};

    use super::*;

    /// A destination with these changes.
    pub(crate) fn destination(changes: &Value) -> Value {
        let mut destination = json!({
            "id": "dst_1", "created_at": Timestamp::MIN, "updated_at": Timestamp::MIN, "url": "https://a.example/",
            "name": "", "tenant": "default", "event_types": ["*"], "rate_limits": [], "max_in_flight": 64,
            "timeout_ms": 15_000, "retry": {"max_attempts": 16, "max_age_s": 259_200}, "refusals_count": false,
            "alerts": {}, "ordered": false, "headers": {}, "signature": {"style": "standard"}, "paused": false,
            "body": {"format": "envelope", "content_type": "application/json"}, "breaker_state": "closed",
            "signature_format": {
                "signed": "", "value": "", "encoding": "", "algorithm": "", "key": "", "timestamp_format": "", "header": "",
            },
        });
        destination.as_object_mut().unwrap().extend(changes.as_object().unwrap().clone());
        destination
    }

    #[test]
    fn the_state_of_a_destination_is_its_strongest_reason_not_to_send() {
        let state = |changes: Value| {
            let destination: Destination = serde_json::from_value(destination(&changes)).unwrap();
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
