//! Limit keys: flows, their last sends, and the keys of a destination with a backlog.
//!
//! What a flow is says any of its deliveries. The outstanding claims of a flow are found among those of its destination,
//! which are as few as sends in flight: a flow needs no index of its claims.

use std::collections::HashMap;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{DestinationId, LimitKey, Timestamp};
use weir_store::{
    DueDestination, FlowKey, KEYS_LOOKED_AT, KeyBacklogs, KeyCounts, LimitKeys, StoreResult, end_of_time,
    rows::{self, Row as _},
    sql,
};

use crate::{
    SqliteStore,
    sql::{Batch, MAX_ROWS, Values, fetch},
};

#[async_trait]
impl LimitKeys for SqliteStore {
    async fn flow_keys(&self, flows: &[DestinationId]) -> StoreResult<Vec<Option<FlowKey>>> {
        let mut found: HashMap<DestinationId, FlowKey> = HashMap::with_capacity(flows.len());
        for part in flows.chunks(MAX_ROWS) {
            let (size, values) = Values::padded_ids(part);
            found.extend(fetch(&self.readers, FLOW_KEYS.sql(size), values, rows::flow_key).await?);
        }
        Ok(flows.iter().map(|flow| found.get(flow).cloned()).collect())
    }

    async fn due_flows(
        &self,
        before: Timestamp,
        after: Option<DestinationId>,
        limit: u32,
    ) -> StoreResult<Vec<DueDestination>> {
        let mut values = Values::default();
        // The empty blob sorts before every id.
        let beyond = after.as_ref().map_or(&[][..], |id| id.as_bytes());
        values.blob(beyond).int(before.as_nanos()).int(limit.into());
        Ok(fetch(&self.readers, DUE_FLOWS, values, rows::due_destination).await?)
    }

    async fn key_backlogs(&self, id: DestinationId, search: Option<&str>, limit: u32) -> StoreResult<KeyBacklogs> {
        let mut values = Values::id(id.as_bytes());
        // One more row shows that there are more.
        values.int(i64::from(KEYS_LOOKED_AT) + 1).text(search.unwrap_or_default()).int(limit.into());
        Ok(rows::key_backlogs(fetch(&self.readers, KEY_BACKLOGS, values, rows::key_backlog).await?))
    }

    async fn key_counts(&self, id: DestinationId, key: &LimitKey) -> StoreResult<KeyCounts> {
        let flow = key.flow_id(id);
        let mut values = Values::id(flow.as_bytes());
        values.blob(id.as_bytes()).int(KEYS_LOOKED_AT.into());
        Ok(rows::key_counts(fetch(&self.readers, KEY_COUNTS, values, rows::key_count).await?))
    }

    async fn flow_sends(&self, flows: &[DestinationId], since: Timestamp) -> StoreResult<Vec<u64>> {
        let mut found: HashMap<DestinationId, u64> = HashMap::with_capacity(flows.len());
        for part in flows.chunks(MAX_ROWS) {
            let (size, mut values) = Values::padded_ids(part);
            values.int(since.as_nanos());
            let read = |row: &SqliteRow| Ok((row.destination_id(0)?, row.count(1)?));
            found.extend(fetch(&self.readers, FLOW_SENDS.sql(size), values, read).await?);
        }
        Ok(flows.iter().map(|flow| found.get(flow).copied().unwrap_or(0)).collect())
    }
}

pub(crate) static FLOW_KEYS: Batch = Batch::new(
    "SELECT d.flow_id, d.destination_id, d.limit_key FROM (VALUES ",
    "(?)",
    ",",
    ") AS r CROSS JOIN deliveries d ON d.id = (SELECT id FROM deliveries INDEXED BY deliveries_of_flow
        WHERE flow_id = r.column1 LIMIT 1)",
);

/// A loose index scan over the flows, as [`DUE_DESTINATIONS`](crate::outbox::DUE_DESTINATIONS) over the destinations.
pub(crate) const DUE_FLOWS: &str = sql!(concat!(
    "
WITH RECURSIVE waiting (id) AS (
    SELECT (SELECT flow_id FROM deliveries INDEXED BY deliveries_due_of_flow
        WHERE state IN ({waiting}) AND flow_id > ? ORDER BY flow_id LIMIT 1)
    UNION ALL
    SELECT (SELECT flow_id FROM deliveries INDEXED BY deliveries_due_of_flow
        WHERE state IN ({waiting}) AND flow_id > waiting.id ORDER BY flow_id LIMIT 1)
    FROM waiting WHERE waiting.id IS NOT NULL
), first (id, due) AS (
    -- The earlier of two due times: of its live deliveries, and of its deliveries of replays.
    SELECT id, min(
        coalesce((SELECT next_attempt_at FROM deliveries INDEXED BY deliveries_due_of_flow
            WHERE flow_id = waiting.id AND is_replay = 0 AND state IN ({waiting})
            ORDER BY next_attempt_at LIMIT 1), ",
    end_of_time!(),
    "),
        coalesce((SELECT next_attempt_at FROM deliveries INDEXED BY deliveries_due_of_flow
            WHERE flow_id = waiting.id AND is_replay = 1 AND state IN ({waiting})
            ORDER BY next_attempt_at LIMIT 1), ",
    end_of_time!(),
    ")
    )
    FROM waiting WHERE id IS NOT NULL
)
SELECT first.id, first.due FROM first CROSS JOIN destinations t
    ON t.id = (SELECT destination_id FROM deliveries INDEXED BY deliveries_of_flow WHERE flow_id = first.id LIMIT 1)
WHERE first.due < ? AND first.due < ",
    end_of_time!(),
    " AND t.paused = 0 AND t.deleted_at IS NULL LIMIT +?"
));

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
    ",",
    ") AS r CROSS JOIN (SELECT ? AS at) since WHERE r.column1 IS NOT NULL",
);

/// The flows `r` with their destinations.
macro_rules! known_flows {
    () => {
        "), flows (id, destination_id) AS MATERIALIZED (
    SELECT id, (SELECT destination_id FROM deliveries INDEXED BY deliveries_of_flow WHERE flow_id = r.id LIMIT 1)
    FROM r WHERE id IS NOT NULL
)"
    };
}

/// The outstanding claims of the flows: some of those of their destinations.
macro_rules! claims_of_flows {
    () => {
        "deliveries INDEXED BY deliveries_claimed
    WHERE destination_id IN (SELECT destination_id FROM flows) AND state = {delivering}
        AND +flow_id IN (SELECT id FROM flows)"
    };
}

/// The restore mark, if it is later than the parameter and one of the destinations is older.
macro_rules! restored {
    () => {
        "UNION ALL SELECT -2, (SELECT m.sends_until FROM flows r CROSS JOIN destinations t CROSS JOIN restored m
    WHERE t.id = r.destination_id AND m.single = 1 AND t.created_at <= m.sends_until AND m.sends_until > ? LIMIT 1)"
    };
}

/// The last sends of flows, as [`SEND_HISTORY`](crate::outbox::SEND_HISTORY) of destinations.
pub(crate) static SEND_HISTORY_OF_FLOWS: Batch = Batch::new(
    "WITH r (id) AS (VALUES ",
    "(?)",
    ",",
    sql!(concat!(
        known_flows!(),
        ", claimed (id) AS MATERIALIZED (SELECT DISTINCT flow_id FROM ",
        claims_of_flows!(),
        ")
SELECT r.id,
    (SELECT max(sent_at) FROM attempts INDEXED BY attempts_of_flow WHERE flow_id = r.id AND sent_at IS NOT NULL),
    r.id IN (SELECT id FROM claimed),
    (SELECT m.sends_until FROM destinations t CROSS JOIN restored m
        WHERE t.id = r.destination_id AND m.single = 1 AND t.created_at <= m.sends_until)
FROM flows r"
    )),
);

/// What flows have sent, as [`SENT_COUNTS`](crate::outbox::SENT_COUNTS) of destinations.
pub(crate) static SENT_COUNTS_OF_FLOWS: Batch = Batch::new(
    "WITH r (id) AS (VALUES ",
    "(?)",
    ",",
    sql!(concat!(
        known_flows!(),
        "
SELECT sent_at / ? + 1, count(*) FROM flows r CROSS JOIN attempts INDEXED BY attempts_of_flow
    WHERE flow_id = r.id AND sent_at IS NOT NULL AND sent_at > ? GROUP BY 1
UNION ALL SELECT -1, count(*) FROM ",
        claims_of_flows!(),
        " ",
        restored!()
    )),
);

/// The same in costs.
pub(crate) static SENT_COSTS_OF_FLOWS: Batch = Batch::new(
    "WITH r (id) AS (VALUES ",
    "(?)",
    ",",
    sql!(concat!(
        known_flows!(),
        "
SELECT a.sent_at / ? + 1, sum(coalesce(d.cost, 1)) FROM flows r CROSS JOIN attempts a INDEXED BY attempts_of_flow
    CROSS JOIN deliveries d ON d.id = a.delivery_id
    WHERE a.flow_id = r.id AND a.sent_at IS NOT NULL AND a.sent_at > ? GROUP BY 1
UNION ALL SELECT -1, sum(coalesce(cost, 1)) FROM ",
        claims_of_flows!(),
        " ",
        restored!(),
        "
UNION ALL SELECT -3, CAST(avg((SELECT avg(coalesce(d.cost, 1)) FROM (
    SELECT id FROM deliveries INDEXED BY deliveries_due_of_flow
    WHERE flow_id = r.id AND is_replay = 0 AND state IN ({waiting}) ORDER BY next_attempt_at LIMIT ?
) due CROSS JOIN deliveries d ON d.id = due.id)) * 256 AS INTEGER) FROM flows r"
    )),
);
