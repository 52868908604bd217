//! Streams of events.

use std::num::NonZeroU32;

use anyhow::ensure;
use serde::{Deserialize, Deserializer};

use super::{is_time, one};

/// A stream of events to one or several groups. Each group gets every event.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Publish {
    #[serde(deserialize_with = "one_or_more")]
    pub(crate) to: Vec<String>,
    /// Events a second at fixed times, however Weir responds. Exactly one of `per_s`, `burst` and `overload` is set.
    pub(crate) per_s: Option<f64>,
    /// This many events, all at `from_s`.
    pub(crate) burst: Option<u64>,
    /// A multiple of the rate that the machine can take, which is measured before the run.
    pub(crate) overload: Option<f64>,
    #[serde(default)]
    pub(crate) from_s: f64,
    /// `None`: until `publish_s`.
    pub(crate) until_s: Option<f64>,
    /// Events in one request.
    #[serde(default = "one")]
    pub(crate) batch: u32,
    #[serde(default = "connections")]
    pub(crate) connections: u32,
    /// Each event to one destination in turn, instead of to all.
    #[serde(default)]
    pub(crate) spread: bool,
    /// Events have idempotency keys and are posted again until they are answered.
    #[serde(default)]
    pub(crate) persistent: bool,
    pub(crate) ordering_keys: Option<u32>,
    pub(crate) coalesce_keys: Option<u32>,
    /// This many limit keys in turn, `key-0`, `key-1`, …. They are in the data, at `/key`.
    pub(crate) limit_keys: Option<u32>,
    /// What the limit keys begin with.
    #[serde(default = "key_prefix")]
    pub(crate) key_prefix: String,
    /// Events name their limit key themselves, too.
    #[serde(default)]
    pub(crate) names_limit_key: bool,
    /// Every event has arrived so long after it was meant to be posted.
    pub(crate) done_within_s: Option<f64>,
    /// The costs of the events, in turn.
    #[serde(default)]
    pub(crate) costs: Vec<NonZeroU32>,
}

fn one_or_more<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Names {
        One(String),
        More(Vec<String>),
    }
    Ok(match Names::deserialize(deserializer)? {
        Names::One(name) => vec![name],
        Names::More(names) => names,
    })
}

fn key_prefix() -> String {
    "key".to_owned()
}

fn connections() -> u32 {
    16
}

impl Publish {
    /// Exactly one kind of rate, and times within the run, which publishes for `publish_s`.
    pub(super) fn check(&self, publish_s: f64) -> anyhow::Result<()> {
        let rates = [self.per_s.is_some(), self.burst.is_some(), self.overload.is_some()];
        ensure!(rates.into_iter().filter(|is_set| *is_set).count() == 1, "give one of per_s, burst and overload");
        ensure!(self.per_s.is_none_or(|rate| rate > 0.0 && rate <= 1e6), "per_s must be above 0 and at most 1000000");
        ensure!(self.overload.is_none_or(|times| (1.0..=10.0).contains(&times)), "overload must be 1 to 10");
        ensure!((1..=1_000).contains(&self.batch), "batch must be 1 to 1000");
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        ensure!(self.key_prefix.chars().all(is_plain), "key_prefix must be letters, digits and _");
        ensure!(self.limit_keys != Some(0), "limit_keys must be at least 1");
        ensure!(self.connections >= 1, "connections must be at least 1");
        let (from_s, until_s) = (self.from_s, self.until_s.unwrap_or(publish_s));
        ensure!(
            is_time(from_s) && from_s <= until_s && until_s <= publish_s,
            "from_s and until_s must be in order and within publish_s"
        );
        Ok(())
    }
}
