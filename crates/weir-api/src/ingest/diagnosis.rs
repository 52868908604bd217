//! Collects all errors of an event that did not parse.
//!
//! This is not on the hot path, so it may parse the body into a tree.

use serde_json::{Value, value::RawValue};
use weir_core::Timestamp;

use super::{
    BatchRequest,
    read::{EventRequest, TTL_RANGE, check_deliver_at, check_event_key, check_idempotency_key, check_type},
};
use crate::{
    extract,
    fields::{Errors, Object},
    problem::Problem,
    settings::check_tenant,
};

/// The refusal of an event whose body serde refused with `error`.
pub(super) fn event(bytes: &[u8], error: &serde_json::Error, now: Timestamp) -> Problem {
    if let Err(syntax) = json(bytes) {
        return extract::not_json(&syntax);
    }
    // `data` may be nested too deeply for a tree, which is no error of the client. Then only serde's message is left.
    let errors = serde_json::from_slice(bytes).map(|value| event_errors(value, now)).unwrap_or_default();
    if errors.is_empty() { typed::<EventRequest<'_>>(bytes, error) } else { Problem::invalid(errors.into_vec()) }
}

/// The refusal of a whole batch, which serde refused with `error`. The events of a valid batch are read one by one
/// elsewhere.
pub(super) fn batch(bytes: &[u8], error: &serde_json::Error) -> Problem {
    if let Err(syntax) = json(bytes) {
        return extract::not_json(&syntax);
    }
    let mut errors = Errors::default();
    let tree = serde_json::from_slice::<Value>(bytes).ok();
    if let Some(mut object) = tree.and_then(|tree| Object::open(tree, "", &mut errors)) {
        if !object.has_value("events") {
            object.refuse("events", "is required");
        }
        object.array("events");
        object.close(&[]);
    }
    if errors.is_empty() { typed::<BatchRequest<'_>>(bytes, error) } else { Problem::invalid(errors.into_vec()) }
}

/// Checks that the bytes are exactly one JSON value. Serde may report a missing field before it finds a syntax error.
fn json(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<&RawValue>(bytes).map(drop)
}

fn event_errors(value: Value, now: Timestamp) -> Errors {
    let mut errors = Errors::default();
    let Some(mut object) = Object::open(value, "", &mut errors) else {
        return errors;
    };
    if let Some(Err(detail)) = object.required_string("type").as_deref().map(check_type) {
        object.refuse("type", detail);
    }
    if !object.has("data") {
        object.refuse("data", "is required; it may be any JSON value, including null");
    }
    object.take("data");
    if let Some(Err(detail)) = object.string("tenant").as_deref().map(check_tenant) {
        object.refuse("tenant", detail);
    }
    if let Some(Err(detail)) = object.string("idempotency_key").as_deref().map(check_idempotency_key) {
        object.refuse("idempotency_key", detail);
    }
    let pointer = object.pointer_to("destinations");
    for (index, id) in object.array("destinations").unwrap_or_default().iter().enumerate() {
        if !id.is_string() {
            object.errors().add(format!("{pointer}/{index}"), "must be a string");
        }
    }
    if let Some(Err(detail)) = object.string("deliver_at").map(|text| check_deliver_at(&text, now)) {
        object.refuse("deliver_at", detail);
    }
    object.integer("ttl_s", TTL_RANGE);
    if let Some(Err(detail)) = object.string("coalesce_key").as_deref().map(check_event_key) {
        object.refuse("coalesce_key", detail);
    }
    if let Some(Err(detail)) = object.string("ordering_key").as_deref().map(check_event_key) {
        object.refuse("ordering_key", detail);
    }
    object.close(&[]);
    errors
}

/// The refusal with serde's message and the pointer to the field where it stopped (for example a duplicate field).
fn typed<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8], error: &serde_json::Error) -> Problem {
    if !error.is_data() {
        return extract::not_json(error);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => extract::not_json(error),
        Err(found) => {
            let steps = found.path().iter().map(|step| match step {
                serde_path_to_error::Segment::Seq { index } => format!("/{index}"),
                serde_path_to_error::Segment::Map { key } => format!("/{}", crate::fields::escape(key)),
                _ => String::new(),
            });
            Problem::invalid_field(steps.collect::<String>(), found.inner().to_string())
        }
    }
}
