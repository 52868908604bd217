//! Reads one event from its bytes, in a single pass.

use std::{num::NonZeroU32, ops::RangeInclusive, sync::LazyLock, time::Duration};

use http::HeaderMap;
use weir_core::{
    DestinationId, EventId, LimitKey, Timestamp,
    destination::DEFAULT_TENANT,
    event::{DeliveryOptions, Event, EventBody},
    id::InvalidId,
};
use weir_store::NewEvent;

use super::{
    diagnosis,
    request::{BorrowedEvent, EventRequest, MAX_DESTINATIONS, check_delay},
};
use crate::{
    auth::Caller,
    errors::Errors,
    event_types::Checks,
    problem::{ApiResult, Problem},
    readers::{
        depth::{MAX_DEPTH, is_too_deep},
        fields::{object_schema, schema_of},
        texts::{check_event_key, check_idempotency_key, check_limit_key, check_new_type, check_tenant, parsed},
        values::{outside, range, whole},
    },
};

/// The header with the idempotency key, with which a producer can safely repeat a request.
pub(super) const KEY_HEADER: &str = "idempotency-key";
/// The ranges of numbers, from the schema.
static TTL_RANGE: LazyLock<RangeInclusive<u32>> = LazyLock::new(|| range_of("ttl_s"));
static COST_RANGE: LazyLock<RangeInclusive<u32>> = LazyLock::new(|| range_of("cost"));

fn range_of(field: &str) -> RangeInclusive<u32> {
    range(schema_of(object_schema::<EventRequest>().properties.get(field)))
}

/// The idempotency key of the header, checked like the field.
pub(super) fn header_key(headers: &HeaderMap) -> ApiResult<Option<String>> {
    let mut values = headers.get_all(KEY_HEADER).iter();
    let Some(value) = values.next() else { return Ok(None) };
    // A value that is not ASCII is as invalid as an empty one.
    let key = value.to_str().unwrap_or_default();
    match check_idempotency_key(key) {
        Ok(()) if values.all(|other| other == value) => Ok(Some(key.to_owned())),
        Ok(()) => Err(Problem::invalid_field(
            "/idempotency_key",
            "must be given once: several `Idempotency-Key` headers differ",
        )),
        Err(detail) => Err(Problem::invalid_field("/idempotency_key", detail)),
    }
}

/// Reads the event of a body, at `index` of its batch.
pub(super) fn event(
    bytes: &[u8],
    header_key: Option<String>,
    caller: &Caller,
    now: Timestamp,
    index: usize,
    checks: Option<&Checks>,
) -> ApiResult<NewEvent> {
    match serde_json::from_slice::<BorrowedEvent<'_>>(bytes) {
        Ok(request) => accept(request, header_key, caller, now, index, checks),
        Err(error) => Err(diagnosis::event(bytes, &error, now)),
    }
}

fn accept(
    request: BorrowedEvent<'_>,
    header_key: Option<String>,
    caller: &Caller,
    now: Timestamp,
    index: usize,
    checks: Option<&Checks>,
) -> ApiResult<NewEvent> {
    // Every field is read first, and the errors are returned together: the client gets all of them in one answer.
    let mut errors = Errors::default();
    check(&request, header_key.as_deref(), &mut errors);
    // `ttl_s` becomes an instant.
    let destinations = request.destinations.map(|ids| read_destinations(&ids, &mut errors));
    let mut options = read_options(request.deliver_at.as_deref(), request.ttl_s, now, &mut errors);
    for (pointer, key) in [("/coalesce_key", &request.coalesce_key), ("/ordering_key", &request.ordering_key)] {
        if let Some(Err(detail)) = key.as_deref().map(check_event_key) {
            errors.add(pointer, detail);
        }
    }
    options.coalesce_key = request.coalesce_key;
    options.ordering_key = request.ordering_key;
    if let Some(Err(detail)) = request.limit_key.as_deref().map(check_limit_key) {
        errors.add("/limit_key", detail);
    }
    options.limit_key = request.limit_key.as_deref().map(LimitKey::new);
    if let Some(cost) = request.cost {
        match whole(cost, &COST_RANGE) {
            // The usual cost is none, so that the same event has the same options.
            Some(cost) => options.cost = NonZeroU32::new(cost).filter(|cost| cost.get() != 1),
            None => errors.add("/cost", outside(&COST_RANGE)),
        }
    }
    // Data that is too deep is not checked further.
    if let Some(checks) = checks.filter(|_| errors.is_empty()) {
        checks.check(&request.event_type, request.data, &mut errors);
    }
    if !errors.is_empty() {
        return Err(Problem::invalid(errors.into_vec()));
    }

    // A key that is bound to tenants sends events only for these.
    let tenant = caller.limit_to(request.tenant)?.unwrap_or_else(|| DEFAULT_TENANT.to_owned());

    // The random bits contain the index, so the ids of a batch keep its order. Delivery ids are made from the same
    // bits.
    let random = sortable_random(now, index);
    let id = EventId::new(now, random);
    // The frozen body contains the id and the time. Every destination gets these bytes.
    let body = EventBody::freeze(id, &request.event_type, now, request.data.get());
    let event = Event {
        id,
        tenant,
        event_type: request.event_type.into_owned(),
        created_at: now,
        idempotency_key: request.idempotency_key.or(header_key),
        options,
        body,
        filtered: 0,
    };
    Ok(NewEvent { client: caller.sender().key.id, ..NewEvent::new(event, destinations, random) })
}

/// Checks the fields that stay texts.
fn check(request: &BorrowedEvent<'_>, header_key: Option<&str>, errors: &mut Errors) {
    if let Err(detail) = check_new_type(&request.event_type) {
        errors.add("/type", detail);
    }
    if is_too_deep(request.data.get().as_bytes()) {
        errors.add("/data", format!("must be nested at most {MAX_DEPTH} levels deep"));
    }
    if let Some(Err(detail)) = request.tenant.as_deref().map(check_tenant) {
        errors.add("/tenant", detail);
    }
    if let Some(Err(detail)) = request.idempotency_key.as_deref().map(check_idempotency_key) {
        errors.add("/idempotency_key", detail);
    }
    // The key may be in the field, in the header, or in both if they are equal.
    if let (Some(field), Some(header)) = (request.idempotency_key.as_deref(), header_key)
        && field != header
    {
        errors.add(
            "/idempotency_key",
            "differs from the `Idempotency-Key` header: send one of them, or the same key in both",
        );
    }
}

/// Reads the delivery options of an event. `ttl_s` counts from the time at which the event may be sent.
fn read_options(deliver_at: Option<&str>, ttl_s: Option<f64>, now: Timestamp, errors: &mut Errors) -> DeliveryOptions {
    let deliver_at = deliver_at.and_then(|text| match parsed(text).and_then(|at| check_delay(at, now)) {
        Ok(at) => Some(at),
        Err(detail) => {
            errors.add("/deliver_at", detail);
            None
        }
    });
    let is_given = ttl_s.is_some();
    let ttl_s = ttl_s.and_then(|ttl_s| whole(ttl_s, &TTL_RANGE));
    if is_given && ttl_s.is_none() {
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
