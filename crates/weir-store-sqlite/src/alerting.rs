//! Alerting: destinations are read from memory, counts from indexes.

use std::collections::HashSet;

use async_trait::async_trait;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    Destination, DestinationId,
    activity::Activity,
    alert::{AlertPolicy, AlertState},
};
use weir_store::{
    Alerting, Condition, Conditions, StoreResult,
    rows::{self, Row as _},
    sql,
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sql::{Values, execute, fetch, query},
    transaction::Transaction,
};

const POLICY: &str = "SELECT policy FROM alert_policy";

const SET_POLICY: &str = "INSERT OR REPLACE INTO alert_policy (single, policy) VALUES (1, ?)";

const ALERT_STATES: &str = "SELECT destination_id, version, state FROM alert_states";

const RECORD_ALERT_STATE: &str = "
INSERT INTO alert_states (destination_id, version, state) VALUES (?, ?, ?)
ON CONFLICT (destination_id) DO UPDATE SET version = excluded.version, state = excluded.state
WHERE version = excluded.version - 1";

/// Reads the index alone. Deliveries of replays are left out, because an operator asked for them. The oldest delivery
/// has the smallest id.
pub(crate) const WAITING_COUNTS: &str = sql! {"
WITH counted (destination_id, deliveries, oldest) AS (
    SELECT destination_id, count(*), min(id) FROM deliveries INDEXED BY deliveries_due
    WHERE state IN ({waiting}) AND is_replay = 0 GROUP BY destination_id
)
SELECT destination_id, deliveries, (SELECT created_at FROM deliveries WHERE id = oldest) FROM counted"};

pub(crate) const EXPIRING: &str = sql! {"
SELECT destination_id, max(expires_at) FROM deliveries INDEXED BY deliveries_expiring
WHERE expires_at IS NOT NULL AND state IN ({waiting}) GROUP BY destination_id"};

pub(crate) const DEAD: &str = sql! {"
SELECT destination_id, count(*) FROM deliveries INDEXED BY deliveries_ended_of_destination
WHERE state > {delivered} AND state = {dead} GROUP BY destination_id"};

const BACKLOG: &str = sql!("SELECT count(*) FROM deliveries INDEXED BY deliveries_due WHERE state IN ({waiting})");

#[async_trait]
impl Alerting for SqliteStore {
    async fn alert_policy(&self) -> StoreResult<AlertPolicy> {
        Ok(self.read_all(POLICY, rows::alert_policy).await?.pop().unwrap_or_default())
    }

    async fn set_alert_policy(
        &self,
        expected: AlertPolicy,
        policy: AlertPolicy,
        activity: Activity,
    ) -> StoreResult<bool> {
        self.edit(Durable::Yes, move |transaction| {
            let is_set = transaction.set_alert_policy(&expected, &policy)?;
            transaction.recorded(is_set, |is_set| *is_set, &activity)
        })
        .await
    }

    async fn alert_subscribers(&self) -> StoreResult<Vec<DestinationId>> {
        Ok(self.destinations.filter(|destination| destination.settings.takes_alerts()))
    }

    async fn conditions(&self, tenants: &[String]) -> StoreResult<Vec<Condition>> {
        let mut conditions = Conditions::default();
        // The backlogs: how many live deliveries wait at each destination, and since when.
        for (id, waiting, oldest) in self
            .read_all(WAITING_COUNTS, |row| Ok((row.destination_id(0)?, row.count(1)?, row.optional_time(2)?)))
            .await?
        {
            let condition = conditions.of(id);
            (condition.waiting, condition.oldest_created_at) = (waiting, oldest);
        }
        // When the last of the waiting deliveries expires.
        for (id, last) in self.read_all(EXPIRING, |row| Ok((row.destination_id(0)?, row.optional_time(1)?))).await? {
            conditions.of(id).last_expires_at = last;
        }
        // The number of dead letters.
        for (id, dead) in self.read_all(DEAD, |row| Ok((row.destination_id(0)?, row.count(1)?))).await? {
            conditions.of(id).dead = dead;
        }
        // The recorded alert states. A destination that has recovered is listed for its alert state alone, so that the
        // recovery is noticed.
        for (id, version, state) in self.read_all(ALERT_STATES, read_alert_state).await? {
            let condition = conditions.of(id);
            (condition.version, condition.state) = (version, state);
        }
        // Destinations that Weir paused, or whose breaker is not closed, even without a backlog or dead letters.
        for id in self.destinations.filter(Destination::is_impaired) {
            conditions.of(id);
        }
        // Keep the destinations of these tenants. A deleted one is not cached, so it drops out.
        let has_tenant = |destination: &Destination| tenants.contains(&destination.settings.tenant);
        let selected: HashSet<_> = self.destinations.filter(has_tenant).into_iter().collect();
        Ok(conditions.into_vec(|id| selected.contains(&id)))
    }

    async fn backlog(&self) -> StoreResult<u64> {
        Ok(self.read_all(BACKLOG, |row| row.count(0)).await?.pop().unwrap_or_default())
    }

    async fn record_alert_state(&self, id: DestinationId, version: u64, state: AlertState) -> StoreResult<bool> {
        self.edit(Durable::Yes, move |transaction| transaction.record_alert_state(id, version, &state)).await
    }
}

impl SqliteStore {
    async fn read_all<T>(&self, sql: &'static str, read: impl FnMut(&SqliteRow) -> Result<T>) -> Result<Vec<T>> {
        fetch(&self.readers, sql, Values::default(), read).await
    }
}

fn read_alert_state(row: &SqliteRow) -> Result<(DestinationId, u64, AlertState)> {
    Ok((row.destination_id(0)?, row.count(1)?, rows::alert_state(row, 2)?))
}

impl Transaction<'_, '_> {
    /// Whether the policy was the expected one, and is replaced.
    pub(crate) fn set_alert_policy(&mut self, expected: &AlertPolicy, policy: &AlertPolicy) -> Result<bool> {
        let current = query(self.connection, POLICY, &Values::default(), |row| rows::alert_policy(row))?.pop();
        if current.unwrap_or_default() != *expected {
            return Ok(false);
        }
        let mut values = Values::default();
        values.owned_text(serde_json::to_string(policy)?);
        execute(self.connection, SET_POLICY, &values)?;
        Ok(true)
    }

    pub(crate) fn record_alert_state(&mut self, id: DestinationId, version: u64, state: &AlertState) -> Result<bool> {
        let mut values = Values::default();
        values.blob(id.as_bytes()).int(version as i64 + 1).owned_text(serde_json::to_string(state)?);
        Ok(execute(self.connection, RECORD_ALERT_STATE, &values)? == 1)
    }
}
