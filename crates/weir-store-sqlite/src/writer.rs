//! The writer: one thread owns the only writing connection and commits the waiting operations in batches.
//!
//! ```text
//!   callers ──▶ channel ──▶ batch of waiting operations ──▶ BEGIN IMMEDIATE … COMMIT ──▶ answers
//!                  ▲                                                  │
//!                  └────────── the next batch gathers meanwhile ◀─────┘
//! ```
//!
//! The `COMMIT` of a batch with durable operations waits for the disk (`synchronous=FULL`). It makes every earlier
//! commit durable as well, because the log keeps their order. Other batches do not wait (`NORMAL`).
//!
//! A failed sync may have lost pages of the log. Later syncs do not restore them, so later commits would be lost as
//! well. After such a failure the writer stores nothing until the next start, when SQLite recovers the log.
//!
//! In a batch, operations of one kind share their statements. When a batch fails, it is rolled back and each operation
//! runs in a transaction of its own, so that only the faulty operation fails.

use std::sync::Arc;

use metrics::{Histogram, histogram};
use rusqlite::{Connection, config::DbConfig};
use tokio::{sync::mpsc, task::JoinHandle, time::Instant};
use weir_sealing::Keyring;
use weir_store::{
    BodyCache, FastPathBatch, FastPathHandle, Obstacle, SharedDestinationLimits, StoreError, StoreResult, WriteFailures,
};

use crate::{
    SqliteStore,
    cache::{DestinationCache, StagedDestinations},
    change_log::ChangeLog,
    checkpoint::{self, Checkpoints},
    commit_batch::{CommitBatch, Operation},
    commit_queue::CommitQueue,
    error::{Error, Result},
    files::DatabaseFiles,
    pending::{Answer, Pending, closed},
    sql::{Values, execute},
    transaction::Transaction,
};

/// Ends a transaction: `COMMIT`, or the replacement of a test.
pub(crate) type Commit = Box<dyn FnMut(&Connection) -> rusqlite::Result<()> + Send>;

/// The capacity of the channel. When it is full, callers wait.
const WAITING_OPERATIONS: usize = 8_192;
/// The size of the [`BodyCache`].
const BODY_CACHE_BYTES: usize = 8 * 1024 * 1024;

impl SqliteStore {
    /// Sends an operation to the writer and waits for its answer.
    pub(crate) async fn ask<I, O>(&self, input: I, wrap: impl FnOnce(Pending<I, O>) -> Operation) -> StoreResult<O> {
        self.post(input, wrap).await?.get().await
    }

    /// Sends an operation to the writer.
    pub(crate) async fn post<I, O>(
        &self,
        input: I,
        wrap: impl FnOnce(Pending<I, O>) -> Operation,
    ) -> StoreResult<Answer<O>> {
        let (pending, answer) = Pending::new(input);
        self.operations.send(wrap(pending)).await.map_err(|_| closed())?;
        Ok(answer)
    }
}

/// Adds nothing to a batch while it runs.
const ALONE: fn(&CommitBatch) -> Option<CommitBatch> = |_| None;

struct Writer {
    /// They stay locked until the connections are closed, so that no other Weir opens them before the last commit.
    files: DatabaseFiles,
    /// Whether a file was removed or replaced, as far as is known.
    is_gone: bool,
    connection: Connection,
    commit: Commit,
    /// Whether commits of the connection wait for the disk.
    is_durable: bool,
    /// Set after a failed sync: the reason why nothing more is stored.
    failure: Option<StoreError>,
    write_failures: Arc<WriteFailures>,
    destinations: Arc<DestinationCache>,
    last_group_position: i64,
    bodies: BodyCache,
    checkpoints: Checkpoints,
    fast_path: FastPathHandle,
    limits: SharedDestinationLimits,
    keyring: Arc<Keyring>,
    commit_seconds: Histogram,
    commit_size: Histogram,
}

/// Starts the writer on a thread of its own. It ends when every sender is dropped or on [`Operation::Close`].
pub(crate) fn spawn(setup: WriterSetup) -> (mpsc::Sender<Operation>, JoinHandle<()>) {
    let WriterSetup {
        files,
        connection,
        checkpointing,
        commit,
        write_failures,
        destinations,
        last_group_position,
        fast_path,
        limits,
        keyring,
    } = setup;
    let (sender, operations) = mpsc::channel(WAITING_OPERATIONS);
    let writer = Writer {
        files,
        is_gone: false,
        connection,
        commit,
        // The connection was opened with `synchronous=NORMAL`.
        is_durable: false,
        failure: None,
        write_failures,
        destinations,
        last_group_position,
        bodies: BodyCache::new(BODY_CACHE_BYTES),
        checkpoints: checkpoint::spawn(checkpointing),
        fast_path,
        limits,
        keyring,
        commit_seconds: histogram!("weir_store_commit_seconds", "operation" => "batch"),
        commit_size: histogram!("weir_store_commit_size", "operation" => "batch"),
    };
    // A thread for blocking calls.
    (sender, tokio::task::spawn_blocking(move || writer.run(operations)))
}

/// The resources that the writer starts with.
pub(crate) struct WriterSetup {
    pub(crate) files: DatabaseFiles,
    pub(crate) connection: Connection,
    /// Another connection to the same file.
    pub(crate) checkpointing: Connection,
    pub(crate) commit: Commit,
    pub(crate) write_failures: Arc<WriteFailures>,
    pub(crate) destinations: Arc<DestinationCache>,
    pub(crate) last_group_position: i64,
    pub(crate) fast_path: FastPathHandle,
    pub(crate) limits: SharedDestinationLimits,
    pub(crate) keyring: Arc<Keyring>,
}

impl Writer {
    fn run(mut self, mut operations: mpsc::Receiver<Operation>) {
        let mut queue = CommitQueue::default();
        while let Some(batch) = queue.next_batch(&mut operations) {
            self.store(batch, |batch| queue.more_results(batch, &mut operations));
        }
        // Refuse later operations. Then end the checkpoints: the last connection to close copies and removes the log.
        drop(operations);
        self.checkpoints.close();
        let prepared = if self.files.gone().is_some() { keep_others_files(&self.connection) } else { Ok(()) };
        let closed = self.connection.close().map_err(|(_, error)| error.into());
        if let Err(error) = prepared.and(closed) {
            tracing::warn!(%error, "the database did not close cleanly; the next start recovers it");
        }
        // Now the files are unlocked.
        drop(self.files);
    }

    /// Commits a batch, with the results that `more` adds while it runs, and answers its callers.
    fn store(&mut self, mut batch: CommitBatch, more: impl FnMut(&CommitBatch) -> Option<CommitBatch>) {
        let began = Instant::now();
        match self.commit(&mut batch, more) {
            Ok(fast_path_batch) => {
                self.commit_seconds.record(began.elapsed());
                self.commit_size.record(batch.operations() as f64);
                let rows = batch.written();
                // The commit has succeeded, so the events of the fast path are on disk and may be sent.
                fast_path_batch.admit();
                batch.finish(None);
                if let Err(error) = self.checkpoints.after(rows, &self.connection) {
                    tracing::warn!(%error, "a checkpoint failed; the log grows until the next one");
                    self.stop_after_failed_sync(&error);
                }
            }
            Err(error @ StoreError::Failed(_)) if batch.has_several() => {
                tracing::warn!(%error, "a commit batch failed; its operations run one by one");
                // Only the faulty operation is to fail.
                batch.split().into_iter().for_each(|alone| self.store(alone, ALONE));
            }
            Err(error) => batch.finish(Some(&error)),
        }
    }

    /// Returns the deliveries that go over the fast path.
    fn commit(
        &mut self,
        batch: &mut CommitBatch,
        more: impl FnMut(&CommitBatch) -> Option<CommitBatch>,
    ) -> StoreResult<FastPathBatch> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        let committed = self.check_files().and_then(|()| {
            self.try_commit(batch, more).map_err(|error| {
                self.stop_after_failed_sync(&error);
                self.failure.clone().unwrap_or_else(|| error.into())
            })
        });
        committed.inspect_err(|error| self.write_failures.note(error))
    }

    /// Refuses to store anything in a file that no later process would find.
    fn check_files(&mut self) -> StoreResult<()> {
        let was_gone = self.is_gone;
        let Some(file) = self.files.gone().map(|path| path.display().to_string()) else {
            self.is_gone = false;
            if was_gone {
                tracing::warn!("the files of the database are in place again; Weir stores and sends again");
            }
            return Ok(());
        };
        self.is_gone = true;
        if !was_gone {
            tracing::error!(
                file,
                "a file of the database was removed or replaced: nothing is stored or sent; move the original file back, \
                 or stop Weir, put the right files in place, and start it again"
            );
            // The database gets the commits of a log that is gone, and a log that was left behind can do no harm to the
            // next database at this path.
            if let Err(error) = checkpoint::empty_log(&self.connection) {
                tracing::error!(%error, "the last commits could not be copied into the database");
            }
        }
        Err(StoreError::CannotWrite { obstacle: Obstacle::FileGone, reason: format!("{file} is not the opened file") })
    }

    /// Refuses all later commits if the disk failed to sync the log.
    fn stop_after_failed_sync(&mut self, error: &Error) {
        if error.is_failed_sync() {
            tracing::error!(%error, "the log could not be synced to disk; nothing more is stored until the next start");
            self.failure = Some(StoreError::CannotWrite {
                obstacle: Obstacle::DiskFails,
                reason: format!("{error} while the log was synced; check the disk and start Weir again"),
            });
        }
    }

    fn try_commit(
        &mut self,
        batch: &mut CommitBatch,
        mut more: impl FnMut(&CommitBatch) -> Option<CommitBatch>,
    ) -> Result<FastPathBatch> {
        self.wait_for_disk(batch.is_durable())?;
        statement(&self.connection, "BEGIN IMMEDIATE")?;
        // Changes of destinations are staged until the commit. Positions and bodies are not: a batch that is rolled
        // back may skip positions, and the bodies are only a cache.
        let mut destinations = StagedDestinations::new(&self.destinations);
        let mut fast_path_batch = self.fast_path.batch();
        let mut changes = ChangeLog::default();
        let mut transaction = Transaction {
            connection: &self.connection,
            destinations: &mut destinations,
            fast_path_batch: &mut fast_path_batch,
            limits: self.limits.get(),
            keyring: &self.keyring,
            changes: &mut changes,
            last_group_position: &mut self.last_group_position,
            bodies: &mut self.bodies,
        };
        // Run the batch, then add results for as long as nothing urgent waits.
        let mut done = batch.run(&mut transaction);
        while done.is_ok()
            && let Some(mut next) = more(batch)
        {
            done = next.run(&mut transaction);
            batch.join(next);
        }
        // The counters change in the transaction that changes the deliveries. After a rollback the log is dropped.
        let done = done.and_then(|()| changes.write(&self.connection));
        match done.and_then(|()| (self.commit)(&self.connection).map_err(Error::from)) {
            Ok(()) => {
                // Only now may other threads see the changed destinations.
                destinations.commit();
                Ok(fast_path_batch)
            }
            Err(error) => {
                // Fails if SQLite has already rolled back by itself, which some errors cause.
                let _ = statement(&self.connection, "ROLLBACK");
                Err(error)
            }
        }
    }

    /// Sets whether commits wait for the disk. The pragma takes effect between transactions only, when the statement is
    /// prepared, so the statement is not cached.
    fn wait_for_disk(&mut self, is_durable: bool) -> Result<()> {
        if self.is_durable != is_durable {
            let synchronous = if is_durable { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", synchronous)?;
            self.is_durable = is_durable;
        }
        Ok(())
    }
}

/// Empties the log before the connection closes, and keeps SQLite from removing it: at its path there may be the log of
/// another database now.
fn keep_others_files(connection: &Connection) -> Result<()> {
    checkpoint::empty_log(connection)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(())
}

fn statement(connection: &Connection, sql: &'static str) -> Result<()> {
    execute(connection, sql, &Values::default()).map(drop)
}
