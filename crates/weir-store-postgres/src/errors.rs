//! The meaning of database errors for the caller: retry at once, retry later, or do not retry.

use sqlx::{error::DatabaseError, postgres::PgDatabaseError};
use weir_sealing::Unopened;
use weir_store::{Obstacle, StoreError};

/// How often an operation with conflicts runs before its caller gets the error.
pub(crate) const ATTEMPTS: u32 = 5;

fn code(error: &dyn DatabaseError) -> &str {
    error.try_downcast_ref::<PgDatabaseError>().map_or("", PgDatabaseError::code)
}

/// Transient errors are an obstacle to writing, a lost connection, a server that has no capacity left, and conflicts.
/// Every other error would occur again.
pub(crate) fn store_error(error: &sqlx::Error) -> StoreError {
    if let sqlx::Error::Decode(error) = error
        && let Some(unopened) = error.downcast_ref::<Unopened>()
    {
        return StoreError::Sealed(*unopened);
    }
    let reason = reason(error);
    let is_transient = match error {
        sqlx::Error::Database(database) => {
            conflicts(error)
                || match code(database.as_ref()) {
                    // A session that was idle in a transaction and was ended. A lock that was not available.
                    "25P03" | "55P03" => true,
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
    match obstacle(error) {
        Some(obstacle) => StoreError::CannotWrite { obstacle, reason },
        None if is_transient => StoreError::Unavailable(reason),
        None => StoreError::Failed(reason),
    }
}

/// The error for people. A port without a server behind it closes the connection at once (a load balancer, a proxy, a
/// service without endpoints), and the library calls that unexpected data.
fn reason(error: &sqlx::Error) -> String {
    let text = error.to_string();
    if text.contains("unexpected response from SSLRequest: 0x00") {
        return "the connection was closed at once: there is no PostgreSQL behind this address at present".to_owned();
    }
    text
}

/// What keeps the server from writing, if that is the error.
pub(crate) fn obstacle(error: &sqlx::Error) -> Option<Obstacle> {
    let sqlx::Error::Database(database) = error else { return None };
    match code(database.as_ref()) {
        // A standby, which may become the primary, or a server or database that was set to read-only transactions.
        "25006" => Some(Obstacle::ReadOnly),
        "53100" => Some(Obstacle::DiskFull),
        "58030" => Some(Obstacle::DiskFails),
        _ => None,
    }
}

/// Whether the operation conflicted with another one, so that an immediate retry is expected to succeed: a deadlock, a
/// serialization failure, an idempotency key that another process stored meanwhile, or a partition that it dropped.
pub(crate) fn conflicts(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    let key_exists = || database.constraint() == Some("idempotency_keys_pkey");
    matches!(code(database.as_ref()), "40001" | "40P01") || key_exists() || lacks_partition(error)
}

/// Whether a row had no partition. PostgreSQL reports this as a check violation without a constraint name.
pub(crate) fn lacks_partition(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    code(database.as_ref()) == "23514" && database.constraint().is_none()
}

/// Whether the table to drop is in use, or a statement of that transaction took too long, so that it can be dropped later.
pub(crate) fn is_in_use(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    matches!(code(database.as_ref()), "55P03" | "55006" | "40P01" | "57014")
}

/// Whether the connection can still be used after this error: the statement was refused for its data, a constraint or a
/// conflict.
pub(crate) fn leaves_connection_sound(error: &sqlx::Error) -> bool {
    let sqlx::Error::Database(database) = error else { return false };
    ["22", "23", "40"].contains(&code(database.as_ref()).get(..2).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_port_without_a_server_behind_it_is_named() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        // A proxy that takes connections and has nothing to forward them to.
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut asked = [0; 8];
                let _ = tokio::io::AsyncReadExt::read_exact(&mut socket, &mut asked).await;
            }
        });
        let url = format!("postgres://weir@127.0.0.1:{port}/weir");
        let error = <sqlx::PgConnection as sqlx::Connection>::connect(&url).await.unwrap_err();
        let StoreError::Unavailable(reason) = store_error(&error) else { panic!("{error:?}") };
        assert!(reason.contains("there is no PostgreSQL behind this address"), "{reason}");
    }
}
