//! A purge, step by step. The order of its steps is that of [`weir_store::PurgeScan`].

use std::ops::ControlFlow;

use weir_core::{DeliveryId, DeliveryState, Timestamp, order::BEHIND};
use weir_store::{MessageGroup, Purge, PurgePosition, PurgeScan, PurgeStep, rows::Row as _, sql};

use crate::{
    error::Result,
    history::WhereClause,
    sql::{Batch, MAX_ROWS, Values, execute, values, visit_rows},
    transaction::Transaction,
};

/// The deliveries that one step scans: about 10 ms of the writer's time, because claims and events wait for it.
const STEP: usize = 2 * MAX_ROWS;

/// The waiting deliveries after a position, live and replayed ones merged by due time. Only a purge by type joins the
/// event types.
macro_rules! waiting {
    ($event_type:literal, $events:literal, $index:literal, $whose:literal) => {
        concat!(
            "SELECT due.next_attempt_at, d.id, d.state, d.created_at, ",
            $event_type,
            ", d.ordering_key FROM (
                -- Live deliveries.
                SELECT * FROM (
                    SELECT id, next_attempt_at FROM deliveries INDEXED BY ",
            $index,
            " WHERE ",
            $whose,
            " = ?1 AND is_replay = 0 AND state IN ({waiting}) AND (next_attempt_at, id) > (?2, ?3)
                    ORDER BY next_attempt_at, id LIMIT +?4
                )
                UNION ALL
                -- Deliveries of replays.
                SELECT * FROM (
                    SELECT id, next_attempt_at FROM deliveries INDEXED BY ",
            $index,
            " WHERE ",
            $whose,
            " = ?1 AND is_replay = 1 AND state IN ({waiting}) AND (next_attempt_at, id) > (?2, ?3)
                    ORDER BY next_attempt_at, id LIMIT +?4
                )
                ORDER BY next_attempt_at, id LIMIT +?4
            ) due CROSS JOIN deliveries d ON d.id = due.id ",
            $events
        )
    };
}

macro_rules! waiting_with_types {
    ($index:literal, $whose:literal) => {
        waiting!("e.event_type", "CROSS JOIN events e INDEXED BY events_id ON e.id = d.event_id", $index, $whose)
    };
}

pub(crate) const WAITING_OF_ANY_TYPE: &str = sql!(waiting!("''", "", "deliveries_due", "destination_id"));
pub(crate) const WAITING_WITH_TYPES: &str = sql!(waiting_with_types!("deliveries_due", "destination_id"));
/// The same of the flow of a limit key.
pub(crate) const WAITING_OF_FLOW: &str = sql!(waiting!("''", "", "deliveries_due_of_flow", "flow_id"));
pub(crate) const WAITING_OF_FLOW_WITH_TYPES: &str = sql!(waiting_with_types!("deliveries_due_of_flow", "flow_id"));

/// Columns: id, now. `+state` makes the planner look up the given ids; with `state` it could scan all waiting
/// deliveries.
pub(crate) static CANCEL: Batch = Batch::new(
    sql!("UPDATE OR ROLLBACK deliveries SET state = {cancelled}, updated_at = r.column2 FROM (VALUES "),
    "(?,?)",
    sql!(") AS r WHERE deliveries.id = r.column1 AND +state IN ({waiting})"),
);

/// The statement that counts the deliveries a purge would cancel. It runs on a reader connection.
pub(crate) fn count_sql(purge: &Purge) -> (String, Values<'_>) {
    let states: Vec<String> = purge.state_codes().iter().map(ToString::to_string).collect();
    let mut conditions = WhereClause::new();
    conditions.add("d.destination_id = ?").bind(purge.destination_id.as_bytes());
    // The first term is the condition of the index, word for word.
    conditions.add(&format!("{} AND d.state IN ({})", sql!("d.state IN ({waiting})"), states.join(", ")));
    conditions.of_flow(purge.flow_id());
    let index = if purge.limit_key.is_some() { "deliveries_due_of_flow" } else { "deliveries_due" };
    conditions.add("d.created_at < ?").bind(purge.before);
    let mut events = "";
    if let Some(pattern) = &purge.event_type {
        events = "CROSS JOIN events e INDEXED BY events_id ON e.id = d.event_id";
        conditions.of_type(pattern);
    }
    let sql = format!("SELECT count(*) FROM deliveries d INDEXED BY {index} {events} WHERE {}", conditions.sql);
    (sql, conditions.values)
}

impl Transaction<'_, '_> {
    pub(crate) fn purge(&mut self, purge: &Purge, after: Option<PurgePosition>) -> Result<PurgeStep> {
        let mut after = after.unwrap_or(PurgePosition::FIRST_BEHIND);
        let mut scan = self.scan(purge, after)?;
        // No delivery is behind a head, or none any more: this step reads the due deliveries.
        if scan.found_none_behind(after) {
            after = PurgePosition::FIRST_DUE;
            scan = self.scan(purge, after)?;
        }
        self.advance_message_groups(&scan.freed)?;
        Ok(scan.step(after))
    }

    /// Reads the deliveries after a position and cancels those that match.
    fn scan(&mut self, purge: &Purge, after: PurgePosition) -> Result<PurgeScan> {
        let flow_id = purge.flow_id();
        let of = flow_id.as_ref().unwrap_or(&purge.destination_id);
        let values = values![of.as_bytes(), after.due, after.id.as_bytes(), STEP as i64];
        let waiting = match (&purge.event_type, flow_id) {
            (None, None) => WAITING_OF_ANY_TYPE,
            (Some(_), None) => WAITING_WITH_TYPES,
            (None, Some(_)) => WAITING_OF_FLOW,
            (Some(_), Some(_)) => WAITING_OF_FLOW_WITH_TYPES,
        };
        let (mut scan, mut scanned, mut chosen) = (PurgeScan::default(), 0, Vec::new());
        visit_rows(self.connection, waiting, &values, |row| {
            let (due, id) = (row.time(0)?, row.delivery_id(1)?);
            // The due deliveries end here. Those behind heads were read first.
            if due == BEHIND && !after.is_behind() {
                return Ok(ControlFlow::Break(()));
            }
            scanned += 1;
            scan.last = Some(PurgePosition { due, id });
            let event_type = row.text(4)?;
            // Choose the deliveries that the purge asks for.
            if purge.takes(row.state(2)?)
                && row.time(3)? < purge.before
                && purge.event_type.as_ref().is_none_or(|pattern| pattern.matches(&event_type))
            {
                chosen.push((id, row.state(2)?));
                // A due delivery with a key is the head of its message group, so the group needs a new head.
                if due < BEHIND
                    && let Some(ordering_key) = row.optional_text(5)?
                {
                    scan.freed.insert(MessageGroup { destination_id: purge.destination_id, ordering_key });
                }
            }
            Ok(ControlFlow::Continue(()))
        })?;
        scan.is_full = scanned == STEP;
        for (_, state) in &chosen {
            self.changes.moved(purge.destination_id, *state, DeliveryState::Cancelled, purge.now);
        }
        scan.cancelled = self.cancel_all(&chosen, purge.now)?;
        Ok(scan)
    }

    fn cancel_all(&mut self, chosen: &[(DeliveryId, DeliveryState)], now: Timestamp) -> Result<u64> {
        let mut cancelled = 0;
        for part in chosen.chunks(MAX_ROWS) {
            let (sql, values) = CANCEL.of(Values::default(), part, |values, (id, _)| {
                values.bind(id.as_bytes()).bind(now);
            });
            cancelled += execute(self.connection, &sql, &values)?;
        }
        Ok(cancelled)
    }
}
