//! Events and their bodies.

use std::num::NonZeroU32;

use bytes::Bytes;
use weir_core::{
    EventId, LimitKey, TraceParent,
    claim::ClaimedBody,
    event::{DeliveryOptions, Event, EventBody},
};
use weir_sealing::{BODY, Keyring, Unopened};

use super::{Corrupt, Row};
use crate::Ingested;

/// The columns of an event `e`, for [`event`]. `$body` is the expression for the body: `e.body`, or an empty one, which
/// costs nothing to read.
#[macro_export]
macro_rules! event_columns {
    ($body:literal) => {
        concat!(
            "e.id, e.tenant, e.event_type, e.created_at, e.idempotency_key, e.data_offset, ",
            $body,
            ", e.traceparent, e.deliver_at, e.expires_at, e.coalesce_key, e.ordering_key, e.filtered, e.cost, e.limit_key"
        )
    };
}

pub fn event<E: From<Corrupt> + From<Unopened>>(row: &impl Row<E>, keyring: &Keyring) -> Result<Event, E> {
    let id = row.event_id(0)?;
    Ok(Event {
        id,
        tenant: row.text(1)?,
        event_type: row.text(2)?,
        created_at: row.time(3)?,
        idempotency_key: row.optional_text(4)?,
        body: body(row, 5, id, (2, 3), keyring)??,
        options: DeliveryOptions {
            deliver_at: row.optional_time(8)?,
            expires_at: row.optional_time(9)?,
            coalesce_key: row.optional_text(10)?,
            ordering_key: row.optional_text(11)?,
            cost: row.optional_int(13)?.and_then(|cost| u32::try_from(cost).ok()).and_then(NonZeroU32::new),
            limit_key: row.optional_text(14)?.map(|key| LimitKey::new(&key)),
        },
        filtered: row.optional_int(12)?.and_then(|filtered| filtered.try_into().ok()).unwrap_or(0),
    })
}

/// A body as a store keeps it: the offset of `data`, and the bytes.
///
/// A head that follows from the other columns of the event may be left out. Then the offset is negative, which programs
/// that know nothing of this do not read as a body.
pub fn body_without_head(event: &Event) -> (i64, Bytes) {
    let offset = i64::from(event.body.data_offset());
    match event.body.after_head(event.id, &event.event_type, event.created_at) {
        Some(after) => (-offset, after),
        None => (offset, event.body.bytes().clone()),
    }
}

/// A body from three columns: its offset, its bytes and its trace. If its head was left out, from the columns of the
/// type and the time of its event too.
fn body<E: From<Corrupt>>(
    row: &impl Row<E>,
    column: usize,
    id: EventId,
    (event_type, created_at): (usize, usize),
    keyring: &Keyring,
) -> Result<Result<EventBody, Unopened>, E> {
    let stored = row.optional_bytes(column + 1)?.ok_or(Corrupt("a body"))?;
    let bytes = match keyring.open_bytes(&BODY, id.as_bytes(), stored) {
        Ok(bytes) => bytes,
        Err(error) => return Ok(Err(error)),
    };
    let trace = row.optional_bytes(column + 2)?.and_then(TraceParent::from_bytes);
    let offset = row.int(column)?;
    let length = u32::try_from(offset.unsigned_abs()).map_err(|_| Corrupt("the offset of a body"))?;
    // A list of events reads no bytes.
    let body = if offset >= 0 || bytes.is_empty() {
        EventBody::stored(Bytes::from(bytes.into_owned()), length)
    } else {
        EventBody::with_head(id, &row.text(event_type)?, row.time(created_at)?, &bytes)
    };
    if body.data_offset() != length {
        return Err(Corrupt("the head of a body").into());
    }
    Ok(Ok(body.traced(trace)))
}

/// The body of a claimed delivery, from the same columns and then the type and the time of its event. One that cannot be
/// opened stays in the store: its worker finds out too, and keeps the delivery waiting.
pub fn claimed_body<E: From<Corrupt>>(
    row: &impl Row<E>,
    column: usize,
    id: EventId,
    keyring: &Keyring,
) -> Result<ClaimedBody, E> {
    let body = body(row, column, id, (column + 3, column + 4), keyring)?;
    Ok(body.map_or(ClaimedBody::InStore, ClaimedBody::Inline))
}

/// The stored event of an idempotency key, under its tenant and key. After the columns of the event comes the number of
/// its deliveries.
pub fn known_event<E: From<Corrupt> + From<Unopened>>(
    row: &impl Row<E>,
    keyring: &Keyring,
) -> Result<((String, String), Ingested), E> {
    let event = event(row, keyring)?;
    let key = event.idempotency_key.clone().ok_or(Corrupt("an idempotency key"))?;
    let deliveries = row.small(15)?;
    Ok(((event.tenant.clone(), key), Ingested { event, deliveries, duplicate: true, wake: Vec::new() }))
}
