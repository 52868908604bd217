//! A claim: the right to make one attempt of a delivery, and all a worker needs for it.

use std::sync::Arc;

use crate::{
    destination::Destination,
    event::EventBody,
    id::{DeliveryId, DestinationId, EventId},
    time::Timestamp,
};

/// One life of a process that makes claims or sends: never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub i32);

/// Proof of a claim. A write that settles or gives back a delivery names it, and changes nothing once the claim is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    pub delivery_id: DeliveryId,
    pub destination_id: DestinationId,
    /// Differs for each claim of the same delivery.
    pub epoch: i64,
}

/// What a claimed delivery sends, or where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimedBody {
    Inline(EventBody),
    /// Too large for the delivery queue: the worker reads it from the store.
    InStore,
}

/// A delivery claimed for one attempt, with all a worker needs.
#[derive(Debug, Clone)]
pub struct ClaimedDelivery {
    pub claim: Claim,
    pub event_id: EventId,
    /// From when the delivery's age counts: when its event was made, the `deliver_at` it had to wait for, or the beginning of
    /// its replay.
    pub event_created_at: Timestamp,
    /// Attempts counted so far; this one's number is one more.
    pub attempts: u32,
    /// Those of them that were made before the delivery was replayed, and do not count against its retries.
    pub attempts_before: u32,
    /// Whether it is in the lane of replays, and live traffic goes before it.
    pub is_replay: bool,
    pub body: ClaimedBody,
    pub expires_at: Timestamp,
    /// The destination as it was when the delivery was claimed, where it was claimed; a worker elsewhere reads it.
    pub destination: Option<Arc<Destination>>,
}
