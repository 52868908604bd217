//! A purge, step by step: each walks a part of what waits for one destination and cancels what it is after.

use std::{collections::BTreeSet, ops::ControlFlow};

use weir_core::{DeliveryId, DeliveryState, Timestamp, order::BEHIND};
use weir_store::{MessageGroup, Purge, PurgePlace, PurgeStep};

use crate::{
    error::Result,
    history::Conditions,
    rows::{self, Columns as _, delivery_id, state_code, text, time},
    sql::{Batch, MAX_ROWS, Values, execute, padded, walk},
    writer::Transaction,
};

/// How many deliveries a step looks at: what the writer does in about ten milliseconds, since claims and events wait for it.
const STEP: usize = 2 * MAX_ROWS;

/// A place in the order in which deliveries are due.
type Position = (Timestamp, DeliveryId);

/// Before every delivery.
const FIRST: Position = (Timestamp::MIN, DeliveryId::from_bytes([0; 16]));

/// Before all that is behind another in its line.
const FIRST_BEHIND: Position = (BEHIND, FIRST.1);

/// What waits after a place, live and of replays in one order, with the types of the events, which only a purge by type needs.
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

/// Columns: id, now. The plus keeps the planner from walking all that waits instead of looking up these.
pub(crate) static CANCEL: Batch = Batch::new(
    "UPDATE OR ROLLBACK deliveries SET state = 6, updated_at = r.column2 FROM (VALUES ",
    "(?,?)",
    ",",
    ") AS r WHERE deliveries.id = r.column1 AND +state IN (0, 2)",
);

/// How many a purge would cancel, read on a reader connection.
pub(crate) fn counted(purge: &Purge) -> (String, Values<'_>) {
    let states = [DeliveryState::Pending, DeliveryState::Retrying].into_iter().filter(|&state| purge.takes(state));
    let states: Vec<String> = states.map(|state| state_code(state).to_string()).collect();
    let mut conditions = Conditions::new();
    conditions.add("d.destination_id = ?").blob(purge.destination_id.as_bytes());
    // The first is the condition of the index, word for word.
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

/// What one look of a purge found.
#[derive(Default)]
struct Look {
    looked_at: usize,
    chosen: Vec<DeliveryId>,
    /// Those whose heads are among them.
    lines: BTreeSet<MessageGroup>,
    next: Option<PurgePlace>,
}

impl Transaction<'_, '_> {
    /// What is behind in lines goes first, which lets nobody come forward; and then what is due. Were it the other way round, who
    /// comes forward in the place of a cancelled head could be due before the place that the purge has got to.
    pub(crate) fn purge(&mut self, purge: &Purge, after: Option<PurgePlace>) -> Result<PurgeStep> {
        let place = after.map_or(FIRST_BEHIND, |place| (place.due, place.id));
        let mut look = self.look_for(purge, place)?;
        let mut cancelled = self.cancel_all(&look.chosen, purge.now)?;
        if place.0 == BEHIND && look.next.is_none() {
            if look.looked_at > 0 {
                return Ok(PurgeStep { cancelled, next: Some(PurgePlace { due: FIRST.0, id: FIRST.1 }) });
            }
            look = self.look_for(purge, FIRST)?;
            cancelled = self.cancel_all(&look.chosen, purge.now)?;
        }
        self.advance_message_groups(&look.lines)?;
        Ok(PurgeStep { cancelled, next: look.next })
    }

    fn look_for(&self, purge: &Purge, after: Position) -> Result<Look> {
        let (due, id) = &after;
        let mut values = Values::default();
        values.blob(purge.destination_id.as_bytes()).int(due.as_nanos()).blob(id.as_bytes()).int(STEP as i64);
        let waiting = if purge.event_type.is_some() { WAITING_WITH_TYPES } else { WAITING_OF_ANY_TYPE };
        let (mut look, mut last) = (Look::default(), None);
        walk(self.connection, waiting, &values, |row| {
            let (due, id) = (time(row, 0)?, delivery_id(row, 1)?);
            if due == BEHIND && after.0 != BEHIND {
                return Ok(ControlFlow::Break(()));
            }
            look.looked_at += 1;
            last = Some(PurgePlace { due, id });
            let event_type = text(row, 4)?;
            if purge.takes(rows::state(row, 2)?)
                && time(row, 3)? < purge.before
                && purge.event_type.as_ref().is_none_or(|pattern| pattern.matches(&event_type))
            {
                look.chosen.push(id);
                if due < BEHIND
                    && let Some(ordering_key) = row.optional_text(5)?
                {
                    look.lines.insert(MessageGroup { destination_id: purge.destination_id, ordering_key });
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        look.next = last.filter(|_| look.looked_at == STEP);
        Ok(look)
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
