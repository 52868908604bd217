//! What people have set about load shedding.

use async_trait::async_trait;
use weir_core::{activity::Activity, shed::ShedPolicy};
use weir_store::{Shedding, StoreResult, rows};

use crate::{
    SqliteStore,
    edit::Durable,
    sql::{Values, execute, fetch, query},
};

const POLICY: &str = "SELECT policy FROM shed_policy";

const SET_POLICY: &str = "INSERT OR REPLACE INTO shed_policy (single, policy) VALUES (1, ?)";

#[async_trait]
impl Shedding for SqliteStore {
    async fn shed_policy(&self) -> StoreResult<ShedPolicy> {
        let found = fetch(&self.readers, POLICY, Values::default(), rows::shed_policy).await?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    async fn set_shed_policy(&self, expected: ShedPolicy, policy: ShedPolicy, activity: Activity) -> StoreResult<bool> {
        self.edit(Durable::Yes, move |transaction| {
            let current =
                query(transaction.connection, POLICY, &Values::default(), |row| rows::shed_policy(row))?.pop();
            let is_set = current.unwrap_or_default() == expected;
            if is_set {
                let mut values = Values::default();
                values.owned_text(serde_json::to_string(&policy)?);
                execute(transaction.connection, SET_POLICY, &values)?;
            }
            transaction.recorded(is_set, |is_set| *is_set, &activity)
        })
        .await
    }
}
