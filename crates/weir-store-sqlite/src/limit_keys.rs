//! Limit keys.

use async_trait::async_trait;
use weir_core::{DestinationId, Timestamp};
use weir_store::{DueDestination, FlowKey, KeyBacklogs, LimitKeys, StoreResult};

use crate::SqliteStore;

#[async_trait]
impl LimitKeys for SqliteStore {
    async fn flow_keys(&self, flows: &[DestinationId]) -> StoreResult<Vec<Option<FlowKey>>> {
        Ok(vec![None; flows.len()])
    }

    async fn due_flows(&self, _: Timestamp, _: Option<DestinationId>, _: u32) -> StoreResult<Vec<DueDestination>> {
        Ok(Vec::new())
    }

    async fn key_backlogs(&self, _: DestinationId, _: Option<&str>, _: u32) -> StoreResult<KeyBacklogs> {
        Ok(KeyBacklogs::default())
    }

    async fn flow_sends(&self, flows: &[DestinationId], _: Timestamp) -> StoreResult<Vec<u64>> {
        Ok(vec![0; flows.len()])
    }
}
