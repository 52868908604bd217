//! Stores what was decided: events and their deliveries, in one call of a function of the database.

use std::{borrow::Cow, collections::BTreeSet};

use sqlx::{PgConnection, Row as _, postgres::PgRow, types::Uuid};
use weir_core::{LimitKey, Timestamp, TraceParent, claim::ProcessId, event::Event};
use weir_sealing::BODY;
use weir_store::{
    MessageGroup,
    intake::{Intake, NewDelivery, StoredEvent},
    rows::Row as _,
};

use crate::{
    Shared,
    locks::{KEY_LOCK_SPACE, LOCK_SPACE, locks_of},
    message_groups::{self, lock_name},
    rows::{column, uuid},
};

/// Stores a batch in one call; see `migrations/postgres/functions/store_events_with_limit_keys.sql`.
const STORE: &str = "
SELECT stored, freed_destinations, freed_keys
FROM store_events(
    lock_space => $1, locks => $2, key_space => $3, key_locks => $4, tenants => $5, versions => $6, owner => $7,
    event_ids => $8, event_tenants => $9, event_types => $10, event_times => $11, event_keys => $12,
    data_offsets => $13, bodies => $14, event_starts => $15, event_ends => $16, coalesce_keys => $17,
    ordering_keys => $18, traceparents => $19, delivery_counts => $20, delivery_ids => $21, delivery_events => $22,
    delivery_destinations => $23, delivery_times => $24, claimed_until => $25, delayed_until => $26,
    delivery_ends => $27, delivery_coalesce_keys => $28, delivery_superseded => $29, delivery_ordering_keys => $30,
    delivery_follows => $31, event_limit_keys => $32, delivery_flows => $33, delivery_limit_keys => $34
)";

/// The second condition leaves out the partitions of other days.
const RECORD_FILTERED: &str = "
UPDATE events e SET filtered = r.filtered FROM unnest($1::uuid[], $2::integer[]) AS r (id, filtered)
WHERE e.id = r.id AND e.id = ANY($1)";

/// Those of other days are left out as above.
const RECORD_COSTS: &str = "
WITH of_events AS (
    UPDATE events e SET cost = r.cost FROM unnest($1::uuid[], $2::integer[]) AS r (id, cost)
    WHERE e.id = r.id AND e.id = ANY($1)
)
UPDATE deliveries d SET cost = r.cost FROM unnest($3::uuid[], $4::integer[]) AS r (id, cost)
WHERE d.id = r.id AND d.id = ANY($3)";

/// The conditions under which a batch is stored: the process that owns the claims, the locks to take, and the versions
/// up to which the tenants' destinations are cached. There are no locks and versions if the transaction has already
/// taken and checked them.
#[derive(Default)]
pub(super) struct Guards<'e> {
    pub(super) owner: Option<ProcessId>,
    pub(super) locks: Vec<i32>,
    pub(super) tenants: Vec<&'e str>,
    pub(super) versions: Vec<i64>,
}

/// Returns the message groups whose heads may have been superseded; `None` if a guard failed and nothing was stored.
pub(super) async fn insert(
    guards: &Guards<'_>,
    events: &[StoredEvent<'_>],
    deliveries: &[NewDelivery<'_>],
    connection: &mut PgConnection,
    shared: &Shared,
) -> Result<Option<BTreeSet<MessageGroup>>, sqlx::Error> {
    // A column that no row uses is NULL as a whole. Most batches use neither coalesce keys nor ordering keys.
    let coalescing = rare_column(deliveries, NewDelivery::coalesces_by);
    let message_groups = rare_column(deliveries, |delivery| delivery.message_group());
    // Each key has a lock. Two transactions that use the same key take the same lock, so one waits for the other.
    let names: Vec<String> = message_groups.iter().flatten().flatten().map(lock_name).collect();
    let key_locks = locks_of(coalescing.iter().flatten().flatten().chain(&names).map(String::as_str));
    // The other columns that only such batches use.
    let superseded = coalescing.as_ref().map(|_| column(deliveries, |delivery| delivery.superseded));
    let follows = message_groups.as_ref().map(|_| column(deliveries, |delivery| delivery.follows));
    let ordering_keys: Option<Vec<Option<String>>> =
        message_groups.map(|groups| groups.into_iter().map(|group| group.map(|group| group.ordering_key)).collect());
    // The owner matters only if there are claims. A process that was declared dead may store events without any.
    let claims = deliveries.iter().any(|delivery| delivery.claimed_until.is_some());
    let owner = guards.owner.filter(|_| claims);
    let bodies = column(events, |stored| shared.heads.stored_body(stored.event));
    let sealed: Vec<Cow<'_, [u8]>> = events
        .iter()
        .zip(&bodies)
        .map(|(stored, (_, body))| shared.keyring.seal_bytes(&BODY, stored.event.id.as_bytes(), body))
        .collect();
    let row = sqlx::query(STORE)
        // The guards.
        .bind(LOCK_SPACE)
        .bind(&guards.locks)
        .bind(KEY_LOCK_SPACE)
        .bind(key_locks)
        .bind(&guards.tenants)
        .bind(&guards.versions)
        .bind(owner.map(|owner| owner.0))
        // The events.
        .bind(column(events, |stored| uuid(stored.event.id.as_bytes())))
        .bind(column(events, |stored| stored.event.tenant.as_str()))
        .bind(column(events, |stored| stored.event.event_type.as_str()))
        .bind(column(events, |stored| stored.event.created_at.as_nanos()))
        .bind(column(events, |stored| stored.event.idempotency_key.as_deref()))
        .bind(column(&bodies, |(offset, _)| *offset as i32))
        .bind(column(&sealed, |body| &body[..]))
        .bind(rare_column(events, |stored| stored.event.options.deliver_at.map(Timestamp::as_nanos)))
        .bind(rare_column(events, |stored| stored.event.options.expires_at.map(Timestamp::as_nanos)))
        .bind(rare_column(events, |stored| stored.event.options.coalesce_key.as_deref()))
        .bind(rare_column(events, |stored| stored.event.options.ordering_key.as_deref()))
        .bind(rare_column(events, |stored| stored.event.body.trace().map(TraceParent::to_bytes)))
        .bind(column(events, |stored| stored.deliveries as i32))
        // The deliveries.
        .bind(column(deliveries, |delivery| uuid(delivery.id.as_bytes())))
        .bind(column(deliveries, |delivery| uuid(delivery.event.id.as_bytes())))
        .bind(column(deliveries, |delivery| uuid(delivery.destination_id.as_bytes())))
        .bind(column(deliveries, |delivery| delivery.event.created_at.as_nanos()))
        .bind(column(deliveries, |delivery| delivery.claimed_until.map(Timestamp::as_nanos)))
        .bind(rare_column(deliveries, |delivery| delivery.event.delayed_until().map(Timestamp::as_nanos)))
        .bind(rare_column(deliveries, |delivery| delivery.event.options.expires_at.map(Timestamp::as_nanos)))
        .bind(coalescing)
        .bind(superseded)
        .bind(ordering_keys)
        .bind(follows)
        // The limit keys.
        .bind(rare_column(events, |stored| stored.event.options.limit_key.as_ref().map(LimitKey::as_str)))
        .bind(rare_column(deliveries, |delivery| delivery.flow_id().map(|flow| uuid(flow.as_bytes()))))
        .bind(rare_column(deliveries, |delivery| delivery.limit_key.as_ref().map(LimitKey::as_str)))
        .fetch_one(connection)
        .await?;
    // `false`: a guard failed, and nothing was stored.
    row.flag(0)?.then(|| freed_groups(&row)).transpose()
}

/// Records how many destinations did not get an event because of their filters. Nothing is recorded of events that a
/// failed guard kept out of the table.
pub(super) async fn record_filtered(
    events: &[StoredEvent<'_>],
    connection: &mut PgConnection,
) -> Result<(), sqlx::Error> {
    let filtered =
        events.iter().filter_map(|stored| Some((uuid(stored.event.id.as_bytes()), stored.filtered?.get() as i32)));
    let (ids, counts): (Vec<Uuid>, Vec<i32>) = filtered.unzip();
    if !ids.is_empty() {
        sqlx::query(RECORD_FILTERED).bind(ids).bind(counts).execute(connection).await?;
    }
    Ok(())
}

/// Records the costs of events and their deliveries. Most have none.
pub(super) async fn record_costs(intake: &Intake<'_>, connection: &mut PgConnection) -> Result<(), sqlx::Error> {
    let cost = |event: &Event| Some(event.options.cost?.get() as i32);
    let events = intake.events.iter().filter_map(|one| Some((uuid(one.event.id.as_bytes()), cost(one.event)?)));
    let deliveries = intake.deliveries.iter().filter_map(|one| Some((uuid(one.id.as_bytes()), cost(one.event)?)));
    let (events, of_events): (Vec<Uuid>, Vec<i32>) = events.unzip();
    let (deliveries, of_deliveries): (Vec<Uuid>, Vec<i32>) = deliveries.unzip();
    if !events.is_empty() {
        let record = sqlx::query(RECORD_COSTS).bind(events).bind(of_events).bind(deliveries).bind(of_deliveries);
        record.execute(connection).await?;
    }
    Ok(())
}

fn freed_groups(row: &PgRow) -> Result<BTreeSet<MessageGroup>, sqlx::Error> {
    let destinations: Option<Vec<Uuid>> = row.try_get_unchecked(1)?;
    let keys: Option<Vec<String>> = row.try_get_unchecked(2)?;
    Ok(message_groups::of_columns(destinations.unwrap_or_default(), keys.unwrap_or_default()).collect())
}

/// Like [`column()`]; `None` if no row has a value.
fn rare_column<'r, R, T>(rows: &'r [R], value: impl Fn(&'r R) -> Option<T>) -> Option<Vec<Option<T>>> {
    rows.iter().any(|row| value(row).is_some()).then(|| column(rows, value))
}
