//! Sends wakes to Redis. Wakes that arrive during a call go together in the next call, each destination once. So a
//! producer that posts a thousand events a second to one destination wakes it only a few hundred times a second.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use tokio::sync::Mutex as AsyncMutex;
use weir_core::{Clock as _, DestinationId, Timestamp};
use weir_queue::{QueueResult, Wake};

use crate::{
    keys::Shard,
    schedule::by_shard,
    scripts::{Operation, from_micros},
    shard_context::ShardContext,
};

#[derive(Default)]
pub(crate) struct Wakes {
    pending: Mutex<PendingWakes>,
    /// The holder sends the pending wakes.
    send_lock: AsyncMutex<()>,
}

#[derive(Default)]
struct PendingWakes {
    earliest: HashMap<DestinationId, Timestamp>,
    result: SharedResult,
}

/// The result of the wakes of one call; empty until it is known.
type SharedResult = Arc<OnceLock<QueueResult<()>>>;

impl Wakes {
    // A panic while the lock is held is a bug already reported; the map is complete between two calls.
    fn pending(&self) -> MutexGuard<'_, PendingWakes> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, wakes: &[Wake]) -> SharedResult {
        let mut pending = self.pending();
        for wake in wakes {
            let due = pending.earliest.entry(wake.destination_id).or_insert(wake.due);
            *due = wake.due.min(*due);
        }
        pending.result.clone()
    }

    /// Returns when Redis has received these wakes, or the call has failed.
    pub(crate) async fn send(&self, context: &ShardContext, wakes: &[Wake]) -> QueueResult<()> {
        let joined = self.add(wakes);
        let _sending = self.send_lock.lock().await;
        if let Some(result) = joined.get() {
            return result.clone();
        }
        // The task that had taken the wakes may have been cancelled, so they are added again. Repeating a wake changes
        // nothing.
        self.add(wakes);
        let PendingWakes { earliest, result } = std::mem::take(&mut *self.pending());
        let sent = send(context, earliest).await;
        for result in [joined, result] {
            let _ = result.set(sent.clone());
        }
        sent
    }
}

async fn send(context: &ShardContext, earliest: HashMap<DestinationId, Timestamp>) -> QueueResult<()> {
    // One call for each batch of a shard. The admission estimates learn that these runs were requested.
    let mut calls = Vec::new();
    for (shard, wakes) in by_shard(earliest, |&(id, _)| id) {
        let mut call = context.new_call(shard, Operation::Wake);
        let now = context.clock.now();
        let generation_began = match context.registry.generation(shard) {
            // Not known yet.
            0 => now,
            // Its number is ahead of the time while the clock of Redis is behind.
            generation => from_micros(generation as i64).min(now),
        };
        for &(id, due) in &wakes {
            call.destination(id).not_before(due);
            context.admission_estimates.woken(id, generation_began, now);
        }
        calls.push((call, shard, wakes));
    }
    // A scheduler in this process may claim at once: its call comes after these calls on the same connection.
    let learn = |shard: Shard, wakes: &[(DestinationId, Timestamp)]| {
        wakes.iter().for_each(|&(_, due)| context.due_times.learn(shard, due));
    };
    calls.iter().for_each(|(_, shard, wakes)| learn(*shard, wakes));
    let (calls, shards): (Vec<_>, Vec<_>) =
        calls.into_iter().map(|(call, shard, wakes)| (call, (shard, wakes))).unzip();
    context.call_all(&calls).await.into_iter().try_for_each(|answered| answered.map(drop))?;
    // Learn again, in case the scheduler claimed before the wakes arrived.
    shards.iter().for_each(|(shard, wakes)| learn(*shard, wakes));
    Ok(())
}
