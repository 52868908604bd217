//! The queue on Redis, on a single server or a Cluster. Several processes schedule and send with it side by side.
//!
//! `config` has the settings, `connect` reaches the servers, `keys` builds the names of keys, `codec` writes permits,
//! `clock` is the time of the server in this process. `client` calls the scripts, `batcher` collects what goes in one
//! call, `notifications` come from other processes, and `tidying` drops the expired state of dead workers. `scripts`
//! has the texts, and the head of each says what it does: `admit`, `begin`, `change_terms`, `claim`, `close`, `depths`,
//! `give_back`, `hold`, `orphaned`, `progress`, `publish`, `reserve`, `settle`, `take_slot`, `tidy`, `wake`,
//! `withdraw`, and the parts that they share, `arguments`, `entries`, `groups`, `holders`, `limiter`, `permits`,
//! `recovery`, `shard`, `turns`, `untaken`.
//!
//! Every operation is one Lua script on one shard (`scripts/`), with the same meaning as `weir_queue::memory`'s job
//! table. The server's clock is the clock; [`RedisClock`] carries it into the process. Redis is a cache of the store:
//! when it loses its data, a new *generation* begins, and the scheduler recovers the cursors from the store.
//!
//! ```text
//! RedisQueue ── schedule.rs, publish.rs, permits.rs, leases.rs: the traits
//!     ├─ reader: blocking reads of the delivery queue, each on a connection of its own
//!     │                           each of these with a batcher:
//!     ├─ slots: requests for slots
//!     ├─ settlements: ended permits; tidying: expired state of dead workers
//!     ├─ wakes: each destination once
//!     ├─ reservations: slots of groups for callers outside Weir
//!     └─ admissions: new deliveries that need no run
//!          │
//! ShardClient: calls of scripts ─┬─ connection: two shared connections, scripts in pipelines
//!                                ├─ permit_registry: permits held by this process, and the known generations
//!                                ├─ due_times: when each shard has a due job ◀── notifications (pub/sub)
//!                                ├─ admission_estimates: which destinations admit new deliveries
//!                                ├─ homes: in which shard each destination is
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
mod homes;
mod installation;
mod keys;
mod leases;
mod notifications;
mod permit_registry;
mod permits;
mod publish;
mod reader;
mod repairs;
mod reservations;
mod schedule;
mod scripts;
mod settlements;
mod slots;
mod tidying;
mod timekeeping;
mod wakes;

use std::{sync::Arc, time::Duration};

use tokio::{sync::Mutex, task::JoinSet};
use weir_queue::QueueResult;

use self::{
    admissions::Admissions,
    client::{ShardClient, unexpected},
    connect::Dialer,
    keys::Shard,
    reader::Reader,
    reservations::Reservations,
    scripts::Operation,
    settlements::Settlements,
    slots::SlotRequests,
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
    slot_requests: Arc<SlotRequests>,
    settlements: Arc<Settlements>,
    wakes: Arc<Wakes>,
    admissions: Arc<Admissions>,
    reservations: Reservations,
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
        let (slot_requests, settlements) = (Arc::new(SlotRequests::new(&client)), Arc::new(Settlements::new(&client)));
        let (wakes, admissions) = (Arc::new(Wakes::new(&client)), Arc::new(Admissions::new(&client)));
        // The tasks of the queue. Dropping the set ends them.
        let mut background = JoinSet::new();
        background.spawn(client.clone().run_clock());
        background.spawn(client.clone().run_notifications());
        background.spawn(settlements.clone().run_tidying(admissions.clone()));
        for shard in Shard::all() {
            background.spawn(slot_requests.clone().run(shard));
            background.spawn(settlements.clone().run(shard));
            background.spawn(wakes.clone().run(shard));
            background.spawn(admissions.clone().run(shard));
        }
        let (reader, _background) = (Mutex::new(None), background);
        let reservations = Reservations::new(&client);
        Ok(Self { client, reservations, slot_requests, settlements, wakes, admissions, reader, _background })
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
