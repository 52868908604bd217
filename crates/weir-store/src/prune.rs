//! What is too old goes, a little at a time.

use std::ops::AddAssign;

use async_trait::async_trait;
use weir_core::retention::Cutoffs;

use crate::StoreResult;

/// How far a pass has got. It begins with the deliveries; whole days and events go when no delivery is left of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrunePlace {
    /// After the delivery with this id.
    Deliveries([u8; 16]),
    /// After this day, counted since the Unix epoch. Only where whole days can be dropped.
    Days(i32),
    /// After the event with this id, at the idempotency keys of a day that is about to be dropped.
    Keys([u8; 16]),
    /// After the event with this id.
    Events([u8; 16]),
}

impl PrunePlace {
    pub const START: Self = Self::Deliveries([0; 16]);
}

/// How much is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    pub deliveries: u64,
    pub attempts: u64,
    /// One by one; those of whole days are not counted.
    pub events: u64,
    /// Days dropped whole, each with its events.
    pub days: u64,
}

impl AddAssign for Pruned {
    fn add_assign(&mut self, more: Self) {
        self.deliveries += more.deliveries;
        self.attempts += more.attempts;
        self.events += more.events;
        self.days += more.days;
    }
}

/// What one step of a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneStep {
    pub pruned: Pruned,
    /// Where the next goes on; `None` at the end of the pass, also when another process is at it.
    pub next: Option<PrunePlace>,
}

#[async_trait]
pub trait Prune {
    /// Deletes, from a place on, some of the deliveries that ended before the cutoff of their state, with their attempts, and
    /// of the events, with their idempotency keys, those of which no delivery is left. One transaction, too short to be in the
    /// way of deliveries; what is gone is gone, so a pass may end anywhere. Of several processes one at a time does this.
    async fn prune_some(&self, cutoffs: &Cutoffs, place: PrunePlace) -> StoreResult<PruneStep>;
}
