//! Limit keys: flows, their last sends, and the keys of a destination with a backlog.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use weir_core::{DestinationId, LimitKey, Timestamp};
use weir_store::{
    DueDestination, FlowKey, Flows, KEYS_LOOKED_AT, KeyBacklogs, KeyCounts, LimitKeys, StoreResult,
    rows::{self, Row as _},
    sql,
};

use crate::{
    PostgresStore,
    flow_statements::DUE_FLOWS,
    rows::{column, uuid},
};

#[async_trait]
impl Flows for PostgresStore {
    async fn flow_keys(&self, flows: &[DestinationId]) -> StoreResult<Vec<Option<FlowKey>>> {
        let query = sqlx::query(FLOW_KEYS).bind(column(flows, |id| uuid(id.as_bytes())));
        let found: HashMap<_, _> = self.read(query, rows::flow_key).await?.into_iter().collect();
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
impl LimitKeys for PostgresStore {
    async fn key_backlogs(&self, id: DestinationId, search: Option<&str>, limit: u32) -> StoreResult<KeyBacklogs> {
        let search = search.unwrap_or_default();
        // No key has this character, and PostgreSQL knows no text with it.
        if search.contains('\0') {
            return Ok(KeyBacklogs::default());
        }
        let query = sqlx::query(KEY_BACKLOGS)
            .bind(uuid(id.as_bytes()))
            // One more row shows that there are more.
            .bind(i64::from(KEYS_LOOKED_AT) + 1)
            .bind(search.to_owned())
            .bind(i64::from(limit));
        Ok(rows::key_backlogs(self.read(query, rows::key_backlog).await?))
    }

    async fn key_counts(&self, id: DestinationId, key: &LimitKey) -> StoreResult<KeyCounts> {
        let query = sqlx::query(KEY_COUNTS)
            .bind(uuid(key.flow_id(id).as_bytes()))
            .bind(uuid(id.as_bytes()))
            .bind(i64::from(KEYS_LOOKED_AT));
        Ok(rows::key_counts(self.read(query, rows::key_count).await?))
    }

    async fn flow_sends(&self, flows: &[DestinationId], since: Timestamp) -> StoreResult<Vec<u64>> {
        let query = sqlx::query(FLOW_SENDS).bind(column(flows, |id| uuid(id.as_bytes()))).bind(since.as_nanos());
        let read = |row: &PgRow| Ok((row.destination_id(0)?, row.count(1)?));
        let found: HashMap<_, _> = self.read(query, read).await?.into_iter().collect();
        Ok(flows.iter().map(|flow| found.get(flow).copied().unwrap_or(0)).collect())
    }
}

pub(crate) const FLOW_KEYS: &str = "
SELECT r.id, d.destination_id, d.limit_key FROM unnest($1::uuid[]) AS r (id) CROSS JOIN LATERAL (
    SELECT destination_id, limit_key FROM deliveries WHERE flow_id = r.id ORDER BY id DESC LIMIT 1
) d";

/// The first row says how many deliveries were looked at. The others are the keys among them, and how many of the
/// deliveries each has. Live deliveries and those of replays have a LIMIT each before they are merged, so that the planner
/// cannot sort all of them.
pub(crate) const KEY_BACKLOGS: &str = sql! {"
WITH looked AS MATERIALIZED (
    SELECT * FROM (
        (SELECT id, next_attempt_at FROM deliveries
        WHERE destination_id = $1 AND state IN ({waiting}) AND NOT is_replay ORDER BY next_attempt_at, id LIMIT $2)
        UNION ALL
        (SELECT id, next_attempt_at FROM deliveries
        WHERE destination_id = $1 AND state IN ({waiting}) AND is_replay ORDER BY next_attempt_at, id LIMIT $2)
    ) w ORDER BY next_attempt_at, id LIMIT $2
)
SELECT NULL::text, count(*), 0::bigint FROM looked
UNION ALL (
    SELECT d.limit_key, count(*), min(d.created_at)
    FROM (SELECT id FROM looked ORDER BY next_attempt_at, id LIMIT $2 - 1) l JOIN deliveries d ON d.id = l.id
    WHERE d.limit_key IS NOT NULL AND strpos(d.limit_key, $3) > 0
    GROUP BY d.limit_key ORDER BY count(*) DESC, d.limit_key COLLATE \"C\" LIMIT $4
)"};

/// Live deliveries and those of replays have a LIMIT each, so that no more than it is read of the index, which has all
/// columns. The outstanding claims are those of the destination: OFFSET 0 keeps the planner from all deliveries of a flow.
pub(crate) const KEY_COUNTS: &str = sql! {"
WITH looked AS MATERIALIZED (
    (SELECT state, created_at FROM deliveries
    WHERE flow_id = $1 AND NOT is_replay AND state IN ({waiting}) ORDER BY next_attempt_at LIMIT $3)
    UNION ALL
    (SELECT state, created_at FROM deliveries
    WHERE flow_id = $1 AND is_replay AND state IN ({waiting}) ORDER BY next_attempt_at LIMIT $3)
    LIMIT $3
)
SELECT state, count(*), min(created_at) FROM looked GROUP BY state
UNION ALL
SELECT {delivering}::smallint, count(*) FILTER (WHERE flow_id = $1), NULL::bigint FROM (
    SELECT flow_id FROM deliveries WHERE destination_id = $2 AND state = {delivering} OFFSET 0
) claimed"};

pub(crate) const FLOW_SENDS: &str = "
SELECT r.id, (SELECT count(*) FROM attempts WHERE flow_id = r.id AND sent_at IS NOT NULL AND sent_at > $2)
FROM unnest($1::uuid[]) AS r (id)";
