//! Errors of statements, on the writer's connection and on the readers', and of the opening of a file.

use std::{
    io,
    path::{Path, PathBuf},
};

use weir_sealing::{KeyId, Unopened};
use weir_store::{Obstacle, StoreError, rows::Corrupt};

/// Why a statement failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Writer(#[from] rusqlite::Error),
    #[error(transparent)]
    Reader(#[from] sqlx::Error),
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    #[error(transparent)]
    Sealed(#[from] Unopened),
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

    /// What keeps SQLite from writing, if that is the error.
    pub(crate) fn obstacle(&self) -> Option<Obstacle> {
        self.extended_code().and_then(obstacle)
    }

    /// Whether the disk failed to sync.
    pub(crate) fn is_failed_sync(&self) -> bool {
        // SQLITE_IOERR_FSYNC
        self.extended_code() == Some(10 | 4 << 8)
    }
}

/// An obstacle of the disk may be removed, and a file that is locked may be unlocked. Any other error would occur again.
impl From<Error> for StoreError {
    fn from(error: Error) -> Self {
        let reason = error.to_string();
        if let Error::Sealed(unopened) = error {
            return Self::Sealed(unopened);
        }
        let is_temporary = match &error {
            Error::Reader(
                sqlx::Error::Io(_) | sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed | sqlx::Error::WorkerCrashed,
            ) => true,
            // SQLITE_BUSY, LOCKED, CANTOPEN.
            error => matches!(error.sqlite_code(), Some(5 | 6 | 14)),
        };
        match error.obstacle() {
            Some(obstacle) => Self::CannotWrite { obstacle, reason },
            None if is_temporary => Self::Unavailable(reason),
            None => Self::Failed(reason),
        }
    }
}

/// Why a file could not be opened. Each message names the setting and a remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error(
        "database_url: the directory {} does not exist; create it, or name another file",
        .directory.display()
    )]
    NoDirectory { directory: PathBuf },
    #[error(
        "database_url: {} cannot be written ({source}); give the user Weir runs as the right to write it and its directory, \
         or name another file",
        .path.display()
    )]
    NotWritable { path: PathBuf, source: io::Error },
    #[error(
        "database_url: the disk of {} is full; free some space, or name a file on another disk", .path.display()
    )]
    DiskFull { path: PathBuf },
    #[error(
        "database_url: the disk of {} is read-only; make it writable, or name a file on another disk", .path.display()
    )]
    ReadOnlyDisk { path: PathBuf },
    #[error(
        "database_url: every user of this machine can use the files of {}, and with them the API keys and the secrets of \
         destinations; run `chmod 600 {files}`",
        .path.display()
    )]
    OpenToOthers { path: PathBuf, files: String },
    #[error(
        "database_url: {} is in use by another Weir (the lock of {} is held); stop that one, or name another file. For \
         several processes on one database use PostgreSQL",
        .path.display(), .lock.display()
    )]
    InUse { path: PathBuf, lock: PathBuf },
    #[error(
        "encryption_keys: rows of {} are sealed with the key {key}, which WEIR_ENCRYPTION_KEYS does not have; add that key \
         behind the others (docs/operations/encryption.md). Nothing was changed",
        .path.display()
    )]
    KeyMissing { path: PathBuf, key: KeyId },
    #[error("database_url: {} is not a SQLite database; name another file, or move this one away", .path.display())]
    NotADatabase { path: PathBuf },
    #[error(
        "database_url: {} was written by a newer Weir (schema {found}, this one knows {known}); start that version or a \
         later one, or restore the backup made before the upgrade",
        .path.display()
    )]
    NewerSchema { path: PathBuf, found: i64, known: i64 },
    #[error(
        "database_url: the schema of {} was changed by hand (migration {version} differs); restore a backup, or name \
         another file",
        .path.display()
    )]
    ForeignSchema { path: PathBuf, version: i64 },
    #[error("database_url: {} cannot be opened: {reason}; check the file with `sqlite3 … 'PRAGMA integrity_check'`, or name another", .path.display())]
    Failed { path: PathBuf, reason: String },
}

impl OpenError {
    /// The error of a file that cannot be made, opened or locked.
    pub(crate) fn unwritable(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::DiskFull { path },
            io::ErrorKind::ReadOnlyFilesystem => Self::ReadOnlyDisk { path },
            _ => Self::NotWritable { path, source },
        }
    }
}

/// The obstacle that an extended result code reports.
fn obstacle(code: u32) -> Option<Obstacle> {
    match (code & 0xff, code >> 8) {
        // SQLITE_FULL, and SQLITE_IOERR_SHMSIZE: there is no room for the index of the log.
        (13, _) | (10, 19) => Some(Obstacle::DiskFull),
        // Other kinds of SQLITE_IOERR.
        (10, _) => Some(Obstacle::DiskFails),
        // SQLITE_READONLY_DBMOVED.
        (8, 4) => Some(Obstacle::FileGone),
        // Other kinds of SQLITE_READONLY.
        (8, _) => Some(Obstacle::ReadOnly),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;

    #[test]
    fn an_error_of_the_disk_names_the_obstacle() {
        let table = [
            (ffi::SQLITE_FULL, Some(Obstacle::DiskFull)),
            (ffi::SQLITE_IOERR_SHMSIZE, Some(Obstacle::DiskFull)),
            (ffi::SQLITE_IOERR_WRITE, Some(Obstacle::DiskFails)),
            (ffi::SQLITE_READONLY, Some(Obstacle::ReadOnly)),
            (ffi::SQLITE_READONLY_DBMOVED, Some(Obstacle::FileGone)),
            (ffi::SQLITE_BUSY, None),
            (ffi::SQLITE_CONSTRAINT, None),
        ];
        for (code, expected) in table {
            let error = Error::Writer(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None));
            let found = match StoreError::from(error) {
                StoreError::CannotWrite { obstacle, .. } => Some(obstacle),
                StoreError::Unavailable(_) | StoreError::Sealed(_) | StoreError::Failed(_) => None,
            };
            assert_eq!(found, expected, "{code}");
        }
    }
}
