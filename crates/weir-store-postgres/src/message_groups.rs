//! Message groups, by the rules of [`weir_store::intake`].
//!
//! Code that ends an ordered delivery calls [`advance`] with its message group, *after its own commit*. The advance
//! takes the lock of the key and then reads the first delivery of the group. Ingest holds the same lock from before it
//! reads the group until its own commit. Therefore:
//!
//! - The advance sees every delivery that ingest stored behind the ended one, because ingest committed before the lock
//!   was granted.
//! - A later ingest sees the end, because the end was committed first.
//! - If two deliveries end at about the same time, the later advance sees both ends.
//!
//! So a message group has no head only between a commit and the advance that follows it. If the process dies there, the
//! sweep repairs the group. Locks of keys are taken before any row lock, and the advance has a transaction of its own,
//! which prevents deadlocks.

use std::collections::BTreeSet;

use async_trait::async_trait;
use sqlx::{PgConnection, types::Uuid};
use weir_core::{DeliveryId, DestinationId, Timestamp};
use weir_store::{
    HeadlessGroups, MessageGroup, MessageGroups, MessageGroupsRepaired, StoreResult,
    rows::{self, Row as _},
    sql,
};

use crate::{
    PostgresStore,
    edit::change,
    errors::{ATTEMPTS, conflicts},
    locks::{KEY_LOCK_SPACE, locks_of},
    rows::{column, named, uuid},
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
            after.map_or(([0; 16], String::new()), |group| (*group.destination_id.as_bytes(), group.ordering_key));
        let query = sqlx::query(MESSAGE_GROUPS).bind(uuid(&id)).bind(key).bind(i64::from(limit));
        let found = self.read(query, |row| Ok((rows::message_group(row)?, row.time(2)?))).await?;
        let HeadlessGroups { headless, next } = HeadlessGroups::of(found, limit);
        let advanced = match headless.is_empty() {
            true => 0,
            false => self.edit(|connection| change(repair(connection, &headless))).await?,
        };
        Ok(MessageGroupsRepaired { advanced, next })
    }

    async fn dissolve_message_groups(&self, limit: u32) -> StoreResult<u64> {
        self.edit(|connection| change(dissolve(connection, limit))).await
    }
}

/// The message groups after a given one, each with the due time of its first delivery: a loose index scan.
pub(crate) const MESSAGE_GROUPS: &str = sql! {"
WITH RECURSIVE found AS (
    -- The first group after the given one.
    (
        SELECT destination_id, ordering_key, next_attempt_at FROM deliveries
        WHERE (destination_id, ordering_key) > ($1, $2) AND ordering_key IS NOT NULL AND state < {delivered}
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT 1
    )
    UNION ALL
    -- Then the next group after each.
    SELECT n.destination_id, n.ordering_key, n.next_attempt_at FROM found f CROSS JOIN LATERAL (
        SELECT destination_id, ordering_key, next_attempt_at FROM deliveries
        WHERE (destination_id, ordering_key) > (f.destination_id, f.ordering_key)
            AND ordering_key IS NOT NULL AND state < {delivered}
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT 1
    ) n
)
SELECT destination_id, ordering_key, next_attempt_at FROM found LIMIT $3"};

/// Dissolves message groups of destinations that are no longer ordered: their deliveries lose their ordering keys and
/// become due. `grouped` are the destinations with message groups. Rows that another process has locked are skipped.
pub(crate) const DISSOLVE: &str = sql! {"
WITH RECURSIVE grouped (id) AS (
    -- The destinations that have message groups: a loose index scan.
    SELECT (SELECT destination_id FROM deliveries
        WHERE ordering_key IS NOT NULL AND state < {delivered} ORDER BY destination_id LIMIT 1)
    UNION ALL
    SELECT (SELECT destination_id FROM deliveries
        WHERE ordering_key IS NOT NULL AND state < {delivered} AND destination_id > grouped.id
        ORDER BY destination_id LIMIT 1)
    FROM grouped WHERE grouped.id IS NOT NULL
), chosen AS MATERIALIZED (
    -- Some deliveries of those that are no longer ordered.
    SELECT d.id FROM grouped JOIN destinations t ON t.id = grouped.id AND NOT t.ordered CROSS JOIN LATERAL (
        SELECT id FROM deliveries WHERE destination_id = t.id AND ordering_key IS NOT NULL AND state < {delivered}
        ORDER BY destination_id, ordering_key, next_attempt_at LIMIT $1 FOR UPDATE SKIP LOCKED
    ) d LIMIT $1
)
UPDATE deliveries d SET ordering_key = NULL,
    next_attempt_at = CASE WHEN d.next_attempt_at = {end_of_time} THEN
        CASE WHEN d.replay_id IS NULL THEN coalesce(d.deliver_at, d.created_at) ELSE d.updated_at END
        ELSE d.next_attempt_at END
FROM chosen WHERE d.id = chosen.id"};

/// See `migrations/postgres/functions/advance_message_groups.sql`.
const ADVANCE: &str = "
SELECT ordinal, due FROM advance_message_groups(
    key_space => $1, key_locks => $2, destination_ids => $3, ordering_keys => $4, skipped => $5
)";

/// Message groups from a column of destinations and a column of ordering keys.
pub(crate) fn of_columns(destinations: Vec<Uuid>, keys: Vec<String>) -> impl Iterator<Item = MessageGroup> {
    let message_group = |(id, ordering_key): (Uuid, _)| MessageGroup {
        destination_id: DestinationId::from_bytes(id.into_bytes()),
        ordering_key,
    };
    destinations.into_iter().zip(keys).map(message_group)
}

/// The name that chooses the lock of a message group. Coalesce keys share these locks, which costs only some waiting.
pub(crate) fn lock_name(message_group: &MessageGroup) -> String {
    format!("{} {}", message_group.destination_id, message_group.ordering_key)
}

/// The next delivery of each message group becomes the head, if the group has no head. The `skipped` deliveries leave
/// their groups first. Returns the due time of each new head, in the order of the groups. Must not be called within a
/// transaction. An error is only logged, because the ends are committed already and the sweep repeats the advance.
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
    let names: Vec<String> = message_groups.iter().map(|group| lock_name(group)).collect();
    // Repeat after a conflict here: the callers of `advance` have committed and do not run again.
    let mut attempts = 1;
    let rows = loop {
        let advancing = sqlx::query(ADVANCE)
            .bind(KEY_LOCK_SPACE)
            .bind(locks_of(names.iter().map(String::as_str)))
            .bind(column(&message_groups, |group| uuid(group.destination_id.as_bytes())))
            .bind(column(&message_groups, |group| group.ordering_key.as_str()))
            .bind(column(skipped, |id| uuid(id.as_bytes())))
            .fetch_all(&mut *connection)
            .await;
        match advancing {
            Err(error) if conflicts(&error) && attempts < ATTEMPTS => attempts += 1,
            outcome => break outcome?,
        }
    };
    // A group without a row has no new head: it has a head already, or is empty.
    let mut dues = vec![None; message_groups.len()];
    for row in &rows {
        let (at, _) = named(row, 0, &message_groups)?;
        dues[at] = Some(row.time(1)?);
    }
    Ok(dues)
}

/// Gives heads to message groups that seem to have none. Returns how many got one.
async fn repair(connection: &mut PgConnection, headless: &BTreeSet<MessageGroup>) -> Result<u64, sqlx::Error> {
    let advanced = try_advance(headless, &[], connection).await?;
    Ok(advanced.iter().flatten().count() as u64)
}

async fn dissolve(connection: &mut PgConnection, limit: u32) -> Result<u64, sqlx::Error> {
    let dissolve = sqlx::query(DISSOLVE).bind(i64::from(limit));
    Ok(dissolve.execute(connection).await?.rows_affected())
}
