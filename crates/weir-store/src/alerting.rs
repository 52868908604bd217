//! Alerting: the destinations that subscribe to alerts, the conditions to report, and the alert states already
//! recorded.

use async_trait::async_trait;
use weir_core::{
    DestinationId, Timestamp,
    activity::Activity,
    alert::{AlertPolicy, AlertState},
};

use crate::StoreResult;

/// The condition of one destination, from which alerts are derived.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub destination_id: DestinationId,
    /// The number of waiting deliveries, without those of replays. Where more than 10,000 live deliveries and more than
    /// 10,000 of replays wait, replays beyond 10,000 are included, because only the sum has a counter.
    pub waiting: u64,
    /// When the oldest of these deliveries was created: the one that has been due for the longest, or the oldest retry.
    pub oldest_created_at: Option<Timestamp>,
    /// The latest instant at which a waiting delivery expires, including deliveries of replays; `None` when none
    /// expires. In a long backlog its last deliveries decide: the newest ones, and those that are due last. About a
    /// thousand of each kind are read, divided among the destinations with a backlog.
    pub last_expires_at: Option<Timestamp>,
    /// Dead letters.
    pub dead: u64,
    /// The alerts already published.
    pub state: AlertState,
    /// Rises with every change of `state`; 0 if none was recorded.
    pub version: u64,
}

impl Condition {
    /// A condition without problems and without a recorded alert state.
    pub fn healthy(destination_id: DestinationId) -> Self {
        Self {
            destination_id,
            waiting: 0,
            oldest_created_at: None,
            last_expires_at: None,
            dead: 0,
            state: AlertState::default(),
            version: 0,
        }
    }
}

#[async_trait]
pub trait Alerting: Send + Sync {
    /// The alert policy for all destinations; the default until one is set.
    async fn alert_policy(&self) -> StoreResult<AlertPolicy>;

    /// Replaces the policy if it is still the expected one, so that the activity says what was replaced. Returns whether
    /// it was; otherwise nothing is recorded.
    async fn set_alert_policy(
        &self,
        expected: AlertPolicy,
        policy: AlertPolicy,
        activity: Activity,
    ) -> StoreResult<bool>;

    /// The destinations that take events of Weir's own types. Must be cheap: called every two seconds.
    async fn alert_subscribers(&self) -> StoreResult<Vec<DestinationId>>;

    /// Every destination of these tenants with a backlog, dead letters, a breaker that is not closed, a pause by Weir
    /// itself, or a recorded alert state. Reads counters, and a bounded part of each backlog.
    async fn conditions(&self, tenants: &[String]) -> StoreResult<Vec<Condition>>;

    /// The number of waiting deliveries of all destinations, from the counters.
    async fn backlog(&self) -> StoreResult<u64>;

    /// Records the alert state of a destination. `false` if `version` is not the current one, because another process
    /// recorded a state meanwhile.
    async fn record_alert_state(&self, id: DestinationId, version: u64, state: AlertState) -> StoreResult<bool>;
}
