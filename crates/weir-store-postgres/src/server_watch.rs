//! Whether the address of the database still leads to the server that the connections of this process have.
//!
//! After a promotion the address moves to the new primary. If the old one lives on, open connections would stay there for
//! as long as they work, and what it acknowledges is not in the new one. So a new connection asks now and then which
//! server it has reached. If it is another one, the older connections are closed before their next use.

use parking_lot::Mutex;
use sqlx::{Connection as _, postgres::PgConnectOptions};
use tokio::time::Instant;

use crate::writer::connect;

/// Two servers never start in the same microsecond, and after a restart no older connection is left. A server in recovery
/// takes no writes, so the connections stay where they are until it is promoted.
const WHICH_SERVER: &str = "SELECT pg_postmaster_start_time()::text, pg_is_in_recovery()";

#[derive(Debug, Default)]
pub(crate) struct ServerWatch {
    /// The start of the server that was reached last.
    started: Mutex<Option<String>>,
    /// When another server was found last.
    moved_at: Mutex<Option<Instant>>,
}

impl ServerWatch {
    /// Whether a connection that was opened then leads to a server that the address has left.
    pub(crate) fn has_left(&self, opened_at: Option<Instant>) -> bool {
        let moved_at = *self.moved_at.lock();
        moved_at.is_some_and(|moved_at| opened_at.is_none_or(|opened_at| opened_at < moved_at))
    }

    /// Looks with a new connection. Returns whether the address leads to another server than before.
    pub(crate) async fn look(&self, options: &PgConnectOptions) -> Result<bool, sqlx::Error> {
        let mut connection = connect(options).await?;
        let (started, is_standby): (String, bool) = sqlx::query_as(WHICH_SERVER).fetch_one(&mut connection).await?;
        connection.close().await?;
        if is_standby {
            return Ok(false);
        }
        let before = self.started.lock().replace(started.clone());
        let has_moved = before.is_some_and(|before| before != started);
        if has_moved {
            *self.moved_at.lock() = Some(Instant::now());
            tracing::warn!(
                "the address of the database leads to another server, or to one that has restarted; older connections are \
                 closed. After a promotion keep the former server stopped: what it accepts is not in this one"
            );
        }
        Ok(has_moved)
    }
}
