//! The queue on Redis, a single server or a Cluster: what lets several processes schedule and send side by side.
//!
//! Every operation is one Lua script on one shard (`scripts/`), with the same meaning as `weir_queue::memory`'s job table. The
//! server's clock is the clock; [`RedisClock`] carries it into the process. Redis is a cache of the store: when it loses what
//! it knew, a new *generation* begins, whose cursors the scheduler recovers from the store.
//!
//! ```text
//!            RedisQueue ── schedule.rs, permits.rs: the traits
//!                │
//!              ShardContext ──┬── connection: one shared connection, scripts in pipelines
//!                     ├── due_times: when each shard is due        ◀── notices (pub/sub)
//!                     ├── permit_registry: permits of this process   ◀── reader
//!                     ├── leases: this process's name, and what gone processes left
//!                     ├── slots: requests for slots, batched
//!                     ├── settlements: what became of permits, batched
//!                     ├── wakes: batched, each destination once
//!                     ├── gates, admissions: new deliveries that need no run
//!                     └── clock: offset to the server's TIME
//!              reader ── blocking reads, a connection of its own
//! ```

mod admission_estimates;
mod admissions;
mod clock;
mod codec;
mod config;
mod connect;
mod connection;
mod due_times;
mod keys;
mod leases;
mod permit_registry;
mod permits;
mod publish;
mod reader;
mod schedule;
mod scripts;
mod settlements;
mod shard_context;
mod slots;
mod wakes;

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, task::JoinSet};
use weir_queue::{QueueError, QueueResult};

pub use self::{
    clock::RedisClock,
    config::{OpenError, RedisConfig, Topology},
};
use self::{
    connect::Dialer,
    connection::Connection,
    due_times::DueTimes,
    keys::{Keys, Shard},
    reader::Reader,
    scripts::Operation,
    shard_context::{ShardContext, unexpected},
};

/// How long the last call may take.
const LAST_WORDS: Duration = Duration::from_secs(2);

/// The schedule, permits and delivery queue of all processes that use this Redis.
pub struct RedisQueue {
    core: Arc<ShardContext>,
    /// Begins with the first take: a process that only ingests reads no permits.
    reader: Mutex<Option<Reader>>,
    /// Ends with the queue.
    _background: JoinSet<()>,
}

/// How much of everything there is, over all processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Depths {
    /// Permits that no worker has read.
    pub ready: usize,
    /// For how long the oldest of them has waited; zero when there is none.
    pub oldest_waited: Duration,
    /// Permits whose sends have not started, read or not.
    pub queued: usize,
    /// Sends started and not settled.
    pub in_flight: usize,
    /// Jobs scheduled or leased.
    pub jobs: usize,
    /// Entries of the delivery queue.
    pub entries: usize,
    /// Entries that a worker has read and not reported on.
    pub pending: usize,
}

impl RedisQueue {
    /// Connects, checks the server, and sets the clock. Later failures mend themselves.
    pub async fn open(config: RedisConfig) -> Result<Self, OpenError> {
        let dialer = Dialer::new(&config)?;
        let address = dialer.check().await?;
        let core = Arc::new(ShardContext {
            keys: Keys::new(&config.prefix),
            lease: leases::OwnLease::new(),
            connection: Connection::new(dialer),
            clock: Arc::new(RedisClock::new()),
            due_times: DueTimes::new(),
            clock_doubt: tokio::sync::Notify::new(),
            registry: permit_registry::PermitRegistry::default(),
            slot_requests: slots::SlotRequests::default(),
            settlements: settlements::Settlements::default(),
            wakes: wakes::Wakes::default(),
            gates: admission_estimates::AdmissionEstimates::default(),
            admissions: admissions::Admissions::default(),
            config,
        });
        core.set_clock(false).await.map_err(|error| OpenError::Unusable { address, reason: error.to_string() })?;
        let mut background = JoinSet::new();
        let of = |core: &Arc<ShardContext>| core.clone();
        let (clock, notices, tidying) = (of(&core), of(&core), of(&core));
        let (settlements, admissions) = (of(&core), of(&core));
        background.spawn(async move { clock.run_clock().await });
        background.spawn(async move { notices.run_notices().await });
        background.spawn(async move { tidying.run_tidying().await });
        background.spawn(async move { settlements.settlements.run(&settlements).await });
        background.spawn(async move { admissions.admissions.run(&admissions).await });
        Ok(Self { core, reader: Mutex::new(None), _background: background })
    }

    /// Redis's clock, which slots are in: what a process with this queue must use everywhere.
    pub fn clock(&self) -> Arc<RedisClock> {
        self.core.clock.clone()
    }

    /// Redis hears what it was not told yet. The last call.
    pub async fn close(&self) {
        let shards: Vec<_> = Shard::all().collect();
        // What it does not hear, others find.
        let _ = tokio::time::timeout(LAST_WORDS, self.core.settlements.flush(&self.core, &shards)).await;
    }

    /// Counted in Redis: for gauges and tests.
    pub async fn depths(&self) -> QueueResult<Depths> {
        let calls: Vec<_> = Shard::all().map(|shard| self.core.new_call(shard, Operation::Depths)).collect();
        let mut total = Depths::default();
        for answered in self.core.call_all(&calls).await {
            let mut counts = answered?.rest;
            let mut next = || counts.next_u64().ok_or_else(|| QueueError::from(unexpected()));
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
