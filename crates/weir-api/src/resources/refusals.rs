//! Refusals within the limit, as the overview and the health of a destination show them.

use serde::Serialize;
use utoipa::ToSchema;
use weir_core::{Period, refusals::Refusals};

/// The receiver refuses sends (429, or 503 or 403 with `Retry-After` or a used-up quota) although they keep the limits
/// by Weir's clock.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
#[schema(as = RefusedWithinLimit)]
pub(crate) struct RefusalsView {
    /// `jitter`: it counts exactly, and the network delays one request more than the next. `spacing`: it wants a least
    /// time between two sends. `lower_limit`: it admits fewer than the limit.
    #[schema(value_type = String, pattern = "^(jitter|spacing|lower_limit)$", example = "spacing")]
    cause: &'static str,
    /// The recent sends that were looked at.
    sends: u32,
    /// How many of them were refused.
    refused: u32,
    /// The setting that helps: `margin_ms` or `limit` of the rate limit of `period`, or `min_interval_ms` of the
    /// destination.
    #[schema(value_type = String, pattern = "^(margin_ms|min_interval_ms|limit)$", example = "min_interval_ms")]
    setting: &'static str,
    /// Its value: for a limit, what the receiver was seen to admit.
    #[schema(example = 102)]
    value: u32,
    #[schema(value_type = Option<String>, pattern = "^(second|minute|hour|day)$", example = "second")]
    period: Option<&'static str>,
    /// All of it in one sentence.
    text: String,
}

impl From<Refusals> for RefusalsView {
    fn from(refusals: Refusals) -> Self {
        let (setting, value, period) = refusals.remedy.parts();
        Self {
            cause: refusals.cause.as_str(),
            sends: refusals.sends,
            refused: refusals.refused,
            setting,
            value,
            period: period.map(Period::as_str),
            text: refusals.sentence(),
        }
    }
}
