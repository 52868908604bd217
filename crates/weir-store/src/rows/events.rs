//! Events and their bodies.

use bytes::Bytes;
use weir_core::{
    TraceParent,
    event::{DeliveryOptions, Event, EventBody},
};

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
            ", e.traceparent, e.deliver_at, e.expires_at, e.coalesce_key, e.ordering_key, e.filtered"
        )
    };
}

pub fn event<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Event, E> {
    Ok(Event {
        id: row.event_id(0)?,
        tenant: row.text(1)?,
        event_type: row.text(2)?,
        created_at: row.time(3)?,
        idempotency_key: row.optional_text(4)?,
        body: body(row, 5)?,
        options: DeliveryOptions {
            deliver_at: row.optional_time(8)?,
            expires_at: row.optional_time(9)?,
            coalesce_key: row.optional_text(10)?,
            ordering_key: row.optional_text(11)?,
        },
        filtered: row.optional_int(12)?.and_then(|filtered| filtered.try_into().ok()).unwrap_or(0),
    })
}

/// A body from three columns: its offset, its bytes and its trace.
pub fn body<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<EventBody, E> {
    let bytes = row.optional_bytes(column + 1)?.ok_or(Corrupt("a body"))?;
    let trace = row.optional_bytes(column + 2)?.and_then(TraceParent::from_bytes);
    Ok(EventBody::stored(Bytes::copy_from_slice(bytes), row.small(column)?).traced(trace))
}

/// The stored event of an idempotency key, under its tenant and key. After the columns of the event comes the number of
/// its deliveries.
pub fn known_event<E: From<Corrupt>>(row: &impl Row<E>) -> Result<((String, String), Ingested), E> {
    let event = event(row)?;
    let key = event.idempotency_key.clone().ok_or(Corrupt("an idempotency key"))?;
    let deliveries = row.small(13)?;
    Ok(((event.tenant.clone(), key), Ingested { event, deliveries, duplicate: true, wake: Vec::new() }))
}
