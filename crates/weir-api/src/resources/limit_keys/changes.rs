//! The limits that one limit key had in the past. No table has them: they are those of the settings, and the activity log
//! says what each edit has changed. It is written in the transaction of the edit.

use serde_json::{Value, json};
use utoipa::openapi::Schema;
use weir_core::{Destination, LimitKey, RateLimits, Timestamp, limit_key::KeyLimits};
use weir_store::{ActivityFilter, PageRequest};

use crate::{
    errors::Errors,
    problem::{ApiResult, Problem, internal},
    readers::fields::Read as _,
    resources::destinations::{key_limits, rates::Limits},
    state::ApiState,
};

/// How many rows of the activity log are read, and at one time. Few of them are edits of the limits of keys.
const MOST: usize = 10_000;
const PAGE: u32 = 1_000;

/// The limits of a key, each with the time from which on they held, the oldest first. The first also held before `from`.
pub(super) async fn limits_since(
    api: &ApiState,
    destination: &Destination,
    key: &LimitKey,
    from: Timestamp,
) -> ApiResult<Vec<(Timestamp, RateLimits)>> {
    let filter = ActivityFilter { destination_id: Some(destination.id), from: Some(from), ..ActivityFilter::default() };
    let mut page = PageRequest { before: None, limit: PAGE };
    let mut past = Past::of(destination.settings.key_limits.as_deref(), key);
    let mut limits = past.limits()?;
    let (mut changes, mut read) = (Vec::new(), 0);
    loop {
        let activities = api.store.list_activity(&filter, page).await?;
        read += activities.rows.len();
        for activity in activities.rows.iter().filter(|activity| activity.before.is_some()) {
            past.undo(key.as_str(), activity.before.as_ref(), activity.after.as_ref());
            let before = past.limits()?;
            if before != limits {
                changes.push((activity.at, std::mem::replace(&mut limits, before)));
            }
        }
        match activities.next {
            Some(_) if read >= MOST => {
                let detail =
                    format!("must be later: the activity log has more than {MOST} rows of the destination since");
                return Err(Problem::invalid_field("/from", detail));
            }
            Some(next) => page.before = Some(next),
            None => break,
        }
    }
    changes.push((Timestamp::MIN, limits));
    changes.reverse();
    Ok(changes)
}

/// What the settings said of one key at a time.
struct Past {
    is_keyed: bool,
    /// As the API shows them.
    of_each: Value,
    /// `null`: as those of each.
    of_this: Value,
}

impl Past {
    fn of(limits: Option<&KeyLimits>, key: &LimitKey) -> Self {
        let shown = limits.map_or(Value::Null, |limits| json!(key_limits::view(limits)));
        let mut past = Self { is_keyed: false, of_each: Value::Null, of_this: Value::Null };
        past.read(key.as_str(), &shown);
        past
    }

    /// Takes the whole of `key_limits`.
    fn read(&mut self, key: &str, shown: &Value) {
        self.is_keyed = !shown.is_null();
        self.of_each = shown["rate_limits"].clone();
        self.of_this = shown["overrides"][key]["rate_limits"].clone();
    }

    /// Goes back to the time before an edit. Where both are objects, they have only the members that differ.
    fn undo(&mut self, key: &str, before: Option<&Value>, after: Option<&Value>) {
        let of = |values: Option<&'_ Value>| values.and_then(|values| values.get("key_limits")).cloned();
        match (of(before), of(after)) {
            (Some(Value::Object(before)), Some(Value::Object(after))) => {
                if let Some(of_each) = before.get("rate_limits") {
                    self.of_each = of_each.clone();
                }
                let special = |of: &serde_json::Map<String, Value>| of.get("overrides")?.get(key).cloned();
                match (special(&before), special(&after)) {
                    (Some(before), _) => {
                        if let Some(of_this) = before.get("rate_limits") {
                            self.of_this = of_this.clone();
                        }
                    }
                    (None, Some(_)) => self.of_this = Value::Null,
                    (None, None) => {}
                }
            }
            (None, None) => {}
            (before, _) => self.read(key, &before.unwrap_or(Value::Null)),
        }
    }

    fn limits(&self) -> ApiResult<RateLimits> {
        let shown = if self.of_this.is_null() { &self.of_each } else { &self.of_this };
        if !self.is_keyed || shown.is_null() {
            return Ok(RateLimits::UNLIMITED);
        }
        let mut errors = Errors::default();
        let read = Limits::read(shown.clone(), &Schema::default(), "", &mut errors).filter(|_| errors.is_empty());
        read.map(RateLimits::from).ok_or_else(|| internal("the activity log has limits that cannot be read", &shown))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(limit: u32) -> Value {
        json!([{"limit": limit, "period": "second", "burst": 1, "margin_ms": 0}])
    }

    /// The limit of the key `a` after each of these edits is undone, the last first.
    fn undone(mut past: Past, edits: &[(Value, Value)]) -> Vec<Option<u32>> {
        let limit = |past: &Past| past.limits().unwrap().as_slice().first().map(|limit| limit.limit.get());
        let mut seen = vec![limit(&past)];
        for (before, after) in edits {
            past.undo("a", Some(&json!({"key_limits": before})), Some(&json!({"key_limits": after})));
            seen.push(limit(&past));
        }
        seen
    }

    #[test]
    fn edits_are_undone_one_after_the_other() {
        let mut now = Past { is_keyed: false, of_each: Value::Null, of_this: Value::Null };
        now.read("a", &json!({"rate_limits": limits(5), "overrides": {"a": {"rate_limits": limits(9)}}}));
        let edits = [
            // The override of `a` was other, then came, while that of `b` came and went.
            (
                json!({"overrides": {"a": {"rate_limits": limits(8)}}}),
                json!({"overrides": {"a": {"rate_limits": limits(9)}}}),
            ),
            (json!({"overrides": {}}), json!({"overrides": {"a": {"rate_limits": limits(8)}}})),
            (json!({"overrides": {}}), json!({"overrides": {"b": {"rate_limits": limits(1)}}})),
            // A pause alone has the limits of each.
            (json!({"overrides": {"a": {"rate_limits": null, "paused": true}}}), json!({"overrides": {}})),
            (json!({"rate_limits": limits(4)}), json!({"rate_limits": limits(5)})),
            (json!({"key": "/b"}), json!({"key": "/a"})),
            (json!(null), json!({"key": "/b", "rate_limits": limits(4), "overrides": {}})),
            (json!({"key": "/c", "rate_limits": limits(3), "overrides": {"a": {"rate_limits": []}}}), json!(null)),
        ];
        let expected = [Some(9), Some(8), Some(5), Some(5), Some(5), Some(4), Some(4), None, None];
        assert_eq!(undone(now, &edits), expected);
    }

    #[test]
    fn an_edit_of_something_else_changes_nothing() {
        let mut past = Past { is_keyed: true, of_each: limits(2), of_this: Value::Null };
        past.undo("a", Some(&json!({"paused": true})), Some(&json!({"paused": false})));
        past.undo("a", Some(&json!({"key_limits": {"weight": 1}})), Some(&json!({"key_limits": {"weight": 2}})));
        assert_eq!(past.limits().unwrap().as_slice().len(), 1);
    }
}
