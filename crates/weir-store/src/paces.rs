//! What outlives the queue of the paces of adaptive destinations: a copy of each, and its changes.

use async_trait::async_trait;
use weir_core::{DestinationId, Timestamp, adaptive::Change};

use crate::StoreResult;

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

#[async_trait]
pub trait Paces: Send + Sync {
    /// The copies of these destinations, in the order of the request. Read only where the queue has no pace.
    async fn paces(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<PaceCopy>>> {
        Ok(vec![None; ids.len()])
    }

    /// Records copies and changes. A destination that was deleted meanwhile is left out.
    async fn record_paces(&self, _records: &[PaceRecord]) -> StoreResult<()> {
        Ok(())
    }
}
