//! Reads from a streaming replica, for requests that allow it ([`weir_store::with_replica`]).
//!
//! Such a request sees all that was on the disk of the primary when it came, so whoever has just changed something sees
//! the change. It asks the primary for the end of its log, and the replica how far it has replayed. A replica that does
//! not get there within [`PATIENCE`], does not answer, or is no replica of this database is passed over: the primary
//! answers, and the replica is not asked again for a moment. Results of attempts are on the disk up to a second after
//! they are recorded, so a replica may show them that much later.

use std::time::Duration;

use metrics::{counter, gauge};
use parking_lot::Mutex;
use sqlx::{PgPool, postgres::PgRow};
use tokio::time::{Instant, sleep};
use weir_store::rows::Row as _;

use crate::{rows::Read, writer::within};

/// How long a read waits for the replica. A healthy one is some milliseconds behind.
const PATIENCE: Duration = Duration::from_millis(250);
const ASK_EVERY: Duration = Duration::from_millis(5);
/// A silent replica is found within this time.
pub(crate) const CHECK_TIMEOUT: Duration = Duration::from_secs(1);
/// A replica that is behind or away is passed over for so long.
const IF_BEHIND: Duration = Duration::from_secs(1);
const IF_AWAY: Duration = Duration::from_secs(5);
/// A read that has begun at the replica. It begins again at the primary, so it must not take all of the request's time.
pub(crate) const READ_TIMEOUT: Duration = Duration::from_secs(10);

const END_OF_LOG: &str = "SELECT (pg_current_wal_flush_lsn() - '0/0')::bigint, id FROM installation";

/// NULL: it is no replica, or has been promoted. Then it keeps the last position, although it follows no primary.
const REPLAYED: &str = "
SELECT CASE WHEN pg_is_in_recovery() THEN (pg_last_wal_replay_lsn() - '0/0')::bigint END, id FROM installation";

#[derive(Debug)]
pub(crate) struct Replica {
    pub(crate) pool: PgPool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// It is passed over until then.
    passed_over: Option<Instant>,
    /// When it was last seen to have replayed everything.
    current_at: Instant,
}

#[derive(Debug, thiserror::Error)]
enum NotCurrent {
    #[error("it is {0} bytes of the log behind")]
    Behind(i64),
    #[error("it is no streaming replica (a promoted one is none any more)")]
    NoReplica,
    #[error("it belongs to another installation")]
    Foreign,
    #[error("{0}")]
    Failed(#[from] sqlx::Error),
}

impl Replica {
    pub(crate) fn new(pool: PgPool) -> Self {
        Self { pool, state: Mutex::new(State { passed_over: None, current_at: Instant::now() }) }
    }

    /// Whether it can answer the reads of a request that came now.
    pub(crate) async fn is_current(&self, primary: &PgPool) -> bool {
        let is_current = !self.is_passed_over() && self.check(primary).await;
        let server = if is_current { "replica" } else { "primary" };
        counter!("weir_replica_requests_total", "server" => server).increment(1);
        is_current
    }

    pub(crate) fn is_passed_over(&self) -> bool {
        self.state.lock().passed_over.is_some_and(|until| Instant::now() < until)
    }

    /// Looks how far the replica is behind, and whether reads may use it. Exports both.
    pub(crate) async fn check(&self, primary: &PgPool) -> bool {
        let checked = within(CHECK_TIMEOUT, async { Ok(self.catch_up(primary).await) }).await;
        let failed = match checked.map_err(NotCurrent::Failed).flatten() {
            Ok(()) => {
                *self.state.lock() = State { passed_over: None, current_at: Instant::now() };
                None
            }
            Err(failed) => Some(failed),
        };
        if let Some(failed) = &failed {
            self.pass_over(failed);
        }
        gauge!("weir_replica_up").set(if failed.is_none() { 1.0 } else { 0.0 });
        let behind = if failed.is_none() { 0.0 } else { self.state.lock().current_at.elapsed().as_secs_f64() };
        gauge!("weir_replica_lag_seconds").set(behind);
        failed.is_none()
    }

    /// A read at the replica has failed, for example because the log removes rows that the read still needed.
    pub(crate) fn failed(&self, error: sqlx::Error) {
        self.pass_over(&NotCurrent::Failed(error));
    }

    fn pass_over(&self, reason: &NotCurrent) {
        tracing::warn!(%reason, "the read replica is passed over; the primary answers the reads");
        let time = if matches!(reason, NotCurrent::Behind(_)) { IF_BEHIND } else { IF_AWAY };
        self.state.lock().passed_over = Some(Instant::now() + time);
    }

    /// Waits until the replica has replayed what is now on the disk of the primary.
    async fn catch_up(&self, primary: &PgPool) -> Result<(), NotCurrent> {
        let (end, installation) = position(primary, END_OF_LOG).await?;
        let began = Instant::now();
        loop {
            let (replayed, found) = position(&self.pool, REPLAYED).await?;
            let missing = end.unwrap_or_default() - replayed.ok_or(NotCurrent::NoReplica)?;
            if found != installation {
                return Err(NotCurrent::Foreign);
            }
            if missing <= 0 {
                return Ok(());
            }
            if began.elapsed() >= PATIENCE {
                return Err(NotCurrent::Behind(missing));
            }
            sleep(ASK_EVERY).await;
        }
    }
}

/// A position in the log, and the id of the installation.
async fn position(server: &PgPool, sql: &'static str) -> Result<(Option<i64>, [u8; 16]), sqlx::Error> {
    let row = sqlx::query(sql).fetch_one(server).await?;
    let read = |row: &PgRow| -> Read<_> { Ok((row.optional_int(0)?, row.id(1)?)) };
    Ok(read(&row)?)
}
