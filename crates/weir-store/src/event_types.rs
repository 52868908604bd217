//! The catalogue of event types.

use async_trait::async_trait;
use weir_core::{
    activity::Activity,
    event_types::{EventType, MAX_SCHEMA_BYTES, MAX_TYPES},
};

use crate::StoreResult;

/// What a process of the API keeps of a type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownEventType {
    pub name: String,
    pub version: u64,
    /// As text. `None` also if the type has not changed after the version that the process knows.
    pub schema: Option<String>,
}

/// What became of a change of a type.
#[derive(Debug, Clone, PartialEq)]
pub enum EventTypeChange {
    /// With its new version.
    Made(Box<EventType>),
    /// Another request has changed the type meanwhile; nothing is recorded.
    Outdated,
    /// The catalogue has as many types, or as many bytes of schemas, as it may; nothing is recorded.
    Full,
}

/// The whole catalogue in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CatalogueTotals {
    /// The number of the last change.
    pub version: u64,
    pub types: u64,
    pub schema_bytes: u64,
}

impl CatalogueTotals {
    /// After a change of a type whose schema had and has so many bytes; `None`: there is no such type before or after.
    /// Returns `None` if the change adds what the catalogue has no room for.
    pub fn changed(self, before: Option<u64>, after: Option<u64>) -> Option<Self> {
        let types = self.types + u64::from(after.is_some()) - u64::from(before.is_some());
        let schema_bytes = self.schema_bytes + after.unwrap_or_default() - before.unwrap_or_default();
        let grows = types > self.types || schema_bytes > self.schema_bytes;
        let fits = types <= MAX_TYPES as u64 && schema_bytes <= MAX_SCHEMA_BYTES as u64;
        (fits || !grows).then_some(Self { version: self.version + 1, types, schema_bytes })
    }
}

#[async_trait]
pub trait EventTypes: Send + Sync {
    /// The number of the last change. Must be cheap: each process of the API reads it twice a second.
    async fn event_types_version(&self) -> StoreResult<u64>;

    /// All types, with the schemas of those that have changed after this version.
    async fn known_event_types(&self, after: u64) -> StoreResult<Vec<KnownEventType>>;

    async fn event_type(&self, name: &str) -> StoreResult<Option<EventType>>;

    /// At most `limit` types in the order of their names, those after `after`; with `q` only those with this text in
    /// their name, in upper or lower case.
    async fn event_types(&self, q: Option<&str>, after: Option<&str>, limit: u32) -> StoreResult<Vec<EventType>>;

    /// Creates a type, or replaces the version `expected` of it. The store gives it its version.
    async fn set_event_type(
        &self,
        expected: Option<u64>,
        event_type: EventType,
        activity: Activity,
    ) -> StoreResult<EventTypeChange>;

    /// Deletes this version of a type. Returns whether it was there.
    async fn delete_event_type(&self, name: &str, expected: u64, activity: Activity) -> StoreResult<bool>;
}
