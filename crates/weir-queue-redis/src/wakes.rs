//! Sends wakes to Redis. Wakes that arrive during a call go together in the next call, each destination once. So a
//! producer that posts a thousand events a second to one destination wakes it only a few hundred times a second.

use std::{collections::HashMap, sync::Arc, time::Duration};

use weir_core::{Clock as _, DestinationId, Timestamp};
use weir_queue::{QueueResult, Wake};

use crate::{
    admission_estimates::AdmissionEstimates, batcher::Batcher, client::ShardClient, codec::from_micros,
    due_times::DueTimes, keys::Shard, schedule::BATCH, scripts::Operation,
};

pub(crate) struct Wakes {
    client: Arc<ShardClient>,
    due_times: Arc<DueTimes>,
    estimates: Arc<AdmissionEstimates>,
    batcher: Batcher<Wake>,
}

impl Wakes {
    pub(crate) fn new(
        client: &Arc<ShardClient>,
        due_times: &Arc<DueTimes>,
        estimates: &Arc<AdmissionEstimates>,
    ) -> Self {
        let (client, due_times, estimates) = (client.clone(), due_times.clone(), estimates.clone());
        Self { client, due_times, estimates, batcher: Batcher::new(BATCH, Duration::ZERO) }
    }

    /// Returns when Redis has received these wakes, or the call has failed.
    pub(crate) async fn send(&self, wakes: &[Wake]) -> QueueResult<()> {
        let shard = |wake: &Wake| Shard::of(wake.destination_id);
        for wake in wakes {
            self.batcher.add(shard(wake), *wake);
        }
        self.batcher.flush(wakes.iter().map(shard)).await
    }

    /// Sends the wakes of a shard. Never returns.
    pub(crate) async fn run(&self, shard: Shard) {
        loop {
            let batch = self.batcher.next(shard).await;
            let sent = self.send_batch(shard, &batch).await;
            self.batcher.finish(shard, batch, sent).await;
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
            self.estimates.woken(id, generation_began, now);
        }
        // A scheduler in this process may claim at once: its call comes after this one on the same connection.
        let first = wakes.iter().map(|wake| wake.due).min().unwrap_or(Timestamp::MAX);
        self.due_times.learn(shard, first);
        self.client.call(call).await?;
        // Learn again, in case the scheduler claimed before the wakes arrived.
        self.due_times.learn(shard, first);
        Ok(())
    }
}
