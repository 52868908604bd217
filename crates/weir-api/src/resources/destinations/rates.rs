//! The rate limits of a destination, as they are set and shown.

use serde_json::{Value, json};
use utoipa::openapi::Schema;
use weir_api_types as types;
use weir_core::{
    Period, RateLimit, RateLimits,
    limit::{InvalidLimits, MinInterval},
};

use crate::{
    errors::Errors,
    readers::{
        fields::{Read, object},
        texts::PeriodText,
        values::array,
    },
};

object! {
    /// At most `limit` sends in every window of one `period`, or `limit + burst − 1` if `burst` is above 1. An edit
    /// that raises the burst of an active destination takes effect gradually: the burst fills at the rate of the limit.
    pub(crate) struct RateLimitRequest {
        #[schema(minimum = 1, maximum = 1_000_000)]
        limit: u32,
        period: PeriodText,
        #[schema(minimum = 1, maximum = 1_000_000, default = 1)]
        burst: Option<u32>,
        /// For receivers behind a network with jitter: `limit` sends fit into a period that is longer by this time, so
        /// that as many requests arrive in a period although some are delayed. It costs a part of the rate.
        #[schema(minimum = 0, maximum = 10_000, default = 0)]
        margin_ms: Option<u32>,
    }
    plural = "limits, one per period";
}

/// The limits of a destination. Each period has at most one.
#[derive(Default)]
pub(crate) struct Limits(pub(crate) Vec<RateLimit>);

impl Limits {
    /// At most one limit per period.
    pub(crate) fn keywords() -> Value {
        let once = Period::ALL.map(|period| {
            let of_period = json!({"properties": {"period": {"const": period.as_str()}}, "required": ["period"]});
            json!({"contains": of_period, "minContains": 0, "maxContains": 1})
        });
        json!({"allOf": once})
    }
}

impl Read for Limits {
    fn read(value: Value, schema: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        let (values, items) = array::<RateLimitRequest>(value, schema, at, errors)?;
        if errors.has(at) {
            // There are too many limits, so some have the same period. That is not reported as a second error.
            return None;
        }
        let mut limits = Vec::with_capacity(values.len());
        for (index, value) in values.into_iter().enumerate() {
            let at = format!("{at}/{index}");
            // An invalid limit adds its own error and is left out.
            let read = RateLimitRequest::read(value, items, &at, errors);
            let limit = read.and_then(|limit| {
                let margin_ms = limit.margin_ms.unwrap_or(0);
                RateLimit::with_burst(limit.limit, limit.period.0, limit.burst.unwrap_or(1))?.with_margin(margin_ms)
            });
            // A second limit for a period is refused, so that the result is a valid set.
            match limit {
                Some(limit) if limits.iter().any(|other: &RateLimit| other.period == limit.period) => {
                    errors.add(format!("{at}/period"), InvalidLimits::DuplicatePeriod(limit.period).to_string());
                }
                Some(limit) => limits.push(limit),
                None => {}
            }
        }
        Some(Self(limits))
    }
}

impl From<Limits> for RateLimits {
    fn from(limits: Limits) -> Self {
        // Too many limits and duplicate periods are refused, so the limits are a valid set.
        Self::new(limits.0).unwrap_or_default()
    }
}

/// The minimum interval of a request, which is in its range; `null` is none.
pub(crate) fn min_interval(millis: Option<u32>) -> Option<MinInterval> {
    millis.and_then(MinInterval::from_millis)
}

pub(crate) fn view(limit: &RateLimit) -> types::RateLimit {
    types::RateLimit {
        limit: limit.limit.get(),
        period: limit.period.as_str().to_owned(),
        burst: limit.burst.get(),
        margin_ms: limit.margin_ms(),
    }
}
