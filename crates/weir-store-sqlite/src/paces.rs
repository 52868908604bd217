//! Adaptive paces: the copies of their states, and their changes.

use std::collections::HashMap;

use async_trait::async_trait;
use weir_core::{
    DestinationId, Timestamp,
    adaptive::{Change, Status},
};
use weir_store::{
    Page, PageRequest, PaceSave, Paces, SavedPace, StoreResult, pace_change_position, pace_changes_before,
    rows::{pace_change, pace_status, saved_pace},
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sql::{Values, execute, fetch},
    transaction::Transaction,
};

const SAVE: &str = "INSERT INTO paces (destination_id, saved_at, state, status) VALUES (?, ?, ?, ?)
ON CONFLICT (destination_id) DO UPDATE SET saved_at = excluded.saved_at, state = excluded.state, status = excluded.status
WHERE paces.saved_at <= excluded.saved_at";

const RECORD: &str = "INSERT INTO pace_changes (destination_id, at, change) VALUES (?, ?, ?) ON CONFLICT DO NOTHING";

const SAVED: &str = "SELECT saved_at, state FROM paces WHERE destination_id = ?";

const ALL: &str = "SELECT destination_id, status FROM paces";

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
    async fn save_paces(&self, saves: Vec<PaceSave>) -> StoreResult<()> {
        // After a power failure the pace goes on from an older copy.
        self.edit(Durable::No, move |transaction| saves.iter().try_for_each(|save| transaction.save_pace(save))).await
    }

    async fn saved_pace(&self, id: DestinationId) -> StoreResult<Option<SavedPace>> {
        Ok(fetch(&self.readers, SAVED, Values::id(id.as_bytes()), saved_pace).await?.pop().flatten())
    }

    async fn paces(&self) -> StoreResult<HashMap<DestinationId, Status>> {
        Ok(fetch(&self.readers, ALL, Values::default(), pace_status).await?.into_iter().flatten().collect())
    }

    async fn pace_changes(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        page: PageRequest,
    ) -> StoreResult<Page<Change>> {
        let mut values = Values::id(id.as_bytes());
        values.int(from.as_nanos()).int(pace_changes_before(to, page).as_nanos()).int(i64::from(page.limit) + 1);
        let found = fetch(&self.readers, CHANGES, values, pace_change).await?;
        Ok(Page::of(found.into_iter().flatten().map(|(_, change)| change).collect(), page, pace_change_position))
    }

    async fn recent_pace_changes(&self, from: Timestamp, limit: u32) -> StoreResult<Vec<(DestinationId, Change)>> {
        let mut values = Values::default();
        values.int(from.as_nanos()).int(limit.into());
        let found = fetch(&self.readers, RECENT, values, pace_change).await?;
        Ok(found.into_iter().rev().flatten().collect())
    }

    async fn prune_pace_changes(&self, before: Timestamp) -> StoreResult<u64> {
        self.edit(Durable::No, move |transaction| {
            let mut values = Values::default();
            values.int(before.as_nanos()).int(STEP);
            execute(transaction.connection, PRUNE, &values)
        })
        .await
    }
}

impl Transaction<'_, '_> {
    fn save_pace(&mut self, save: &PaceSave) -> Result<()> {
        // The destination may have been deleted meanwhile.
        if self.destinations.get(save.destination_id).is_none() {
            return Ok(());
        }
        let mut values = Values::id(save.destination_id.as_bytes());
        values.int(save.saved_at.as_nanos()).owned_text(serde_json::to_string(&save.state)?);
        values.owned_text(serde_json::to_string(&save.state.status(save.saved_at))?);
        execute(self.connection, SAVE, &values)?;
        for change in &save.changes {
            let mut values = Values::id(save.destination_id.as_bytes());
            values.int(change.at.as_nanos()).owned_text(serde_json::to_string(change)?);
            execute(self.connection, RECORD, &values)?;
        }
        Ok(())
    }
}
