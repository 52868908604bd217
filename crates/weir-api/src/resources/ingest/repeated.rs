//! An event whose idempotency key is used already: it must be the stored event again. Another event under the same key
//! is a mistake of the producer, which would lose the event if the answer were a success.

use std::time::Duration;

use weir_core::{LimitKey, Timestamp, event::Event};

use crate::problem::Problem;

/// Whether the event that was posted again is the stored one: the same type, delivery options and data. White space
/// between the values of `data` does not count. Named destinations are not compared, because a stored event has only
/// the deliveries that were made from them.
pub(super) fn is_same(stored: &Event, again: &Event) -> bool {
    stored.event_type == again.event_type
        && options(stored) == options(again)
        && significant(&stored.body.data()).eq(significant(&again.body.data()))
}

/// The refusal of an event that is not the stored one.
pub(super) fn another_event() -> Problem {
    let detail = "belongs to another request: use a new key for each event, or repeat the first one unchanged";
    Problem::invalid_field("/idempotency_key", detail)
}

/// The delivery options as they were posted: `ttl_s` counts from the time at which the event is due.
fn options(event: &Event) -> (Option<Timestamp>, Option<Duration>, [Option<&str>; 3], u32) {
    let options = &event.options;
    let ttl = options.expires_at.map(|at| at.since(event.due()));
    let limit_key = options.limit_key.as_ref().map(LimitKey::as_str);
    let keys = [options.coalesce_key.as_deref(), options.ordering_key.as_deref(), limit_key];
    (options.deliver_at, ttl, keys, event.cost())
}

/// The bytes of a JSON value without the white space between its parts.
fn significant(json: &[u8]) -> impl Iterator<Item = u8> {
    let (mut in_string, mut is_escaped) = (false, false);
    json.iter().copied().filter(move |&byte| {
        let is_space = !in_string && byte.is_ascii_whitespace();
        if byte == b'"' && !is_escaped {
            in_string = !in_string;
        }
        is_escaped = in_string && byte == b'\\' && !is_escaped;
        !is_space
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compact(json: &str) -> String {
        String::from_utf8(significant(json.as_bytes()).collect()).unwrap()
    }

    #[test]
    fn white_space_counts_only_inside_of_strings() {
        assert_eq!(compact(" { \"a b\" : [ 1 ,\n 2 ] } "), r#"{"a b":[1,2]}"#);
        assert_eq!(compact(r#"{"a": "\" b \\", "c": 1}"#), r#"{"a":"\" b \\","c":1}"#);
        assert_eq!(compact("1"), "1");
    }
}
