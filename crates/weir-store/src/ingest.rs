//! The ingest of events.

use std::sync::Arc;

use async_trait::async_trait;
use weir_core::{DestinationId, event::Event};

use crate::{FastPath, StoreResult};

/// An event to store, and its destinations.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub event: Event,
    /// The destinations that the producer named; `None` for all of the tenant whose patterns match.
    pub destinations: Option<Vec<DestinationId>>,
    /// A new random number. Delivery ids are made from it and the event's time.
    pub random: u128,
}

/// A stored event.
#[derive(Debug, Clone)]
pub struct Ingested {
    /// The event as stored: the first one when `duplicate`.
    pub event: Event,
    /// The number of its deliveries.
    pub deliveries: u32,
    /// Whether an event with the same tenant and idempotency key already existed, so that nothing was stored.
    pub duplicate: bool,
    /// The destinations to wake when the event is due: those with a waiting delivery of it. Empty for a duplicate.
    pub wake: Vec<DestinationId>,
}

/// Why an event was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngestRefusal {
    /// The named destination at `index` does not exist in the event's tenant.
    UnknownDestination { index: usize },
}

#[async_trait]
pub trait Ingest {
    /// Stores events with their deliveries in one durable commit, each event completely or not at all; the commit may
    /// be shared with other callers. Returns the results in the same order, after the commit: an acknowledged event
    /// survives a crash of the machine.
    ///
    /// [`crate::intake`] has the rules of idempotency, coalescing and order. A destination that is named twice gets one
    /// delivery.
    async fn ingest(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Result<Ingested, IngestRefusal>>>;

    /// Connects the fast path. From now on new deliveries go over it when it has room.
    fn connect(&self, fast_path: Arc<dyn FastPath>);
}
