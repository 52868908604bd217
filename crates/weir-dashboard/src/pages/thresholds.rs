//! The form of the thresholds of all destinations.

use serde_json::{Value, json};
use weir_core::alert::AlertPolicy;

use crate::{durations::ApiUnit, faults::Faults, fields::Fields, refusal::Refusal};

/// The thresholds that are numbers or durations, with their labels.
const THRESHOLDS: [(&str, &str); 3] = [
    ("backlog_depth", "Waiting deliveries of a destination"),
    ("oldest_age_s", "Age of the oldest one"),
    ("dead_letters", "Dead letters since the last alert"),
];

/// What the form shows.
pub(super) struct Thresholds {
    typed: Fields,
    pub(super) faults: Faults,
}

impl Thresholds {
    /// The thresholds in force.
    pub(super) fn of(policy: &AlertPolicy) -> Self {
        let number = |threshold: Option<u32>| threshold.map(|threshold| threshold.to_string()).unwrap_or_default();
        let age = policy.oldest_age_s.map(|age| ApiUnit::Seconds.shown(age.into()));
        let typed = Fields::of([
            ("backlog_depth", number(policy.backlog_depth)),
            ("oldest_age_s", age.unwrap_or_default()),
            ("dead_letters", number(policy.dead_letters)),
            ("drain_beyond_ttl", if policy.drain_beyond_ttl { "on".to_owned() } else { String::new() }),
        ]);
        Self { typed, faults: Faults::default() }
    }

    /// What was typed, with what the API refused of it.
    pub(super) fn refused(typed: Fields, refusal: &Refusal) -> Self {
        let faults = Faults::of_typed(
            refusal,
            |name| typed.text(name),
            |pointer| {
                let known = THRESHOLDS.into_iter().find(|(name, _)| pointer.strip_prefix('/') == Some(name));
                known.map(|(name, label)| (name.to_owned(), label.to_owned()))
            },
        );
        Self { typed, faults }
    }

    pub(super) fn value(&self, name: &str) -> &str {
        self.typed.raw(name)
    }

    pub(super) fn drains_beyond_ttl(&self) -> bool {
        self.typed.is_ticked("drain_beyond_ttl")
    }
}

/// As the API takes it. What cannot be understood goes to the API as it is, which refuses it with everything else.
pub(super) fn body(fields: &Fields) -> Value {
    let mut policy = json!({ "drain_beyond_ttl": fields.is_ticked("drain_beyond_ttl") });
    for (name, _) in THRESHOLDS {
        let text = fields.text(name);
        let value = match ApiUnit::of_name(name) {
            Some(unit) => unit.typed(text).ok(),
            None => text.parse().ok(),
        };
        policy[name] = match value {
            _ if text.is_empty() => Value::Null,
            Some(value) => json!(value),
            None => json!(text),
        };
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threshold_is_read_and_shown_as_people_write_it() {
        let policy = AlertPolicy { oldest_age_s: Some(900), backlog_depth: Some(7), ..AlertPolicy::default() };
        let shown = Thresholds::of(&policy);
        assert_eq!((shown.value("oldest_age_s"), shown.value("backlog_depth")), ("15 min", "7"));
        let typed = Fields::parse(b"oldest_age_s=15+min&backlog_depth=many&dead_letters=&drain_beyond_ttl=on");
        let expected =
            json!({"oldest_age_s": 900, "backlog_depth": "many", "dead_letters": null, "drain_beyond_ttl": true});
        assert_eq!(body(&typed), expected);
    }
}
