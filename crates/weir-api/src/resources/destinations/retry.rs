//! The retry policy of a destination, as it is set and shown.

use serde_json::{Value, json};
use utoipa::openapi::Schema;
use weir_api_types as types;
use weir_core::retry::{RetryDelays, RetryPolicy};

use crate::{
    errors::Errors,
    readers::fields::{Read, object},
};

object! {
    /// The retry policy: the number of attempts, their age limit and their delays. The delays are given by `base_ms`
    /// and `cap_ms`, or by `schedule_ms`.
    pub(crate) struct RetryRequest {
        #[schema(minimum = 1, maximum = 100, default = json!(RetryPolicy::default().max_attempts))]
        max_attempts: Option<u32>,
        /// No retry after this time, counted from the event's creation or its `deliver_at`.
        #[schema(minimum = 1, maximum = 2_592_000, default = json!(RetryPolicy::default().max_age_s))]
        max_age_s: Option<u32>,
        /// The delay after attempt n is random, up to `base_ms` · 2^(n−1).
        #[schema(minimum = 1, maximum = 2_592_000_000_u64, format = Int64, default = json!(default_backoff().0))]
        base_ms: Option<u32>,
        /// The longest delay; at least `base_ms`.
        #[schema(minimum = 1, maximum = 2_592_000_000_u64, format = Int64, default = json!(default_backoff().1))]
        cap_ms: Option<u32>,
        /// Replaces `base_ms` and `cap_ms`: the delay after attempt n is the n-th value. The last value repeats.
        #[schema(
            value_type = Option<Vec<u32>>, min_items = 1, max_items = 100, minimum = 0, maximum = 2_592_000_000_u64,
            format = Int64
        )]
        schedule_ms: Option<Vec<DelayMs>>,
    }
    check = Self::check;
}

/// One delay of a schedule.
struct DelayMs(u32);

impl Read for DelayMs {
    const PLURAL: &'static str = "delays";

    fn read(value: Value, schema: &Schema, at: &str, errors: &mut Errors) -> Option<Self> {
        u32::read(value, schema, at, errors).map(Self)
    }
}

impl RetryRequest {
    /// A schedule and a backoff exclude each other.
    pub(crate) fn keywords() -> Value {
        json!({"anyOf": [
            {"properties": {"schedule_ms": {"type": "null"}}},
            {"properties": {"base_ms": {"type": "null"}, "cap_ms": {"type": "null"}}},
        ]})
    }

    fn check(&self, at: &str, errors: &mut Errors) {
        if self.schedule_ms.is_some() {
            for (name, replaced) in [("base_ms", self.base_ms), ("cap_ms", self.cap_ms)] {
                if replaced.is_some() {
                    errors.add(format!("{at}/{name}"), "must be omitted: `schedule_ms` replaces it");
                }
            }
        } else if let (Some(base), Some(cap)) = (self.base_ms, self.cap_ms)
            && base > cap
        {
            errors.add(format!("{at}/cap_ms"), format!("must be at least `base_ms`, which is {base}"));
        }
    }
}

impl From<RetryRequest> for RetryPolicy {
    /// If only one of base and cap is given, the default of the other one is adapted to it.
    fn from(request: RetryRequest) -> Self {
        let default = Self::default();
        let RetryRequest { base_ms, cap_ms, .. } = request;
        let (default_base, default_cap) = default_backoff();
        let backoff = || RetryDelays::Backoff {
            base_ms: base_ms.unwrap_or(default_base.min(cap_ms.unwrap_or(default_cap))),
            cap_ms: cap_ms.unwrap_or(default_cap.max(base_ms.unwrap_or(default_base))),
        };
        Self {
            max_attempts: request.max_attempts.unwrap_or(default.max_attempts),
            max_age_s: request.max_age_s.unwrap_or(default.max_age_s),
            delays: request.schedule_ms.map_or_else(backoff, |delays| {
                RetryDelays::Schedule(delays.into_iter().map(|DelayMs(delay)| delay).collect())
            }),
            // A setting beside the policy.
            refusals_count: default.refusals_count,
        }
    }
}

/// The default `base_ms` and `cap_ms`.
fn default_backoff() -> (u32, u32) {
    match RetryPolicy::default().delays {
        RetryDelays::Backoff { base_ms, cap_ms } => (base_ms, cap_ms),
        RetryDelays::Schedule(_) => unreachable!("the default is a backoff"),
    }
}

pub(crate) fn view(policy: &RetryPolicy) -> types::Retry {
    let (base_ms, cap_ms, schedule_ms) = match &policy.delays {
        RetryDelays::Backoff { base_ms, cap_ms } => (Some(*base_ms), Some(*cap_ms), None),
        RetryDelays::Schedule(delays) => (None, None, Some(delays.clone())),
    };
    types::Retry { max_attempts: policy.max_attempts, max_age_s: policy.max_age_s, base_ms, cap_ms, schedule_ms }
}
