//! Conversion between Rust values and PostgreSQL values: states and outcomes as numbers, limits as JSON.

use bytes::Bytes;
use sqlx::{Row as _, ValueRef as _, postgres::PgRow, types::Uuid};
use weir_core::{
    AttemptId, DeliveryId, DeliveryState, DestinationId, ErrorKind, EventId, RateLimits, ReplayId, Timestamp,
    TraceParent,
    claim::ProcessId,
    delivery::{Attempt, AttemptOutcome, Delivery, LastAttempt},
    event::{DeliveryOptions, Event, EventBody},
    order::BEHIND,
    outcome::Failure,
};
use weir_store::stored;

/// The error for a stored value that this program could not have written.
pub(crate) fn corrupt(what: &str) -> sqlx::Error {
    sqlx::Error::Decode(format!("{what} in the database cannot be read").into())
}

// The schema fixes the types of the columns, so sqlx need not check them for each value. Integers of every width are
// read as `i64`.

pub(crate) fn int(row: &PgRow, column: usize) -> Result<i64, sqlx::Error> {
    row.try_get_unchecked(column)
}

pub(crate) fn optional_int(row: &PgRow, column: usize) -> Result<Option<i64>, sqlx::Error> {
    row.try_get_unchecked(column)
}

pub(crate) fn small(row: &PgRow, column: usize) -> Result<u32, sqlx::Error> {
    u32::try_from(int(row, column)?).map_err(|_| corrupt("a number"))
}

pub(crate) fn count(row: &PgRow, column: usize) -> Result<u64, sqlx::Error> {
    u64::try_from(int(row, column)?).map_err(|_| corrupt("a count"))
}

pub(crate) fn time(row: &PgRow, column: usize) -> Result<Timestamp, sqlx::Error> {
    int(row, column).map(Timestamp::from_nanos)
}

pub(crate) fn optional_time(row: &PgRow, column: usize) -> Result<Option<Timestamp>, sqlx::Error> {
    Ok(optional_int(row, column)?.map(Timestamp::from_nanos))
}

pub(crate) fn text(row: &PgRow, column: usize) -> Result<String, sqlx::Error> {
    row.try_get_unchecked(column)
}

pub(crate) fn optional_text(row: &PgRow, column: usize) -> Result<Option<String>, sqlx::Error> {
    row.try_get_unchecked(column)
}

pub(crate) fn flag(row: &PgRow, column: usize) -> Result<bool, sqlx::Error> {
    row.try_get_unchecked(column)
}

/// Whether the column is NULL.
pub(crate) fn is_null(row: &PgRow, column: usize) -> Result<bool, sqlx::Error> {
    Ok(row.try_get_raw(column)?.is_null())
}

fn id(row: &PgRow, column: usize) -> Result<[u8; 16], sqlx::Error> {
    row.try_get_unchecked(column).map(Uuid::into_bytes)
}

/// An id as a parameter.
pub(crate) const fn uuid(id: &[u8; 16]) -> Uuid {
    Uuid::from_bytes(*id)
}

pub(crate) fn destination_id(row: &PgRow, column: usize) -> Result<DestinationId, sqlx::Error> {
    id(row, column).map(DestinationId::from_bytes)
}

pub(crate) fn delivery_id(row: &PgRow, column: usize) -> Result<DeliveryId, sqlx::Error> {
    id(row, column).map(DeliveryId::from_bytes)
}

pub(crate) fn event_id(row: &PgRow, column: usize) -> Result<EventId, sqlx::Error> {
    id(row, column).map(EventId::from_bytes)
}

pub(crate) fn replay_id(row: &PgRow, column: usize) -> Result<ReplayId, sqlx::Error> {
    id(row, column).map(ReplayId::from_bytes)
}

pub(crate) fn process_id(row: &PgRow, column: usize) -> Result<ProcessId, sqlx::Error> {
    i32::try_from(int(row, column)?).map(ProcessId).map_err(|_| corrupt("a process"))
}

pub(crate) fn state(row: &PgRow, column: usize) -> Result<DeliveryState, sqlx::Error> {
    stored::state(int(row, column)?).ok_or_else(|| corrupt("a state"))
}

fn outcome(row: &PgRow, column: usize) -> Result<AttemptOutcome, sqlx::Error> {
    stored::outcome(int(row, column)?).ok_or_else(|| corrupt("an outcome"))
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

/// The columns for [`event`].
pub(crate) const EVENT_COLUMNS: &str = event_columns!("e.body");
/// The same columns with an empty body, which costs nothing to read.
pub(crate) const BODILESS_EVENT_COLUMNS: &str = event_columns!("''::bytea");

pub(crate) fn event(row: &PgRow) -> Result<Event, sqlx::Error> {
    Ok(Event {
        id: event_id(row, 0)?,
        tenant: text(row, 1)?,
        event_type: text(row, 2)?,
        created_at: time(row, 3)?,
        idempotency_key: optional_text(row, 4)?,
        body: body(row, 5)?,
        options: DeliveryOptions {
            deliver_at: optional_time(row, 8)?,
            expires_at: optional_time(row, 9)?,
            coalesce_key: optional_text(row, 10)?,
            ordering_key: optional_text(row, 11)?,
        },
    })
}

/// A body from three columns: its offset, its bytes and its trace.
pub(crate) fn body(row: &PgRow, column: usize) -> Result<EventBody, sqlx::Error> {
    let bytes: Vec<u8> = row.try_get_unchecked(column + 1)?;
    let trace: Option<&[u8]> = row.try_get_unchecked(column + 2)?;
    let trace = trace.and_then(TraceParent::from_bytes);
    Ok(EventBody::stored(Bytes::from(bytes), small(row, column)?).traced(trace))
}

/// The columns for [`delivery`].
pub(crate) const DELIVERY_COLUMNS: &str = "d.id, d.event_id, e.event_type, d.destination_id, d.state, d.attempts, d.next_attempt_at, d.created_at, d.updated_at,
    d.expires_at,
    a.outcome, a.status_code, a.failure, a.error";
/// The join for the columns of [`DELIVERY_COLUMNS`] that are not of the delivery `d` and its event `e`.
pub(crate) const LAST_ATTEMPT: &str = "LEFT JOIN attempts a ON a.delivery_id = d.id AND a.number = d.attempts";

pub(crate) fn delivery(row: &PgRow) -> Result<Delivery, sqlx::Error> {
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
        last_attempt: optional_int(row, 10)?.map(|_| last_attempt(row)).transpose()?,
    })
}

fn last_attempt(row: &PgRow) -> Result<LastAttempt, sqlx::Error> {
    let status_code = status_code(row, 11)?;
    Ok(LastAttempt {
        status_code,
        error: optional_text(row, 13)?,
        error_kind: ErrorKind::of(outcome(row, 10)?, failure(row, 12)?, status_code),
    })
}

fn status_code(row: &PgRow, column: usize) -> Result<Option<u16>, sqlx::Error> {
    optional_int(row, column)?.map(u16::try_from).transpose().map_err(|_| corrupt("a status code"))
}

fn failure(row: &PgRow, column: usize) -> Result<Option<Failure>, sqlx::Error> {
    let Some(code) = optional_int(row, column)? else { return Ok(None) };
    stored::failure(code).map(Some).ok_or_else(|| corrupt("a failure"))
}

/// The limits of a JSON column.
pub(crate) fn limits(text: &str) -> Result<RateLimits, sqlx::Error> {
    stored::limits(text).ok_or_else(|| corrupt("a rate limit"))
}

/// The columns for [`attempt`].
pub(crate) const ATTEMPT_COLUMNS: &str =
    "id, delivery_id, number, sent_at, duration_ms, outcome, status_code, error, failure, response_body";

pub(crate) fn attempt(row: &PgRow) -> Result<Attempt, sqlx::Error> {
    let response_body: Option<Vec<u8>> = row.try_get_unchecked(9)?;
    Ok(Attempt {
        id: AttemptId::from_bytes(id(row, 0)?),
        delivery_id: delivery_id(row, 1)?,
        number: small(row, 2)?,
        sent_at: optional_time(row, 3)?,
        duration_ms: small(row, 4)?,
        outcome: outcome(row, 5)?,
        status_code: status_code(row, 6)?,
        error: optional_text(row, 7)?,
        failure: failure(row, 8)?,
        response_body: response_body.map(String::from_utf8).transpose().map_err(|_| corrupt("a response body"))?,
    })
}
