//! The in-process queue passes the conformance suite.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use weir_core::{Clock, Timestamp};
use weir_queue::{conformance::Subject, memory::MemoryQueue};

struct TestClock {
    origin: Timestamp,
    started: Instant,
}

#[expect(clippy::disallowed_methods, reason = "the suite runs in real time")]
fn clock() -> Arc<dyn Clock> {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    Arc::new(TestClock { origin: Timestamp::MIN + since_epoch, started: Instant::now() })
}

impl Clock for TestClock {
    fn now(&self) -> Timestamp {
        self.origin + self.started.elapsed()
    }

    fn wall(&self) -> Timestamp {
        self.now()
    }
}

async fn subject() -> Subject {
    let clock = clock();
    Subject::new(Arc::new(MemoryQueue::new(clock.clone())), clock, Duration::ZERO)
}

weir_queue::queue_conformance!(subject);
