//! Reads the delivery queue: blocking reads on connections of their own, as many permits as the worker has places for.
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
use weir_core::claim::ProcessId;
use weir_queue::{Permit, PermitId};

use crate::{
    codec::{self, Entry},
    connect::{BLOCK, Backoff, Exclusive},
    keys::{GROUP, Shard},
    permit_registry::Taken,
    shard_context::ShardContext,
};

/// Entries read from one shard in one call.
const PER_READ: usize = 64;
/// Entries of its own that a reader asks for after a failure.
const RECALLED: usize = 10_000;

/// The readers of a process.
pub(crate) struct Reader {
    permits: mpsc::UnboundedReceiver<Permit>,
    /// How many more permits the worker has places for. What it has none for stays in the queue, where another can have it.
    wanted: watch::Sender<usize>,
    stop: watch::Sender<bool>,
    /// End with the reader; what one was given and nobody took expires.
    _lines: JoinSet<()>,
}

/// The name and the answer of XREADGROUP: streams, their entries, the fields of each.
type Streams = Vec<(String, Vec<(String, Option<Vec<Bytes>>)>)>;

impl Reader {
    /// Reads until stopped.
    pub(crate) fn start(core: &Arc<ShardContext>) -> Self {
        let (sender, permits) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let (wanted, _) = watch::channel(0);
        let each: Vec<Vec<Shard>> = if core.connection.dialer().is_cluster() {
            Shard::all().map(|shard| vec![shard]).collect()
        } else {
            vec![Shard::all().collect()]
        };
        let mut lines = JoinSet::new();
        for shards in each {
            let (permits, wanted) = (sender.clone(), wanted.clone());
            let line = Line { core: core.clone(), shards, permits, wanted };
            lines.spawn(line.read(stopped.clone()));
        }
        Self { permits, wanted, stop, _lines: lines }
    }

    /// At least one permit, or none when the readers have been stopped.
    pub(crate) async fn take(&mut self, max: usize) -> Vec<Permit> {
        self.wanted.send_replace(max.saturating_sub(self.permits.len()));
        let mut read = Vec::new();
        self.permits.recv_many(&mut read, max).await;
        read
    }

    /// Ends the readers and answers all that they had read and nobody took. Takes as long as a blocking read.
    pub(crate) async fn stop(&mut self) -> Vec<Permit> {
        self.stop.send_replace(true);
        let mut permits = Vec::new();
        while self.permits.recv_many(&mut permits, usize::MAX).await > 0 {}
        permits
    }
}

/// What a reader asks for.
#[derive(Clone, Copy)]
enum Which {
    /// What nobody has read.
    New,
    /// What it has read itself, and is not done with.
    Own,
}

/// One connection and the shards it reads.
struct Line {
    core: Arc<ShardContext>,
    shards: Vec<Shard>,
    permits: mpsc::UnboundedSender<Permit>,
    wanted: watch::Sender<usize>,
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
        let mut connection = self.core.connection.dialer().reader().await?;
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
                let _ = self.core.call(self.core.begin(shard, false)).await;
            }
            // What has ended leaves the queue first, and what is in hand now is passed over even if it ends meanwhile: or a
            // permit whose settlement was still on its way would come back, and be used twice.
            let held = self.core.registry.held();
            let settled = self.core.settlements.flush(&self.core, &self.shards).await;
            settled.map_err(|_| RedisError::from((ErrorKind::Io, "what has ended is not settled yet")))?;
            self.read_as(Which::Own, RECALLED, connection, &held).await?;
        }
        while let Some(wanted) = self.wanted(stopped).await {
            // A count is for each shard.
            let count = (wanted / self.shards.len()).clamp(1, PER_READ);
            self.read_as(Which::New, count, connection, &HashSet::new()).await?;
            backoff.reset();
        }
        Ok(())
    }

    /// Reads under the name that the process has now, and passes on what is new.
    async fn read_as(
        &self,
        which: Which,
        count: usize,
        connection: &mut Exclusive,
        held: &HashSet<PermitId>,
    ) -> RedisResult<()> {
        let (holder, reader) = (self.core.lease.process(), self.core.lease.reader());
        let read: Option<Streams> = connection.query(&self.command(which, &reader, count)).await?;
        self.hand_on(read, holder, held);
        Ok(())
    }

    /// Waits until the worker has places and the process may take permits, and answers how many; `None` when the readers are stopped.
    async fn wanted(&self, stopped: &watch::Receiver<bool>) -> Option<usize> {
        let (mut stopped, mut wanted) = (stopped.clone(), self.wanted.subscribe());
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => None,
            wanted = async {
                self.core.lease.valid().await;
                wanted.wait_for(|wanted| *wanted > 0).await.ok().map(|wanted| *wanted)
            } => wanted,
        }
    }

    fn command(&self, which: Which, reader: &str, count: usize) -> Cmd {
        let from = match which {
            Which::New => ">",
            Which::Own => "0",
        };
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(reader).arg("COUNT").arg(count);
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
    fn hand_on(&self, streams: Option<Streams>, holder: Option<ProcessId>, held: &HashSet<PermitId>) {
        for (queue, entries) in streams.into_iter().flatten() {
            let Some(shard) = self.core.keys.shard_of_queue(&queue) else { continue };
            for entry in entries.into_iter().filter_map(|(entry, fields)| read_entry(entry, fields?)) {
                let Entry { entry, published_at, generation, id, expected_at, delivery } = entry;
                let taken = Taken { generation, expires_at: delivery.expires_at, entry, holder };
                if held.contains(&id) || !self.core.registry.take(id, taken) {
                    continue;
                }
                let expected_at = expected_at.map(|at| self.core.clock.placed(shard, at));
                let published_at = self.core.clock.placed(shard, published_at);
                self.wanted.send_modify(|wanted| *wanted = wanted.saturating_sub(1));
                // The receiver outlives this line.
                let _ = self.permits.send(Permit { id, published_at, expected_at, delivery });
            }
        }
    }
}

fn read_entry(entry: String, fields: Vec<Bytes>) -> Option<Entry> {
    let [_, permit, _, delivery] = <[Bytes; 4]>::try_from(fields).ok()?;
    let read = codec::decode(entry, permit, delivery);
    if read.is_none() {
        tracing::warn!("an entry of the delivery queue that cannot be read; its claim expires");
    }
    read
}
