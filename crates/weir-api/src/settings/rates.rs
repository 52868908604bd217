//! The rate limits and the retry policy of a destination.

use std::collections::HashSet;

use serde_json::Value;
use weir_core::{
    Period, RateLimit, RateLimits,
    limit::{InvalidLimits, MAX_LIMIT, MAX_LIMITS},
    retry::{RetryDelays, RetryPolicy},
};

use crate::fields::{self, Errors, Object};

pub(super) const MAX_ATTEMPTS: u32 = 100;
const MAX_AGE_S: u32 = 30 * 86_400;
const MAX_SCHEDULE: usize = 100;

pub(super) fn rate_limits(body: &mut Object<'_>) -> RateLimits {
    let Some(values) = body.array("rate_limits") else {
        return RateLimits::UNLIMITED;
    };
    let pointer = body.pointer_to("rate_limits");
    if values.len() > MAX_LIMITS {
        body.refuse("rate_limits", InvalidLimits::TooMany.to_string());
        return RateLimits::UNLIMITED;
    }
    let mut limits = Vec::with_capacity(values.len());
    let mut periods = HashSet::new();
    for (index, value) in values.into_iter().enumerate() {
        let at = format!("{pointer}/{index}");
        let Some(limit) = rate_limit(value, &at, body.errors()) else {
            continue;
        };
        if periods.insert(limit.period) {
            limits.push(limit);
        } else {
            body.errors().add(format!("{at}/period"), InvalidLimits::DuplicatePeriod(limit.period).to_string());
        }
    }
    // Too many limits and duplicate periods are refused above, so the remaining limits are a valid set.
    RateLimits::new(limits).unwrap_or_default()
}

fn rate_limit(value: Value, pointer: &str, errors: &mut Errors) -> Option<RateLimit> {
    let mut object = Object::open(value, pointer, errors)?;
    if !object.has_value("limit") {
        object.refuse("limit", "is required");
    }
    let limit = object.integer("limit", 1..=MAX_LIMIT);
    let period = object.required_string("period").and_then(|name| {
        let period = Period::parse(&name);
        if period.is_none() {
            object.refuse("period", "must be `second`, `minute`, `hour` or `day`");
        }
        period
    });
    let has_burst = object.has_value("burst");
    let burst = object.integer("burst", 1..=MAX_LIMIT).or((!has_burst).then_some(1));
    object.close(&[]);
    RateLimit::with_burst(limit?, period?, burst?)
}

pub(super) fn retry(body: &mut Object<'_>) -> RetryPolicy {
    let default = RetryPolicy::default();
    let Some(value) = body.take("retry") else {
        return default;
    };
    let pointer = body.pointer_to("retry");
    let Some(mut object) = Object::open(value, pointer, body.errors()) else {
        return default;
    };
    let max_attempts = object.integer("max_attempts", 1..=MAX_ATTEMPTS).unwrap_or(default.max_attempts);
    let max_age_s = object.integer("max_age_s", 1..=MAX_AGE_S).unwrap_or(default.max_age_s);
    let delays =
        if object.has_value("schedule_ms") { schedule(&mut object) } else { backoff(&mut object, default.delays) };
    object.close(&[]);
    RetryPolicy { max_attempts, max_age_s, delays }
}

fn schedule(retry: &mut Object<'_>) -> RetryDelays {
    for replaced in ["base_ms", "cap_ms"] {
        if retry.take(replaced).is_some() {
            retry.refuse(replaced, "must be omitted: `schedule_ms` replaces it");
        }
    }
    let values = retry.array("schedule_ms").unwrap_or_else(|| vec![Value::from(1)]);
    if !(1..=MAX_SCHEDULE).contains(&values.len()) {
        retry.refuse("schedule_ms", format!("must contain 1 to {MAX_SCHEDULE} delays"));
    }
    let pointer = retry.pointer_to("schedule_ms");
    let range = 0..=MAX_AGE_S * 1_000;
    let mut delays = Vec::with_capacity(values.len());
    for (index, value) in values.iter().enumerate() {
        match fields::integer(value, &range) {
            Some(delay) => delays.push(delay),
            None => retry.errors().add(format!("{pointer}/{index}"), fields::outside(&range)),
        }
    }
    RetryDelays::Schedule(delays)
}

/// Reads base and cap. If only one of them is given, the default of the other one is adapted to it.
fn backoff(retry: &mut Object<'_>, default: RetryDelays) -> RetryDelays {
    let RetryDelays::Backoff { base_ms: default_base, cap_ms: default_cap } = default else {
        return default;
    };
    // `schedule_ms: null` means no schedule, so it is valid here.
    retry.take("schedule_ms");
    let range = 1..=MAX_AGE_S * 1_000;
    let base_ms = retry.integer("base_ms", range.clone());
    let cap_ms = retry.integer("cap_ms", range);
    if let (Some(base), Some(cap)) = (base_ms, cap_ms)
        && base > cap
    {
        retry.refuse("cap_ms", format!("must be at least `base_ms`, which is {base}"));
    }
    RetryDelays::Backoff {
        base_ms: base_ms.unwrap_or(default_base.min(cap_ms.unwrap_or(default_cap))),
        cap_ms: cap_ms.unwrap_or(default_cap.max(base_ms.unwrap_or(default_base))),
    }
}
