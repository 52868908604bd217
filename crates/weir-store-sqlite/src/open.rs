//! Opening a file: the lock beside it, the connections, the schema, the destinations into memory.

use std::{
    fs::{File, OpenOptions, TryLockError},
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use rusqlite::{Connection, OpenFlags};
use sqlx::{
    ConnectOptions as _, Connection as _,
    migrate::MigrateError,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use weir_store::FastPathHandle;

use crate::{
    SqliteStore,
    cache::DestinationCache,
    destinations,
    error::Error,
    group::Operation,
    lines, schema,
    writer::{self, Commit, Opened},
};

/// SQLite waits so long for another program that holds the file (a backup, a shell) before it gives up.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Page caches, in KiB. The writer touches the ends of a dozen trees; the readers are for people.
const WRITER_CACHE_KIB: u32 = 16 * 1024;
const READER_CACHE_KIB: u32 = 2 * 1024;
const READERS: u32 = 4;
/// Statements the writer keeps prepared: each batch in each of its sizes.
const WRITER_STATEMENTS: usize = 256;
const WAL_SIZE_LIMIT_BYTES: u32 = 64 * 1024 * 1024;
/// An engine that was just told to stop may need a moment to let go of the file.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(100);

/// Why a file could not be opened. Each says which setting to look at and what to do.
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
        "database_url: {} is in use by another Weir (its lock {} is held); stop that one, or name another file. For several \
         processes on one database use PostgreSQL",
        .path.display(), .lock.display()
    )]
    InUse { path: PathBuf, lock: PathBuf },
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

/// SQLite's write-ahead log of a file.
fn log_of(path: &Path) -> PathBuf {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    log.into()
}

impl SqliteStore {
    /// Opens the file, makes it if it is not there, and brings its schema up to date.
    pub async fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_committing(path, Box::new(|connection| connection.execute_batch("COMMIT"))).await
    }

    /// With another way to end a transaction.
    pub(crate) async fn open_committing(path: &Path, commit: Commit) -> Result<Self, OpenError> {
        let lock = lock(path).await?;
        migrate_file(path).await?;
        let connection = writing_connection(path).map_err(|error| classify(path, &error.into()))?;
        let loaded = destinations::load(&connection).map_err(|error| classify(path, &error))?;
        let destinations = Arc::new(DestinationCache::new(loaded));
        let last_place = message_groups::load(&connection).map_err(|error| classify(path, &error))?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .min_connections(1)
            // A connection in this process does not go stale, and the ping would cost a thread switch for each read.
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options(path).read_only(true))
            .await
            .map_err(|error| classify(path, &error.into()))?;
        let checkpointing = writing_connection(path).map_err(|error| classify(path, &error.into()))?;
        let fast_path = FastPathHandle::default();
        let opened = Opened {
            connection,
            checkpointing,
            commit,
            destinations: Arc::clone(&destinations),
            last_place,
            fast_path: fast_path.clone(),
        };
        let (operations, writer) = writer::spawn(opened, lock);
        let log = log_of(path);
        Ok(Self { operations, writer: Some(writer).into(), readers, destinations, fast_path, log })
    }

    /// The size of the write-ahead log, in bytes; 0 when there is none.
    pub fn wal_bytes(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |log| log.len())
    }

    /// Brings the schema of a file up to date without running anything on it. Answers the versions and descriptions of
    /// the migrations that were applied.
    pub async fn migrate(path: &Path) -> Result<Vec<(i64, String)>, OpenError> {
        let _lock = lock(path).await?;
        migrate_file(path).await
    }

    /// Finishes what was asked so far, copies the WAL into the file and lets go of it. Later calls are refused.
    pub async fn close(&self) {
        // The readers first: the last connection to close is the one that clears the WAL away.
        self.readers.close().await;
        let writer = self.writer.lock().ok().and_then(|mut writer| writer.take());
        let Some(writer) = writer else { return };
        // Fails only when the writer has ended already.
        let _ = self.operations.send(Operation::Close).await;
        if let Err(error) = writer.await {
            tracing::error!(%error, "the writer ended early; the next start recovers the database");
        }
    }
}

fn options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .busy_timeout(BUSY_TIMEOUT)
        .foreign_keys(false)
        .pragma("cache_size", format!("-{READER_CACHE_KIB}"))
        // Reads of a mapped file would count as resident memory, and an I/O error would be a signal.
        .pragma("mmap_size", "0")
        .pragma("temp_store", "MEMORY")
        .disable_statement_logging()
}

/// The path of a file that belongs to another.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(suffix);
    PathBuf::from(beside)
}

/// The writer's connection. It is used by one thread at a time, so SQLite needs no locks of its own. Which commits wait for the disk is
/// the writer's to say; checkpoints do, and the first commit after one.
fn writing_connection(path: &Path) -> rusqlite::Result<Connection> {
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(WRITER_STATEMENTS);
    connection.execute_batch(&format!(
        "PRAGMA synchronous = NORMAL;
        PRAGMA cache_size = -{WRITER_CACHE_KIB};
        PRAGMA mmap_size = 0;
        PRAGMA temp_store = MEMORY;
        PRAGMA wal_autocheckpoint = 0;
        PRAGMA journal_size_limit = {WAL_SIZE_LIMIT_BYTES};"
    ))?;
    Ok(connection)
}

/// Makes the file if it is not there, and brings its schema up to date. Answers what was applied.
async fn migrate_file(path: &Path) -> Result<Vec<(i64, String)>, OpenError> {
    let unopened = |error: sqlx::Error| classify(path, &error.into());
    let options =
        options(path).create_if_missing(true).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
    let mut connection = options.connect().await.map_err(unopened)?;
    let applied = schema::migrate(&mut connection).await.map_err(|error| match error {
        MigrateError::VersionMissing(found) => {
            OpenError::NewerSchema { path: path.to_owned(), found, known: schema::latest() }
        }
        MigrateError::VersionMismatch(version) => OpenError::ForeignSchema { path: path.to_owned(), version },
        MigrateError::Execute(error) => unopened(error),
        other => OpenError::Failed { path: path.to_owned(), reason: other.to_string() },
    })?;
    connection.close().await.map_err(unopened)?;
    Ok(applied)
}

fn classify(path: &Path, error: &Error) -> OpenError {
    let path = path.to_owned();
    match error.sqlite_code() {
        // SQLITE_NOTADB
        Some(26) => OpenError::NotADatabase { path },
        // SQLITE_READONLY, SQLITE_CANTOPEN
        Some(8 | 14) => OpenError::NotWritable { path, source: io::Error::other(error.to_string()) },
        _ => OpenError::Failed { path, reason: error.to_string() },
    }
}

/// The lock of a file: `<file>.lock` beside it, because SQLite's own locks come and go with its transactions. The kernel
/// releases it with the process, so a leftover file locks nobody out.
async fn lock(path: &Path) -> Result<File, OpenError> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !directory.is_dir() {
        return Err(OpenError::NoDirectory { directory: directory.to_owned() });
    }
    if path.is_dir() {
        return Err(OpenError::NotADatabase { path: path.to_owned() });
    }
    let lock_path = beside(path, ".lock");
    let unwritable = |source| OpenError::NotWritable { path: path.to_owned(), source };
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&lock_path).map_err(unwritable)?;
    for _ in 1..LOCK_ATTEMPTS {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::Error(source)) => return Err(unwritable(source)),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(LOCK_PAUSE).await,
        }
    }
    file.try_lock().map_err(|_| OpenError::InUse { path: path.to_owned(), lock: lock_path })?;
    Ok(file)
}
