//! What a change of the activity log has changed, as people read it: the names of the pages, durations with units, and of
//! a list or an object only what differs.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use weir_api_types::{Override, RateLimit};
use weir_core::Timestamp;

use super::destination::settings_fields;
use crate::{
    durations::ApiUnit,
    units::{Count, Units as _, capitalised},
    views::{LimitText as _, OverrideText as _},
};

/// A field that a change gave another value.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change {
    pub(crate) field: String,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

/// The names of fields that have no field in the form of the settings.
const NAMES: [(&str, &str); 24] = [
    ("secret", "Secret"),
    ("rate_limits", "Limits"),
    ("adaptive", "Adaptive pace"),
    ("min_interval_ms", "Between two sends"),
    ("max_in_flight", "In flight at most"),
    ("breaker_state", "State of the breaker"),
    ("breaker", "Breaker"),
    ("retry", "Retries"),
    ("signature", "Signature"),
    ("body", "Body"),
    ("alerts", "Own thresholds"),
    ("paused_reason", "Why it is paused"),
    ("held_reason", "Why it is held"),
    ("held_until", "Held until"),
    ("previous_secret", "Previous secret"),
    ("proxy_password", "Password of the proxy"),
    ("tls", "Certificates"),
    ("expires_at", "Expires"),
    ("event_type", "Event type"),
    ("from", "From"),
    ("to", "Before"),
    ("url", "URL"),
    ("override", "Override"),
    ("hold", "Hold"),
];

const FILTER: &str = "/filter";

/// The fields that differ, in the order of their names.
pub(crate) fn changes(before: Option<&Value>, after: Option<&Value>) -> Vec<Change> {
    let mut changes = Vec::new();
    let none = Map::new();
    let fields = |value: Option<&Value>| value.and_then(Value::as_object).cloned().unwrap_or_else(|| none.clone());
    collect("", &fields(before), &fields(after), &mut changes);
    changes
}

fn collect(within: &str, before: &Map<String, Value>, after: &Map<String, Value>, changes: &mut Vec<Change>) {
    let names: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    for name in names {
        let pointer = format!("{within}/{name}");
        match (before.get(name), after.get(name)) {
            (Some(Value::Object(before)), Some(Value::Object(after))) if name != "headers" && pointer != FILTER => {
                collect(&pointer, before, after, changes);
            }
            (Some(before), Some(after)) if before == after && !within.is_empty() => {}
            (Some(Value::Array(before)), Some(Value::Array(after))) if is_words(before) && is_words(after) => {
                changes.push(of_words(&pointer, before, after));
            }
            (before, after) => {
                let shown = |value: &Value| shown(&pointer, value);
                changes.push(Change { field: label(&pointer), before: before.map(shown), after: after.map(shown) });
            }
        }
    }
}

fn is_words(items: &[Value]) -> bool {
    !items.is_empty() && items.iter().all(Value::is_string)
}

/// The words that were removed and added; all of them if only their order is another one.
fn of_words(pointer: &str, before: &[Value], after: &[Value]) -> Change {
    let without = |items: &[Value], others: &[Value]| -> Vec<Value> {
        items.iter().filter(|item| !others.contains(item)).cloned().collect()
    };
    let (mut removed, mut added) = (without(before, after), without(after, before));
    if removed.is_empty() && added.is_empty() {
        (removed, added) = (before.to_vec(), after.to_vec());
    }
    let shown = |words: Vec<Value>| (!words.is_empty()).then(|| shown(pointer, &Value::Array(words)));
    Change { field: label(pointer), before: shown(removed), after: shown(added) }
}

/// The name of a field on the pages.
fn label(pointer: &str) -> String {
    let name = pointer.rsplit('/').next().unwrap_or_default();
    let is_nested = pointer.matches('/').count() > 1;
    if let Some((_, label)) = NAMES.iter().find(|(known, _)| !is_nested && *known == name) {
        return (*label).to_owned();
    }
    if let Some(field) = settings_fields::at(pointer) {
        return field.label.to_owned();
    }
    capitalised(&name.strip_suffix("_ms").or_else(|| name.strip_suffix("_s")).unwrap_or(name).replace('_', " "))
}

/// A value as people read it: limits as `10/s`, durations with their unit, texts without quotes.
fn shown(pointer: &str, value: &Value) -> String {
    let name = pointer.rsplit('/').next().unwrap_or_default();
    match value {
        // A key that is bound to no tenants may see all of them, and one that does not expire is valid until it is deleted.
        Value::Null if name == "tenants" => "all tenants".to_owned(),
        Value::Null if name == "expires_at" => "never".to_owned(),
        Value::Null if ["adaptive", "breaker", "pause_after_s"].contains(&name) => "off".to_owned(),
        Value::Null => "none".to_owned(),
        Value::Bool(is_on) => if *is_on { "yes" } else { "no" }.to_owned(),
        Value::Number(number) => match (number.as_u64(), ApiUnit::of_name(name)) {
            (Some(number), Some(unit)) => unit.shown(number),
            (Some(number), None) => Count(number).to_string(),
            (None, _) => number.to_string(),
        },
        Value::String(text)
            if name.ends_with("_at") || ["held_until", "until", "from", "to", "before"].contains(&name) =>
        {
            text.parse::<Timestamp>().map_or_else(|_| text.clone(), |at| format!("{} UTC", at.time().plain()))
        }
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(|item| shown(pointer, item)).collect::<Vec<_>>().join(", "),
        // Parts of a filter mean nothing without the others.
        Value::Object(_) if pointer == FILTER => value.to_string(),
        Value::Object(fields) => {
            // An old limit may have no margin.
            let defaults = [("burst".to_owned(), 1.into()), ("margin_ms".to_owned(), 0.into())];
            let with_defaults = defaults.into_iter().chain(fields.clone()).collect();
            if let Ok(limit) = serde_json::from_value::<RateLimit>(Value::Object(with_defaults)) {
                return limit.short();
            }
            if let Ok(of) = serde_json::from_value::<Override>(value.clone()) {
                return of.sentence();
            }
            let field = |(name, value): (&String, &Value)| {
                let pointer = format!("{pointer}/{name}");
                // Of a header only its name is known.
                if value == weir_core::activity::MASK {
                    name.clone()
                } else {
                    format!("{} {}", label(&pointer), shown(&pointer, value))
                }
            };
            let fields: Vec<String> = fields.iter().map(field).collect();
            if fields.is_empty() { "none".to_owned() } else { fields.join(", ") }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(before: Value, after: Value) -> Vec<(String, Option<String>, Option<String>)> {
        let changes = changes(Some(&before), Some(&after));
        changes.into_iter().map(|change| (change.field, change.before, change.after)).collect()
    }

    fn line(field: &str, before: Option<&str>, after: Option<&str>) -> (String, Option<String>, Option<String>) {
        (field.to_owned(), before.map(str::to_owned), after.map(str::to_owned))
    }

    #[test]
    fn a_change_shows_each_field_before_and_after() {
        let before = json!({"rate_limits": [{"limit": 10, "period": "second", "burst": 1}], "paused": false});
        let after = json!({"rate_limits": [], "paused": true, "name": "Acme"});
        let expected = [
            line("Name", None, Some("Acme")),
            line("Paused", Some("no"), Some("yes")),
            line("Limits", Some("10/s"), Some("none")),
        ];
        assert_eq!(of(before, after), expected);
    }

    #[test]
    fn an_override_is_a_sentence() {
        let limits = json!([{"limit": 50, "period": "second", "burst": 1, "margin_ms": 0}]);
        let until = "2026-11-27T18:00:00.000Z";
        let raised = json!({"rate_limits": limits, "max_in_flight": null, "until": until, "reason": "launch day"});
        let after = json!({"override": raised, "hold": {"until": until, "reason": "r"}});
        let expected = [
            line("Hold", Some("none"), Some("until 2026-11-27 18:00:00 UTC: r")),
            line("Override", Some("none"), Some("50/s until 2026-11-27 18:00:00 UTC: launch day")),
        ];
        assert_eq!(of(json!({"override": null, "hold": null}), after), expected);
    }

    #[test]
    fn of_objects_and_lists_only_what_differs_is_shown() {
        let before = json!({
            "retry": {"max_attempts": 16, "max_age_s": 259_200}, "event_types": ["video.*", "a"], "headers": {"x-a": "•••"},
        });
        let after = json!({
            "retry": {"max_attempts": 16, "max_age_s": 3_600}, "event_types": ["video.*", "b"], "headers": {},
        });
        let expected = [
            line("Event types", Some("a"), Some("b")),
            line("Sent with every request", Some("x-a"), Some("none")),
            line("Longest age", Some("72 h"), Some("1 h")),
        ];
        assert_eq!(of(before, after), expected);
        let only_added = of(json!({"event_types": ["a"]}), json!({"event_types": ["a", "b"]}));
        assert_eq!(only_added, [line("Event types", None, Some("b"))]);
        let order = of(json!({"event_types": ["a", "b"]}), json!({"event_types": ["b", "a"]}));
        assert_eq!(order, [line("Event types", Some("a, b"), Some("b, a"))]);
        // A filter is shown as a whole.
        let filters = of(json!({"filter": {"/a": 1, "/b": 2}}), json!({"filter": {"/a": 1, "/b": 3}}));
        assert_eq!(filters, [line("Filter", Some(r#"{"/a":1,"/b":2}"#), Some(r#"{"/a":1,"/b":3}"#))]);
    }

    #[test]
    fn values_are_shown_as_people_read_them() {
        let before = json!({
            "breaker": null, "held_until": "2026-11-21T07:30:00.000Z", "tenants": null, "expires_at": null, "max_in_flight": 10_000,
            "timeout_ms": 15_000, "secret": "•••",
        });
        let after = json!({
            "breaker": {"open_ms": 30_000}, "held_until": null, "tenants": ["acme"], "expires_at": "2026-11-21T07:30:00.000Z",
            "max_in_flight": 64, "timeout_ms": 500, "secret": "•••",
        });
        let expected = [
            line("Breaker", Some("off"), Some("First probe after 30 s")),
            line("Expires", Some("never"), Some("2026-11-21 07:30:00 UTC")),
            line("Held until", Some("2026-11-21 07:30:00 UTC"), Some("none")),
            line("In flight at most", Some("10,000"), Some("64")),
            line("Secret", Some("•••"), Some("•••")),
            line("Tenants", Some("all tenants"), Some("acme")),
            line("Timeout of an attempt", Some("15 s"), Some("500 ms")),
        ];
        assert_eq!(of(before, after), expected);
    }
}
