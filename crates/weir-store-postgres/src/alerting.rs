//! The reads and writes of alerting.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection, postgres::PgRow};
use weir_core::{
    DestinationId, Timestamp,
    activity::Activity,
    alert::{AlertPolicy, AlertState},
};
use weir_store::{
    Alerting, Condition, Conditions, StoreResult,
    rows::{self, Row as _},
    sql,
};

use crate::{
    PostgresStore,
    activity::record,
    edit::change,
    rows::{Read, unwritable, uuid},
};

const POLICY: &str = "SELECT policy FROM alert_policy";

/// Changes of the policy wait for each other. The table is locked, because before the first change there is no row to
/// lock. Reads do not wait.
const LOCK_POLICY: &str = "LOCK TABLE alert_policy IN SHARE ROW EXCLUSIVE MODE";

const SET_POLICY: &str =
    "INSERT INTO alert_policy (policy) VALUES ($1) ON CONFLICT (single) DO UPDATE SET policy = excluded.policy";

const ALERT_SUBSCRIBERS: &str = "SELECT id FROM destinations WHERE takes_alerts AND deleted_at IS NULL ORDER BY id";

/// An index-only scan of the due index, on pages that vacuum has marked all-visible.
const BACKLOG: &str = sql!("SELECT count(*) FROM deliveries WHERE state IN ({waiting})");

const RECORD_ALERT_STATE: &str = "
INSERT INTO alert_states AS t (destination_id, version, state) VALUES ($1, $2, $3)
ON CONFLICT (destination_id) DO UPDATE SET version = excluded.version, state = excluded.state
WHERE t.version = excluded.version - 1";

/// Each row has a kind, a count, a time and an alert state. The backlog has no deliveries of replays, because a person
/// asked for them. The counts are index-only scans, on pages that vacuum has marked all-visible.
pub(crate) const CONDITIONS: &str = sql! {"
SELECT x.destination_id, x.kind, x.count, x.at, x.state
FROM (
    -- 0: the backlog, and when its oldest delivery was created.
    SELECT destination_id, 0 AS kind, count(*) AS count, min(created_at) AS at, NULL AS state
    FROM deliveries WHERE state IN ({waiting}) AND NOT is_replay
    GROUP BY destination_id
    UNION ALL
    -- 1: when the last waiting delivery expires.
    SELECT destination_id, 1, 0, max(expires_at), NULL
    FROM deliveries WHERE expires_at IS NOT NULL AND state IN ({waiting}) GROUP BY destination_id
    UNION ALL
    -- 2: dead letters.
    SELECT destination_id, 2, count(*), NULL, NULL FROM deliveries WHERE state = {dead} GROUP BY destination_id
    UNION ALL
    -- 3: the recorded alert state, also of a destination that has recovered.
    SELECT destination_id, 3, version, NULL, state FROM alert_states
    UNION ALL
    -- 4: paused by Weir, or a breaker that is not closed.
    SELECT id, 4, 0, NULL, NULL FROM destinations
    WHERE paused_reason IS NOT NULL OR breaker_state::jsonb ->> 'open' IS NOT NULL
) x
JOIN destinations t ON t.id = x.destination_id AND t.tenant = ANY($1) AND t.deleted_at IS NULL"};

#[async_trait]
impl Alerting for PostgresStore {
    async fn alert_policy(&self) -> StoreResult<AlertPolicy> {
        Ok(self.read(sqlx::query(POLICY), rows::alert_policy).await?.pop().unwrap_or_default())
    }

    async fn set_alert_policy(
        &self,
        expected: AlertPolicy,
        policy: AlertPolicy,
        activity: Activity,
    ) -> StoreResult<bool> {
        self.edit(|connection| change(set_policy(connection, &expected, &policy, &activity))).await
    }

    async fn alert_subscribers(&self) -> StoreResult<Vec<DestinationId>> {
        self.read(sqlx::query(ALERT_SUBSCRIBERS), |row| row.destination_id(0)).await
    }

    async fn conditions(&self, tenants: &[String]) -> StoreResult<Vec<Condition>> {
        let mut conditions = Conditions::default();
        for row in self.read(sqlx::query(CONDITIONS).bind(tenants.to_vec()), ConditionRow::read).await? {
            let condition = conditions.of(row.destination_id);
            match row.kind {
                0 => (condition.waiting, condition.oldest_created_at) = (row.count, row.at),
                1 => condition.last_expires_at = row.at,
                2 => condition.dead = row.count,
                3 => (condition.version, condition.state) = (row.count, row.state),
                _ => {}
            }
        }
        Ok(conditions.into_vec(|_| true))
    }

    async fn backlog(&self) -> StoreResult<u64> {
        Ok(self.read(sqlx::query(BACKLOG), |row| row.count(0)).await?.pop().unwrap_or_default())
    }

    async fn record_alert_state(&self, id: DestinationId, version: u64, state: AlertState) -> StoreResult<bool> {
        self.edit(|connection| change(record_alert_state(connection, id, version, &state))).await
    }
}

/// A row of [`CONDITIONS`].
struct ConditionRow {
    destination_id: DestinationId,
    kind: i64,
    count: u64,
    at: Option<Timestamp>,
    state: AlertState,
}

impl ConditionRow {
    fn read(row: &PgRow) -> Read<Self> {
        Ok(Self {
            destination_id: row.destination_id(0)?,
            kind: row.int(1)?,
            count: row.count(2)?,
            at: row.optional_time(3)?,
            state: rows::alert_state(row, 4)?,
        })
    }
}

async fn set_policy(
    connection: &mut PgConnection,
    expected: &AlertPolicy,
    policy: &AlertPolicy,
    activity: &Activity,
) -> Result<bool, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query(LOCK_POLICY).execute(&mut *transaction).await?;
    let current = sqlx::query(POLICY).fetch_optional(&mut *transaction).await?;
    let current = current.as_ref().map(rows::alert_policy).transpose()?.unwrap_or_default();
    if current != *expected {
        transaction.rollback().await?;
        return Ok(false);
    }
    sqlx::query(SET_POLICY).bind(serde_json::to_string(policy).map_err(unwritable)?).execute(&mut *transaction).await?;
    record(&mut transaction, activity).await?;
    transaction.commit().await?;
    Ok(true)
}

async fn record_alert_state(
    connection: &mut PgConnection,
    id: DestinationId,
    version: u64,
    state: &AlertState,
) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(RECORD_ALERT_STATE)
        .bind(uuid(id.as_bytes()))
        .bind(version as i64 + 1)
        .bind(serde_json::to_string(state).map_err(unwritable)?);
    Ok(query.execute(connection).await?.rows_affected() == 1)
}
