//! Lines: the deliveries of one destination and ordering key that have not ended, one after the other.
//!
//! Whatever ends a delivery that has a key calls [`advance`] with its message_group, *after its own commit*. That takes the lock of the
//! key, which ingest holds from before it looks at the message_group until its own commit, and then looks who is first:
//!
//! - what ingest put behind the one that ended is seen, because its commit came before the lock was given;
//! - what comes in later sees the end, because that was committed before;
//! - of two that end at about the same time, the later advance sees both ends.
//!
//! So a message_group is without a head only between a commit and the advance that follows it. Should the process die there, the sweep finds
//! the message_group. Locks of keys are taken before any lock of a row, and the advance has a transaction of its own, so that nobody
//! waits for it in a circle with what it waits for.

use std::collections::BTreeSet;

use async_trait::async_trait;
use sqlx::{PgConnection, postgres::PgRow, types::Uuid};
use weir_core::{DeliveryId, DestinationId, Timestamp, order::BEHIND};
use weir_store::{MessageGroup, MessageGroups, MessageGroupsRepaired, StoreResult};

use crate::{
    PostgresStore,
    edits::Edit,
    errors::{ATTEMPTS, conflicts},
    ingest::column,
    locks::{KEY_LOCK_SPACE, locks_of},
    rows::{destination_id, int, text, time, uuid},
};

#[async_trait]
impl MessageGroups for PostgresStore {
    async fn repair_message_groups(
        &self,
        after: Option<MessageGroup>,
        limit: u32,
    ) -> StoreResult<MessageGroupsRepaired> {
        // The id of zeros sorts before every id that was made.
        let (id, key) =
            after.map_or(([0; 16], String::new()), |message_group| (*message_group.destination_id.as_bytes(), message_group.ordering_key));
        let query = sqlx::query(MESSAGE_GROUPS).bind(uuid(&id)).bind(key).bind(i64::from(limit));
        let found = self.read(query, |row| Ok((message_group(row, 0)?, time(row, 2)?))).await?;
        let next = found.last().filter(|_| found.len() == limit as usize).map(|(message_group, _)| message_group.clone());
        let headless: BTreeSet<MessageGroup> =
            found.into_iter().filter(|(_, due)| *due == BEHIND).map(|(message_group, _)| message_group).collect();
        let advanced = if headless.is_empty() { 0 } else { self.edit(Advance(headless)).await? };
        Ok(MessageGroupsRepaired { advanced, next })
    }

    async fn dissolve_message_groups(&self, limit: u32) -> StoreResult<u64> {
        self.edit(Dissolve { limit }).await
    }
}

/// The message_groups after a place, each with when its first is due: a loose index scan, from one straight to the next.
pub(crate) const MESSAGE_GROUPS: &str = "
WITH RECURSIVE found AS (
    (
        SELECT destination_id, ordering_key, next_attempt_at FROM deliveries
        WHERE (destination_id, ordering_key) > ($1, $2) AND ordering_key IS NOT NULL AND state < 3
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT 1
    )
    UNION ALL
    SELECT n.destination_id, n.ordering_key, n.next_attempt_at FROM found f CROSS JOIN LATERAL (
        SELECT destination_id, ordering_key, next_attempt_at FROM deliveries
        WHERE (destination_id, ordering_key) > (f.destination_id, f.ordering_key)
            AND ordering_key IS NOT NULL AND state < 3
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT 1
    ) n
)
SELECT destination_id, ordering_key, next_attempt_at FROM found LIMIT $3";

/// Of the destinations that have message_groups, those that are not ordered. Without waiting for anyone: what another process has in hand
/// is passed over.
pub(crate) const DISSOLVE: &str = "
WITH RECURSIVE ordered_destinations (id) AS (
    SELECT (SELECT destination_id FROM deliveries
        WHERE ordering_key IS NOT NULL AND state < 3 ORDER BY destination_id LIMIT 1)
    UNION ALL
    SELECT (SELECT destination_id FROM deliveries
        WHERE ordering_key IS NOT NULL AND state < 3 AND destination_id > ordered_destinations.id
        ORDER BY destination_id LIMIT 1)
    FROM ordered_destinations WHERE ordered_destinations.id IS NOT NULL
), chosen AS MATERIALIZED (
    SELECT d.id FROM ordered_destinations JOIN destinations t ON t.id = ordered_destinations.id AND NOT t.ordered CROSS JOIN LATERAL (
        SELECT id FROM deliveries WHERE destination_id = t.id AND ordering_key IS NOT NULL AND state < 3
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED
    ) d LIMIT $1
)
UPDATE deliveries d SET ordering_key = NULL,
    next_attempt_at = CASE WHEN d.next_attempt_at = 9223372036854775807 THEN
        CASE WHEN d.replay_id IS NULL THEN coalesce(d.deliver_at, d.created_at) ELSE d.updated_at END
        ELSE d.next_attempt_at END
FROM chosen WHERE d.id = chosen.id";

/// See the migration.
const ADVANCE: &str = "SELECT ordinal, due FROM advance_message_groups($1, $2, $3, $4, $5)";

fn message_group(row: &PgRow, column: usize) -> Result<MessageGroup, sqlx::Error> {
    Ok(MessageGroup { destination_id: destination_id(row, column)?, ordering_key: text(row, column + 1)? })
}

/// Message groups from a column of destinations and a column of ordering keys.
pub(crate) fn of_columns(destinations: Vec<Uuid>, keys: Vec<String>) -> impl Iterator<Item = MessageGroup> {
    let message_group = |(id, ordering_key): (Uuid, _)| MessageGroup {
        destination_id: DestinationId::from_bytes(id.into_bytes()),
        ordering_key,
    };
    destinations.into_iter().zip(keys).map(message_group)
}

/// What the lock of a message_group is chosen by. Coalesce keys share the locks, which is no harm.
pub(crate) fn lock_name(message_group: &MessageGroup) -> String {
    format!("{} {}", message_group.destination_id, message_group.ordering_key)
}

/// The next of each message_group comes forward if that has no head; those `leaving` are out of their message_groups before. Answers when each is
/// due that has come forward, in the order of the message_groups. Not within a transaction. An error is no reason to fail what has been
/// committed already: the sweep does it again.
pub(crate) async fn advance(
    message_groups: &BTreeSet<MessageGroup>,
    skipped: &[DeliveryId],
    connection: &mut PgConnection,
) -> Vec<Option<Timestamp>> {
    if message_groups.is_empty() {
        return Vec::new();
    }
    let advanced = try_advance(message_groups, skipped, connection).await;
    advanced.unwrap_or_else(|error| {
        let count = message_groups.len();
        tracing::warn!(%error, message_groups = count, "could not advance message groups; the next sweep repairs them");
        vec![None; message_groups.len()]
    })
}

async fn try_advance(
    message_groups: &BTreeSet<MessageGroup>,
    skipped: &[DeliveryId],
    connection: &mut PgConnection,
) -> Result<Vec<Option<Timestamp>>, sqlx::Error> {
    let message_groups: Vec<&MessageGroup> = message_groups.iter().collect();
    let names: Vec<String> = message_groups.iter().map(|message_group| lock_name(message_group)).collect();
    let mut attempts = 1;
    let rows = loop {
        let advancing = sqlx::query(ADVANCE)
            .bind(KEY_LOCK_SPACE)
            .bind(locks_of(names.iter().map(String::as_str)))
            .bind(column(&message_groups, |message_group| uuid(message_group.destination_id.as_bytes())))
            .bind(column(&message_groups, |message_group| message_group.ordering_key.as_str()))
            .bind(column(skipped, |id| uuid(id.as_bytes())))
            .fetch_all(&mut *connection)
            .await;
        match advancing {
            Err(error) if conflicts(&error) && attempts < ATTEMPTS => attempts += 1,
            outcome => break outcome?,
        }
    };
    let mut dues = vec![None; message_groups.len()];
    for row in &rows {
        let due = usize::try_from(int(row, 0)? - 1).ok().and_then(|at| dues.get_mut(at));
        if let Some(due) = due {
            *due = Some(time(row, 1)?);
        }
    }
    Ok(dues)
}

/// Message groups that seem to have no head.
struct Advance(BTreeSet<MessageGroup>);

#[async_trait]
impl Edit for Advance {
    type Answer = u64;

    async fn run(&self, connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
        let advanced = try_advance(&self.0, &[], connection).await?;
        Ok(advanced.iter().flatten().count() as u64)
    }
}

struct Dissolve {
    limit: u32,
}

#[async_trait]
impl Edit for Dissolve {
    type Answer = u64;

    async fn run(&self, connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
        let dissolve = sqlx::query(DISSOLVE).bind(i64::from(self.limit));
        Ok(dissolve.execute(connection).await?.rows_affected())
    }
}
