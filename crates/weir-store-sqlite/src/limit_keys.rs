//! Limit keys: flows, their last sends, and the keys of a destination with a backlog.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{DestinationId, LimitKey, Timestamp};
use weir_store::{
    DueDestination, FlowKey, Flows, KEYS_LOOKED_AT, KeyBacklogs, KeyCounts, LimitKeys, StoreResult,
    rows::{self, Row as _},
    sql,
};

use crate::{
    SqliteStore,
    flow_statements::DUE_FLOWS,
    sql::{Batch, MAX_ROWS, fetch, values},
};

#[async_trait]
impl Flows for SqliteStore {
    async fn flow_keys(&self, flows: &[DestinationId]) -> StoreResult<Vec<Option<FlowKey>>> {
        let mut found: HashMap<DestinationId, FlowKey> = HashMap::with_capacity(flows.len());
        for part in flows.chunks(MAX_ROWS) {
            let (sql, values) = FLOW_KEYS.of_destinations(part);
            found.extend(fetch(&self.readers, sql, values, rows::flow_key).await?);
        }
        Ok(flows.iter().map(|flow| found.get(flow).cloned()).collect())
    }

    async fn due_flows(
        &self,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>> {
        self.due(DUE_FLOWS, before, after, limit).await
    }
}

#[async_trait]
impl LimitKeys for SqliteStore {
    async fn key_backlogs(&self, id: DestinationId, search: Option<&str>, limit: u32) -> StoreResult<KeyBacklogs> {
        // One more row shows that there are more.
        let values = values![id.as_bytes(), i64::from(KEYS_LOOKED_AT) + 1, search.unwrap_or_default(), limit];
        Ok(rows::key_backlogs(fetch(&self.readers, KEY_BACKLOGS, values, rows::key_backlog).await?))
    }

    async fn key_counts(&self, id: DestinationId, key: &LimitKey) -> StoreResult<KeyCounts> {
        let flow = key.flow_id(id);
        let values = values![flow.as_bytes(), id.as_bytes(), KEYS_LOOKED_AT];
        Ok(rows::key_counts(fetch(&self.readers, KEY_COUNTS, values, rows::key_count).await?))
    }

    async fn flow_sends(&self, flows: &[DestinationId], since: Timestamp) -> StoreResult<Vec<u64>> {
        let mut found: HashMap<DestinationId, u64> = HashMap::with_capacity(flows.len());
        for part in flows.chunks(MAX_ROWS) {
            let (sql, mut values) = FLOW_SENDS.of_destinations(part);
            values.bind(since);
            let read = |row: &SqliteRow| Ok((row.destination_id(0)?, row.count(1)?));
            found.extend(fetch(&self.readers, sql, values, read).await?);
        }
        Ok(flows.iter().map(|flow| found.get(flow).copied().unwrap_or(0)).collect())
    }
}

pub(crate) static FLOW_KEYS: Batch = Batch::new(
    "SELECT d.flow_id, d.destination_id, d.limit_key FROM (VALUES ",
    "(?)",
    ") AS r CROSS JOIN deliveries d ON d.id = (SELECT id FROM deliveries INDEXED BY deliveries_of_flow
        WHERE flow_id = r.column1 LIMIT 1)",
);

/// The first row says how many deliveries were looked at. The others are the keys among them, and how many of the
/// deliveries each has.
pub(crate) const KEY_BACKLOGS: &str = sql!(
    "
WITH looked (id, next_attempt_at) AS MATERIALIZED (
    SELECT * FROM (
        SELECT id, next_attempt_at FROM deliveries INDEXED BY deliveries_due
        WHERE destination_id = ?1 AND is_replay = 0 AND state IN ({waiting}) ORDER BY next_attempt_at, id LIMIT +?2
    )
    UNION ALL
    SELECT * FROM (
        SELECT id, next_attempt_at FROM deliveries INDEXED BY deliveries_due
        WHERE destination_id = ?1 AND is_replay = 1 AND state IN ({waiting}) ORDER BY next_attempt_at, id LIMIT +?2
    )
    ORDER BY next_attempt_at, id LIMIT +?2
)
SELECT NULL, count(*), 0 FROM looked
UNION ALL SELECT * FROM (
    SELECT d.limit_key, count(*), min(d.created_at)
    FROM (SELECT id FROM looked ORDER BY next_attempt_at, id LIMIT +?2 - 1) l CROSS JOIN deliveries d ON d.id = l.id
    WHERE d.limit_key IS NOT NULL AND instr(d.limit_key, ?3) > 0
    GROUP BY d.limit_key ORDER BY count(*) DESC, d.limit_key LIMIT +?4
)"
);

/// Live deliveries and those of replays have a LIMIT each, so that no more than it is read of the index.
pub(crate) const KEY_COUNTS: &str = sql!(
    "
WITH looked (id) AS MATERIALIZED (
    SELECT * FROM (SELECT id FROM deliveries INDEXED BY deliveries_due_of_flow
        WHERE flow_id = ?1 AND is_replay = 0 AND state IN ({waiting}) ORDER BY next_attempt_at LIMIT +?3)
    UNION ALL
    SELECT * FROM (SELECT id FROM deliveries INDEXED BY deliveries_due_of_flow
        WHERE flow_id = ?1 AND is_replay = 1 AND state IN ({waiting}) ORDER BY next_attempt_at LIMIT +?3)
    LIMIT +?3
)
SELECT d.state, count(*), min(d.created_at) FROM looked l CROSS JOIN deliveries d ON d.id = l.id GROUP BY d.state
UNION ALL
SELECT {delivering}, count(*), NULL FROM deliveries INDEXED BY deliveries_claimed
    WHERE destination_id = ?2 AND state = {delivering} AND +flow_id = ?1"
);

pub(crate) static FLOW_SENDS: Batch = Batch::new(
    "SELECT r.column1, (SELECT count(*) FROM attempts INDEXED BY attempts_of_flow
        WHERE flow_id = r.column1 AND sent_at IS NOT NULL AND sent_at > since.at)
    FROM (VALUES ",
    "(?)",
    ") AS r CROSS JOIN (SELECT ? AS at) since WHERE r.column1 IS NOT NULL",
);
