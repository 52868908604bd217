//! The worker's half: taking permits, slots, starts and endings.

use async_trait::async_trait;
use weir_core::Clock as _;
use weir_queue::{Permit, PermitId, Permits, QueueError, QueueResult, SlotAnswer, SlotRequest};

use crate::{RedisQueue, keys::Shard, reader::Reader, scripts::Operation};

#[async_trait]
impl Permits for RedisQueue {
    async fn take(&self, max: usize) -> QueueResult<Vec<Permit>> {
        let mut reader = self.reader.lock().await;
        let reader = reader.get_or_insert_with(|| Reader::start(&self.core));
        let permits = reader.take(max).await;
        if permits.is_empty() {
            return Err(QueueError("no more permits are taken".to_owned()));
        }
        Ok(permits)
    }

    async fn stop_taking(&self) -> Vec<Permit> {
        match self.reader.lock().await.as_mut() {
            Some(reader) => reader.stop(&self.core.local).await,
            None => Vec::new(),
        }
    }

    async fn take_slot(&self, id: PermitId, request: SlotRequest) -> QueueResult<SlotAnswer> {
        let shard = Shard::of(id.destination_id);
        // That it was started counts before it goes back.
        self.core.reports.flush(&self.core, shard).await?;
        let mut call = self.core.new_call(shard, Operation::TakeSlot);
        call.destination(id.destination_id)
            .arg(id.serial)
            .arg(u8::from(request.warm))
            .arg(u8::from(request.in_exchange));
        let mut slot = self.core.call(call).await?.rest;
        let (Some(start), Some(end)) = (slot.next_int(), slot.next_int()) else {
            return Ok(SlotAnswer::Withdrawn);
        };
        self.core.hands.put_back(id);
        Ok(SlotAnswer::Granted(self.core.clock.narrowed(shard, (start, end))))
    }

    fn start(&self, id: PermitId) -> bool {
        match self.core.hands.start(id, self.core.clock.now(), self.core.clock.monotonic()) {
            Some(report) => {
                self.core.reports.add(report);
                true
            }
            None => false,
        }
    }

    async fn settle(&self, ids: &[PermitId]) -> QueueResult<()> {
        let mut shards: Vec<Shard> = ids.iter().map(|id| Shard::of(id.destination_id)).collect();
        shards.sort_unstable();
        shards.dedup();
        for &id in ids {
            self.core.reports.add(self.core.hands.end(id));
        }
        // What fails now is sent again until it arrives.
        self.core.reports.send_all(&self.core, &shards).await?;
        Ok(())
    }

    async fn hand_back(&self, ids: &[PermitId]) -> QueueResult<()> {
        self.settle(ids).await
    }
}
