//! Why a call failed, and whether the store can write.

use std::{fmt, time::Duration};

use parking_lot::Mutex;
use tokio::time::Instant;
use weir_sealing::Unopened;

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store cannot be reached or is shutting down. Nothing was changed, or the outcome is unknown. The caller may
    /// retry.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The store can be reached but not written until somebody removes the obstacle. Nothing was changed, or the outcome
    /// is unknown. The caller may retry.
    #[error("the store cannot write: {obstacle} ({reason})")]
    CannotWrite { obstacle: Obstacle, reason: String },
    /// A sealed value cannot be opened by this process. The caller may retry: another process may have the key.
    #[error("{0}")]
    Sealed(Unopened),
    /// A statement failed, and a retry would fail again.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl StoreError {
    /// Whether a retry may succeed.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Unavailable(_) | Self::CannotWrite { .. } | Self::Sealed(_) => true,
            Self::Failed(_) => false,
        }
    }
}

pub type StoreResult<T> = Result<T, StoreError>;

/// What keeps a store from writing. Its text is shown to operators and clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Obstacle {
    DiskFull,
    DiskFails,
    ReadOnly,
    /// The file of an embedded store.
    FileGone,
}

impl Obstacle {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DiskFull => "its disk is full",
            Self::DiskFails => "its disk reports errors",
            Self::ReadOnly => "it is read-only",
            Self::FileGone => "its file was removed or replaced",
        }
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// How long a failed write counts. A disk that has no room for an event may have room for the beat, which is smaller
/// and comes every second, so a later success does not show that the store can write. Short, so that the store is ready
/// again soon after it can.
const REMEMBERED: Duration = Duration::from_secs(5);

/// The last write that an obstacle prevented. A store notes every such write and is not healthy for a moment
/// afterwards, because it may still be able to read. Every process writes its beat, so a process without other work
/// learns of the obstacle too.
#[derive(Debug, Default)]
pub struct WriteFailures(Mutex<Option<(Instant, StoreError)>>);

impl WriteFailures {
    pub fn note(&self, error: &StoreError) {
        if matches!(error, StoreError::CannotWrite { .. }) {
            *self.0.lock() = Some((Instant::now(), error.clone()));
        }
    }

    /// Fails with the last such error while it counts.
    pub fn check(&self) -> StoreResult<()> {
        match &*self.0.lock() {
            Some((at, error)) if at.elapsed() < REMEMBERED => Err(error.clone()),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_write_that_an_obstacle_prevented_counts_for_five_seconds() {
        let failures = WriteFailures::default();
        failures.note(&StoreError::Failed("no such column".to_owned()));
        failures.note(&StoreError::Unavailable("the server could not be reached".to_owned()));
        assert!(failures.check().is_ok(), "neither shows that the store cannot write");
        failures.note(&StoreError::CannotWrite { obstacle: Obstacle::DiskFull, reason: "SQLITE_FULL".to_owned() });
        tokio::time::advance(REMEMBERED - Duration::from_millis(1)).await;
        let error = failures.check().unwrap_err();
        assert_eq!(error.to_string(), "the store cannot write: its disk is full (SQLITE_FULL)");
        tokio::time::advance(Duration::from_millis(1)).await;
        assert!(failures.check().is_ok());
    }
}
