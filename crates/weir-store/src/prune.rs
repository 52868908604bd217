//! Retention: deletes old data in small steps.

use std::ops::AddAssign;

use async_trait::async_trait;
use weir_core::{Timestamp, retention::Cutoffs};

use crate::{StoreResult, first_id};

/// The progress of a pass. It starts with the deliveries; days and events are deleted once they have no deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrunePosition {
    /// After the delivery with this id.
    Deliveries([u8; 16]),
    /// After this day, counted since the Unix epoch. Only in stores that can drop whole days.
    Days(i32),
    /// After the event with this id, among the idempotency keys of a day that is about to be dropped.
    Keys([u8; 16]),
    /// After the event with this id.
    Events([u8; 16]),
    /// After the attempts of the delivery with this id. Only in stores that leave attempts to the end of their day.
    Attempts([u8; 16]),
}

impl PrunePosition {
    pub const START: Self = Self::Deliveries([0; 16]);

    /// Whether it is among deliveries, events or attempts that were created before `time`.
    pub fn is_before(&self, time: Timestamp) -> bool {
        let beyond = first_id(time.as_millis());
        matches!(self, Self::Deliveries(id) | Self::Events(id) | Self::Attempts(id) if *id < beyond)
    }
}

/// The number of deleted rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pruned {
    pub deliveries: u64,
    /// Attempts deleted one by one, without those of dropped days.
    pub attempts: u64,
    /// Events deleted one by one, without those of dropped days.
    pub events: u64,
    /// Days whose events and attempts were dropped at once, also those of which a few were kept.
    pub days: u64,
}

impl Pruned {
    pub const NOTHING: Self = Self { deliveries: 0, attempts: 0, events: 0, days: 0 };
}

impl AddAssign for Pruned {
    fn add_assign(&mut self, more: Self) {
        self.deliveries += more.deliveries;
        self.attempts += more.attempts;
        self.events += more.events;
        self.days += more.days;
    }
}

/// The result of one step of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PruneStep {
    pub pruned: Pruned,
    /// Where the next step continues; `None` at the end of the pass, and while another process prunes.
    pub next: Option<PrunePosition>,
}

impl PruneStep {
    pub fn of(pruned: Pruned, next: impl Into<Option<PrunePosition>>) -> Self {
        Self { pruned, next: next.into() }
    }
}

#[async_trait]
pub trait Prune: Send + Sync {
    /// One step, from `position` on. Deletes deliveries that ended before the cutoff of their state, their attempts, and
    /// events that have no deliveries, with their idempotency keys. A store may keep attempts and events until the whole
    /// day (UTC) of the event is before the cutoff. The transaction is too short to delay deliveries, and a pass may stop
    /// after any step. Only one process prunes at a time.
    async fn prune_some(&self, cutoffs: &Cutoffs, position: PrunePosition) -> StoreResult<PruneStep>;

    /// Gives disk back that the store takes and does not need, and returns how many bytes. Called after a pass.
    async fn compact(&self) -> StoreResult<u64> {
        Ok(0)
    }
}
