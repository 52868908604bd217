//! Events come in.

use std::sync::Arc;

use async_trait::async_trait;
use weir_core::{DestinationId, event::Event};

use crate::{FastPath, StoreResult};

/// An event to store, and where it goes.
#[derive(Debug, Clone)]
pub struct NewEvent {
    pub event: Event,
    /// The destinations the producer named; `None` for every one of the tenant whose patterns match.
    pub destinations: Option<Vec<DestinationId>>,
    /// A fresh random number: delivery ids are made of it and the event's time.
    pub random: u128,
}

/// A stored event.
#[derive(Debug, Clone)]
pub struct Ingested {
    /// The event as stored: the first one when `duplicate`.
    pub event: Event,
    /// How many destinations it is owed to.
    pub deliveries: u32,
    /// Whether an event with the same tenant and idempotency key was there before; then nothing was stored.
    pub duplicate: bool,
    /// The destinations to wake when the event is due: those of its deliveries that wait. Empty for a duplicate.
    pub wake: Vec<DestinationId>,
}

/// Why an event was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IngestRefusal {
    /// The `index`-th named destination does not exist in the event's tenant.
    UnknownDestination { index: usize },
}

#[async_trait]
pub trait Ingest {
    /// Stores events with their deliveries, each event whole or not at all, in one durable commit (group commit with
    /// other callers). Answers in the same order, after the commit: an answered event survives the death of the machine.
    /// A waiting delivery (`pending`, `retrying`) with the destination, type and coalesce key of a new one becomes `superseded`
    /// in the same commit; of several events of one key in a call the last waits. One that is under way goes on, and becomes
    /// `superseded` where it would wait again. Two events with the same tenant and idempotency key, also within one call, are one event. A destination named
    /// twice gets one delivery.
    async fn ingest(&self, events: Vec<NewEvent>) -> StoreResult<Vec<Result<Ingested, IngestRefusal>>>;

    /// From now on new deliveries go by this fast path where it has room.
    fn connect(&self, fast_path: Arc<dyn FastPath>);
}
