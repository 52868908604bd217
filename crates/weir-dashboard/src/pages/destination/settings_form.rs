//! The form of a destination's settings: what its fields show, and the patch that they make. The fields are in
//! `settings_fields`.

use std::{collections::BTreeSet, num::NonZeroU32};

use serde_json::{Map, Value, json};
use weir_api_types::{Body, DestinationSettings, Signature, Tls};
use weir_core::signing::{CUSTOM, STANDARD};

use crate::{durations::ApiUnit, extend::extend, fields::Fields, json_text::indented};

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

extend! {
    pub(super) trait SettingsText for DestinationSettings {
        /// The fields as the form shows them.
        fn fields(&self) -> Fields {
            let number = |value: Option<u32>| value.map(|value| value.to_string()).unwrap_or_default();
            let tick = |is_on: bool| if is_on { "on".to_owned() } else { String::new() };
            let threshold = |value: Option<Option<u32>>| number(value.flatten());
            let (millis, seconds) = (|value: u32| ApiUnit::Millis.shown(value.into()), |value: u32| ApiUnit::Seconds.shown(value.into()));
            let (retry, alerts, signature, body) = (&self.retry, &self.alerts, &self.signature, &self.body);
            let schedule = retry.schedule_ms.iter().flatten().map(|delay| millis(*delay)).collect::<Vec<_>>().join(", ");
            let headers: Vec<String> = self.headers.iter().map(|(name, value)| format!("{name}: {value}")).collect();
            let pem = |of: fn(&Tls) -> Option<String>| self.tls.as_ref().and_then(of).unwrap_or_default();
            let own = alerts.backlog_depth.is_some()
                || alerts.oldest_age_s.is_some()
                || alerts.dead_letters.is_some()
                || alerts.drain_beyond_ttl.is_some();
            let mut pairs = vec![
                ("name", self.name.clone()),
                ("url", self.url.clone()),
                ("limit_group", self.limit_group.clone().unwrap_or_default()),
                ("weight", self.weight.to_string()),
                ("timeout_ms", millis(self.timeout_ms)),
                ("event_types", self.event_types.join("\n")),
                ("filter", self.filter.as_ref().map(|filter| indented(&filter.to_string()).into_owned()).unwrap_or_default()),
                ("ordered", tick(self.ordered)),
                ("skip_after_attempts", number(self.skip_after_attempts.map(NonZeroU32::get))),
                ("max_attempts", retry.max_attempts.to_string()),
                ("max_age_s", seconds(retry.max_age_s)),
                ("base_ms", retry.base_ms.map(millis).unwrap_or_default()),
                ("cap_ms", retry.cap_ms.map(millis).unwrap_or_default()),
                ("schedule_ms", schedule),
                ("refusals_count", tick(self.refusals_count)),
                ("headers", headers.join("\n")),
                ("style", signature.style.clone()),
                ("new_secret", String::new()),
                ("body_format", body.format.clone()),
                ("content_type", body.content_type.clone()),
                ("source", body.source.clone().unwrap_or_default()),
                ("proxy", self.proxy.clone().unwrap_or_default()),
                ("ca", pem(|tls| tls.ca.clone())),
                ("client_certificate", pem(|tls| tls.client_certificate.clone())),
                ("client_key", pem(|tls| tls.client_key.clone())),
                ("own_alerts", tick(own)),
                ("backlog_depth", threshold(alerts.backlog_depth)),
                ("oldest_age_s", alerts.oldest_age_s.flatten().map(seconds).unwrap_or_default()),
                ("dead_letters", threshold(alerts.dead_letters)),
                ("drain_beyond_ttl", tick(alerts.drain_beyond_ttl.unwrap_or(true))),
                ("breaker", tick(self.breaker.is_some())),
                ("adaptive", tick(self.adaptive.is_some())),
                ("late_answers", tick(self.adaptive.as_ref().is_none_or(|adaptive| adaptive.latency))),
            ];
            if let Some(adaptive) = &self.adaptive {
                pairs.push(("pace_min", adaptive.min_per_s.to_string()));
                pairs.extend(adaptive.max_per_s.map(|max| ("pace_max", max.to_string())));
            }
            let text = |text: Option<&str>| text.unwrap_or_default().to_owned();
            pairs.extend(signature.headers().map(|(_, field, value)| (field, text(value))));
            pairs.extend(signature.format().map(|(name, value)| (name, text(value))));
            if let Some(breaker) = &self.breaker {
                pairs.extend([
                    ("failure_ratio", breaker.failure_ratio.to_string()),
                    ("min_attempts", breaker.min_attempts.to_string()),
                    ("consecutive", breaker.consecutive.to_string()),
                    ("open_ms", millis(breaker.open_ms)),
                    ("open_max_ms", millis(breaker.open_max_ms)),
                    ("pause_after_s", breaker.pause_after_s.map(seconds).unwrap_or_default()),
                ]);
            }
            Fields::of(pairs)
        }

        /// The merge patch that turns these settings into what was typed.
        fn patch(&self, typed: &Fields) -> Value {
            let number = |name: &str| value_of(name, typed.text(name));
            let lines = |name: &str| -> Vec<String> {
                typed.raw(name).lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect()
            };
            let mut patch = json!({
                "name": typed.text("name"),
                "url": typed.text("url"),
                "limit_group": text(typed.text("limit_group")),
                "weight": number("weight"),
                "timeout_ms": number("timeout_ms"),
                "event_types": lines("event_types"),
                "filter": filter(typed.text("filter")),
                "ordered": typed.is_ticked("ordered"),
                "retry": {"max_attempts": number("max_attempts"), "max_age_s": number("max_age_s")},
                "refusals_count": typed.is_ticked("refusals_count"),
                "breaker": null,
                "adaptive": null,
                "headers": self.header_patch(&lines("headers")),
                "signature": self.signature.patch(typed),
                "body": self.body.patch(typed),
                "proxy": text(typed.text("proxy")),
                "tls": null,
                "alerts": null,
            });
            let certificates = ["ca", "client_certificate", "client_key"];
            if certificates.iter().any(|name| !typed.text(name).is_empty()) {
                let certificates = certificates.map(|name| (name.to_owned(), text(typed.text(name))));
                patch["tls"] = certificates.into_iter().collect::<Map<_, _>>().into();
            }
            if typed.is_ticked("ordered") {
                patch["skip_after_attempts"] = number("skip_after_attempts");
            }
            let schedule = typed.text("schedule_ms");
            if schedule.is_empty() {
                patch["retry"]["base_ms"] = number("base_ms");
                patch["retry"]["cap_ms"] = number("cap_ms");
            } else {
                patch["retry"]["schedule_ms"] = delays(schedule).map(|delay| value_of("schedule_ms", delay)).collect();
            }
            if typed.is_ticked("adaptive") {
                let (min, max) = (ratio(typed.text("pace_min")), ratio(typed.text("pace_max")));
                patch["adaptive"] = json!({"min_per_s": min, "max_per_s": max, "latency": typed.is_ticked("late_answers")});
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

/// The fixed delays, as they were typed.
pub(super) fn delays(text: &str) -> impl Iterator<Item = &str> {
    text.split([',', ';']).map(str::trim).filter(|delay| !delay.is_empty())
}

/// A number, or a duration if the name of the field ends with its unit; null for an empty field. Other texts go to the
/// API as they are, so that it refuses them together with everything else that is wrong.
fn value_of(name: &str, text: &str) -> Value {
    let value = match ApiUnit::of_name(name) {
        _ if text.is_empty() => return Value::Null,
        Some(unit) => unit.typed(text).ok(),
        None => text.parse::<u64>().ok(),
    };
    value.map_or_else(|| json!(text), |value| json!(value))
}

/// The typed filter. The API says what is wrong with one that is no JSON: it is a text then.
pub(super) fn filter(text: &str) -> Value {
    if text.is_empty() { Value::Null } else { serde_json::from_str(text).unwrap_or_else(|_| json!(text)) }
}

/// A share or a rate.
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
            "filter": {"/amount": {"gte": 100}}, "tenant": "default", "rate_limits": [], "min_interval_ms": null, "max_in_flight": 64, "paused": false,
            "retry": {"max_attempts": 16, "max_age_s": 259_200, "base_ms": 10_000, "cap_ms": 3_600_000},
            "refusals_count": true,
            "breaker": {"failure_ratio": 0.5, "min_attempts": 20, "consecutive": 10, "open_ms": 30_000,
                "open_max_ms": 1_800_000, "pause_after_s": null},
            "alerts": {"dead_letters": null}, "ordered": true, "skip_after_attempts": 3,
            "headers": {"x-a": "***", "x-b": "***"}, "signature": {"style": "standard"},
            "adaptive": {"min_per_s": 0.5, "max_per_s": 40.0, "latency": false},
            "body": {"format": "envelope", "content_type": "application/json"}, "proxy": null,
            "tls": {"ca": "-----BEGIN", "client_certificate": null, "client_key": null},
        }))
        .unwrap()
    }

    #[test]
    fn an_unchanged_form_makes_a_patch_of_the_same_settings() {
        let settings = settings();
        assert_eq!(
            settings.patch(&settings.fields()),
            json!({
                "limit_group": null, "weight": 1,
                "name": "Acme", "url": "https://example.com/", "event_types": ["video.*", "a.b"], "timeout_ms": 15_000,
                "filter": {"/amount": {"gte": 100}},
                "retry": {"max_attempts": 16, "max_age_s": 259_200, "base_ms": 10_000, "cap_ms": 3_600_000},
                "refusals_count": true,
                "breaker": {"failure_ratio": 0.5, "min_attempts": 20, "consecutive": 10, "open_ms": 30_000,
                    "open_max_ms": 1_800_000, "pause_after_s": null},
                "alerts": {"backlog_depth": null, "oldest_age_s": null, "dead_letters": null, "drain_beyond_ttl": true},
                "ordered": true, "skip_after_attempts": 3, "headers": {"x-a": "***", "x-b": "***"},
                "signature": {"style": "standard"}, "adaptive": {"min_per_s": 0.5, "max_per_s": 40.0, "latency": false},
                "body": {"format": "envelope", "content_type": "application/json", "source": null},
                "proxy": null, "tls": {"ca": "-----BEGIN", "client_certificate": null, "client_key": null},
            })
        );
    }

    #[test]
    fn unticked_parts_are_disabled_and_missing_headers_removed() {
        let typed = Fields::parse(
            b"name=B&url=u&timeout_ms=x&event_types=*&max_attempts=2&max_age_s=9+s&schedule_ms=1+s,+2+min&headers=X-A:+n\
              &style=prefixed&timestamp_header=x-t",
        );
        let patch = settings().patch(&typed);
        assert_eq!(
            (&patch["breaker"], &patch["alerts"], &patch["ordered"]),
            (&Value::Null, &Value::Null, &json!(false))
        );
        assert_eq!((&patch["refusals_count"], &patch["tls"]), (&json!(false), &Value::Null));
        assert_eq!(patch["headers"], json!({"x-a": "n", "x-b": null}));
        assert_eq!(patch["retry"], json!({"max_attempts": 2, "max_age_s": 9, "schedule_ms": [1_000, 120_000]}));
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
    fn every_field_of_the_form_is_filled() {
        let fields = settings().fields();
        for field in super::super::settings_fields::GROUPS.iter().flat_map(|group| group.fields) {
            assert!(fields.has(field.name), "{}", field.name);
        }
    }
}
