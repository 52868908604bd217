//! The files of a database: which process has them, who can read them, and whether they are still in place.
//!
//! SQLite keeps four files: the database, its log (`-wal`), the index of the log (`-shm`), and a lock file of Weir. The
//! last three get the name of the database without symbolic links, so two links to one file lead to one lock. Two hard
//! links do not, so the database itself is locked as well.
//!
//! SQLite goes on when its files are removed or replaced: it then writes into files that no later process finds. So the
//! files are compared with those that were opened before each commit.

use std::{
    fs::{self, File, Metadata, OpenOptions, TryLockError},
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::error::OpenError;

/// The files that belong to a database, by their suffix. The first one is the database.
const DATA: [&str; 3] = ["", "-wal", "-shm"];
const LOCK: &str = ".lock";
/// The first bytes of every database.
const MAGIC: &[u8; 16] = b"SQLite format 3\0";
/// A stopping engine may need a moment to release the file.
const LOCK_ATTEMPTS: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(100);
/// The rights of the owner, which every file of a database is made with: the digests of API keys and the secrets of
/// destinations are in it.
#[cfg(unix)]
const OWNER_ONLY: u32 = 0o600;

/// The locked files of one database. Dropped after every connection to them is closed.
#[derive(Debug)]
pub(crate) struct DatabaseFiles {
    /// Without symbolic links.
    path: PathBuf,
    /// The files as they were opened.
    opened: Vec<(PathBuf, Identity)>,
    /// Locks the name of the database. Also older versions of Weir take this lock, and no other.
    _name: File,
    /// Locks the database under all its names. SQLite loses its own locks when any descriptor of the database is closed
    /// in the process, so this one is opened before SQLite's and closed after them.
    _database: File,
}

impl DatabaseFiles {
    /// Creates the database if it is missing, and locks it, because SQLite holds its own locks only during transactions.
    /// The kernel releases the locks when the process ends, so a leftover lock file blocks no later start.
    pub(crate) async fn lock(path: &Path) -> Result<Self, OpenError> {
        let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !directory.is_dir() {
            return Err(OpenError::NoDirectory { directory: directory.to_owned() });
        }
        if path.is_dir() {
            return Err(OpenError::NotADatabase { path: path.to_owned() });
        }
        let unwritable = |source| OpenError::unwritable(path, source);
        if !path.exists() {
            create(path).map_err(unwritable)?;
        }
        let path = path.canonicalize().map_err(unwritable)?;
        let lock_path = beside(&path, LOCK);
        let name = locked(&path, &lock_path).await?;
        let mut database = open(&path).map_err(unwritable)?;
        if is_database(&mut database).map_err(unwritable)? {
            check_rights(&path)?;
        }
        // Elsewhere a lock of a whole file excludes the locks of its ranges that SQLite takes.
        if cfg!(target_os = "linux") {
            wait_for_lock(&database, &path, &path).await?;
        }
        Ok(Self { path, opened: Vec::new(), _name: name, _database: database })
    }

    /// The path of the database, without symbolic links.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the log.
    pub(crate) fn log(&self) -> PathBuf {
        beside(&self.path, "-wal")
    }

    /// Remembers the files, once SQLite has opened all of them.
    pub(crate) fn remember(&mut self) -> Result<(), OpenError> {
        let identified = DATA.map(|suffix| {
            let path = beside(&self.path, suffix);
            fs::metadata(&path).map(|metadata| (path, Identity::of(&metadata)))
        });
        self.opened = identified
            .into_iter()
            .collect::<io::Result<_>>()
            .map_err(|error| OpenError::Failed { path: self.path.clone(), reason: error.to_string() })?;
        Ok(())
    }

    /// The first file that was removed or replaced.
    pub(crate) fn gone(&self) -> Option<&Path> {
        let is_gone = |(path, identity): &&(PathBuf, Identity)| {
            // If the path cannot be read for another reason, the file may be in place; SQLite reports errors of the disk.
            fs::metadata(path).map_or_else(
                |error| matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory),
                |metadata| Identity::of(&metadata) != *identity,
            )
        };
        self.opened.iter().find(is_gone).map(|(path, _)| path.as_path())
    }
}

/// The file behind a path.
#[derive(Debug, PartialEq, Eq)]
struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt as _;
        Self { device: metadata.dev(), inode: metadata.ino() }
    }

    /// Elsewhere an open file can be neither removed nor replaced.
    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Self {
        Self { device: 0, inode: 0 }
    }
}

/// The path of a file next to another, with a suffix.
fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut beside = path.as_os_str().to_owned();
    beside.push(suffix);
    PathBuf::from(beside)
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open(path)
}

/// Opens a file, and makes one that only its owner can read if there is none. SQLite gives the log and its index the
/// rights of the database.
pub(crate) fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.create(true).truncate(false).read(true).write(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, OWNER_ONLY);
    options.open(path)
}

/// The lock file, locked.
async fn locked(path: &Path, lock_path: &Path) -> Result<File, OpenError> {
    let file = create(lock_path).map_err(|source| OpenError::unwritable(path, source))?;
    wait_for_lock(&file, path, lock_path).await?;
    Ok(file)
}

/// Another Weir may be stopping, so this tries again for about two seconds before the error.
async fn wait_for_lock(file: &File, path: &Path, lock: &Path) -> Result<(), OpenError> {
    for attempt in 1.. {
        match file.try_lock() {
            Ok(()) => break,
            Err(TryLockError::Error(source)) => return Err(OpenError::unwritable(path, source)),
            Err(TryLockError::WouldBlock) if attempt < LOCK_ATTEMPTS => tokio::time::sleep(LOCK_PAUSE).await,
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse { path: path.to_owned(), lock: lock.to_owned() });
            }
        }
    }
    Ok(())
}

/// Whether the file has a database. SQLite refuses another one without changing it.
fn is_database(file: &mut File) -> io::Result<bool> {
    let mut first = Vec::with_capacity(MAGIC.len());
    file.take(MAGIC.len() as u64).read_to_end(&mut first)?;
    Ok(first == MAGIC)
}

/// Refuses files that every user of the machine can read. The members of the group may be meant to: Kubernetes gives
/// the files of a volume to the group `fsGroup`, with the rights to read and write.
#[cfg(unix)]
fn check_rights(path: &Path) -> Result<(), OpenError> {
    use std::os::unix::fs::PermissionsExt as _;
    let files: Vec<_> = DATA
        .into_iter()
        .chain([LOCK])
        .map(|suffix| beside(path, suffix))
        .filter_map(|path| fs::metadata(&path).ok().map(|metadata| (path, metadata.permissions().mode())))
        .collect();
    let open_to = |rights: u32| -> Vec<String> {
        let open = files.iter().filter(|(_, mode)| mode & rights != 0);
        open.map(|(path, _)| path.display().to_string()).collect()
    };
    let to_everyone = open_to(0o007).join(" ");
    if !to_everyone.is_empty() {
        return Err(OpenError::OpenToOthers { path: path.to_owned(), files: to_everyone });
    }
    let to_group = open_to(0o070).join(" ");
    if !to_group.is_empty() {
        tracing::warn!(
            files = to_group,
            "the group of these files can use them, and with them the API keys and the secrets of destinations; \
             unless that is intended (`fsGroup` of Kubernetes does it), run `chmod 600` on them"
        );
    }
    Ok(())
}

/// Elsewhere the folder of the user is not readable for others.
#[cfg(not(unix))]
fn check_rights(_: &Path) -> Result<(), OpenError> {
    Ok(())
}
