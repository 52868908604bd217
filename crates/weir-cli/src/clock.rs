//! The wall clock of this machine.

use std::time::{SystemTime, UNIX_EPOCH};

use weir_core::Timestamp;

/// The time now. A clock that is set before 1970 counts as 1970.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this is the clock")]
pub fn wall_clock() -> Timestamp {
    Timestamp::MIN + SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}
