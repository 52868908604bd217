//! Changes that Weir makes to destinations by itself, because of their answers: holds, pauses and breakers.
//!
//! Thousands of destinations may refuse at one time, so each call changes many destinations with the same few
//! statements. Commits of holds and breakers do not wait for the disk. A power failure may lose a hold (one
//! `Retry-After` is then ignored) and a change of a breaker (it opens again). Pauses are durable.

use std::collections::{BTreeSet, HashMap};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, types::Uuid};
use weir_core::{
    Destination, DestinationId,
    activity::{Activity, HOLDS_APART},
};
use weir_sealing::Keyring;
use weir_store::{BreakerChange, Hold, Pause, rows};

use crate::{
    activity::{bind_activities, record_all, unnest_activities},
    counters::RECOVERABLE,
    destination_rows::LOCK_ALL_LIVE,
    locks::begin_to_edit,
    rows::{Read, column, unwritable, uuid},
};

/// Extends holds ([`Hold::extends`]), and records those that continue no other. The first parameters are the activities; their tenants and
/// their names come from the destinations. One statement, because receivers may ask for a hold with each answer. A hold
/// does not affect ingest, so it needs no lock of a tenant, and keeps the version: events would wait until their process
/// has read each of thousands of holds again. What is asked is joined with the table once, by its key: joins of one list
/// with another compare each with each, because plans have no hash joins (open.rs).
pub(crate) const HOLD: &str = concat!(
    "WITH asked AS MATERIALIZED (
        SELECT a.*, d.tenant AS of_tenant, d.name, d.held_until, d.released_at
        FROM ",
    unnest_activities!(", $14::bigint[], $15::text[], $16::bigint[], $17::bigint[]"),
    " AS a (id, destination_id, key_id, at, action, actor, tenant, subject_kind, subject_id, subject_name, before,
            after, request_id, until, reason, apart, sent_at)
        JOIN destinations d ON d.id = a.destination_id
        WHERE d.deleted_at IS NULL ORDER BY d.id FOR NO KEY UPDATE OF d
    ), held AS (
        UPDATE destinations d SET held_until = a.until, held_reason = a.reason
        FROM asked a
        WHERE d.id = a.destination_id AND (a.held_until IS NULL OR a.held_until < a.until)
            AND (a.released_at IS NULL OR a.released_at <= a.sent_at)
        RETURNING a.*
    )
    INSERT INTO activity
    SELECT id, destination_id, key_id, at, action, actor, of_tenant, subject_kind, subject_id, name, before, after,
        request_id
    FROM held WHERE held_until IS NULL OR held_until <= apart
    ON CONFLICT (id) DO NOTHING"
);

const TENANTS: &str = "SELECT DISTINCT tenant FROM destinations WHERE id = ANY($1) AND deleted_at IS NULL";

/// Writes the columns that a pause and a breaker change.
pub(crate) const CHANGE: &str = "
UPDATE destinations d
SET updated_at = c.updated_at, paused = c.paused, paused_reason = c.paused_reason, breaker_state = c.breaker_state,
    version = DEFAULT
FROM unnest($1::uuid[], $2::bigint[], $3::boolean[], $4::text[], $5::text[])
    AS c (id, updated_at, paused, paused_reason, breaker_state)
WHERE d.id = c.id";

pub(crate) async fn hold_all(connection: &mut PgConnection, holds: &[Hold]) -> Result<(), sqlx::Error> {
    if holds.is_empty() {
        return Ok(());
    }
    let activities: Vec<_> =
        holds.iter().map(|hold| Activity::of_hold(hold.id, hold.until, &hold.reason, hold.now)).collect();
    let mut transaction = connection.begin_with(AssertSqlSafe(format!("BEGIN; {RECOVERABLE}"))).await?;
    bind_activities(HOLD, &activities)
        .bind(column(holds, |hold| hold.until.as_nanos()))
        .bind(column(holds, |hold| hold.reason.clone()))
        .bind(column(holds, |hold| hold.now.before(HOLDS_APART).as_nanos()))
        .bind(column(holds, |hold| hold.sent_at.as_nanos()))
        .execute(&mut *transaction)
        .await?;
    transaction.commit().await
}

pub(crate) async fn pause_all(
    connection: &mut PgConnection,
    pauses: &[Pause],
    keyring: &Keyring,
) -> Result<Vec<bool>, sqlx::Error> {
    let by_id: HashMap<_, _> = pauses.iter().map(|pause| (pause.id, pause)).collect();
    let pause = |current: &Destination| {
        let paused = by_id.get(&current.id)?.applied_to(current)?;
        let activity = Activity::of_pause(&paused);
        Some((paused, Some(activity)))
    };
    let ids: Vec<_> = pauses.iter().map(|pause| pause.id).collect();
    let uuids: Vec<Uuid> = ids.iter().map(|id| uuid(id.as_bytes())).collect();
    let tenants: Vec<String> = sqlx::query_scalar(TENANTS).bind(uuids).fetch_all(&mut *connection).await?;
    // Under the locks of the tenants no event is fanned out partly before and partly after the pause.
    let begin = begin_to_edit(tenants.iter().map(String::as_str));
    let mut transaction = connection.begin_with(begin).await?;
    let paused = change_all(&mut transaction, &ids, keyring, pause).await?;
    transaction.commit().await?;
    Ok(paused)
}

/// Without the locks of tenants: events would wait for each of the many changes while a breaker of their tenant opens
/// and closes. Ingest looks at a breaker only to leave out the fast path, and Redis declines a delivery whose
/// destination has other terms. So if a process misses a change, nothing is sent that must not be.
pub(crate) async fn change_breakers(
    connection: &mut PgConnection,
    changes: &[BreakerChange],
    keyring: &Keyring,
) -> Result<Vec<bool>, sqlx::Error> {
    let by_id: HashMap<_, _> = changes.iter().map(|change| (change.id, change)).collect();
    let change = |current: &Destination| {
        let changed = by_id.get(&current.id)?.applied_to(current)?;
        let activity = Activity::of_breaker(current, &changed);
        Some((changed, activity))
    };
    let ids: Vec<_> = changes.iter().map(|change| change.id).collect();
    let mut transaction = connection.begin_with(AssertSqlSafe(format!("BEGIN; {RECOVERABLE}"))).await?;
    let changed = change_all(&mut transaction, &ids, keyring, change).await?;
    transaction.commit().await?;
    Ok(changed)
}

/// Replaces destinations with the results of `change` in a transaction, and records the activities. `change` returns
/// `None` for a destination that stays. Answers which of them have changed.
async fn change_all(
    transaction: &mut PgConnection,
    ids: &[DestinationId],
    keyring: &Keyring,
    change: impl Fn(&Destination) -> Option<(Destination, Option<Activity>)> + Send,
) -> Result<Vec<bool>, sqlx::Error> {
    let uuids: Vec<Uuid> = ids.iter().map(|id| uuid(id.as_bytes())).collect();
    // Apply the changes to the current values of the locked rows, not to those in the cache.
    let current = sqlx::query(LOCK_ALL_LIVE).bind(uuids).fetch_all(&mut *transaction).await?;
    let current: Vec<Destination> = current.iter().map(|row| rows::destination(row, keyring)).collect::<Read<_>>()?;
    let (changed, activities): (Vec<_>, Vec<_>) = current.iter().filter_map(change).unzip();
    write(transaction, &changed).await?;
    let activities: Vec<_> = activities.into_iter().flatten().collect();
    record_all(transaction, &activities).await?;
    let changed: BTreeSet<_> = changed.iter().map(|destination| destination.id).collect();
    Ok(ids.iter().map(|id| changed.contains(id)).collect())
}

async fn write(connection: &mut PgConnection, changed: &[Destination]) -> Result<(), sqlx::Error> {
    if changed.is_empty() {
        return Ok(());
    }
    let breakers = changed.iter().map(|destination| serde_json::to_string(&destination.breaker).map_err(unwritable));
    sqlx::query(CHANGE)
        .bind(column(changed, |destination| uuid(destination.id.as_bytes())))
        .bind(column(changed, |destination| destination.updated_at.as_nanos()))
        .bind(column(changed, |destination| destination.stored_pause().0))
        .bind(column(changed, |destination| destination.stored_pause().1.cloned()))
        .bind(breakers.collect::<Result<Vec<_>, _>>()?)
        .execute(connection)
        .await
        .map(drop)
}
