//! The clock of a process with the queue in memory, and of `weir demo` and `weir verify`. Only this file and
//! `RedisClock` (`weir-queue-redis/src/clock.rs`) make engine time from the clocks of the operating system.

use std::time::Instant;

use weir_cli::clock::wall_clock;
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
        Self { origin: wall_clock(), started: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        self.origin + self.started.elapsed()
    }

    fn wall(&self) -> Timestamp {
        wall_clock()
    }
}
