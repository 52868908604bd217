//! Reads the delivery queue with blocking reads on separate connections. It reads no more permits than the worker has
//! places for.
//!
//! On a single server one connection reads all shards. In a Cluster each shard has its own connection, since a command
//! cannot span hash slots. After a failure a reader first asks for its own entries: it may not have received them.

use std::{collections::HashSet, sync::Arc};

use bytes::Bytes;
use redis::{Cmd, RedisError};
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use weir_core::{Backoff, claim::ProcessId};
use weir_queue::{Permit, PermitId, QueueError};
use weir_sealing::Keyring;

use crate::{
    client::ShardClient,
    codec::{self, Entry},
    connect::{BLOCK, Exclusive},
    keys::{GROUP, Shard},
    permit_registry::HeldPermit,
    settlements::Settlements,
};

/// The most entries that one call reads from a shard. The answer for 16 shards, with bodies of at most 16 KiB, is about
/// 16 MiB at most.
const PER_READ: usize = 64;
/// How many of its own entries a reader asks for after a failure: more than a worker has places.
const RECALL_COUNT: usize = 10_000;

/// The readers of a process.
pub(crate) struct Reader {
    permits: mpsc::UnboundedReceiver<Permit>,
    /// How many more permits the worker has places for. Other permits stay in the queue for other workers.
    wanted: watch::Sender<usize>,
    stop: watch::Sender<bool>,
    /// Tasks that end with the reader. Permits that were read and not taken expire.
    _shard_readers: JoinSet<()>,
}

/// The answer of XREADGROUP: streams, their entries, and the fields of each entry.
type Streams = Vec<(String, Vec<(String, Option<Vec<Bytes>>)>)>;

impl Reader {
    /// Starts tasks that read until they are stopped.
    pub(crate) fn start(client: &Arc<ShardClient>, settlements: &Arc<Settlements>) -> Self {
        let (sender, permits) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        let (wanted, _) = watch::channel(0);
        // On a single server one connection reads all shards. In a Cluster a command cannot span hash slots.
        let each: Vec<Vec<Shard>> = if client.connection.dialer().is_cluster() {
            Shard::all().map(|shard| vec![shard]).collect()
        } else {
            vec![Shard::all().collect()]
        };
        let mut shard_readers = JoinSet::new();
        for shards in each {
            let (client, settlements) = (client.clone(), settlements.clone());
            let (permits, wanted) = (sender.clone(), wanted.clone());
            let shard_reader = ShardReader { client, settlements, shards, permits, wanted };
            shard_readers.spawn(shard_reader.read(stopped.clone()));
        }
        Self { permits, wanted, stop, _shard_readers: shard_readers }
    }

    /// Waits for at least one permit; returns none when the readers have been stopped.
    pub(crate) async fn take(&mut self, max: usize) -> Vec<Permit> {
        self.wanted.send_replace(max.saturating_sub(self.permits.len()));
        let mut read = Vec::new();
        self.permits.recv_many(&mut read, max).await;
        read
    }

    /// Ends the readers and returns the permits that were read and not taken. May take as long as a blocking read.
    pub(crate) async fn stop(&mut self) -> Vec<Permit> {
        self.stop.send_replace(true);
        let mut permits = Vec::new();
        while self.permits.recv_many(&mut permits, usize::MAX).await > 0 {}
        permits
    }
}

/// Why a reader must connect again.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Redis(#[from] RedisError),
    #[error("ended permits are not settled yet: {0}")]
    NotSettled(QueueError),
}

/// The entries that a reader asks for.
#[derive(Clone, Copy)]
enum Selection {
    /// Entries that no reader has read.
    Unread,
    /// Entries that this reader has read and not acknowledged.
    Own,
}

/// Reads some shards on one connection.
struct ShardReader {
    client: Arc<ShardClient>,
    settlements: Arc<Settlements>,
    shards: Vec<Shard>,
    permits: mpsc::UnboundedSender<Permit>,
    wanted: watch::Sender<usize>,
}

impl ShardReader {
    async fn read(self, mut stopped: watch::Receiver<bool>) {
        let mut failed_before = false;
        let mut backoff = Backoff::default();
        while !*stopped.borrow() {
            if let Err(error) = self.read_once_connected(&stopped, failed_before, &mut backoff).await {
                tracing::debug!(%error, "could not read permits; trying again");
                failed_before = true;
                let wait = backoff.fail_with_jitter(rand::random());
                let _ = tokio::time::timeout(wait, stopped.wait_for(|stopped| *stopped)).await;
            }
        }
    }

    async fn read_once_connected(
        &self,
        stopped: &watch::Receiver<bool>,
        recall: bool,
        backoff: &mut Backoff,
    ) -> Result<(), ReadError> {
        let mut connection = self.client.connection.dialer().reader().await?;
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
    ) -> Result<(), ReadError> {
        if recall {
            // A lost queue gets its consumer group with its new generation.
            for &shard in &self.shards {
                let _ = self.client.call(self.client.begin_shard(shard)).await;
            }
            // A permit whose settlement is not sent yet would be read again and used twice. So settlements are sent
            // first, and permits that are held now are skipped even if they end meanwhile.
            let held = self.client.registry.held();
            let settled = self.settlements.flush(self.shards.iter().copied()).await;
            settled.map_err(ReadError::NotSettled)?;
            self.read_as(Selection::Own, RECALL_COUNT, connection, &held).await?;
        }
        // Read until stopped, and only while the worker has places.
        while let Some(wanted) = self.wanted(stopped).await {
            // COUNT applies to each stream.
            let count = (wanted / self.shards.len()).clamp(1, PER_READ);
            self.read_as(Selection::Unread, count, connection, &HashSet::new()).await?;
            backoff.reset();
        }
        Ok(())
    }

    /// Reads under the current name of the process, and forwards the permits that are new.
    async fn read_as(
        &self,
        selection: Selection,
        count: usize,
        connection: &mut Exclusive,
        held: &HashSet<PermitId>,
    ) -> Result<(), ReadError> {
        let (holder, reader) = (self.client.heartbeat.process(), self.client.heartbeat.reader());
        let read: Option<Streams> = connection.query(&self.command(selection, &reader, count)).await?;
        self.forward(read, holder, held).await;
        Ok(())
    }

    /// Waits until the worker has places, and the process may take permits and knows the time. Returns the number of
    /// places; `None` when the readers are stopped.
    async fn wanted(&self, stopped: &watch::Receiver<bool>) -> Option<usize> {
        let (mut stopped, mut wanted) = (stopped.clone(), self.wanted.subscribe());
        tokio::select! {
            biased;
            _ = stopped.wait_for(|stopped| *stopped) => None,
            wanted = async {
                self.client.heartbeat.valid().await;
                self.client.clock.verified().await;
                wanted.wait_for(|wanted| *wanted > 0).await.ok().map(|wanted| *wanted)
            } => wanted,
        }
    }

    fn command(&self, selection: Selection, reader: &str, count: usize) -> Cmd {
        let from = match selection {
            Selection::Unread => ">",
            Selection::Own => "0",
        };
        let mut command = redis::cmd("XREADGROUP");
        command.arg("GROUP").arg(GROUP).arg(reader).arg("COUNT").arg(count);
        command.arg("BLOCK").arg(BLOCK.as_millis() as u64).arg("STREAMS");
        // All streams, and then for each the entry from which to read.
        for &shard in &self.shards {
            command.arg(self.client.keys.queue(shard));
        }
        for _ in &self.shards {
            command.arg(from);
        }
        command
    }

    /// Forwards the permits that are new.
    async fn forward(&self, streams: Option<Streams>, holder: Option<ProcessId>, held: &HashSet<PermitId>) {
        for (queue, entries) in streams.into_iter().flatten() {
            let Some(shard) = self.client.keys.shard_of_queue(&queue) else { continue };
            let keyring = &self.client.config.keyring;
            let entries: Vec<Entry> =
                entries.into_iter().filter_map(|(entry, fields)| read_entry(entry, fields?, keyring)).collect();
            // The permits of a generation that has just begun may come before the notification of it. Only the shard
            // itself says which generation is the latest: an entry may hold any number.
            let known = self.client.registry.generation(shard);
            if entries.iter().any(|entry| entry.generation != known) {
                let _ = self.client.call(self.client.begin_shard(shard)).await;
            }
            for entry in entries {
                let Entry { entry, published_at, generation, id, expected_at, delivery } = entry;
                let expires_at = delivery.expires_at;
                let held_permit = HeldPermit { shard, generation, expires_at, entry, holder, slot_start: 0 };
                // It was read before, or its generation has ended.
                if held.contains(&id) || !self.client.registry.register(id, held_permit) {
                    continue;
                }
                self.client.homes.learn(id.destination_id, shard);
                let expected_at = expected_at.map(|at| self.client.clock.engine_time(shard, at));
                let published_at = self.client.clock.engine_time(shard, published_at);
                self.wanted.send_modify(|wanted| *wanted = wanted.saturating_sub(1));
                // The receiver outlives this task.
                let _ = self.permits.send(Permit { id, published_at, expected_at, delivery });
            }
        }
    }
}

fn read_entry(entry: String, fields: Vec<Bytes>, keyring: &Keyring) -> Option<Entry> {
    let [_, permit, _, delivery] = <[Bytes; 4]>::try_from(fields).ok()?;
    let read = codec::decode(entry, permit, delivery, keyring);
    if read.is_none() {
        tracing::warn!("could not read an entry of the delivery queue; its claim will expire");
    }
    read
}
