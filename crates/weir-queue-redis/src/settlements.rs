//! What became of permits, on its way to Redis.
//!
//! Settlements gather for each shard and go in batches; what comes while a batch is under way goes in the next. A batch that failed
//! stays first in line and goes again: told twice it changes nothing.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::{Mutex as Turn, Notify};
use weir_core::DestinationId;
use weir_queue::PermitId;

use crate::{
    connection::CallError,
    keys::{SHARDS, Shard},
    scripts::{Call, Operation},
    shard_context::ShardContext,
};

/// Settlements in one call.
const BATCH: usize = 500;
/// How long what nobody waits for waits for a call that takes it along.
const GATHER: Duration = Duration::from_millis(20);
/// How long to wait after Redis failed.
const RETRY: Duration = Duration::from_millis(100);
/// Settlements kept for a shard while Redis is away. What is dropped beyond that leaves permits that expire by themselves.
const MOST_KEPT: usize = 50_000;

/// How a permit ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum End {
    /// Its attempt has ended, and is not recorded yet.
    Used,
    /// What became of it is recorded.
    Recorded,
    /// Nothing was sent.
    Unused,
    /// Nothing was sent, for want of a place in the worker.
    Crowded,
}

#[derive(Debug, Clone)]
struct Settlement {
    id: PermitId,
    end: End,
    generation: u64,
    entry: Option<String>,
}

/// The settlements of a shard.
#[derive(Default)]
struct Outbox {
    /// What goes next, in order.
    waiting: VecDeque<Settlement>,
    /// How many have arrived.
    arrived: u64,
}

#[derive(Default)]
pub(crate) struct Settlements {
    shards: Mutex<[Outbox; SHARDS]>,
    /// Who holds it sends the shard's settlements.
    turns: [Turn<()>; SHARDS],
    added: Notify,
}

impl Settlements {
    // A panic while the lock is held is a bug already reported; the lists are whole between two calls.
    fn shards(&self) -> MutexGuard<'_, [Outbox; SHARDS]> {
        self.shards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// `entry`: what leaves the delivery queue.
    pub(crate) fn add(&self, id: PermitId, end: End, generation: u64, entry: Option<String>) {
        let mut shards = self.shards();
        let outbox = &mut shards[Shard::of(id.destination_id).index()];
        if outbox.waiting.len() < MOST_KEPT {
            outbox.waiting.push_back(Settlement { id, end, generation, entry });
        }
        drop(shards);
        self.added.notify_one();
    }

    /// The first in line, unless all up to `last` have arrived. They stay there until they have: whoever sends them may be
    /// cancelled.
    fn next_batch(&self, shard: Shard, last: u64) -> Vec<Settlement> {
        let shards = self.shards();
        let outbox = &shards[shard.index()];
        if outbox.arrived >= last {
            return Vec::new();
        }
        outbox.waiting.iter().take(BATCH).cloned().collect()
    }

    fn arrived(&self, shard: Shard, count: usize) {
        let mut shards = self.shards();
        let outbox = &mut shards[shard.index()];
        outbox.waiting.drain(..count);
        outbox.arrived += count as u64;
    }

    fn shards_waiting(&self) -> Vec<Shard> {
        let shards = self.shards();
        Shard::all().filter(|shard| !shards[shard.index()].waiting.is_empty()).collect()
    }

    /// Returns once what had been added for the shards is in Redis.
    pub(crate) async fn flush(&self, core: &ShardContext, shards: &[Shard]) -> Result<(), CallError> {
        join_all(shards.iter().map(|&shard| self.send(core, shard))).await.into_iter().collect()
    }

    async fn send(&self, core: &ShardContext, shard: Shard) -> Result<(), CallError> {
        let last = {
            let outbox = &self.shards()[shard.index()];
            outbox.arrived + outbox.waiting.len() as u64
        };
        // Whoever has the turn takes along what the others came for: they find it gone, and need no call.
        let _turn = self.turns[shard.index()].lock().await;
        loop {
            let batch = self.next_batch(shard, last);
            if batch.is_empty() {
                return Ok(());
            }
            let mut call = core.new_call(shard, Operation::Settle);
            Digest::of_all(&batch).iter().for_each(|digest| digest.write(&mut call));
            core.call(call).await?;
            self.arrived(shard, batch.len());
        }
    }

    /// Sends what no call takes along, for ever.
    pub(crate) async fn run(&self, core: &ShardContext) {
        loop {
            self.added.notified().await;
            tokio::time::sleep(GATHER).await;
            while self.flush(core, &self.shards_waiting()).await.is_err() {
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

/// What a batch says of the permits of one destination.
struct Digest<'s> {
    destination_id: DestinationId,
    generation: u64,
    used: Vec<u64>,
    unused: Vec<u64>,
    crowded: usize,
    entries: Vec<&'s str>,
}

impl<'s> Digest<'s> {
    /// One for each destination and generation.
    fn of_all(batch: &'s [Settlement]) -> Vec<Self> {
        let mut places = HashMap::new();
        let mut digests: Vec<Self> = Vec::new();
        for Settlement { id: PermitId { destination_id, serial }, end, generation, entry } in batch {
            let place = *places.entry((destination_id, generation)).or_insert_with(|| {
                let (used, unused, entries) = (Vec::new(), Vec::new(), Vec::new());
                let (destination_id, generation) = (*destination_id, *generation);
                digests.push(Self { destination_id, generation, used, unused, crowded: 0, entries });
                digests.len() - 1
            });
            let digest = &mut digests[place];
            match end {
                End::Used => digest.used.push(*serial),
                End::Unused | End::Crowded => digest.unused.push(*serial),
                End::Recorded => {}
            }
            digest.crowded += usize::from(*end == End::Crowded);
            digest.entries.extend(entry.as_deref());
        }
        digests
    }

    fn write(&self, call: &mut Call) {
        call.destination(self.destination_id).arg(self.generation);
        for permits in [&self.used, &self.unused] {
            call.arg(permits.len()).arg(permits);
        }
        call.arg(self.crowded).arg(self.entries.len()).arg(&self.entries);
    }
}
