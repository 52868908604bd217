//! A clock for tests that always shows the same time.

use weir_core::{Clock, Timestamp};

pub(crate) const NOW: Timestamp = Timestamp::from_secs(1_000_000);

pub(crate) struct FixedClock;

impl Clock for FixedClock {
    fn now(&self) -> Timestamp {
        NOW
    }

    fn wall(&self) -> Timestamp {
        NOW
    }
}
