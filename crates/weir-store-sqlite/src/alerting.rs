//! Alerting: destinations are read from memory, counts from the counters.

use std::collections::{BTreeMap, HashSet};

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    Destination, DestinationId, LimitGroupId,
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
    SqliteStore,
    edit::Durable,
    error::Result,
    policies::OF_ALERTS,
    sql::{Values, execute, fetch, values},
    transaction::Transaction,
};

const ALERT_RECORDS: &str = "SELECT destination_id, version, state FROM alert_states";

/// The records of limit groups are beside those of destinations, which are more.
pub(crate) const GROUP_ALERTS: &str = "
SELECT s.destination_id, s.version, s.state FROM limit_groups g CROSS JOIN alert_states s ON s.destination_id = g.id";

const ALERTS_OF_INSTALLATION: &str = "SELECT destination_id, version, state FROM alert_states WHERE destination_id = ?";

const RECORD_ALERTS: &str = "
INSERT INTO alert_states (destination_id, version, state) VALUES (?, ?, ?)
ON CONFLICT (destination_id) DO UPDATE SET version = excluded.version, state = excluded.state
WHERE version = excluded.version - 1";

/// Each destination with a backlog or dead letters: its live backlog, when the oldest delivery of that was created, when
/// the last waiting delivery expires, and its dead letters. Reads counters, and a bounded part of each backlog: see
/// `Condition`. Deliveries of replays are left out, because an operator asked for them.
pub(crate) const BACKLOGS: &str = sql! {"
WITH counted AS MATERIALIZED ({waiting_and_undelivered}), of_each (deliveries) AS MATERIALIZED (
    SELECT 1 + 1000 / (1 + count(*)) FROM counted WHERE waiting > 0
)
SELECT destination_id,
    -- Without replays, all that waits is live. With more than 10,000 of them, the live ones are counted.
    coalesce(
        waiting - nullif((SELECT count(*) FROM (
            SELECT 1 FROM deliveries INDEXED BY deliveries_due
            WHERE destination_id = c.destination_id AND is_replay = 1 AND state IN ({waiting}) LIMIT 10000)), 10000),
        nullif((SELECT count(*) FROM (
            SELECT 1 FROM deliveries INDEXED BY deliveries_due
            WHERE destination_id = c.destination_id AND is_replay = 0 AND state IN ({waiting}) LIMIT 10000)), 10000),
        waiting - 10000
    ),
    (SELECT min(created_at) FROM deliveries WHERE is_replay = 0 AND id IN (
        SELECT id FROM (SELECT id FROM deliveries INDEXED BY deliveries_due
            WHERE destination_id = c.destination_id AND is_replay = 0 AND state IN ({waiting})
            ORDER BY next_attempt_at, id LIMIT 1)
        UNION ALL
        SELECT id FROM (SELECT id FROM deliveries INDEXED BY deliveries_retrying
            WHERE destination_id = c.destination_id AND state = {retrying} ORDER BY id LIMIT (SELECT deliveries FROM of_each))
    )),
    CASE WHEN EXISTS (
        SELECT 1 FROM deliveries INDEXED BY deliveries_expiring WHERE expires_at IS NOT NULL AND state IN ({waiting})
    ) THEN (SELECT max(created_at) + max(expires_at - created_at) FROM deliveries WHERE state IN ({waiting}) AND id IN (
        SELECT id FROM (SELECT id FROM deliveries INDEXED BY deliveries_of_destination
            WHERE destination_id = c.destination_id ORDER BY id DESC LIMIT (SELECT deliveries FROM of_each))
        UNION ALL
        SELECT id FROM (SELECT id FROM deliveries INDEXED BY deliveries_due
            WHERE destination_id = c.destination_id AND is_replay = 0 AND state IN ({waiting})
            ORDER BY next_attempt_at DESC, id DESC LIMIT (SELECT deliveries FROM of_each))
        UNION ALL
        SELECT id FROM (SELECT id FROM deliveries INDEXED BY deliveries_due
            WHERE destination_id = c.destination_id AND is_replay = 1 AND state IN ({waiting})
            ORDER BY next_attempt_at DESC, id DESC LIMIT (SELECT deliveries FROM of_each))
    )) END,
    undelivered
FROM counted c WHERE waiting > 0 OR undelivered > 0"};

#[async_trait]
impl Alerting for SqliteStore {
    async fn alert_policy(&self) -> StoreResult<AlertPolicy> {
        OF_ALERTS.read(self).await
    }

    async fn set_alert_policy(
        &self,
        expected: AlertPolicy,
        policy: AlertPolicy,
        activity: Activity,
    ) -> StoreResult<bool> {
        OF_ALERTS.set(self, expected, policy, activity).await
    }

    async fn alert_subscribers(&self) -> StoreResult<Vec<DestinationId>> {
        Ok(self.destinations.filter(|destination| destination.settings.takes_alerts()))
    }

    async fn conditions(&self, tenants: &TenantScope) -> StoreResult<Vec<Condition>> {
        let backlogs = self.read_all(BACKLOGS, read_backlog).await?;
        let mut conditions: BTreeMap<_, _> =
            backlogs.into_iter().map(|backlog| (backlog.destination_id, backlog)).collect();
        // The recorded alerts. A destination that has recovered is listed for its record alone, so that the
        // recovery is noticed.
        for (id, version, record) in self.read_all(ALERT_RECORDS, read_alert_record).await? {
            let condition = conditions.entry(id).or_insert_with(|| Condition::healthy(id));
            (condition.version, condition.record) = (version, record);
        }
        // Destinations that Weir paused, or whose breaker is not closed, even without a backlog or dead letters.
        for id in self.destinations.filter(Destination::is_impaired) {
            conditions.entry(id).or_insert_with(|| Condition::healthy(id));
        }
        // Keep the destinations of these tenants. A deleted one is not cached, so it drops out.
        let has_tenant = |destination: &Destination| tenants.includes(&destination.settings.tenant);
        let selected: HashSet<_> = self.destinations.filter(has_tenant).into_iter().collect();
        Ok(conditions.into_values().filter(|condition| selected.contains(&condition.destination_id)).collect())
    }

    async fn backlog(&self) -> StoreResult<u64> {
        Ok(self.read_all(ALL_WAITING, |row| row.count(0)).await?.pop().unwrap_or_default())
    }

    async fn record_alerts(&self, id: DestinationId, version: u64, record: AlertRecord) -> StoreResult<bool> {
        self.edit(Durable::Yes, move |transaction| transaction.record_alerts(id, version, &record)).await
    }

    async fn group_alerts(&self) -> StoreResult<Vec<(LimitGroupId, u64, AlertRecord)>> {
        let read = |row: &SqliteRow| {
            let (id, version, record) = read_alert_record(row)?;
            Ok((LimitGroupId::from_bytes(*id.as_bytes()), version, record))
        };
        Ok(self.read_all(GROUP_ALERTS, read).await?)
    }

    async fn installation_alerts(&self) -> StoreResult<(u64, AlertRecord)> {
        let values = values![INSTALLATION.as_bytes()];
        let found = fetch(&self.readers, ALERTS_OF_INSTALLATION, values, read_alert_record).await?;
        Ok(found.into_iter().next().map(|(_, version, record)| (version, record)).unwrap_or_default())
    }
}

impl SqliteStore {
    async fn read_all<T>(&self, sql: &'static str, read: impl FnMut(&SqliteRow) -> Result<T>) -> Result<Vec<T>> {
        fetch(&self.readers, sql, Values::default(), read).await
    }
}

fn read_backlog(row: &SqliteRow) -> Result<Condition> {
    Ok(Condition {
        waiting: row.count(1)?,
        oldest_created_at: row.optional_time(2)?,
        last_expires_at: row.optional_time(3)?,
        undelivered: row.count(4)?,
        ..Condition::healthy(row.destination_id(0)?)
    })
}

fn read_alert_record(row: &SqliteRow) -> Result<(DestinationId, u64, AlertRecord)> {
    Ok((row.destination_id(0)?, row.count(1)?, rows::alert_record(row, 2)?))
}

impl Transaction<'_, '_> {
    pub(crate) fn record_alerts(&mut self, id: DestinationId, version: u64, record: &AlertRecord) -> Result<bool> {
        let values = values![id.as_bytes(), version as i64 + 1, serde_json::to_string(record)?];
        Ok(execute(self.connection, RECORD_ALERTS, &values)? == 1)
    }
}
