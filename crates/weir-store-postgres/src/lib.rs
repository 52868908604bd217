//! The record store on PostgreSQL, shared by any number of processes.
//!
//! ```text
//!   callers ──operations──▶ writers: a few connections per kind, one commit per batch    (writer.rs)
//!   callers ──edits, lists──▶ pool                                                        (edit.rs, history.rs)
//! ```
//!
//! Invariants:
//! - The database is the single source of truth, because other processes write to it too. Destinations are cached with
//!   the version that they were read at, and later changes are read before a cached destination is used (cache.rs).
//! - A write is answered only after its batch has committed. Writes that are acknowledged to a producer or a person,
//!   and durable claims, wait for the disk (`synchronous_commit`). Other claims and results may lose their last commits
//!   in a power failure; recovery resolves these as unknown outcomes.
//! - Every write of a delivery names the state that it expects, and for a claimed delivery also the epoch.
//! - A connection that fails is closed, and the next use opens another. If the answer to a commit is lost, its outcome
//!   is unknown: the caller gets [`StoreError::Unavailable`] and repeats the
//!   request, a producer with the same idempotency key.
//!
//! # Files
//!
//! `open` checks the server, `schema` migrates it, `errors` says what an error means for the caller, `locks` separates
//! fan-out from edits, `rows` reads columns, `plans` tests which index each statement uses. The traits of `weir-store`
//! are in files of their nouns: `activity`, `alerting`, `api_keys`, `counters`, `deliveries`, `destinations`, `event_types`, `ingest`,
//! `processes`, `prune`, `purge`, `replays` (its steps in `replay_steps`), `traffic`. `own_changes` has the holds,
//! pauses and breakers that follow from answers, `recovery` the claims that nobody holds, `flow_statements` the statements of
//! destinations and of the flows of limit keys.
//!
//! `heads` says which bodies are stored without their heads. `sealing_keys` has the keys that seal rows, `sealed_rows` rotates the keys of sealed rows. `destination_edits` has the edits by people, `destination_rows` the statements over whole rows of destinations.

mod activity;
mod alerting;
mod api_keys;
mod cache;
mod claims;
mod compact;
mod counters;
#[cfg(test)]
#[path = "../tests/store/database.rs"]
mod database;
mod deliveries;
mod destination_edits;
mod destination_rows;
mod destinations;
mod discard;
mod edit;
mod errors;
mod event_types;
#[cfg(test)]
#[path = "../tests/store/fixtures.rs"]
mod fixtures;
mod flow_statements;
mod heads;
mod history;
mod ingest;
mod limit_group_members;
mod limit_groups;
mod limit_keys;
mod locks;
mod message_groups;
mod open;
mod outbox;
mod own_changes;
mod paces;
mod partitions;
#[cfg(test)]
mod plans;
mod policies;
mod processes;
mod prune;
mod prune_days;
mod purge;
mod recovery;
mod replay_steps;
mod replays;
mod replica;
mod reservations;
mod results;
mod rows;
mod schema;
mod sealed_rows;
mod sealing_keys;
mod server_watch;
mod shedding;
mod traffic;
mod writer;

use std::sync::Arc;

use parking_lot::Mutex;
use sqlx::{PgPool, postgres::PgRow};
use weir_sealing::Keyring;
use weir_store::{
    BodyCache, FastPathHandle, SharedDestinationLimits, StoreError, StoreResult, WriteFailures, rows::Row as _,
};

pub use open::{Connections, DEFAULT_POOL, OpenError, Server};
pub use sealed_rows::PostgresSealedRows;

use cache::DestinationCache;
use claims::Claiming;
use destinations::Lookup;
use heads::Heads;
use ingest::Posting;
use outbox::Releasing;
use partitions::Partitions;
use processes::{Beating, OwnProcess};
use prune::Pruning;
use prune_days::FinishedDays;
use replica::Replica;
use results::Settling;
use server_watch::ServerWatch;
use writer::Writers;

/// The store of one process in a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    /// For edits and for reads of the API.
    pool: PgPool,
    replica: Option<Replica>,
    pruning: Pruning,
    shared: Arc<Shared>,
    posts: Writers<Posting>,
    claims: Writers<Claiming>,
    durable_claims: Writers<Claiming>,
    releases: Writers<Releasing>,
    settles: Writers<Settling>,
    lookups: Writers<Lookup>,
    beats: Writers<Beating>,
}

const SIZES: &str = "
SELECT pg_database_size(current_database()), coalesce(max(pg_wal_lsn_diff(
    CASE WHEN pg_is_in_recovery() THEN pg_last_wal_receive_lsn() ELSE pg_current_wal_lsn() END, restart_lsn
)), 0)::bigint
FROM pg_replication_slots";

/// The use of the connection pool, which edits and reads share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    pub in_use: u32,
    pub idle: u32,
    pub most: u32,
}

impl PostgresStore {
    pub fn pool_use(&self) -> PoolUse {
        let idle = u32::try_from(self.pool.num_idle()).unwrap_or(u32::MAX);
        let most = self.pool.options().get_max_connections();
        PoolUse { in_use: self.pool.size().saturating_sub(idle), idle, most }
    }

    /// Whether the replica can be used, if there is one. Exports how far it is behind.
    pub async fn check_replica(&self) -> Option<bool> {
        match &self.replica {
            Some(replica) => Some(replica.check(&self.pool).await),
            None => None,
        }
    }

    /// Looks with a new connection whether the address leads to another server than before, as after a promotion whose old
    /// primary lives on. Then older connections are closed before their next use. Returns whether it does.
    pub async fn watch_server(&self) -> StoreResult<bool> {
        let has_moved = self.shared.server.look(&self.pool.connect_options()).await;
        let has_moved = has_moved.map_err(|error| errors::store_error(&error))?;
        if has_moved {
            // It holds the lock of the retention there.
            drop(self.pruning.lock().await.take());
        }
        Ok(has_moved)
    }

    /// The size of the database in bytes, and how much of the write-ahead log a replication slot keeps. Reads the sizes of
    /// all files, so ask seldom.
    pub async fn sizes(&self) -> StoreResult<(u64, u64)> {
        let read = |row: &PgRow| Ok((row.count(0)?, row.count(1)?));
        Ok(self.read(sqlx::query(SIZES), read).await?.pop().unwrap_or_default())
    }
}

/// The state that the writers of one store share.
#[derive(Debug)]
struct Shared {
    destinations: DestinationCache,
    partitions: Partitions,
    fast_path: FastPathHandle,
    limits: SharedDestinationLimits,
    bodies: Mutex<BodyCache>,
    process: OwnProcess,
    write_failures: WriteFailures,
    keyring: Keyring,
    heads: Heads,
    server: ServerWatch,
    finished_days: FinishedDays,
}

/// The size of the body cache, which keeps the bodies of stored events for the first claims of their deliveries.
const BODY_CACHE_BYTES: usize = 64 * 1024 * 1024;

impl Default for Shared {
    fn default() -> Self {
        Self {
            destinations: DestinationCache::default(),
            partitions: Partitions::default(),
            fast_path: FastPathHandle::default(),
            limits: SharedDestinationLimits::default(),
            bodies: Mutex::new(BodyCache::new(BODY_CACHE_BYTES)),
            process: OwnProcess::default(),
            write_failures: WriteFailures::default(),
            keyring: Keyring::default(),
            heads: Heads::default(),
            server: ServerWatch::default(),
            finished_days: FinishedDays::default(),
        }
    }
}

impl Shared {
    /// The error of a write, which is noted.
    fn write_error(&self, error: &sqlx::Error) -> StoreError {
        let error = errors::store_error(error);
        self.write_failures.note(&error);
        error
    }
}
