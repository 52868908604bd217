//! Lines: the deliveries of one destination and ordering key that have not ended, one after the other.
//!
//! Whatever ends a delivery that has a key, or takes it out of its line, calls [`Transaction::advance_message_groups`] in the same
//! transaction; that looks who is first, and does nothing if there is a head. There is one writer, so nothing comes between.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use rusqlite::Connection;
use sqlx::sqlite::SqliteRow;
use weir_core::{DeliveryId, DestinationId, Timestamp, order::BEHIND};
use weir_store::{MessageGroup, MessageGroups, MessageGroupsRepaired, StoreResult, intake::NewDelivery};

use crate::{
    SqliteStore,
    edits::Edit,
    error::Result,
    rows::{Columns, delivery_id, destination_id, int, text, time},
    sql::{Values, execute, fetch, query},
    writer::Transaction,
};

#[async_trait]
impl MessageGroups for SqliteStore {
    async fn repair_message_groups(
        &self,
        after: Option<MessageGroup>,
        limit: u32,
    ) -> StoreResult<MessageGroupsRepaired> {
        let mut values = Values::default();
        let (id, key) = match &after {
            Some(line) => (&line.destination_id.as_bytes()[..], line.ordering_key.as_str()),
            // The empty blob sorts before every id.
            None => (&[][..], ""),
        };
        values.blob(id).text(key).blob(id).int(limit.into());
        let found = fetch(&self.readers, LINES, values, |row: &SqliteRow| Ok((line(row, 0)?, time(row, 2)?))).await?;
        let next = found.last().filter(|_| found.len() == limit as usize).map(|(line, _)| line.clone());
        let headless: Vec<MessageGroup> =
            found.into_iter().filter(|(_, due)| *due == BEHIND).map(|(line, _)| line).collect();
        let mut advanced = 0;
        if !headless.is_empty() {
            advanced = self.ask(headless, |edit| Edit::operation(Edit::Advance(edit))).await?;
        }
        Ok(MessageGroupsRepaired { advanced, next })
    }

    async fn dissolve_message_groups(&self, limit: u32) -> StoreResult<u64> {
        let mut left = limit;
        for id in self.read(LINED.to_owned(), Values::default(), |row| destination_id(row, 0)).await? {
            let ordered = |id| self.destinations.get(id).is_some_and(|found| found.settings.order.is_by_key());
            if left > 0 && !ordered(id) {
                left -= self.ask((id, left), |edit| Edit::operation(Edit::Dissolve(edit))).await?;
            }
        }
        Ok((limit - left).into())
    }
}

/// Of deliveries in lines, when each is due, and when it would be in its turn: as it was stored, or moved by a replay, so that it
/// takes its place among what is live.
macro_rules! select {
    ($which:literal) => {
        concat!(
            "SELECT id, next_attempt_at,
                CASE WHEN replay_id IS NULL THEN coalesce(deliver_at, created_at) ELSE updated_at END
            FROM deliveries INDEXED BY deliveries_message_groups ",
            $which
        )
    };
}

/// The first of a line: its head, or who is next if it has none.
pub(crate) const FIRST_OF_LINE: &str = select!(
    "WHERE destination_id = ? AND ordering_key = ? AND ordering_key IS NOT NULL AND state < 3
    ORDER BY next_attempt_at, line LIMIT 1"
);

const COME_FORWARD: &str = "UPDATE deliveries SET next_attempt_at = ? WHERE id = ?";

/// The line a delivery is in, or was in when it ended.
const LINE_OF: &str = "SELECT destination_id, ordering_key FROM deliveries WHERE id = ? AND ordering_key IS NOT NULL";

const LEAVE: &str = "UPDATE deliveries SET ordering_key = NULL WHERE id = ?";

/// The lines after a place, each with when its first is due: a loose index scan, from one straight to the next.
pub(crate) const LINES: &str = "
WITH RECURSIVE found (destination_id, ordering_key, due) AS (
    SELECT * FROM (
        SELECT destination_id, ordering_key, next_attempt_at FROM deliveries INDEXED BY deliveries_message_groups
        WHERE (destination_id, ordering_key) > (?, ?) AND destination_id >= ?
            AND ordering_key IS NOT NULL AND state < 3
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT 1
    )
    UNION ALL
    SELECT n.destination_id, n.ordering_key, n.next_attempt_at FROM found CROSS JOIN deliveries n ON n.id = coalesce((
        SELECT id FROM deliveries INDEXED BY deliveries_message_groups
        WHERE destination_id = found.destination_id AND ordering_key > found.ordering_key
            AND ordering_key IS NOT NULL AND state < 3
        ORDER BY ordering_key, next_attempt_at LIMIT 1
    ), (
        SELECT id FROM deliveries INDEXED BY deliveries_message_groups
        WHERE destination_id > found.destination_id AND ordering_key IS NOT NULL AND state < 3
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT 1
    ))
)
SELECT destination_id, ordering_key, due FROM found LIMIT +?";

/// The destinations that have lines: a loose index scan too.
pub(crate) const LINED: &str = "
WITH RECURSIVE found (id) AS (
    SELECT (SELECT destination_id FROM deliveries INDEXED BY deliveries_message_groups
        WHERE ordering_key IS NOT NULL AND state < 3 ORDER BY destination_id LIMIT 1)
    UNION ALL
    SELECT (SELECT destination_id FROM deliveries INDEXED BY deliveries_message_groups
        WHERE ordering_key IS NOT NULL AND state < 3 AND destination_id > found.id ORDER BY destination_id LIMIT 1)
    FROM found WHERE found.id IS NOT NULL
)
SELECT id FROM found WHERE id IS NOT NULL";

pub(crate) const SOME_OF_LINES: &str =
    select!("WHERE destination_id = ? AND ordering_key IS NOT NULL AND state < 3 LIMIT +?");

const DISSOLVE: &str = "UPDATE deliveries SET ordering_key = NULL, next_attempt_at = ? WHERE id = ?";

const LAST_PLACE: &str = "
SELECT coalesce(max(line), 0) FROM deliveries INDEXED BY deliveries_message_groups
WHERE ordering_key IS NOT NULL AND state < 3";

/// The last place that was given out in any line. Read at the start, over all that waits in lines.
pub(crate) fn load(connection: &Connection) -> Result<i64> {
    Ok(query(connection, LAST_PLACE, &Values::default(), |row| int(row, 0))?.pop().unwrap_or_default())
}

/// Where a delivery joins its line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) line: i64,
    pub(crate) behind: bool,
}

fn line(row: &impl Columns, column: usize) -> Result<MessageGroup> {
    Ok(MessageGroup { destination_id: destination_id(row, column)?, ordering_key: text(row, column + 1)? })
}

/// The first of a line, when it is due, and when it would be due in its turn.
type First = (DeliveryId, Timestamp, Timestamp);

impl Transaction<'_, '_> {
    /// The places of new deliveries that have one. They follow each other as they were stored, whatever the clock does: a place is
    /// above every one before, and about the time, so that what ended long ago and is tried again goes first.
    pub(crate) fn places(&mut self, deliveries: &[NewDelivery<'_>]) -> Result<HashMap<DeliveryId, Place>> {
        let mut places = HashMap::new();
        for delivery in deliveries {
            let Some(line) = delivery.line() else { continue };
            let behind = delivery.follows || self.first_of(&line)?.is_some();
            *self.last_place = delivery.event.created_at.as_nanos().max(*self.last_place + 1);
            places.insert(delivery.id, Place { line: *self.last_place, behind });
        }
        Ok(places)
    }

    fn first_of(&self, line: &MessageGroup) -> Result<Option<First>> {
        let mut values = Values::default();
        values.blob(line.destination_id.as_bytes()).text(&line.ordering_key);
        let read = |row: &rusqlite::Row<'_>| Ok((delivery_id(row, 0)?, time(row, 1)?, time(row, 2)?));
        Ok(query(self.connection, FIRST_OF_LINE, &values, read)?.pop())
    }

    /// The line a delivery is in, or was in when it ended.
    pub(crate) fn line_of(&self, id: DeliveryId) -> Result<Option<MessageGroup>> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        Ok(query(self.connection, LINE_OF, &values, |row| line(row, 0))?.pop())
    }

    /// It goes on by itself, without order.
    pub(crate) fn leave_line(&self, id: DeliveryId) -> Result<()> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        execute(self.connection, LEAVE, &values).map(drop)
    }

    /// The next of a line comes forward if that has no head. Answers when it is due.
    pub(crate) fn advance_line(&mut self, line: &MessageGroup) -> Result<Option<Timestamp>> {
        let Some((id, BEHIND, due)) = self.first_of(line)? else { return Ok(None) };
        let mut values = Values::default();
        values.int(due.as_nanos()).blob(id.as_bytes());
        execute(self.connection, COME_FORWARD, &values)?;
        Ok(Some(due))
    }

    /// The same for each of some lines. Answers how many have a new head.
    pub(crate) fn advance_message_groups(&mut self, lines: &BTreeSet<MessageGroup>) -> Result<u64> {
        let mut advanced = 0;
        for line in lines {
            advanced += u64::from(self.advance_line(line)?.is_some());
        }
        Ok(advanced)
    }

    pub(crate) fn dissolve_message_groups(&mut self, id: DestinationId, limit: u32) -> Result<u32> {
        if self.destinations.get(id).is_some_and(|found| found.settings.order.is_by_key()) {
            return Ok(0);
        }
        let mut values = Values::default();
        values.blob(id.as_bytes()).int(limit.into());
        let read = |row: &rusqlite::Row<'_>| Ok((delivery_id(row, 0)?, time(row, 1)?, time(row, 2)?));
        let some = query(self.connection, SOME_OF_LINES, &values, read)?;
        for &(delivery, due, in_turn) in &some {
            let due = if due == BEHIND { in_turn } else { due };
            let mut values = Values::default();
            values.int(due.as_nanos()).blob(delivery.as_bytes());
            execute(self.connection, DISSOLVE, &values)?;
        }
        Ok(some.len() as u32)
    }
}
