//! Reads one event from its bytes, in a single pass.

use std::{borrow::Cow, ops::RangeInclusive, time::Duration};

use http::HeaderMap;
use serde::Deserialize;
use serde_json::value::RawValue;
use weir_core::{
    DestinationId, EventId, Timestamp,
    destination::DEFAULT_TENANT,
    event::{DeliveryOptions, Event, EventBody, MAX_TYPE_LEN, valid_type},
    id::InvalidId,
    time::InvalidTimestamp,
};
use weir_store::NewEvent;

use super::{KEY_HEADER, diagnosis};
use crate::{
    fields::{Errors, outside},
    problem::{ApiResult, Problem},
    settings::check_tenant,
};

const MAX_KEY_LEN: usize = 255;
/// The maximum number of destinations that one event may name.
const MAX_DESTINATIONS: usize = 1_000;
/// The longest delay of an event.
const MAX_DELAY: Duration = Duration::from_secs(365 * 24 * 3_600);
pub(super) const TTL_RANGE: RangeInclusive<u32> = 1..=31_536_000;
/// The prefix of alert events, which only Weir creates.
const RESERVED_TYPES: &str = "weir.";

/// The body of an event.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EventRequest<'a> {
    #[serde(borrow, rename = "type")]
    event_type: Cow<'a, str>,
    #[serde(borrow)]
    data: &'a RawValue,
    tenant: Option<String>,
    idempotency_key: Option<String>,
    destinations: Option<Vec<String>>,
    deliver_at: Option<String>,
    ttl_s: Option<u32>,
    coalesce_key: Option<String>,
    ordering_key: Option<String>,
}

/// The idempotency key of the header, checked like the field.
pub(super) fn header_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    let key = value.to_str().ok().filter(|key| check_idempotency_key(key).is_ok());
    match key {
        Some(key) if values.all(|other| other == value) => Ok(Some(key.to_owned())),
        Some(_) => Err(Problem::invalid_field("/idempotency_key", "differs between several headers")),
        None => Err(Problem::invalid_field("/idempotency_key", KEY_RULE)),
    }
}

/// Reads the event of a body, at `index` of its batch.
pub(super) fn event(bytes: &[u8], header_key: Option<String>, now: Timestamp, index: usize) -> ApiResult<NewEvent> {
    match serde_json::from_slice::<EventRequest<'_>>(bytes) {
        Ok(request) => accept(request, header_key, now, index),
        Err(error) => Err(diagnosis::event(bytes, &error, now)),
    }
}

fn accept(request: EventRequest<'_>, header_key: Option<String>, now: Timestamp, index: usize) -> ApiResult<NewEvent> {
    let mut errors = Errors::default();
    if let Err(detail) = check_type(&request.event_type) {
        errors.add("/type", detail);
    }
    if let Some(Err(detail)) = request.tenant.as_deref().map(check_tenant) {
        errors.add("/tenant", detail);
    }
    if let Some(Err(detail)) = request.idempotency_key.as_deref().map(check_idempotency_key) {
        errors.add("/idempotency_key", detail);
    }
    if let (Some(field), Some(header)) = (&request.idempotency_key, &header_key)
        && field != header
    {
        errors.add("/idempotency_key", "differs from the `Idempotency-Key` header");
    }
    let destinations = request.destinations.map(|ids| read_destinations(&ids, &mut errors));
    let mut options = read_options(request.deliver_at.as_deref(), request.ttl_s, now, &mut errors);
    if let Some(Err(detail)) = request.coalesce_key.as_deref().map(check_event_key) {
        errors.add("/coalesce_key", detail);
    }
    if let Some(Err(detail)) = request.ordering_key.as_deref().map(check_event_key) {
        errors.add("/ordering_key", detail);
    }
    options.coalesce_key = request.coalesce_key;
    options.ordering_key = request.ordering_key;
    if !errors.is_empty() {
        return Err(Problem::invalid(errors.into_vec()));
    }
    let random = sortable_random(now, index);
    let id = EventId::new(now, random);
    let body = EventBody::freeze(id, &request.event_type, now, request.data.get());
    let event = Event {
        id,
        tenant: request.tenant.unwrap_or_else(|| DEFAULT_TENANT.to_owned()),
        event_type: request.event_type.into_owned(),
        created_at: now,
        idempotency_key: request.idempotency_key.or(header_key),
        options,
        body,
    };
    Ok(NewEvent { event, destinations, random })
}

/// Reads the delivery options of an event. `ttl_s` counts from the time at which the event may be sent.
fn read_options(deliver_at: Option<&str>, ttl_s: Option<u32>, now: Timestamp, errors: &mut Errors) -> DeliveryOptions {
    let deliver_at = deliver_at.and_then(|text| match check_deliver_at(text, now) {
        Ok(at) => Some(at),
        Err(detail) => {
            errors.add("/deliver_at", detail);
            None
        }
    });
    if ttl_s.is_some_and(|ttl_s| !TTL_RANGE.contains(&ttl_s)) {
        errors.add("/ttl_s", outside(&TTL_RANGE));
    }
    let due = deliver_at.unwrap_or(now).max(now);
    let expires_at = ttl_s.map(|ttl_s| due + Duration::from_secs(ttl_s.into()));
    DeliveryOptions { deliver_at, expires_at, ..DeliveryOptions::default() }
}

fn read_destinations(ids: &[String], errors: &mut Errors) -> Vec<DestinationId> {
    if !(1..=MAX_DESTINATIONS).contains(&ids.len()) {
        let detail =
            format!("must name 1 to {MAX_DESTINATIONS} destinations; omit it to send to all matching destinations");
        errors.add("/destinations", detail);
        return Vec::new();
    }
    let parse = |(index, id): (usize, &String)| match id.parse() {
        Ok(id) => Some(id),
        Err(error) => {
            errors.add(format!("/destinations/{index}"), InvalidId::to_string(&error));
            None
        }
    };
    ids.iter().enumerate().filter_map(parse).collect()
}

const TYPE_RULE: &str = "must be dot-separated words of letters, digits, `_` and `-`, such as `video.created`";
const KEY_RULE: &str = "must be 1 to 255 printable ASCII characters";

pub(super) fn check_type(text: &str) -> Result<(), String> {
    match text {
        _ if text.len() > MAX_TYPE_LEN => Err(format!("must be at most {MAX_TYPE_LEN} characters long")),
        _ if !valid_type(text) => Err(TYPE_RULE.to_owned()),
        _ if text.starts_with(RESERVED_TYPES) => {
            Err("must not begin with `weir.`, which is reserved for alerts".to_owned())
        }
        _ => Ok(()),
    }
}

pub(super) fn check_idempotency_key(text: &str) -> Result<(), &'static str> {
    let printable = |byte: u8| (b' '..=b'~').contains(&byte);
    if (1..=MAX_KEY_LEN).contains(&text.len()) && text.bytes().all(printable) { Ok(()) } else { Err(KEY_RULE) }
}

/// Checks a coalesce key or an ordering key.
pub(super) fn check_event_key(text: &str) -> Result<(), &'static str> {
    let fits = (1..=MAX_KEY_LEN).contains(&text.len()) && !text.contains(char::is_control);
    if fits { Ok(()) } else { Err("must be 1 to 255 bytes long, without control characters") }
}

pub(super) fn check_deliver_at(text: &str, now: Timestamp) -> Result<Timestamp, String> {
    let at: Timestamp = text.parse().map_err(|error: InvalidTimestamp| error.to_string())?;
    if at > now + MAX_DELAY { Err("must be at most 365 days ahead".to_owned()) } else { Ok(at) }
}

/// Random bits with a sortable prefix: ids with these bits sort by the time within a millisecond, then by the index
/// within a batch (RFC 9562, section 6.2, methods 3 and 2). So lists and deliveries keep the order in which events
/// arrived.
fn sortable_random(now: Timestamp, index: usize) -> u128 {
    let fraction = now.as_nanos().rem_euclid(1_000_000) as u128 * 4_096 / 1_000_000;
    let index = (index as u128) & 0x3ff;
    let random = u128::from(rand::random::<u64>()) & ((1 << 52) - 1);
    fraction << 64 | index << 52 | random
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_sort_by_time_within_a_millisecond_and_by_index_within_a_batch() {
        let at = |nanos: i64, index| {
            let now = Timestamp::from_nanos(1_763_710_200_000_000_000 + nanos);
            EventId::new(now, sortable_random(now, index))
        };
        let ids = [at(0, 0), at(0, 1), at(0, 999), at(500, 0), at(250_000, 0), at(999_999, 0), at(1_000_000, 0)];
        assert!(ids.windows(2).all(|pair| pair[0] < pair[1]), "{ids:?}");
        assert_ne!(at(0, 0), at(0, 0));
    }
}
