//! How a patch changes an object: in the API, and where a client shows what a patch would do.

use serde_json::{Map, Value};

/// Merges a patch. Unlike in RFC 7396, `null` members remain: the reader takes them as the default, as "disabled" where
/// a setting can be disabled, and as an error where the field is unknown.
pub fn merge(target: &mut Value, patch: Value) {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => {
            for (name, value) in patch {
                merge(target.entry(name).or_insert(Value::Object(Map::new())), value);
            }
        }
        (target, patch) => *target = patch,
    }
}
