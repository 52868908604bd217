//! Adaptive paces: the copies of their states, and their changes.

use async_trait::async_trait;
use weir_core::{DestinationId, Timestamp, adaptive::Change};
use weir_store::{
    PaceCopy, PaceRecord, Paces, Page, PageRequest, StoreResult, pace_change_position, pace_changes_before,
    rows::{pace_change, pace_copy},
    taken_lately,
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sql::{execute, fetch, values},
    transaction::Transaction,
};

const SAVE: &str = "INSERT INTO paces (destination_id, saved_at, state) VALUES (?, ?, ?)
ON CONFLICT (destination_id) DO UPDATE SET saved_at = excluded.saved_at, state = excluded.state
WHERE paces.saved_at <= excluded.saved_at";

const RECORD: &str = "INSERT INTO pace_changes (destination_id, at, change) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";

const SAVED: &str = "SELECT destination_id, saved_at, state FROM paces WHERE destination_id = ?";

pub(crate) const CHANGES: &str = "SELECT destination_id, change FROM pace_changes
WHERE destination_id = ? AND at >= ? AND at < ? ORDER BY at DESC LIMIT +?";

pub(crate) const RECENT: &str = "SELECT destination_id, change FROM pace_changes INDEXED BY pace_changes_by_time
WHERE at >= ? ORDER BY at DESC LIMIT +?";

pub(crate) const PRUNE: &str = "DELETE FROM pace_changes WHERE (destination_id, at) IN (
    SELECT destination_id, at FROM pace_changes INDEXED BY pace_changes_by_time WHERE at < ? ORDER BY at LIMIT +?)";

/// The copy of a destination that is deleted is of no use.
pub(crate) const FORGET: &str = "DELETE FROM paces WHERE destination_id = ?";

/// The most rows that one step deletes: about a millisecond of the writer's time.
const STEP: i64 = 500;

#[async_trait]
impl Paces for SqliteStore {
    async fn paces(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<PaceCopy>>> {
        // Asked for after a loss of the queue, and for a page: one probe for each is cheap enough.
        let mut copies = Vec::with_capacity(ids.len());
        for id in ids {
            let found = fetch(&self.readers, SAVED, values![id.as_bytes()], pace_copy).await?.pop();
            copies.push(found.map(|(_, copy)| copy));
        }
        Ok(copies)
    }

    async fn taken_lately(&self, ids: &[DestinationId], now: Timestamp) -> StoreResult<Vec<Option<f64>>> {
        taken_lately(self, ids, now).await
    }

    async fn record_paces(&self, records: &[PaceRecord]) -> StoreResult<()> {
        let records = records.to_vec();
        // After a power failure the pace goes on from an older copy.
        self.edit(Durable::No, move |transaction| records.iter().try_for_each(|record| transaction.record_pace(record)))
            .await
    }

    async fn pace_changes(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        page: PageRequest,
    ) -> StoreResult<Page<Change>> {
        let values = values![id.as_bytes(), from, pace_changes_before(to, page), i64::from(page.limit) + 1];
        let found = fetch(&self.readers, CHANGES, values, pace_change).await?;
        Ok(Page::of(found.into_iter().flatten().map(|(_, change)| change).collect(), page, pace_change_position))
    }

    async fn recent_pace_changes(&self, from: Timestamp, limit: u32) -> StoreResult<Vec<(DestinationId, Change)>> {
        let found = fetch(&self.readers, RECENT, values![from, limit], pace_change).await?;
        Ok(found.into_iter().rev().flatten().collect())
    }

    async fn prune_pace_changes(&self, before: Timestamp) -> StoreResult<u64> {
        self.edit(Durable::No, move |transaction| execute(transaction.connection, PRUNE, &values![before, STEP])).await
    }
}

impl Transaction<'_, '_> {
    fn record_pace(&mut self, record: &PaceRecord) -> Result<()> {
        let &PaceRecord { destination_id: id, ref copy, ref change } = record;
        if self.destinations.get(id).is_none() {
            return Ok(());
        }
        if let Some(PaceCopy { json, saved_at }) = copy {
            execute(self.connection, SAVE, &values![id.as_bytes(), saved_at, json])?;
        }
        if let Some(change) = change {
            execute(self.connection, RECORD, &values![id.as_bytes(), change.at, serde_json::to_string(change)?])?;
        }
        Ok(())
    }
}
