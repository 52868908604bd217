//! The queue on Redis, on a single server or a Cluster. Several processes schedule and send with it side by side.
//!
//! Every operation is one Lua script on one shard (`scripts/`), with the same meaning as `weir_queue::memory`'s job
//! table. The server's clock is the clock; [`RedisClock`] carries it into the process. Redis is a cache of the store:
//! when it loses its data, a new *generation* begins, and the scheduler recovers the cursors from the store.
//!
//! ```text
//! RedisQueue ── schedule.rs, publish.rs, permits.rs, leases.rs: the traits
//!     ├─ reader: blocking reads of the delivery queue, each on a connection of its own
//!     ├─ slots: requests for slots          ┐
//!     ├─ settlements: ended permits         │ each with a batcher: what arrives during
//!     ├─ wakes: each destination once       │ a call goes together in the next one
//!     ├─ admissions: deliveries without a run ┘
//!     ├─ due_times: when each shard has a due job ◀── notifications (pub/sub)
//!     └─ tidying: expired state of dead workers
//!          │
//! ShardClient: calls of scripts ─┬─ connection: one shared connection, scripts in pipelines
//!                                ├─ permit_registry: permits held by this process, and the known generations
//!                                ├─ heartbeat: under which id, and until when, this process takes permits
//!                                ├─ repairs: shards whose keys were damaged begin anew
//!                                └─ timekeeping, clock: the offset to the server's TIME
//! ```

mod admission_estimates;
mod admissions;
mod batcher;
mod client;
mod clock;
mod codec;
mod config;
mod connect;
mod connection;
mod due_times;
mod heartbeat;
mod installation;
mod keys;
mod leases;
mod notifications;
mod permit_registry;
mod permits;
mod publish;
mod reader;
mod repairs;
mod schedule;
mod scripts;
mod settlements;
mod slots;
mod tidying;
mod timekeeping;
mod wakes;

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, task::JoinSet};
use weir_core::claim::ClaimedDelivery;
use weir_queue::{Mailbox, QueueResult};

use self::{
    admission_estimates::AdmissionEstimates,
    admissions::Admissions,
    client::{ShardClient, unexpected},
    connect::Dialer,
    due_times::DueTimes,
    keys::Shard,
    notifications::Notifications,
    reader::Reader,
    scripts::Operation,
    settlements::Settlements,
    slots::SlotRequests,
    tidying::Tidier,
    wakes::Wakes,
};
pub use self::{
    clock::RedisClock,
    config::{DEFAULT_PREFIX, OpenError, RedisConfig, Topology},
};

/// How long [`RedisQueue::close`] may take: one call that waits for its answer. The shutdown of a process whose Redis
/// is gone must not wait longer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The schedule, permits and delivery queue of all processes that use this Redis.
pub struct RedisQueue {
    client: Arc<ShardClient>,
    due_times: Arc<DueTimes>,
    slot_requests: Arc<SlotRequests>,
    settlements: Arc<Settlements>,
    wakes: Arc<Wakes>,
    estimates: Arc<AdmissionEstimates>,
    admissions: Arc<Admissions>,
    /// Deliveries that could not be admitted, or whose permits no worker has read.
    declined: Arc<Mailbox<ClaimedDelivery>>,
    /// Started by the first take: a process that only ingests reads no permits.
    reader: Mutex<Option<Reader>>,
    /// Tasks that end when the queue is dropped.
    _background: JoinSet<()>,
}

/// Counts over all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depths {
    /// Permits that no worker has read.
    pub ready: usize,
    /// The age of the oldest unread permit; zero when there is none.
    pub oldest_waited: Duration,
    /// Permits whose sends have not started, read or not.
    pub queued: usize,
    /// Sends started and not settled.
    pub in_flight: usize,
    /// Jobs scheduled or leased.
    pub jobs: usize,
    /// Entries of the delivery queue.
    pub entries: usize,
    /// Entries that a worker has read and not yet acknowledged.
    pub pending: usize,
}

impl RedisQueue {
    /// Connects, checks the server, and sets the clock. The queue reconnects by itself after later failures.
    pub async fn open(config: RedisConfig) -> Result<Self, OpenError> {
        // A server that cannot be used is reported before anything else begins.
        let dialer = Dialer::new(&config)?;
        let address = dialer.check().await?;
        let client = Arc::new(ShardClient::new(config, dialer));
        // Before anything is written: these may be the keys of another installation.
        client.take_possession(&address).await?;
        // The clock comes first: slots are given by it, and runs are due by it.
        client.start_clock().await.map_err(|error| OpenError::Unusable { address, error })?;
        let (due_times, declined) = (Arc::new(DueTimes::new()), Arc::new(Mailbox::default()));
        let slot_requests = Arc::new(SlotRequests::new(&client));
        let settlements = Arc::new(Settlements::new(&client));
        let estimates = Arc::new(AdmissionEstimates::default());
        let wakes = Arc::new(Wakes::new(&client, &due_times, &estimates));
        let admissions = Arc::new(Admissions::new(&client, &estimates, &declined));
        // The tasks of the queue. Dropping the set ends them.
        let mut background = JoinSet::new();
        let clock = client.clone();
        background.spawn(async move { clock.run_clock().await });
        let notifications = Notifications { client: client.clone(), due_times: due_times.clone() };
        background.spawn(async move { notifications.run().await });
        let tidier = Tidier::new(&client, &settlements, &estimates, &declined);
        background.spawn(async move { tidier.run().await });
        for shard in Shard::all() {
            let (slot_requests, settlements) = (slot_requests.clone(), settlements.clone());
            let (wakes, admissions) = (wakes.clone(), admissions.clone());
            background.spawn(async move { slot_requests.run(shard).await });
            background.spawn(async move { settlements.run(shard).await });
            background.spawn(async move { wakes.run(shard).await });
            background.spawn(async move { admissions.run(shard).await });
        }
        Ok(Self {
            client,
            due_times,
            slot_requests,
            settlements,
            wakes,
            estimates,
            admissions,
            declined,
            reader: Mutex::new(None),
            _background: background,
        })
    }

    /// The clock of Redis. Slots are given by it, so a process with this queue must use it everywhere.
    pub fn clock(&self) -> Arc<RedisClock> {
        self.client.clock.clone()
    }

    /// Sends the settlements that Redis does not have yet. Must be the last call.
    pub async fn close(&self) {
        // Other processes find the permits whose settlements are not sent.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.settlements.flush(Shard::all())).await;
    }

    /// Counted in Redis, for gauges and tests.
    pub async fn depths(&self) -> QueueResult<Depths> {
        let calls: Vec<_> = Shard::all().map(|shard| self.client.new_call(shard, Operation::Depths)).collect();
        let mut total = Depths::default();
        for answered in self.client.call_all(&calls).await {
            let mut counts = answered?.values;
            let mut next = || counts.next_u64().ok_or_else(unexpected);
            total.ready += next()? as usize;
            total.oldest_waited = total.oldest_waited.max(Duration::from_micros(next()?));
            let Depths { queued, in_flight, jobs, entries, pending, .. } = &mut total;
            for count in [queued, in_flight, jobs, entries, pending] {
                *count += next()? as usize;
            }
        }
        Ok(total)
    }
}
