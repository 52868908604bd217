//! One step of a discard: the dead letters among some deliveries become `cancelled`.

use weir_core::{DeliveryId, DeliveryState, DestinationId, Timestamp};
use weir_store::{rows::Row as _, sql};

use crate::{
    error::Result,
    sql::{Batch, MAX_ROWS, Values, execute, query},
    transaction::Transaction,
};

/// Those that are dead letters still. `+state` makes the planner look up the given ids; with `state` it could scan all
/// dead letters.
pub(crate) static DEAD_LETTERS: Batch = Batch::new(
    "SELECT d.id, d.destination_id, d.state FROM (VALUES ",
    "(?)",
    sql!(") AS r CROSS JOIN deliveries d ON d.id = r.column1 AND +d.state IN ({failed}, {dead})"),
);

/// Columns: id, now.
pub(crate) static DISCARD: Batch = Batch::new(
    sql!("UPDATE OR ROLLBACK deliveries SET state = {cancelled}, updated_at = r.column2 FROM (VALUES "),
    "(?,?)",
    sql!(") AS r WHERE deliveries.id = r.column1 AND +state IN ({failed}, {dead})"),
);

impl Transaction<'_, '_> {
    pub(crate) fn discard(&mut self, ids: &[DeliveryId], now: Timestamp) -> Result<u64> {
        let mut discarded = 0;
        for part in ids.chunks(MAX_ROWS) {
            let found = self.dead_letters(part)?;
            if found.is_empty() {
                continue;
            }
            for (_, destination_id, state) in &found {
                self.changes.moved(*destination_id, *state, DeliveryState::Cancelled, now);
            }
            let (sql, values) = DISCARD.of(Values::default(), &found, |values, (id, ..)| {
                values.bind(id.as_bytes()).bind(now);
            });
            discarded += execute(self.connection, &sql, &values)?;
        }
        Ok(discarded)
    }

    fn dead_letters(&mut self, ids: &[DeliveryId]) -> Result<Vec<(DeliveryId, DestinationId, DeliveryState)>> {
        let (sql, values) = DEAD_LETTERS.of(Values::default(), ids, |values, id| {
            values.bind(id.as_bytes());
        });
        query(self.connection, &sql, &values, |row| Ok((row.delivery_id(0)?, row.destination_id(1)?, row.state(2)?)))
    }
}
