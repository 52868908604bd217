//! The form of a destination's settings: its fields, what they show, and the patch that they make.

use std::{collections::BTreeSet, num::NonZeroU32};

use serde_json::{Map, Value, json};
use weir_api_types::{Body, DestinationSettings, Signature};
use weir_core::{
    body::BodyFormat,
    signing::{Algorithm, CUSTOM, Encoding, KeyForm, STANDARD, TimestampFormat},
};

use crate::{extend::extend, fields::Fields};

extend! {
    trait SignaturePart for Signature {
        /// The headers, each with the name of its field in the form.
        fn headers(&self) -> [(&'static str, &'static str, Option<&str>); 3] {
            [
                ("header", "signature_header", self.header.as_deref()),
                ("timestamp_header", "timestamp_header", self.timestamp_header.as_ref().and_then(Option::as_deref)),
                ("id_header", "id_header", self.id_header.as_ref().and_then(Option::as_deref)),
            ]
        }

        /// What only a style of its own has.
        fn format(&self) -> [(&'static str, Option<&str>); 7] {
            [
                ("signed", self.signed.as_deref()),
                ("value", self.value.as_deref()),
                ("separator", self.separator.as_ref().and_then(Option::as_deref)),
                ("encoding", self.encoding.as_deref()),
                ("algorithm", self.algorithm.as_deref()),
                ("key", self.key.as_deref()),
                ("timestamp_format", self.timestamp_format.as_deref()),
            ]
        }

        /// The part of the patch. A header that was not typed is that of the former style, so another style gets its own.
        fn patch(&self, typed: &Fields) -> Value {
            let style = typed.text("style");
            let mut patch = json!({"style": style});
            if style == STANDARD {
                return patch;
            }
            for (name, field, shown) in self.headers() {
                let is_old = style != self.style && shown == Some(typed.text(field));
                patch[name] = if is_old { Value::Null } else { text(typed.text(field)) };
            }
            if style == CUSTOM {
                for (name, _) in self.format() {
                    // A separator may be a space.
                    let typed = if name == "separator" { typed.raw(name) } else { typed.text(name) };
                    patch[name] = text(typed);
                }
            }
            patch
        }
    }
}

extend! {
    trait BodyPart for Body {
        /// The part of the patch. As with the signature, another format gets its own content type and source.
        fn patch(&self, typed: &Fields) -> Value {
            let format = typed.text("body_format");
            let of = |field: &str, shown: &str| {
                let is_old = format != self.format && shown == typed.text(field);
                if is_old { Value::Null } else { text(typed.text(field)) }
            };
            let content_type = of("content_type", &self.content_type);
            json!({"format": format, "content_type": content_type, "source": of("source", self.source.as_deref().unwrap_or_default())})
        }
    }
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

/// The names of all styles; a test compares them with those of the domain.
const STYLES: [&str; 19] = [
    STANDARD,
    "timestamped",
    "prefixed",
    "stripe",
    "github",
    "slack",
    "zoom",
    "shopify",
    "zendesk",
    "square",
    "razorpay",
    "linear",
    "lemon-squeezy",
    "pagerduty",
    "paddle",
    "discord",
    "svix",
    "twitch",
    CUSTOM,
];

const BODY_FORMATS: [&str; 4] = [
    BodyFormat::Envelope.as_str(),
    BodyFormat::Data.as_str(),
    BodyFormat::Cloudevents.as_str(),
    BodyFormat::CloudeventsBinary.as_str(),
];

/// The form, group by group.
pub(crate) const GROUPS: [Group; 7] = [
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
            field("style", "Style", Kind::Choice(&STYLES), ""),
            field("signature_header", "Signature header", Kind::Text, "Empty: that of the style. Not with standard"),
            field(
                "timestamp_header",
                "Timestamp header",
                Kind::Text,
                "Only where the style has one, as prefixed and slack",
            ),
            field("id_header", "Id header", Kind::Text, "Only where the style has one, as svix and custom"),
            field("signed", "Signed text", Kind::Text, "Custom: such as {timestamp}.{body}; also {id} and {url}"),
            field("value", "Header value", Kind::Text, "Custom: such as t={timestamp},v1={signature}"),
            field("separator", "Separator of two signatures", Kind::Text, "Custom; empty: the header holds one"),
            field("encoding", "Encoding", Kind::Choice(Encoding::ALL), "Custom"),
            field("algorithm", "Algorithm", Kind::Choice(Algorithm::ALL), "Custom"),
            field("key", "Key", Kind::Choice(KeyForm::ALL), "Custom: the secret as a text, or what it encodes"),
            field("timestamp_format", "Time format", Kind::Choice(TimestampFormat::ALL), "Custom"),
            field(
                "new_secret",
                "Replace the secret by a new one that fits the style",
                Kind::Tick,
                "At once; without it the secret stays, if it fits. Needs the role admin",
            ),
        ],
    },
    Group {
        title: "Body",
        fields: &[
            field("body_format", "Form", Kind::Choice(&BODY_FORMATS), ""),
            field("content_type", "Content type", Kind::Text, "Empty: that of the form"),
            field("source", "Source of CloudEvents", Kind::Text, "Empty: /weir/ and the tenant"),
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

extend! {
    pub(super) trait SettingsText for DestinationSettings {
        /// The fields as the form shows them.
        fn fields(&self) -> Fields {
            let number = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
            let tick = |is_on: bool| if is_on { "on".to_owned() } else { String::new() };
            let threshold = |value: Option<Option<u32>>| number(value.flatten());
            let (retry, alerts, signature, body) = (&self.retry, &self.alerts, &self.signature, &self.body);
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
                ("skip_after_attempts", number(self.skip_after_attempts.map(NonZeroU32::get))),
                ("max_attempts", retry.max_attempts.to_string()),
                ("max_age_s", retry.max_age_s.to_string()),
                ("base_ms", number(retry.base_ms)),
                ("cap_ms", number(retry.cap_ms)),
                ("schedule_ms", schedule),
                ("refusals_count", tick(self.refusals_count)),
                ("headers", headers.join("\n")),
                ("style", signature.style.clone()),
                ("new_secret", String::new()),
                ("body_format", body.format.clone()),
                ("content_type", body.content_type.clone()),
                ("source", body.source.clone().unwrap_or_default()),
                ("own_alerts", tick(own)),
                ("backlog_depth", threshold(alerts.backlog_depth)),
                ("oldest_age_s", threshold(alerts.oldest_age_s)),
                ("dead_letters", threshold(alerts.dead_letters)),
                ("drain_beyond_ttl", tick(alerts.drain_beyond_ttl.unwrap_or(true))),
                ("breaker", tick(self.breaker.is_some())),
            ];
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            pairs.extend(signature.headers().map(|(_, field, value)| (field, text(value))));
            pairs.extend(signature.format().map(|(name, value)| (name, text(value))));
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
        fn patch(&self, typed: &Fields) -> Value {
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
                "signature": self.signature.patch(typed),
                "body": self.body.patch(typed),
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
            if typed.is_ticked("new_secret") {
                patch["secret"] = Value::Null;
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
            let mut headers = Map::new();
            for (name, value) in lines.iter().map(split) {
                // The second line of a name must not replace the first one. In another spelling, the API refuses it.
                let name = if headers.contains_key(&name) { name.to_ascii_uppercase() } else { name };
                headers.insert(name, value);
            }
            let typed: BTreeSet<String> = headers.keys().cloned().collect();
            let removed = self.headers.keys().filter(|name| !typed.contains(*name));
            headers.extend(removed.map(|name| (name.clone(), Value::Null)));
            headers.into()
        }
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

    fn settings() -> DestinationSettings {
        serde_json::from_value(json!({
            "name": "Acme", "url": "https://example.com/", "event_types": ["video.*", "a.b"], "timeout_ms": 15_000,
            "tenant": "default", "rate_limits": [], "min_interval_ms": null, "max_in_flight": 64, "paused": false,
            "retry": {"max_attempts": 16, "max_age_s": 259_200, "base_ms": 10_000, "cap_ms": 3_600_000},
            "refusals_count": true,
            "breaker": {"failure_ratio": 0.5, "min_attempts": 20, "consecutive": 10, "open_ms": 30_000,
                "open_max_ms": 1_800_000, "pause_after_s": null},
            "alerts": {"dead_letters": null}, "ordered": true, "skip_after_attempts": 3,
            "headers": {"x-a": "***", "x-b": "***"}, "signature": {"style": "standard"},
            "body": {"format": "envelope", "content_type": "application/json"},
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
                "body": {"format": "envelope", "content_type": "application/json", "source": null},
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
        let signature = json!({"style": "prefixed", "header": null, "timestamp_header": "x-t", "id_header": null});
        assert_eq!(patch["signature"], signature);
        assert_eq!((&patch["timeout_ms"], patch.get("skip_after_attempts")), (&json!("x"), None));
    }

    #[test]
    fn the_second_line_of_a_header_does_not_replace_the_first() {
        let patch = settings().patch(&Fields::parse(b"headers=X-A:+1%0D%0Ax-a:+2%0D%0Ax-b:+***"));
        assert_eq!(patch["headers"], json!({"x-a": "1", "X-A": "2", "x-b": "***"}), "the API refuses it");
    }

    #[test]
    fn another_style_gets_its_own_headers_unless_others_are_typed() {
        let slack = json!({"style": "slack", "header": "x-own", "timestamp_header": "x-slack-request-timestamp"});
        let signature: Signature = serde_json::from_value(slack).unwrap();
        let patch = |typed: &str| signature.patch(&Fields::parse(typed.as_bytes()));
        let kept = "signature_header=x-own&timestamp_header=x-slack-request-timestamp";
        let with = |style: &str, header: Value, time: Value| json!({"style": style, "header": header, "timestamp_header": time, "id_header": null});
        assert_eq!(patch(&format!("style=stripe&{kept}")), with("stripe", Value::Null, Value::Null));
        assert_eq!(
            patch(&format!("style=slack&{kept}")),
            with("slack", json!("x-own"), json!("x-slack-request-timestamp"))
        );
        assert_eq!(patch("style=zoom&signature_header=x-new"), with("zoom", json!("x-new"), Value::Null));
        let custom = patch("style=custom&signed=%7Bbody%7D&value=&separator=+&encoding=hex&key=text");
        assert_eq!(
            (&custom["signed"], &custom["value"], &custom["separator"]),
            (&json!("{body}"), &Value::Null, &json!(" "))
        );
    }

    #[test]
    fn the_form_offers_every_style_of_the_domain() {
        let mut names: Vec<_> = weir_core::signing::style_names().collect();
        let mut offered = STYLES.to_vec();
        names.sort_unstable();
        offered.sort_unstable();
        assert_eq!(offered, names);
    }

    #[test]
    fn every_field_of_the_form_is_filled() {
        let fields = settings().fields();
        for field in GROUPS.iter().flat_map(|group| group.fields) {
            assert!(fields.has(field.name), "{}", field.name);
        }
    }
}
