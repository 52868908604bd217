//! The catalogue of event types.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;
use weir_core::Timestamp;

/// A type of the catalogue.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventType {
    #[schema(example = "order.created")]
    pub name: String,
    /// What the event means, for people.
    pub description: String,
    /// The `data` of such an event; null: none is given.
    #[schema(value_type = Value)]
    pub example: Option<Value>,
    /// What the `data` must be, as JSON Schema; null: anything.
    #[schema(value_type = Value)]
    pub schema: Option<Value>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}
