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
        body: body(row, 5, id, keyring)??,
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

/// A body from three columns: its offset, its bytes and its trace.
fn body<E: From<Corrupt>>(
    row: &impl Row<E>,
    column: usize,
    id: EventId,
    keyring: &Keyring,
) -> Result<Result<EventBody, Unopened>, E> {
    let stored = row.optional_bytes(column + 1)?.ok_or(Corrupt("a body"))?;
    let bytes = match keyring.open_bytes(&BODY, id.as_bytes(), stored) {
        Ok(bytes) => Bytes::from(bytes.into_owned()),
        Err(error) => return Ok(Err(error)),
    };
    let trace = row.optional_bytes(column + 2)?.and_then(TraceParent::from_bytes);
    Ok(Ok(EventBody::stored(bytes, row.small(column)?).traced(trace)))
}

/// The body of a claimed delivery, from the same columns. One that cannot be opened stays in the store: its worker finds
/// out too, and keeps the delivery waiting.
pub fn claimed_body<E: From<Corrupt>>(
    row: &impl Row<E>,
    column: usize,
    id: EventId,
    keyring: &Keyring,
) -> Result<ClaimedBody, E> {
    Ok(body(row, column, id, keyring)?.map_or(ClaimedBody::InStore, ClaimedBody::Inline))
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
