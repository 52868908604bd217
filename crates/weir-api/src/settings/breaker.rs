//! The circuit breaker of a destination.

use serde_json::Value;
use weir_core::breaker::{BreakerPolicy, MAX_COUNT, OPEN_MS, PAUSE_AFTER_S};

use crate::fields::{self, Object};

/// `null` disables the breaker. If absent, the default applies.
pub(super) fn breaker(body: &mut Object<'_>) -> Option<BreakerPolicy> {
    let default = BreakerPolicy::default();
    if body.take_null("breaker") {
        return None;
    }
    let Some(value) = body.take("breaker") else { return Some(default) };
    let pointer = body.pointer_to("breaker");
    let mut object = Object::open(value, pointer, body.errors())?;
    let failure_ratio = ratio(&mut object).unwrap_or(default.failure_ratio);
    let min_attempts = object.integer("min_attempts", 1..=MAX_COUNT).unwrap_or(default.min_attempts);
    let consecutive = object.integer("consecutive", 1..=MAX_COUNT).unwrap_or(default.consecutive);
    let open_ms = object.integer("open_ms", OPEN_MS);
    let open_max_ms = object.integer("open_max_ms", OPEN_MS);
    if let (Some(open), Some(max)) = (open_ms, open_max_ms)
        && open > max
    {
        object.refuse("open_max_ms", format!("must be at least `open_ms`, which is {open}"));
    }
    let pause_after_s = if object.take_null("pause_after_s") {
        None
    } else {
        object.integer("pause_after_s", PAUSE_AFTER_S).or(default.pause_after_s)
    };
    object.close(&[]);
    // If only one of the two open times is given, the default of the other one is adapted to it.
    Some(BreakerPolicy {
        failure_ratio,
        min_attempts,
        consecutive,
        open_ms: open_ms.unwrap_or(default.open_ms.min(open_max_ms.unwrap_or(default.open_max_ms))),
        open_max_ms: open_max_ms.unwrap_or(default.open_max_ms.max(open_ms.unwrap_or(default.open_ms))),
        pause_after_s,
    })
}

fn ratio(breaker: &mut Object<'_>) -> Option<f64> {
    let value = breaker.take("failure_ratio")?;
    match &value {
        Value::Number(number) => {
            if let Some(ratio) = number.as_f64().filter(|ratio| (0.0..=1.0).contains(ratio)) {
                return Some(ratio);
            }
            breaker.refuse("failure_ratio", "must be a number from 0 to 1");
        }
        other => breaker.refuse("failure_ratio", format!("must be a number, not {}", fields::type_name(other))),
    }
    None
}
