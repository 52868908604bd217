//! Limit keys: which flow has which key, which flows wait, and the keys of a destination with the longest backlogs.

use async_trait::async_trait;
use weir_core::{DestinationId, LimitKey, Timestamp};

use crate::{DueDestination, StoreResult};

/// How many waiting deliveries of a destination the list of its keys looks at: those that are due first.
pub const KEYS_LOOKED_AT: u32 = 20_000;

/// What a flow with a limit key is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowKey {
    pub destination_id: DestinationId,
    pub key: LimitKey,
}

/// The backlog of one limit key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyBacklog {
    pub key: LimitKey,
    pub waiting: u64,
    /// When the delivery that has waited longest was stored.
    pub oldest_at: Timestamp,
}

/// The backlogs of a destination's keys, from the [`KEYS_LOOKED_AT`] deliveries that are due first.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KeyBacklogs {
    /// The longest first, then by key.
    pub keys: Vec<KeyBacklog>,
    /// More deliveries wait than were looked at, so each number may be too low and keys may be missing.
    pub is_partial: bool,
}

/// What is out of one limit key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct KeyCounts {
    pub pending: u64,
    pub retrying: u64,
    pub delivering: u64,
    /// When the waiting delivery that has waited longest was stored.
    pub oldest_at: Option<Timestamp>,
}

impl KeyCounts {
    pub fn waiting(&self) -> u64 {
        self.pending + self.retrying
    }

    /// More deliveries of the key may wait than were counted.
    pub fn is_partial(&self) -> bool {
        self.waiting() >= KEYS_LOOKED_AT.into()
    }
}

/// Flows with limit keys, as runs and the sweep see them.
#[async_trait]
pub trait Flows: Send + Sync {
    /// What these flows are, in the order of the request: from any delivery of each. `None` for a flow without one.
    async fn flow_keys(&self, flows: &[DestinationId]) -> StoreResult<Vec<Option<FlowKey>>>;

    /// The flows with limit keys that the sweep wakes: of destinations that are neither paused nor deleted, with deliveries
    /// due before `before`. The id is that of the flow. At most `limit`, in the order of ids, starting after `after`.
    async fn due_flows(
        &self,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>>;
}

#[async_trait]
pub trait LimitKeys: Flows {
    /// The keys of a destination with a backlog, at most `limit`, the longest backlog first; with `search` those that contain
    /// this text.
    async fn key_backlogs(&self, id: DestinationId, search: Option<&str>, limit: u32) -> StoreResult<KeyBacklogs>;

    /// The counts of one key of a destination. At most [`KEYS_LOOKED_AT`] waiting deliveries are counted.
    async fn key_counts(&self, id: DestinationId, key: &LimitKey) -> StoreResult<KeyCounts>;

    /// How many sends each of these flows has started after `since`, in the order of the request.
    async fn flow_sends(&self, flows: &[DestinationId], since: Timestamp) -> StoreResult<Vec<u64>>;
}
