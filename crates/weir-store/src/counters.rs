//! Counters: the number of deliveries in each state, for each destination.
//!
//! They change in the transactions that change deliveries, so they always equal a count of the deliveries themselves.
//! The conformance suite compares the two after every test. Reading them never reads deliveries, so the counts of
//! thousands of destinations cost a few milliseconds, however long their backlogs are.

use std::collections::HashMap;

use async_trait::async_trait;
use weir_core::{DeliveryId, DeliveryState, DestinationId, Timestamp};

use crate::StoreResult;

/// The number of deliveries of one destination in each state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StateCounts([u64; DeliveryState::ALL.len()]);

impl StateCounts {
    /// In the order of [`DeliveryState::ALL`].
    pub fn new(counts: [u64; DeliveryState::ALL.len()]) -> Self {
        Self(counts)
    }

    /// From rows with a destination, a state, and the number of its deliveries in this state.
    pub fn of_rows(
        rows: impl IntoIterator<Item = (DestinationId, DeliveryState, u64)>,
    ) -> HashMap<DestinationId, Self> {
        let mut counted: HashMap<_, Self> = HashMap::new();
        for (id, state, deliveries) in rows {
            counted.entry(id).or_default().add(state, deliveries);
        }
        counted
    }

    pub fn of(&self, state: DeliveryState) -> u64 {
        self.0[state as usize]
    }

    /// Adds deliveries in one state.
    pub fn add(&mut self, state: DeliveryState, deliveries: u64) {
        self.0[state as usize] += deliveries;
    }

    /// The backlog: deliveries that wait for a claim.
    pub fn waiting(&self) -> u64 {
        self.of(DeliveryState::Pending) + self.of(DeliveryState::Retrying)
    }

    /// Deliveries that ended because their attempts did not succeed. A delivery that is sent again waits, so it is not
    /// among them.
    pub fn dead_letters(&self) -> u64 {
        self.of(DeliveryState::Dead) + self.of(DeliveryState::Failed)
    }

    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|&deliveries| deliveries == 0)
    }
}

/// The position of a waiting delivery in the order of the claims of its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DuePosition {
    /// Whether a replay sends it again: live deliveries are claimed apart from these.
    pub is_replay: bool,
    /// How many deliveries of the same part are due before it.
    pub ahead: u64,
}

/// The positions of some waiting deliveries of one destination.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DuePositions {
    /// Without the deliveries that do not wait, and without those that are further back than was looked.
    pub found: HashMap<DeliveryId, DuePosition>,
    /// How many live deliveries are due, as far as was looked. Only counted if one of those found is of a replay.
    pub live_due: u64,
}

/// The most entries of the due index that one call of [`Counters::due_positions`] reads of each part.
pub const POSITIONS_LOOKED_AT: u32 = 10_000;

/// The changes that are not in the totals yet.
#[async_trait]
pub trait CountChanges: Send + Sync {
    /// Folds recorded changes into the totals. Returns how many rows of changes it folded: fewer than
    /// [`FOLDED_AT_ONCE`] if none are left, or if another process folds. A fold changes no result of a read.
    async fn fold_changes(&self) -> StoreResult<u64>;
}

#[async_trait]
pub trait Counters: Send + Sync {
    /// The counts of these destinations, in the same order; zeros for one without deliveries.
    async fn counts(&self, ids: &[DestinationId]) -> StoreResult<Vec<StateCounts>>;

    /// The counts of all destinations that have deliveries, also of deleted ones, in one statement.
    async fn all_counts(&self) -> StoreResult<HashMap<DestinationId, StateCounts>>;

    /// When the oldest waiting delivery of each destination was created, in the same order; `None` if none waits. A few
    /// probes of an index for each destination, so ask only for those with a backlog.
    ///
    /// The oldest is the earliest of three: the live delivery and the delivery of a replay that have been due for the
    /// longest, and the oldest retry. A delivery that is delayed, or was sent again by hand, is counted from when it
    /// became due, because a younger one that has been due for longer comes before it.
    async fn oldest_waiting(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Timestamp>>>;

    /// The positions of these deliveries among those that wait for the destination or for the flow of a limit key, in the order of
    /// claims. Looks at the first
    /// `most` entries of the due index, at most [`POSITIONS_LOOKED_AT`], so the cost does not depend on the backlog.
    async fn due_positions(
        &self,
        id: DestinationId,
        deliveries: &[DeliveryId],
        most: u32,
        now: Timestamp,
    ) -> StoreResult<DuePositions>;

    /// Counts the deliveries themselves, reading all of them: to check the counters.
    async fn count_by_scan(&self) -> StoreResult<HashMap<DestinationId, StateCounts>>;
}

/// The most rows of changes that one call folds: about 10 ms of the store's time.
pub const FOLDED_AT_ONCE: u32 = 5_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backlog_and_the_dead_letters_are_sums_of_states() {
        let mut counts = StateCounts::default();
        assert!(counts.is_empty());
        for (index, state) in DeliveryState::ALL.into_iter().enumerate() {
            counts.add(state, 1 << index);
        }
        assert_eq!(counts, StateCounts::new([1, 2, 4, 8, 16, 32, 64, 128, 256]));
        assert_eq!((counts.waiting(), counts.dead_letters()), (1 + 4, 16 + 32));
        assert_eq!(counts.of(DeliveryState::Expired), 256);
    }
}
