//! Alerting: the destinations that subscribe to alerts, the conditions to report, and the alert states already
//! recorded.

use std::collections::BTreeMap;

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
    /// The number of waiting deliveries, without those of replays.
    pub waiting: u64,
    /// When the oldest of these deliveries was created.
    pub oldest_created_at: Option<Timestamp>,
    /// The latest instant at which a waiting delivery expires, including deliveries of replays; `None` when none
    /// expires.
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

/// Conditions that a store collects from several queries.
#[derive(Debug, Default)]
pub struct Conditions(BTreeMap<DestinationId, Condition>);

impl Conditions {
    /// The condition of a destination, healthy at first.
    pub fn of(&mut self, id: DestinationId) -> &mut Condition {
        self.0.entry(id).or_insert_with(|| Condition::healthy(id))
    }

    /// The conditions of the destinations for which `which` is true.
    pub fn into_vec(self, which: impl Fn(DestinationId) -> bool) -> Vec<Condition> {
        self.0.into_values().filter(|condition| which(condition.destination_id)).collect()
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
    /// itself, or a recorded alert state. Reads all waiting deliveries and all dead letters.
    async fn conditions(&self, tenants: &[String]) -> StoreResult<Vec<Condition>>;

    /// The number of waiting deliveries of all destinations. Reads all of them, from an index.
    async fn backlog(&self) -> StoreResult<u64>;

    /// Records the alert state of a destination. `false` if `version` is not the current one, because another process
    /// recorded a state meanwhile.
    async fn record_alert_state(&self, id: DestinationId, version: u64, state: AlertState) -> StoreResult<bool>;
}
