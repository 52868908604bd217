//! The one writer: a thread that owns the only writing connection and commits what waits together.
//!
//! ```text
//!   callers ──▶ channel ──▶ group: everything that waits ──▶ BEGIN IMMEDIATE … COMMIT ──▶ answers
//!                  ▲                                                  │
//!                  └────────── the next group gathers meanwhile ◀─────┘
//! ```
//!
//! A commit does not wait for the disk; those who do are answered by [`crate::disk`], while the writer goes on.
//!
//! Inside a group operations of one kind share their statements. When a group fails it is rolled back and each operation
//! runs in a transaction of its own, so that a bad one fails alone.

use std::{fs::File, sync::Arc};

use rusqlite::Connection;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
    time::Instant,
};
use weir_store::{Boarding, Station, StoreError, StoreResult, WaitingBodies};

use crate::{
    SqliteStore,
    cache::{DestinationCache, Staged},
    checkpoint::{self, Checkpoints},
    disk::{Committed, Disk, Sync},
    error::Result,
    group::{Flood, Group, Operation, Pending, Waiting},
    live::{BatchId, LiveClaims, StagedClaims},
    sql::{Values, execute},
};

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

/// What the functions of a transaction work with.
pub(crate) struct Transaction<'t, 'c> {
    pub(crate) connection: &'t Connection,
    pub(crate) destinations: &'t mut Staged<'c>,
    pub(crate) bodies: &'t mut WaitingBodies,
    pub(crate) claims: &'t mut StagedClaims<'c>,
    pub(crate) boarding: &'t mut Boarding,
    /// What claims of this transaction are journaled under; the epoch of each.
    pub(crate) batch: BatchId,
    /// The last place given out in any line.
    pub(crate) last_place: &'t mut i64,
}

struct Writer {
    connection: Connection,
    destinations: Arc<DestinationCache>,
    claims: Arc<LiveClaims>,
    last_batch: BatchId,
    last_place: i64,
    bodies: WaitingBodies,
    checkpoints: Checkpoints,
    disk: Disk,
    station: Station,
}

/// Starts the writer on a thread of its own. It ends when every sender is gone or on [`Operation::Close`], and holds `lock`
/// until then.
pub(crate) fn spawn(opened: Opened, lock: File) -> (mpsc::Sender<Operation>, JoinHandle<()>) {
    let Opened { connection, checkpointing, sync, destinations, claims, last_batch, last_place, station } = opened;
    let (sender, operations) = mpsc::channel(WAITING_OPERATIONS);
    let bodies = WaitingBodies::new(WAITING_BODY_BYTES);
    let checkpoints = checkpoint::spawn(checkpointing);
    let disk = Disk::spawn(sync, sender.downgrade());
    let writer =
        Writer { connection, destinations, claims, last_batch, last_place, bodies, checkpoints, disk, station };
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
    /// Syncs the write-ahead log of that file.
    pub(crate) sync: Sync,
    pub(crate) destinations: Arc<DestinationCache>,
    pub(crate) claims: Arc<LiveClaims>,
    pub(crate) last_batch: BatchId,
    pub(crate) last_place: i64,
    pub(crate) station: Station,
}

impl Writer {
    fn run(mut self, mut operations: mpsc::Receiver<Operation>) {
        let mut waiting = Waiting::default();
        while let Some(group) = waiting.next_group(&mut operations, &self.disk, &self.station) {
            match self.disk.failure() {
                Some(failure) => group.finish(Some(failure)),
                None => {
                    let began = Instant::now();
                    if let Some(flood) = self.commit(group, |group| waiting.more_results(group, &mut operations)) {
                        waiting.flooded(flood, began.elapsed());
                    }
                }
            }
        }
        drop(operations);
        self.disk.close();
        self.checkpoints.close();
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, "the database did not close cleanly; the next start recovers it");
        }
    }

    /// Commits a group, with what `more` adds to it while it is under way, and answers it. Tells of a flood.
    fn commit(&mut self, mut group: Group, more: impl FnMut(&Group) -> Option<Group>) -> Option<Flood> {
        let outcome = self.try_commit(&mut group, more).map_err(StoreError::from);
        let rows = group.rows();
        let flood = outcome.as_ref().ok().and_then(|boarding| group.flood(boarding.boarded().count()));
        match outcome {
            Ok(boarding) => self.answer(group, boarding),
            Err(error @ StoreError::Failed(_)) if group.is_shared() => {
                tracing::warn!(%error, "a group failed; its operations run one by one");
                for mut alone in group.split() {
                    match self.try_commit(&mut alone, |_| None).map_err(StoreError::from) {
                        Ok(boarding) => self.answer(alone, boarding),
                        Err(error) => alone.finish(Some(&error)),
                    }
                }
            }
            Err(error) => group.finish(Some(&error)),
        }
        self.checkpoints.after(rows, &self.connection);
        flood
    }

    /// Answers what has committed, or leaves that to the disk.
    fn answer(&self, mut group: Group, mut boarding: Boarding) {
        boarding.depart_committed();
        group.take_fleeting().finish(None);
        // What is claimed now may have come with a commit that is not on disk yet.
        if group.is_durable() || !group.is_empty() && self.disk.rows() > 0 {
            self.disk.keep(Committed { group, boarding });
        } else {
            boarding.depart();
            group.finish(None);
        }
    }

    /// Answers what goes by the express.
    fn try_commit(&mut self, group: &mut Group, mut more: impl FnMut(&Group) -> Option<Group>) -> Result<Boarding> {
        statement(&self.connection, "BEGIN IMMEDIATE")?;
        let mut destinations = Staged::new(&self.destinations);
        let mut claims = StagedClaims::new(&self.claims);
        let mut boarding = self.station.boarding();
        self.last_batch += 1;
        let mut transaction = Transaction {
            connection: &self.connection,
            destinations: &mut destinations,
            claims: &mut claims,
            boarding: &mut boarding,
            batch: self.last_batch,
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
        let done = done.and_then(|()| transaction.keep_journal());
        match done.and_then(|()| statement(&self.connection, "COMMIT")) {
            Ok(()) => {
                destinations.commit();
                claims.commit();
                Ok(boarding)
            }
            Err(error) => {
                // SQLite has rolled back by itself after some errors; then there is nothing to roll back.
                let _ = statement(&self.connection, "ROLLBACK");
                Err(error)
            }
        }
    }
}

fn statement(connection: &Connection, sql: &'static str) -> Result<()> {
    execute(connection, sql, &Values::default()).map(drop)
}
