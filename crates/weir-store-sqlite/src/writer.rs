//! The one writer: a thread that owns the only writing connection and commits what waits together.
//!
//! ```text
//!   callers ──▶ channel ──▶ group: everything that waits ──▶ BEGIN IMMEDIATE … COMMIT ──▶ answers
//!                  ▲                                                  │
//!                  └────────── the next group gathers meanwhile ◀─────┘
//! ```
//!
//! A group with something that was acknowledged to someone waits for the disk in its `COMMIT` (`synchronous=FULL`), and so keeps
//! every commit before it as well, because the log is in their order. Other groups do not wait (`NORMAL`).
//!
//! A sync that fails may have lost pages of the log, and no later one brings them back: nothing that is written after them would
//! survive either. So after such a failure nothing is stored any more, until the engine is started anew and SQLite has looked at
//! the log.
//!
//! Inside a group operations of one kind share their statements. When a group fails it is rolled back and each operation
//! runs in a transaction of its own, so that a bad one fails alone.

use std::{fs::File, sync::Arc};

use metrics::{Histogram, histogram};
use rusqlite::Connection;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};
use weir_store::{FastPathBatch, FastPathHandle, StoreError, StoreResult, WaitingBodies};

use crate::{
    SqliteStore,
    cache::{DestinationCache, Staged},
    checkpoint::{self, Checkpoints},
    error::{Error, Result},
    group::{Group, Operation, Pending, Waiting},
    sql::{Values, execute},
};

/// Ends a transaction: `COMMIT`, or what a test makes of it.
pub(crate) type Commit = Box<dyn FnMut(&Connection) -> rusqlite::Result<()> + Send>;

/// How many operations may wait before callers do.
const WAITING_OPERATIONS: usize = 8_192;
/// Bodies of events, kept for the first claims of their deliveries.
const WAITING_BODY_BYTES: usize = 8 * 1024 * 1024;

impl SqliteStore {
    /// Hands an operation to the writer and waits for its answer.
    pub(crate) async fn ask<I, O>(&self, input: I, wrap: impl FnOnce(Pending<I, O>) -> Operation) -> StoreResult<O> {
        self.post(input, wrap).await?.get().await
    }

    /// Hands an operation to the writer.
    pub(crate) async fn post<I, O>(
        &self,
        input: I,
        wrap: impl FnOnce(Pending<I, O>) -> Operation,
    ) -> StoreResult<Answer<O>> {
        let (reply, answer) = oneshot::channel();
        let operation = wrap(Pending { input, answer: None, reply });
        self.operations.send(operation).await.map_err(|_| closed())?;
        Ok(Answer(answer))
    }
}

/// An answer to come.
pub(crate) struct Answer<O>(oneshot::Receiver<StoreResult<O>>);

impl<O> Answer<O> {
    pub(crate) async fn get(self) -> StoreResult<O> {
        self.0.await.map_err(|_| closed())?
    }
}

fn closed() -> StoreError {
    StoreError::Unavailable("the store is closed".to_owned())
}

/// Nothing is added to a group while it is under way.
const ALONE: fn(&Group) -> Option<Group> = |_| None;

/// What the functions of a transaction work with.
pub(crate) struct Transaction<'t, 'c> {
    pub(crate) connection: &'t Connection,
    pub(crate) destinations: &'t mut Staged<'c>,
    pub(crate) bodies: &'t mut WaitingBodies,
    pub(crate) boarding: &'t mut FastPathBatch,
    /// The last place given out in any line.
    pub(crate) last_place: &'t mut i64,
}

struct Writer {
    connection: Connection,
    commit: Commit,
    /// Whether commits of the connection wait for the disk.
    is_durable: bool,
    /// Why nothing can be stored any more.
    failure: Option<StoreError>,
    destinations: Arc<DestinationCache>,
    last_place: i64,
    bodies: WaitingBodies,
    checkpoints: Checkpoints,
    fast_path: FastPathHandle,
    commit_seconds: Histogram,
    commit_size: Histogram,
}

/// Starts the writer on a thread of its own. It ends when every sender is gone or on [`Operation::Close`], and holds `lock`
/// until then.
pub(crate) fn spawn(opened: Opened, lock: File) -> (mpsc::Sender<Operation>, JoinHandle<()>) {
    let Opened { connection, checkpointing, commit, destinations, last_place, fast_path } = opened;
    let (sender, operations) = mpsc::channel(WAITING_OPERATIONS);
    let writer = Writer {
        connection,
        commit,
        is_durable: false,
        failure: None,
        destinations,
        last_place,
        bodies: WaitingBodies::new(WAITING_BODY_BYTES),
        checkpoints: checkpoint::spawn(checkpointing),
        fast_path,
        commit_seconds: histogram!("weir_store_commit_seconds", "operation" => "group"),
        commit_size: histogram!("weir_store_commit_size", "operation" => "group"),
    };
    let thread = tokio::task::spawn_blocking(move || {
        writer.run(operations);
        drop(lock);
    });
    (sender, thread)
}

/// What the writer begins with.
pub(crate) struct Opened {
    pub(crate) connection: Connection,
    /// Another connection to the same file.
    pub(crate) checkpointing: Connection,
    pub(crate) commit: Commit,
    pub(crate) destinations: Arc<DestinationCache>,
    pub(crate) last_place: i64,
    pub(crate) fast_path: FastPathHandle,
}

impl Writer {
    fn run(mut self, mut operations: mpsc::Receiver<Operation>) {
        let mut waiting = Waiting::default();
        while let Some(group) = waiting.next_group(&mut operations) {
            self.store(group, |group| waiting.more_results(group, &mut operations));
        }
        drop(operations);
        self.checkpoints.close();
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, "the database did not close cleanly; the next start recovers it");
        }
    }

    /// Commits a group, with what `more` adds to it while it is under way, and answers it.
    fn store(&mut self, mut group: Group, more: impl FnMut(&Group) -> Option<Group>) {
        let began = Instant::now();
        match self.commit(&mut group, more) {
            Ok(boarding) => {
                self.commit_seconds.record(began.elapsed());
                self.commit_size.record(group.operations() as f64);
                let rows = group.rows();
                boarding.depart();
                group.finish(None);
                if let Err(error) = self.checkpoints.after(rows, &self.connection) {
                    tracing::warn!(%error, "a checkpoint failed; the log grows until the next");
                    self.look_at(&error);
                }
            }
            Err(error @ StoreError::Failed(_)) if group.is_shared() => {
                tracing::warn!(%error, "a group failed; its operations run one by one");
                group.split().into_iter().for_each(|alone| self.store(alone, ALONE));
            }
            Err(error) => group.finish(Some(&error)),
        }
    }

    /// Answers what goes over the fast path.
    fn commit(&mut self, group: &mut Group, more: impl FnMut(&Group) -> Option<Group>) -> StoreResult<FastPathBatch> {
        if let Some(failure) = &self.failure {
            return Err(failure.clone());
        }
        self.try_commit(group, more).map_err(|error| {
            self.look_at(&error);
            self.failure.clone().unwrap_or_else(|| error.into())
        })
    }

    /// Gives up when the disk has not kept what it was given.
    fn look_at(&mut self, error: &Error) {
        if error.is_failed_sync() {
            tracing::error!(%error, "the log could not be synced to disk; nothing more is stored until the next start");
            self.failure = Some(StoreError::Unavailable(format!(
                "the disk did not keep the log of the database ({error}); see to the disk, and start again"
            )));
        }
    }

    fn try_commit(
        &mut self,
        group: &mut Group,
        mut more: impl FnMut(&Group) -> Option<Group>,
    ) -> Result<FastPathBatch> {
        self.wait_for_disk(group.is_durable())?;
        statement(&self.connection, "BEGIN IMMEDIATE")?;
        let mut destinations = Staged::new(&self.destinations);
        let mut boarding = self.fast_path.boarding();
        let mut transaction = Transaction {
            connection: &self.connection,
            destinations: &mut destinations,
            boarding: &mut boarding,
            last_place: &mut self.last_place,
            bodies: &mut self.bodies,
        };
        let mut done = group.run(&mut transaction);
        while done.is_ok()
            && let Some(mut next) = more(group)
        {
            done = next.run(&mut transaction);
            group.join(next);
        }
        match done.and_then(|()| (self.commit)(&self.connection).map_err(Error::from)) {
            Ok(()) => {
                destinations.commit();
                Ok(boarding)
            }
            Err(error) => {
                // SQLite has rolled back by itself after some errors; then there is nothing to roll back.
                let _ = statement(&self.connection, "ROLLBACK");
                Err(error)
            }
        }
    }

    /// Whether the next commits do. Takes effect between transactions only, as the statement is prepared; so it is not kept prepared.
    fn wait_for_disk(&mut self, is_durable: bool) -> Result<()> {
        if self.is_durable != is_durable {
            let synchronous = if is_durable { "FULL" } else { "NORMAL" };
            self.connection.pragma_update(None, "synchronous", synchronous)?;
            self.is_durable = is_durable;
        }
        Ok(())
    }
}

fn statement(connection: &Connection, sql: &'static str) -> Result<()> {
    execute(connection, sql, &Values::default()).map(drop)
}
