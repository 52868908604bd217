//! The behaviour of receivers.

use serde::Deserialize;

/// How a receiver answers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ReceiverBehavior {
    /// 200 at once.
    #[default]
    Ok,
    /// 200 after this time.
    Slow { ms: u64 },
    /// This status at once.
    Status { code: u16 },
    /// The port is closed, and open connections are cut.
    Refuse,
    /// 200 for `up_ms`, then this status for `down_ms`, in turn.
    Flap { up_ms: u64, down_ms: u64, code: u16 },
    /// 200 with a body that never ends: one byte every interval.
    Drip { every_ms: u64 },
    /// 429 with `Retry-After` to requests above `per_s` in a second of the receiver's clock, for each destination.
    RateLimit { per_s: u32, retry_after_s: u64 },
}
