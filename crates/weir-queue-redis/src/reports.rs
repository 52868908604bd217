//! Reports on their way to Redis: starts that nobody waits for, and endings.
//!
//! They gather for each shard and go in batches, in their order, so that a start never overtakes its ending. A batch that
//! failed stays first in line and goes again: a report made twice changes nothing.

use std::{
    collections::VecDeque,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::join_all;
use tokio::sync::{Mutex as Turn, Notify};

use crate::{
    core::Core,
    hands::Report,
    keys::{SHARDS, Shard},
    scripts::Operation,
    trunk::CallError,
};

/// Reports in one call.
const BATCH: usize = 500;
/// How long starts gather before they go.
const GATHER: Duration = Duration::from_millis(2);
/// How long to wait after Redis failed.
const RETRY: Duration = Duration::from_millis(100);
/// Reports kept for a shard while Redis is away. What is dropped beyond that leaves permits that expire by themselves.
const MOST_KEPT: usize = 50_000;

#[derive(Default)]
pub(crate) struct Reports {
    waiting: Mutex<[VecDeque<Report>; SHARDS]>,
    /// Who holds it sends the shard's reports.
    turns: [Turn<()>; SHARDS],
    added: Notify,
}

impl Reports {
    // A panic while the lock is held is a bug already reported; the queues are whole between two calls.
    fn waiting(&self) -> MutexGuard<'_, [VecDeque<Report>; SHARDS]> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, report: Report) {
        let shard = Shard::of(report.id.destination_id);
        let line = &mut self.waiting()[shard.index()];
        if line.len() < MOST_KEPT {
            line.push_back(report);
        }
        self.added.notify_one();
    }

    /// The first in line, which stay there until they have arrived: whoever sends them may be cancelled.
    fn next_batch(&self, shard: Shard) -> Vec<Report> {
        self.waiting()[shard.index()].iter().take(BATCH).cloned().collect()
    }

    fn arrived(&self, shard: Shard, count: usize) {
        self.waiting()[shard.index()].drain(..count);
    }

    fn shards_waiting(&self) -> Vec<Shard> {
        let waiting = self.waiting();
        Shard::all().filter(|shard| !waiting[shard.index()].is_empty()).collect()
    }

    /// Returns once what had been added for the shard is in Redis.
    pub(crate) async fn flush(&self, core: &Core, shard: Shard) -> Result<(), CallError> {
        let _turn = self.turns[shard.index()].lock().await;
        loop {
            let batch = self.next_batch(shard);
            if batch.is_empty() {
                return Ok(());
            }
            let mut call = core.new_call(shard, Operation::Report);
            for report in &batch {
                call.arg(if report.started { "started" } else { "ended" }).arg(report.generation);
                call.destination(report.id.destination_id).arg(report.id.serial);
                call.arg(report.entry.as_deref().unwrap_or_default());
            }
            core.call(call).await?;
            self.arrived(shard, batch.len());
        }
    }

    pub(crate) async fn flush_all(&self, core: &Core, shards: &[Shard]) -> Result<(), CallError> {
        join_all(shards.iter().map(|&shard| self.flush(core, shard))).await.into_iter().collect()
    }

    /// Sends starts that no call takes along, for ever.
    pub(crate) async fn run(&self, core: &Core) {
        loop {
            self.added.notified().await;
            tokio::time::sleep(GATHER).await;
            while self.flush_all(core, &self.shards_waiting()).await.is_err() {
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}
