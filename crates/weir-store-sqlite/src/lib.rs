//! The record store on SQLite: one writer that commits in batches, separate readers.
//!
//! ```text
//!   callers ──operations──▶ writer thread ──one transaction per batch──▶ its connection  (writer.rs, on rusqlite)
//!      ▲                          │
//!      └──────── answers ─────────┘
//!   callers ──reads───────▶ pool of read-only connections                                (history.rs, on sqlx)
//!   callers ──destinations▶ cache                                                        (cache.rs)
//! ```
//!
//! Invariants:
//! - One engine at a time has the file open, under a lock of its own. So the cached destinations are authoritative:
//!   they change only after the commit that changes the table.
//! - Nothing is stored in a file that was removed or replaced, because no later process would find it (files.rs).
//! - A write is answered only after its batch has committed. Writes acknowledged to a producer or a person, and durable
//!   claims, are then on disk. A power failure may lose the last commits of other claims and results; recovery resolves
//!   those as unknown outcomes. The database itself stays consistent in either case (WAL).
//! - Every write of a delivery names the state that it expects, and for a claimed delivery the epoch.
//!
//! # Files
//!
//! `open` prepares the file, `schema` migrates it, `error` says what an error means, `sql` builds statements over many
//! rows, `rows` reads columns, `plans` tests which index each statement uses, `durability` power failures. The traits
//! of `weir-store` are in files of their nouns: `activity`, `alerting`, `api_keys`, `counters`, `deliveries`,
//! `destinations`, `event_types`, `ingest`, `processes`, `prune`, `purge`, `replays` (its steps in `replay_steps`), `traffic`.
//! `flow_statements` has the statements of destinations and of the flows of limit keys.
//!
//! `backup` copies a file while it is in use, `sealing_keys` has the keys that seal rows, `sealed_rows` rotates the keys of its sealed rows. `commit_queue` forms the commit batches of `pending` operations, `transaction` has what the operations of one
//! transaction use.

mod activity;
mod alerting;
mod api_keys;
mod backup;
mod cache;
mod change_log;
mod checkpoint;
mod claims;
mod commit_batch;
mod commit_queue;
mod counters;
mod deliveries;
mod destinations;
mod discard;
#[cfg(test)]
mod durability;
mod edit;
mod error;
mod event_types;
mod files;
mod flow_statements;
mod history;
mod ingest;
mod limit_groups;
mod limit_keys;
mod message_groups;
mod open;
mod outbox;
mod paces;
mod pending;
#[cfg(test)]
mod plans;
mod policies;
mod processes;
mod prune;
mod purge;
mod replay_steps;
mod replays;
mod reservations;
mod results;
mod rows;
mod schema;
mod sealed_rows;
mod sealing_keys;
mod shedding;
mod sql;
mod traffic;
mod transaction;
mod writer;

use std::{path::PathBuf, sync::Arc};

use parking_lot::Mutex;
use sqlx::SqlitePool;
use tokio::{sync::mpsc, task::JoinHandle};
use weir_sealing::Keyring;
use weir_store::{FastPathHandle, SharedDestinationLimits, WriteFailures};

pub use backup::{BackedUp, BackupError};
pub use error::OpenError;
pub use sealed_rows::SqliteSealedRows;

use cache::DestinationCache;
use commit_batch::Operation;

/// The store of one engine in one SQLite file.
#[derive(Debug)]
pub struct SqliteStore {
    operations: mpsc::Sender<Operation>,
    writer: Mutex<Option<JoinHandle<()>>>,
    readers: SqlitePool,
    /// Reads the past for a simulation, from its first page to its last.
    past_reader: Mutex<Option<rusqlite::Connection>>,
    destinations: Arc<DestinationCache>,
    fast_path: FastPathHandle,
    limits: SharedDestinationLimits,
    write_failures: Arc<WriteFailures>,
    keyring: Arc<Keyring>,
    /// The write-ahead log.
    log: PathBuf,
    /// What this process says of itself.
    profile: Mutex<Option<weir_store::ProcessProfile>>,
}
