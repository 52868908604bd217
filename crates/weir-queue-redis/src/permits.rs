//! The queue for workers: taking permits, asking for slots, settling.

use std::time::Duration;

use async_trait::async_trait;
use weir_queue::{
    HandedBack, Permit, PermitId, Permits, QueueError, QueueResult, Report, Settled, SlotAnswer, SlotRequest,
};

use crate::{RedisQueue, reader::Reader, schedule::by_shard, scripts::Operation, settlements::Ending};

#[async_trait]
impl Permits for RedisQueue {
    async fn take(&self, max: usize) -> QueueResult<Vec<Permit>> {
        let mut reader = self.reader.lock().await;
        let reader = reader.get_or_insert_with(|| Reader::start(&self.client, &self.settlements));
        let permits = reader.take(max).await;
        if permits.is_empty() {
            return Err(QueueError::Refused("no more permits are taken".to_owned()));
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
        if !self.client.may_use(request.id) {
            return Ok(SlotAnswer::Withdrawn);
        }
        self.slot_requests.ask(request).await
    }

    fn slot_round_trip(&self) -> Duration {
        self.slot_requests.round_trip()
    }

    async fn settle(&self, settled: &[Settled]) -> QueueResult<()> {
        self.end(settled.iter().map(|&Settled { id, answered }| (id, Ending::Used { answered }))).await
    }

    async fn report(&self, reports: &[Report]) -> QueueResult<()> {
        let mut calls = Vec::new();
        for (shard, reports) in by_shard(reports, |report| self.client.homes.of(report.destination_id)) {
            let mut call = self.client.new_call(shard, Operation::Report);
            for Report { destination_id, sample } in reports {
                let json = serde_json::to_string(sample).unwrap_or_default();
                call.destination(*destination_id).arg(json).arg(u8::from(sample.is_urgent()));
            }
            calls.push(call);
        }
        self.client.call_all(&calls).await.into_iter().try_for_each(|answered| answered.map(drop))
    }

    fn recorded(&self, ids: &[PermitId]) {
        for &id in ids {
            self.settlements.end(id, Ending::Recorded);
        }
    }

    fn losses(&self) -> u64 {
        self.client.registry.losses()
    }

    async fn hand_back(&self, permits: &[HandedBack]) -> QueueResult<()> {
        let end = |crowded| if crowded { Ending::Crowded } else { Ending::Unused };
        self.end(permits.iter().map(|&HandedBack { id, crowded }| (id, end(crowded)))).await
    }
}

impl RedisQueue {
    async fn end(&self, permits: impl Iterator<Item = (PermitId, Ending)>) -> QueueResult<()> {
        let mut shards = Vec::new();
        for (id, end) in permits {
            shards.push(self.settlements.end(id, end));
        }
        // Settlements that fail now are sent again until Redis has them.
        self.settlements.flush(shards).await
    }
}
