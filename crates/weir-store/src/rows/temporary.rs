//! What holds for a while in place of the settings of a destination or a group. It stands in the column of the limits: while there is
//! an override or a hold, the column is the object `{"settings", "override", "hold"}` and no list. So it is for a destination
//! with a limit group, or with homes that may still grant. A program of an earlier version refuses such a row, so it never
//! sends by the settings below, or beside the group.

use serde_json::{Value, json};
use weir_core::{
    RateLimits, Timestamp,
    temporary::{Hold, Override, Temporary},
};

use super::codes::{limits_of, limits_value};

/// The column of the limits of a destination or a group.
pub fn limits_column(below: &RateLimits, temporary: &Temporary, is_grouped: bool) -> String {
    let below = limits_value(below);
    if temporary.is_none() && !is_grouped {
        return below.to_string();
    }
    let overridden = temporary.overridden.as_ref().map(|of| {
        let limits = of.limits.as_ref().map(limits_value);
        json!({"limits": limits, "max_in_flight": of.max_in_flight, "until": of.until.as_nanos(), "reason": of.reason})
    });
    let hold = temporary.hold.as_ref().map(|of| json!({"until": of.until.as_nanos(), "reason": of.reason}));
    json!({"settings": below, "override": overridden, "hold": hold}).to_string()
}

/// The limits of the settings, and what holds in place of them; `None` for a text that no store has written.
pub(super) fn read_limits_column(text: &str) -> Option<(RateLimits, Temporary)> {
    let column: Value = serde_json::from_str(text).ok()?;
    if column.is_array() {
        return Some((limits_of(&column)?, Temporary::default()));
    }
    let hold = |of: &Value| Some(Hold { until: until(of)?, reason: of["reason"].as_str()?.to_owned() });
    let temporary =
        Temporary { overridden: optional(&column["override"], overridden)?, hold: optional(&column["hold"], hold)? };
    Some((limits_of(&column["settings"])?, temporary))
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
    use super::*;

    #[test]
    fn a_column_with_an_override_is_none_that_an_earlier_version_reads() {
        let text = r#"{"settings":[],"override":{"limits":null,"max_in_flight":1,"until":1,"reason":"r"},"hold":null}"#;
        assert!(serde_json::from_str::<Vec<Value>>(text).is_err());
        let (limits, temporary) = read_limits_column(text).unwrap();
        assert_eq!((limits, temporary.overridden.unwrap().max_in_flight), (RateLimits::UNLIMITED, Some(1)));
        for wrong in ["{}", "1", r#"{"settings":[],"override":{"until":"x"}}"#, r#"{"settings":[],"hold":{}}"#] {
            assert_eq!(read_limits_column(wrong), None, "{wrong}");
        }
    }
}
