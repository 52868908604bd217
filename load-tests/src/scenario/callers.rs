//! Callers outside Weir that take slots of a limit group.

use anyhow::ensure;
use serde::Deserialize;

use super::{is_time, one};

/// Each caller reserves a slot, makes a call in it, and begins again, until `until_s`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Callers {
    pub(crate) limit_group: String,
    #[serde(default = "one")]
    pub(crate) count: u32,
    #[serde(default)]
    pub(crate) from_s: f64,
    /// `None`: until `publish_s`. A reservation that waits at that time is still answered and used.
    pub(crate) until_s: Option<f64>,
    /// How long a reservation may wait for its turn.
    #[serde(default = "wait_ms")]
    pub(crate) wait_ms: u32,
    #[serde(default = "width_ms")]
    pub(crate) width_ms: u32,
}

fn wait_ms() -> u32 {
    30_000
}

fn width_ms() -> u32 {
    250
}

impl Callers {
    pub(super) fn check(&self, publish_s: f64) -> anyhow::Result<()> {
        // Each caller has a connection of its own.
        ensure!((1..=1_000).contains(&self.count), "count must be 1 to 1000");
        let until_s = self.until_s.unwrap_or(publish_s);
        ensure!(
            is_time(self.from_s) && self.from_s <= until_s && until_s <= publish_s,
            "from_s and until_s must be in order and within publish_s"
        );
        Ok(())
    }
}
