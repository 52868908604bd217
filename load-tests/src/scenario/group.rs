//! Groups of destinations, and what is expected of them.

use anyhow::ensure;
use serde::Deserialize;
use serde_json::Value;

use super::{ReceiverBehavior, key_limits_in, limits_in, one};

/// Destinations with the same settings and expectations.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Group {
    pub(crate) name: String,
    #[serde(default = "one")]
    pub(crate) count: u32,
    /// The body of `POST /v1/destinations`; the harness sets `url`, `name` and `event_types`.
    #[serde(default = "no_settings")]
    pub(crate) settings: Value,
    /// Stands for `breaker = null`, which turns the breaker off: TOML has no null.
    #[serde(default)]
    pub(crate) no_breaker: bool,
    #[serde(default)]
    pub(crate) behavior: ReceiverBehavior,
    /// The limit group that they join when they are created.
    pub(crate) limit_group: Option<String>,
    #[serde(default)]
    pub(crate) expect: Expect,
}

fn no_settings() -> Value {
    Value::Object(serde_json::Map::new())
}

/// Expectations of a group beside its limits, which must always hold.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Expect {
    /// Every event arrives, and the backlog drains. False for destinations that never answer 2xx.
    pub(crate) delivered: bool,
    /// Sends of each destination ÷ the sends that its strictest limit allowed.
    pub(crate) utilisation_min: Option<f64>,
    /// Jain's index of the destinations' sends ÷ allowed sends, while all had a backlog.
    pub(crate) fairness_min: Option<f64>,
    /// From the instant an event was meant to be posted to its first arrival.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    /// Sends a second during the overload ÷ the rate that the machine can take.
    pub(crate) overload_min: Option<f64>,
    /// Events with one `ordering_key` arrive in their order.
    pub(crate) in_order: bool,
}

impl Default for Expect {
    fn default() -> Self {
        Self {
            delivered: true,
            utilisation_min: None,
            fairness_min: None,
            p50_ms: None,
            p99_ms: None,
            overload_min: None,
            in_order: false,
        }
    }
}

impl Group {
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(self.count >= 1, "count must be at least 1");
        limits_in(&self.settings)?;
        key_limits_in(&self.settings).map(drop)
    }
}
