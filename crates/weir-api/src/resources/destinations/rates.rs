//! The rate limits of a destination, as they are set and shown.

use serde_json::{Value, json};
use utoipa::openapi::Schema;
use weir_api_types as types;
use weir_core::{
    Period, RateLimit, RateLimits,
    limit::{InvalidLimits, MinInterval, Shape, Unit},
};

use crate::{
    errors::Errors,
    readers::{
        fields::{Read, object},
        texts::{PeriodText, ShapeText, UnitText},
        values::array,
    },
};

object! {
    /// At most `limit` sends in every window of one `period`, or `limit + burst − 1` if `burst` is above 1. An edit
    /// that raises the burst of an active destination takes effect gradually: the burst fills at the rate of the limit.
    pub(crate) struct RateLimitRequest {
        #[schema(minimum = 1, maximum = 1_000_000)]
        limit: u32,
        period: Option<PeriodText>,
        /// The period in seconds, for windows without a name: `{"limit": 190, "window_s": 10}`. Give it or `period`.
        #[schema(minimum = 1, maximum = 86_400)]
        window_s: Option<u32>,
        #[schema(minimum = 1, maximum = 1_000_000, default = 1)]
        burst: Option<u32>,
        /// For receivers behind a network with jitter: `limit` sends fit into a period that is longer by this time, so
        /// that as many requests arrive in a period although some are delayed. It costs a part of the rate.
        #[schema(minimum = 0, maximum = 10_000, default = 0)]
        margin_ms: Option<u32>,
        /// `window` has no `burst`: all its sends may start at once.
        #[schema(default = "even")]
        shape: Option<ShapeText>,
        /// `cost` implies the shape `window`.
        #[schema(default = "request")]
        unit: Option<UnitText>,
    }
    plural = "limits, one per period";
}

impl RateLimitRequest {
    /// A period has a name, a length, or both, and the unit `cost` does not go with the shape `even`.
    pub(crate) fn keywords() -> Value {
        let given =
            |field: &str| json!({"properties": {(field): {"type": ["string", "integer"]}}, "required": [field]});
        let unless = |field: &str, value: &str| json!({"properties": {(field): {"not": {"const": value}}}});
        json!({"anyOf": [given("period"), given("window_s")], "allOf": [
            {"anyOf": [unless("unit", "cost"), unless("shape", "even")]},
        ]})
    }

    /// `None` after a fault, which is added. Both names of a period may be given, as an answer has them.
    fn rate_limit(&self, at: &str, errors: &mut Errors) -> Option<RateLimit> {
        let of_seconds = self.window_s.and_then(Period::from_seconds);
        let period = match (self.period.as_ref().map(|period| period.0), of_seconds) {
            (Some(period), Some(seconds)) if period != seconds => {
                errors.add(format!("{at}/window_s"), "must be that of `period`: give one of the two");
                None
            }
            (period, of_seconds) => period.or(of_seconds),
        }?;
        if self.unit.as_ref().is_some_and(|unit| unit.0 == Unit::Cost) {
            return self.in_costs(period, at, errors);
        }
        let shape = self.shape.as_ref().map_or(Shape::Even, |shape| shape.0);
        let limit = RateLimit::with_burst(self.limit, period, self.burst.unwrap_or(1))?.with_shape(shape);
        if limit.is_none() {
            errors.add(format!("{at}/burst"), "must be 1 with the shape `window`, which allows all sends at once");
        }
        limit?.with_margin(self.margin_ms.unwrap_or(0))
    }

    fn in_costs(&self, period: Period, at: &str, errors: &mut Errors) -> Option<RateLimit> {
        if self.shape.as_ref().is_some_and(|shape| shape.0 == Shape::Even) {
            errors.add(format!("{at}/shape"), "must be `window` with the unit `cost`: leave it out");
            return None;
        }
        let limit = RateLimit::with_burst(self.limit, period, self.burst.unwrap_or(1))?.in_costs();
        if limit.is_none() {
            errors.add(format!("{at}/burst"), "must be 1 with the unit `cost`, whose sends may all start at once");
        }
        limit?.with_margin(self.margin_ms.unwrap_or(0))
    }
}

/// The limits of a destination. Each period has at most one.
#[derive(Default)]
pub(crate) struct Limits(pub(crate) Vec<RateLimit>);

impl Limits {
    /// At most one limit per period.
    pub(crate) fn keywords() -> Value {
        let once = Period::NAMED.map(|period| {
            let of_period = json!({"properties": {"period": {"const": period.to_string()}}, "required": ["period"]});
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
            let has_period = ["period", "window_s"].iter().any(|name| !value[*name].is_null());
            let read = RateLimitRequest::read(value, items, &at, errors);
            if !has_period {
                errors.add(format!("{at}/period"), "must be given, or `window_s` in seconds");
            }
            let limit = read.and_then(|limit| limit.rate_limit(&at, errors));
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

/// The limits that a request proposes; what it leaves out is as it is.
pub(crate) fn proposed(
    current: &RateLimits,
    limits: Option<Limits>,
    min_interval_ms: Option<Option<u32>>,
) -> RateLimits {
    let interval = min_interval_ms.map_or(current.min_interval(), min_interval);
    limits.map_or_else(|| current.clone(), RateLimits::from).with_min_interval(interval)
}

pub(crate) fn view(limit: &RateLimit) -> types::RateLimit {
    types::RateLimit {
        limit: limit.limit.get(),
        period: limit.period.to_string(),
        window_s: limit.period.unnamed_seconds(),
        burst: limit.burst.get(),
        margin_ms: limit.margin_ms(),
        shape: limit.unusual_shape(),
        unit: limit.unusual_unit(),
    }
}
