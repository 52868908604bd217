//! Policies: what people have set for all of Weir, one row in a table of each subject. The default until one is set.

use serde::{Serialize, de::DeserializeOwned};
use sqlx::{Connection as _, PgConnection};
use weir_core::activity::Activity;
use weir_store::{StoreResult, rows};

use crate::{PostgresStore, activity::record, edit::change, rows::unwritable};

/// The statements of one table.
pub(crate) struct Policies {
    read: &'static str,
    /// Changes wait for each other. The table is locked, because before the first change there is no row to lock. Reads
    /// do not wait.
    lock: &'static str,
    set: &'static str,
}

macro_rules! policies {
    ($table:literal) => {
        Policies {
            read: concat!("SELECT policy FROM ", $table),
            lock: concat!("LOCK TABLE ", $table, " IN SHARE ROW EXCLUSIVE MODE"),
            set: concat!(
                "INSERT INTO ",
                $table,
                " (policy) VALUES ($1) ON CONFLICT (single) DO UPDATE SET policy = excluded.policy"
            ),
        }
    };
}

pub(crate) const OF_ALERTS: Policies = policies!("alert_policy");
pub(crate) const OF_SHEDDING: Policies = policies!("shed_policy");

impl Policies {
    pub(crate) async fn read<P>(&self, store: &PostgresStore) -> StoreResult<P>
    where
        P: DeserializeOwned + Default + Send + Unpin + 'static,
    {
        Ok(store.read(sqlx::query(self.read), |row| rows::policy(row)).await?.pop().unwrap_or_default())
    }

    /// Whether the policy was the expected one, and is replaced.
    pub(crate) async fn set<P>(
        &self,
        store: &PostgresStore,
        expected: &P,
        policy: &P,
        activity: &Activity,
    ) -> StoreResult<bool>
    where
        P: DeserializeOwned + Serialize + Default + PartialEq + Send + Sync,
    {
        store.edit(|connection| change(self.replace(connection, expected, policy, activity))).await
    }

    async fn replace<P>(
        &self,
        connection: &mut PgConnection,
        expected: &P,
        policy: &P,
        activity: &Activity,
    ) -> Result<bool, sqlx::Error>
    where
        P: DeserializeOwned + Serialize + Default + PartialEq,
    {
        let mut transaction = connection.begin().await?;
        sqlx::query(self.lock).execute(&mut *transaction).await?;
        let current = sqlx::query(self.read).fetch_optional(&mut *transaction).await?;
        let current: P = current.as_ref().map(rows::policy).transpose()?.unwrap_or_default();
        if current != *expected {
            transaction.rollback().await?;
            return Ok(false);
        }
        let policy = serde_json::to_string(policy).map_err(unwritable)?;
        sqlx::query(self.set).bind(policy).execute(&mut *transaction).await?;
        record(&mut transaction, activity).await?;
        transaction.commit().await?;
        Ok(true)
    }
}
