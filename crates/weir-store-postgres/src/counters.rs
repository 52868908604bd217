//! Counters: the totals plus the changes that are not folded into them yet. Triggers record the changes
//! (`migrations/postgres/functions/count_deliveries.sql`), so no statement here writes them.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, postgres::PgRow};
use weir_core::{DeliveryId, DestinationId, Timestamp, limit_key};
use weir_store::{
    CountChanges, Counters, DuePositions, FOLDED_AT_ONCE, POSITIONS_LOOKED_AT, StateCounts, StoreResult,
    rows::{self, Row as _},
    sql,
};

use crate::{
    PostgresStore,
    edit::change,
    flow_statements::{LIVE_DUE, LIVE_DUE_OF_FLOW, PLACES, PLACES_OF_FLOW},
    rows::{column, uuid},
};

/// Both parts are read in one statement, so that a fold between them cannot be missed or counted twice.
const COUNTED: &str = "SELECT destination_id, {summed_states} FROM (
        SELECT destination_id, {state_columns} FROM destination_totals {which}
        UNION ALL
        SELECT destination_id, {state_columns} FROM count_changes {which}
    ) counted GROUP BY destination_id";

pub(crate) const COUNTS: &str = sql!(COUNTED, &[("which", "WHERE destination_id = ANY($1)")]);
const ALL_COUNTS: &str = sql!(COUNTED, &[("which", "")]);

/// One probe of an index for each of the three deliveries that may be the oldest.
pub(crate) const OLDEST_WAITING: &str = sql! {"
SELECT r.id, least(
    (SELECT created_at FROM deliveries WHERE destination_id = r.id AND NOT is_replay AND state IN ({waiting})
        ORDER BY next_attempt_at, id LIMIT 1),
    (SELECT created_at FROM deliveries WHERE destination_id = r.id AND is_replay AND state IN ({waiting})
        ORDER BY next_attempt_at, id LIMIT 1),
    (SELECT created_at FROM deliveries WHERE destination_id = r.id AND state - {retrying} = 0 ORDER BY id LIMIT 1)
) FROM unnest($1::uuid[]) AS r (id)"};

/// Reads all claims of a destination: there are only as many as its sends in flight.
pub(crate) const OLDEST_IN_FLIGHT: &str =
    sql!("SELECT min(created_at) FROM deliveries WHERE destination_id = $1 AND state = {delivering}");

const COUNT_BY_SCAN: &str = "SELECT destination_id, state, count(*) FROM deliveries GROUP BY destination_id, state";

const HAS_CHANGES: &str = "SELECT 1 FROM count_changes UNION ALL SELECT 1 FROM traffic_changes LIMIT 1";

/// A power failure may undo the transaction. After an undone fold the changes are in their tables again, and the next
/// fold takes them.
pub(crate) const RECOVERABLE: &str = "SET LOCAL synchronous_commit = off";

/// One process folds at a time.
pub(crate) const TAKE_LOCK: &str = "SELECT pg_try_advisory_xact_lock(hashtext('weir.fold'))";

/// Deletes some changes and adds them to the totals, to the traffic and to the histograms.
pub(crate) const FOLD: &str = sql!(
    "
WITH counts AS MATERIALIZED (
    DELETE FROM count_changes WHERE ctid = ANY (ARRAY(SELECT ctid FROM count_changes LIMIT $1)) RETURNING *
), sent AS MATERIALIZED (
    DELETE FROM traffic_changes WHERE ctid = ANY (ARRAY(SELECT ctid FROM traffic_changes LIMIT $1)) RETURNING *
), totals AS (
    INSERT INTO destination_totals AS t (destination_id, {state_columns}, last_success_at)
    SELECT destination_id, {summed_states}, max(last_success_at) FROM (
        SELECT destination_id, {state_columns}, NULL::bigint AS last_success_at FROM counts
        UNION ALL
        SELECT destination_id, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, last_success_at FROM sent
    ) changes GROUP BY destination_id
    ON CONFLICT (destination_id) DO UPDATE
    SET last_success_at = greatest(t.last_success_at, excluded.last_success_at), {added_states}
), traffic AS (
    INSERT INTO traffic AS t (at, destination_id, {traffic_columns})
    SELECT at, destination_id, {summed_traffic} FROM (
        SELECT at, destination_id, sends, delivered, failed, dead, 0 AS arrivals, 0 AS backlog_change, throttled FROM sent
        UNION ALL
        SELECT at, destination_id, 0, 0, 0, 0, coalesce(arrivals, 0), coalesce(pending, 0) + coalesce(retrying, 0), 0
        FROM counts WHERE arrivals IS NOT NULL OR pending IS NOT NULL OR retrying IS NOT NULL
    ) changes GROUP BY at, destination_id
    ON CONFLICT (at, destination_id) DO UPDATE SET {added_traffic}
), histograms AS (
    INSERT INTO traffic_histograms AS t (at, destination_id, kind, value, n)
    SELECT at - at % 60000000000, destination_id, kind, value, count(*) FROM (
        SELECT at, destination_id, 0 AS kind, unnest(latencies)::integer AS value FROM sent
        UNION ALL
        SELECT at, destination_id, 1, unnest(attempts) FROM sent
    ) sends GROUP BY 1, 2, 3, 4
    ON CONFLICT (at, destination_id, kind, value) DO UPDATE SET n = t.n + excluded.n
)
SELECT greatest((SELECT count(*) FROM counts), (SELECT count(*) FROM sent))"
);

#[async_trait]
impl CountChanges for PostgresStore {
    async fn fold_changes(&self) -> StoreResult<u64> {
        // Ask first, so that an idle store does not write every second.
        if self.read(sqlx::query(HAS_CHANGES), |_| Ok(())).await?.is_empty() {
            return Ok(0);
        }
        self.edit(|connection| change(fold(connection))).await
    }
}

#[async_trait]
impl Counters for PostgresStore {
    async fn counts(&self, ids: &[DestinationId]) -> StoreResult<Vec<StateCounts>> {
        let query = sqlx::query(COUNTS).bind(column(ids, |id| uuid(id.as_bytes())));
        let found: HashMap<DestinationId, StateCounts> =
            self.read(query, rows::state_counts).await?.into_iter().collect();
        Ok(ids.iter().map(|id| found.get(id).copied().unwrap_or_default()).collect())
    }

    async fn all_counts(&self) -> StoreResult<HashMap<DestinationId, StateCounts>> {
        let all = self.read(sqlx::query(ALL_COUNTS), rows::state_counts).await?;
        Ok(all.into_iter().filter(|(_, counts)| !counts.is_empty()).collect())
    }

    async fn oldest_waiting(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Timestamp>>> {
        let query = sqlx::query(OLDEST_WAITING).bind(column(ids, |id| uuid(id.as_bytes())));
        let read = |row: &PgRow| Ok((row.destination_id(0)?, row.optional_time(1)?));
        let found: HashMap<_, _> = self.read(query, read).await?.into_iter().collect();
        Ok(ids.iter().map(|id| found.get(id).copied().flatten()).collect())
    }

    async fn due_positions(
        &self,
        id: DestinationId,
        deliveries: &[DeliveryId],
        most: u32,
        now: Timestamp,
    ) -> StoreResult<DuePositions> {
        let most = i64::from(most.min(POSITIONS_LOOKED_AT));
        let (of_places, live_due) =
            if limit_key::is_of_key(id) { (PLACES_OF_FLOW, LIVE_DUE_OF_FLOW) } else { (PLACES, LIVE_DUE) };
        let query = sqlx::query(of_places).bind(uuid(id.as_bytes())).bind(most);
        let query = query.bind(column(deliveries, |id| uuid(id.as_bytes())));
        let found = self.read(query, rows::due_position).await?.into_iter().collect();
        let mut positions = DuePositions { found, live_due: 0 };
        if positions.found.values().any(|position| position.is_replay) {
            let query = sqlx::query(live_due).bind(uuid(id.as_bytes())).bind(now.as_nanos()).bind(most);
            positions.live_due = self.read(query, |row| row.count(0)).await?.pop().unwrap_or(0);
        }
        Ok(positions)
    }

    async fn count_by_scan(&self) -> StoreResult<HashMap<DestinationId, StateCounts>> {
        let counted = self.read(sqlx::query(COUNT_BY_SCAN), rows::counted_state).await?;
        Ok(StateCounts::of_rows(counted))
    }
}

/// Folds some rows of changes into the totals. Answers 0 while another process folds.
async fn fold(connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query(RECOVERABLE).execute(&mut *transaction).await?;
    if !sqlx::query(TAKE_LOCK).fetch_one(&mut *transaction).await?.flag(0)? {
        transaction.rollback().await?;
        return Ok(0);
    }
    let folded = sqlx::query(FOLD).bind(i64::from(FOLDED_AT_ONCE)).fetch_one(&mut *transaction).await?.count(0)?;
    transaction.commit().await?;
    Ok(folded)
}
