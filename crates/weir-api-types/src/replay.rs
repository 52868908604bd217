//! Replays, purges and discards.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::WaitsFor;

/// A replay and its progress. `total` is the sum of the four counts after it. It may change slightly until every
/// delivery has been moved into the replay.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Replay {
    #[schema(example = "rpl_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    /// `running`, `completed` or `cancelled`.
    pub state: String,
    /// The filter of the replay, here and in the next fields.
    pub states: Vec<String>,
    pub destination: Option<String>,
    /// The only tenant; null if the replay has several tenants or all.
    pub tenant: Option<String>,
    /// The tenants; null: all.
    pub tenants: Option<Vec<String>>,
    pub event_type: Option<String>,
    pub error: Option<String>,
    pub from: Option<Timestamp>,
    pub to: Option<Timestamp>,
    pub total: u64,
    pub delivered: u64,
    /// Deliveries that are `failed` or `dead` again.
    pub failed: u64,
    /// Deliveries that were cancelled individually, purged, superseded or expired meanwhile.
    pub cancelled: u64,
    /// Deliveries that have not ended; for a cancelled replay, deliveries that had not ended when the replay ended.
    pub remaining: u64,
    /// The estimated time until the end, at the average rate so far; of a replay to one destination no longer than it takes to
    /// send all that waits there. Null if unknown.
    pub eta_s: Option<u64>,
    /// What keeps the deliveries of a running replay of one destination from being sent; null if nothing does, and for a
    /// replay of several destinations.
    pub waits_for: Option<WaitsFor>,
    pub created_at: Timestamp,
    pub ended_at: Option<Timestamp>,
}

/// The number of deliveries that a request would affect (`dry_run`).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Count {
    pub total: u64,
}

/// The result of a purge or of its dry run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum PurgeAnswer {
    Purged(Purged),
    Counted(Count),
}

/// The result of a purge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Purged {
    pub cancelled: u64,
}

/// The result of a discard or of its dry run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum DiscardAnswer {
    Discarded(Discarded),
    Counted(DiscardCount),
}

/// The result of a discard.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Discarded {
    pub discarded: u64,
}

/// The number of dead letters that a discard would settle.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DiscardCount {
    pub total: u64,
    /// There may be more: at most a million dead letters are counted.
    pub capped: bool,
}
