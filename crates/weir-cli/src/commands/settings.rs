//! What `show` prints: a line for each property, with its name before it.

use serde_json::{Map, Value};
use weir_api_types::{Backlog, TlsCertificate};

use crate::output::{
    Screen,
    table::{Column, Table},
    texts::{NONE, clean, span_s},
};

/// A name and its text. A line without a name continues the one above.
pub(super) type Line = (&'static str, String);

/// The lines, aligned. They are not shortened: a terminal may wrap a long URL, which can then still be copied.
pub(super) fn render(lines: &[Line], screen: Screen) -> String {
    let columns = [Column::text("").at_least(11), Column::text("")];
    let table = Table::new(columns).without_headings();
    let rows = lines.iter().map(|(name, text)| [(*name).into(), text.as_str().into()]);
    let text = table.with(rows).render(Screen { width: None, ..screen });
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// The settings of a destination that its other lines do not show. They are read from the JSON, because most of them are
/// printed only here.
pub(super) fn lines(destination: &Map<String, Value>) -> Vec<Line> {
    let number = |path: &str| value(destination, path).and_then(Value::as_f64);
    let seconds = |path: &str| number(path).map_or_else(|| NONE.to_owned(), |ms| span_s(ms / 1_000.0));
    let mut lines = Vec::new();
    if let Some(filter) = value(destination, "filter").filter(|filter| filter.is_object()) {
        lines.push(("filter", clean(&filter.to_string())));
    }
    if value(destination, "adaptive").is_some_and(Value::is_object) {
        let rate = |path: &str| number(path).map(weir_core::adaptive::in_words);
        let detail = value(destination, "adaptive_rate/detail").and_then(Value::as_str).map(clean);
        let pace = match (rate("adaptive_rate/per_s"), detail) {
            (Some(per_s), Some(detail)) if !detail.is_empty() => format!("{per_s} now: {detail}"),
            (Some(per_s), _) => format!("{per_s} now"),
            (None, _) => "found with the first sends".to_owned(),
        };
        let most = rate("adaptive/max_per_s").map(|most| format!(", at most {most}")).unwrap_or_default();
        let least = rate("adaptive/min_per_s").unwrap_or_default();
        lines.push(("pace", format!("adaptive, {pace}; at least {least}{most}")));
    }
    if let Some(group) = value(destination, "limit_group").and_then(Value::as_str) {
        let weight = number("weight").unwrap_or(1.0);
        lines.push(("group", format!("{}, weight {weight}: weir limit-groups show {0}", clean(group))));
    }
    if let (Some(in_flight), Some(timeout_ms)) = (number("max_in_flight"), number("timeout_ms")) {
        lines.push(("in flight", format!("at most {in_flight}, each for at most {} s", timeout_ms / 1_000.0)));
    }
    if let (Some(attempts), Some(age_s)) = (number("retry/max_attempts"), number("retry/max_age_s")) {
        let delays = match value(destination, "retry/schedule_ms").and_then(Value::as_array) {
            Some(schedule) => format!("after {} fixed delays", schedule.len()),
            None => format!("after {} to {}", seconds("retry/base_ms"), seconds("retry/cap_ms")),
        };
        let refusals = match value(destination, "refusals_count") {
            Some(Value::Bool(false)) => "; refusals do not count",
            _ => "",
        };
        lines.push(("retries", format!("{attempts} attempts within {}, {delays}{refusals}", span_s(age_s))));
    }
    let breaker = match value(destination, "breaker") {
        Some(Value::Object(_)) => format!(
            "opens after {} failures in a row, or {} % of at least {}",
            number("breaker/consecutive").unwrap_or_default(),
            number("breaker/failure_ratio").unwrap_or_default() * 100.0,
            number("breaker/min_attempts").unwrap_or_default()
        ),
        _ => "off".to_owned(),
    };
    lines.push(("breaker", breaker));
    if value(destination, "ordered") == Some(&Value::Bool(true)) {
        let skip = number("skip_after_attempts").map(|n| format!("; an event is passed after {n} failed attempts"));
        lines.push(("order", format!("by ordering key{}", skip.unwrap_or_default())));
    }
    if let Some(style) = value(destination, "signature/style").and_then(Value::as_str) {
        let header = value(destination, "signature_format/header").and_then(Value::as_str);
        lines.push(("signature", format!("{style}, in {}", clean(header.unwrap_or("webhook-signature")))));
    }
    if let Some(key) = value(destination, "public_key").and_then(Value::as_str) {
        let hex = value(destination, "public_key_hex").and_then(Value::as_str).unwrap_or_default();
        lines.push(("public key", format!("{key}, in hex {hex}")));
    }
    if let Some(format) = value(destination, "body/format").and_then(Value::as_str).filter(|name| *name != "envelope") {
        let content_type = value(destination, "body/content_type").and_then(Value::as_str).unwrap_or_default();
        lines.push(("body", format!("{format}, as {}", clean(content_type))));
    }
    if let Some(headers) = value(destination, "headers").and_then(Value::as_object).filter(|found| !found.is_empty()) {
        lines.push(("headers", headers.keys().map(|name| clean(name)).collect::<Vec<_>>().join(", ")));
    }
    if let Some(proxy) = value(destination, "proxy").and_then(Value::as_str) {
        lines.push(("proxy", clean(proxy)));
    }
    lines
}

/// One line for each certificate, and one for what is wrong with it.
pub(super) fn certificate_lines(certificates: &[TlsCertificate]) -> Vec<Line> {
    let mut lines = Vec::new();
    for certificate in certificates {
        let name = if lines.is_empty() { "certificates" } else { "" };
        lines.push((name, clean(&certificate.in_words())));
        lines.extend(certificate.warning.as_ref().map(|warning| ("", format!("warning: {warning}"))));
    }
    lines
}

pub(super) fn backlog_lines(backlog: &Backlog) -> Vec<Line> {
    let Backlog { pending, retrying, delivering, .. } = backlog;
    let mut lines = vec![("backlog", format!("{pending} pending, {retrying} retrying, {delivering} delivering"))];
    if let Some(oldest) = backlog.oldest_age_s {
        lines.push(("oldest", format!("{} old", span_s(oldest))));
    }
    lines.push(("rate", format!("{}/s sent, {}/s arriving", backlog.achieved_per_s, backlog.arrivals_per_s)));
    if pending + retrying > 0 {
        lines.push((
            "drained",
            match (backlog.drain_eta_s, backlog.drains) {
                (_, Some(false)) => "never at this rate of arrivals".to_owned(),
                (Some(eta), _) => format!("in {}", span_s(eta.ceil())),
                (None, _) => "unknown".to_owned(),
            },
        ));
    }
    lines
}

fn value<'a>(object: &'a Map<String, Value>, path: &str) -> Option<&'a Value> {
    let (first, rest) = path.split_once('/').unwrap_or((path, ""));
    let found = object.get(first)?;
    if rest.is_empty() { Some(found) } else { value(found.as_object()?, rest) }
}
