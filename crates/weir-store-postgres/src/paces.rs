//! Adaptive paces: the copies of their states, and their changes.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use weir_core::{
    DestinationId, Timestamp,
    adaptive::{Change, Status},
};
use weir_store::{
    Page, PageRequest, PaceSave, Paces, SavedPace, StoreResult, pace_change_position, pace_changes_before,
    rows::{pace_change, pace_status, saved_pace},
};

use crate::{
    PostgresStore,
    edit::change,
    rows::{unwritable, uuid},
};

/// In the order of ids, so that two processes never wait for each other. A destination may have been deleted meanwhile.
const SAVE: &str = "INSERT INTO paces (destination_id, saved_at, state, status)
SELECT id, saved.at, saved.state, saved.status
    FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[]) AS saved (of, at, state, status)
    JOIN destinations ON id = saved.of AND deleted_at IS NULL ORDER BY id
ON CONFLICT (destination_id) DO UPDATE SET saved_at = excluded.saved_at, state = excluded.state, status = excluded.status
WHERE paces.saved_at <= excluded.saved_at";

const RECORD: &str = "INSERT INTO pace_changes (destination_id, at, change)
SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS recorded (of, at, change) ORDER BY 1, 2
ON CONFLICT DO NOTHING";

const SAVED: &str = "SELECT saved_at, state FROM paces WHERE destination_id = $1";

const ALL: &str = "SELECT destination_id, status FROM paces";

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
    async fn save_paces(&self, saves: Vec<PaceSave>) -> StoreResult<()> {
        self.edit(|connection| change(save(connection, &saves))).await
    }

    async fn saved_pace(&self, id: DestinationId) -> StoreResult<Option<SavedPace>> {
        let query = sqlx::query(SAVED).bind(uuid(id.as_bytes()));
        Ok(self.read(query, saved_pace).await?.pop().flatten())
    }

    async fn paces(&self) -> StoreResult<HashMap<DestinationId, Status>> {
        Ok(self.read(sqlx::query(ALL), pace_status).await?.into_iter().flatten().collect())
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

async fn save(connection: &mut PgConnection, saves: &[PaceSave]) -> Result<(), sqlx::Error> {
    let json = |value: Result<String, serde_json::Error>| value.map_err(unwritable);
    let ids: Vec<_> = saves.iter().map(|save| uuid(save.destination_id.as_bytes())).collect();
    let times: Vec<i64> = saves.iter().map(|save| save.saved_at.as_nanos()).collect();
    let states: Vec<String> =
        saves.iter().map(|save| json(serde_json::to_string(&save.state))).collect::<Result<_, _>>()?;
    let statuses: Vec<String> = saves
        .iter()
        .map(|save| json(serde_json::to_string(&save.state.status(save.saved_at))))
        .collect::<Result<_, _>>()?;
    let changes = || saves.iter().flat_map(|save| save.changes.iter().map(|change| (save.destination_id, change)));
    let changed: Vec<_> = changes().map(|(id, _)| uuid(id.as_bytes())).collect();
    let changed_at: Vec<i64> = changes().map(|(_, change)| change.at.as_nanos()).collect();
    let changes: Vec<String> =
        changes().map(|(_, change)| json(serde_json::to_string(change))).collect::<Result<_, _>>()?;
    let mut transaction = connection.begin().await?;
    sqlx::query(SAVE).bind(ids).bind(times).bind(states).bind(statuses).execute(&mut *transaction).await?;
    if !changed.is_empty() {
        sqlx::query(RECORD).bind(changed).bind(changed_at).bind(changes).execute(&mut *transaction).await?;
    }
    transaction.commit().await
}

async fn prune(connection: &mut PgConnection, before: Timestamp) -> Result<u64, sqlx::Error> {
    Ok(sqlx::query(PRUNE).bind(before.as_nanos()).bind(STEP).execute(connection).await?.rows_affected())
}
