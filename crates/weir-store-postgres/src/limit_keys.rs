//! Limit keys: flows, their last sends, and the keys of a destination with a backlog.
//!
//! What a flow is says any of its deliveries: the newest, because entries of the oldest may be of deleted rows. The
//! outstanding claims of a flow are found among those of its destination, which are as few as sends in flight: a flow needs
//! no index of its claims.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::postgres::PgRow;
use weir_core::{DestinationId, LimitKey, Timestamp};
use weir_store::{
    DueDestination, FlowKey, KEYS_LOOKED_AT, KeyBacklogs, KeyCounts, LimitKeys, StoreResult, end_of_time,
    rows::{self, Row as _},
    sql,
};

use crate::{
    PostgresStore,
    rows::{column, uuid},
};

#[async_trait]
impl LimitKeys for PostgresStore {
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
        // The id of zeros sorts before every other id.
        let after = after.map_or([0; 16], |id| *id.as_bytes());
        let query = sqlx::query(DUE_FLOWS).bind(uuid(&after)).bind(before.as_nanos()).bind(i64::from(limit));
        self.read(query, rows::due_destination).await
    }

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

/// A loose index scan over the flows, as [`DUE_DESTINATIONS`](crate::outbox::DUE_DESTINATIONS) over the destinations.
pub(crate) const DUE_FLOWS: &str = sql!(concat!(
    "
WITH RECURSIVE waiting (id) AS (
    SELECT (SELECT flow_id FROM deliveries
        WHERE state IN ({waiting}) AND flow_id > $1 ORDER BY flow_id LIMIT 1)
    UNION ALL
    SELECT (SELECT flow_id FROM deliveries
        WHERE state IN ({waiting}) AND flow_id > waiting.id ORDER BY flow_id LIMIT 1)
    FROM waiting WHERE waiting.id IS NOT NULL
), first (id, due) AS MATERIALIZED (
    SELECT id, least(
        (SELECT next_attempt_at FROM deliveries
            WHERE flow_id = waiting.id AND state IN ({waiting}) AND NOT is_replay ORDER BY next_attempt_at LIMIT 1),
        (SELECT next_attempt_at FROM deliveries
            WHERE flow_id = waiting.id AND state IN ({waiting}) AND is_replay ORDER BY next_attempt_at LIMIT 1))
    FROM waiting WHERE id IS NOT NULL
)
SELECT first.id, first.due FROM first
WHERE first.due < $2 AND first.due < ",
    end_of_time!(),
    "
    AND (SELECT NOT t.paused AND t.deleted_at IS NULL FROM destinations t WHERE t.id = (
        SELECT destination_id FROM deliveries WHERE flow_id = first.id ORDER BY id DESC LIMIT 1
    ))
LIMIT $3"
));

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

/// The flows with their destinations, and the outstanding claims of these, by the index of claims: OFFSET 0 makes them a
/// look-up for each destination, and materialized the planner does not look for them among all deliveries of a flow. They are compared with the flows in FILTER, where the planner
/// hashes the flows; in WHERE it would join, and compare each with each.
macro_rules! flows {
    () => {
        "
WITH flows AS MATERIALIZED (
    SELECT r.id, (SELECT destination_id FROM deliveries WHERE flow_id = r.id ORDER BY id DESC LIMIT 1) AS destination_id
    FROM unnest($1::uuid[]) AS r (id)
), claimed AS MATERIALIZED (
    SELECT d.* FROM (SELECT DISTINCT destination_id FROM flows) t CROSS JOIN LATERAL (
        SELECT flow_id, cost FROM deliveries
        WHERE destination_id = t.destination_id AND state = {delivering} AND flow_id IS NOT NULL OFFSET 0
    ) d
)"
    };
}

/// The restore mark, if it is later than the parameter and one of the destinations is older.
macro_rules! restored {
    () => {
        "
UNION ALL SELECT -2, (SELECT m.sends_until FROM restored m WHERE m.single AND m.sends_until > $3
    AND m.sends_until >= (SELECT min(t.created_at) FROM destinations t WHERE t.id IN (SELECT destination_id FROM flows)))"
    };
}

/// The last sends of flows, as [`SEND_HISTORY`](crate::outbox::SEND_HISTORY) of destinations.
pub(crate) const SEND_HISTORY_OF_FLOWS: &str = sql!(concat!(
    flows!(),
    "
SELECT r.id,
    (SELECT sent_at FROM attempts WHERE flow_id = r.id AND sent_at IS NOT NULL ORDER BY sent_at DESC LIMIT 1),
    r.id IN (SELECT flow_id FROM claimed),
    (SELECT m.sends_until FROM restored m
        WHERE m.single AND m.sends_until >= (SELECT t.created_at FROM destinations t WHERE t.id = r.destination_id))
FROM flows r"
));

/// What flows have sent, as [`SENT_COUNTS`](crate::outbox::SENT_COUNTS) of destinations.
pub(crate) const SENT_COUNTS_OF_FLOWS: &str = sql!(concat!(
    flows!(),
    "
SELECT sent_at / $2 + 1, count(*) FROM attempts
    WHERE flow_id = ANY($1) AND sent_at IS NOT NULL AND sent_at > $3 GROUP BY 1
UNION ALL SELECT -1, count(*) FILTER (WHERE flow_id IN (SELECT id FROM flows)) FROM claimed",
    restored!()
));

/// The same in costs.
pub(crate) const SENT_COSTS_OF_FLOWS: &str = sql!(concat!(
    flows!(),
    "
SELECT a.sent_at / $2 + 1, sum(coalesce(d.cost, 1))::bigint FROM attempts a JOIN deliveries d ON d.id = a.delivery_id
    WHERE a.flow_id = ANY($1) AND a.sent_at IS NOT NULL AND a.sent_at > $3 GROUP BY 1
UNION ALL SELECT -1, sum(coalesce(cost, 1)) FILTER (WHERE flow_id IN (SELECT id FROM flows))::bigint FROM claimed",
    restored!(),
    "
UNION ALL SELECT -3, (avg(coalesce(due.cost, 1)) * 256)::bigint FROM unnest($1) one (id) CROSS JOIN LATERAL (
    SELECT cost FROM deliveries
    WHERE flow_id = one.id AND NOT is_replay AND state IN ({waiting})
    ORDER BY next_attempt_at LIMIT greatest(512 / cardinality($1), 1)
) due"
));
