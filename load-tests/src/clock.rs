//! The only place that reads the time.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use weir_core::Timestamp;

/// The time now on the monotonic clock that client and receiver share.
#[expect(clippy::disallowed_methods, reason = "this is the clock of the harness")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

/// The instant at which the wall clock showed `time`, which must be recent.
#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, reason = "this is the clock of the harness")]
pub(crate) fn of_wall(time: SystemTime) -> Instant {
    Instant::now() - SystemTime::now().duration_since(time).unwrap_or_default()
}

/// The timeline of a run: the monotonic clock, set once from the wall clock, so the judge knows the calendar windows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeline {
    began: Instant,
    wall: Timestamp,
}

impl Timeline {
    #[expect(clippy::disallowed_methods, reason = "this is the clock of the harness")]
    pub(crate) fn begin() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { began: Instant::now(), wall: Timestamp::MIN + wall }
    }

    /// The same timeline with its beginning set to now.
    pub(crate) fn restarted(&self) -> Self {
        let began = now();
        Self { began, wall: self.at(began) }
    }

    pub(crate) fn began(&self) -> Instant {
        self.began
    }

    pub(crate) fn at(&self, instant: Instant) -> Timestamp {
        self.wall + instant.saturating_duration_since(self.began)
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.at(now())
    }
}
