//! Destinations and their limits.

use std::{borrow::Cow, num::NonZeroU32, sync::Arc};

use weir_core::{
    Destination, RateLimits, Timestamp, destination::Settings, filter::Filter, limit::MinInterval,
    order::DeliveryOrder, pattern::EventPattern, signing::Signing,
};

use super::{
    Corrupt, Row,
    codes::{interval_code, limits, limits_json},
};
use crate::LimitChange;

/// The columns that an edit writes, in the order of [`destination_values`].
#[macro_export]
macro_rules! edited_columns {
    () => {
        "updated_at, name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, signing, paused,
        paused_reason, held_until, held_reason, breaker, breaker_state, alerts, ordered, skip_after_attempts,
        min_interval_ms, released_at, body, event_filter"
    };
}

/// The columns for [`destination`]: those that never change, and those of an edit.
#[macro_export]
macro_rules! destination_columns {
    () => {
        concat!("id, tenant, created_at, ", $crate::edited_columns!())
    };
}

pub fn destination<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Destination, E> {
    // The numbers are positions in `destination_columns!`.
    let settings = Settings {
        tenant: row.text(1)?,
        name: row.text(4)?,
        url: row.parsed(5, "a URL", |text| text.parse().ok())?,
        event_types: row.parsed(6, "event types", event_types)?,
        filter: match row.optional_text(25)? {
            Some(text) => Some(Filter::from_stored(&text).map(Arc::new).ok_or(Corrupt("a filter"))?),
            None => None,
        },
        rate_limits: rate_limits(row, 7, 22)?,
        max_in_flight: row.small(8)?,
        timeout_ms: row.small(9)?,
        retry: row.parsed(10, "a retry policy", |text| serde_json::from_str(text).ok())?,
        headers: row.parsed(11, "headers", |text| serde_json::from_str(text).ok())?,
        signing: row.parsed(12, "signing settings", Signing::from_stored)?,
        paused: row.flag(13)?,
        breaker: row.parsed(17, "a breaker policy", |text| serde_json::from_str(text).ok())?,
        alerts: row.parsed(19, "alerts", |text| serde_json::from_str(text).ok())?,
        order: DeliveryOrder::new(row.flag(20)?, skip_after_attempts(row, 21)?),
        body: row.parsed(24, "the form of a body", |text| serde_json::from_str(text).ok())?,
    };
    Ok(Destination {
        id: row.destination_id(0)?,
        created_at: row.time(2)?,
        updated_at: row.time(3)?,
        settings,
        paused_reason: row.optional_text(14)?,
        held_until: row.optional_time(15)?,
        held_reason: row.optional_text(16)?,
        released_at: row.optional_time(23)?,
        breaker: row.parsed(18, "the state of a breaker", |text| serde_json::from_str(text).ok())?,
    })
}

/// The limits from their column, and the minimum interval from its own.
fn rate_limits<E: From<Corrupt>>(row: &impl Row<E>, of_periods: usize, interval: usize) -> Result<RateLimits, E> {
    let min_interval = match row.optional_int(interval)? {
        Some(millis) => {
            let interval = u32::try_from(millis).ok().and_then(MinInterval::from_millis);
            Some(interval.ok_or(Corrupt("a minimum interval"))?)
        }
        None => None,
    };
    Ok(row.parsed(of_periods, "a rate limit", limits)?.with_min_interval(min_interval))
}

fn event_types(text: &str) -> Option<Vec<EventPattern>> {
    let patterns: Vec<String> = serde_json::from_str(text).ok()?;
    patterns.iter().map(|pattern| pattern.parse().ok()).collect()
}

fn skip_after_attempts<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<Option<NonZeroU32>, E> {
    let Some(attempts) = row.optional_int(column)? else { return Ok(None) };
    let attempts = u32::try_from(attempts).ok().and_then(NonZeroU32::new);
    Ok(Some(attempts.ok_or(Corrupt("a number of attempts"))?))
}

/// A value that a store binds to a parameter of a statement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value<'v> {
    Int(Option<i64>),
    Text(Option<Cow<'v, str>>),
    Flag(bool),
}

/// The values of [`edited_columns!`](crate::edited_columns).
pub fn destination_values(destination: &Destination) -> Result<[Value<'_>; 23], serde_json::Error> {
    let int = |value: i64| Value::Int(Some(value));
    let optional_time = |time: Option<Timestamp>| Value::Int(time.map(Timestamp::as_nanos));
    fn text<'v>(value: impl Into<Cow<'v, str>>) -> Value<'v> {
        Value::Text(Some(value.into()))
    }
    fn optional_text(value: Option<&String>) -> Value<'_> {
        Value::Text(value.map(Into::into))
    }
    let settings = &destination.settings;
    let patterns: Vec<String> = settings.event_types.iter().map(ToString::to_string).collect();
    // The stores bind the values by position, so the order is that of the columns.
    Ok([
        int(destination.updated_at.as_nanos()),
        text(&settings.name),
        text(settings.url.as_str()),
        text(serde_json::to_string(&patterns)?),
        text(limits_json(&settings.rate_limits)),
        int(settings.max_in_flight.into()),
        int(settings.timeout_ms.into()),
        text(serde_json::to_string(&settings.retry)?),
        text(serde_json::to_string(&settings.headers)?),
        text(settings.signing.to_stored()?),
        Value::Flag(settings.paused),
        optional_text(destination.paused_reason.as_ref()),
        optional_time(destination.held_until),
        optional_text(destination.held_reason.as_ref()),
        text(serde_json::to_string(&settings.breaker)?),
        text(serde_json::to_string(&destination.breaker)?),
        text(serde_json::to_string(&settings.alerts)?),
        Value::Flag(settings.order.is_by_key()),
        Value::Int(settings.order.skip_after_attempts().map(|attempts| attempts.get().into())),
        Value::Int(interval_code(&settings.rate_limits)),
        optional_time(destination.released_at),
        text(serde_json::to_string(&settings.body)?),
        Value::Text(settings.filter.as_ref().map(|filter| filter.json().to_string().into())),
    ])
}

/// From three columns: an instant, and the limits and the minimum interval that apply from then on.
pub fn limit_change<E: From<Corrupt>>(row: &impl Row<E>) -> Result<LimitChange, E> {
    Ok(LimitChange { at: row.time(0)?, limits: rate_limits(row, 1, 2)? })
}
