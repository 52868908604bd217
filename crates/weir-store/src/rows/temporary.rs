//! What holds for a while in place of the settings of a destination or a group. It stands in the column of the limits: while there is
//! an override or a hold, the column is the object `{"settings", "override", "hold"}` and no list. So it is for a destination
//! with a limit group, or with homes that may still grant. With limit keys the member `settings` is `keyed`, with the limits
//! and the keys, and with both it is `keyed_member`. A program of an earlier version refuses a row whose member it does not know,
//! so it never sends by the settings below, or beside the group.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};
use weir_core::{
    LimitKey, RateLimits, Timestamp,
    limit::MinInterval,
    limit_key::{KeyLimits, KeyOverride},
    temporary::{Hold, Override, Temporary},
};

use super::codes::{limits_of, limits_value};

const KEYED: &str = "keyed";
/// With a limit group, or with homes that may still grant: a version before these were combined would ignore the group.
const KEYED_MEMBER: &str = "keyed_member";

/// The limit keys of a destination, and since when it has or had some.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Keyed<'k> {
    pub since: Timestamp,
    pub limits: Option<&'k KeyLimits>,
}

/// What the column of the limits has.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Limits {
    /// Those of the settings.
    pub(super) below: RateLimits,
    pub(super) temporary: Temporary,
    pub(super) keyed_at: Option<Timestamp>,
    pub(super) key_limits: Option<KeyLimits>,
}

/// The column of the limits of a destination or a group.
pub fn limits_column(below: &RateLimits, temporary: &Temporary, is_grouped: bool, keyed: Option<Keyed<'_>>) -> String {
    let below = limits_value(below);
    if temporary.is_none() && !is_grouped && keyed.is_none() {
        return below.to_string();
    }
    let overridden = temporary.overridden.as_ref().map(|of| {
        let limits = of.limits.as_ref().map(limits_value);
        json!({"limits": limits, "max_in_flight": of.max_in_flight, "until": of.until.as_nanos(), "reason": of.reason})
    });
    let hold = temporary.hold.as_ref().map(|of| json!({"until": of.until.as_nanos(), "reason": of.reason}));
    let Some(Keyed { since, limits }) = keyed else {
        return json!({"settings": below, "override": overridden, "hold": hold}).to_string();
    };
    let keyed = json!({"limits": below, "since": since.as_nanos(), "keys": limits.map(keys_value)});
    let member = if is_grouped { KEYED_MEMBER } else { KEYED };
    json!({member: keyed, "override": overridden, "hold": hold}).to_string()
}

fn keys_value(limits: &KeyLimits) -> Value {
    let value = |(key, of): (&LimitKey, &KeyOverride)| {
        let limits = of.rate_limits.as_ref().map(|limits| (limits_value(limits), interval(limits)));
        let (limits, interval) = limits.unzip();
        let special = json!({
            "limits": limits, "min_interval_ms": interval, "max_in_flight": of.max_in_flight, "weight": of.weight,
            "paused": of.paused,
        });
        (key.to_string(), special)
    };
    let overrides: Map<_, _> = limits.overrides.iter().map(value).collect();
    json!({
        "pointer": limits.pointer, "limits": limits_value(&limits.rate_limits),
        "min_interval_ms": interval(&limits.rate_limits), "max_in_flight": limits.max_in_flight,
        "weight": limits.weight, "overrides": overrides,
    })
}

fn interval(limits: &RateLimits) -> Option<u32> {
    limits.min_interval().map(|interval| interval.as_millis())
}

fn keys_of(value: &Value) -> Option<KeyLimits> {
    let whole = |value: &Value| u32::try_from(value.as_u64()?).ok();
    let weight = |value: &Value| u16::try_from(value.as_u64()?).ok();
    let limits = |of: &Value| {
        let interval = optional(&of["min_interval_ms"], whole)?.and_then(MinInterval::from_millis);
        Some(limits_of(&of["limits"])?.with_min_interval(interval))
    };
    let special = |of: &Value| {
        Some(KeyOverride {
            rate_limits: if of["limits"].is_null() { None } else { Some(limits(of)?) },
            max_in_flight: optional(&of["max_in_flight"], whole)?,
            weight: optional(&of["weight"], weight)?,
            paused: of["paused"].as_bool()?,
        })
    };
    let overrides = value["overrides"].as_object()?.iter();
    let overrides: Option<BTreeMap<_, _>> =
        overrides.map(|(key, of)| Some((LimitKey::new(key), special(of)?))).collect();
    Some(KeyLimits {
        pointer: value["pointer"].as_str()?.to_owned(),
        rate_limits: limits(value)?,
        max_in_flight: optional(&value["max_in_flight"], whole)?,
        weight: weight(&value["weight"])?,
        overrides: overrides?,
    })
}

/// `None` for a text that no store has written.
pub(super) fn read_limits_column(text: &str) -> Option<Limits> {
    let column: Value = serde_json::from_str(text).ok()?;
    if column.is_array() {
        let below = limits_of(&column)?;
        return Some(Limits { below, temporary: Temporary::default(), keyed_at: None, key_limits: None });
    }
    let hold = |of: &Value| Some(Hold { until: until(of)?, reason: of["reason"].as_str()?.to_owned() });
    let temporary =
        Temporary { overridden: optional(&column["override"], overridden)?, hold: optional(&column["hold"], hold)? };
    let keyed = if column[KEYED_MEMBER].is_null() { &column[KEYED] } else { &column[KEYED_MEMBER] };
    let (below, keyed_at) = match keyed {
        Value::Null => (&column["settings"], None),
        _ => (&keyed["limits"], Some(keyed["since"].as_i64().map(Timestamp::from_nanos)?)),
    };
    Some(Limits { below: limits_of(below)?, temporary, keyed_at, key_limits: optional(&keyed["keys"], keys_of)? })
}

fn overridden(of: &Value) -> Option<Override> {
    let max_in_flight = |value: &Value| u32::try_from(value.as_u64()?).ok();
    Some(Override {
        limits: optional(&of["limits"], limits_of)?,
        max_in_flight: optional(&of["max_in_flight"], max_in_flight)?,
        until: until(of)?,
        reason: of["reason"].as_str()?.to_owned(),
    })
}

fn until(of: &Value) -> Option<Timestamp> {
    of["until"].as_i64().map(Timestamp::from_nanos)
}

/// `Some(None)` for `null`; `None` for a value that cannot be read.
fn optional<T>(value: &Value, read: impl Fn(&Value) -> Option<T>) -> Option<Option<T>> {
    if value.is_null() { Some(None) } else { read(value).map(Some) }
}

#[cfg(test)]
mod tests {
    use weir_core::limit::{Period, RateLimit};

    use super::*;

    #[test]
    fn a_column_with_an_override_is_none_that_an_earlier_version_reads() {
        let text = r#"{"settings":[],"override":{"limits":null,"max_in_flight":1,"until":1,"reason":"r"},"hold":null}"#;
        assert!(serde_json::from_str::<Vec<Value>>(text).is_err());
        let Limits { below, temporary, .. } = read_limits_column(text).unwrap();
        assert_eq!((below, temporary.overridden.unwrap().max_in_flight), (RateLimits::UNLIMITED, Some(1)));
        for wrong in ["{}", "1", r#"{"settings":[],"override":{"until":"x"}}"#, r#"{"settings":[],"hold":{}}"#] {
            assert_eq!(read_limits_column(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn limit_keys_are_read_back_and_are_none_that_an_earlier_version_reads() {
        let per = |limit| RateLimits::new(RateLimit::new(limit, Period::SECOND).into_iter().collect()).unwrap();
        let special =
            KeyOverride { rate_limits: Some(per(9)), weight: Some(5), paused: true, ..KeyOverride::default() };
        let keys = KeyLimits {
            pointer: "/customer/id".to_owned(),
            rate_limits: per(2).with_min_interval(MinInterval::from_millis(50)),
            max_in_flight: Some(3),
            weight: 1,
            overrides: [(LimitKey::new("cus_1"), special), (LimitKey::default(), KeyOverride::default())].into(),
        };
        let since = Timestamp::from_secs(7);
        for (limits, is_grouped) in [(None, false), (Some(&keys), false), (None, true), (Some(&keys), true)] {
            let column = limits_column(&per(100), &Temporary::default(), is_grouped, Some(Keyed { since, limits }));
            let read = read_limits_column(&column).unwrap();
            assert_eq!((read.below, read.keyed_at, read.key_limits.as_ref()), (per(100), Some(since), limits));
            // An earlier version reads a list, or the member `settings`.
            let value: Value = serde_json::from_str(&column).unwrap();
            assert!(!value.is_array() && value["settings"].is_null());
            // A later one also the member `keyed`, but knows no keys in a limit group.
            assert_eq!(value["keyed"].is_null(), is_grouped);
        }
    }
}
