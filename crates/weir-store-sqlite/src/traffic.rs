//! Traffic and health: the recorded buckets plus the changes that are not folded into them yet (change_log.rs).

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use weir_core::{DestinationId, Timestamp};
use weir_store::{
    ExpiringTable, FOLDED_AT_ONCE, Health, Latencies, MINUTE, RecentTraffic, RollUp, StoreResult, TRAFFIC_BUCKET,
    Traffic, TrafficHistory, TrafficLog,
    rows::{self, Row as _},
    sql,
    state_names::Names,
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sql::{Batch, MAX_ROWS, Values, execute, fetch, query, values},
    transaction::Transaction,
};

/// The traffic of one destination from ?2 on. Buckets and changes are read in one statement, so that a fold cannot be missed
/// or counted twice.
const OF_DESTINATION: Names = &[
    ("of", "at"),
    ("buckets", "traffic INDEXED BY traffic_of_destination {which}"),
    ("which", "WHERE destination_id = ?1 AND at >= ?2"),
];

/// The last row has the backlog at ?3: the present backlog without the changes since ?3.
pub(crate) const TRAFFIC: &str = sql!(
    "WITH recorded AS MATERIALIZED ({all_traffic}), waiting (n) AS (
        SELECT coalesce(sum(pending + retrying), 0) FROM (
            SELECT pending, retrying FROM destination_totals WHERE destination_id = ?1
            UNION ALL
            SELECT pending, retrying FROM count_changes WHERE destination_id = ?1
        )
    )
    SELECT at - at % ?4, {summed_traffic} FROM recorded WHERE at < ?3 GROUP BY at - at % ?4
    UNION ALL
    SELECT NULL, 0, 0, 0, 0, 0,
        (SELECT n FROM waiting) - (SELECT coalesce(sum(backlog_change), 0) FROM recorded WHERE at >= ?3), 0",
    OF_DESTINATION
);

pub(crate) const RECENT_TRAFFIC: &str = sql!(
    "SELECT destination_id, {summed_traffic}, min(CASE WHEN arrivals > 0 THEN at END) FROM ({all_traffic})
    GROUP BY destination_id",
    &[("of", "destination_id, at"), ("buckets", "traffic {which}"), ("which", "WHERE at >= ?1")]
);

/// The values of the first row are the beginning and the step. Each id has its part of the index.
pub(crate) static TRAFFIC_OF: Batch = Batch::new(
    "WITH range (begins, step) AS (VALUES (?, ?)), asked (id) AS (SELECT column1 FROM (VALUES ",
    "(?)",
    sql!(
        ") WHERE column1 IS NOT NULL)
        SELECT destination_id, at - at % (SELECT step FROM range), {summed_traffic} FROM ({all_traffic})
        GROUP BY 1, 2 ORDER BY 2",
        &[
            ("of", "destination_id, at"),
            (
                "buckets",
                "asked CROSS JOIN traffic INDEXED BY traffic_of_destination
                ON destination_id = asked.id AND at >= (SELECT begins FROM range)"
            ),
            ("which", "WHERE at >= (SELECT begins FROM range) AND destination_id IN (SELECT id FROM asked)"),
        ]
    ),
);

pub(crate) const TRAFFIC_BY_TENANT: &str = sql!(
    "SELECT recorded.at - recorded.at % ?3, destinations.tenant, {summed_traffic}
    FROM ({all_traffic}) AS recorded JOIN destinations ON destinations.id = recorded.destination_id GROUP BY 1, 2",
    &[("of", "destination_id, at"), ("buckets", "traffic {which}"), ("which", "WHERE at >= ?1 AND at < ?2")]
);

pub(crate) const HEALTH: &str = sql!(
    "SELECT {summed_traffic}, (
            SELECT max(last_success_at) FROM (
                SELECT last_success_at FROM destination_totals WHERE destination_id = ?1
                UNION ALL
                SELECT last_success_at FROM traffic_changes WHERE destination_id = ?1
            )
        )
    FROM ({all_traffic})",
    OF_DESTINATION
);

pub(crate) const HISTOGRAMS: &str = sql!(
    "SELECT kind, value, sum(n) FROM (
    SELECT kind, value, n FROM traffic_histograms INDEXED BY traffic_histograms_of_destination
    WHERE destination_id = ?1 AND at >= ?2
    UNION ALL
    SELECT {latency_histogram}, CAST(j.key AS INTEGER), j.value FROM traffic_changes c, json_each(c.latencies) j
    WHERE c.destination_id = ?1 AND c.at >= ?2
    UNION ALL
    SELECT {attempts_histogram}, CAST(j.key AS INTEGER), j.value FROM traffic_changes c, json_each(c.attempts) j
    WHERE c.destination_id = ?1 AND c.at >= ?2
) GROUP BY kind, value"
);

/// ?4 is the length of the buckets.
pub(crate) const LATENCIES: &str = sql!(
    "SELECT at - at % ?4, value, sum(n) FROM (
    SELECT at, value, n FROM traffic_histograms INDEXED BY traffic_histograms_of_destination
    WHERE destination_id = ?1 AND at >= ?2 AND at < ?3 AND kind = {latency_histogram}
    UNION ALL
    SELECT c.at, CAST(j.key AS INTEGER), j.value FROM traffic_changes c, json_each(c.latencies) j
    WHERE c.destination_id = ?1 AND c.at >= ?2 AND c.at < ?3
) GROUP BY 1, 2"
);

/// Adds inserted traffic to a stored bucket.
const ADD_TRAFFIC: &str = "INSERT INTO traffic AS t (at, destination_id, {traffic_columns}) {added}
    ON CONFLICT (at, destination_id) DO UPDATE SET {added_traffic}";

const ADD_HISTOGRAM: &str = "INSERT INTO traffic_histograms AS t (at, destination_id, kind, value, n) {added}
    ON CONFLICT (at, destination_id, kind, value) DO UPDATE SET n = t.n + excluded.n";

/// The statements of a fold of traffic. The parameter of each is the last row that the step folds.
pub(crate) const FOLD_ARRIVALS: &str = sql!(
    ADD_TRAFFIC,
    &[(
        "added",
        "SELECT at, destination_id, 0, 0, 0, 0, sum(arrivals), sum(pending + retrying), 0 FROM count_changes
    WHERE rowid <= ?1 GROUP BY at, destination_id HAVING sum(arrivals) <> 0 OR sum(pending + retrying) <> 0"
    )]
);
const FOLD_ATTEMPTS: &str = sql!(
    ADD_TRAFFIC,
    &[(
        "added",
        "SELECT at, destination_id, sum(sends), sum(delivered), sum(failed), sum(dead), 0, 0, sum(throttled) FROM traffic_changes
    WHERE rowid <= ?1 GROUP BY at, destination_id"
    )]
);
const FOLD_LATENCIES: &str = sql!(
    ADD_HISTOGRAM,
    &[(
        "added",
        "SELECT c.at - c.at % 60000000000, c.destination_id, 0, CAST(j.key AS INTEGER), sum(j.value)
    FROM traffic_changes c, json_each(c.latencies) j WHERE c.rowid <= ?1 GROUP BY 1, 2, 4"
    )]
);
const FOLD_NUMBERS: &str = sql!(
    ADD_HISTOGRAM,
    &[(
        "added",
        "SELECT c.at - c.at % 60000000000, c.destination_id, 1, CAST(j.key AS INTEGER), sum(j.value)
    FROM traffic_changes c, json_each(c.attempts) j WHERE c.rowid <= ?1 GROUP BY 1, 2, 4"
    )]
);
const FOLD_SUCCESSES: &str = "
INSERT INTO destination_totals AS t (destination_id, last_success_at)
SELECT destination_id, max(last_success_at) FROM traffic_changes
WHERE rowid <= ?1 AND last_success_at IS NOT NULL GROUP BY destination_id
ON CONFLICT (destination_id) DO UPDATE
SET last_success_at = max(coalesce(t.last_success_at, 0), excluded.last_success_at)";
const DELETE_CHANGES: &str = "DELETE FROM traffic_changes WHERE rowid <= ?1";

const LAST_OF_STEP: &str = "SELECT rowid FROM traffic_changes ORDER BY rowid LIMIT 1 OFFSET +?";

/// Adds the rows from ?1 on and before ?2 to the first row of their longer bucket. ?3 is the length of these buckets.
const ROLL_UP: &str = sql!(
    ADD_TRAFFIC,
    &[(
        "added",
        "SELECT at - at % ?3, destination_id, {summed_traffic} FROM traffic
    WHERE at >= ?1 AND at < ?2 AND at % ?3 <> 0 GROUP BY 1, 2"
    )]
);
const ROLL_UP_HISTOGRAMS: &str = sql!(
    ADD_HISTOGRAM,
    &[(
        "added",
        "SELECT at - at % ?3, destination_id, kind, value, sum(n) FROM traffic_histograms
    WHERE at >= ?1 AND at < ?2 AND at % ?3 <> 0 GROUP BY 1, 2, 3, 4"
    )]
);

#[async_trait]
impl TrafficLog for SqliteStore {
    async fn traffic(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        step: Duration,
    ) -> StoreResult<TrafficHistory> {
        let values = values![id.as_bytes(), from, to, step.as_nanos() as i64];
        let rows = fetch(&self.readers, TRAFFIC, values, rows::traffic_at).await?;
        Ok(TrafficHistory::of_rows(rows))
    }

    async fn recent_traffic(&self, from: Timestamp) -> StoreResult<HashMap<DestinationId, RecentTraffic>> {
        let values = values![from.floor(TRAFFIC_BUCKET)];
        let read = fetch(&self.readers, RECENT_TRAFFIC, values, rows::recent_traffic).await?;
        Ok(read.into_iter().collect())
    }

    async fn latencies(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        step: Duration,
    ) -> StoreResult<Vec<(Timestamp, Latencies)>> {
        let values = values![id.as_bytes(), from, to, step.as_nanos() as i64];
        Ok(Latencies::of_rows(fetch(&self.readers, LATENCIES, values, rows::latency).await?))
    }

    async fn traffic_of(
        &self,
        ids: &[DestinationId],
        from: Timestamp,
        step: Duration,
    ) -> StoreResult<HashMap<DestinationId, Vec<(Timestamp, Traffic)>>> {
        let mut found: HashMap<_, Vec<_>> = HashMap::with_capacity(ids.len());
        for part in ids.chunks(MAX_ROWS) {
            let (sql, values) = TRAFFIC_OF.of(values![from, step.as_nanos() as i64], part, |values, id| {
                values.bind(id.as_bytes());
            });
            let rows = fetch(&self.readers, sql, values, rows::traffic_of_destination_at).await?;
            for (id, at, traffic) in rows {
                found.entry(id).or_default().push((at, traffic));
            }
        }
        Ok(found)
    }

    async fn traffic_by_tenant(
        &self,
        from: Timestamp,
        to: Timestamp,
        step: Duration,
    ) -> StoreResult<Vec<(Timestamp, String, Traffic)>> {
        let values = values![from, to, step.as_nanos() as i64];
        Ok(fetch(&self.readers, TRAFFIC_BY_TENANT, values, rows::traffic_of_tenant).await?)
    }

    async fn health(&self, id: DestinationId, from: Timestamp) -> StoreResult<Health> {
        let values = || values![id.as_bytes(), from.floor(MINUTE)];
        let summed = fetch(&self.readers, HEALTH, values(), rows::traffic_and_last_success).await?.pop();
        let histograms = fetch(&self.readers, HISTOGRAMS, values(), rows::histogram).await?;
        Ok(Health::of_rows(summed, histograms))
    }

    async fn roll_up_traffic(&self, now: Timestamp) -> StoreResult<bool> {
        self.edit(Durable::No, move |transaction| transaction.roll_up_traffic(now)).await
    }
}

impl Transaction<'_, '_> {
    /// Folds the arrivals and the changes of backlogs in the rows of count_changes up to the row `last`.
    pub(crate) fn fold_arrivals(&mut self, last: i64) -> Result<()> {
        execute(self.connection, FOLD_ARRIVALS, &up_to(last)).map(drop)
    }

    /// Folds some rows of traffic_changes. Returns how many.
    pub(crate) fn fold_traffic(&mut self) -> Result<u64> {
        let step = values![i64::from(FOLDED_AT_ONCE) - 1];
        let last = query(self.connection, LAST_OF_STEP, &step, |row| row.int(0))?.pop().unwrap_or(i64::MAX);
        for fold in [FOLD_ATTEMPTS, FOLD_LATENCIES, FOLD_NUMBERS, FOLD_SUCCESSES] {
            execute(self.connection, fold, &up_to(last))?;
        }
        execute(self.connection, DELETE_CHANGES, &up_to(last))
    }

    /// One step of the retention. Returns whether there was something to do.
    pub(crate) fn roll_up_traffic(&mut self, now: Timestamp) -> Result<bool> {
        for roll_up in RollUp::ALL {
            if self.roll_up(roll_up, now)? {
                return Ok(true);
            }
        }
        for table in ExpiringTable::ALL {
            if self.delete_oldest(table, now)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn roll_up(&mut self, roll_up: RollUp, now: Timestamp) -> Result<bool> {
        let RollUp { table, mark, bucket, .. } = roll_up;
        let bucket = bucket.as_nanos() as i64;
        let values = values![roll_up.cutoff(now), bucket];
        let first = format!(
            "SELECT min(at) FROM {table} WHERE at >= (SELECT {mark} FROM traffic_rolled_up) AND at < ? AND at % ? <> 0"
        );
        let first = query(self.connection, &first, &values, |row| row.optional_time(0))?.pop().flatten();
        let step = roll_up.step(first, now);
        if let Some((from, to)) = step.interval {
            let values = values![from, to, bucket];
            let add = if table == "traffic" { ROLL_UP } else { ROLL_UP_HISTOGRAMS };
            execute(self.connection, add, &values)?;
            let delete = format!("DELETE FROM {table} WHERE at >= ? AND at < ? AND at % ? <> 0");
            execute(self.connection, &delete, &values)?;
        }
        let behind = format!("UPDATE traffic_rolled_up SET {mark} = ?1 WHERE {mark} < ?1");
        execute(self.connection, &behind, &values![step.mark])?;
        Ok(step.interval.is_some())
    }

    fn delete_oldest(&mut self, expiring: ExpiringTable, now: Timestamp) -> Result<bool> {
        let table = expiring.table;
        let first = format!("SELECT min(at) FROM {table}");
        let first = query(self.connection, &first, &Values::default(), |row| row.optional_time(0))?.pop().flatten();
        let Some(until) = expiring.step(first, now) else { return Ok(false) };
        execute(self.connection, &format!("DELETE FROM {table} WHERE at < ?"), &values![until])?;
        Ok(true)
    }
}

fn up_to(row: i64) -> Values<'static> {
    values![row]
}
