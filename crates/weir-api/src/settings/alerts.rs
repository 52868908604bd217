//! The alert thresholds, of one destination or of all.

use std::ops::RangeInclusive;

use serde_json::Value;
use weir_core::alert::{AGE_S, AlertOverrides, AlertPolicy, COUNTS};

use crate::{
    fields::{Errors, Object},
    problem::Problem,
};

/// The thresholds of one destination, which override the policy of all. `null` disables a threshold.
pub(super) fn overrides(body: &mut Object<'_>) -> AlertOverrides {
    let Some(value) = body.take("alerts") else { return AlertOverrides::default() };
    let pointer = body.pointer_to("alerts");
    Object::open(value, pointer, body.errors()).map(read).unwrap_or_default()
}

/// The thresholds of all destinations. An omitted threshold gets its default; `null` disables a threshold.
pub(crate) fn policy(body: Value) -> Result<AlertPolicy, Problem> {
    let mut errors = Errors::default();
    let overrides = Object::open(body, "", &mut errors).map(read);
    match overrides {
        Some(overrides) if errors.is_empty() => Ok(overrides.apply_to(&AlertPolicy::default())),
        _ => Err(Problem::invalid(errors.into_vec())),
    }
}

fn read(mut object: Object<'_>) -> AlertOverrides {
    let overrides = AlertOverrides {
        backlog_depth: threshold(&mut object, "backlog_depth", COUNTS),
        oldest_age_s: threshold(&mut object, "oldest_age_s", AGE_S),
        drain_beyond_ttl: object.boolean("drain_beyond_ttl"),
        dead_letters: threshold(&mut object, "dead_letters", COUNTS),
    };
    object.close(&[]);
    overrides
}

fn threshold(object: &mut Object<'_>, name: &str, range: RangeInclusive<u32>) -> Option<Option<u32>> {
    if object.take_null(name) { Some(None) } else { object.integer(name, range).map(Some) }
}
