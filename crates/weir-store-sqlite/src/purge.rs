//! A purge, step by step: each walks a part of what waits for one destination and cancels what it is after.

use std::ops::ControlFlow;

use weir_core::{DeliveryId, Timestamp};
use weir_store::{Purge, PurgePlace, PurgeStep};

use crate::{
    error::Result,
    live::FIRST,
    rows::{self, delivery_id, text, time},
    sql::{Batch, MAX_ROWS, Values, execute, padded, walk},
    writer::Transaction,
};

/// How many deliveries a step looks at: what the writer does in about ten milliseconds, since claims and events wait for it.
const STEP: usize = 2 * MAX_ROWS;

/// What waits after a place, with the types of the events, which only a purge by type needs.
macro_rules! waiting {
    ($event_type:literal, $events:literal) => {
        concat!(
            "SELECT due.next_attempt_at, d.id, d.state, d.created_at, ",
            $event_type,
            " FROM (
                SELECT id, next_attempt_at FROM deliveries INDEXED BY deliveries_due
                WHERE destination_id = ? AND state IN (0, 2) AND (next_attempt_at, id) > (?, ?)
                ORDER BY next_attempt_at, id LIMIT +?
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

impl Transaction<'_, '_> {
    pub(crate) fn purge(&mut self, purge: &Purge, after: Option<PurgePlace>) -> Result<PurgeStep> {
        let (due, id) = after.map_or(FIRST, |place| (place.due, place.id));
        let mut values = Values::default();
        values.blob(purge.destination_id.as_bytes()).int(due.as_nanos()).blob(id.as_bytes()).int(STEP as i64);
        let waiting = if purge.event_type.is_some() { WAITING_WITH_TYPES } else { WAITING_OF_ANY_TYPE };
        let (mut looked_at, mut last, mut chosen) = (0, None, Vec::new());
        walk(self.connection, waiting, &values, |row| {
            let (due, id) = (time(row, 0)?, delivery_id(row, 1)?);
            (looked_at, last) = (looked_at + 1, Some(PurgePlace { due, id }));
            let event_type = text(row, 4)?;
            // A claimed delivery's row says what it waited in.
            if !self.claims.is_claimed(id)
                && purge.takes(rows::state(row, 2)?)
                && time(row, 3)? < purge.before
                && purge.event_type.as_ref().is_none_or(|pattern| pattern.matches(&event_type))
            {
                chosen.push(id);
            }
            Ok(ControlFlow::Continue(()))
        })?;
        let cancelled = self.cancel_all(&chosen, purge.now)?;
        Ok(PurgeStep { cancelled, next: last.filter(|_| looked_at == STEP) })
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
