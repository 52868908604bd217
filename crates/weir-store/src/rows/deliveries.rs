//! Deliveries, their attempts, and the sends among the attempts.

use std::{borrow::Cow, net::SocketAddr, time::Duration};

use weir_core::{
    AttemptId, DeliveryState, ErrorKind, LimitKey,
    delivery::{Attempt, AttemptDetails, AttemptOutcome, ConnectionDetails, Delivery, LastAttempt},
    order::BEHIND,
};
use weir_sealing::{Keyring, RESPONSE_BODY, row as row_of};

use super::{Corrupt, Row, failure_code, state_code};
use crate::{ErrorFilter, FailedDelivery, PastRecord, PastRecordAttempt, SendPosition, SendRecord, sql};

/// The columns of a delivery `d`, its event `e` and its last attempt `a`, for [`delivery`].
pub const DELIVERY_COLUMNS: &str = "d.id, d.event_id, e.event_type, d.destination_id, d.state, d.attempts, \
    d.next_attempt_at, d.created_at, d.updated_at, d.expires_at, a.outcome, a.status_code, a.failure, a.error, e.cost, d.limit_key";

/// Joins the last attempt `a` to the delivery `d`.
pub const LAST_ATTEMPT: &str = "LEFT JOIN attempts a ON a.delivery_id = d.id AND a.number = d.attempts";

/// The condition that `column` has one of these states; no condition if there are none. With literals and not
/// parameters: a planner uses a partial index only for a condition that it knows.
pub fn in_states(column: &str, states: &[DeliveryState]) -> String {
    let codes: Vec<_> = states.iter().map(|state| state_code(*state).to_string()).collect();
    match codes.as_slice() {
        [] => "true".to_owned(),
        [one] => format!("{column} = {one}"),
        several => format!("{column} IN ({})", several.join(", ")),
    }
}

/// The condition on the last attempt `a` for a filter by error. A condition that ends with `=` is followed by the
/// value.
pub fn error_condition(error: ErrorFilter) -> (&'static str, Option<i32>) {
    match error {
        ErrorFilter::Status(status) => {
            (sql!("a.outcome <> {outcome_delivered} AND a.status_code ="), Some(status.into()))
        }
        ErrorFilter::Kind(ErrorKind::Unknown) => (sql!("a.outcome = {outcome_unknown}"), None),
        ErrorFilter::Kind(ErrorKind::Failure(failure)) => ("a.failure =", Some(failure_code(failure).into())),
        ErrorFilter::Kind(ErrorKind::Answer(class)) => (
            sql!(
                "a.outcome IN ({outcome_retryable}, {outcome_rejected}) AND a.failure IS NULL AND a.status_code / 100 ="
            ),
            Some(class.into()),
        ),
    }
}

pub fn delivery<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Delivery, E> {
    let state = row.state(4)?;
    let waiting = state.is_waiting().then(|| row.time(6)).transpose()?;
    Ok(Delivery {
        id: row.delivery_id(0)?,
        event_id: row.event_id(1)?,
        event_type: row.text(2)?,
        destination_id: row.destination_id(3)?,
        state,
        attempts: row.small(5)?,
        next_attempt_at: waiting.filter(|due| *due < BEHIND),
        created_at: row.time(7)?,
        updated_at: row.time(8)?,
        expires_at: row.optional_time(9)?,
        cost: cost(row, 14)?,
        limit_key: row.optional_text(15)?.map(|key| LimitKey::new(&key)),
        last_attempt: row.optional_int(10)?.map(|_| last_attempt(row)).transpose()?,
    })
}

/// A cost is 1 where the column is null.
pub fn cost<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<u32, E> {
    Ok(row.optional_int(column)?.map_or(Ok(1), u32::try_from).map_err(|_| Corrupt("a cost"))?)
}

fn last_attempt<E: From<Corrupt>>(row: &impl Row<E>) -> Result<LastAttempt, E> {
    let status_code = status_code(row, 11)?;
    let error_kind = ErrorKind::of(row.outcome(10)?, row.optional_failure(12)?, status_code);
    Ok(LastAttempt { status_code, error: row.optional_text(13)?, error_kind })
}

fn status_code<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<Option<u16>, E> {
    let status_code = row.optional_int(column)?.map(u16::try_from).transpose();
    Ok(status_code.map_err(|_| Corrupt("a status code"))?)
}

/// The columns of a delivery `d`, its destination `t` and its last attempt `a`, and whether it matches, for
/// [`failed_delivery`].
pub const FAILED_COLUMNS: &str =
    "d.id, d.destination_id, t.name, d.state, d.created_at, a.outcome, a.failure, a.status_code, a.error";

/// The last column is the flag.
pub fn failed_delivery<E: From<Corrupt>>(row: &impl Row<E>) -> Result<FailedDelivery, E> {
    Ok(FailedDelivery {
        id: row.delivery_id(0)?,
        destination_id: row.destination_id(1)?,
        destination_name: row.optional_text(2)?.unwrap_or_default(),
        state: row.state(3)?,
        created_at: row.time(4)?,
        outcome: row.optional_int(5)?.map(|_| row.outcome(5)).transpose()?,
        failure: row.optional_failure(6)?,
        status_code: status_code(row, 7)?,
        error: row.optional_text(8)?,
        matches: row.flag(9)?,
    })
}

/// The columns for [`attempt`].
pub const ATTEMPT_COLUMNS: &str = "id, delivery_id, number, sent_at, duration_ms, outcome, status_code, error, \
    failure, response_body, signed_at, connection, response_headers";

pub fn attempt<E: From<Corrupt>>(row: &impl Row<E>, keyring: &Keyring) -> Result<Attempt, E> {
    let (delivery_id, number) = (row.delivery_id(1)?, row.small(2)?);
    let response_body = row.optional_text(9)?.map(|stored| {
        let opened = keyring.open_text(&RESPONSE_BODY, &row_of(delivery_id.as_bytes(), number), stored);
        // The attempt can be shown without it.
        opened.unwrap_or_else(|error| format!("({error})"))
    });
    Ok(Attempt {
        id: AttemptId::from_bytes(row.id(0)?),
        delivery_id,
        number,
        sent_at: row.optional_time(3)?,
        duration_ms: row.small(4)?,
        outcome: row.outcome(5)?,
        status_code: status_code(row, 6)?,
        error: row.optional_text(7)?,
        failure: row.optional_failure(8)?,
        response_body,
        details: AttemptDetails {
            signed_at: row.optional_time(10)?,
            connection: row.optionally_parsed(11, "the connection of an attempt", connection)?,
            response_headers: row
                .optionally_parsed(12, "the headers of an answer", |headers| serde_json::from_str(headers).ok())?
                .unwrap_or_default(),
        },
    })
}

fn connection(json: &str) -> Option<ConnectionDetails> {
    let (remote_address, connect_ms, tls_ms) = serde_json::from_str(json).ok()?;
    Some(ConnectionDetails { remote_address, connect_ms, tls_ms })
}

/// The connection of an attempt as a JSON array: the remote address, `connect_ms` and `tls_ms`.
pub fn connection_json(details: &AttemptDetails) -> Option<String> {
    let ConnectionDetails { remote_address, connect_ms, tls_ms } = details.connection?;
    let connection: (SocketAddr, Option<u32>, Option<u32>) = (remote_address, connect_ms, tls_ms);
    serde_json::to_string(&connection).ok()
}

/// The body of an answer as it is stored.
pub fn response_body<'a>(attempt: &'a Attempt, keyring: &Keyring) -> Option<Cow<'a, str>> {
    let row = row_of(attempt.delivery_id.as_bytes(), attempt.number);
    attempt.response_body.as_deref().map(|body| keyring.seal_text(&RESPONSE_BODY, &row, body))
}

/// The headers of an answer as a JSON array of `[name, value]`; `None` if there are none.
pub fn response_headers_json(details: &AttemptDetails) -> Option<String> {
    if details.response_headers.is_empty() {
        return None;
    }
    serde_json::to_string(&details.response_headers).ok()
}

/// From ten columns: when the send started, its delivery, the number of its attempt, how long it took, its outcome,
/// when the delivery began to be due, whether the receiver refused it for its rate, its status, its failure and its cost.
pub fn send<E: From<Corrupt>>(row: &impl Row<E>) -> Result<SendRecord, E> {
    let position = SendPosition { sent_at: row.time(0)?, delivery_id: row.delivery_id(1)?, number: row.small(2)? };
    let answered_at = position.sent_at + Duration::from_millis(row.small(3)?.into());
    let outcome = row.outcome(4)?;
    let delivered = if outcome == AttemptOutcome::Delivered { Some((row.time(5)?, answered_at)) } else { None };
    let is_refused = row.flag(6)?;
    let status_code = status_code(row, 7)?;
    let error_kind = ErrorKind::of(outcome, row.optional_failure(8)?, status_code);
    let is_unknown = outcome == AttemptOutcome::Unknown;
    let cost = cost(row, 9)?;
    Ok(SendRecord { position, cost, delivered, is_unknown, is_refused, status_code, error_kind })
}

/// The columns of a delivery `d` and the replay `p` that took it, for [`past_delivery`].
pub const PAST_DELIVERY_COLUMNS: &str = "d.id, d.state, coalesce(d.deliver_at, d.created_at), d.next_attempt_at, \
    d.expires_at, p.created_at, d.cost";

/// The columns of an attempt `a` after those, for [`past`].
pub const PAST_ATTEMPT_COLUMNS: &str = "a.number, a.id, a.sent_at, a.duration_ms, a.outcome";

pub fn past<E: From<Corrupt>>(row: &impl Row<E>) -> Result<PastRecord, E> {
    let attempt = row.optional_int(7)?.map(|_| past_attempt(row, 7)).transpose()?;
    Ok(PastRecord { attempt, ..past_delivery(row)? })
}

/// A delivery without its attempts.
pub fn past_delivery<E: From<Corrupt>>(row: &impl Row<E>) -> Result<PastRecord, E> {
    Ok(PastRecord {
        delivery_id: row.delivery_id(0)?,
        state: row.state(1)?,
        due_at: row.time(2)?,
        next_attempt_at: row.time(3)?,
        expires_at: row.optional_time(4)?,
        replayed_at: row.optional_time(5)?,
        cost: cost(row, 6)?,
        attempt: None,
    })
}

/// [`PAST_ATTEMPT_COLUMNS`] from the column `first` on.
pub fn past_attempt<E: From<Corrupt>>(row: &impl Row<E>, first: usize) -> Result<PastRecordAttempt, E> {
    let duration_ms = row.small(first + 3)?;
    // Without a connection there is no send, but the id is made at the end of the attempt.
    let ended_at = AttemptId::from_bytes(row.id(first + 1)?).made_at();
    let sent_at = row.optional_time(first + 2)?;
    let began_at = sent_at.unwrap_or_else(|| ended_at.before(Duration::from_millis(duration_ms.into())));
    Ok(PastRecordAttempt { number: row.small(first)?, began_at, duration_ms, outcome: row.outcome(first + 4)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_states_are_one_condition() {
        use DeliveryState::{Pending, Retrying};
        assert_eq!(in_states("d.state", &[]), "true");
        assert_eq!(in_states("d.state", &[Retrying]), "d.state = 2");
        assert_eq!(in_states("d.state + 0", &[Pending, Retrying]), "d.state + 0 IN (0, 2)");
    }
}
