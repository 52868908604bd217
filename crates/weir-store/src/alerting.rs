//! What the watch asks: which destinations want to hear of others, what there is to tell, and what has been told.

use std::collections::BTreeMap;

use async_trait::async_trait;
use weir_core::{
    DestinationId, Timestamp,
    alert::{AlertPolicy, AlertState},
};

use crate::StoreResult;

/// What there may be to tell of one destination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    pub destination_id: DestinationId,
    /// Deliveries that wait, and not in the lane of replays.
    pub waiting: u64,
    /// When the oldest of them was created.
    pub oldest_created_at: Option<Timestamp>,
    /// The latest instant at which one of them expires; `None` when none does.
    pub last_expires_at: Option<Timestamp>,
    /// Dead letters.
    pub dead: u64,
    pub told: AlertState,
    /// Rises with every change of `told`; 0 when nothing has been told.
    pub version: u64,
}

impl Condition {
    /// Nothing to tell, and nothing told.
    fn calm(destination_id: DestinationId) -> Self {
        Self {
            destination_id,
            waiting: 0,
            oldest_created_at: None,
            last_expires_at: None,
            dead: 0,
            told: AlertState::default(),
            version: 0,
        }
    }
}

/// Conditions, as a store gathers them part by part.
#[derive(Debug, Default)]
pub struct Conditions(BTreeMap<DestinationId, Condition>);

impl Conditions {
    /// The condition of a destination, calm at first.
    pub fn of(&mut self, id: DestinationId) -> &mut Condition {
        self.0.entry(id).or_insert_with(|| Condition::calm(id))
    }

    /// Those of which `which` is true.
    pub fn into_vec(self, which: impl Fn(DestinationId) -> bool) -> Vec<Condition> {
        self.0.into_values().filter(|condition| which(condition.destination_id)).collect()
    }
}

#[async_trait]
pub trait Alerting {
    /// The policy of all destinations; the default until another is set.
    async fn alert_policy(&self) -> StoreResult<AlertPolicy>;

    async fn set_alert_policy(&self, policy: AlertPolicy) -> StoreResult<()>;

    /// The destinations that take events of Weir's own types. Asked for every other second, and cheap.
    async fn alert_subscribers(&self) -> StoreResult<Vec<DestinationId>>;

    /// Every destination of these tenants with a backlog, dead letters, a breaker that is not closed, a pause of Weir's own, or
    /// something told of it. Reads through all that waits and all dead letters.
    async fn conditions(&self, tenants: &[String]) -> StoreResult<Vec<Condition>>;

    /// How many deliveries wait, over all destinations. Reads through all of them, in an index.
    async fn backlog(&self) -> StoreResult<u64>;

    /// Records what has been told of a destination. `false` when somebody else has meanwhile, and `version` is not the current one.
    async fn record_alert_state(&self, id: DestinationId, version: u64, told: AlertState) -> StoreResult<bool>;
}
