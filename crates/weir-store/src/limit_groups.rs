//! Limit groups: budgets that several destinations share.

use std::sync::Arc;

use async_trait::async_trait;
use weir_core::{DestinationId, LimitGroup, LimitGroupId, Timestamp, limit_group::Home};

use crate::StoreResult;

/// The interface for limit groups.
#[async_trait]
pub trait LimitGroups: Send + Sync {
    /// The current values of these groups, in the same order; `None` for a deleted one. Must be cheap and must see every
    /// committed edit, because the scheduler calls it for each batch of runs with members of groups.
    async fn limit_groups(&self, ids: &[LimitGroupId]) -> StoreResult<Vec<Option<Arc<LimitGroup>>>> {
        Ok(vec![None; ids.len()])
    }

    /// The destinations whose sends may count in a window of the group that begins at `since` or later: all that were
    /// members at any time since then, deleted ones included.
    async fn group_senders(&self, _id: LimitGroupId, _since: Timestamp) -> StoreResult<Vec<DestinationId>> {
        Ok(Vec::new())
    }

    /// Forgets homes that a destination has left and that are closed. Does not touch `updated_at`.
    async fn homes_left(&self, _id: DestinationId, _closed: &[Home]) -> StoreResult<()> {
        Ok(())
    }
}
