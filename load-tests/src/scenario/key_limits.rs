//! The limits of a destination and those of its keys, as its settings have them.

use std::collections::BTreeMap;

use anyhow::Context;
use serde_json::Value;
use weir_core::{
    Period, RateLimit, RateLimits,
    limit::{Shape, Unit},
};

/// The limits in the settings; `None` when the settings have no `rate_limits`.
pub(crate) fn limits_in(settings: &Value) -> anyhow::Result<Option<RateLimits>> {
    let Some(limits) = settings.get("rate_limits") else { return Ok(None) };
    let limits = limits.as_array().context("rate_limits must be an array")?;
    let parse = |limit: &Value| {
        let number = |name: &str| u32::try_from(limit.get(name)?.as_u64()?).ok();
        let period = match number("window_s") {
            Some(seconds) => Period::from_seconds(seconds)?,
            None => Period::parse(limit.get("period")?.as_str()?)?,
        };
        let text = |name: &str| limit.get(name).and_then(Value::as_str);
        let parsed = RateLimit::with_burst(number("limit")?, period, number("burst").unwrap_or(1))?;
        let shaped = parsed.with_shape(text("shape").map_or(Some(Shape::Even), Shape::parse)?)?;
        match text("unit").map_or(Some(Unit::Request), Unit::parse)? {
            Unit::Request => Some(shaped),
            Unit::Cost => shaped.in_costs(),
        }
    };
    let limits: Option<Vec<RateLimit>> = limits.iter().map(parse).collect();
    let limits = limits.context("rate_limits: each is a limit of 1 to 1000000 and a period")?;
    Ok(Some(RateLimits::new(limits).context("rate_limits")?))
}

/// Rate limits of each key.
#[derive(Debug, Clone, Default)]
pub(crate) struct KeyLimits {
    each: RateLimits,
    overrides: BTreeMap<String, RateLimits>,
}

impl KeyLimits {
    pub(crate) fn of(&self, key: &str) -> &RateLimits {
        self.overrides.get(key).unwrap_or(&self.each)
    }
}

/// The limits of keys in the settings; `None` when the settings have no `key_limits`.
pub(crate) fn key_limits_in(settings: &Value) -> anyhow::Result<Option<KeyLimits>> {
    let Some(keys) = settings.get("key_limits") else { return Ok(None) };
    let each = limits_in(keys).context("key_limits")?.unwrap_or_default();
    let mut overrides = BTreeMap::new();
    for (key, special) in keys.get("overrides").and_then(Value::as_object).into_iter().flatten() {
        if let Some(limits) = limits_in(special).with_context(|| format!("key_limits.overrides.{key}"))? {
            overrides.insert(key.clone(), limits);
        }
    }
    Ok(Some(KeyLimits { each, overrides }))
}

/// What settings become by a PATCH: objects are merged member by member, anything else is replaced (RFC 7396).
pub(crate) fn merge(into: &mut Value, patch: &Value) {
    match (into, patch) {
        (Value::Object(into), Value::Object(patch)) => {
            for (name, value) in patch {
                if value.is_null() {
                    into.remove(name);
                } else {
                    merge(into.entry(name.clone()).or_insert(Value::Null), value);
                }
            }
        }
        (into, patch) => *into = patch.clone(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_edit_keeps_the_overrides_that_it_does_not_name() {
        let per_s = |limit: u32| json!([{"limit": limit, "period": "second"}]);
        let mut settings = json!({"key_limits": {"key": "/key", "rate_limits": per_s(1), "overrides": {
            "a": {"rate_limits": per_s(5)}, "b": {"weight": 2},
        }}});
        merge(
            &mut settings,
            &json!({"key_limits": {"rate_limits": per_s(2), "overrides": {"c": {"rate_limits": per_s(9)}}}}),
        );
        let limits = key_limits_in(&settings).unwrap().unwrap();
        let of = |key| limits.of(key).as_slice()[0].limit.get();
        assert_eq!([of("a"), of("b"), of("c"), of("d")], [5, 2, 9, 2]);
        merge(&mut settings, &json!({"key_limits": {"overrides": {"a": null}}}));
        assert_eq!(key_limits_in(&settings).unwrap().unwrap().of("a").as_slice()[0].limit.get(), 2);
        assert!(key_limits_in(&json!({})).unwrap().is_none());
    }
}
