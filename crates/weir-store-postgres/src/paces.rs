//! Adaptive paces: the copies of their states, and their changes.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use weir_core::{DestinationId, Timestamp, adaptive::Change};
use weir_store::{
    PaceCopy, PaceRecord, Paces, Page, PageRequest, StoreResult, pace_change_position, pace_changes_before,
    rows::{pace_change, pace_copy},
    taken_lately,
};

use crate::{
    PostgresStore,
    edit::change,
    rows::{unwritable, uuid},
};

/// In the order of ids, so that two processes never wait for each other. A destination may have been deleted meanwhile.
const SAVE: &str = "INSERT INTO paces (destination_id, saved_at, state)
SELECT id, saved.at, saved.state FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS saved (of, at, state)
    JOIN destinations ON id = saved.of AND deleted_at IS NULL ORDER BY id
ON CONFLICT (destination_id) DO UPDATE SET saved_at = excluded.saved_at, state = excluded.state
WHERE paces.saved_at <= excluded.saved_at";

const RECORD: &str = "INSERT INTO pace_changes (destination_id, at, change)
SELECT id, changed.at, changed.change FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS changed (of, at, change)
    JOIN destinations ON id = changed.of AND deleted_at IS NULL ORDER BY id, changed.at
ON CONFLICT DO NOTHING";

const SAVED: &str = "SELECT destination_id, saved_at, state FROM paces WHERE destination_id = ANY($1)";

pub(crate) const CHANGES: &str = "SELECT destination_id, change FROM pace_changes
WHERE destination_id = $1 AND at >= $2 AND at < $3 ORDER BY at DESC LIMIT $4";

pub(crate) const RECENT: &str =
    "SELECT destination_id, change FROM pace_changes WHERE at >= $1 ORDER BY at DESC LIMIT $2";

pub(crate) const PRUNE: &str = "DELETE FROM pace_changes WHERE (destination_id, at) IN (
    SELECT destination_id, at FROM pace_changes WHERE at < $1 ORDER BY at LIMIT $2)";

/// The copy of a destination that is deleted is of no use.
pub(crate) const FORGET: &str = "DELETE FROM paces WHERE destination_id = $1";

/// The most rows that one step deletes.
const STEP: i64 = 500;

#[async_trait]
impl Paces for PostgresStore {
    async fn paces(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<PaceCopy>>> {
        let asked: Vec<_> = ids.iter().map(|id| uuid(id.as_bytes())).collect();
        let mut found: HashMap<_, _> =
            self.read(sqlx::query(SAVED).bind(asked), pace_copy).await?.into_iter().collect();
        Ok(ids.iter().map(|id| found.remove(id)).collect())
    }

    async fn taken_lately(&self, ids: &[DestinationId], now: Timestamp) -> StoreResult<Vec<Option<f64>>> {
        taken_lately(self, ids, now).await
    }

    async fn record_paces(&self, records: &[PaceRecord]) -> StoreResult<()> {
        self.edit(|connection| change(record(connection, records))).await
    }

    async fn pace_changes(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        page: PageRequest,
    ) -> StoreResult<Page<Change>> {
        let query = sqlx::query(CHANGES)
            .bind(uuid(id.as_bytes()))
            .bind(from.as_nanos())
            .bind(pace_changes_before(to, page).as_nanos())
            .bind(i64::from(page.limit) + 1);
        let found = self.read(query, pace_change).await?;
        Ok(Page::of(found.into_iter().flatten().map(|(_, change)| change).collect(), page, pace_change_position))
    }

    async fn recent_pace_changes(&self, from: Timestamp, limit: u32) -> StoreResult<Vec<(DestinationId, Change)>> {
        let query = sqlx::query(RECENT).bind(from.as_nanos()).bind(i64::from(limit));
        Ok(self.read(query, pace_change).await?.into_iter().rev().flatten().collect())
    }

    async fn prune_pace_changes(&self, before: Timestamp) -> StoreResult<u64> {
        self.edit(|connection| change(prune(connection, before))).await
    }
}

async fn record(connection: &mut PgConnection, records: &[PaceRecord]) -> Result<(), sqlx::Error> {
    let (mut copied, mut saved_at, mut states) = (Vec::new(), Vec::new(), Vec::new());
    let (mut changed, mut changed_at, mut changes) = (Vec::new(), Vec::new(), Vec::new());
    for PaceRecord { destination_id, copy, change } in records {
        if let Some(PaceCopy { json, saved_at: at }) = copy {
            copied.push(uuid(destination_id.as_bytes()));
            saved_at.push(at.as_nanos());
            states.push(json.as_str());
        }
        if let Some(change) = change {
            changed.push(uuid(destination_id.as_bytes()));
            changed_at.push(change.at.as_nanos());
            changes.push(serde_json::to_string(change).map_err(unwritable)?);
        }
    }
    let mut transaction = connection.begin().await?;
    if !copied.is_empty() {
        sqlx::query(SAVE).bind(copied).bind(saved_at).bind(states).execute(&mut *transaction).await?;
    }
    if !changed.is_empty() {
        sqlx::query(RECORD).bind(changed).bind(changed_at).bind(changes).execute(&mut *transaction).await?;
    }
    transaction.commit().await
}

async fn prune(connection: &mut PgConnection, before: Timestamp) -> Result<u64, sqlx::Error> {
    Ok(sqlx::query(PRUNE).bind(before.as_nanos()).bind(STEP).execute(connection).await?.rows_affected())
}
