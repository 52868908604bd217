//! Writers: each kind of operation has a few connections of its own and commits all queued operations together.
//!
//! ```text
//!   callers ──▶ inbox ──▶ batch: all queued operations ──▶ one statement set, one commit ──▶ answers
//!                 ▲  └──▶ another writer of the kind, for a second batch that is large enough
//!                 └─────── the next batch gathers
//! ```
//!
//! The operations of tenants take turns, and the rows of a batch are bounded, so that one tenant's large operations do
//! not keep the others waiting.
//!
//! A single operation commits at once. Under load a batch is all operations that arrived during the last commit. A
//! statement costs the server as much as several rows, so small batches do not run at the same time: operations that
//! arrive during a commit wait for its end, unless they become many or the commit takes long. If one operation of a
//! batch fails, the operations are run again one by one, so that only the faulty operation fails. A batch with a
//! conflict is run again a few times.

use std::{io, pin::pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use metrics::{Histogram, histogram};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection, postgres::PgConnectOptions};
use tokio::{
    select,
    sync::{Mutex, OwnedMutexGuard, mpsc, oneshot},
    task::JoinHandle,
    time::{Instant, sleep, timeout},
};
use weir_core::shed::ClientId;
use weir_store::{MOST_DELIVERIES_OF_COMMIT, StoreError, StoreResult, Turns};

use crate::{
    Shared,
    errors::{ATTEMPTS, conflicts, leaves_connection_sound},
};

/// The length of the inbox. Callers wait while it is full.
const WAITING_OPERATIONS: usize = 8_192;
/// The most rows (approximately) in one batch: it bounds how long the next batch waits.
const MAX_BATCH_ROWS: usize = 4_096;
/// A batch with this many rows runs at the same time as another batch.
const ENOUGH_ROWS: usize = 1_024;
/// A batch that has waited this long also runs at the same time as another, which may wait for a lock or a slow disk.
const LONGEST_WAIT: Duration = Duration::from_millis(10);
/// Longer than `statement_timeout`, because the server's error is more precise.
pub(crate) const COMMIT_TIMEOUT: Duration = Duration::from_secs(45);
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// A connection that was idle for longer is pinged before its use: something between here and the server may have dropped
/// it without a word (a NAT, a firewall, a proxy), and a batch would wait for its whole timeout.
const TRUSTED_FOR: Duration = Duration::from_secs(5);
pub(crate) const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// After a failed connection a writer refuses operations at once for this time, which doubles from the first value to
/// the last.
const FIRST_RETRY: Duration = Duration::from_millis(50);
const LONGEST_RETRY: Duration = Duration::from_secs(2);

/// An operation that is done for many callers at once.
#[async_trait]
pub(crate) trait Operation: Send + Sync + Sized + 'static {
    type Answer: Send + 'static;

    /// The name of the operation in metrics.
    const NAME: &'static str;

    /// After this time without an answer from the server the batch fails.
    const TIMEOUT: Duration = COMMIT_TIMEOUT;

    /// The approximate number of rows that it writes.
    fn rows(&self) -> usize;

    /// The tenant and the client whose turn it takes. Most kinds of operations take no turns.
    fn turn(&self) -> (&str, ClientId) {
        Default::default()
    }

    /// Does a batch in one transaction. The answers are in the order of the batch.
    async fn run(
        batch: &[&Self],
        connection: &mut PgConnection,
        shared: &Shared,
    ) -> Result<Vec<Self::Answer>, sqlx::Error>;
}

/// While a writer holds it, other small batches of the same kind wait.
type Turn = Option<OwnedMutexGuard<()>>;

/// Operations that are committed together.
struct CommitBatch<O: Operation> {
    operations: Vec<Pending<O>>,
    rows: usize,
}

impl<O: Operation> CommitBatch<O> {
    /// Adds the queued operations, in their turns.
    fn fill(&mut self, inbox: &mut Inbox<O>) {
        inbox.gather();
        while self.rows < MAX_BATCH_ROWS
            && let Some(pending) =
                inbox.waiting.pop(|rows| self.operations.is_empty() || self.rows + rows <= MOST_DELIVERIES_OF_COMMIT)
        {
            self.rows += pending.operation.rows();
            self.operations.push(pending);
        }
    }
}

/// The operations that are in no batch yet.
struct Inbox<O: Operation> {
    arriving: mpsc::Receiver<Message<O>>,
    waiting: Turns<Pending<O>>,
}

impl<O: Operation> Inbox<O> {
    /// Takes the operations that have arrived.
    fn gather(&mut self) {
        while self.waiting.len() < WAITING_OPERATIONS
            && let Ok(message) = self.arriving.try_recv()
        {
            self.add(message);
        }
    }

    fn add(&mut self, message: Message<O>) {
        match message {
            Message::Do(pending) => {
                let rows = pending.operation.rows();
                self.waiting.push(pending, |pending| pending.operation.turn(), rows);
            }
            // Operations that were sent earlier are still received, by this writer or another.
            Message::Close => self.arriving.close(),
        }
    }
}

/// One operation and the channel to its caller.
struct Pending<O: Operation> {
    operation: O,
    reply: oneshot::Sender<StoreResult<O::Answer>>,
}

enum Message<O: Operation> {
    Do(Pending<O>),
    /// Finish the earlier operations, then end.
    Close,
}

/// The writers of one kind of operation.
pub(crate) struct Writers<O: Operation> {
    inbox: mpsc::Sender<Message<O>>,
    tasks: parking_lot::Mutex<Vec<JoinHandle<()>>>,
}

impl<O: Operation> std::fmt::Debug for Writers<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writers").finish_non_exhaustive()
    }
}

impl<O: Operation> Writers<O> {
    /// Starts `count` writers, which connect at their first operation. They end when this value is dropped or closed.
    pub(crate) fn spawn(count: usize, options: &PgConnectOptions, shared: &Arc<Shared>) -> Self {
        let (inbox, receiver) = mpsc::channel(WAITING_OPERATIONS);
        let inbox_of_writers = Inbox { arriving: receiver, waiting: Turns::default() };
        let (receiver, turn) = (Arc::new(Mutex::new(inbox_of_writers)), Arc::default());
        let writer = || Writer {
            inbox: Arc::clone(&receiver),
            turn: Arc::clone(&turn),
            options: options.clone(),
            connection: None,
            redial: Redial { delay: FIRST_RETRY, not_before: Instant::now() },
            shared: Arc::clone(shared),
            commit_seconds: histogram!("weir_store_commit_seconds", "operation" => O::NAME),
            commit_size: histogram!("weir_store_commit_size", "operation" => O::NAME),
        };
        let tasks: Vec<_> = (0..count).map(|_| tokio::spawn(writer().run())).collect();
        Self { inbox, tasks: tasks.into() }
    }

    /// Sends an operation to the writers and waits for its answer.
    pub(crate) async fn ask(&self, operation: O) -> StoreResult<O::Answer> {
        let closed = || StoreError::Unavailable("the store is closed".to_owned());
        let (reply, answer) = oneshot::channel();
        self.inbox.send(Message::Do(Pending { operation, reply })).await.map_err(|_| closed())?;
        answer.await.map_err(|_| closed())?
    }

    /// Finishes the operations sent so far. Later operations are refused.
    pub(crate) async fn close(&self) {
        // Fails only if the writers have already ended.
        let _ = self.inbox.send(Message::Close).await;
        let tasks = std::mem::take(&mut *self.tasks.lock());
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a writer task ended unexpectedly");
            }
        }
    }
}

struct Writer<O: Operation> {
    inbox: Arc<Mutex<Inbox<O>>>,
    /// Held by a small batch while it runs: its guard is the [`Turn`].
    turn: Arc<Mutex<()>>,
    options: PgConnectOptions,
    connection: Option<Connected>,
    redial: Redial,
    shared: Arc<Shared>,
    commit_seconds: Histogram,
    commit_size: Histogram,
}

/// A connection of a writer.
struct Connected {
    connection: PgConnection,
    /// Before it was opened.
    opened_at: Instant,
    used_at: Instant,
}

impl<O: Operation> Writer<O> {
    async fn run(mut self) {
        loop {
            let (batch, turn) = self.next_batch().await;
            // The store is closed, and no earlier operation is left.
            if batch.operations.is_empty() {
                break;
            }
            self.commit(batch.operations).await;
            // The next small batch may run.
            drop(turn);
        }
        if let Some(Connected { connection, .. }) = self.connection {
            // A failed close does not matter: the server notices the end of the connection.
            let _ = connection.close().await;
        }
    }

    /// The next batch and its turn, if it has one. Waits for an operation, and then for the turn, for [`ENOUGH_ROWS`]
    /// or for [`LONGEST_WAIT`]. The batch is empty if the store is closed.
    async fn next_batch(&self) -> (CommitBatch<O>, Turn) {
        // One writer gathers, the others wait for the inbox. Wait for the first operation.
        let mut inbox = self.inbox.lock().await;
        let mut batch = CommitBatch { operations: Vec::new(), rows: 0 };
        batch.fill(&mut inbox);
        while batch.operations.is_empty() {
            match inbox.arriving.recv().await {
                Some(message) => inbox.add(message),
                None => return (batch, None),
            }
            batch.fill(&mut inbox);
        }
        // Gather more until this batch may run: because it is large, has the turn, or has waited for too long.
        let mut longest_wait = pin!(sleep(LONGEST_WAIT));
        let turn = loop {
            batch.fill(&mut inbox);
            // A large batch runs in any case. It takes the turn if that is free, so that no small batch runs beside it.
            if batch.rows >= ENOUGH_ROWS {
                break Arc::clone(&self.turn).try_lock_owned().ok();
            }
            select! {
                biased;
                turn = Arc::clone(&self.turn).lock_owned() => break Some(turn),
                Some(message) = inbox.arriving.recv() => inbox.add(message),
                () = &mut longest_wait => break None,
            }
        };
        // Other tasks that are ready may add operations to this batch.
        tokio::task::yield_now().await;
        batch.fill(&mut inbox);
        (batch, turn)
    }

    /// Commits a batch and answers it.
    async fn commit(&mut self, batch: Vec<Pending<O>>) {
        let operations: Vec<&O> = batch.iter().map(|pending| &pending.operation).collect();
        let began = Instant::now();
        match self.run_batch(&operations).await {
            Ok(answers) => {
                self.commit_seconds.record(began.elapsed());
                self.commit_size.record(batch.len() as f64);
                for (pending, answer) in batch.into_iter().zip(answers) {
                    // Fails only if the caller no longer waits.
                    let _ = pending.reply.send(Ok(answer));
                }
            }
            // One operation is faulty: alone, only that one fails.
            Err(error @ StoreError::Failed(_)) if batch.len() > 1 => {
                tracing::warn!(%error, operations = batch.len(), "a batch failed; its operations are run one by one");
                for pending in batch {
                    let answer = self.run_batch(&[&pending.operation]).await;
                    let alone = || StoreError::Failed("the operation was not answered".to_owned());
                    let _ = pending.reply.send(answer.and_then(|mut answers| answers.pop().ok_or_else(alone)));
                }
            }
            // The server is unavailable, or the only operation is faulty: every caller gets the error.
            Err(error) => {
                for pending in batch {
                    let _ = pending.reply.send(Err(error.clone()));
                }
            }
        }
    }

    /// Runs a batch, and runs it again after a conflict.
    async fn run_batch(&mut self, batch: &[&O]) -> StoreResult<Vec<O::Answer>> {
        for _ in 1..ATTEMPTS {
            match self.try_batch(batch).await {
                Err(error) if conflicts(&error) => {
                    tracing::debug!(%error, "a batch conflicted with another transaction and runs again");
                }
                outcome => return outcome.map_err(|error| self.shared.write_error(&error)),
            }
        }
        self.try_batch(batch).await.map_err(|error| self.shared.write_error(&error))
    }

    async fn try_batch(&mut self, batch: &[&O]) -> Result<Vec<O::Answer>, sqlx::Error> {
        if let Some(connected) = &mut self.connection
            && (self.shared.server.has_left(Some(connected.opened_at))
                || connected.used_at.elapsed() > TRUSTED_FOR && !answers(connected).await)
        {
            self.connection = None;
        }
        let connected = match &mut self.connection {
            Some(connected) => connected,
            missing => {
                let opened_at = Instant::now();
                let connection = self.redial.connect(&self.options).await?;
                missing.insert(Connected { connection, opened_at, used_at: Instant::now() })
            }
        };
        let outcome = within(O::TIMEOUT, O::run(batch, &mut connected.connection, &self.shared)).await;
        connected.used_at = Instant::now();
        // A connection in an unknown state may be inside a transaction. The next batch opens another.
        if outcome.as_ref().is_err_and(|error| !leaves_connection_sound(error)) {
            self.connection = None;
        }
        outcome
    }
}

async fn answers(connected: &mut Connected) -> bool {
    within(PING_TIMEOUT, connected.connection.ping()).await.is_ok()
}

/// Connects, with a pause after each failure.
struct Redial {
    delay: Duration,
    not_before: Instant,
}

impl Redial {
    async fn connect(&mut self, options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
        // Shortly after a failure, callers get an error at once instead of a wait for the next one.
        if Instant::now() < self.not_before {
            let reason = "the server could not be reached a moment ago";
            return Err(sqlx::Error::Io(io::Error::new(io::ErrorKind::NotConnected, reason)));
        }
        let connected = connect(options).await;
        if connected.is_ok() {
            self.delay = FIRST_RETRY;
        } else {
            self.not_before = Instant::now() + self.delay;
            self.delay = (self.delay * 2).min(LONGEST_RETRY);
        }
        connected
    }
}

/// Options for writes that may be lost in a power failure: recovery resolves them as unknown.
pub(crate) fn recoverable(options: &PgConnectOptions) -> PgConnectOptions {
    options.clone().options([("synchronous_commit", "off")])
}

pub(crate) async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    within(CONNECT_TIMEOUT, options.connect()).await
}

pub(crate) async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    let silent = |_| sqlx::Error::Io(io::Error::new(io::ErrorKind::TimedOut, "the server did not answer in time"));
    timeout(limit, work).await.unwrap_or_else(|elapsed| Err(silent(elapsed)))
}
