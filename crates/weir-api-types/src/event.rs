//! Events, and the answers to those who send them.

use std::num::NonZeroU32;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::value::RawValue;
use utoipa::ToSchema;
use weir_core::{EventId, Timestamp};

use crate::{Delivery, Problem};

/// An event.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Event {
    #[schema(example = "evt_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    #[serde(rename = "type")]
    #[schema(example = "video.created")]
    pub event_type: String,
    pub tenant: String,
    pub created_at: Timestamp,
    pub idempotency_key: Option<String>,
    /// How many destinations that take this type did not get it, because of their filters.
    // An earlier server does not say it.
    #[serde(default)]
    #[schema(required = true)]
    pub filtered: u32,
    /// No attempt starts before this instant.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime, required = false)]
    pub deliver_at: Option<Timestamp>,
    /// Deliveries that are not sent by this instant become `expired`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime, required = false)]
    pub expires_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub coalesce_key: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub ordering_key: Option<String>,
    /// The limit key that the event names itself; its SHA-256 if it is longer than 128 bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false)]
    pub limit_key: Option<String>,
    /// How much of a limit in costs each of its sends takes; absent for 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = u32, minimum = 2, maximum = 1_000, required = false)]
    pub cost: Option<NonZeroU32>,
    /// The data, byte for byte as ingested. Lists show it only with `include=data`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = serde_json::Value, required = false)]
    pub data: Option<Box<RawValue>>,
}

/// An event with its deliveries.
#[derive(Debug, Clone, Serialize, ToSchema)]
pub struct EventDetail {
    #[serde(flatten)]
    pub event: Event,
    pub deliveries: Vec<Delivery>,
}

/// serde reads a flattened field from a copy, which loses the bytes of `data`. So the text is read twice.
impl<'de> Deserialize<'de> for EventDetail {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        struct Rest {
            deliveries: Vec<Delivery>,
        }
        let text = Box::<RawValue>::deserialize(deserializer)?;
        let event = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        let Rest { deliveries } = serde_json::from_str(text.get()).map_err(D::Error::custom)?;
        Ok(Self { event, deliveries })
    }
}

/// An accepted event.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct AcceptedEvent {
    #[schema(value_type = String, example = "evt_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: EventId,
    #[serde(rename = "type")]
    pub event_type: String,
    pub tenant: String,
    pub created_at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime, required = false)]
    pub deliver_at: Option<Timestamp>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, format = DateTime, required = false)]
    pub expires_at: Option<Timestamp>,
    /// The number of deliveries, one per destination.
    pub deliveries: u32,
    /// The number of destinations that take this type and do not get the event, because of their filters.
    // An earlier server does not say it.
    #[serde(default)]
    #[schema(required = true)]
    pub filtered: u32,
    /// Whether an event with this idempotency key already existed. If so, this is the existing event.
    pub duplicate: bool,
}

/// The result of one event of a batch.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum BatchItem {
    Accepted(AcceptedEvent),
    Refused { error: Problem },
}

/// The results of the events of a batch, in the same order.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchAnswer {
    pub events: Vec<BatchItem>,
}

/// A problem that also contains the results of the events, as in the answer to a batch with valid events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BatchProblem {
    #[serde(flatten)]
    #[schema(inline)]
    pub problem: Problem,
    /// Absent if the body has no list of events.
    #[schema(required = false)]
    pub events: Vec<BatchItem>,
}
