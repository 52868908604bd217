//! What people have set about load shedding.

use async_trait::async_trait;
use weir_core::{activity::Activity, shed::ShedPolicy};
use weir_store::{Shedding, StoreResult};

use crate::{SqliteStore, policies::OF_SHEDDING};

#[async_trait]
impl Shedding for SqliteStore {
    async fn shed_policy(&self) -> StoreResult<ShedPolicy> {
        OF_SHEDDING.read(self).await
    }

    async fn set_shed_policy(&self, expected: ShedPolicy, policy: ShedPolicy, activity: Activity) -> StoreResult<bool> {
        OF_SHEDDING.set(self, expected, policy, activity).await
    }
}
