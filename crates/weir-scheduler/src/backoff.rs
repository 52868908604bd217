//! How long a loop waits after the store or the queue failed: 50 ms, doubling to 5 s, until something works again.

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
    /// Something worked.
    pub fn reset(&mut self) {
        self.next = FIRST;
    }

    /// Something failed: how long to wait now.
    pub fn fail(&mut self) -> Duration {
        let delay = self.next;
        self.next = (delay * 2).min(LONGEST);
        delay
    }
}
