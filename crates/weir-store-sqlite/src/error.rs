//! Errors of statements, on the writer's connection and on the readers'.

use weir_store::{StoreError, rows::Corrupt};

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Writer(#[from] rusqlite::Error),
    #[error(transparent)]
    Reader(#[from] sqlx::Error),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error("a value cannot be written: {0}")]
    Unwritable(#[from] serde_json::Error),
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The extended result code of SQLite, where the error is one of its own.
    fn extended_code(&self) -> Option<u32> {
        match self {
            Self::Writer(error) => error.sqlite_error().map(|error| error.extended_code.unsigned_abs()),
            Self::Reader(sqlx::Error::Database(error)) => error.code().and_then(|code| code.parse().ok()),
            _ => None,
        }
    }

    /// The primary result code of SQLite, where the error is one of its own.
    pub(crate) fn sqlite_code(&self) -> Option<u32> {
        self.extended_code().map(|code| code & 0xff)
    }

    /// Whether the disk failed to sync.
    pub(crate) fn is_failed_sync(&self) -> bool {
        // SQLITE_IOERR_FSYNC
        self.extended_code() == Some(10 | 4 << 8)
    }
}

/// A busy, full or unreadable disk may recover. Any other error would occur again.
impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        let is_temporary = match &error {
            Error::Reader(
                sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed,
            ) => true,
            // SQLITE_BUSY, LOCKED, READONLY, IOERR, FULL, CANTOPEN.
            error => matches!(error.sqlite_code(), Some(5 | 6 | 8 | 10 | 13 | 14)),
        };
        if is_temporary { Self::Unavailable(error.to_string()) } else { Self::Failed(error.to_string()) }
    }
}
