//! Reads the delivery queue: blocking reads on connections of their own, into a bounded channel.
//!
//! A single server is read by one connection for all shards; in a Cluster each shard has its reader, since one command cannot
//! span slots. After a failure a reader first asks for what it was given and may not have heard of.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use redis::{Cmd, ErrorKind, RedisError, RedisResult};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use weir_queue::{Permit, PermitId};

use crate::{
    connect::{BLOCK, Backoff, Exclusive},
    core::Core,
    hands::Received,
    keys::{GROUP, Shard},
    local::{Handed, Local},
    scripts::Operation,
    wire::{self, Entry},
};

/// Permits that wait here for a worker: a few milliseconds of work.
const PREFETCHED: usize = 256;
/// Entries read from one shard in one call.
const PER_READ: usize = 64;
/// Entries of its own that a reader asks for after a failure.
const RECALLED: usize = 10_000;

/// The readers of a process, and what comes straight.
pub(crate) struct Reader {
    permits: mpsc::Receiver<Permit>,
    handed: Handed,
    stop: watch::Sender<bool>,
    /// End with the reader; what one was given and nobody took expires.
    _lines: JoinSet<()>,
}

/// The name and the answer of XREADGROUP: streams, their entries, the fields of each.
type Streams = Vec<(String, Vec<(String, Option<Vec<Bytes>>)>)>;

impl Reader {
    /// Reads until stopped.
    pub(crate) fn start(core: &Arc<Core>) -> Self {
        let (sender, permits) = mpsc::channel(PREFETCHED);
        let (stop, stopped) = watch::channel(false);
        let each: Vec<Vec<Shard>> = if core.trunk.dialer().is_cluster() {
            Shard::all().map(|shard| vec![shard]).collect()
        } else {
            vec![Shard::all().collect()]
        };
        let mut lines = JoinSet::new();
        for shards in each {
            let line = Line { core: core.clone(), shards, name: core.process.clone(), permits: sender.clone() };
            lines.spawn(line.read(stopped.clone()));
        }
        Self { permits, handed: core.local.open(), stop, _lines: lines }
    }

    /// At least one permit, or none when the readers have been stopped.
    pub(crate) async fn take(&mut self, max: usize) -> Vec<Permit> {
        let mut read = Vec::new();
        tokio::select! {
            handed = self.handed.take(max) => handed,
            _ = self.permits.recv_many(&mut read, max) => read,
        }
    }

    /// Ends the readers and answers all that they had read and nobody took, and what had come straight. Takes as long as a
    /// blocking read.
    pub(crate) async fn stop(&mut self, local: &Local) -> Vec<Permit> {
        self.stop.send_replace(true);
        local.close();
        let mut permits = Vec::new();
        loop {
            let handed = self.handed.take(usize::MAX).await;
            if handed.is_empty() {
                break;
            }
            permits.extend(handed);
        }
        while self.permits.recv_many(&mut permits, usize::MAX).await > 0 {}
        permits
    }
}

/// One connection and the shards it reads.
struct Line {
    core: Arc<Core>,
    shards: Vec<Shard>,
    name: String,
    permits: mpsc::Sender<Permit>,
}

impl Line {
    async fn read(self, mut stopped: watch::Receiver<bool>) {
        let mut failed_before = false;
        let mut backoff = Backoff::default();
        while !*stopped.borrow() {
            if let Err(error) = self.read_on(&stopped, failed_before, &mut backoff).await {
                tracing::debug!(%error, "could not read permits; trying again");
                failed_before = true;
                let _ = tokio::time::timeout(backoff.fail(), stopped.wait_for(|stopped| *stopped)).await;
            }
        }
    }

    async fn read_on(&self, stopped: &watch::Receiver<bool>, recall: bool, backoff: &mut Backoff) -> RedisResult<()> {
        let mut connection = self.core.trunk.dialer().reader().await?;
        let read = self.read_with(&mut connection, stopped, recall, backoff).await;
        connection.discard();
        read
    }

    async fn read_with(
        &self,
        connection: &mut Exclusive,
        stopped: &watch::Receiver<bool>,
        recall: bool,
        backoff: &mut Backoff,
    ) -> RedisResult<()> {
        if recall {
            // A lost queue gets its group with its new generation.
            for &shard in &self.shards {
                let _ = self.core.call(self.core.new_call(shard, Operation::Begin)).await;
            }
            // What has ended leaves the queue first, and what is in hand now is passed over even if it ends meanwhile: or a
            // permit whose reports were still on their way would come back, and be used twice.
            let held = self.core.hands.held();
            let reported = self.core.reports.flush_all(&self.core, &self.shards).await;
            reported.map_err(|_| RedisError::from((ErrorKind::Io, "what has ended is not reported yet")))?;
            self.hand_on(connection.query(&self.command("0", RECALLED)).await?, &held).await;
        }
        let next = self.command(">", PER_READ);
        while !*stopped.borrow() {
            let read: Option<Streams> = connection.query(&next).await?;
            backoff.reset();
            self.hand_on(read, &HashSet::new()).await;
        }
        Ok(())
    }

    /// `>` asks for what nobody has read, `0` for what this reader has read and not done with.
    fn command(&self, from: &str, count: usize) -> Cmd {
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(&self.name).arg("COUNT").arg(count);
        command.arg("BLOCK").arg(BLOCK.as_millis() as u64).arg("STREAMS");
        for &shard in &self.shards {
            command.arg(self.core.keys.queue(shard));
        }
        for _ in &self.shards {
            command.arg(from);
        }
        command
    }

    /// Passes on the permits that are new.
    async fn hand_on(&self, streams: Option<Streams>, held: &HashSet<PermitId>) {
        for (queue, entries) in streams.into_iter().flatten() {
            let Some(shard) = self.core.keys.shard_of_queue(&queue) else { continue };
            for entry in entries.into_iter().filter_map(|(entry, fields)| read_entry(entry, fields?)) {
                let Entry { entry, generation, version, id, slot, delivery } = entry;
                let expires_at = delivery.expires_at;
                let received = Received { id, generation, version, expires_at, entry: Some(entry) };
                if held.contains(&id) || !self.core.hands.receive(received) {
                    continue;
                }
                let slot = slot.map(|slot| self.core.clock.narrowed(shard, slot));
                // The receiver outlives this line.
                let _ = self.permits.send(Permit { id, slot, delivery }).await;
            }
        }
    }
}

fn read_entry(entry: String, fields: Vec<Bytes>) -> Option<Entry> {
    let [_, permit, _, delivery] = <[Bytes; 4]>::try_from(fields).ok()?;
    let read = wire::decode(entry, permit, delivery);
    if read.is_none() {
        tracing::warn!("an entry of the delivery queue that cannot be read; its claim expires");
    }
    read
}
