//! A copy of a database while Weir runs.
//!
//! The copy is one snapshot: a read transaction holds it, so commits that come meanwhile are not in the copy and do not
//! start it again. Pages are copied in steps of a few MiB. While the snapshot is held, the log of the database grows by
//! what is committed, and Weir reuses it afterwards.
//!
//! ```text
//! NAME.part (of its owner alone) ──copied──▶ checked by SQLite ──▶ on disk ──renamed──▶ NAME
//! ```
//!
//! A copy that fails or is interrupted leaves nothing behind, and never replaces a file.

use std::{
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rusqlite::{
    Connection, OpenFlags,
    backup::{Backup, StepResult},
};

use crate::{SqliteStore, error::OpenError, files};

/// Pages of a step: 8 MiB with the usual pages of 4 KiB. After each step the copy can be interrupted.
const PAGES_PER_STEP: i32 = 2_048;
/// How long SQLite waits for a lock that another program holds.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a step that found a lock is tried again.
const LOCKED_STEPS: u32 = 50;
const LOCKED_PAUSE: Duration = Duration::from_millis(100);

/// What a backup holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackedUp {
    pub bytes: u64,
}

/// Why there is no backup.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error(transparent)]
    Source(#[from] OpenError),
    #[error("there is no database {}; name the file that `weir serve` uses (WEIR_DATABASE_URL)", .path.display())]
    Missing { path: PathBuf },
    #[error("{} exists already; a backup replaces no file, so name another one", .path.display())]
    Exists { path: PathBuf },
    #[error("cannot write {} ({source}); free space, or name another folder", .path.display())]
    Unwritable { path: PathBuf, source: io::Error },
    #[error("cannot read {} ({reason})", .path.display())]
    Unreadable { path: PathBuf, reason: String },
    #[error(
        "the copy of {} is damaged ({reason}), and so is perhaps the database itself: check it with `PRAGMA integrity_check`, \
         and keep the backups that you have",
        .path.display()
    )]
    Damaged { path: PathBuf, reason: String },
    #[error("the backup was interrupted; nothing is left of it")]
    Interrupted,
}

impl SqliteStore {
    /// Copies a database, which another process may have open, into a new file, and checks the copy. Blocks the thread.
    /// `interrupted` is asked between the steps.
    pub fn back_up(from: &Path, into: &Path, interrupted: &dyn Fn() -> bool) -> Result<BackedUp, BackupError> {
        let directory = from.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            return Err(OpenError::NoDirectory { directory: directory.to_owned() }.into());
        }
        if !from.is_file() {
            return Err(BackupError::Missing { path: from.to_owned() });
        }
        if into.exists() {
            return Err(BackupError::Exists { path: into.to_owned() });
        }
        let part = Part::create(into)?;
        copy(from, &part.0, interrupted)?;
        check(from, &part.0, interrupted)?;
        part.complete(into)
    }
}

/// An incomplete copy, which is removed unless it is completed.
struct Part(PathBuf);

impl Part {
    fn create(into: &Path) -> Result<Self, BackupError> {
        let mut name = into.as_os_str().to_owned();
        name.push(".part");
        let part = Self(PathBuf::from(name));
        // A process that was killed may have left one.
        let _ = fs::remove_file(&part.0);
        files::create(&part.0).map_err(|source| BackupError::Unwritable { path: into.to_owned(), source })?;
        Ok(part)
    }

    /// Writes the copy and its name to the disk.
    fn complete(self, into: &Path) -> Result<BackedUp, BackupError> {
        let written = || -> io::Result<u64> {
            let file = File::open(&self.0)?;
            file.sync_all()?;
            // Fails if the name was taken meanwhile: a rename would replace that file.
            fs::hard_link(&self.0, into)?;
            let folder = into.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            File::open(folder)?.sync_all()?;
            Ok(file.metadata()?.len())
        };
        let bytes = written().map_err(|source| BackupError::Unwritable { path: into.to_owned(), source })?;
        Ok(BackedUp { bytes })
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        for suffix in ["", "-journal", "-wal", "-shm"] {
            let mut name = self.0.as_os_str().to_owned();
            name.push(suffix);
            let _ = fs::remove_file(name);
        }
    }
}

fn copy(from: &Path, part: &Path, interrupted: &dyn Fn() -> bool) -> Result<(), BackupError> {
    let unreadable = |error: rusqlite::Error| unreadable(from, &error);
    let unwritable = |error: &rusqlite::Error| BackupError::Unwritable {
        path: part.to_owned(),
        source: io::Error::other(error.to_string()),
    };
    // Readers write the index of the log, so the file is not opened read-only. Nothing is written into it.
    let source = Connection::open_with_flags(from, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(unreadable)?;
    source.busy_timeout(BUSY_TIMEOUT).map_err(unreadable)?;
    // A transaction reads its snapshot with its first statement.
    source.execute_batch("BEGIN; SELECT count(*) FROM sqlite_schema;").map_err(|error| {
        if is_no_database(&error) {
            OpenError::NotADatabase { path: from.to_owned() }.into()
        } else {
            unreadable(error)
        }
    })?;
    let mut target =
        Connection::open_with_flags(part, OpenFlags::SQLITE_OPEN_READ_WRITE).map_err(|error| unwritable(&error))?;
    // The file is synced once, when it is complete.
    target.execute_batch("PRAGMA synchronous = OFF; PRAGMA journal_mode = OFF;").map_err(|error| unwritable(&error))?;
    {
        let backup = Backup::new(&source, &mut target).map_err(unreadable)?;
        let mut locked = 0;
        loop {
            if interrupted() {
                return Err(BackupError::Interrupted);
            }
            match backup.step(PAGES_PER_STEP) {
                Ok(StepResult::Done) => break,
                Ok(StepResult::Busy | StepResult::Locked) if locked < LOCKED_STEPS => {
                    locked += 1;
                    thread::sleep(LOCKED_PAUSE);
                }
                Ok(StepResult::More) => locked = 0,
                Ok(_) => {
                    return Err(BackupError::Unreadable { path: from.to_owned(), reason: "it is locked".to_owned() });
                }
                // SQLITE_FULL
                Err(error) if code(&error) == Some(13) => return Err(unwritable(&error)),
                Err(error) => return Err(unreadable(error)),
            }
        }
    }
    target.close().map_err(|(_, error)| unwritable(&error))
}

/// Lets SQLite check every page and every index of the copy.
fn check(from: &Path, part: &Path, interrupted: &dyn Fn() -> bool) -> Result<(), BackupError> {
    let damaged = |reason: String| BackupError::Damaged { path: from.to_owned(), reason };
    // Immutable: the check makes no files beside the copy.
    let uri = format!("file:{}?immutable=1", encoded(part));
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_URI;
    let checked = Connection::open_with_flags(uri, flags)
        .and_then(|copy| copy.query_row("PRAGMA integrity_check(1)", [], |row| row.get::<_, String>(0)));
    match checked {
        _ if interrupted() => Err(BackupError::Interrupted),
        Ok(answer) if answer == "ok" => Ok(()),
        Ok(answer) => Err(damaged(answer)),
        Err(error) => Err(damaged(error.to_string())),
    }
}

/// A path in a URI of SQLite.
fn encoded(path: &Path) -> String {
    path.to_string_lossy().replace('%', "%25").replace('?', "%3f").replace('#', "%23")
}

fn unreadable(path: &Path, error: &rusqlite::Error) -> BackupError {
    BackupError::Unreadable { path: path.to_owned(), reason: error.to_string() }
}

fn code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code & 0xff)
}

fn is_no_database(error: &rusqlite::Error) -> bool {
    // SQLITE_NOTADB
    code(error) == Some(26)
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::PermissionsExt as _,
        sync::atomic::{AtomicI64, Ordering},
    };

    use tempfile::TempDir;

    use super::*;

    /// A database with a log, as Weir leaves it while it runs, of several steps.
    fn database(rows: u32) -> (TempDir, PathBuf, Connection) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weir.db");
        let connection = Connection::open(&path).unwrap();
        connection
            .execute_batch("PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE t (n INTEGER PRIMARY KEY, text)")
            .unwrap();
        let insert =
            "INSERT INTO t (text) WITH RECURSIVE many(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM many WHERE n < ?)
            SELECT hex(randomblob(500)) FROM many";
        connection.execute(insert, [rows]).unwrap();
        (folder, path, connection)
    }

    fn count(path: &Path) -> i64 {
        Connection::open(path).unwrap().query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap()
    }

    #[test]
    fn commits_during_a_backup_are_not_in_it_and_do_not_start_it_again() {
        let (folder, path, connection) = database(20_000);
        let steps = AtomicI64::new(0);
        let commit = || {
            steps.fetch_add(1, Ordering::Relaxed);
            connection.execute("INSERT INTO t (text) VALUES ('later')", []).unwrap();
            false
        };
        let into = folder.path().join("copy.db");
        let backed_up = SqliteStore::back_up(&path, &into, &commit).unwrap();
        let steps = steps.into_inner();
        assert!((3..=12).contains(&steps), "{steps} steps for {} bytes", backed_up.bytes);
        // The snapshot is older than the first step.
        assert_eq!(count(&into), 20_000);
        assert_eq!(count(&path), 20_000 + steps);
        assert_eq!(backed_up.bytes, fs::metadata(&into).unwrap().len());
    }

    #[test]
    fn a_backup_is_one_file_that_only_its_owner_can_read() {
        let (folder, path, _running) = database(10);
        SqliteStore::back_up(&path, &folder.path().join("copy.db"), &|| false).unwrap();
        let mode = fs::metadata(folder.path().join("copy.db")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|file| file.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["copy.db", "weir.db", "weir.db-shm", "weir.db-wal"]);
    }

    #[test]
    fn an_interrupted_backup_leaves_nothing() {
        let (folder, path, _running) = database(20_000);
        let into = folder.path().join("copy.db");
        let refused = SqliteStore::back_up(&path, &into, &|| true);
        assert!(matches!(refused, Err(BackupError::Interrupted)), "{refused:?}");
        assert!(!into.exists() && !folder.path().join("copy.db.part").exists());
    }

    #[test]
    fn a_damaged_database_gives_no_backup() {
        let (folder, path, connection) = database(2_000);
        connection.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").unwrap();
        drop(connection);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2 / 4_096 * 4_096;
        bytes[middle..middle + 4_096].fill(0xff);
        fs::write(&path, bytes).unwrap();
        let into = folder.path().join("copy.db");
        let refused = SqliteStore::back_up(&path, &into, &|| false);
        assert!(matches!(refused, Err(BackupError::Damaged { .. })), "{refused:?}");
        assert!(!into.exists());
    }

    #[test]
    fn a_backup_replaces_no_file_and_needs_a_database() {
        let (folder, path, _running) = database(1);
        let at = |name: &str| folder.path().join(name);
        fs::write(at("kept"), "precious").unwrap();
        let back_up = |from: &Path, into: &str| SqliteStore::back_up(from, &at(into), &|| false);
        assert!(matches!(back_up(&path, "kept"), Err(BackupError::Exists { .. })));
        assert_eq!(fs::read(at("kept")).unwrap(), b"precious");
        assert!(matches!(back_up(&at("none"), "copy"), Err(BackupError::Missing { .. })));
        assert!(matches!(back_up(&at("kept"), "copy"), Err(BackupError::Source(OpenError::NotADatabase { .. }))));
        assert!(matches!(back_up(&at("no/file"), "copy"), Err(BackupError::Source(OpenError::NoDirectory { .. }))));
        assert!(matches!(back_up(&path, "no/copy"), Err(BackupError::Unwritable { .. })));
        assert!(!at("copy").exists() && !at("copy.part").exists());
    }
}
