//! What people have set about load shedding.

use async_trait::async_trait;
use sqlx::{Connection as _, PgConnection};
use weir_core::{activity::Activity, shed::ShedPolicy};
use weir_store::{Shedding, StoreResult, rows};

use crate::{PostgresStore, activity::record, edit::change, rows::unwritable};

const POLICY: &str = "SELECT policy FROM shed_policy";

/// Changes wait for each other. The table is locked, because before the first change there is no row to lock. Reads do
/// not wait.
const LOCK_POLICY: &str = "LOCK TABLE shed_policy IN SHARE ROW EXCLUSIVE MODE";

const SET_POLICY: &str =
    "INSERT INTO shed_policy (policy) VALUES ($1) ON CONFLICT (single) DO UPDATE SET policy = excluded.policy";

#[async_trait]
impl Shedding for PostgresStore {
    async fn shed_policy(&self) -> StoreResult<ShedPolicy> {
        Ok(self.read(sqlx::query(POLICY), rows::shed_policy).await?.pop().unwrap_or_default())
    }

    async fn set_shed_policy(&self, expected: ShedPolicy, policy: ShedPolicy, activity: Activity) -> StoreResult<bool> {
        self.edit(|connection| change(set(connection, &expected, &policy, &activity))).await
    }
}

async fn set(
    connection: &mut PgConnection,
    expected: &ShedPolicy,
    policy: &ShedPolicy,
    activity: &Activity,
) -> Result<bool, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    sqlx::query(LOCK_POLICY).execute(&mut *transaction).await?;
    let current = sqlx::query(POLICY).fetch_optional(&mut *transaction).await?;
    let current = current.as_ref().map(rows::shed_policy).transpose()?.unwrap_or_default();
    if current != *expected {
        transaction.rollback().await?;
        return Ok(false);
    }
    sqlx::query(SET_POLICY).bind(serde_json::to_string(policy).map_err(unwritable)?).execute(&mut *transaction).await?;
    record(&mut transaction, activity).await?;
    transaction.commit().await?;
    Ok(true)
}
