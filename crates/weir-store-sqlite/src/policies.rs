//! Policies: what people have set for all of Weir, one row in a table of each subject. The default until one is set.

use serde::{Serialize, de::DeserializeOwned};
use weir_core::activity::Activity;
use weir_store::{StoreResult, rows};

use crate::{
    SqliteStore,
    edit::Durable,
    sql::{Values, execute, fetch, query, values},
};

/// The statements of one table.
#[derive(Clone, Copy)]
pub(crate) struct Policies {
    read: &'static str,
    set: &'static str,
}

macro_rules! policies {
    ($table:literal) => {
        Policies {
            read: concat!("SELECT policy FROM ", $table),
            set: concat!("INSERT OR REPLACE INTO ", $table, " (single, policy) VALUES (1, ?)"),
        }
    };
}

pub(crate) const OF_ALERTS: Policies = policies!("alert_policy");
pub(crate) const OF_SHEDDING: Policies = policies!("shed_policy");

impl Policies {
    pub(crate) async fn read<P: DeserializeOwned + Default>(self, store: &SqliteStore) -> StoreResult<P> {
        let found = fetch(&store.readers, self.read, Values::default(), |row| rows::policy(row)).await?;
        Ok(found.into_iter().next().unwrap_or_default())
    }

    /// Whether the policy was the expected one, and is replaced.
    pub(crate) async fn set<P>(
        self,
        store: &SqliteStore,
        expected: P,
        policy: P,
        activity: Activity,
    ) -> StoreResult<bool>
    where
        P: DeserializeOwned + Serialize + Default + PartialEq + Send + 'static,
    {
        let change = store.edit(Durable::Yes, move |transaction| {
            let current: Option<P> =
                query(transaction.connection, self.read, &Values::default(), |row| rows::policy(row))?.pop();
            let is_set = current.unwrap_or_default() == expected;
            if is_set {
                execute(transaction.connection, self.set, &values![serde_json::to_string(&policy)?])?;
            }
            transaction.recorded(is_set, |is_set| *is_set, &activity)
        });
        change.await
    }
}
