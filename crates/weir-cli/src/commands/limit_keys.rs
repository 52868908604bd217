//! `weir limit-keys`: the keys of a destination, and the settings about them.

use reqwest::Method;
use serde_json::{Map, Value, json};
use weir_api_types::{Backlog, Destination, KeyLimits, LimitKeyList, LimitKeyRow};

use super::{
    Call,
    client::{Fields, Request},
    fields,
    records::{InWords as _, limits_of},
    settings::{self, Line},
};
use crate::{
    exit::Misuse,
    flags::limit_keys::{KeyFlags, KeyOverrideText, LimitKeyCommand as Command},
    output::{
        self,
        table::{Cell, Column, Table},
        texts::{NONE, clean, span_s},
    },
};

pub(super) async fn run(call: &Call, command: Command) -> anyhow::Result<()> {
    match command {
        Command::List { destination, sort, q, limit } => {
            let id = call.client.destination_id(&destination).await?;
            let query = fields(&json!({"sort": sort, "q": q, "limit": limit}))?;
            let answer = call.client.get(&["v1", "destinations", &id, "keys"], &query).await?;
            if call.json {
                return call.print(&answer, |_: LimitKeyList| String::new());
            }
            let LimitKeyList { data, is_partial, .. } = answer.read()?;
            let text = table().with(data.into_iter().map(row)).render(call.screen);
            output::show(&if is_partial { format!("{text}\n{PARTIAL}") } else { text }, call.screen)
        }
        Command::Show { destination, limit_key } => {
            let id = call.client.destination_id(&destination).await?;
            let query = fields(&json!({ "key": limit_key }))?;
            let answer = call.client.get(&["v1", "destinations", &id, "backlog"], &query).await?;
            call.print(&answer, |backlog: Backlog| settings::render(&shown(&limit_key, &backlog), call.screen))
        }
        Command::Pause(several) => set_paused(call, &several.destination, &several.keys, true).await,
        Command::Resume(several) => set_paused(call, &several.destination, &several.keys, false).await,
    }
}

/// The lines of `show`.
fn shown(key: &str, backlog: &Backlog) -> Vec<Line> {
    let per_s = |rate: Option<f64>| rate.map_or_else(|| "no limit".to_owned(), |rate| format!("{rate}/s"));
    let mut lines = vec![("key", name_of(key))];
    lines.extend(settings::backlog_lines(backlog));
    lines.push(("may send", per_s(backlog.effective_per_s)));
    lines.push(("bound by", bound(backlog.binding.as_deref())));
    if backlog.is_partial == Some(true) {
        lines.push(("", PARTIAL.to_owned()));
    }
    lines
}

/// More deliveries wait than are looked at.
const PARTIAL: &str = "More than 20,000 deliveries wait: numbers may be too low, and keys may be missing.";

async fn set_paused(call: &Call, named: &str, keys: &[String], paused: bool) -> anyhow::Result<()> {
    let id = call.client.destination_id(named).await?;
    for key in keys {
        let verb = if paused { "pause" } else { "resume" };
        // No path names these keys: a URL drops its empty and dotted parts.
        let answer = if ["", ".", ".."].contains(&key.as_str()) {
            let body = json!({"key_limits": {"overrides": {(key): {"paused": paused}}}}).to_string();
            let path = ["v1", "destinations", &id];
            call.client.send(Request { body: Some(&body), ..Request::new(Method::PATCH, &path) }).await?
        } else {
            call.client.post(&["v1", "destinations", &id, "keys", key, verb], None).await?
        };
        call.print(&answer, |destination: Destination| {
            let done = if paused { "Paused" } else { "Resumed" };
            format!("{done} the key {} of {}.", name_of(key), destination.title())
        })?;
    }
    Ok(())
}

fn table() -> Table<8> {
    Table::new([
        Column::text("key").flexible(),
        Column::number("waiting"),
        Column::number("oldest"),
        Column::number("sends/s"),
        Column::number("may/s"),
        Column::text("bound by"),
        Column::number("drained"),
        Column::text("limits").flexible(),
    ])
}

fn row(row: LimitKeyRow) -> [Cell; 8] {
    let number = |value: Option<f64>| value.map_or_else(|| NONE.to_owned(), |value| value.to_string());
    let span = |value: Option<f64>| value.map_or_else(|| NONE.to_owned(), |value| span_s(value.ceil()));
    let limits = limits_of(&row.rate_limits, None);
    let mine = if row.is_overridden { format!("{limits}, weight {} (override)", row.weight) } else { limits };
    [
        name_of(&row.key).into(),
        row.waiting.to_string().into(),
        span(row.oldest_age_s).into(),
        row.achieved_per_s.to_string().into(),
        number(row.share_per_s).into(),
        bound(row.binding.as_deref().or_else(|| row.paused.then_some("paused"))).into(),
        span(row.drain_eta_s).into(),
        mine.into(),
    ]
}

/// What bounds a key.
pub(super) fn bound(binding: Option<&str>) -> String {
    binding.map_or_else(|| NONE.to_owned(), |binding| binding.replace('_', " "))
}

/// A key as people read it.
pub(super) fn name_of(key: &str) -> String {
    if key.is_empty() { "\"\" (no key)".to_owned() } else { clean(key) }
}

/// The flags of what a refusal points at.
const FLAGS: [(&str, &str); 4] = [
    ("/key_limits/key", "--limit-key"),
    ("/key_limits/rate_limits", "--key-limit"),
    ("/key_limits/overrides", "--key-override"),
    ("/key_limits/max_in_flight", "--key-max-in-flight"),
];

/// A refusal that names the flags of limit keys instead of the fields of the request.
pub(super) fn naming_flags(error: anyhow::Error) -> anyhow::Error {
    let flag = |word: &str| {
        let of = |(field, flag): &(&str, &str)| {
            let rest = word.strip_prefix(field)?;
            (rest.trim().is_empty() || rest.starts_with('/'))
                .then(|| format!("{flag}{}", &word[word.trim_end().len()..]))
        };
        FLAGS.iter().find_map(of).unwrap_or_else(|| word.to_owned())
    };
    match error.downcast::<Misuse>() {
        Ok(Misuse(text)) => Misuse(text.split_inclusive(char::is_whitespace).map(flag).collect()).into(),
        Err(error) => error,
    }
}

/// The field `key_limits`, if a flag is about it. Several limits of one key are its set of limits.
pub(super) fn of_flags(flags: &KeyFlags) -> anyhow::Result<Option<(String, Value)>> {
    let KeyFlags { limit_key, key_limits, key_overrides, key_max_in_flight } = flags;
    if limit_key.as_deref() == Some("none") {
        if !key_limits.is_empty() || !key_overrides.is_empty() || key_max_in_flight.is_some() {
            return Err(Misuse(
                "--limit-key none is without limits of keys: leave out --key-limit, --key-override and --key-max-in-flight, or \
                 give --limit-key a pointer"
                    .to_owned(),
            )
            .into());
        }
        return Ok(Some(("key_limits".to_owned(), Value::Null)));
    }
    let mut body: Fields = fields(&json!({"key": limit_key, "max_in_flight": key_max_in_flight}))?;
    if !key_limits.is_empty() {
        body.insert("rate_limits".to_owned(), serde_json::to_value(key_limits)?);
    }
    let mut overrides: Map<String, Value> = Map::new();
    for (key, special) in key_overrides {
        let before = overrides.remove(key).filter(Value::is_object).map(|mut special| special["rate_limits"].take());
        let mut limits = before.and_then(|limits| limits.as_array().cloned()).unwrap_or_default();
        let value = match special {
            KeyOverrideText::None => Value::Null,
            KeyOverrideText::Unlimited => json!({"rate_limits": []}),
            KeyOverrideText::Limit(limit) => {
                limits.push(serde_json::to_value(limit)?);
                json!({"rate_limits": limits})
            }
        };
        overrides.insert(key.clone(), value);
    }
    if !overrides.is_empty() {
        body.insert("overrides".to_owned(), Value::Object(overrides));
    }
    Ok((!body.is_empty()).then(|| ("key_limits".to_owned(), Value::Object(body))))
}

/// The lines of `show`. The overrides are in the list of keys: there may be a thousand.
pub(super) fn lines(limits: &KeyLimits, destination: &str) -> Vec<Line> {
    let most = limits.max_in_flight.map(|most| format!(", {most} in flight")).unwrap_or_default();
    let each = limits_of(&limits.rate_limits, None);
    let mut lines = vec![("limit key", format!("{}: {each}{most} for each value", clean(&limits.key)))];
    let paused = limits.overrides.values().filter(|special| special.paused).count();
    if !limits.overrides.is_empty() {
        let paused = if paused > 0 { format!(", {paused} paused") } else { String::new() };
        let count = output::texts::count(limits.overrides.len() as u64, "override", "overrides");
        lines.push(("", format!("{count}{paused}:")));
        lines.push(("", format!("weir limit-keys list {destination}")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_flag() {
        let said = |text: &str| naming_flags(Misuse(text.to_owned()).into()).to_string();
        let twice = "the request has 2 errors:\n  /key_limits/rate_limits/1/period appears twice\n  /key_limits/key must be given";
        let expected = "the request has 2 errors:\n  --key-limit appears twice\n  --limit-key must be given";
        assert_eq!(said(twice), expected);
        assert_eq!(said("/key_limits/keys is unknown"), "/key_limits/keys is unknown");
    }

    #[test]
    fn flags_make_a_patch_of_what_they_name() {
        let flags =
            KeyFlags { limit_key: None, key_limits: Vec::new(), key_overrides: Vec::new(), key_max_in_flight: None };
        assert_eq!(of_flags(&flags).unwrap(), None);
        let none = KeyFlags { limit_key: Some("none".to_owned()), ..flags.clone() };
        assert_eq!(of_flags(&none).unwrap(), Some(("key_limits".to_owned(), Value::Null)));
        let both = KeyFlags { key_max_in_flight: Some(1), ..none };
        assert!(
            of_flags(&both)
                .unwrap_err()
                .to_string()
                .starts_with("--limit-key none is without limits of keys: leave out")
        );
        let limit = |text: &str| KeyOverrideText::Limit(text.parse().unwrap());
        let named = |key: &str, special| (key.to_owned(), special);
        let overrides = vec![
            named("a", limit("5/second")),
            named("a", limit("100/minute")),
            named("b", KeyOverrideText::Unlimited),
            named("c", KeyOverrideText::None),
        ];
        let (_, body) =
            of_flags(&KeyFlags { key_overrides: overrides, key_max_in_flight: Some(2), ..flags }).unwrap().unwrap();
        let limit = |limit: u32, period: &str| json!({"limit": limit, "period": period, "burst": 1, "margin_ms": 0});
        let overrides = json!({
            "a": {"rate_limits": [limit(5, "second"), limit(100, "minute")]}, "b": {"rate_limits": []}, "c": null,
        });
        assert_eq!(body, json!({"max_in_flight": 2, "overrides": overrides}));
    }
}
