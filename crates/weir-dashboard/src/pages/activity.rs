//! The activity log: who changed what, from what to what.

use std::collections::BTreeSet;

use askama::Template;
use axum::extract::Query;
use serde::Deserialize;
use serde_json::Value;
use weir_api_types::{Activity, ActivitySubject, List, RateLimit};

use crate::{
    client::{ApiPath, append},
    delivery_filter::instant,
    example::Example,
    extend::extend,
    frame::{Also, Frame, Me, Section},
    live_region::LiveRegion,
    names::destination_id,
    units::Units as _,
    views::LimitText as _,
    visit::{Answered, Visit},
};

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Filter {
    destination: String,
    actor: String,
    from: String,
    to: String,
    cursor: String,
    /// The version of the list that the browser has.
    seen: String,
}

impl Filter {
    fn api_path(&self) -> ApiPath {
        ApiPath::of(["activity"])
            .with("destination", self.destination.trim())
            .with("actor", self.actor.trim())
            .with("from", &instant(&self.from))
            .with("to", &instant(&self.to))
            .with("cursor", &self.cursor)
    }

    fn link(&self, path: &str, cursor: &str) -> String {
        let mut link = path.to_owned();
        let parameters =
            [("destination", &*self.destination), ("actor", &*self.actor), ("from", &*self.from), ("to", &*self.to)];
        for (name, value) in parameters.into_iter().chain([("cursor", cursor)]) {
            append(&mut link, name, value);
        }
        link
    }

    fn is_empty(&self) -> bool {
        [&self.destination, &self.actor, &self.from, &self.to, &self.cursor].iter().all(|value| value.is_empty())
    }
}

/// A field that a change gave another value.
pub(crate) struct Change {
    pub(crate) field: String,
    pub(crate) before: Option<String>,
    pub(crate) after: Option<String>,
}

extend! {
    pub(crate) trait ActivityText for Activity {
        /// What the actor is, if it is not a stored key, whose id is shown: names of keys are chosen by people.
        fn actor_kind(&self) -> &str {
            match self.actor_kind.as_str() {
                "setting" => "key of the settings",
                "anonymous" => "without a key",
                "system" => "Weir itself",
                other => other,
            }
        }

        /// `destination.edited` in words.
        fn what(&self) -> String {
            let (noun, verb) = self.action.split_once('.').unwrap_or(("", &self.action));
            format!("{} {}", noun, verb.replace('_', " ")).trim().to_owned()
        }

        /// The page of what was changed, and its name.
        fn subject(&self) -> Option<(Option<String>, String)> {
            let ActivitySubject { kind, id, name } = self.subject.as_ref()?;
            let page = match kind.as_str() {
                "destination" => Some(format!("/destinations/{id}")),
                "delivery" => Some(format!("/deliveries/{id}")),
                "replay" => Some(format!("/replays/{id}")),
                _ => None,
            };
            let label = name.clone().filter(|name| !name.trim().is_empty()).unwrap_or_else(|| id.clone());
            // A deleted destination has no page any more.
            Some((page.filter(|_| self.action != "destination.deleted"), label))
        }

        fn changes(&self) -> Vec<Change> {
            let fields = |value: &Option<Value>| value.as_ref().and_then(Value::as_object).cloned();
            let (before, after) = (fields(&self.before).unwrap_or_default(), fields(&self.after).unwrap_or_default());
            let fields: BTreeSet<&String> = before.keys().chain(after.keys()).collect();
            let change = |field: &String| Change {
                field: field.clone(),
                before: before.get(field).map(|value| shown(field, value)),
                after: after.get(field).map(|value| shown(field, value)),
            };
            fields.into_iter().map(change).collect()
        }
    }
}

/// The value of a field. A key that is bound to no tenants may see all of them.
fn shown(field: &str, value: &Value) -> String {
    if field == "tenants" && value.is_null() { "all tenants".to_owned() } else { plain(value) }
}

/// A value as people read it: limits as `10/s`, texts without quotes.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(", "),
        Value::Object(fields) => {
            // An old limit may have no margin.
            let defaults = [("burst".to_owned(), 1.into()), ("margin_ms".to_owned(), 0.into())];
            let fields = defaults.into_iter().chain(fields.clone()).collect();
            match serde_json::from_value::<RateLimit>(Value::Object(fields)) {
                Ok(limit) => limit.short(),
                Err(_) => value.to_string(),
            }
        }
        other => other.to_string(),
    }
}

/// The rows, and the links below them.
struct Log {
    base: String,
    filter: Filter,
    page: List<Activity>,
    /// For the empty state.
    example: Example,
    live: Option<LiveRegion>,
}

impl Log {
    /// Every filter has an index, so the first page may be read again at every snapshot.
    fn new(visit: &Visit, me: &Me, filter: Filter, (page, version): (List<Activity>, Option<String>)) -> Self {
        let base = visit.site.base.clone();
        let fragment = filter.link(&format!("{base}/fragments/activity"), "");
        let version = version.filter(|_| filter.cursor.is_empty());
        let live = version.map(|version| LiveRegion::prompt(fragment, &version));
        Self { base, filter, page, example: Example::new(visit, me), live }
    }

    fn path(&self) -> String {
        format!("{}/activity", self.base)
    }

    fn first(&self) -> Option<String> {
        (!self.filter.cursor.is_empty()).then(|| self.filter.link(&self.path(), ""))
    }

    fn next(&self) -> Option<String> {
        Some(self.filter.link(&self.path(), self.page.next_cursor.as_deref()?))
    }
}

#[derive(Template)]
#[template(path = "activity.html")]
struct ActivityPage {
    frame: Frame,
    /// What was typed as the destination, and why it names none.
    problem: Option<String>,
    log: Log,
}

#[derive(Template)]
#[template(path = "activity_log.html")]
struct ActivityLog {
    log: Log,
}

pub(crate) async fn show(visit: Visit, Query(filter): Query<Filter>) -> Answered {
    let given = filter.destination.trim().to_owned();
    let problem = match destination_id(&visit, &given).await? {
        // The link of the page has the id, whatever was typed.
        Ok(id) if id != given => {
            return visit.redirect(&Filter { destination: id, ..filter }.link("/activity", ""), None);
        }
        Ok(_) => None,
        Err(problem) => Some(problem),
    };
    let me = visit.me().await?;
    let read = if problem.is_some() {
        (List { data: Vec::new(), next_cursor: None }, None)
    } else {
        let (page, version) = visit.api.get_versioned(&filter.api_path()).await?;
        (page, Some(version))
    };
    let log = Log::new(&visit, &me, filter, read);
    let frame = visit.frame(me, Section::Activity, "Activity").live_if_first(&log.filter.cursor, Also::Activity);
    visit.page(&ActivityPage { frame, problem, log })
}

/// The rows of the first page, for live updates.
pub(crate) async fn fragment(visit: Visit, Query(filter): Query<Filter>) -> Answered {
    let read = visit.api.get_versioned(&filter.api_path()).await?;
    if read.1 == filter.seen {
        return visit.unchanged();
    }
    let me = visit.me().await?;
    visit.fragment(&ActivityLog { log: Log::new(&visit, &me, filter, (read.0, Some(read.1))) })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_change_shows_each_field_before_and_after() {
        let entry: Activity = serde_json::from_value(json!({
            "id": "act_1", "at": "2026-11-21T07:30:00.000Z", "actor": "billing", "actor_kind": "key", "actor_key_id": "key_1", "action": "destination.secret_rotated",
            "tenant": "acme", "subject": {"type": "destination", "id": "dst_1", "name": "Acme"},
            "before": {"rate_limits": [{"limit": 10, "period": "second", "burst": 1}], "paused": false},
            "after": {"rate_limits": [], "paused": true, "name": "Acme"}, "request_id": "r1",
        }))
        .unwrap();
        assert_eq!(entry.what(), "destination secret rotated");
        assert_eq!(entry.subject(), Some((Some("/destinations/dst_1".to_owned()), "Acme".to_owned())));
        let shown: Vec<_> = entry.changes().into_iter().map(|one| (one.field, one.before, one.after)).collect();
        let some = |text: &str| Some(text.to_owned());
        let expected = [
            ("name".to_owned(), None, some("Acme")),
            ("paused".to_owned(), some("false"), some("true")),
            ("rate_limits".to_owned(), some("10/s"), some("none")),
        ];
        assert_eq!(shown, expected);
    }
}
