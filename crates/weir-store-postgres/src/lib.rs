//! The record store on PostgreSQL, shared by any number of processes.
//!
//! ```text
//!   callers ──operations──▶ writers: a few connections per kind, one commit per group    (writer.rs)
//!   callers ──edits, lists▶ pool                                                          (edits.rs, history.rs)
//! ```
//!
//! Invariants:
//! - The database is the truth, because other processes write to it too. Destinations are kept in memory only beside the
//!   version they were read at, and what has changed since is read before they are used (cache.rs).
//! - A write is answered only after its group has committed. What was acknowledged to a producer or a person, and claims
//!   that ask for it, wait for the disk (`synchronous_commit`); other claims and results may lose their last commits in a
//!   power failure, which recovery resolves as unknown outcomes.
//! - Every write of a delivery names the state, and for a claimed one the epoch, that it expects.
//! - A connection that fails is thrown away; the next use makes another. When a commit's answer is lost its outcome is
//!   unknown: the caller hears [`StoreError::Unavailable`](weir_store::StoreError::Unavailable) and asks again, a producer
//!   under the same idempotency key.

mod alerting;
mod cache;
mod claims;
#[cfg(test)]
#[path = "../tests/store/database.rs"]
mod database;
mod deliveries;
mod destinations;
mod edits;
mod errors;
#[cfg(test)]
#[path = "../tests/store/fixtures.rs"]
mod fixtures;
mod history;
mod ingest;
mod locks;
mod message_groups;
mod open;
mod outbox;
mod partitions;
#[cfg(test)]
mod plans;
mod processes;
mod prune;
mod purge;
mod recovery;
mod replay_steps;
mod replays;
mod results;
mod rows;
mod schema;
mod writer;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sqlx::PgPool;
use weir_store::{BodyCache, FastPathHandle};

pub use open::{OpenError, Server};

use cache::DestinationCache;
use claims::Claiming;
use destinations::Lookup;
use ingest::Posting;
use outbox::Releasing;
use partitions::Partitions;
use processes::{Beating, OwnProcess};
use prune::Pruning;
use results::Settling;
use writer::Writers;

/// The store of one process in a PostgreSQL database.
#[derive(Debug)]
pub struct PostgresStore {
    /// For edits and for what people read.
    pool: PgPool,
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

/// How the pool of connections is used, which edits and reads share.
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
}

/// What the writers of one store know together.
#[derive(Debug)]
struct Shared {
    destinations: DestinationCache,
    partitions: Partitions,
    fast_path: FastPathHandle,
    bodies: Mutex<BodyCache>,
    process: OwnProcess,
}

/// Bodies of the events that this process stored, kept for the first claims of their deliveries.
const BODY_CACHE_BYTES: usize = 64 * 1024 * 1024;

impl Default for Shared {
    fn default() -> Self {
        Self {
            destinations: DestinationCache::default(),
            partitions: Partitions::default(),
            fast_path: FastPathHandle::default(),
            bodies: Mutex::new(BodyCache::new(BODY_CACHE_BYTES)),
            process: OwnProcess::default(),
        }
    }
}

impl Shared {
    fn bodies(&self) -> MutexGuard<'_, BodyCache> {
        self.bodies.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
