//! The requests that send events.
//!
//! The hot path parses them with serde, which borrows `data` from the body. The documented types describe the same
//! fields, and read a refused body once more to report all its errors.

use std::{borrow::Cow, fmt, time::Duration};

use serde::{
    Deserialize, Deserializer,
    de::{IgnoredAny, SeqAccess, Visitor},
};
use serde_json::{Value, value::RawValue};
use utoipa::ToSchema;
use weir_core::{Timestamp, destination::DEFAULT_TENANT};

use crate::readers::{
    fields::object,
    texts::{
        DestinationIdText, EventKeyText, IdempotencyKeyText, LimitKeyText, NewEventTypeText, TenantText, TimeText,
    },
};

/// The maximum number of events of one batch. A test compares this and the next constant with the schemas.
pub(super) const MAX_BATCH: usize = 1_000;
/// The maximum number of destinations that one event may name.
pub(super) const MAX_DESTINATIONS: usize = 1_000;
/// The longest delay of an event.
const MAX_DELAY: Duration = Duration::from_secs(365 * 24 * 3_600);

/// The body of an event, as the hot path parses it. A test compares its fields with [`EventRequest`].
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BorrowedEvent<'a> {
    #[serde(borrow, rename = "type")]
    pub(super) event_type: Cow<'a, str>,
    #[serde(borrow)]
    pub(super) data: &'a RawValue,
    pub(super) tenant: Option<String>,
    pub(super) idempotency_key: Option<String>,
    pub(super) destinations: Option<Vec<String>>,
    pub(super) deliver_at: Option<String>,
    /// JSON makes no difference between `7` and `7.0`.
    pub(super) ttl_s: Option<f64>,
    pub(super) coalesce_key: Option<String>,
    pub(super) ordering_key: Option<String>,
    pub(super) limit_key: Option<String>,
    pub(super) cost: Option<f64>,
}

object! {
    /// An event to send.
    #[expect(dead_code, reason = "the hot path reads the values of a `BorrowedEvent`")]
    pub(crate) struct EventRequest {
        /// Dot-separated words. The prefix `weir.` is reserved.
        #[schema(value_type = NewEventTypeText)]
        r#type: Option<NewEventTypeText>,
        /// Any JSON value; delivered byte for byte.
        #[schema(value_type = Value, example = json!({"id": 7}))]
        data: Option<Value>,
        #[schema(default = json!(DEFAULT_TENANT))]
        tenant: Option<TenantText>,
        /// The same event again, with the same key and tenant, is not stored; the answer shows the first one. Another
        /// type, option or `data` under the same key is refused. `destinations` are not compared.
        idempotency_key: Option<IdempotencyKeyText>,
        /// Deliver to these destinations instead of all destinations of the tenant whose `event_types` match.
        #[schema(min_items = 1, max_items = 1000)]
        destinations: Option<Vec<DestinationIdText>>,
        /// No attempt starts before this instant (RFC 3339), at most 365 days ahead. An instant in the past means now.
        /// `retry.max_age_s` and `ttl_s` count from this instant.
        pub(super) deliver_at: Option<TimeText>,
        /// The lifetime of the event. A delivery that is not claimed by then, because of a limit, a pause or a retry
        /// that is not yet due, becomes `expired`.
        #[schema(minimum = 1, maximum = 31_536_000)]
        ttl_s: Option<u32>,
        /// The object whose latest state the event carries. A waiting delivery (`pending` or `retrying`) with the same
        /// destination, type and key becomes `superseded` by the delivery of this event. A delivery that is in progress
        /// continues, but is not retried if it fails.
        coalesce_key: Option<EventKeyText>,
        /// An `ordered` destination gets the events of one key one after the other, in the order in which they were
        /// stored. So an event that is posted after the 202 of another event is sent after that event. The events of a
        /// batch keep their order.
        ordering_key: Option<EventKeyText>,
        /// The limit key of the event at destinations with `key_limits`, in place of the one in its `data`.
        limit_key: Option<LimitKeyText>,
        /// How much of each limit with the unit `cost` a send of the event takes. Refused if it is above such a limit of a
        /// destination that takes the event, or of its limit group.
        #[schema(minimum = 1, maximum = 1_000, default = 1)]
        cost: Option<u32>,
    }
}

/// Events to send.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = BatchRequest)]
pub(crate) struct BorrowedBatch<'a> {
    #[serde(borrow, deserialize_with = "members")]
    #[schema(value_type = Vec<EventRequest>, min_items = 1, max_items = 1000)]
    pub(super) events: Vec<&'a RawValue>,
}

/// Reads the events of a batch, and none after the first one that is too many: a body may have millions. The rest is
/// only checked for its syntax.
fn members<'de: 'a, 'a, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<&'a RawValue>, D::Error> {
    struct Members;

    impl<'de> Visitor<'de> for Members {
        type Value = Vec<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of events")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut events = Vec::new();
            while events.len() <= MAX_BATCH
                && let Some(event) = seq.next_element()?
            {
                events.push(event);
            }
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            Ok(events)
        }
    }

    deserializer.deserialize_seq(Members)
}

/// Checks that an event is not delayed for too long.
pub(super) fn check_delay(deliver_at: Timestamp, now: Timestamp) -> Result<Timestamp, String> {
    if deliver_at > now + MAX_DELAY { Err("must be at most 365 days ahead".to_owned()) } else { Ok(deliver_at) }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use utoipa::openapi::Schema;

    use super::*;
    use crate::readers::fields::{Read, object_schema, schema_of};

    #[test]
    fn the_hot_path_takes_as_many_items_as_the_schemas_allow() {
        for (schema, field, most) in [
            (object_schema::<EventRequest>(), "destinations", MAX_DESTINATIONS),
            (object_schema::<BorrowedBatch<'_>>(), "events", MAX_BATCH),
        ] {
            let Schema::Array(array) = schema_of(schema.properties.get(field)) else { panic!("{field}") };
            assert_eq!((array.min_items, array.max_items), (Some(1), Some(most)), "{field}");
        }
    }

    #[test]
    fn the_hot_path_reads_the_documented_fields_and_no_others() {
        let error = serde_json::from_str::<BorrowedEvent<'_>>(r#"{"": 1}"#).err().unwrap().to_string();
        // Serde names the known fields in backticks.
        let (_, known) = error.split_once("expected one of").unwrap();
        let parsed: BTreeSet<&str> = known.split('`').skip(1).step_by(2).collect();
        let read = EventRequest::FIELDS.iter().map(|name| name.trim_start_matches("r#")).collect();
        assert_eq!(parsed, read);
        let schema = object_schema::<EventRequest>();
        assert_eq!(parsed, schema.properties.keys().map(String::as_str).collect());
        assert_eq!(schema.required, ["type", "data"]);
    }
}
