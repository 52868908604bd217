//! What an error of the database means for the one who asked: try again at once, try again later, or never.

use sqlx::{error::DatabaseError, postgres::PgDatabaseError};
use weir_store::StoreError;

/// How often an operation runs that others get in the way of, before its caller is told.
pub(crate) const ATTEMPTS: u32 = 5;

fn code(error: &dyn DatabaseError) -> &str {
    error.try_downcast_ref::<PgDatabaseError>().map_or("", PgDatabaseError::code)
}

/// A lost connection, a server that stops, starts or is full, and operations in each other's way may mend; anything else
/// will fail again.
pub(crate) fn store_error(error: &sqlx::Error) -> StoreError {
    let passing = match error {
        sqlx::Error::Database(database) => {
            conflicts(error)
                || match code(database.as_ref()) {
                    // Read-only transactions: a standby, perhaps soon a primary. Idle in transaction: cut off.
                    "25006" | "25P03" | "55P03" => true,
                    // Connection exceptions, insufficient resources, operator intervention, system errors.
                    code => ["08", "53", "57", "58"].contains(&code.get(..2).unwrap_or_default()),
                }
        }
        sqlx::Error::Io(_)
        | sqlx::Error::Tls(_)
        | sqlx::Error::Protocol(_)
        | sqlx::Error::PoolTimedOut
        | sqlx::Error::PoolClosed
        | sqlx::Error::BeginFailed
        | sqlx::Error::WorkerCrashed => true,
        _ => false,
    };
    if passing { StoreError::Unavailable(error.to_string()) } else { StoreError::Failed(error.to_string()) }
}

/// Whether others were in the way, so that the same again, at once, is expected to succeed: a deadlock, a serialization
/// failure, an idempotency key that another process stored meanwhile, or a partition that it dropped.
pub(crate) fn conflicts(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    let taken = || database.constraint() == Some("idempotency_keys_pkey");
    matches!(code(database.as_ref()), "40001" | "40P01") || taken() || lacks_partition(error)
}

/// Whether a row had no partition to go to. It is a check violation without the name of a check.
pub(crate) fn lacks_partition(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    code(database.as_ref()) == "23514" && database.constraint().is_none()
}

/// Whether what was to be dropped is in use: not now, then.
pub(crate) fn is_in_use(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    matches!(code(database.as_ref()), "55P03" | "55006")
}

/// Whether the connection is sound after this error: the statement was refused for its data, its constraints or a conflict.
pub(crate) fn leaves_connection_sound(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    ["22", "23", "40"].contains(&code(database.as_ref()).get(..2).unwrap_or_default())
}
