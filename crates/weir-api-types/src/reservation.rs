//! Reservations: slots of limit groups for callers outside Weir.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

/// A slot that was reserved just now. Start your call in `starts_at..ends_at`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReservedSlot {
    #[schema(pattern = "^rsv_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "rsv_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    /// The group that the slot was taken from.
    #[schema(pattern = "^lgr_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "lgr_01h2xcejqtf2nbrexx3vqjhp41")]
    pub limit_group: String,
    /// How much the slot takes of each limit with the unit `cost`.
    #[schema(minimum = 1, maximum = 1000, example = 1)]
    pub cost: u32,
    /// The first instant at which the call may start.
    pub starts_at: Timestamp,
    /// From here on the call must not start.
    pub ends_at: Timestamp,
    /// From the answer until `starts_at`, rounded up; 0 if it has passed. For callers whose clock may differ.
    #[schema(example = 120)]
    pub starts_in_ms: u64,
    /// From the answer until `ends_at`, rounded down; 0 if it has passed.
    #[schema(example = 370)]
    pub ends_in_ms: u64,
    /// How long the server took for the answer, rounded down. What the caller measured beyond that is the way of the request
    /// and the answer, so a caller can bound how old the answer is.
    #[schema(example = 40)]
    pub took_ms: u64,
}

/// A slot of a limit group that a caller outside Weir has reserved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Reservation {
    #[schema(pattern = "^rsv_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "rsv_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    #[schema(pattern = "^lgr_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "lgr_01h2xcejqtf2nbrexx3vqjhp41")]
    pub limit_group: String,
    pub cost: u32,
    pub created_at: Timestamp,
    pub starts_at: Timestamp,
    pub ends_at: Timestamp,
    /// When it was given back; null: it was not.
    pub cancelled_at: Option<Timestamp>,
    /// `coming`: it has not ended. `over`: it has, and counts as a call. `given_back`: it does not count.
    #[schema(pattern = "^(coming|over|given_back)$", example = "over")]
    pub state: String,
}

/// How many slots callers outside Weir take of a group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecentReservations {
    /// The slots that have ended in the last minute, without those given back.
    pub last_minute: u64,
    /// The same per second.
    pub per_s: f64,
}
