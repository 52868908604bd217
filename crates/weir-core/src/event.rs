//! An event: an immutable fact, ingested once. Its body is frozen at ingest.

use std::num::NonZeroU32;

use bytes::{BufMut, Bytes, BytesMut};

use crate::{id::EventId, limit_key::LimitKey, time::Timestamp, trace::TraceParent};

/// The longest event type, in bytes: enough for a path of words, and short enough for an index and a list.
pub const MAX_TYPE_LEN: usize = 128;

/// An event as stored and as sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    pub id: EventId,
    pub tenant: String,
    pub event_type: String,
    pub created_at: Timestamp,
    pub idempotency_key: Option<String>,
    pub options: DeliveryOptions,
    pub body: EventBody,
    /// How many destinations whose event types match did not get it because of their filters. Known once it is stored.
    pub filtered: u32,
}

/// The delivery options that the producer of an event may set.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeliveryOptions {
    /// No delivery is attempted before this instant.
    pub deliver_at: Option<Timestamp>,
    /// No delivery is claimed at this instant or later.
    pub expires_at: Option<Timestamp>,
    /// A waiting delivery is superseded by the delivery of a newer event of the same type and key to the same
    /// destination.
    pub coalesce_key: Option<String>,
    /// At a destination with strict order, the delivery waits for the deliveries of earlier events with this key.
    pub ordering_key: Option<String>,
    /// How much of the limits in costs each of its sends takes; `None`: 1. See [`Event::cost`].
    pub cost: Option<NonZeroU32>,
    /// The limit key at destinations that have some, in place of what their pointers find.
    pub limit_key: Option<LimitKey>,
}

/// The highest cost of an event.
pub const MAX_COST: u32 = 1_000;

impl Event {
    pub fn cost(&self) -> u32 {
        self.options.cost.map_or(1, NonZeroU32::get)
    }

    /// The end of the delay of the event's deliveries; `None` when they may be sent at once.
    pub fn delayed_until(&self) -> Option<Timestamp> {
        self.options.deliver_at.filter(|at| *at > self.created_at)
    }

    /// When the event's deliveries are first due. Their age counts from this instant.
    pub fn due(&self) -> Timestamp {
        self.delayed_until().unwrap_or(self.created_at)
    }
}

/// The body that every destination receives: the bytes `{"id", "type", "timestamp", "data"}`, with `data` byte for byte
/// as ingested. The trace of the event is stored and passed on together with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventBody {
    bytes: Bytes,
    /// The offset of `data`, which ends one byte before the end of the body.
    data_offset: u32,
    trace: Option<TraceParent>,
}

impl EventBody {
    /// Freezes the body of an event. `data` must be one JSON value; `event_type` must be valid (see [`valid_type`]).
    pub fn freeze(id: EventId, event_type: &str, created_at: Timestamp, data: &str) -> Self {
        let head = head(id, event_type, created_at);
        let mut bytes = BytesMut::with_capacity(head.len() + data.len() + 1);
        bytes.put_slice(head.as_bytes());
        bytes.put_slice(data.as_bytes());
        bytes.put_u8(b'}');
        Self { bytes: bytes.freeze(), data_offset: head.len() as u32, trace: None }
    }

    /// What follows the head, if the head follows from these properties of the event: then it need not be stored.
    pub fn after_head(&self, id: EventId, event_type: &str, created_at: Timestamp) -> Option<Bytes> {
        let offset = self.data_offset as usize;
        let is_own = self.bytes.get(..offset)? == head(id, event_type, created_at).as_bytes();
        (is_own && self.bytes.len() > offset).then(|| self.bytes.slice(offset..))
    }

    /// The body of which [`Self::after_head`] was stored.
    pub fn with_head(id: EventId, event_type: &str, created_at: Timestamp, after: &[u8]) -> Self {
        let head = head(id, event_type, created_at);
        Self { bytes: [head.as_bytes(), after].concat().into(), data_offset: head.len() as u32, trace: None }
    }

    /// A body read back from the store.
    pub fn stored(bytes: Bytes, data_offset: u32) -> Self {
        Self { bytes, data_offset, trace: None }
    }

    /// The body in this trace.
    #[must_use]
    pub fn traced(self, trace: Option<TraceParent>) -> Self {
        Self { trace, ..self }
    }

    /// The span from which the event came: that of its producer, or of the request that posted it.
    pub fn trace(&self) -> Option<TraceParent> {
        self.trace
    }

    /// The bytes that are signed and sent.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    pub fn data_offset(&self) -> u32 {
        self.data_offset
    }

    /// What the body says before its `data`; empty texts if the body is not as [`Self::freeze`] makes it.
    pub fn head(&self) -> EventHead<'_> {
        let head = self.bytes.get(..self.data_offset as usize).and_then(|head| std::str::from_utf8(head).ok());
        let texts: Option<Vec<&str>> = head.map(|head| head.split('"').collect());
        // `{"id":"…","type":"…","timestamp":"…","data":`: no value has a quotation mark or an escape.
        match texts.as_deref() {
            Some([_, _, _, id, _, _, _, event_type, _, _, _, timestamp, ..]) => EventHead { id, event_type, timestamp },
            _ => EventHead { id: "", event_type: "", timestamp: "" },
        }
    }

    /// `data` as ingested.
    pub fn data(&self) -> Bytes {
        let end = self.bytes.len().saturating_sub(1);
        self.bytes.slice((self.data_offset as usize).min(end)..end)
    }
}

/// What a body says before its `data`. It never changes: stores leave it out and make it again at each attempt, of which
/// all must send the same bytes.
fn head(id: EventId, event_type: &str, created_at: Timestamp) -> String {
    format!(r#"{{"id":"{id}","type":"{event_type}","timestamp":"{created_at}","data":"#)
}

/// What a body says before its `data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EventHead<'b> {
    pub id: &'b str,
    pub event_type: &'b str,
    /// When the event was created (RFC 3339).
    pub timestamp: &'b str,
}

/// Whether `text` may be an event type: dot-separated words of letters, digits, `_` and `-`, at most [`MAX_TYPE_LEN`]
/// bytes.
pub fn valid_type(text: &str) -> bool {
    let word =
        |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    text.len() <= MAX_TYPE_LEN && text.split('.').all(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_kept_byte_for_byte() {
        let data = "{\"b\": 1.0e2, \"a\":  [\"\\u00e9\"] }";
        let id = EventId::new(Timestamp::from_secs(1), 7);
        let body = EventBody::freeze(id, "video.created", Timestamp::from_secs(1), data);
        assert_eq!(body.data(), data.as_bytes());
        let sent: serde_json::Value = serde_json::from_slice(body.bytes()).unwrap();
        assert_eq!(sent["timestamp"], "1970-01-01T00:00:01.000Z");
        assert_eq!(sent["id"], id.to_string());
        let head =
            EventHead { id: &id.to_string(), event_type: "video.created", timestamp: "1970-01-01T00:00:01.000Z" };
        assert_eq!(body.head(), head);
        assert_eq!(EventBody::stored(Bytes::from_static(b"{}"), 9).head().id, "");
        assert_eq!(EventBody::stored(body.bytes().clone(), body.data_offset()), body);
    }

    #[test]
    fn a_body_is_the_same_after_its_head_was_left_out() {
        let (at, id) = (Timestamp::from_nanos(1_800_000_000_123_456_789), EventId::from_bytes([0; 16]));
        let body = EventBody::freeze(id, "video.created", at, "[1, 2]");
        let after = body.after_head(id, "video.created", at).unwrap();
        assert_eq!(after, "[1, 2]}");
        assert_eq!(EventBody::with_head(id, "video.created", at, &after), body);
        // Stored bodies count on these bytes.
        let head =
            r#"{"id":"evt_00000000000000000000000000","type":"video.created","timestamp":"2027-01-15T08:00:00.123Z","#;
        assert_eq!(body.bytes(), &format!(r#"{head}"data":[1, 2]}}"#));
        // Another head is kept.
        assert_eq!(body.after_head(id, "video.deleted", at), None);
        assert_eq!(EventBody::stored(Bytes::from_static(b"{}"), 9).after_head(id, "video.created", at), None);
    }

    #[test]
    fn event_types_are_dotted_words() {
        for good in ["video.created", "a", "weir.backlog.high", "order_v2.line-item.paid"] {
            assert!(valid_type(good), "{good}");
        }
        for bad in ["", ".", "a.", "video.*", "a b", "a\"b", "é", &"x".repeat(129)] {
            assert!(!valid_type(bad), "{bad}");
        }
    }
}
