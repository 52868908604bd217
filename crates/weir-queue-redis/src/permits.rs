//! The worker's half: taking permits, asking for slots, settling.

use async_trait::async_trait;
use weir_queue::{HandedBack, Permit, PermitId, Permits, QueueError, QueueResult, SlotAnswer, SlotRequest};

use crate::{RedisQueue, keys::Shard, reader::Reader, settlements::End};

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
            Some(reader) => reader.stop().await,
            None => Vec::new(),
        }
    }

    async fn take_slot(&self, request: SlotRequest) -> QueueResult<SlotAnswer> {
        if !self.core.may_use(request.id) {
            return Ok(SlotAnswer::Withdrawn);
        }
        self.core.ask_for_slot(request).await
    }

    async fn settle(&self, ids: &[PermitId]) -> QueueResult<()> {
        self.end(ids.iter().map(|&id| (id, End::Used))).await
    }

    fn recorded(&self, ids: &[PermitId]) {
        ids.iter().for_each(|&id| self.core.end(id, End::Recorded));
    }

    async fn hand_back(&self, permits: &[HandedBack]) -> QueueResult<()> {
        let end = |crowded| if crowded { End::Crowded } else { End::Unused };
        self.end(permits.iter().map(|&HandedBack { id, crowded }| (id, end(crowded)))).await
    }
}

impl RedisQueue {
    async fn end(&self, permits: impl Iterator<Item = (PermitId, End)>) -> QueueResult<()> {
        let mut shards = Vec::new();
        for (id, end) in permits {
            self.core.end(id, end);
            shards.push(Shard::of(id.destination_id));
        }
        shards.sort_unstable();
        shards.dedup();
        // What fails now is sent again until it arrives.
        self.core.settlements.flush(&self.core, &shards).await?;
        Ok(())
    }
}
