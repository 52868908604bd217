//! Moods: how receivers answer.

use serde::Deserialize;

/// How a receiver answers.
#[derive(Debug, Clone, Copy, PartialEq, Default, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(crate) enum ReceiverBehavior {
    /// 200, at once.
    #[default]
    Ok,
    /// 200, after a while.
    Slow { ms: u64 },
    /// This status, at once.
    Status { code: u16 },
    /// Nobody listens, and connections are cut.
    Refuse,
    /// Well for a while, then this status for a while, and again.
    Flap { up_ms: u64, down_ms: u64, code: u16 },
    /// 200, and a byte of the body now and then, for ever.
    Drip { every_ms: u64 },
    /// 429 with `Retry-After` to what is above so many in a second of the receiver's clock, for each destination.
    RateLimit { per_s: u32, retry_after_s: u64 },
}
