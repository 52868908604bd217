//! Sends wakes to Redis. Wakes that arrive during a call go together in the next call, each destination once. So a
//! producer that posts a thousand events a second to one destination wakes it only a few hundred times a second.

use std::{collections::HashMap, sync::Arc, time::Duration};

use weir_core::{Clock as _, DestinationId, Timestamp};
use weir_queue::{QueueResult, Wake};

use crate::{
    batcher::Batcher, client::ShardClient, codec::from_micros, keys::Shard, schedule::BATCH, scripts::Operation,
};

pub(crate) struct Wakes {
    client: Arc<ShardClient>,
    batcher: Batcher<Wake>,
}

impl Wakes {
    pub(crate) fn new(client: &Arc<ShardClient>) -> Self {
        Self { client: client.clone(), batcher: Batcher::new(BATCH, Duration::ZERO) }
    }

    /// Returns when Redis has received these wakes, or the call has failed.
    pub(crate) async fn send(&self, wakes: &[Wake]) -> QueueResult<()> {
        let shard = |wake: &Wake| self.client.homes.of(wake.destination_id);
        for wake in wakes {
            self.batcher.add(shard(wake), *wake);
        }
        self.batcher.flush(wakes.iter().map(shard)).await
    }

    /// Sends the wakes of a shard. Never returns.
    pub(crate) async fn run(self: Arc<Self>, shard: Shard) {
        loop {
            let batch = self.batcher.next(shard).await;
            let sent = self.send_batch(shard, &batch).await;
            // After a failure the sweep finds these destinations.
            self.batcher.finish(shard, sent, Vec::new()).await;
        }
    }

    async fn send_batch(&self, shard: Shard, wakes: &[Wake]) -> QueueResult<()> {
        let mut earliest: HashMap<DestinationId, Timestamp> = HashMap::new();
        for wake in wakes {
            let due = earliest.entry(wake.destination_id).or_insert(wake.due);
            *due = wake.due.min(*due);
        }
        let mut call = self.client.new_call(shard, Operation::Wake);
        // The admission estimates learn that these runs were requested.
        let now = self.client.clock.now();
        let generation_began = match self.client.registry.generation(shard) {
            // Not known yet.
            0 => now,
            // Its number is ahead of the time while the clock of Redis is behind.
            generation => from_micros(generation as i64).min(now),
        };
        for (id, due) in earliest {
            call.destination(id).not_before(due);
            self.client.estimates.woken(id, generation_began, now);
        }
        // A scheduler in this process may claim at once: its call comes after this one on the same connection.
        let first = wakes.iter().map(|wake| wake.due).min().unwrap_or(Timestamp::MAX);
        self.client.due_times.learn(shard, first);
        self.client.call(call).await?;
        // Learn again, in case the scheduler claimed before the wakes arrived.
        self.client.due_times.learn(shard, first);
        Ok(())
    }
}
