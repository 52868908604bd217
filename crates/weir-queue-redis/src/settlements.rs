//! Sends to Redis how permits ended.
//!
//! Settlements are collected for each shard and sent in batches. Settlements that arrive during a call go in the next
//! batch. A batch that failed stays first in its queue and is sent again; repeating it changes nothing.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::{Mutex as AsyncMutex, Notify};
use weir_core::{DestinationId, Timestamp};
use weir_queue::{PermitId, QueueResult};

use crate::{
    keys::{SHARDS, Shard},
    scripts::{Call, Operation},
    shard_context::ShardContext,
};

/// Settlements in one call, so that no script occupies the server for long. A settlement costs less than a slot or a
/// permit, so these are more than the 200 of other calls.
const BATCH: usize = 500;
/// How long a settlement that no caller waits for stays before it causes a call of its own. Most of them go earlier,
/// with a flush.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// How long to wait after a failed call. Constant: a settlement that comes late holds room below `max_in_flight`, and
/// while there is no connection a call fails without reaching Redis.
const RETRY: Duration = Duration::from_millis(100);
/// Settlements kept for a shard while Redis is unavailable; for all shards a hundred times as many as a worker has
/// places. Further settlements are dropped; their permits expire.
const MAX_KEPT: usize = 50_000;

/// How a permit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PermitEnd {
    /// The attempt has ended and is not recorded yet.
    Used {
        /// [`weir_queue::Settled::answered`].
        answered: Option<Timestamp>,
    },
    /// The attempt is recorded.
    Recorded,
    /// Nothing was sent.
    Unused,
    /// Nothing was sent, because the worker had no place.
    Crowded,
}

#[derive(Debug, Clone)]
struct Settlement {
    id: PermitId,
    end: PermitEnd,
    generation: u64,
    entry: Option<String>,
}

/// The unsent settlements of a shard.
#[derive(Default)]
struct SettlementQueue {
    /// In the order of sending.
    unsent: VecDeque<Settlement>,
    /// How many settlements Redis has received so far.
    sent: u64,
}

#[derive(Default)]
pub(crate) struct Settlements {
    shards: Mutex<[SettlementQueue; SHARDS]>,
    /// A lock for each shard: its holder sends the settlements of the shard.
    send_locks: [AsyncMutex<()>; SHARDS],
    added: Notify,
}

impl Settlements {
    // A panic while the lock is held is a bug already reported; the lists are complete between two calls.
    fn shards(&self) -> MutexGuard<'_, [SettlementQueue; SHARDS]> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `entry` is removed from the delivery queue.
    pub(crate) fn add(&self, id: PermitId, end: PermitEnd, generation: u64, entry: Option<String>) {
        let mut shards = self.shards();
        let queue = &mut shards[Shard::of(id.destination_id).index()];
        if queue.unsent.len() < MAX_KEPT {
            queue.unsent.push_back(Settlement { id, end, generation, entry });
        }
        drop(shards);
        self.added.notify_one();
    }

    /// The next settlements to send; none when all up to `last` were sent. They stay in the queue until Redis has
    /// received them, because the sending task may be cancelled.
    fn next_batch(&self, shard: Shard, last: u64) -> Vec<Settlement> {
        let shards = self.shards();
        let queue = &shards[shard.index()];
        if queue.sent >= last {
            return Vec::new();
        }
        queue.unsent.iter().take(BATCH).cloned().collect()
    }

    fn mark_sent(&self, shard: Shard, count: usize) {
        let mut shards = self.shards();
        let queue = &mut shards[shard.index()];
        queue.unsent.drain(..count);
        queue.sent += count as u64;
    }

    fn shards_with_unsent(&self) -> Vec<Shard> {
        let shards = self.shards();
        Shard::all().filter(|shard| !shards[shard.index()].unsent.is_empty()).collect()
    }

    /// Returns once Redis has received all settlements that were added for the shards before this call.
    pub(crate) async fn flush(&self, context: &ShardContext, shards: &[Shard]) -> QueueResult<()> {
        join_all(shards.iter().map(|&shard| self.send(context, shard))).await.into_iter().collect()
    }

    async fn send(&self, context: &ShardContext, shard: Shard) -> QueueResult<()> {
        let last = {
            let queue = &self.shards()[shard.index()];
            queue.sent + queue.unsent.len() as u64
        };
        // The holder of the lock also sends the settlements of the callers that wait for it. They find them sent and
        // make no call.
        let _sending = self.send_locks[shard.index()].lock().await;
        loop {
            let batch = self.next_batch(shard, last);
            if batch.is_empty() {
                return Ok(());
            }
            let mut call = context.new_call(shard, Operation::Settle);
            DestinationSettlements::of_all(&batch).iter().for_each(|group| group.write(&mut call));
            context.call(call).await?;
            self.mark_sent(shard, batch.len());
        }
    }

    /// Sends settlements that no flush has sent. Never returns.
    pub(crate) async fn run(&self, context: &ShardContext) {
        loop {
            self.added.notified().await;
            tokio::time::sleep(BATCH_DELAY).await;
            while self.flush(context, &self.shards_with_unsent()).await.is_err() {
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// The settlements of a batch for one destination and generation.
struct DestinationSettlements<'s> {
    destination_id: DestinationId,
    generation: u64,
    used: Vec<u64>,
    /// For each used permit.
    answered: Vec<Option<Timestamp>>,
    unused: Vec<u64>,
    crowded: usize,
    entries: Vec<&'s str>,
}

impl<'s> DestinationSettlements<'s> {
    /// Groups a batch by destination and generation.
    fn of_all(batch: &'s [Settlement]) -> Vec<Self> {
        let mut indexes = HashMap::new();
        let mut groups: Vec<Self> = Vec::new();
        for Settlement { id: PermitId { destination_id, serial }, end, generation, entry } in batch {
            let index = *indexes.entry((destination_id, generation)).or_insert_with(|| {
                let (used, answered, unused, entries) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
                let (destination_id, generation) = (*destination_id, *generation);
                groups.push(Self { destination_id, generation, used, answered, unused, crowded: 0, entries });
                groups.len() - 1
            });
            let group = &mut groups[index];
            match end {
                PermitEnd::Used { answered } => {
                    group.used.push(*serial);
                    group.answered.push(*answered);
                }
                PermitEnd::Unused | PermitEnd::Crowded => group.unused.push(*serial),
                PermitEnd::Recorded => {}
            }
            group.crowded += usize::from(*end == PermitEnd::Crowded);
            group.entries.extend(entry.as_deref());
        }
        groups
    }

    fn write(&self, call: &mut Call) {
        call.destination(self.destination_id).arg(self.generation);
        call.arg(self.used.len()).arg(&self.used).arg(self.answered.len());
        for answered in &self.answered {
            call.not_before(answered.unwrap_or(Timestamp::MIN));
        }
        call.arg(self.unused.len()).arg(&self.unused);
        call.arg(self.crowded).arg(self.entries.len()).arg(&self.entries);
    }
}
