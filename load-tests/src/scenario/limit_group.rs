//! Limit groups, and what is expected of them.

use anyhow::Context;
use serde::Deserialize;
use serde_json::{Value, json};
use weir_core::RateLimits;

use super::limits_in;

/// A budget that several destinations share.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitGroup {
    pub(crate) name: String,
    pub(crate) rate_limits: Value,
    #[serde(default)]
    pub(crate) expect: ExpectShared,
}

/// Expectations of a limit group beside its limits, which must always hold.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ExpectShared {
    /// Sends of all members ÷ the sends that the strictest limit allowed.
    pub(crate) utilisation_min: Option<f64>,
    /// Jain's index of the members' sends ÷ weights, while all had a backlog.
    pub(crate) fairness_min: Option<f64>,
    /// The sends of each member differ from its share by its weight by at most this part, while all had a backlog.
    pub(crate) share_within: Option<f64>,
}

impl LimitGroup {
    pub(crate) fn limits(&self) -> anyhow::Result<RateLimits> {
        limits_in(&json!({ "rate_limits": self.rate_limits }))?.context("rate_limits are missing")
    }
}
