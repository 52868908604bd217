use std::{ffi::OsString, io, path::PathBuf};

use tempfile::TempDir;

/// The library of libfaketime, which gives a process another clock when it is preloaded. The dynamic loader replaces
/// `$LIB`.
///
/// The program `faketime` names it too, but fails where a killed process with the same id has left its semaphore.
pub const FAKE_TIME: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// The clock of a server that a test sets, with libfaketime.
pub struct ServerClock {
    folder: TempDir,
}

impl ServerClock {
    /// A clock that agrees with the machine's.
    ///
    /// # Errors
    ///
    /// The file of the clock cannot be written.
    pub fn new() -> io::Result<Self> {
        let clock = Self { folder: tempfile::tempdir()? };
        clock.set(0.0)?;
        Ok(clock)
    }

    /// Sets the clock to `seconds` ahead of the machine's clock.
    ///
    /// # Errors
    ///
    /// The file of the clock cannot be written.
    pub fn set(&self, seconds: f64) -> io::Result<()> {
        // A new file takes the place of the old one, because the server must not read half of a number.
        let new = self.folder.path().join("new");
        std::fs::write(&new, format!("{seconds:+}"))?;
        std::fs::rename(&new, self.file())
    }

    /// The environment of a server that reads this clock.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, OsString)> {
        vec![
            // Redis's own allocator reads the clock before libfaketime is ready.
            ("LD_PRELOAD", format!("libtcmalloc_minimal.so.4 {FAKE_TIME}").into()),
            ("FAKETIME_TIMESTAMP_FILE", self.file().into()),
            ("FAKETIME_NO_CACHE", "1".into()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
        ]
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("clock")
    }
}
