//! Groups of destinations, and what is expected of them.

use anyhow::{Context, ensure};
use serde::Deserialize;
use serde_json::Value;
use weir_core::{
    Period, RateLimit, RateLimits,
    limit::{Shape, Unit},
};

use super::{ReceiverBehavior, key_limits_in, one};

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

/// The limits in the settings; `None` when the settings have no `rate_limits`.
pub(crate) fn limits_in(settings: &Value) -> anyhow::Result<Option<RateLimits>> {
    let Some(limits) = settings.get("rate_limits") else { return Ok(None) };
    let limits = limits.as_array().context("rate_limits must be an array")?;
    let parse = |limit: &Value| {
        let number = |name: &str| u32::try_from(limit.get(name)?.as_u64()?).ok();
        let period = match number("window_s") {
            Some(seconds) => Period::from_seconds(seconds)?,
            None => Period::parse(limit.get("period")?.as_str()?)?,
        };
        let text = |name: &str| limit.get(name).and_then(Value::as_str);
        let parsed = RateLimit::with_burst(number("limit")?, period, number("burst").unwrap_or(1))?;
        let shaped = parsed.with_shape(text("shape").map_or(Some(Shape::Even), Shape::parse)?)?;
        match text("unit").map_or(Some(Unit::Request), Unit::parse)? {
            Unit::Request => Some(shaped),
            Unit::Cost => shaped.in_costs(),
        }
    };
    let limits: Option<Vec<RateLimit>> = limits.iter().map(parse).collect();
    let limits = limits.context("rate_limits: each is a limit of 1 to 1000000 and a period")?;
    Ok(Some(RateLimits::new(limits).context("rate_limits")?))
}
