//! Conversions between Rust and SQLite values: states and outcomes as numbers, ids as blobs, limits as JSON.

use bytes::Bytes;
use sqlx::{Row as _, sqlite::SqliteRow};
use weir_core::{
    AttemptId, DeliveryId, DeliveryState, DestinationId, ErrorKind, EventId, RateLimits, Timestamp, TraceParent,
    delivery::{Attempt, AttemptOutcome, Delivery, LastAttempt},
    event::{DeliveryOptions, Event, EventBody},
    order::BEHIND,
    outcome::Failure,
};
use weir_store::stored;

use crate::error::{Error, Result};

/// A row of either library, rusqlite or sqlx. The tables are STRICT, so columns have the types of the schema.
pub(crate) trait Columns {
    fn optional_int(&self, column: usize) -> Result<Option<i64>>;
    fn optional_text(&self, column: usize) -> Result<Option<String>>;
    fn optional_blob(&self, column: usize) -> Result<Option<&[u8]>>;
}

impl Columns for rusqlite::Row<'_> {
    fn optional_int(&self, column: usize) -> Result<Option<i64>> {
        Ok(self.get_ref(column)?.as_i64_or_null().map_err(rusqlite::Error::from)?)
    }

    fn optional_text(&self, column: usize) -> Result<Option<String>> {
        Ok(self.get(column)?)
    }

    fn optional_blob(&self, column: usize) -> Result<Option<&[u8]>> {
        Ok(self.get_ref(column)?.as_blob_or_null().map_err(rusqlite::Error::from)?)
    }
}

impl Columns for SqliteRow {
    fn optional_int(&self, column: usize) -> Result<Option<i64>> {
        Ok(self.try_get_unchecked(column)?)
    }

    fn optional_text(&self, column: usize) -> Result<Option<String>> {
        Ok(self.try_get_unchecked(column)?)
    }

    fn optional_blob(&self, column: usize) -> Result<Option<&[u8]>> {
        Ok(self.try_get_unchecked(column)?)
    }
}

pub(crate) fn int(row: &impl Columns, column: usize) -> Result<i64> {
    row.optional_int(column)?.ok_or(Error::Corrupt("a number"))
}

pub(crate) fn small(row: &impl Columns, column: usize) -> Result<u32> {
    u32::try_from(int(row, column)?).map_err(|_| Error::Corrupt("a number"))
}

pub(crate) fn count(row: &impl Columns, column: usize) -> Result<u64> {
    u64::try_from(int(row, column)?).map_err(|_| Error::Corrupt("a count"))
}

pub(crate) fn time(row: &impl Columns, column: usize) -> Result<Timestamp> {
    int(row, column).map(Timestamp::from_nanos)
}

pub(crate) fn optional_time(row: &impl Columns, column: usize) -> Result<Option<Timestamp>> {
    Ok(row.optional_int(column)?.map(Timestamp::from_nanos))
}

pub(crate) fn text(row: &impl Columns, column: usize) -> Result<String> {
    row.optional_text(column)?.ok_or(Error::Corrupt("a text"))
}

pub(crate) fn id(row: &impl Columns, column: usize) -> Result<[u8; 16]> {
    let bytes = row.optional_blob(column)?.unwrap_or_default();
    bytes.try_into().map_err(|_| Error::Corrupt("an id"))
}

pub(crate) fn destination_id(row: &impl Columns, column: usize) -> Result<DestinationId> {
    id(row, column).map(DestinationId::from_bytes)
}

pub(crate) fn delivery_id(row: &impl Columns, column: usize) -> Result<DeliveryId> {
    id(row, column).map(DeliveryId::from_bytes)
}

pub(crate) fn event_id(row: &impl Columns, column: usize) -> Result<EventId> {
    id(row, column).map(EventId::from_bytes)
}

pub(crate) fn state(row: &impl Columns, column: usize) -> Result<DeliveryState> {
    stored::state(int(row, column)?).ok_or(Error::Corrupt("a state"))
}

fn outcome(row: &impl Columns, column: usize) -> Result<AttemptOutcome> {
    stored::outcome(int(row, column)?).ok_or(Error::Corrupt("an outcome"))
}

macro_rules! event_columns {
    ($body:literal) => {
        concat!(
            "e.id, e.tenant, e.event_type, e.created_at, e.idempotency_key, e.data_offset, ",
            $body,
            ", e.traceparent, e.deliver_at, e.expires_at, e.coalesce_key, e.ordering_key"
        )
    };
}

/// The columns of [`event`].
pub(crate) const EVENT_COLUMNS: &str = event_columns!("e.body");
/// The same with an empty body, which costs nothing to read.
pub(crate) const BODILESS_EVENT_COLUMNS: &str = event_columns!("x''");

pub(crate) fn event(row: &impl Columns) -> Result<Event> {
    Ok(Event {
        id: event_id(row, 0)?,
        tenant: text(row, 1)?,
        event_type: text(row, 2)?,
        created_at: time(row, 3)?,
        idempotency_key: row.optional_text(4)?,
        body: body(row, 5)?,
        options: DeliveryOptions {
            deliver_at: optional_time(row, 8)?,
            expires_at: optional_time(row, 9)?,
            coalesce_key: row.optional_text(10)?,
            ordering_key: row.optional_text(11)?,
        },
    })
}

/// A body from three columns: its offset, its bytes and its trace.
pub(crate) fn body(row: &impl Columns, column: usize) -> Result<EventBody> {
    let bytes = row.optional_blob(column + 1)?.ok_or(Error::Corrupt("a body"))?;
    let trace = row.optional_blob(column + 2)?.and_then(TraceParent::from_bytes);
    Ok(EventBody::stored(Bytes::copy_from_slice(bytes), small(row, column)?).traced(trace))
}

/// The columns of [`delivery`].
pub(crate) const DELIVERY_COLUMNS: &str = "d.id, d.event_id, e.event_type, d.destination_id, d.state, d.attempts, d.next_attempt_at, d.created_at, d.updated_at,
    d.expires_at,
    a.outcome, a.status_code, a.failure, a.error";
/// Joins the last attempt, which [`DELIVERY_COLUMNS`] needs beside the delivery `d` and its event `e`.
pub(crate) const LAST_ATTEMPT: &str = "LEFT JOIN attempts a ON a.delivery_id = d.id AND a.number = d.attempts";

pub(crate) fn delivery(row: &impl Columns) -> Result<Delivery> {
    let state = state(row, 4)?;
    let waiting = state.is_waiting().then(|| time(row, 6)).transpose()?;
    Ok(Delivery {
        id: delivery_id(row, 0)?,
        event_id: event_id(row, 1)?,
        event_type: text(row, 2)?,
        destination_id: destination_id(row, 3)?,
        state,
        attempts: small(row, 5)?,
        next_attempt_at: waiting.filter(|due| *due < BEHIND),
        created_at: time(row, 7)?,
        updated_at: time(row, 8)?,
        expires_at: optional_time(row, 9)?,
        last_attempt: row.optional_int(10)?.map(|_| last_attempt(row)).transpose()?,
    })
}

fn last_attempt(row: &impl Columns) -> Result<LastAttempt> {
    let status_code = status_code(row, 11)?;
    Ok(LastAttempt {
        status_code,
        error: row.optional_text(13)?,
        error_kind: ErrorKind::of(outcome(row, 10)?, failure(row, 12)?, status_code),
    })
}

fn status_code(row: &impl Columns, column: usize) -> Result<Option<u16>> {
    let status_code = row.optional_int(column)?.map(u16::try_from).transpose();
    status_code.map_err(|_| Error::Corrupt("a status code"))
}

fn failure(row: &impl Columns, column: usize) -> Result<Option<Failure>> {
    let Some(code) = row.optional_int(column)? else { return Ok(None) };
    stored::failure(code).map(Some).ok_or(Error::Corrupt("a failure"))
}

/// The limits of a JSON column.
pub(crate) fn limits(text: &str) -> Result<RateLimits> {
    stored::limits(text).ok_or(Error::Corrupt("a rate limit"))
}

/// The columns of [`attempt`].
pub(crate) const ATTEMPT_COLUMNS: &str =
    "id, delivery_id, number, sent_at, duration_ms, outcome, status_code, error, failure, response_body";

pub(crate) fn attempt(row: &impl Columns) -> Result<Attempt> {
    Ok(Attempt {
        id: AttemptId::from_bytes(id(row, 0)?),
        delivery_id: delivery_id(row, 1)?,
        number: small(row, 2)?,
        sent_at: optional_time(row, 3)?,
        duration_ms: small(row, 4)?,
        outcome: outcome(row, 5)?,
        status_code: status_code(row, 6)?,
        error: row.optional_text(7)?,
        failure: failure(row, 8)?,
        response_body: row.optional_text(9)?,
    })
}
