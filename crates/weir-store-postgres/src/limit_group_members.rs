//! Destinations that join and leave limit groups. Whoever joins a group, or deletes one, locks its row.

use sqlx::{AssertSqlSafe, PgConnection};
use weir_core::{Destination, DestinationId, LimitGroup, LimitGroupId, Timestamp};
use weir_store::{
    joins,
    rows::{self, LIMIT_GROUP_COLUMNS},
};

use crate::rows::uuid;

pub(crate) const MEMBERS: &str = "SELECT count(*) FROM limit_group_members WHERE group_id = $1 AND left_at IS NULL";

const JOIN: &str = "INSERT INTO limit_group_members (group_id, destination_id, joined_at) VALUES ($1, $2, $3)";

const LEAVE: &str =
    "UPDATE limit_group_members SET left_at = $3 WHERE group_id = $1 AND destination_id = $2 AND left_at IS NULL";

pub(crate) fn select(terms: &str) -> AssertSqlSafe<String> {
    AssertSqlSafe(format!("SELECT {LIMIT_GROUP_COLUMNS} FROM limit_groups {terms}"))
}

/// The group, locked until the transaction ends.
pub(crate) async fn lock(connection: &mut PgConnection, id: LimitGroupId) -> Result<Option<LimitGroup>, sqlx::Error> {
    let locked = sqlx::query(select("WHERE id = $1 FOR UPDATE")).bind(uuid(id.as_bytes()));
    Ok(locked.fetch_optional(connection).await?.as_ref().map(rows::limit_group).transpose()?)
}

pub(crate) async fn members(connection: &mut PgConnection, id: LimitGroupId) -> Result<u64, sqlx::Error> {
    let counted: i64 = sqlx::query_scalar(MEMBERS).bind(uuid(id.as_bytes())).fetch_one(connection).await?;
    Ok(counted.unsigned_abs())
}

/// Joins the group of a destination. Returns whether it may; without a group there is nothing to do.
pub(crate) async fn join(
    connection: &mut PgConnection,
    destination: &Destination,
    at: Timestamp,
) -> Result<bool, sqlx::Error> {
    let Some(id) = destination.settings.limit_group else { return Ok(true) };
    let Some(group) = lock(connection, id).await? else { return Ok(false) };
    // A statement of its own, after the lock: it sees whoever has joined before.
    if !joins(destination, group.tenant.as_deref(), members(connection, id).await?) {
        return Ok(false);
    }
    let join = sqlx::query(JOIN).bind(uuid(id.as_bytes())).bind(uuid(destination.id.as_bytes()));
    join.bind(at.as_nanos()).execute(connection).await?;
    Ok(true)
}

pub(crate) async fn leave(
    connection: &mut PgConnection,
    id: DestinationId,
    group: Option<LimitGroupId>,
    at: Timestamp,
) -> Result<(), sqlx::Error> {
    let Some(group) = group else { return Ok(()) };
    let leave = sqlx::query(LEAVE).bind(uuid(group.as_bytes())).bind(uuid(id.as_bytes()));
    leave.bind(at.as_nanos()).execute(connection).await.map(drop)
}
