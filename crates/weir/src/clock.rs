//! The clock of a process with the queue in memory, and of `weir demo` and `weir verify`. Only this file and
//! `RedisClock` (`weir-queue-redis/src/clock.rs`) make engine time from the clocks of the operating system.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use weir_core::{Clock, Timestamp};

/// Engine time starts at the wall clock and then follows the monotonic clock, so that a step of the wall clock moves no
/// slot.
#[derive(Debug)]
pub(crate) struct SystemClock {
    origin: Timestamp,
    started: Instant,
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
impl SystemClock {
    pub(crate) fn start() -> Self {
        Self { origin: wall(), started: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.origin + self.started.elapsed()
    }

    fn wall(&self) -> Timestamp {
        wall()
    }
}

#[expect(clippy::disallowed_methods, reason = "this is the clock")]
fn wall() -> Timestamp {
    // A clock that is set before 1970 counts as 1970.
    Timestamp::MIN + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
