//! Traffic and health: the recorded buckets plus the changes that are not folded into them yet. The triggers of
//! deliveries record arrivals and changes of the backlog, and the statement that settles records attempts (results.rs).

use std::{collections::HashMap, time::Duration};

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use weir_core::{DestinationId, Timestamp};
use weir_store::{
    ExpiringTable, Health, Latencies, MINUTE, RecentTraffic, RollUp, StoreResult, TRAFFIC_BUCKET, Traffic,
    TrafficHistory, TrafficLog,
    rows::{self, Row as _},
    sql,
    state_names::Names,
};

use crate::{
    PostgresStore,
    counters::{RECOVERABLE, TAKE_LOCK},
    edit::change,
    rows::{column, uuid},
};

/// The traffic of one destination from $2 on. Buckets and changes are read in one statement, so that a fold cannot be missed
/// or counted twice.
const OF_DESTINATION: Names =
    &[("of", "at"), ("buckets", "traffic {which}"), ("which", "WHERE destination_id = $1 AND at >= $2")];

/// The last row has the backlog at $3: the present backlog without the changes since $3.
pub(crate) const TRAFFIC: &str = sql!(
    "WITH recorded AS MATERIALIZED ({all_traffic}), waiting AS (
        SELECT coalesce(sum(coalesce(pending, 0) + coalesce(retrying, 0)), 0) AS n FROM (
            SELECT pending, retrying FROM destination_totals WHERE destination_id = $1
            UNION ALL
            SELECT pending, retrying FROM count_changes WHERE destination_id = $1
        ) counted
    )
    SELECT at - at % $4, {summed_traffic} FROM recorded WHERE at < $3 GROUP BY at - at % $4
    UNION ALL
    SELECT NULL, 0, 0, 0, 0, 0, CAST((SELECT n FROM waiting)
        - (SELECT coalesce(sum(backlog_change), 0) FROM recorded WHERE at >= $3) AS bigint), 0",
    OF_DESTINATION
);

pub(crate) const RECENT_TRAFFIC: &str = sql!(
    "SELECT destination_id, {summed_traffic}, min(CASE WHEN arrivals > 0 THEN at END) FROM ({all_traffic}) recorded
    GROUP BY destination_id",
    &[("of", "destination_id, at"), ("buckets", "traffic {which}"), ("which", "WHERE at >= $1")]
);

pub(crate) const TRAFFIC_OF: &str = sql!(
    "SELECT destination_id, at - at % $3, {summed_traffic} FROM ({all_traffic}) recorded GROUP BY 1, 2 ORDER BY 2",
    &[
        ("of", "destination_id, at"),
        ("buckets", "traffic {which}"),
        ("which", "WHERE destination_id = ANY($1::uuid[]) AND at >= $2"),
    ]
);

pub(crate) const TRAFFIC_BY_TENANT: &str = sql!(
    "SELECT recorded.at - recorded.at % $3, destinations.tenant, {summed_traffic}
    FROM ({all_traffic}) recorded JOIN destinations ON destinations.id = recorded.destination_id GROUP BY 1, 2",
    &[("of", "destination_id, at"), ("buckets", "traffic {which}"), ("which", "WHERE at >= $1 AND at < $2")]
);

pub(crate) const HEALTH: &str = sql!(
    "SELECT {summed_traffic}, (
        SELECT max(last_success_at) FROM (
            SELECT last_success_at FROM destination_totals WHERE destination_id = $1
            UNION ALL
            SELECT last_success_at FROM traffic_changes WHERE destination_id = $1
        ) successes
    )
    FROM ({all_traffic}) recorded",
    OF_DESTINATION
);

pub(crate) const HISTOGRAMS: &str = sql!(
    "SELECT kind::bigint, value, CAST(sum(n) AS bigint) FROM (
    SELECT kind, value, n FROM traffic_histograms WHERE destination_id = $1 AND at >= $2
    UNION ALL
    SELECT {latency_histogram}, unnest(latencies)::integer, 1 FROM traffic_changes WHERE destination_id = $1 AND at >= $2
    UNION ALL
    SELECT {attempts_histogram}, unnest(attempts), 1 FROM traffic_changes WHERE destination_id = $1 AND at >= $2
) recorded GROUP BY kind, value");

/// $4 is the length of the buckets.
pub(crate) const LATENCIES: &str = sql!(
    "SELECT at - at % $4, value, CAST(sum(n) AS bigint) FROM (
    SELECT at, value, n FROM traffic_histograms WHERE destination_id = $1 AND at >= $2 AND at < $3 AND kind = {latency_histogram}
    UNION ALL
    SELECT at, unnest(latencies)::integer, 1 FROM traffic_changes WHERE destination_id = $1 AND at >= $2 AND at < $3
) recorded GROUP BY 1, 2");

#[async_trait]
impl TrafficLog for PostgresStore {
    async fn traffic(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        step: Duration,
    ) -> StoreResult<TrafficHistory> {
        let query = sqlx::query(TRAFFIC).bind(uuid(id.as_bytes())).bind(from.as_nanos()).bind(to.as_nanos());
        let rows = self.read(query.bind(step.as_nanos() as i64), rows::traffic_at).await?;
        Ok(TrafficHistory::of_rows(rows))
    }

    async fn recent_traffic(&self, from: Timestamp) -> StoreResult<HashMap<DestinationId, RecentTraffic>> {
        let query = sqlx::query(RECENT_TRAFFIC).bind(from.floor(TRAFFIC_BUCKET).as_nanos());
        Ok(self.read(query, rows::recent_traffic).await?.into_iter().collect())
    }

    async fn latencies(
        &self,
        id: DestinationId,
        from: Timestamp,
        to: Timestamp,
        step: Duration,
    ) -> StoreResult<Vec<(Timestamp, Latencies)>> {
        let query = sqlx::query(LATENCIES).bind(uuid(id.as_bytes())).bind(from.as_nanos()).bind(to.as_nanos());
        Ok(Latencies::of_rows(self.read(query.bind(step.as_nanos() as i64), rows::latency).await?))
    }

    async fn traffic_of(
        &self,
        ids: &[DestinationId],
        from: Timestamp,
        step: Duration,
    ) -> StoreResult<HashMap<DestinationId, Vec<(Timestamp, Traffic)>>> {
        let mut found: HashMap<_, Vec<_>> = HashMap::with_capacity(ids.len());
        if ids.is_empty() {
            return Ok(found);
        }
        let query = sqlx::query(TRAFFIC_OF).bind(column(ids, |id| uuid(id.as_bytes()))).bind(from.as_nanos());
        let read = self.read(query.bind(step.as_nanos() as i64), rows::traffic_of_destination_at).await?;
        for (id, at, traffic) in read {
            found.entry(id).or_default().push((at, traffic));
        }
        Ok(found)
    }

    async fn traffic_by_tenant(
        &self,
        from: Timestamp,
        to: Timestamp,
        step: Duration,
    ) -> StoreResult<Vec<(Timestamp, String, Traffic)>> {
        let query = sqlx::query(TRAFFIC_BY_TENANT).bind(from.as_nanos()).bind(to.as_nanos());
        self.read(query.bind(step.as_nanos() as i64), rows::traffic_of_tenant).await
    }

    async fn health(&self, id: DestinationId, from: Timestamp) -> StoreResult<Health> {
        let from = from.floor(MINUTE).as_nanos();
        let query = |sql: &'static str| sqlx::query(sql).bind(uuid(id.as_bytes())).bind(from);
        let summed = self.read(query(HEALTH), rows::traffic_and_last_success).await?.pop();
        let histograms = self.read(query(HISTOGRAMS), rows::histogram).await?;
        Ok(Health::of_rows(summed, histograms))
    }

    async fn roll_up_traffic(&self, now: Timestamp) -> StoreResult<bool> {
        self.edit(|connection| change(roll_up_some(connection, now))).await
    }
}

/// Adds the rows from $1 on and before $2 to the first row of their longer bucket, and deletes them. $3 is the length
/// of these buckets. The first row of a bucket stays.
const ROLL_UP: &str = sql! {"
WITH old AS (
    DELETE FROM traffic WHERE at >= $1 AND at < $2 AND at % $3 <> 0 RETURNING *
)
INSERT INTO traffic AS t (at, destination_id, {traffic_columns})
SELECT at - at % $3, destination_id, {summed_traffic} FROM old GROUP BY 1, 2
ON CONFLICT (at, destination_id) DO UPDATE SET {added_traffic}"};
const ROLL_UP_HISTOGRAMS: &str = "
WITH old AS (
    DELETE FROM traffic_histograms WHERE at >= $1 AND at < $2 AND at % $3 <> 0 RETURNING *
)
INSERT INTO traffic_histograms AS t (at, destination_id, kind, value, n)
SELECT at - at % $3, destination_id, kind, value, sum(n) FROM old GROUP BY 1, 2, 3, 4
ON CONFLICT (at, destination_id, kind, value) DO UPDATE SET n = t.n + excluded.n";

/// One step of the retention of traffic. Answers that nothing is left to do while another process folds or rolls up.
async fn roll_up_some(connection: &mut PgConnection, now: Timestamp) -> Result<bool, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query(RECOVERABLE).execute(&mut *transaction).await?;
    if !sqlx::query(TAKE_LOCK).fetch_one(&mut *transaction).await?.flag(0)? {
        transaction.rollback().await?;
        return Ok(false);
    }
    let done = step(&mut transaction, now).await?;
    transaction.commit().await?;
    Ok(done)
}

async fn step(connection: &mut PgConnection, now: Timestamp) -> Result<bool, sqlx::Error> {
    for roll_up in RollUp::ALL {
        if roll_up_first(connection, roll_up, now).await? {
            return Ok(true);
        }
    }
    for table in ExpiringTable::ALL {
        if delete_oldest(connection, table, now).await? {
            return Ok(true);
        }
    }
    Ok(false)
}

async fn roll_up_first(connection: &mut PgConnection, roll_up: RollUp, now: Timestamp) -> Result<bool, sqlx::Error> {
    let RollUp { table, mark, bucket, .. } = roll_up;
    let (cutoff, bucket) = (roll_up.cutoff(now), bucket.as_nanos() as i64);
    let first = format!(
        "SELECT at FROM {table} WHERE at >= (SELECT {mark} FROM traffic_rolled_up) AND at < $1 AND at % $2 <> 0
        ORDER BY at LIMIT 1"
    );
    let first = sqlx::query(AssertSqlSafe(first)).bind(cutoff.as_nanos()).bind(bucket);
    let first = first.fetch_optional(&mut *connection).await?.map(|row| row.time(0)).transpose()?;
    let step = roll_up.step(first, now);
    if let Some((from, to)) = step.interval {
        let sql = if table == "traffic" { ROLL_UP } else { ROLL_UP_HISTOGRAMS };
        let query = sqlx::query(sql).bind(from.as_nanos()).bind(to.as_nanos()).bind(bucket);
        query.execute(&mut *connection).await?;
    }
    let behind = format!("UPDATE traffic_rolled_up SET {mark} = $1 WHERE {mark} < $1");
    sqlx::query(AssertSqlSafe(behind)).bind(step.mark.as_nanos()).execute(connection).await?;
    Ok(step.interval.is_some())
}

async fn delete_oldest(
    connection: &mut PgConnection,
    expiring: ExpiringTable,
    now: Timestamp,
) -> Result<bool, sqlx::Error> {
    let table = expiring.table;
    let first = format!("SELECT at FROM {table} ORDER BY at LIMIT 1");
    let first = sqlx::query(AssertSqlSafe(first)).fetch_optional(&mut *connection).await?;
    let first = first.map(|row| row.time(0)).transpose()?;
    let Some(until) = expiring.step(first, now) else { return Ok(false) };
    let delete = format!("DELETE FROM {table} WHERE at < $1");
    sqlx::query(AssertSqlSafe(delete)).bind(until.as_nanos()).execute(connection).await?;
    Ok(true)
}
