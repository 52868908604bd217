//! The form of a destination's settings: its fields, what they show, and the patch that they make.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::fields::Fields;

/// The settings of a destination, except its limits.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Settings {
    name: String,
    url: String,
    event_types: Vec<String>,
    timeout_ms: u64,
    retry: Retry,
    #[serde(default)]
    refusals_count: bool,
    breaker: Option<Breaker>,
    #[serde(default)]
    alerts: Alerts,
    ordered: bool,
    skip_after_attempts: Option<u64>,
    /// The names; the values are hidden.
    headers: BTreeMap<String, String>,
    signature: Signature,
}

#[derive(Debug, Clone, Deserialize)]
struct Retry {
    max_attempts: u64,
    max_age_s: u64,
    base_ms: Option<u64>,
    cap_ms: Option<u64>,
    schedule_ms: Option<Vec<u64>>,
}

#[derive(Debug, Clone, Deserialize)]
struct Breaker {
    failure_ratio: f64,
    min_attempts: u64,
    consecutive: u64,
    open_ms: u64,
    open_max_ms: u64,
    pause_after_s: Option<u64>,
}

/// Absent: as for all destinations. Null: disabled.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Alerts {
    #[serde(deserialize_with = "given")]
    backlog_depth: Option<Value>,
    #[serde(deserialize_with = "given")]
    oldest_age_s: Option<Value>,
    drain_beyond_ttl: Option<bool>,
    #[serde(deserialize_with = "given")]
    dead_letters: Option<Value>,
}

/// Tells a null from an absent member.
fn given<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

#[derive(Debug, Clone, Deserialize)]
struct Signature {
    style: String,
    header: Option<String>,
    timestamp_header: Option<String>,
}

/// How a field is typed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Text,
    Number,
    Lines,
    Tick,
    Choice(&'static [&'static str]),
}

pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) label: &'static str,
    pub(crate) kind: Kind,
    pub(crate) hint: &'static str,
}

pub(crate) struct Group {
    pub(crate) title: &'static str,
    pub(crate) fields: &'static [Field],
}

const fn field(name: &'static str, label: &'static str, kind: Kind, hint: &'static str) -> Field {
    Field { name, label, kind, hint }
}

/// The form, group by group.
pub(crate) const GROUPS: [Group; 6] = [
    Group {
        title: "General",
        fields: &[
            field("name", "Name", Kind::Text, ""),
            field(
                "url",
                "URL",
                Kind::Text,
                "A new origin removes the headers below, unless you type their values again",
            ),
            field("timeout_ms", "Timeout of an attempt, in ms", Kind::Number, ""),
            field("event_types", "Event types", Kind::Lines, "One a line: video.created, video.* or *"),
            field("ordered", "Strict order for events with the same ordering_key", Kind::Tick, ""),
            field(
                "skip_after_attempts",
                "Skip a failing delivery after this many attempts",
                Kind::Number,
                "Only with strict order; empty: never",
            ),
        ],
    },
    Group {
        title: "Retries",
        fields: &[
            field("max_attempts", "Most attempts", Kind::Number, ""),
            field("max_age_s", "Longest age, in s", Kind::Number, ""),
            field("base_ms", "First delay at most, in ms", Kind::Number, "Doubles with each attempt"),
            field("cap_ms", "Longest delay, in ms", Kind::Number, ""),
            field(
                "schedule_ms",
                "Fixed delays, in ms",
                Kind::Text,
                "Such as 1000, 60000. They replace the two delays above",
            ),
            field(
                "refusals_count",
                "Refusals count as attempts",
                Kind::Tick,
                "429, or a used-up quota. Otherwise only the age of a delivery bounds how often it is refused",
            ),
        ],
    },
    Group {
        title: "Breaker",
        fields: &[
            field("breaker", "Stop sending to a failing receiver", Kind::Tick, ""),
            field(
                "failure_ratio",
                "Opens above this share of failures",
                Kind::Text,
                "Share of the attempts of a minute, 0 to 1",
            ),
            field("min_attempts", "Fewest attempts for this share", Kind::Number, ""),
            field("consecutive", "Opens after this many failures in a row", Kind::Number, ""),
            field("open_ms", "First probe after, in ms", Kind::Number, ""),
            field("open_max_ms", "Longest time between probes, in ms", Kind::Number, ""),
            field("pause_after_s", "Pause after failing this long, in s", Kind::Number, "Empty: never"),
        ],
    },
    Group {
        title: "Headers",
        fields: &[field(
            "headers",
            "Sent with every request",
            Kind::Lines,
            "One a line, as name: value. The value *** stays as it is",
        )],
    },
    Group {
        title: "Signature",
        fields: &[
            field("style", "Style", Kind::Choice(&["standard", "timestamped", "prefixed"]), ""),
            field("signature_header", "Signature header", Kind::Text, "Not with the style standard"),
            field("timestamp_header", "Timestamp header", Kind::Text, "Only with the style prefixed"),
        ],
    },
    Group {
        title: "Alerts",
        fields: &[
            field(
                "own_alerts",
                "Own thresholds",
                Kind::Tick,
                "Otherwise those of all destinations apply. Empty: no alert",
            ),
            field("backlog_depth", "Waiting deliveries", Kind::Number, ""),
            field("oldest_age_s", "Age of the oldest, in s", Kind::Number, ""),
            field("dead_letters", "Dead letters", Kind::Number, ""),
            field("drain_beyond_ttl", "The backlog drains after deliveries expire", Kind::Tick, ""),
        ],
    },
];

impl Settings {
    /// The fields as the form shows them.
    pub(crate) fn fields(&self) -> Fields {
        let number = |value: Option<u64>| value.map(|value| value.to_string()).unwrap_or_default();
        let tick = |is_on: bool| if is_on { "on".to_owned() } else { String::new() };
        let threshold = |value: &Option<Value>| match value {
            Some(Value::Number(number)) => number.to_string(),
            _ => String::new(),
        };
        let (retry, alerts, signature) = (&self.retry, &self.alerts, &self.signature);
        let schedule = retry.schedule_ms.iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        let headers: Vec<String> = self.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
        let own = alerts.backlog_depth.is_some()
            || alerts.oldest_age_s.is_some()
            || alerts.dead_letters.is_some()
            || alerts.drain_beyond_ttl.is_some();
        let mut pairs = vec![
            ("name", self.name.clone()),
            ("url", self.url.clone()),
            ("timeout_ms", self.timeout_ms.to_string()),
            ("event_types", self.event_types.join("\n")),
            ("ordered", tick(self.ordered)),
            ("skip_after_attempts", number(self.skip_after_attempts)),
            ("max_attempts", retry.max_attempts.to_string()),
            ("max_age_s", retry.max_age_s.to_string()),
            ("base_ms", number(retry.base_ms)),
            ("cap_ms", number(retry.cap_ms)),
            ("schedule_ms", schedule),
            ("refusals_count", tick(self.refusals_count)),
            ("headers", headers.join("\n")),
            ("style", signature.style.clone()),
            ("signature_header", signature.header.clone().unwrap_or_default()),
            ("timestamp_header", signature.timestamp_header.clone().unwrap_or_default()),
            ("own_alerts", tick(own)),
            ("backlog_depth", threshold(&alerts.backlog_depth)),
            ("oldest_age_s", threshold(&alerts.oldest_age_s)),
            ("dead_letters", threshold(&alerts.dead_letters)),
            ("drain_beyond_ttl", tick(alerts.drain_beyond_ttl.unwrap_or(true))),
            ("breaker", tick(self.breaker.is_some())),
        ];
        if let Some(breaker) = &self.breaker {
            pairs.extend([
                ("failure_ratio", breaker.failure_ratio.to_string()),
                ("min_attempts", breaker.min_attempts.to_string()),
                ("consecutive", breaker.consecutive.to_string()),
                ("open_ms", breaker.open_ms.to_string()),
                ("open_max_ms", breaker.open_max_ms.to_string()),
                ("pause_after_s", number(breaker.pause_after_s)),
            ]);
        }
        Fields::of(pairs)
    }

    /// The merge patch that turns these settings into what was typed.
    pub(crate) fn patch(&self, typed: &Fields) -> Value {
        let number = |name: &str| number(typed.text(name));
        let lines = |name: &str| -> Vec<String> {
            typed.raw(name).lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
        };
        let mut patch = json!({
            "name": typed.text("name"),
            "url": typed.text("url"),
            "timeout_ms": number("timeout_ms"),
            "event_types": lines("event_types"),
            "ordered": typed.is_ticked("ordered"),
            "retry": {"max_attempts": number("max_attempts"), "max_age_s": number("max_age_s")},
            "refusals_count": typed.is_ticked("refusals_count"),
            "breaker": null,
            "headers": self.header_patch(&lines("headers")),
            "signature": {"style": typed.text("style")},
            "alerts": null,
        });
        if typed.is_ticked("ordered") {
            patch["skip_after_attempts"] = number("skip_after_attempts");
        }
        let schedule = typed.text("schedule_ms");
        if schedule.is_empty() {
            patch["retry"]["base_ms"] = number("base_ms");
            patch["retry"]["cap_ms"] = number("cap_ms");
        } else {
            let delays = schedule.split([',', ' ', ';']).filter(|delay| !delay.is_empty()).map(self::number);
            patch["retry"]["schedule_ms"] = delays.collect();
        }
        if typed.is_ticked("breaker") {
            let names = ["min_attempts", "consecutive", "open_ms", "open_max_ms", "pause_after_s"];
            let mut breaker: Map<String, Value> =
                names.map(|name| (name.to_owned(), number(name))).into_iter().collect();
            breaker.insert("failure_ratio".to_owned(), ratio(typed.text("failure_ratio")));
            patch["breaker"] = breaker.into();
        }
        if typed.is_ticked("own_alerts") {
            let names = ["backlog_depth", "oldest_age_s", "dead_letters"];
            let mut alerts: Map<String, Value> =
                names.map(|name| (name.to_owned(), number(name))).into_iter().collect();
            alerts.insert("drain_beyond_ttl".to_owned(), typed.is_ticked("drain_beyond_ttl").into());
            patch["alerts"] = alerts.into();
        }
        let style = typed.text("style");
        if style != "standard" {
            patch["signature"]["header"] = text(typed.text("signature_header"));
        }
        if style == "prefixed" {
            patch["signature"]["timestamp_header"] = text(typed.text("timestamp_header"));
        }
        patch
    }

    /// The typed headers, and null for those that are no longer there.
    fn header_patch(&self, lines: &[String]) -> Value {
        let split = |line: &String| match line.split_once(':') {
            Some((name, value)) => (name.trim().to_ascii_lowercase(), json!(value.trim())),
            // The API names what is wrong.
            None => (line.clone(), json!("")),
        };
        let mut headers: Map<String, Value> = lines.iter().map(split).collect();
        let typed: BTreeSet<String> = headers.keys().cloned().collect();
        let removed = self.headers.keys().filter(|name| !typed.contains(*name));
        headers.extend(removed.map(|name| (name.clone(), Value::Null)));
        headers.into()
    }
}

/// A number; null for an empty field. Other texts go to the API as they are, so that its error names them.
fn number(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { text.parse::<u64>().map_or_else(|_| json!(text), |number| json!(number)) }
}

fn ratio(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { text.parse::<f64>().map_or_else(|_| json!(text), |number| json!(number)) }
}

fn text(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { json!(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings() -> Settings {
        serde_json::from_value(json!({
            "name": "Acme", "url": "https://example.com/", "event_types": ["video.*", "a.b"], "timeout_ms": 15_000,
            "retry": {"max_attempts": 16, "max_age_s": 259_200, "base_ms": 10_000, "cap_ms": 3_600_000},
            "refusals_count": true,
            "breaker": {"failure_ratio": 0.5, "min_attempts": 20, "consecutive": 10, "open_ms": 30_000,
                "open_max_ms": 1_800_000, "pause_after_s": null},
            "alerts": {"dead_letters": null}, "ordered": true, "skip_after_attempts": 3,
            "headers": {"x-a": "***", "x-b": "***"}, "signature": {"style": "standard"},
        }))
        .unwrap()
    }

    #[test]
    fn an_unchanged_form_makes_a_patch_of_the_same_settings() {
        let settings = settings();
        assert_eq!(
            settings.patch(&settings.fields()),
            json!({
                "name": "Acme", "url": "https://example.com/", "event_types": ["video.*", "a.b"], "timeout_ms": 15_000,
                "retry": {"max_attempts": 16, "max_age_s": 259_200, "base_ms": 10_000, "cap_ms": 3_600_000},
                "refusals_count": true,
                "breaker": {"failure_ratio": 0.5, "min_attempts": 20, "consecutive": 10, "open_ms": 30_000,
                    "open_max_ms": 1_800_000, "pause_after_s": null},
                "alerts": {"backlog_depth": null, "oldest_age_s": null, "dead_letters": null, "drain_beyond_ttl": true},
                "ordered": true, "skip_after_attempts": 3, "headers": {"x-a": "***", "x-b": "***"},
                "signature": {"style": "standard"},
            })
        );
    }

    #[test]
    fn unticked_parts_are_disabled_and_missing_headers_removed() {
        let typed = Fields::parse(
            b"name=B&url=u&timeout_ms=x&event_types=*&max_attempts=2&max_age_s=9&schedule_ms=1000,+2000&headers=X-A:+n\
              &style=prefixed&timestamp_header=x-t",
        );
        let patch = settings().patch(&typed);
        assert_eq!(
            (&patch["breaker"], &patch["alerts"], &patch["ordered"]),
            (&Value::Null, &Value::Null, &json!(false))
        );
        assert_eq!(patch["refusals_count"], json!(false));
        assert_eq!(patch["headers"], json!({"x-a": "n", "x-b": null}));
        assert_eq!(patch["retry"], json!({"max_attempts": 2, "max_age_s": 9, "schedule_ms": [1_000, 2_000]}));
        assert_eq!(patch["signature"], json!({"style": "prefixed", "header": null, "timestamp_header": "x-t"}));
        assert_eq!((&patch["timeout_ms"], patch.get("skip_after_attempts")), (&json!("x"), None));
    }

    #[test]
    fn every_field_of_the_form_is_filled() {
        let fields = settings().fields();
        for field in GROUPS.iter().flat_map(|group| group.fields) {
            assert!(fields.has(field.name), "{}", field.name);
        }
    }
}
