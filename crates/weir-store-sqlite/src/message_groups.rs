//! Message groups, by the rules of [`weir_store::intake`].
//!
//! Code that ends an ordered delivery, or removes it from its group, calls [`Transaction::advance_message_group`] in
//! the same transaction. If the group has no head, the first delivery behind becomes the head. There is one writer, so
//! no other write comes between.

use std::collections::{BTreeSet, HashMap};

use async_trait::async_trait;
use rusqlite::Connection;
use sqlx::sqlite::SqliteRow;
use weir_core::{DeliveryId, DestinationId, Timestamp, order::BEHIND};
use weir_store::{
    HeadlessGroups, MessageGroup, MessageGroups, MessageGroupsRepaired, StoreResult,
    intake::NewDelivery,
    rows::{self, Row as _},
    sql,
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sql::{Values, execute, fetch, query, values},
    transaction::Transaction,
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
            Some(message_group) => (&message_group.destination_id.as_bytes()[..], message_group.ordering_key.as_str()),
            // The empty blob sorts before every id.
            None => (&[][..], ""),
        };
        values.bind(id).bind(key).bind(id).bind(limit);
        let read = |row: &SqliteRow| Ok((rows::message_group(row)?, row.time(2)?));
        let found = fetch(&self.readers, MESSAGE_GROUPS, values, read).await?;
        let HeadlessGroups { headless, next } = HeadlessGroups::of(found, limit);
        let mut advanced = 0;
        if !headless.is_empty() {
            advanced = self.edit(Durable::No, move |transaction| transaction.advance_message_groups(&headless)).await?;
        }
        Ok(MessageGroupsRepaired { advanced, next })
    }

    async fn dissolve_message_groups(&self, limit: u32) -> StoreResult<u64> {
        let mut remaining = limit;
        for id in self.read(DESTINATIONS_WITH_GROUPS.to_owned(), Values::default(), |row| row.destination_id(0)).await?
        {
            let ordered = |id| self.destinations.get(id).is_some_and(|found| found.settings.order.is_by_key());
            if remaining > 0 && !ordered(id) {
                let dissolve =
                    move |transaction: &mut Transaction<'_, '_>| transaction.dissolve_message_groups(id, remaining);
                remaining -= self.edit(Durable::No, dissolve).await?;
            }
        }
        Ok((limit - remaining).into())
    }
}

/// Deliveries in message groups: the due time, and the due time as head.
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

/// The first delivery of a message group: its head, or the next one if the group has no head.
pub(crate) const FIRST_OF_GROUP: &str = sql!(select!(
    "WHERE destination_id = ? AND ordering_key = ? AND ordering_key IS NOT NULL AND state < {delivered}
    ORDER BY next_attempt_at, group_position LIMIT 1"
));

const MAKE_HEAD: &str = "UPDATE deliveries SET next_attempt_at = ? WHERE id = ?";

/// The message group that a delivery is in, or was in when it ended.
const GROUP_OF_DELIVERY: &str =
    "SELECT destination_id, ordering_key FROM deliveries WHERE id = ? AND ordering_key IS NOT NULL";

const LEAVE_GROUP: &str = "UPDATE deliveries SET ordering_key = NULL WHERE id = ?";

/// The message groups after a given one, each with the due time of its first delivery. A loose index scan: it jumps
/// from one group to the next.
pub(crate) const MESSAGE_GROUPS: &str = sql! {"
WITH RECURSIVE found (destination_id, ordering_key, due) AS (
    -- The first group after the given one.
    SELECT * FROM (
        SELECT destination_id, ordering_key, next_attempt_at FROM deliveries INDEXED BY deliveries_message_groups
        WHERE (destination_id, ordering_key) > (?, ?) AND destination_id >= ?
            AND ordering_key IS NOT NULL AND state < {delivered}
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT 1
    )
    UNION ALL
    -- The next key of the same destination, or else the first key of the next destination.
    SELECT n.destination_id, n.ordering_key, n.next_attempt_at FROM found CROSS JOIN deliveries n ON n.id = coalesce((
        SELECT id FROM deliveries INDEXED BY deliveries_message_groups
        WHERE destination_id = found.destination_id AND ordering_key > found.ordering_key
            AND ordering_key IS NOT NULL AND state < {delivered}
        ORDER BY ordering_key, next_attempt_at LIMIT 1
    ), (
        SELECT id FROM deliveries INDEXED BY deliveries_message_groups
        WHERE destination_id > found.destination_id AND ordering_key IS NOT NULL AND state < {delivered}
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT 1
    ))
)
SELECT destination_id, ordering_key, due FROM found LIMIT +?"};

/// The destinations that have message groups, by a loose index scan.
pub(crate) const DESTINATIONS_WITH_GROUPS: &str = sql!(
    "WITH RECURSIVE found (id) AS (
    SELECT (SELECT destination_id FROM deliveries INDEXED BY deliveries_message_groups
        WHERE ordering_key IS NOT NULL AND state < {delivered} ORDER BY destination_id LIMIT 1)
    UNION ALL
    SELECT (SELECT destination_id FROM deliveries INDEXED BY deliveries_message_groups
        WHERE ordering_key IS NOT NULL AND state < {delivered} AND destination_id > found.id ORDER BY destination_id LIMIT 1)
    FROM found WHERE found.id IS NOT NULL
)
SELECT id FROM found WHERE id IS NOT NULL");

pub(crate) const SOME_OF_GROUPS: &str =
    sql!(select!("WHERE destination_id = ? AND ordering_key IS NOT NULL AND state < {delivered} LIMIT +?"));

const DISSOLVE: &str = "UPDATE deliveries SET ordering_key = NULL, next_attempt_at = ? WHERE id = ?";

const LAST_POSITION: &str = sql! {"
SELECT coalesce(max(group_position), 0) FROM deliveries INDEXED BY deliveries_message_groups
WHERE ordering_key IS NOT NULL AND state < {delivered}"};

/// The last position in any message group. Read once at the start, over all deliveries in groups.
pub(crate) fn load(connection: &Connection) -> Result<i64> {
    Ok(query(connection, LAST_POSITION, &Values::default(), |row| row.int(0))?.pop().unwrap_or_default())
}

/// Where a delivery joins its message group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GroupPosition {
    pub(crate) position: i64,
    pub(crate) is_behind: bool,
}

/// The first delivery of a message group, its due time, and its due time as head.
type First = (DeliveryId, Timestamp, Timestamp);

impl Transaction<'_, '_> {
    /// The positions of new ordered deliveries. Positions rise in the order of storage, even when the clock steps back:
    /// each is above every earlier one. They follow the clock, so that after a restart a new delivery is still behind
    /// an old one that is retried.
    pub(crate) fn group_positions(
        &mut self,
        deliveries: &[NewDelivery<'_>],
    ) -> Result<HashMap<DeliveryId, GroupPosition>> {
        let mut group_positions = HashMap::new();
        for delivery in deliveries {
            let Some(message_group) = delivery.message_group() else { continue };
            // It is the head if its group is empty, in the table and in this commit batch.
            let is_behind = delivery.follows || self.first_of(&message_group)?.is_some();
            *self.last_group_position = delivery.event.created_at.as_nanos().max(*self.last_group_position + 1);
            group_positions.insert(delivery.id, GroupPosition { position: *self.last_group_position, is_behind });
        }
        Ok(group_positions)
    }

    fn first_of(&self, message_group: &MessageGroup) -> Result<Option<First>> {
        let values = values![message_group.destination_id.as_bytes(), &message_group.ordering_key];
        let read = |row: &rusqlite::Row<'_>| Ok((row.delivery_id(0)?, row.time(1)?, row.time(2)?));
        Ok(query(self.connection, FIRST_OF_GROUP, &values, read)?.pop())
    }

    /// The message group that a delivery is in, or was in when it ended.
    pub(crate) fn message_group_of(&self, id: DeliveryId) -> Result<Option<MessageGroup>> {
        Ok(query(self.connection, GROUP_OF_DELIVERY, &values![id.as_bytes()], |row| rows::message_group(row))?.pop())
    }

    /// Removes a delivery from its message group. It is then delivered without order.
    pub(crate) fn leave_message_group(&self, id: DeliveryId) -> Result<()> {
        execute(self.connection, LEAVE_GROUP, &values![id.as_bytes()]).map(drop)
    }

    /// Makes the next delivery the head if the message group has none. Returns when the new head is due.
    pub(crate) fn advance_message_group(&mut self, message_group: &MessageGroup) -> Result<Option<Timestamp>> {
        let Some((id, BEHIND, due)) = self.first_of(message_group)? else { return Ok(None) };
        execute(self.connection, MAKE_HEAD, &values![due, id.as_bytes()])?;
        Ok(Some(due))
    }

    /// Advances several message groups. Returns how many have a new head.
    pub(crate) fn advance_message_groups(&mut self, message_groups: &BTreeSet<MessageGroup>) -> Result<u64> {
        let mut advanced = 0;
        for message_group in message_groups {
            advanced += u64::from(self.advance_message_group(message_group)?.is_some());
        }
        Ok(advanced)
    }

    fn dissolve_message_groups(&mut self, id: DestinationId, limit: u32) -> Result<u32> {
        if self.destinations.get(id).is_some_and(|found| found.settings.order.is_by_key()) {
            return Ok(0);
        }
        let read = |row: &rusqlite::Row<'_>| Ok((row.delivery_id(0)?, row.time(1)?, row.time(2)?));
        let dissolved = query(self.connection, SOME_OF_GROUPS, &values![id.as_bytes(), limit], read)?;
        // A head keeps its due time, for example of a retry. The others get the due time that they would have as heads.
        for &(delivery, due, due_as_head) in &dissolved {
            let due = if due == BEHIND { due_as_head } else { due };
            execute(self.connection, DISSOLVE, &values![due, delivery.as_bytes()])?;
        }
        Ok(dissolved.len() as u32)
    }
}
