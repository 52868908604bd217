//! The one place that reads the time.

use std::time::Instant;

/// Now, on the monotonic clock that client and receiver share.
#[expect(clippy::disallowed_methods, reason = "this is the clock of the harness")]
pub(crate) fn now() -> Instant {
    Instant::now()
}
