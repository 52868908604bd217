//! What outlives the queue of the paces of adaptive destinations: a copy of each, and its changes.

use std::time::Duration;

use async_trait::async_trait;
use weir_core::{DestinationId, Timestamp, adaptive::Change};

use crate::{Page, PageRequest, StoreResult, TRAFFIC_BUCKET, TrafficLog};

/// The time in which a receiver shows what it takes.
const LATELY: Duration = Duration::from_secs(60);

/// How long changes are kept: operators compare a day with the same day of the week before.
pub const PACE_CHANGES_KEPT: Duration = Duration::from_secs(7 * 86_400);

/// The last copy of a pace.
#[derive(Debug, Clone, PartialEq)]
pub struct PaceCopy {
    /// A [`weir_core::adaptive::AdaptiveRate`] as JSON, less than 2 KB.
    pub json: String,
    pub saved_at: Timestamp,
}

/// What a run has to say of a pace. At least one of the two is there.
#[derive(Debug, Clone, PartialEq)]
pub struct PaceRecord {
    pub destination_id: DestinationId,
    /// Replaces the last copy: after a change of a tenth or more, at most every ten seconds.
    pub copy: Option<PaceCopy>,
    /// The pace went up or down by a tenth or more.
    pub change: Option<Change>,
}

/// The position of a change in a list: its time.
pub fn pace_change_position(change: &Change) -> [u8; 16] {
    u128::from(change.at.as_nanos().cast_unsigned()).to_be_bytes()
}

/// The end of a page of changes: that of the range, or the position of the page.
pub fn pace_changes_before(to: Timestamp, page: PageRequest) -> Timestamp {
    let nanos = |position: [u8; 16]| (u128::from_be_bytes(position) as u64).cast_signed();
    page.before.map_or(to, |position| to.min(Timestamp::from_nanos(nanos(position))))
}

/// For [`Paces::taken_lately`].
pub async fn taken_lately(
    store: &impl TrafficLog,
    ids: &[DestinationId],
    now: Timestamp,
) -> StoreResult<Vec<Option<f64>>> {
    let counted = store.traffic_of(ids, now.before(LATELY).floor(TRAFFIC_BUCKET), TRAFFIC_BUCKET).await?;
    let most = |id| counted.get(id)?.iter().map(|(_, traffic)| traffic.delivered).max();
    let per_s = |delivered| delivered as f64 / TRAFFIC_BUCKET.as_secs_f64();
    Ok(ids.iter().map(|id| most(id).map(per_s)).collect())
}

/// The methods do nothing for a store that keeps no paces.
#[async_trait]
pub trait Paces: Send + Sync {
    /// The copies of these destinations, in the order of the request. Read only where the queue has no pace.
    async fn paces(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<PaceCopy>>> {
        Ok(vec![None; ids.len()])
    }

    /// The most that each of these receivers took in ten seconds of the last minute, per second; `None` without traffic. Read
    /// only where the queue has no pace.
    async fn taken_lately(&self, ids: &[DestinationId], _now: Timestamp) -> StoreResult<Vec<Option<f64>>> {
        Ok(vec![None; ids.len()])
    }

    /// Records copies and changes. A destination that was deleted meanwhile is left out, and so are a copy that is older
    /// than the last one and a change that is recorded again.
    async fn record_paces(&self, _records: &[PaceRecord]) -> StoreResult<()> {
        Ok(())
    }

    /// The changes of one pace in `[from, to)`, newest first.
    async fn pace_changes(
        &self,
        _id: DestinationId,
        _from: Timestamp,
        _to: Timestamp,
        page: PageRequest,
    ) -> StoreResult<Page<Change>> {
        Ok(Page::of(Vec::new(), page, pace_change_position))
    }

    /// The last changes of all paces since `from`, oldest first, at most `limit`.
    async fn recent_pace_changes(&self, _from: Timestamp, _limit: u32) -> StoreResult<Vec<(DestinationId, Change)>> {
        Ok(Vec::new())
    }

    /// Deletes some changes from before this time. Returns how many; 0 when none is left.
    async fn prune_pace_changes(&self, _before: Timestamp) -> StoreResult<u64> {
        Ok(0)
    }
}
