//! The reads and writes of alerting.

use async_trait::async_trait;
use sqlx::{PgConnection, postgres::PgRow};
use weir_core::{
    DestinationId, LimitGroupId,
    access::TenantScope,
    activity::Activity,
    alert::{AlertPolicy, AlertRecord},
};
use weir_store::{
    Alerting, Condition, INSTALLATION, StoreResult,
    rows::{self, ALL_WAITING, Row as _},
    sql,
};

use crate::{
    PostgresStore,
    edit::change,
    history::HASHED,
    policies::OF_ALERTS,
    rows::{Read, unwritable, uuid},
};

const ALERT_SUBSCRIBERS: &str = "SELECT id FROM destinations WHERE takes_alerts AND deleted_at IS NULL ORDER BY id";

/// The records of limit groups are beside those of destinations.
pub(crate) const GROUP_ALERTS: &str = "
SELECT s.destination_id, s.version, s.state FROM limit_groups g JOIN alert_states s ON s.destination_id = g.id";

const ALERTS_OF_INSTALLATION: &str =
    "SELECT destination_id, version, state FROM alert_states WHERE destination_id = $1";

const RECORD_ALERTS: &str = "
INSERT INTO alert_states AS t (destination_id, version, state) VALUES ($1, $2, $3)
ON CONFLICT (destination_id) DO UPDATE SET version = excluded.version, state = excluded.state
WHERE t.version = excluded.version - 1";

/// Each destination with a backlog, dead letters, an impairment, or recorded alerts, also if it has recovered.
/// Reads counters, and a bounded part of each backlog: see `Condition`. Deliveries of replays are left out, because a
/// person asked for them.
pub(crate) const CONDITIONS: &str = sql! {"
WITH counted AS MATERIALIZED ({waiting_and_undelivered}), of_each (deliveries) AS MATERIALIZED (
    SELECT 1 + 1000 / (1 + count(*)) FROM counted WHERE waiting > 0
)
SELECT t.id,
    -- Without replays, all that waits is live. With more than 10,000 of them, the live ones are counted.
    coalesce(
        c.waiting - nullif((SELECT count(*) FROM (
            SELECT FROM deliveries WHERE destination_id = t.id AND is_replay AND state IN ({waiting}) LIMIT 10000
        ) replays), 10000),
        nullif((SELECT count(*) FROM (
            SELECT FROM deliveries WHERE destination_id = t.id AND NOT is_replay AND state IN ({waiting}) LIMIT 10000
        ) live), 10000),
        c.waiting - 10000
    ),
    least(
        (SELECT created_at FROM deliveries WHERE destination_id = t.id AND NOT is_replay AND state IN ({waiting})
            ORDER BY next_attempt_at, id LIMIT 1),
        (SELECT min(created_at) FROM (
            SELECT created_at, is_replay FROM deliveries WHERE destination_id = t.id AND state - {retrying} = 0
            ORDER BY id LIMIT (SELECT deliveries FROM of_each)
        ) retries WHERE NOT is_replay)
    ),
    CASE WHEN EXISTS (SELECT FROM deliveries WHERE expires_at IS NOT NULL AND state IN ({waiting}))
    THEN (SELECT max(created_at) + max(expires_at - created_at) FROM (
        (SELECT created_at, expires_at, state FROM deliveries WHERE destination_id = t.id ORDER BY id DESC LIMIT (SELECT deliveries FROM of_each))
        UNION ALL
        (SELECT created_at, expires_at, state FROM deliveries WHERE destination_id = t.id AND NOT is_replay AND state IN ({waiting})
            ORDER BY next_attempt_at DESC, id DESC LIMIT (SELECT deliveries FROM of_each))
        UNION ALL
        (SELECT created_at, expires_at, state FROM deliveries WHERE destination_id = t.id AND is_replay AND state IN ({waiting})
            ORDER BY next_attempt_at DESC, id DESC LIMIT (SELECT deliveries FROM of_each))
    ) last WHERE state IN ({waiting})) END,
    coalesce(c.undelivered, 0), coalesce(s.version, 0), s.state
FROM destinations t
LEFT JOIN counted c ON c.destination_id = t.id
LEFT JOIN alert_states s ON s.destination_id = t.id
WHERE ($1::text[] IS NULL OR t.tenant = ANY($1)) AND t.deleted_at IS NULL AND (
    c.waiting > 0 OR c.undelivered > 0 OR s.destination_id IS NOT NULL
    -- Paused by Weir, or a breaker that is not closed.
    OR t.paused_reason IS NOT NULL OR t.breaker_state::jsonb ->> 'open' IS NOT NULL
)
ORDER BY t.id"};

#[async_trait]
impl Alerting for PostgresStore {
    async fn alert_policy(&self) -> StoreResult<AlertPolicy> {
        OF_ALERTS.read(self).await
    }

    async fn set_alert_policy(
        &self,
        expected: AlertPolicy,
        policy: AlertPolicy,
        activity: Activity,
    ) -> StoreResult<bool> {
        OF_ALERTS.set(self, &expected, &policy, &activity).await
    }

    async fn alert_subscribers(&self) -> StoreResult<Vec<DestinationId>> {
        self.read(sqlx::query(ALERT_SUBSCRIBERS), |row| row.destination_id(0)).await
    }

    async fn conditions(&self, tenants: &TenantScope) -> StoreResult<Vec<Condition>> {
        let tenants: Option<Vec<&String>> = tenants.tenants().map(|tenants| tenants.iter().collect());
        self.read_with(HASHED, sqlx::query(CONDITIONS).bind(tenants), condition).await
    }

    async fn backlog(&self) -> StoreResult<u64> {
        Ok(self.read(sqlx::query(ALL_WAITING), |row| row.count(0)).await?.pop().unwrap_or_default())
    }

    async fn record_alerts(&self, id: DestinationId, version: u64, record: AlertRecord) -> StoreResult<bool> {
        self.edit(|connection| change(record_alerts(connection, id, version, &record))).await
    }

    async fn group_alerts(&self) -> StoreResult<Vec<(LimitGroupId, u64, AlertRecord)>> {
        let read = |row: &PgRow| Ok((LimitGroupId::from_bytes(row.id(0)?), row.count(1)?, rows::alert_record(row, 2)?));
        self.read(sqlx::query(GROUP_ALERTS), read).await
    }

    async fn installation_alerts(&self) -> StoreResult<(u64, AlertRecord)> {
        let query = sqlx::query(ALERTS_OF_INSTALLATION).bind(uuid(INSTALLATION.as_bytes()));
        let read = |row: &PgRow| Ok((row.count(1)?, rows::alert_record(row, 2)?));
        Ok(self.read(query, read).await?.pop().unwrap_or_default())
    }
}

fn condition(row: &PgRow) -> Read<Condition> {
    Ok(Condition {
        destination_id: row.destination_id(0)?,
        waiting: row.count(1)?,
        oldest_created_at: row.optional_time(2)?,
        last_expires_at: row.optional_time(3)?,
        undelivered: row.count(4)?,
        version: row.count(5)?,
        record: rows::alert_record(row, 6)?,
    })
}

async fn record_alerts(
    connection: &mut PgConnection,
    id: DestinationId,
    version: u64,
    record: &AlertRecord,
) -> Result<bool, sqlx::Error> {
    let query = sqlx::query(RECORD_ALERTS)
        .bind(uuid(id.as_bytes()))
        .bind(version as i64 + 1)
        .bind(serde_json::to_string(record).map_err(unwritable)?);
    Ok(query.execute(connection).await?.rows_affected() == 1)
}
