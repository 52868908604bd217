//! The rows of the tables: the columns of each kind of row, and how a value of Weir is read from them and written to
//! them.
//!
//! Both stores have the same tables, so this is said once. A store adds how its library reads one column ([`Row`]) and
//! binds one [`Value`]. Columns are read by position: each list of columns stands beside the function that reads it. A
//! stored value that no store writes, such as a number that is no state, is an error: [`Corrupt`].

mod activity;
mod api_keys;
mod codes;
pub(crate) mod counters;
mod deliveries;
mod destinations;
mod event_types;
mod events;
mod limit_groups;
mod paces;
mod replays;
pub(crate) mod reservations;
mod temporary;
pub(crate) mod traffic;

use serde::de::DeserializeOwned;
use weir_core::{
    DeliveryId, DeliveryState, DestinationId, EventId, LimitKey, ReplayId, Timestamp, alert::AlertRecord, claim::Claim,
    delivery::AttemptOutcome, outcome::Failure,
};

pub use self::{
    activity::{ACTIVITY_COLUMNS, ANSWER_COLUMNS, activity, activity_ids, activity_values, keyed_answer},
    api_keys::{API_KEYS, api_key, session_secret, tenants_json},
    codes::{failure_code, interval_code, limits_json, outcome_code, phase_code, state_code},
    counters::{ALL_WAITING, counted_state, state_counts},
    deliveries::{
        ATTEMPT_COLUMNS, DELIVERY_COLUMNS, FAILED_COLUMNS, LAST_ATTEMPT, PAST_ATTEMPT_COLUMNS, PAST_DELIVERY_COLUMNS,
        attempt, connection_json, cost, delivery, error_condition, failed_delivery, in_states, past, past_attempt,
        past_delivery, response_body, response_headers_json, send,
    },
    destinations::{Value, destination, destination_values, limit_change},
    event_types::{EVENT_TYPE_COLUMNS, catalogue_totals, event_type, event_type_size, known_event_type},
    events::{body_without_head, claimed_body, event, known_event},
    limit_groups::{LIMIT_GROUP_COLUMNS, limit_group, membership},
    paces::{pace_change, pace_copy},
    replays::{REPLAY_COLUMNS, figure, phase, replay},
    reservations::reservation,
    temporary::{Keyed, limits_column},
    traffic::{
        histogram, latency, recent_traffic, traffic_and_last_success, traffic_at, traffic_of_destination_at,
        traffic_of_tenant,
    },
};
use crate::{
    Arrivals, DueDestination, DuePosition, FlowKey, KEYS_LOOKED_AT, KeyBacklog, KeyBacklogs, KeyCounts, MessageGroup,
    SendHistory, SentCounts,
};

/// A stored value that no store writes. The text names the value, as in "a state".
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} in the database cannot be read")]
pub struct Corrupt(pub &'static str);

/// A row of a store's library. `E` is the error of the store. Columns are numbered from 0.
pub trait Row<E: From<Corrupt>> {
    fn optional_int(&self, column: usize) -> Result<Option<i64>, E>;

    fn optional_text(&self, column: usize) -> Result<Option<String>, E>;

    /// Bytes, or an id.
    fn optional_bytes(&self, column: usize) -> Result<Option<&[u8]>, E>;

    fn flag(&self, column: usize) -> Result<bool, E>;

    fn int(&self, column: usize) -> Result<i64, E> {
        Ok(self.optional_int(column)?.ok_or(Corrupt("a number"))?)
    }

    fn small(&self, column: usize) -> Result<u32, E> {
        Ok(u32::try_from(self.int(column)?).map_err(|_| Corrupt("a number"))?)
    }

    fn count(&self, column: usize) -> Result<u64, E> {
        Ok(u64::try_from(self.int(column)?).map_err(|_| Corrupt("a count"))?)
    }

    fn time(&self, column: usize) -> Result<Timestamp, E> {
        self.int(column).map(Timestamp::from_nanos)
    }

    fn optional_time(&self, column: usize) -> Result<Option<Timestamp>, E> {
        Ok(self.optional_int(column)?.map(Timestamp::from_nanos))
    }

    fn text(&self, column: usize) -> Result<String, E> {
        Ok(self.optional_text(column)?.ok_or(Corrupt("a text"))?)
    }

    fn optional_id(&self, column: usize) -> Result<Option<[u8; 16]>, E> {
        let bytes = self.optional_bytes(column)?.map(TryInto::try_into);
        Ok(bytes.transpose().map_err(|_| Corrupt("an id"))?)
    }

    fn id(&self, column: usize) -> Result<[u8; 16], E> {
        Ok(self.optional_id(column)?.ok_or(Corrupt("an id"))?)
    }

    fn destination_id(&self, column: usize) -> Result<DestinationId, E> {
        self.id(column).map(DestinationId::from_bytes)
    }

    fn delivery_id(&self, column: usize) -> Result<DeliveryId, E> {
        self.id(column).map(DeliveryId::from_bytes)
    }

    fn event_id(&self, column: usize) -> Result<EventId, E> {
        self.id(column).map(EventId::from_bytes)
    }

    fn replay_id(&self, column: usize) -> Result<ReplayId, E> {
        self.id(column).map(ReplayId::from_bytes)
    }

    fn state(&self, column: usize) -> Result<DeliveryState, E> {
        Ok(codes::state(self.int(column)?).ok_or(Corrupt("a state"))?)
    }

    fn outcome(&self, column: usize) -> Result<AttemptOutcome, E> {
        Ok(codes::outcome(self.int(column)?).ok_or(Corrupt("an outcome"))?)
    }

    fn optional_failure(&self, column: usize) -> Result<Option<Failure>, E> {
        let Some(code) = self.optional_int(column)? else { return Ok(None) };
        Ok(Some(codes::failure(code).ok_or(Corrupt("a failure"))?))
    }

    /// A text that `parse` understands; `what` names the value.
    fn parsed<T>(&self, column: usize, what: &'static str, parse: impl FnOnce(&str) -> Option<T>) -> Result<T, E> {
        Ok(self.optionally_parsed(column, what, parse)?.ok_or(Corrupt(what))?)
    }

    fn optionally_parsed<T>(
        &self,
        column: usize,
        what: &'static str,
        parse: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, E> {
        let Some(text) = self.optional_text(column)? else { return Ok(None) };
        Ok(Some(parse(&text).ok_or(Corrupt(what))?))
    }
}

/// A claim from three columns: its delivery, its destination and its epoch.
pub fn claim<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Claim, E> {
    Ok(Claim { delivery_id: row.delivery_id(0)?, destination_id: row.destination_id(1)?, epoch: row.int(2)? })
}

/// From two columns: the destination, and when its first delivery is due.
pub fn due_destination<E: From<Corrupt>>(row: &impl Row<E>) -> Result<DueDestination, E> {
    let limit_group = row.optionally_parsed(2, "a limit group", |text| text.parse().ok())?;
    Ok(DueDestination { destination_id: row.destination_id(0)?, due: row.time(1)?, limit_group })
}

/// From three columns: a flow, its destination, and its limit key.
pub fn flow_key<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DestinationId, FlowKey), E> {
    let key = LimitKey::new(&row.text(2)?);
    Ok((row.destination_id(0)?, FlowKey { destination_id: row.destination_id(1)?, key }))
}

/// From three columns: a limit key, how many deliveries of it wait, and when the first of them was stored. Without a key,
/// how many deliveries were looked at.
pub fn key_backlog<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(Option<LimitKey>, u64, Timestamp), E> {
    Ok((row.optional_text(0)?.map(|key| LimitKey::new(&key)), row.count(1)?, row.time(2)?))
}

/// From the rows of [`key_backlog`].
pub fn key_backlogs(rows: impl IntoIterator<Item = (Option<LimitKey>, u64, Timestamp)>) -> KeyBacklogs {
    let mut backlogs = KeyBacklogs::default();
    for (key, waiting, oldest_at) in rows {
        match key {
            Some(key) => backlogs.keys.push(KeyBacklog { key, waiting, oldest_at }),
            None => backlogs.is_partial = waiting > KEYS_LOOKED_AT.into(),
        }
    }
    backlogs
}

/// From three columns: a state, how many deliveries of a key are in it, and when the first of them was stored.
pub fn key_count<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DeliveryState, u64, Option<Timestamp>), E> {
    Ok((row.state(0)?, row.count(1)?, row.optional_time(2)?))
}

/// From the rows of [`key_count`].
pub fn key_counts(rows: impl IntoIterator<Item = (DeliveryState, u64, Option<Timestamp>)>) -> KeyCounts {
    let mut counts = KeyCounts::default();
    for (state, count, oldest_at) in rows {
        match state {
            DeliveryState::Delivering => counts.delivering = count,
            DeliveryState::Retrying => counts.retrying = count,
            _ => counts.pending = count,
        }
        if state != DeliveryState::Delivering {
            counts.oldest_at = counts.oldest_at.into_iter().chain(oldest_at).min();
        }
    }
    counts
}

/// From four columns: the destination, its last recorded send, whether it has outstanding claims, and the restore mark
/// if it applies.
pub fn send_history<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DestinationId, SendHistory), E> {
    // `None` sorts before every time.
    let last_sent_at = row.optional_time(1)?.max(row.optional_time(3)?);
    Ok((row.destination_id(0)?, SendHistory { last_sent_at, unsettled: row.flag(2)? }))
}

/// From rows of two columns: a bucket and its sends; −1 and how many claims are outstanding; −2 and the restore mark,
/// which is null where it does not apply; −3 and the usual cost of waiting deliveries, if it was asked for.
pub fn sent_counts(rows: impl IntoIterator<Item = (i64, Option<i64>)>) -> SentCounts {
    let mut sent = SentCounts::default();
    for (kind, value) in rows {
        let count = || u32::try_from(value.unwrap_or(0)).unwrap_or(u32::MAX);
        match kind {
            -1 => sent.claimed = sent.claimed.saturating_add(count()),
            -2 => sent.restored = sent.restored.max(value.map(Timestamp::from_nanos)),
            -3 => sent.usual_cost = sent.usual_cost.max(count()),
            bucket => sent.buckets.push((bucket, count())),
        }
    }
    sent
}

/// From two columns: the number of new deliveries, and the id of the first of them.
pub fn arrivals<E: From<Corrupt>>(row: &impl Row<E>) -> Result<Arrivals, E> {
    let first_at = row.optional_id(1)?.map(|id| DeliveryId::from_bytes(id).made_at());
    Ok(Arrivals { count: row.count(0)?, first_at })
}

/// From three columns: the delivery, whether it is of a replay, and how many are ahead of it.
pub fn due_position<E: From<Corrupt>>(row: &impl Row<E>) -> Result<(DeliveryId, DuePosition), E> {
    Ok((row.delivery_id(0)?, DuePosition { is_replay: row.flag(1)?, ahead: row.count(2)? }))
}

/// From two columns: the destination and the ordering key.
pub fn message_group<E: From<Corrupt>>(row: &impl Row<E>) -> Result<MessageGroup, E> {
    Ok(MessageGroup { destination_id: row.destination_id(0)?, ordering_key: row.text(1)? })
}

/// From one column: what people have set for all of Weir.
pub fn policy<P: DeserializeOwned, E: From<Corrupt>>(row: &impl Row<E>) -> Result<P, E> {
    row.parsed(0, "a policy", |text| serde_json::from_str(text).ok())
}

/// The default if none is stored.
pub fn alert_record<E: From<Corrupt>>(row: &impl Row<E>, column: usize) -> Result<AlertRecord, E> {
    let state = row.optionally_parsed(column, "an alert state", |text| serde_json::from_str(text).ok())?;
    Ok(state.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A row with one number.
    struct Number(Option<i64>);

    impl Row<Corrupt> for Number {
        fn optional_int(&self, _: usize) -> Result<Option<i64>, Corrupt> {
            Ok(self.0)
        }

        fn optional_text(&self, _: usize) -> Result<Option<String>, Corrupt> {
            Ok(self.0.map(|number| number.to_string()))
        }

        fn optional_bytes(&self, _: usize) -> Result<Option<&[u8]>, Corrupt> {
            Ok(self.0.map(|_| &[7; 15][..]))
        }

        fn flag(&self, _: usize) -> Result<bool, Corrupt> {
            Ok(self.0.is_some())
        }
    }

    #[test]
    fn a_value_that_no_store_writes_is_corrupt() {
        assert_eq!(Number(Some(9)).state(0), Err(Corrupt("a state")));
        assert_eq!(Number(Some(-1)).outcome(0), Err(Corrupt("an outcome")));
        assert_eq!(Number(Some(6)).optional_failure(0), Err(Corrupt("a failure")));
        assert_eq!(phase(&Number(Some(5)), 0), Err(Corrupt("a phase")));
        assert_eq!(Number(Some(-1)).count(0), Err(Corrupt("a count")));
        assert_eq!(Number(None).int(0), Err(Corrupt("a number")));
        assert_eq!(Number(Some(0)).id(0), Err(Corrupt("an id")));
        assert_eq!(alert_record(&Number(Some(0)), 0), Err(Corrupt("an alert state")));
        assert_eq!((Number(None).optional_failure(0), Number(None).optional_id(0)), (Ok(None), Ok(None)));
    }
}
