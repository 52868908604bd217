//! Reservations without a desk: one question to the queue for each caller, and no waiting.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use weir_core::{LimitGroup, LimitGroupId, Timestamp};
use weir_queue::{QueueError, QueueResult, ReserveAnswer, ReserveError, ReserveSlots, SharedQueue, WantedSlot};

pub(crate) struct QueueReserver(pub(crate) SharedQueue);

#[async_trait]
impl ReserveSlots for QueueReserver {
    async fn reserve(&self, _: Arc<LimitGroup>, _: WantedSlot, _: Duration) -> Result<ReserveAnswer, ReserveError> {
        Err(QueueError::Refused("this server has no reservations".to_owned()).into())
    }

    async fn give_back(&self, group: LimitGroupId, cost: u32, start: Timestamp) -> QueueResult<()> {
        self.0.give_back_reserved(group, cost, start).await
    }
}
