//! When operators are told of a destination.

use std::ops::RangeInclusive;

use serde_json::Value;
use weir_core::alert::{AGE_S, AlertOverrides, AlertPolicy, COUNTS};

use crate::{
    fields::{Errors, Object},
    problem::Problem,
};

/// Of one destination: what is named differs from the policy of all, and `null` is never.
pub(super) fn overrides(body: &mut Object<'_>) -> AlertOverrides {
    let Some(value) = body.take("alerts") else { return AlertOverrides::default() };
    let pointer = body.pointer_to("alerts");
    Object::open(value, pointer, body.errors()).map(read).unwrap_or_default()
}

/// Of all destinations: what is not named is as by default, and `null` is never.
pub(crate) fn policy(body: Value) -> Result<AlertPolicy, Problem> {
    let mut errors = Errors::default();
    let read = Object::open(body, "", &mut errors).map(read);
    match read {
        Some(read) if errors.is_empty() => Ok(read.apply_to(&AlertPolicy::default())),
        _ => Err(Problem::invalid(errors.into_vec())),
    }
}

fn read(mut object: Object<'_>) -> AlertOverrides {
    let read = AlertOverrides {
        backlog_depth: threshold(&mut object, "backlog_depth", COUNTS),
        oldest_age_s: threshold(&mut object, "oldest_age_s", AGE_S),
        drain_beyond_ttl: object.boolean("drain_beyond_ttl"),
        dead_letters: threshold(&mut object, "dead_letters", COUNTS),
    };
    object.close(&[]);
    read
}

fn threshold(object: &mut Object<'_>, name: &str, range: RangeInclusive<u32>) -> Option<Option<u32>> {
    if object.take_null(name) { Some(None) } else { object.integer(name, range).map(Some) }
}
