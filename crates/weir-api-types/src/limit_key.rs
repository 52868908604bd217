//! The limit keys of a destination, with their backlogs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::RateLimit;

/// The limit keys of a destination that wait or have an override.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitKeyList {
    pub as_of: Timestamp,
    pub data: Vec<LimitKeyRow>,
    /// Only the 20,000 deliveries that are due first were looked at, and more wait: numbers may be too low, and keys may be
    /// missing.
    pub is_partial: bool,
}

/// One limit key of a destination, with the limits that hold for it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitKeyRow {
    /// `""`: events without a key. A key of more than 128 bytes is its SHA-256.
    #[schema(example = "cus_1")]
    pub key: String,
    pub waiting: u64,
    /// The age of the delivery that has waited longest; null if none waits.
    pub oldest_age_s: Option<f64>,
    /// The sends of the last minute, per second.
    pub achieved_per_s: f64,
    /// The rate that its own limits allow; null: it has none.
    pub configured_per_s: Option<f64>,
    /// What it may send now: no more than its limits allow, and of the rate of the destination its part beside the other
    /// keys that wait. Null if nothing bounds it or nothing waits; 0 while it is paused, and while the destination is paused
    /// or held or its breaker is not closed.
    pub share_per_s: Option<f64>,
    /// What bounds it: `paused`, `key` (its own limits), `destination` (the limits that all keys share) or `group` (the limit
    /// group of the destination); or that nothing is sent to the destination: `destination_paused`, `destination_held` or
    /// `destination_breaker` (not closed). Null if nothing waits or nothing bounds it.
    #[schema(value_type = Option<String>, pattern = "^(paused|key|destination|group|destination_paused|destination_held|destination_breaker)$", example = "key")]
    pub binding: Option<String>,
    /// The estimated time until nothing of this key waits, without new events; null if nobody can say.
    pub drain_eta_s: Option<f64>,
    pub rate_limits: Vec<RateLimit>,
    /// Null: as many as the destination may have.
    pub max_in_flight: Option<u32>,
    #[schema(minimum = 1, maximum = 1_000)]
    pub weight: u16,
    pub paused: bool,
    /// Whether something is different for this key.
    pub is_overridden: bool,
}
