//! Adaptive paces: a copy of each state, from which it goes on after the queue has lost it, and the history of its
//! changes. The copy is at most ten seconds old, and it is what the API shows.

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use weir_core::{
    DestinationId, Timestamp,
    adaptive::{AdaptiveRate, Change, Status},
};

use crate::{Page, PageRequest, StoreResult};

/// How long changes are kept: operators compare a day with the same day of the week before.
pub const PACE_CHANGES_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// The copy of a pace, with its changes since the copy before.
#[derive(Debug, Clone, PartialEq)]
pub struct PaceSave {
    pub destination_id: DestinationId,
    pub saved_at: Timestamp,
    pub state: AdaptiveRate,
    pub changes: Vec<Change>,
}

/// A pace as it was saved.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedPace {
    pub saved_at: Timestamp,
    pub state: AdaptiveRate,
}

/// The position of a change in a list: its time.
pub fn pace_change_position(change: &Change) -> [u8; 16] {
    u128::from(change.at.as_nanos().cast_unsigned()).to_be_bytes()
}

/// The end of a range, or the position of a page in it.
pub fn pace_changes_before(to: Timestamp, page: PageRequest) -> Timestamp {
    let nanos = |position: [u8; 16]| (u128::from_be_bytes(position) as u64).cast_signed();
    page.before.map_or(to, |position| to.min(Timestamp::from_nanos(nanos(position))))
}

#[async_trait]
pub trait Paces: Send + Sync {
    /// Saves copies, each unless a later one is there. A destination may be in the list once. A change that is saved
    /// again is there once.
    async fn save_paces(&self, saves: Vec<PaceSave>) -> StoreResult<()>;

    /// `None`: there is none, or one of another version that this version cannot read.
    async fn saved_pace(&self, id: DestinationId) -> StoreResult<Option<SavedPace>>;

    /// What is to be shown of the paces of all destinations, also of those that are no longer adaptive. One read, of a
    /// row for each.
    async fn paces(&self) -> StoreResult<HashMap<DestinationId, Status>>;

    /// The changes of one pace in `[from, to)`, newest first.
    async fn pace_changes(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        page: PageRequest,
    ) -> StoreResult<Page<Change>>;

    /// The last changes of all paces since `from`, oldest first, at most `limit`.
    async fn recent_pace_changes(&self, from: Timestamp, limit: u32) -> StoreResult<Vec<(DestinationId, Change)>>;

    /// Deletes some changes from before this time. Returns how many; 0 when none is left.
    async fn prune_pace_changes(&self, before: Timestamp) -> StoreResult<u64>;
}
