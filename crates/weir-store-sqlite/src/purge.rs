//! A purge, step by step. Each step scans a part of a destination's waiting deliveries and cancels those that match.

use std::{collections::BTreeSet, ops::ControlFlow};

use weir_core::{DeliveryId, DeliveryState, Timestamp, order::BEHIND};
use weir_store::{MessageGroup, Purge, PurgePlace, PurgeStep, stored::state_code};

use crate::{
    error::Result,
    history::WhereClause,
    rows::{self, Columns as _, delivery_id, text, time},
    sql::{Batch, MAX_ROWS, Values, execute, padded, visit_rows},
    writer::Transaction,
};

/// The deliveries that one step scans: about 10 ms of the writer's time, because claims and events wait for it.
const STEP: usize = 2 * MAX_ROWS;

/// A position in the order of due times.
type Position = (Timestamp, DeliveryId);

/// Before every delivery.
const FIRST: Position = (Timestamp::MIN, DeliveryId::from_bytes([0; 16]));

/// Before all deliveries behind the heads of message groups.
const FIRST_BEHIND: Position = (BEHIND, FIRST.1);

/// The waiting deliveries after a position, live and replayed ones merged by due time. Only a purge by type joins the
/// event types.
macro_rules! waiting {
    ($event_type:literal, $events:literal) => {
        concat!(
            "SELECT due.next_attempt_at, d.id, d.state, d.created_at, ",
            $event_type,
            ", d.ordering_key FROM (
                SELECT * FROM (
                    SELECT id, next_attempt_at FROM deliveries INDEXED BY deliveries_due
                    WHERE destination_id = ?1 AND is_replay = 0 AND state IN (0, 2) AND (next_attempt_at, id) > (?2, ?3)
                    ORDER BY next_attempt_at, id LIMIT +?4
                )
                UNION ALL
                SELECT * FROM (
                    SELECT id, next_attempt_at FROM deliveries INDEXED BY deliveries_due
                    WHERE destination_id = ?1 AND is_replay = 1 AND state IN (0, 2) AND (next_attempt_at, id) > (?2, ?3)
                    ORDER BY next_attempt_at, id LIMIT +?4
                )
                ORDER BY next_attempt_at, id LIMIT +?4
            ) due CROSS JOIN deliveries d ON d.id = due.id ",
            $events
        )
    };
}

pub(crate) const WAITING_OF_ANY_TYPE: &str = waiting!("''", "");
pub(crate) const WAITING_WITH_TYPES: &str =
    waiting!("e.event_type", "CROSS JOIN events e INDEXED BY events_id ON e.id = d.event_id");

/// Columns: id, now. The plus keeps the planner from scanning all waiting deliveries instead of looking up these.
pub(crate) static CANCEL: Batch = Batch::new(
    "UPDATE OR ROLLBACK deliveries SET state = 6, updated_at = r.column2 FROM (VALUES ",
    "(?,?)",
    ",",
    ") AS r WHERE deliveries.id = r.column1 AND +state IN (0, 2)",
);

/// The statement that counts the deliveries a purge would cancel. It runs on a reader connection.
pub(crate) fn count_sql(purge: &Purge) -> (String, Values<'_>) {
    let states = [DeliveryState::Pending, DeliveryState::Retrying].into_iter().filter(|&state| purge.takes(state));
    let states: Vec<String> = states.map(|state| state_code(state).to_string()).collect();
    let mut conditions = WhereClause::new();
    conditions.add("d.destination_id = ?").blob(purge.destination_id.as_bytes());
    // The first term is the condition of the index, word for word.
    conditions.add(&format!("d.state IN (0, 2) AND d.state IN ({})", states.join(", ")));
    conditions.add("d.created_at < ?").int(purge.before.as_nanos());
    let mut events = "";
    if let Some(pattern) = &purge.event_type {
        events = "CROSS JOIN events e INDEXED BY events_id ON e.id = d.event_id";
        conditions.of_type(pattern);
    }
    let sql = format!("SELECT count(*) FROM deliveries d INDEXED BY deliveries_due {events} WHERE {}", conditions.sql);
    (sql, conditions.values)
}

/// The deliveries that one step of a purge has scanned.
#[derive(Default)]
struct PurgeScan {
    scanned: usize,
    chosen: Vec<DeliveryId>,
    /// The message groups whose heads are among the chosen deliveries.
    message_groups: BTreeSet<MessageGroup>,
    next: Option<PurgePlace>,
}

impl Transaction<'_, '_> {
    /// Deliveries behind the heads of message groups are cancelled first, which makes no new heads, and then the due
    /// ones. In the opposite order a cancelled head's successor could become due before the position that the purge has
    /// reached, and be missed.
    pub(crate) fn purge(&mut self, purge: &Purge, after: Option<PurgePlace>) -> Result<PurgeStep> {
        let place = after.map_or(FIRST_BEHIND, |place| (place.due, place.id));
        let mut scan = self.scan(purge, place)?;
        let mut cancelled = self.cancel_all(&scan.chosen, purge.now)?;
        if place.0 == BEHIND && scan.next.is_none() {
            // No deliveries behind heads remain; the next step starts with the due ones.
            if scan.scanned > 0 {
                return Ok(PurgeStep { cancelled, next: Some(PurgePlace { due: FIRST.0, id: FIRST.1 }) });
            }
            scan = self.scan(purge, FIRST)?;
            cancelled = self.cancel_all(&scan.chosen, purge.now)?;
        }
        self.advance_message_groups(&scan.message_groups)?;
        Ok(PurgeStep { cancelled, next: scan.next })
    }

    fn scan(&self, purge: &Purge, after: Position) -> Result<PurgeScan> {
        let (due, id) = &after;
        let mut values = Values::default();
        values.blob(purge.destination_id.as_bytes()).int(due.as_nanos()).blob(id.as_bytes()).int(STEP as i64);
        let waiting = if purge.event_type.is_some() { WAITING_WITH_TYPES } else { WAITING_OF_ANY_TYPE };
        let (mut scan, mut last) = (PurgeScan::default(), None);
        visit_rows(self.connection, waiting, &values, |row| {
            let (due, id) = (time(row, 0)?, delivery_id(row, 1)?);
            if due == BEHIND && after.0 != BEHIND {
                return Ok(ControlFlow::Break(()));
            }
            scan.scanned += 1;
            last = Some(PurgePlace { due, id });
            let event_type = text(row, 4)?;
            if purge.takes(rows::state(row, 2)?)
                && time(row, 3)? < purge.before
                && purge.event_type.as_ref().is_none_or(|pattern| pattern.matches(&event_type))
            {
                scan.chosen.push(id);
                if due < BEHIND
                    && let Some(ordering_key) = row.optional_text(5)?
                {
                    scan.message_groups.insert(MessageGroup { destination_id: purge.destination_id, ordering_key });
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        scan.next = last.filter(|_| scan.scanned == STEP);
        Ok(scan)
    }

    fn cancel_all(&mut self, ids: &[DeliveryId], now: Timestamp) -> Result<u64> {
        let mut cancelled = 0;
        for part in ids.chunks(MAX_ROWS) {
            let size = padded(part.len());
            let mut values = Values::with_capacity(2 * size);
            for id in part {
                values.blob(id.as_bytes()).int(now.as_nanos());
            }
            values.nulls(2 * (size - part.len()));
            cancelled += execute(self.connection, &CANCEL.sql(size), &values)?;
        }
        Ok(cancelled)
    }
}
