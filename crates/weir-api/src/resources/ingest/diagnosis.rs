//! Collects all errors of an event that did not parse.
//!
//! This is not on the hot path, so it may parse the body into a tree, unless the body is large: a tree takes up to
//! sixteen times the memory of its text.

use serde_json::{Value, value::RawValue};
use weir_core::Timestamp;

use super::request::{BorrowedBatch, BorrowedEvent, EventRequest, check_delay};
use crate::{
    errors::escape,
    problem::{ApiResult, Problem},
    readers::{
        body::not_json,
        fields::{object, read, read_with},
        texts::TimeText,
    },
};

/// The largest body that is parsed into a tree: that of the largest event by default.
const MAX_TREE_BYTES: usize = 1024 * 1024;

/// The refusal of an event whose body serde refused with `error`.
pub(super) fn event(bytes: &[u8], error: &serde_json::Error, now: Timestamp) -> Problem {
    if let Err(syntax) = json(bytes) {
        return not_json(&syntax);
    }
    let refusal = tree(bytes).and_then(|value| check_event(value, now).err());
    refusal.unwrap_or_else(|| typed::<BorrowedEvent<'_>>(bytes, error))
}

/// The refusal of a whole batch, which serde refused with `error`. The events of a valid batch are read one by one
/// elsewhere.
pub(super) fn batch(bytes: &[u8], error: &serde_json::Error) -> Problem {
    if let Err(syntax) = json(bytes) {
        return not_json(&syntax);
    }
    let refusal = tree(bytes).and_then(|value| read::<BatchFrame>(value).err());
    refusal.unwrap_or_else(|| typed::<BorrowedBatch<'_>>(bytes, error))
}

/// The body as a tree. `None`: it is too large, or nested too deeply. Then only serde's message is left.
fn tree(bytes: &[u8]) -> Option<Value> {
    (bytes.len() <= MAX_TREE_BYTES).then(|| serde_json::from_slice(bytes).ok())?
}

object! {
    /// A batch whose events are not read.
    #[expect(dead_code, reason = "only its errors matter")]
    struct BatchFrame {
        events: Vec<Value>,
    }
}

/// Reads a refused event once more, for all its errors.
fn check_event(value: Value, now: Timestamp) -> ApiResult<()> {
    read_with(value, |request: EventRequest, errors| {
        if let Some(TimeText(deliver_at)) = request.deliver_at
            && let Err(detail) = check_delay(deliver_at, now)
        {
            errors.add("/deliver_at", detail);
        }
        Some(())
    })
}

/// Checks that the bytes are exactly one JSON value. Serde may report a missing field before it finds a syntax error.
fn json(bytes: &[u8]) -> Result<(), serde_json::Error> {
    serde_json::from_slice::<&RawValue>(bytes).map(drop)
}

/// The refusal with serde's message and the pointer to the field where it stopped (for example a duplicate field).
fn typed<'a, T: serde::Deserialize<'a>>(bytes: &'a [u8], error: &serde_json::Error) -> Problem {
    if !error.is_data() {
        return not_json(error);
    }
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    match serde_path_to_error::deserialize::<_, T>(&mut deserializer) {
        Ok(_) => not_json(error),
        Err(found) => {
            let steps = found.path().iter().map(|step| match step {
                serde_path_to_error::Segment::Seq { index } => format!("/{index}"),
                serde_path_to_error::Segment::Map { key } => format!("/{}", escape(key)),
                _ => String::new(),
            });
            Problem::invalid_field(steps.collect::<String>(), found.inner().to_string())
        }
    }
}
