//! The queue on Redis, on a single server or a Cluster. Several processes schedule and send with it side by side.
//!
//! `config` has the settings, `connect` reaches the servers, `keys` builds the names of keys, `codec` writes permits,
//! `clock` is the time of the server in this process, `shard_context` calls the scripts. `admission_estimates` guess
//! whether a new delivery needs a run. `scripts` has the texts, and the head of each says what it does: `admit`, `begin`,
//! `claim`, `depths`, `edit`, `hold`, `orphaned`, `publish`, `settle`, `take_slot`, `tidy`, `wake`, `withdraw`, and the
//! parts that they share, `arguments`, `entries`, `holders`, `limiter`, `permits`, `shard`.
//!
//! Every operation is one Lua script on one shard (`scripts/`), with the same meaning as `weir_queue::memory`'s job
//! table. The server's clock is the clock; [`RedisClock`] carries it into the process. Redis is a cache of the store:
//! when it loses its data, a new *generation* begins, and the scheduler recovers the cursors from the store.
//!
//! ```text
//! RedisQueue ── schedule.rs, permits.rs: the traits
//!     │
//! ShardContext ─┬─ connection: one shared connection, scripts in pipelines
//!     │         ├─ due_times: when each shard has a due job          ◀── notifications (pub/sub)
//!     │         ├─ permit_registry: permits held by this process     ◀── reader
//!     │         ├─ leases: the process lease, and permits of dead processes
//!     │         ├─ slots: slot requests, batched
//!     │         ├─ settlements: ended permits, batched
//!     │         ├─ wakes: batched, each destination once
//!     │         ├─ admission_estimates, admissions: new deliveries that need no run
//!     │         ├─ repairs: shards whose keys were damaged begin anew
//!     │         └─ timekeeping, clock: the offset to the server's TIME
//!     │
//!   reader ──── blocking reads of the delivery queue, on a connection of its own
//! ```

mod admission_estimates;
mod admissions;
mod clock;
mod codec;
mod config;
mod connect;
mod connection;
mod due_times;
mod installation;
mod keys;
mod leases;
mod permit_registry;
mod permits;
mod publish;
mod reader;
mod repairs;
mod schedule;
mod scripts;
mod settlements;
mod shard_context;
mod slots;
mod timekeeping;
mod wakes;

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, task::JoinSet};
use weir_queue::QueueResult;

pub use self::{
    clock::RedisClock,
    config::{DEFAULT_PREFIX, OpenError, RedisConfig, Topology},
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

/// How long [`RedisQueue::close`] may take: one call that waits for its answer. The shutdown of a process whose Redis
/// is gone must not wait longer.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The schedule, permits and delivery queue of all processes that use this Redis.
pub struct RedisQueue {
    context: Arc<ShardContext>,
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
        let context = Arc::new(ShardContext {
            keys: Keys::new(&config.prefix, config.installation),
            lease: leases::OwnLease::new(),
            connection: Connection::new(dialer),
            clock: Arc::new(RedisClock::new()),
            due_times: DueTimes::new(),
            clock_doubt: tokio::sync::Notify::new(),
            registry: permit_registry::PermitRegistry::default(),
            slot_requests: slots::SlotRequests::default(),
            settlements: settlements::Settlements::default(),
            wakes: wakes::Wakes::default(),
            admission_estimates: admission_estimates::AdmissionEstimates::default(),
            admissions: admissions::Admissions::default(),
            repairs: repairs::Repairs::default(),
            config,
        });
        // Before anything is written: these may be the keys of another installation.
        context.take_possession(&address).await?;
        // The clock comes first: slots are given by it, and runs are due by it.
        context.start_clock().await.map_err(|error| OpenError::Unusable { address, error })?;
        // The tasks of the queue. Dropping the set ends them.
        let mut background = JoinSet::new();
        let (clock, notifications, tidying) = (context.clone(), context.clone(), context.clone());
        let (settlements, admissions) = (context.clone(), context.clone());
        background.spawn(async move { clock.run_clock().await });
        background.spawn(async move { notifications.run_notifications().await });
        background.spawn(async move { tidying.run_tidying().await });
        background.spawn(async move { settlements.settlements.run(&settlements).await });
        background.spawn(async move { admissions.admissions.run(&admissions).await });
        Ok(Self { context, reader: Mutex::new(None), _background: background })
    }

    /// The clock of Redis. Slots are given by it, so a process with this queue must use it everywhere.
    pub fn clock(&self) -> Arc<RedisClock> {
        self.context.clock.clone()
    }

    /// Sends the settlements that Redis does not have yet. Must be the last call.
    pub async fn close(&self) {
        let shards: Vec<_> = Shard::all().collect();
        // Other processes find the permits whose settlements are not sent.
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.context.settlements.flush(&self.context, &shards)).await;
    }

    /// Counted in Redis, for gauges and tests.
    pub async fn depths(&self) -> QueueResult<Depths> {
        let calls: Vec<_> = Shard::all().map(|shard| self.context.new_call(shard, Operation::Depths)).collect();
        let mut total = Depths::default();
        for answered in self.context.call_all(&calls).await {
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
