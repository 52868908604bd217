//! Counters: the totals plus the changes that are not folded into them yet (change_log.rs).

use std::collections::HashMap;

use async_trait::async_trait;
use weir_core::{DeliveryId, DestinationId, Timestamp, limit_key};
use weir_store::{
    CountChanges, Counters, DuePositions, FOLDED_AT_ONCE, POSITIONS_LOOKED_AT, StateCounts, StoreResult,
    rows::{self, Row as _},
    sql,
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    flow_statements::{LIVE_DUE, LIVE_DUE_OF_FLOW, PLACES, PLACES_OF_FLOW},
    sql::{Batch, MAX_ROWS, Values, execute, fetch, query, values},
    transaction::Transaction,
};

/// Both parts are read in one statement, so that a fold between them cannot be missed or counted twice.
static COUNTS: Batch = Batch::new(
    "WITH asked (id) AS (SELECT column1 FROM (VALUES ",
    "(?)",
    sql!(
        ") WHERE column1 IS NOT NULL)
        SELECT destination_id, {summed_states} FROM (
            SELECT destination_id, {state_columns} FROM asked CROSS JOIN destination_totals ON destination_id = asked.id
            UNION ALL
            SELECT destination_id, {state_columns} FROM count_changes WHERE destination_id IN (SELECT id FROM asked)
        ) GROUP BY destination_id"
    ),
);

const ALL_COUNTS: &str = sql!(
    "SELECT destination_id, {summed_states} FROM (
        SELECT destination_id, {state_columns} FROM destination_totals
        UNION ALL
        SELECT destination_id, {state_columns} FROM count_changes
    ) GROUP BY destination_id"
);

/// One probe of an index for each of the three deliveries that may be the oldest.
pub(crate) static OLDEST_WAITING: Batch = Batch::new(
    sql! {"SELECT r.column1, (
        SELECT min(created_at) FROM deliveries WHERE id IN (
            (SELECT id FROM deliveries INDEXED BY deliveries_due
                WHERE destination_id = r.column1 AND is_replay = 0 AND state IN ({waiting}) ORDER BY next_attempt_at, id LIMIT 1),
            (SELECT id FROM deliveries INDEXED BY deliveries_due
                WHERE destination_id = r.column1 AND is_replay = 1 AND state IN ({waiting}) ORDER BY next_attempt_at, id LIMIT 1),
            (SELECT id FROM deliveries INDEXED BY deliveries_retrying
                WHERE destination_id = r.column1 AND state = {retrying} ORDER BY id LIMIT 1)
        )
    ) FROM (VALUES "},
    "(?)",
    ") AS r WHERE r.column1 IS NOT NULL",
);

/// Reads all claims of a destination: there are only as many as its sends in flight.
pub(crate) const OLDEST_IN_FLIGHT: &str = sql! {"
SELECT created_at FROM deliveries WHERE id = (
    SELECT min(id) FROM deliveries INDEXED BY deliveries_claimed WHERE destination_id = ? AND state = {delivering}
)"};

const COUNT_BY_SCAN: &str = "SELECT destination_id, state, count(*) FROM deliveries GROUP BY destination_id, state";

/// The last row of a step of the fold, if more rows remain.
const LAST_OF_STEP: &str = "SELECT rowid FROM count_changes ORDER BY rowid LIMIT 1 OFFSET +?";

const FOLD_COUNTS: &str = sql!(
    "INSERT INTO destination_totals AS t (destination_id, {state_columns}) SELECT destination_id, {summed_states} FROM count_changes WHERE rowid <= ? GROUP BY destination_id
    ON CONFLICT (destination_id) DO UPDATE SET {added_states}"
);

const DELETE_COUNTS: &str = "DELETE FROM count_changes WHERE rowid <= ?";

const HAS_CHANGES: &str = "SELECT 1 FROM count_changes UNION ALL SELECT 1 FROM traffic_changes LIMIT 1";

#[async_trait]
impl CountChanges for SqliteStore {
    async fn fold_changes(&self) -> StoreResult<u64> {
        // Ask a reader first, so that an idle store does not write every second.
        if fetch(&self.readers, HAS_CHANGES, Values::default(), |_| Ok(())).await?.is_empty() {
            return Ok(0);
        }
        self.edit(Durable::No, |transaction| transaction.fold_changes()).await
    }
}

#[async_trait]
impl Counters for SqliteStore {
    async fn counts(&self, ids: &[DestinationId]) -> StoreResult<Vec<StateCounts>> {
        let mut found: HashMap<DestinationId, StateCounts> = HashMap::with_capacity(ids.len());
        for part in ids.chunks(MAX_ROWS) {
            let (sql, values) = COUNTS.of_destinations(part);
            found.extend(fetch(&self.readers, sql, values, rows::state_counts).await?);
        }
        Ok(ids.iter().map(|id| found.get(id).copied().unwrap_or_default()).collect())
    }

    async fn all_counts(&self) -> StoreResult<HashMap<DestinationId, StateCounts>> {
        let mut all: HashMap<_, _> =
            fetch(&self.readers, ALL_COUNTS, Values::default(), rows::state_counts).await?.into_iter().collect();
        all.retain(|_, counts| !counts.is_empty());
        Ok(all)
    }

    async fn oldest_waiting(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Timestamp>>> {
        let mut found = HashMap::with_capacity(ids.len());
        for part in ids.chunks(MAX_ROWS) {
            let (sql, values) = OLDEST_WAITING.of_destinations(part);
            let read = |row: &sqlx::sqlite::SqliteRow| Ok((row.destination_id(0)?, row.optional_time(1)?));
            found.extend(fetch(&self.readers, sql, values, read).await?);
        }
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
            if limit_key::is_of_key(id) { (&PLACES_OF_FLOW, LIVE_DUE_OF_FLOW) } else { (&PLACES, LIVE_DUE) };
        let mut positions = DuePositions::default();
        for part in deliveries.chunks(MAX_ROWS) {
            let values = values![id.as_bytes(), most, id.as_bytes(), most];
            let (sql, values) = of_places.of(values, part, |values, delivery| {
                values.bind(delivery.as_bytes());
            });
            positions.found.extend(fetch(&self.readers, sql, values, rows::due_position).await?);
        }
        if positions.found.values().any(|position| position.is_replay) {
            let counted = fetch(&self.readers, live_due, values![id.as_bytes(), now, most], |row| row.count(0)).await?;
            positions.live_due = counted.first().copied().unwrap_or(0);
        }
        Ok(positions)
    }

    async fn count_by_scan(&self) -> StoreResult<HashMap<DestinationId, StateCounts>> {
        let counted = fetch(&self.readers, COUNT_BY_SCAN, Values::default(), rows::counted_state).await?;
        Ok(StateCounts::of_rows(counted))
    }
}

impl Transaction<'_, '_> {
    fn fold_changes(&mut self) -> Result<u64> {
        let step = values![i64::from(FOLDED_AT_ONCE) - 1];
        let last = query(self.connection, LAST_OF_STEP, &step, |row| row.int(0))?.pop().unwrap_or(i64::MAX);
        let until = values![last];
        execute(self.connection, FOLD_COUNTS, &until)?;
        self.fold_arrivals(last)?;
        Ok(execute(self.connection, DELETE_COUNTS, &until)?.max(self.fold_traffic()?))
    }
}
