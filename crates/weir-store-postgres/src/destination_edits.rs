//! The edits of destinations by people. They hold the lock of the tenant (locks.rs).

use std::{sync::Arc, time::Duration};

use sqlx::{Connection as _, PgConnection};
use weir_core::{Destination, DestinationId, RateLimits, Timestamp, activity::Activity};
use weir_sealing::Keyring;
use weir_store::{
    Created, Creation, Deletion, DestinationDeletion, DestinationPatch, LimitChange, NamedCreation, keyed_at,
    limit_steps,
    rows::{self, Row as _, interval_code, limits_json},
    sql,
};

use crate::{
    activity::{record, record_creation},
    destination_rows::{COUNT_OF_TENANT, INSERT, LOCK_LIVE, NAMED, UPDATE, write_destination},
    limit_group_members::{join, leave},
    locks::begin_to_edit,
    paces::FORGET,
    rows::uuid,
};

/// A long backlog is cancelled in many statements.
pub(crate) const DELETION_TIMEOUT: Duration = Duration::from_secs(3_600);

const TENANT: &str = "SELECT tenant FROM destinations WHERE id = $1 AND deleted_at IS NULL";

const INSERT_LIMIT_CHANGE: &str =
    "INSERT INTO limit_changes (destination_id, at, rate_limits, min_interval_ms) VALUES ($1, $2, $3, $4)
    ON CONFLICT (destination_id, at) DO UPDATE SET rate_limits = excluded.rate_limits,
        min_interval_ms = excluded.min_interval_ms";

/// The end of an override that another edit moves.
const FORGET_LATER_LIMITS: &str = "DELETE FROM limit_changes WHERE destination_id = $1 AND at > $2";

/// Statements that depend on the destination not being deleted lock its row FOR KEY SHARE, which conflicts with this
/// lock. An UPDATE alone takes a weaker lock, which does not conflict.
const LOCK_TO_DELETE: &str =
    "SELECT updated_at, limit_group FROM destinations WHERE id = $1 AND deleted_at IS NULL FOR UPDATE";

const TOMBSTONE: &str = "UPDATE destinations SET deleted_at = $1, updated_at = $1, version = DEFAULT WHERE id = $2";

/// Cancels part of a backlog. Rows that are locked are skipped.
pub(crate) const CANCEL_SOME: &str = sql! {"
WITH waiting AS MATERIALIZED (
    SELECT id FROM deliveries WHERE destination_id = $2 AND state IN ({waiting})
    ORDER BY is_replay, next_attempt_at, id LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE deliveries d SET state = {cancelled}, updated_at = $1 FROM waiting WHERE d.id = waiting.id"};

/// Bounds how long one transaction locks rows and keeps vacuum from removing dead ones.
const CANCELLED_AT_ONCE: i64 = 5_000;

const CANCEL_WAITING: &str = sql!(
    "UPDATE deliveries SET state = {cancelled}, updated_at = $1 WHERE destination_id = $2 AND state IN ({waiting})"
);

/// Limits of a destination, or of a limit group.
async fn record_limits(
    connection: &mut PgConnection,
    id: &[u8; 16],
    at: Timestamp,
    limits: &RateLimits,
) -> Result<(), sqlx::Error> {
    sqlx::query(INSERT_LIMIT_CHANGE)
        .bind(uuid(id))
        .bind(at.as_nanos())
        .bind(limits_json(limits))
        .bind(interval_code(limits))
        .execute(connection)
        .await
        .map(drop)
}

/// Records limits from `at` on, in place of those that lie ahead.
pub(crate) async fn replace_limits(
    connection: &mut PgConnection,
    id: &[u8; 16],
    at: Timestamp,
    steps: Vec<LimitChange>,
) -> Result<(), sqlx::Error> {
    sqlx::query(FORGET_LATER_LIMITS).bind(uuid(id)).bind(at.as_nanos()).execute(&mut *connection).await?;
    for step in steps {
        record_limits(connection, id, step.at, &step.limits).await?;
    }
    Ok(())
}

async fn tenant_of(connection: &mut PgConnection, id: DestinationId) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar(TENANT).bind(uuid(id.as_bytes())).fetch_optional(connection).await
}

/// Inserts a new destination in a transaction that has the lock of its tenant. `None`: it may not join its group.
async fn insert(
    connection: &mut PgConnection,
    destination: &Destination,
    keyring: &Keyring,
) -> Result<Option<Arc<Destination>>, sqlx::Error> {
    if !join(connection, destination, destination.created_at).await? {
        return Ok(None);
    }
    let destination = &Destination { keyed_at: keyed_at(destination, destination.created_at), ..destination.clone() };
    write_destination(INSERT, destination, keyring)?
        .bind(destination.settings.tenant.clone())
        .bind(destination.created_at.as_nanos())
        .execute(&mut *connection)
        .await?;
    let limits = &destination.settings.rate_limits;
    record_limits(connection, destination.id.as_bytes(), destination.created_at, limits).await?;
    Ok(Some(Arc::new(destination.clone())))
}

/// Whether the tenant of a new destination has `most` or more. The transaction has the tenant's lock.
async fn is_full(connection: &mut PgConnection, destination: &Destination, most: usize) -> Result<bool, sqlx::Error> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let counted = sqlx::query_scalar(COUNT_OF_TENANT).bind(&destination.settings.tenant).bind(most);
    counted.fetch_one(connection).await.map(|count: i64| count >= most)
}

pub(crate) async fn create(
    connection: &mut PgConnection,
    destination: &Destination,
    creation: &Creation,
    most: usize,
    keyring: &Keyring,
) -> Result<Created<Arc<Destination>>, sqlx::Error> {
    let mut transaction = connection.begin_with(begin_to_edit([destination.settings.tenant.as_str()])).await?;
    if let Some(before) = record_creation(&mut transaction, creation).await? {
        transaction.rollback().await?;
        return Ok(Created::Before(before));
    }
    if is_full(&mut transaction, destination, most).await? {
        transaction.rollback().await?;
        return Ok(Created::Full);
    }
    let Some(created) = insert(&mut transaction, destination, keyring).await? else {
        transaction.rollback().await?;
        return Ok(Created::Full);
    };
    transaction.commit().await?;
    Ok(Created::New(created))
}

/// The lock of the tenant keeps any other destination from getting the name meanwhile.
pub(crate) async fn create_named(
    connection: &mut PgConnection,
    destination: &Destination,
    activity: &Activity,
    most: usize,
    keyring: &Keyring,
) -> Result<NamedCreation, sqlx::Error> {
    let tenant = &destination.settings.tenant;
    let mut transaction = connection.begin_with(begin_to_edit([tenant.as_str()])).await?;
    let named = sqlx::query(NAMED).bind(tenant).bind(&destination.settings.name);
    if named.fetch_optional(&mut *transaction).await?.is_some() {
        transaction.rollback().await?;
        return Ok(NamedCreation::Taken);
    }
    if is_full(&mut transaction, destination, most).await? {
        transaction.rollback().await?;
        return Ok(NamedCreation::Full);
    }
    let Some(created) = insert(&mut transaction, destination, keyring).await? else {
        transaction.rollback().await?;
        return Ok(NamedCreation::Full);
    };
    record(&mut transaction, activity).await?;
    transaction.commit().await?;
    Ok(NamedCreation::New(created))
}

pub(crate) async fn patch(
    connection: &mut PgConnection,
    patch: &DestinationPatch,
    creation: &Creation,
    keyring: &Keyring,
) -> Result<Created<Option<Arc<Destination>>>, sqlx::Error> {
    let none = Created::New(None);
    let Some(tenant) = tenant_of(connection, patch.id).await? else { return Ok(none) };
    // Under the tenant's lock no event is fanned out partly before and partly after the change.
    let mut transaction = connection.begin_with(begin_to_edit([tenant.as_str()])).await?;
    // Apply the patch to the current values of the locked row, not to those in the cache.
    let current = sqlx::query(LOCK_LIVE).bind(uuid(patch.id.as_bytes())).fetch_optional(&mut *transaction).await?;
    let Some(current) = current.as_ref().map(|row| rows::destination(row, keyring)).transpose()? else {
        return Ok(none);
    };
    let Some(changed) = patch.applied_to(&current) else { return Ok(none) };
    if let Some(before) = record_creation(&mut transaction, creation).await? {
        transaction.rollback().await?;
        return Ok(Created::Before(before));
    }
    if changed.settings.limit_group != current.settings.limit_group {
        leave(&mut transaction, current.id, current.settings.limit_group, changed.updated_at).await?;
        if !join(&mut transaction, &changed, changed.updated_at).await? {
            transaction.rollback().await?;
            return Ok(none);
        }
    }
    // The audit judges each send by the limits that applied when it started.
    if let Some(steps) = limit_steps(&current.limits_from(changed.updated_at), changed.limits_from(changed.updated_at))
    {
        replace_limits(&mut transaction, changed.id.as_bytes(), changed.updated_at, steps).await?;
    }
    write_destination(UPDATE, &changed, keyring)?.execute(&mut *transaction).await?;
    transaction.commit().await?;
    Ok(Created::New(Some(Arc::new(changed))))
}

pub(crate) async fn delete(
    connection: &mut PgConnection,
    deletion: &DestinationDeletion,
    activity: &Activity,
) -> Result<Deletion, sqlx::Error> {
    let DestinationDeletion { id, now, expected_updated_at } = *deletion;
    let Some(tenant) = tenant_of(connection, id).await? else { return Ok(Deletion::Missing) };
    // Most of the backlog is cancelled without the tenant's lock, so that ingest waits only for the rest. But a
    // deletion that names a version may be refused, and a refused deletion must not cancel anything. So it cancels
    // everything later, under the lock.
    if expected_updated_at.is_none() {
        cancel_backlog(connection, deletion).await?;
    }
    let id = uuid(id.as_bytes());
    let mut transaction = connection.begin_with(begin_to_edit([tenant.as_str()])).await?;
    // The destination is locked before any delivery: an UPDATE keeps a lock even on a row that it finds already
    // changed, and the transaction that settles this row may hold the destination.
    let current = sqlx::query(LOCK_TO_DELETE).bind(id).fetch_optional(&mut *transaction).await?;
    let refusal = match current {
        None => Some(Deletion::Missing),
        Some(ref current) => (!deletion.applies_to(current.time(0)?)).then_some(Deletion::Changed),
    };
    if let Some(refusal) = refusal {
        transaction.rollback().await?;
        return Ok(refusal);
    }
    let group = current.map(|current| current.optionally_parsed(1, "a limit group", |text| text.parse().ok()));
    leave(&mut transaction, deletion.id, group.transpose()?.flatten(), now).await?;
    // Later events do not find the destination. The deliveries that came meanwhile are cancelled with it.
    sqlx::query(TOMBSTONE).bind(now.as_nanos()).bind(id).execute(&mut *transaction).await?;
    sqlx::query(FORGET).bind(id).execute(&mut *transaction).await?;
    sqlx::query(CANCEL_WAITING).bind(now.as_nanos()).bind(id).execute(&mut *transaction).await?;
    record(&mut transaction, activity).await?;
    transaction.commit().await?;
    Ok(Deletion::Deleted)
}

/// Cancels the backlog in steps before the deletion, so that few deliveries are left to cancel under the tenant's
/// lock. If the deletion then fails, the destination remains without the cancelled deliveries. The caller gets an
/// error and repeats the deletion.
async fn cancel_backlog(connection: &mut PgConnection, deletion: &DestinationDeletion) -> Result<(), sqlx::Error> {
    loop {
        let cancel = sqlx::query(CANCEL_SOME)
            .bind(deletion.now.as_nanos())
            .bind(uuid(deletion.id.as_bytes()))
            .bind(CANCELLED_AT_ONCE);
        if cancel.execute(&mut *connection).await?.rows_affected() < CANCELLED_AT_ONCE.unsigned_abs() {
            return Ok(());
        }
    }
}
