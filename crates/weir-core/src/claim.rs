//! A claim: the right to make one attempt of a delivery, and the data that a worker needs for it.

use std::sync::Arc;

use crate::{
    destination::Destination,
    event::EventBody,
    id::{DeliveryId, DestinationId, EventId},
    time::Timestamp,
};

/// The id of one run of a process that makes claims or sends. An id is never reused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProcessId(pub i32);

/// Proof of a claim. A write that settles or releases a delivery names its claim, and changes nothing when the claim is
/// lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Claim {
    pub delivery_id: DeliveryId,
    pub destination_id: DestinationId,
    /// A number that differs for each claim of the same delivery.
    pub epoch: i64,
}

/// The body that a claimed delivery sends, or the place where it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ClaimedBody {
    Inline(EventBody),
    /// The body is too large for the delivery queue: the worker reads it from the store.
    InStore,
}

/// A delivery claimed for one attempt, with the data that a worker needs.
#[derive(Debug, Clone)]
pub struct ClaimedDelivery {
    pub claim: Claim,
    /// The flow whose job it was claimed for: the destination, or one of its limit keys.
    pub flow_id: DestinationId,
    pub event_id: EventId,
    /// The instant from which the delivery's age counts: the creation of its event, its `deliver_at`, or the beginning
    /// of its replay.
    pub event_created_at: Timestamp,
    /// Attempts counted so far. The number of this attempt is one higher.
    pub attempts: u32,
    /// The attempts that do not count against its retries: those before the delivery was replayed, and refusals.
    pub attempts_before: u32,
    /// Whether the delivery belongs to a replay. Live deliveries are sent first.
    pub is_replay: bool,
    /// [`Event::cost`](crate::event::Event::cost).
    pub cost: u32,
    pub body: ClaimedBody,
    pub expires_at: Timestamp,
    /// The destination as it was at the claim. `None` in other processes, whose workers read the destination
    /// themselves.
    pub destination: Option<Arc<Destination>>,
}
