//! Opens a file: takes its lock, migrates its schema, connects, and loads the destinations into the cache.

use std::{
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

use weir_sealing::Keyring;
use weir_store::{FastPathHandle, Obstacle, SharedDestinationLimits, WriteFailures, sealing::missing_key};

use crate::{
    SqliteStore,
    cache::DestinationCache,
    commit_batch::Operation,
    destinations,
    error::{Error, OpenError},
    files::DatabaseFiles,
    message_groups, schema, sealing_keys,
    writer::{self, Commit, WriterSetup},
};

/// How long SQLite waits for another program that has locked the file (a backup, a shell).
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Page caches, in KiB. The writer mostly writes at the ends of a dozen trees; the readers mostly serve the API.
const WRITER_CACHE_KIB: u32 = 16 * 1024;
const READER_CACHE_KIB: u32 = 2 * 1024;
const READERS: u32 = 4;
/// Rows that a reader's thread hands over before it waits for their reader. With the default of 50 the two threads spend
/// most of the time of a long result waiting for each other.
const ROWS_BUFFERED: usize = 1_000;
/// The number of statements that the writer keeps prepared: each batch in each of its sizes.
const WRITER_STATEMENTS: usize = 256;
const WAL_SIZE_LIMIT_BYTES: u32 = 64 * 1024 * 1024;

impl SqliteStore {
    /// Opens the file, creates it if it is missing, and migrates its schema.
    pub async fn open(path: &Path) -> Result<Self, OpenError> {
        Self::open_with_keys(path, Keyring::default()).await
    }

    /// Like [`Self::open`], with the keys of sealed rows.
    pub async fn open_with_keys(path: &Path, keyring: Keyring) -> Result<Self, OpenError> {
        let commit: Commit = Box::new(|connection| connection.execute_batch("COMMIT"));
        Self::open_committing(path, keyring, commit).await
    }

    /// Opens the file with another way to commit a transaction, for tests.
    pub(crate) async fn open_committing(path: &Path, keyring: Keyring, commit: Commit) -> Result<Self, OpenError> {
        // Lock the files before anything is read or changed: another Weir may have them open.
        let mut files = DatabaseFiles::lock(path).await?;
        let path = &files.path().to_owned();
        migrate_file(path).await?;
        // Load what the writer keeps in memory: the destinations, and the last position in any message group.
        let connection = writing_connection(path).map_err(|error| classify(path, &error.into()))?;
        let known = sealing_keys::keys(&connection).map_err(|error| classify(path, &error))?;
        if let Some(key) = missing_key(&known, &keyring) {
            return Err(OpenError::KeyMissing { path: path.to_owned(), key });
        }
        if !keyring.is_empty() {
            // What this process deletes or seals is not to stay in free pages.
            connection.pragma_update(None, "secure_delete", true).map_err(|error| classify(path, &error.into()))?;
        }
        if let Some(key) = keyring.first_id().filter(|key| !known.contains(key)) {
            sealing_keys::add_key(&connection, key).map_err(|error| classify(path, &error))?;
        }
        let keyring = Arc::new(keyring);
        let loaded = destinations::load(&connection, &keyring).map_err(|error| classify(path, &error))?;
        let destinations = Arc::new(DestinationCache::new(loaded));
        let last_group_position = message_groups::load(&connection).map_err(|error| classify(path, &error))?;
        // Readers have connections of their own. With a write-ahead log they and the writer do not wait for each other.
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .min_connections(1)
            // A connection to a local file does not go stale, and a ping would cost a thread switch for each read.
            .test_before_acquire(false)
            .idle_timeout(None)
            .max_lifetime(None)
            .connect_with(options(path).read_only(true))
            .await
            .map_err(|error| classify(path, &error.into()))?;
        // Checkpoints have a connection of their own, so that the writer commits meanwhile.
        let checkpointing = writing_connection(path).map_err(|error| classify(path, &error.into()))?;
        // All files exist now, because the destinations were read.
        files.remember()?;
        let log = files.log();
        let (fast_path, limits) = (FastPathHandle::default(), SharedDestinationLimits::default());
        let write_failures = Arc::<WriteFailures>::default();
        let setup = WriterSetup {
            files,
            connection,
            checkpointing,
            write_failures: Arc::clone(&write_failures),
            commit,
            destinations: Arc::clone(&destinations),
            last_group_position,
            fast_path: fast_path.clone(),
            limits: limits.clone(),
            keyring: Arc::clone(&keyring),
        };
        let (operations, writer) = writer::spawn(setup);
        Ok(Self {
            operations,
            writer: Some(writer).into(),
            readers,
            past_reader: None.into(),
            destinations,
            fast_path,
            limits,
            write_failures,
            keyring,
            log,
            profile: None.into(),
        })
    }

    /// The size of the write-ahead log, in bytes; 0 when there is none.
    pub fn wal_bytes(&self) -> u64 {
        std::fs::metadata(&self.log).map_or(0, |log| log.len())
    }

    /// The size of the file, in bytes, without the write-ahead log.
    pub fn file_bytes(&self) -> u64 {
        std::fs::metadata(self.file()).map_or(0, |file| file.len())
    }

    /// The file, without the write-ahead log.
    pub(crate) fn file(&self) -> PathBuf {
        let log = self.log.as_os_str().to_string_lossy();
        log.strip_suffix("-wal").map(PathBuf::from).unwrap_or_default()
    }

    /// The folder that holds the file and its log.
    pub fn folder(&self) -> &Path {
        self.log.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
    }

    /// Migrates the schema of a file without opening a store. Returns the versions and descriptions of the applied
    /// migrations.
    pub async fn migrate(path: &Path) -> Result<Vec<(i64, String)>, OpenError> {
        let files = DatabaseFiles::lock(path).await?;
        migrate_file(files.path()).await
    }

    /// Commits the operations sent so far, copies the WAL into the file and closes it. Later calls are refused.
    pub async fn close(&self) {
        // Close the readers first, because the last connection to close removes the WAL.
        self.readers.close().await;
        self.past_reader.lock().take();
        let writer = self.writer.lock().take();
        let Some(writer) = writer else { return };
        // Fails only if the writer has already ended.
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
        // A mapped file would count as resident memory, and an I/O error would raise a signal.
        .pragma("mmap_size", "0")
        .pragma("temp_store", "MEMORY")
        .row_buffer_size(ROWS_BUFFERED)
        .disable_statement_logging()
}

/// The writer's connection. One thread at a time uses it, so SQLite needs no mutex. The writer decides which commits
/// wait for the disk; a checkpoint always waits, and so does the first commit after one.
pub(crate) fn writing_connection(path: &Path) -> rusqlite::Result<Connection> {
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

/// A connection for a long read on a thread of its own.
pub(crate) fn reading_connection(path: &Path) -> rusqlite::Result<Connection> {
    let connection =
        Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.execute_batch(&format!(
        "PRAGMA cache_size = -{READER_CACHE_KIB};
        PRAGMA mmap_size = 0;
        PRAGMA temp_store = MEMORY;"
    ))?;
    Ok(connection)
}

/// Migrates the schema of a file, which may be empty. Returns the applied migrations.
async fn migrate_file(path: &Path) -> Result<Vec<(i64, String)>, OpenError> {
    let unopened = |error: sqlx::Error| classify(path, &error.into());
    let options = options(path).journal_mode(SqliteJournalMode::Wal).synchronous(SqliteSynchronous::Full);
    let mut connection = options.connect().await.map_err(unopened)?;
    let applied = schema::migrate(&mut connection).await.map_err(|error| match error {
        MigrateError::VersionMissing(found) => {
            OpenError::NewerSchema { path: path.to_owned(), found, known: schema::MIGRATIONS.latest() }
        }
        MigrateError::VersionMismatch(version) => OpenError::ForeignSchema { path: path.to_owned(), version },
        MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => unopened(error),
        other => OpenError::Failed { path: path.to_owned(), reason: other.to_string() },
    })?;
    connection.close().await.map_err(unopened)?;
    Ok(applied)
}

pub(crate) fn classify(path: &Path, error: &Error) -> OpenError {
    let path = path.to_owned();
    match error.sqlite_code() {
        // SQLITE_NOTADB
        Some(26) => OpenError::NotADatabase { path },
        // SQLITE_READONLY, SQLITE_CANTOPEN
        Some(8 | 14) => OpenError::NotWritable { path, source: io::Error::other(error.to_string()) },
        _ if error.obstacle() == Some(Obstacle::DiskFull) => OpenError::DiskFull { path },
        _ => OpenError::Failed { path, reason: error.to_string() },
    }
}
