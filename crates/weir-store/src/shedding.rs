//! What people have set about load shedding.

use async_trait::async_trait;
use weir_core::{activity::Activity, shed::ShedPolicy};

use crate::StoreResult;

#[async_trait]
pub trait Shedding: Send + Sync {
    /// The default until one is set. Must be cheap: each process of the API reads it twice a second.
    async fn shed_policy(&self) -> StoreResult<ShedPolicy>;

    /// Replaces the policy if it is still the expected one, so that the activity says what was replaced. Returns whether
    /// it was; otherwise nothing is recorded.
    async fn set_shed_policy(&self, expected: ShedPolicy, policy: ShedPolicy, activity: Activity) -> StoreResult<bool>;
}
