//! The delay of a loop after failures of the store or the queue: 50 ms, doubling to 5 s, until a call succeeds.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(50);
const LONGEST: Duration = Duration::from_secs(5);

/// The delay of the next retry of a background loop.
#[derive(Debug, Clone)]
pub struct Backoff {
    next: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self { next: FIRST }
    }
}

impl Backoff {
    /// A call succeeded.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }

    /// A call failed. Returns how long to wait before the next one.
    pub fn fail(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(LONGEST);
        delay
    }
}
