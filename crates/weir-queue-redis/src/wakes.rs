//! Wakes on their way to Redis. Those that come while a call is under way go together in the next, each destination once:
//! a producer that posts a thousand events a second to one destination wakes it a few hundred times.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use tokio::sync::Mutex as Turn;
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
    gathering: Mutex<Gathering>,
    /// Who holds it sends what has gathered.
    turn: Turn<()>,
}

#[derive(Default)]
struct Gathering {
    earliest: HashMap<DestinationId, Timestamp>,
    outcome: Outcome,
}

/// What became of the wakes that went together; empty while it is not known.
type Outcome = Arc<OnceLock<QueueResult<()>>>;

impl Wakes {
    // A panic while the lock is held is a bug already reported; a map of wakes is whole between two calls.
    fn gathering(&self) -> MutexGuard<'_, Gathering> {
        self.gathering.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, wakes: &[Wake]) -> Outcome {
        let mut gathering = self.gathering();
        for wake in wakes {
            let due = gathering.earliest.entry(wake.destination_id).or_insert(wake.due);
            *due = wake.due.min(*due);
        }
        gathering.outcome.clone()
    }

    /// Resolves when Redis has these wakes, or has failed to answer.
    pub(crate) async fn send(&self, core: &ShardContext, wakes: &[Wake]) -> QueueResult<()> {
        let joined = self.add(wakes);
        let _turn = self.turn.lock().await;
        if let Some(outcome) = joined.get() {
            return outcome.clone();
        }
        // Again: whoever had taken them along may have been cancelled. A wake sent twice changes nothing.
        self.add(wakes);
        let Gathering { earliest, outcome } = std::mem::take(&mut *self.gathering());
        let sent = send(core, earliest).await;
        for outcome in [joined, outcome] {
            let _ = outcome.set(sent.clone());
        }
        sent
    }
}

async fn send(core: &ShardContext, earliest: HashMap<DestinationId, Timestamp>) -> QueueResult<()> {
    let mut calls = Vec::new();
    for (shard, wakes) in by_shard(earliest, |&(id, _)| id) {
        let mut call = core.new_call(shard, Operation::Wake);
        let now = core.clock.now();
        let generation_began = match core.registry.generation(shard) {
            // Not heard of yet.
            0 => now,
            generation => from_micros(generation as i64),
        };
        for &(id, due) in &wakes {
            call.destination(id).not_before(due);
            core.gates.woken(id, generation_began, now);
        }
        calls.push((call, shard, wakes));
    }
    // A scheduler in this process may claim at once: its call follows these on the same connection.
    let learn = |shard: Shard, wakes: &[(DestinationId, Timestamp)]| {
        wakes.iter().for_each(|&(_, due)| core.due_times.learn(shard, due));
    };
    calls.iter().for_each(|(_, shard, wakes)| learn(*shard, wakes));
    let (calls, shards): (Vec<_>, Vec<_>) =
        calls.into_iter().map(|(call, shard, wakes)| (call, (shard, wakes))).unzip();
    core.call_all(&calls).await.into_iter().try_for_each(|answered| answered.map(drop))?;
    // And again, had it looked too early.
    shards.iter().for_each(|(shard, wakes)| learn(*shard, wakes));
    Ok(())
}
