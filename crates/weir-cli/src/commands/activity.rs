//! `weir activity`: who changed what.

use serde_json::Value;
use weir_api_types::{Activity, Override};
use weir_core::Timestamp;

use super::{Call, fields, records::for_a_while};
use crate::{
    flags::watch::ActivityArgs,
    output::{
        table::{Cell, Column, Table},
        texts::{NONE, age, or_none},
    },
};

pub(super) async fn run(call: &Call, args: ActivityArgs) -> anyhow::Result<()> {
    let mut query = fields(&args.filter)?;
    if let Some(named) = &args.filter.destination {
        query.insert("destination".to_owned(), call.client.destination_id(named).await?.into());
    }
    let rows = call.list(&["v1", "activity"], &query, args.page).await?;
    call.print_rows(&rows, table(), |activity| row(activity, call.now))
}

pub(super) fn table() -> Table<7> {
    Table::new([
        Column::number("age"),
        Column::text("who").flexible(),
        Column::text("what"),
        Column::text("of").flexible(),
        Column::text("change").flexible(),
        Column::text("time").optional(),
        Column::text("tenant").flexible().optional(),
    ])
}

pub(super) fn row(activity: Activity, now: Timestamp) -> [Cell; 7] {
    let change = change(activity.before.as_ref(), activity.after.as_ref());
    let of = activity.subject.map(|subject| subject.name.filter(|name| !name.is_empty()).unwrap_or(subject.id));
    [
        age(activity.at, now).into(),
        activity.actor.into(),
        activity.action.into(),
        or_none(of).into(),
        change.into(),
        activity.at.into(),
        or_none(activity.tenant).into(),
    ]
}

/// The changed values: `max_in_flight 64 → 8`.
fn change(before: Option<&Value>, after: Option<&Value>) -> String {
    let of = |values: Option<&Value>, name: &str| values.and_then(|values| values.get(name)).map(value);
    let names = [before, after].into_iter().flatten().filter_map(Value::as_object).flat_map(|values| values.keys());
    let mut names: Vec<&String> = names.collect();
    names.sort_unstable();
    names.dedup();
    let changed = names.into_iter().map(|name| match (of(before, name), of(after, name)) {
        (Some(before), Some(after)) => format!("{name} {before} → {after}"),
        (None, Some(after)) => format!("{name} {after}"),
        (Some(before), None) => format!("{name} {before} → {NONE}"),
        (None, None) => name.clone(),
    });
    let changed: Vec<_> = changed.collect();
    if changed.is_empty() { NONE.to_owned() } else { changed.join("; ") }
}

/// A value in a few characters: limits as people write them, other values as JSON.
fn value(value: &Value) -> String {
    match value {
        Value::Null => NONE.to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(values) if values.is_empty() => NONE.to_owned(),
        Value::Array(values) => values.iter().map(self::value).collect::<Vec<_>>().join(", "),
        other => match serde_json::from_value::<weir_api_types::RateLimit>(other.clone()) {
            Ok(limit) => crate::flags::limit::LimitText(limit).to_string(),
            Err(_) => match serde_json::from_value::<Override>(other.clone()) {
                Ok(of) => for_a_while(&of),
                Err(_) => other.to_string(),
            },
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_is_written_as_before_and_after() {
        let limits = |limit| json!([{"limit": limit, "period": "second", "burst": 1, "margin_ms": 0}]);
        let (before, after) =
            (json!({"rate_limits": limits(10), "a": 1}), json!({"rate_limits": limits(20), "b": true}));
        assert_eq!(change(Some(&before), Some(&after)), "a 1 → –; b true; rate_limits 10/second → 20/second");
        assert_eq!(change(None, None), "–");
        let hold = json!({"until": "2026-11-27T18:00:00.000Z", "reason": "launch day"});
        let mut raised = hold.clone();
        raised["rate_limits"] = limits(50);
        let begun = change(Some(&json!({"override": null})), Some(&json!({"override": raised, "hold": hold})));
        let until = "until 2026-11-27T18:00:00.000Z: launch day";
        assert_eq!(begun, format!("hold {until}; override – → 50/second {until}"));
        assert_eq!(change(None, Some(&json!({"headers": [], "url": "https://a/"}))), "headers –; url https://a/");
    }
}
