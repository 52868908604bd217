//! The one writer: a thread that owns the only writing connection and commits what waits together.
//!
//! ```text
//!   callers ──▶ channel ──▶ group: everything that waits ──▶ BEGIN IMMEDIATE … COMMIT ──▶ answers
//!                  ▲                                                  │
//!                  └────────── the next group gathers meanwhile ◀─────┘
//! ```
//!
//! There is no timer: alone, an operation commits at once; under load the group is what arrived during the last commit.
//! Ingests, results, and everything else (claims, edits) go in groups of their own, in turn: workers stand still while a
//! claim waits, so it waits neither for the disk on account of an ingest nor for a long list of results, which is broken off
//! when something urgent has come.
//! Inside a group operations of one kind share their statements. When a group fails it is rolled back and each operation
//! runs in a transaction of its own, so that a bad one fails alone. Order inside a group is free, since its callers all
//! still wait.

use std::{collections::VecDeque, fs::File, sync::Arc};

use rusqlite::Connection;
use tokio::{
    sync::{mpsc, oneshot},
    task::JoinHandle,
};
use weir_core::{Timestamp, claim::Claim};
use weir_store::{
    AttemptResult, ClaimRequest, Claims, IngestRefusal, Ingested, NewEvent, Recovered, Settlement, StoreError,
    StoreResult,
};

use crate::{
    SqliteStore,
    bodies::RecentBodies,
    cache::{DestinationCache, Staged},
    checkpoint::{self, Checkpoints},
    edits::Edit,
    error::Result,
    live::{BatchId, LiveClaims, StagedClaims},
    sql::{Values, execute},
};

/// How many operations may wait before callers do.
const WAITING_OPERATIONS: usize = 8_192;
/// Ingests and results share a commit until they have so many rows, a few milliseconds' worth.
const MAX_BULK_ROWS: usize = 512;
/// Results written before something urgent is looked for.
const RESULTS_PER_STEP: usize = 64;
/// Bodies of recent events kept for their first claim.
const RECENT_BODY_BYTES: usize = 8 * 1024 * 1024;

/// One operation and the caller who waits for it.
pub(crate) struct Pending<I, O> {
    pub(crate) input: I,
    pub(crate) answer: Option<O>,
    reply: oneshot::Sender<StoreResult<O>>,
}

impl<I, O> Pending<I, O> {
    /// Sends the answer found, or why there is none. A caller who has left is passed over.
    pub(crate) fn finish(self, failure: Option<&StoreError>) {
        let unanswered = || StoreError::Failed("the operation was not answered".to_owned());
        let answer = match failure {
            Some(error) => Err(error.clone()),
            None => self.answer.ok_or_else(unanswered),
        };
        let _ = self.reply.send(answer);
    }
}

pub(crate) type Ingest = Pending<Vec<NewEvent>, Vec<std::result::Result<Ingested, IngestRefusal>>>;
pub(crate) type Claiming = Pending<(Vec<ClaimRequest>, Timestamp), Vec<Claims>>;
pub(crate) type Release = Pending<(Vec<Claim>, Timestamp), u64>;
pub(crate) type Settle = Pending<Vec<AttemptResult>, Vec<Settlement>>;
pub(crate) type Recover = Pending<Recovery, Recovered>;

/// What `recover_claims` asks for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Recovery {
    pub(crate) now: Timestamp,
    pub(crate) all: bool,
    pub(crate) limit: u32,
}

pub(crate) enum Operation {
    Edit(Box<Edit>),
    Ingest(Ingest),
    Settle(Settle),
    Release(Release),
    Recover(Recover),
    Claim(Claiming),
    /// Commit what came before, then close the file.
    Close,
}

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
    pub(crate) bodies: &'t mut RecentBodies,
    pub(crate) claims: &'t mut StagedClaims<'c>,
    /// What claims of this transaction are journaled under; the epoch of each.
    pub(crate) batch: BatchId,
}

/// Operations that commit together.
#[derive(Default)]
struct Group {
    edits: Vec<Edit>,
    ingests: Vec<Ingest>,
    settles: Vec<Settle>,
    releases: Vec<Release>,
    recoveries: Vec<Recover>,
    claims: Vec<Claiming>,
    operations: usize,
    /// Of its ingests, results and claims.
    rows: usize,
}

impl Group {
    fn add(&mut self, operation: Operation) {
        self.operations += 1;
        match operation {
            Operation::Edit(edit) => self.edits.push(*edit),
            Operation::Ingest(ingest) => {
                self.rows += ingest.input.len();
                self.ingests.push(ingest);
            }
            Operation::Settle(settle) => {
                self.rows += settle.input.len();
                self.settles.push(settle);
            }
            Operation::Release(release) => self.releases.push(release),
            Operation::Recover(recover) => self.recoveries.push(recover),
            Operation::Claim(claim) => self.claims.push(claim),
            Operation::Close => {}
        }
    }

    /// Whether the commit must reach the disk before it is answered.
    fn durable(&self) -> bool {
        !self.ingests.is_empty()
            || self.edits.iter().any(Edit::durable)
            || self.claims.iter().any(|claim| claim.input.0.iter().any(|request| request.durable))
    }

    fn run(&mut self, transaction: &mut Transaction<'_, '_>) -> Result<()> {
        for edit in &mut self.edits {
            edit.run(transaction)?;
        }
        transaction.ingest(&mut self.ingests)?;
        transaction.settle(&mut self.settles)?;
        transaction.release(&mut self.releases)?;
        for recovery in &mut self.recoveries {
            recovery.answer = Some(transaction.recover(recovery.input)?);
        }
        transaction.claim(&mut self.claims)
    }

    /// Takes in results that were written in the same transaction.
    fn join(&mut self, more: Self) {
        self.operations += more.operations;
        self.rows += more.rows;
        self.settles.extend(more.settles);
    }

    fn finish(self, failure: Option<&StoreError>) {
        self.edits.into_iter().for_each(|edit| edit.finish(failure));
        self.ingests.into_iter().for_each(|ingest| ingest.finish(failure));
        self.settles.into_iter().for_each(|settle| settle.finish(failure));
        self.releases.into_iter().for_each(|release| release.finish(failure));
        self.recoveries.into_iter().for_each(|recovery| recovery.finish(failure));
        self.claims.into_iter().for_each(|claim| claim.finish(failure));
    }

    /// Each operation in a group of its own.
    fn split(self) -> Vec<Self> {
        let edits = self.edits.into_iter().map(Edit::operation);
        let operations = edits
            .chain(self.ingests.into_iter().map(Operation::Ingest))
            .chain(self.settles.into_iter().map(Operation::Settle))
            .chain(self.releases.into_iter().map(Operation::Release))
            .chain(self.recoveries.into_iter().map(Operation::Recover))
            .chain(self.claims.into_iter().map(Operation::Claim));
        let alone = |operation| {
            let mut group = Self::default();
            group.add(operation);
            group
        };
        operations.map(alone).collect()
    }
}

/// What has arrived and is in no group yet.
#[derive(Default)]
struct Waiting {
    /// Claims, and what is as rare as edits.
    urgent: VecDeque<Operation>,
    ingests: VecDeque<Operation>,
    results: VecDeque<Operation>,
    last: Turn,
    closing: bool,
}

/// Whose group it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Turn {
    Urgent,
    Ingests,
    #[default]
    Results,
}

impl Turn {
    const fn next(self) -> Self {
        match self {
            Self::Urgent => Self::Ingests,
            Self::Ingests => Self::Results,
            Self::Results => Self::Urgent,
        }
    }
}

impl Waiting {
    /// Takes in what has arrived.
    fn gather(&mut self, operations: &mut mpsc::Receiver<Operation>) {
        while let Ok(operation) = operations.try_recv() {
            self.add(operation);
        }
    }

    /// Takes in what has arrived, and waits for something when there is nothing to do. Whose turn it is; `None` at the end.
    fn next_turn(&mut self, operations: &mut mpsc::Receiver<Operation>) -> Option<Turn> {
        self.gather(operations);
        if self.is_empty() && !self.closing {
            self.add(operations.blocking_recv()?);
        }
        let turns = [self.last.next(), self.last.next().next(), self.last];
        self.last = turns.into_iter().find(|&turn| !self.queue(turn).is_empty())?;
        Some(self.last)
    }

    fn is_empty(&self) -> bool {
        self.urgent.is_empty() && self.ingests.is_empty() && self.results.is_empty()
    }

    fn queue(&mut self, turn: Turn) -> &mut VecDeque<Operation> {
        match turn {
            Turn::Urgent => &mut self.urgent,
            Turn::Ingests => &mut self.ingests,
            Turn::Results => &mut self.results,
        }
    }

    fn add(&mut self, operation: Operation) {
        let turn = match operation {
            Operation::Close => {
                self.closing = true;
                return;
            }
            Operation::Ingest(_) => Turn::Ingests,
            Operation::Settle(_) => Turn::Results,
            _ => Turn::Urgent,
        };
        // What comes after the end is refused: dropped, its caller learns that the store is closed.
        if !self.closing {
            self.queue(turn).push_back(operation);
        }
    }

    /// Operations of one kind until they have `rows` rows, at least one if there is one.
    fn take(&mut self, turn: Turn, rows: usize) -> Group {
        let mut group = Group::default();
        while group.rows < rows
            && let Some(operation) = self.queue(turn).pop_front()
        {
            group.add(operation);
        }
        group
    }
}

struct Writer {
    connection: Connection,
    destinations: Arc<DestinationCache>,
    claims: Arc<LiveClaims>,
    last_batch: BatchId,
    bodies: RecentBodies,
    checkpoints: Checkpoints,
    /// Whether commits are synced to disk now (`PRAGMA synchronous`).
    synced: bool,
}

/// Starts the writer on a thread of its own. It ends when every sender is gone or on [`Operation::Close`], and holds `lock`
/// until then.
pub(crate) fn spawn(opened: Opened, lock: File) -> (mpsc::Sender<Operation>, JoinHandle<()>) {
    let Opened { connection, checkpointing, destinations, claims, last_batch } = opened;
    let (sender, operations) = mpsc::channel(WAITING_OPERATIONS);
    let bodies = RecentBodies::new(RECENT_BODY_BYTES);
    let checkpoints = checkpoint::spawn(checkpointing);
    let writer = Writer { connection, destinations, claims, last_batch, bodies, checkpoints, synced: true };
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
    pub(crate) destinations: Arc<DestinationCache>,
    pub(crate) claims: Arc<LiveClaims>,
    pub(crate) last_batch: BatchId,
}

impl Writer {
    fn run(mut self, mut operations: mpsc::Receiver<Operation>) {
        let mut waiting = Waiting::default();
        while let Some(turn) = waiting.next_turn(&mut operations) {
            match turn {
                Turn::Urgent => self.commit(waiting.take(turn, usize::MAX), Self::nothing_more),
                Turn::Ingests => self.commit(waiting.take(turn, MAX_BULK_ROWS), Self::nothing_more),
                Turn::Results => {
                    self.commit(waiting.take(turn, RESULTS_PER_STEP), |group| {
                        waiting.gather(&mut operations);
                        let go_on = waiting.urgent.is_empty() && group.rows < MAX_BULK_ROWS;
                        (go_on && !waiting.results.is_empty()).then(|| waiting.take(turn, RESULTS_PER_STEP))
                    });
                }
            }
        }
        drop(operations);
        self.checkpoints.close();
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, "the database did not close cleanly; the next start recovers it");
        }
    }

    fn nothing_more(_: &Group) -> Option<Group> {
        None
    }

    /// Commits a group, with what `more` adds to it while it is under way, and answers it.
    fn commit(&mut self, mut group: Group, more: impl FnMut(&Group) -> Option<Group>) {
        let outcome = self.try_commit(&mut group, more).map_err(StoreError::from);
        let rows = group.rows;
        match outcome {
            Ok(()) => group.finish(None),
            Err(error @ StoreError::Failed(_)) if group.operations > 1 => {
                tracing::warn!(%error, operations = group.operations, "a group failed; its operations run one by one");
                for mut alone in group.split() {
                    let outcome = self.try_commit(&mut alone, Self::nothing_more).map_err(StoreError::from);
                    alone.finish(outcome.as_ref().err());
                }
            }
            Err(error) => group.finish(Some(&error)),
        }
        self.checkpoints.after(rows, &self.connection);
    }

    fn try_commit(&mut self, group: &mut Group, mut more: impl FnMut(&Group) -> Option<Group>) -> Result<()> {
        self.begin(group.durable())?;
        let mut destinations = Staged::new(&self.destinations);
        let mut claims = StagedClaims::new(&self.claims);
        self.last_batch += 1;
        let mut transaction = Transaction {
            connection: &self.connection,
            destinations: &mut destinations,
            claims: &mut claims,
            batch: self.last_batch,
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
                Ok(())
            }
            Err(error) => {
                // SQLite has rolled back by itself after some errors; then there is nothing to roll back.
                let _ = statement(&self.connection, "ROLLBACK");
                Err(error)
            }
        }
    }

    /// Begins a transaction whose commit waits for the disk or does not, which cannot change once it has begun.
    fn begin(&mut self, durable: bool) -> Result<()> {
        if self.synced != durable {
            // Prepared anew each time: SQLite carries this pragma out when it prepares it, not when it steps. One kept
            // prepared could do nothing, and acknowledged events would not be on disk.
            let level = if durable { "PRAGMA synchronous = FULL" } else { "PRAGMA synchronous = NORMAL" };
            self.connection.execute_batch(level)?;
            self.synced = durable;
        }
        statement(&self.connection, "BEGIN IMMEDIATE")
    }
}

fn statement(connection: &Connection, sql: &'static str) -> Result<()> {
    execute(connection, sql, &Values::default()).map(drop)
}

#[cfg(test)]
mod tests {
    use weir_core::DestinationId;

    use super::*;
    use crate::sql::query;

    fn pending<I, O>(input: I) -> Pending<I, O> {
        Pending { input, answer: None, reply: oneshot::channel().0 }
    }

    fn claiming(durable: bool) -> Operation {
        let destination_id = DestinationId::new(Timestamp::MIN, 1);
        let request = ClaimRequest { destination_id, limit: 1, expires_at: Timestamp::MAX, durable };
        Operation::Claim(pending((vec![request], Timestamp::MIN)))
    }

    fn durable(operations: impl IntoIterator<Item = Operation>) -> bool {
        let mut group = Group::default();
        operations.into_iter().for_each(|operation| group.add(operation));
        group.durable()
    }

    #[test]
    fn what_was_acknowledged_is_synced_to_disk_and_what_can_be_recovered_is_not() {
        let settle = || Operation::Settle(pending(Vec::new()));
        let release = || Operation::Release(pending((Vec::new(), Timestamp::MIN)));
        assert!(!durable([claiming(false), settle(), release()]));
        assert!(durable([settle(), claiming(true)]));
        assert!(durable([claiming(false), Operation::Ingest(pending(Vec::new()))]));
        let delete = Edit::Delete(pending((DestinationId::new(Timestamp::MIN, 1), Timestamp::MIN)));
        assert!(durable([delete.operation(), settle()]));
        assert!(!durable([Edit::Check(pending(())).operation()]));
    }

    #[tokio::test]
    async fn sqlite_itself_changes_between_synced_and_unsynced_commits_every_time() {
        let connection = Connection::open_in_memory().unwrap();
        let destinations = Arc::new(DestinationCache::default());
        let (claims, bodies) = (Arc::default(), RecentBodies::new(0));
        let checkpoints = checkpoint::spawn(Connection::open_in_memory().unwrap());
        let mut writer = Writer { connection, destinations, claims, last_batch: 0, bodies, checkpoints, synced: true };
        for durable in [false, true, false, true, true, false, false, true] {
            writer.begin(durable).unwrap();
            statement(&writer.connection, "COMMIT").unwrap();
            let level = |row: &rusqlite::Row<'_>| Ok(row.get::<_, i64>(0)?);
            let synchronous = query(&writer.connection, "PRAGMA synchronous", &Values::default(), level).unwrap();
            assert_eq!(synchronous, [if durable { 2 } else { 1 }]);
        }
    }
}
