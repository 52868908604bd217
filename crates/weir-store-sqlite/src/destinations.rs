//! Destinations: read from the cache, edited through the writer, counted from indexes.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use rusqlite::Connection;
use sqlx::sqlite::SqliteRow;
use weir_core::{
    DeliveryState, Destination, DestinationId, RateLimits, Timestamp, activity::Activity, limit_key::is_of_key,
};
use weir_sealing::Keyring;
use weir_store::{
    Arrivals, BreakerChange, Counters as _, Created, Creation, Deletion, DestinationCounts, DestinationDeletion,
    DestinationFilter, DestinationLimits, DestinationPatch, Destinations, EditPosition, EditedDestination, Hold,
    LimitChange, NamedCreation, Page, PageRequest, Pause, RunDestinations, StoreResult, destination_columns,
    edited_columns, first_id, keyed_at, limit_steps,
    rows::{self, Row as _, interval_code, limits_json},
    sql,
};

use crate::{
    SqliteStore,
    counters::OLDEST_IN_FLIGHT,
    edit::Durable,
    error::Result,
    paces::FORGET,
    sql::{Values, execute, fetch, query, values},
    transaction::Transaction,
};

#[async_trait]
impl RunDestinations for SqliteStore {
    async fn destinations(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Arc<Destination>>>> {
        Ok(self.destinations.get_many(ids))
    }

    async fn change_breakers(&self, changes: Vec<BreakerChange>) -> StoreResult<Vec<bool>> {
        // After a power failure the breaker opens again.
        self.edit(Durable::No, move |transaction| {
            changes.iter().map(|change| transaction.change_breaker(change)).collect()
        })
        .await
    }

    async fn limit_changes(&self, id: DestinationId) -> StoreResult<Vec<LimitChange>> {
        Ok(fetch(&self.readers, LIMIT_CHANGES, values![id.as_bytes()], rows::limit_change).await?)
    }
}

#[async_trait]
impl Destinations for SqliteStore {
    fn limit_destinations(&self, limits: DestinationLimits) {
        self.limits.set(limits);
    }

    async fn create_destination(
        &self,
        destination: Destination,
        creation: Creation,
    ) -> StoreResult<Created<Arc<Destination>>> {
        self.edit(Durable::Yes, move |transaction| match transaction.is_full(&destination)? {
            true => Ok(transaction.stored_answer(&creation)?.map_or(Created::Full, Created::Before)),
            false => transaction.create_once(&creation, |this| this.create_destination(&destination)),
        })
        .await
    }

    async fn create_named_destination(
        &self,
        destination: Destination,
        activity: Activity,
    ) -> StoreResult<NamedCreation> {
        self.edit(Durable::Yes, move |transaction| {
            let created = transaction.create_named_destination(&destination)?;
            transaction.recorded(created, NamedCreation::is_new, &activity)
        })
        .await
    }

    async fn named_destinations(&self, tenant: &str, name: &str) -> StoreResult<Vec<Arc<Destination>>> {
        let ids = fetch(&self.readers, NAMED, values![tenant, name], |row| row.destination_id(0)).await?;
        // The cache may already know of a later edit or deletion.
        let named = self.destinations.get_many(&ids).into_iter().flatten();
        Ok(named.filter(|destination| destination.settings.name == name).collect())
    }

    async fn destination(&self, id: DestinationId) -> StoreResult<Option<Arc<Destination>>> {
        Ok(self.destinations.get(id))
    }

    async fn list_destinations(
        &self,
        filter: &DestinationFilter,
        page: PageRequest,
    ) -> StoreResult<Page<Arc<Destination>>> {
        let before = page.before.map(DestinationId::from_bytes);
        let rows = self.destinations.page(filter, before, page.limit as usize + 1);
        Ok(Page::of(rows, page, |destination| *destination.id.as_bytes()))
    }

    async fn patch_destination(
        &self,
        patch: DestinationPatch,
        creation: Creation,
    ) -> StoreResult<Created<Option<Arc<Destination>>>> {
        self.edit(Durable::Yes, move |transaction| transaction.patch_destination(&patch, &creation)).await
    }

    async fn pause_destinations(&self, pauses: Vec<Pause>) -> StoreResult<Vec<bool>> {
        self.edit(Durable::Yes, move |transaction| {
            pauses.iter().map(|pause| transaction.pause_destination(pause)).collect()
        })
        .await
    }

    async fn hold_destinations(&self, holds: Vec<Hold>) -> StoreResult<()> {
        // After a power failure one `Retry-After` is ignored.
        self.edit(Durable::No, move |transaction| holds.iter().try_for_each(|hold| transaction.hold_destination(hold)))
            .await
    }

    async fn delete_destination(&self, deletion: DestinationDeletion, activity: Activity) -> StoreResult<Deletion> {
        self.edit(Durable::Yes, move |transaction| {
            let deleted = transaction.delete_destination(&deletion)?;
            transaction.recorded(deleted, |deleted| *deleted == Deletion::Deleted, &activity)
        })
        .await
    }

    async fn destination_counts(&self, id: DestinationId) -> StoreResult<DestinationCounts> {
        let counts = self.counts(&[id]).await?.pop().unwrap_or_default();
        let in_flight = fetch(&self.readers, OLDEST_IN_FLIGHT, values![id.as_bytes()], |row| row.time(0)).await?;
        let waiting = if counts.waiting() > 0 { self.oldest_waiting(&[id]).await? } else { Vec::new() };
        let oldest = in_flight.into_iter().chain(waiting.into_iter().flatten()).min();
        Ok(DestinationCounts::new(counts, oldest))
    }

    async fn recent_sends(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64> {
        let values = values![id.as_bytes(), now.before(window), now];
        let counted = fetch(&self.readers, RECENT_SENDS, values, |row| row.count(0)).await?;
        Ok(counted.first().copied().unwrap_or(0))
    }

    async fn recent_arrivals(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<Arrivals> {
        let values = values![id.as_bytes(), first_id(now.before(window).as_millis()), first_id(now.as_millis() + 1)];
        let sql = if is_of_key(id) { RECENT_ARRIVALS_OF_FLOW } else { RECENT_ARRIVALS };
        Ok(fetch(&self.readers, sql, values, rows::arrivals).await?.pop().unwrap_or_default())
    }

    async fn edited_after(&self, position: EditPosition, limit: u32) -> StoreResult<Vec<EditedDestination>> {
        let values = values![position.updated_at, position.id.as_bytes(), limit];
        let read = |row: &SqliteRow| Ok(EditPosition { updated_at: row.time(0)?, id: row.destination_id(1)? });
        let positions = fetch(&self.readers, EDITED, values, read).await?;
        let edited =
            |position: EditPosition| EditedDestination { position, destination: self.destinations.get(position.id) };
        Ok(positions.into_iter().map(edited).collect())
    }
}

pub(crate) const RECENT_SENDS: &str = "
SELECT count(*) FROM attempts INDEXED BY attempts_of_destination
WHERE destination_id = ? AND sent_at > ? AND sent_at <= ?";

/// The ids of deliveries begin with the time of their event.
pub(crate) const RECENT_ARRIVALS: &str = "
SELECT count(*), min(id) FROM deliveries INDEXED BY deliveries_of_destination
WHERE destination_id = ? AND id >= ? AND id < ?";

pub(crate) const RECENT_ARRIVALS_OF_FLOW: &str = "
SELECT count(*), min(id) FROM deliveries INDEXED BY deliveries_of_flow
WHERE flow_id = ? AND id >= ? AND id < ?";

pub(crate) const EDITED: &str = "
SELECT updated_at, id FROM destinations WHERE (updated_at, id) > (?, ?) ORDER BY updated_at, id LIMIT ?";

/// Two are enough to know that a name is not unique.
pub(crate) const NAMED: &str = "
SELECT id FROM destinations INDEXED BY destinations_by_name
WHERE tenant = ? AND name = ? AND deleted_at IS NULL LIMIT 2";

pub(crate) const LIMIT_CHANGES: &str =
    "SELECT at, rate_limits, min_interval_ms FROM limit_changes WHERE destination_id = ? ORDER BY at";

const INSERT: &str = concat!(
    "INSERT INTO destinations (",
    edited_columns!(),
    ", tenant, created_at, id)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
);

const UPDATE: &str = concat!(
    "UPDATE destinations SET (",
    edited_columns!(),
    ") = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    WHERE id = ? AND deleted_at IS NULL"
);

const HOLD: &str = "UPDATE destinations SET held_until = ?, held_reason = ? WHERE id = ?";

const INSERT_LIMIT_CHANGE: &str =
    "INSERT OR REPLACE INTO limit_changes (destination_id, at, rate_limits, min_interval_ms) VALUES (?, ?, ?, ?)";

/// The end of an override that another edit moves.
const FORGET_LATER_LIMITS: &str = "DELETE FROM limit_changes WHERE destination_id = ? AND at > ?";

const SELECT_ALL: &str = concat!("SELECT ", destination_columns!(), " FROM destinations WHERE deleted_at IS NULL");

const TOMBSTONE: &str = "UPDATE destinations SET deleted_at = ?, updated_at = ? WHERE id = ? AND deleted_at IS NULL";

/// Deliveries in flight are not cancelled; they end by themselves.
const CANCEL_WAITING: &str = sql!(
    "UPDATE deliveries INDEXED BY deliveries_due SET state = {cancelled}, updated_at = ? WHERE destination_id = ? AND state IN ({waiting})"
);

/// Counted in the index alone.
pub(crate) const WAITING_BY_STATE: &str = sql! {"
SELECT state, count(*) FROM deliveries INDEXED BY deliveries_due
WHERE destination_id = ? AND state IN ({waiting}) GROUP BY state"};

/// The values of [`edited_columns!`].
fn edited_values<'d>(destination: &'d Destination, keyring: &Keyring) -> Result<Values<'d>> {
    let mut values = Values::default();
    for value in rows::destination_values(destination, keyring)? {
        values.bind(value);
    }
    Ok(values)
}

/// Every destination that is not deleted, for the cache.
pub(crate) fn load(connection: &Connection, keyring: &Keyring) -> Result<Vec<Destination>> {
    query(connection, SELECT_ALL, &Values::default(), |row| rows::destination(row, keyring))
}

impl Transaction<'_, '_> {
    fn create_destination(&mut self, destination: &Destination) -> Result<Arc<Destination>> {
        let destination =
            &Destination { keyed_at: keyed_at(destination, destination.created_at), ..destination.clone() };
        let mut values = edited_values(destination, self.keyring)?;
        values.bind(&destination.settings.tenant).bind(destination.created_at);
        values.bind(destination.id.as_bytes());
        execute(self.connection, INSERT, &values)?;
        self.record_limits(destination.id.as_bytes(), destination.created_at, &destination.settings.rate_limits)?;
        self.join(destination, destination.created_at)?;
        let destination = Arc::new(destination.clone());
        self.destinations.set(destination.id, Some(Arc::clone(&destination)));
        Ok(destination)
    }

    /// Whether the tenant of a new destination has as many as it may, or its limit group.
    fn is_full(&self, destination: &Destination) -> Result<bool> {
        Ok(self.destinations.of_tenant(&destination.settings.tenant) >= self.limits.of_tenant
            || !self.may_join(destination)?)
    }

    fn create_named_destination(&mut self, destination: &Destination) -> Result<NamedCreation> {
        let values = values![&destination.settings.tenant, &destination.settings.name];
        if !query(self.connection, NAMED, &values, |_| Ok(()))?.is_empty() {
            return Ok(NamedCreation::Taken);
        }
        if self.is_full(destination)? {
            return Ok(NamedCreation::Full);
        }
        self.create_destination(destination).map(NamedCreation::New)
    }

    /// Limits of a destination, or of a limit group.
    pub(crate) fn record_limits(&mut self, id: &[u8; 16], at: Timestamp, limits: &RateLimits) -> Result<()> {
        let values = values![id, at, limits_json(limits), interval_code(limits)];
        execute(self.connection, INSERT_LIMIT_CHANGE, &values).map(drop)
    }

    /// Records limits from `at` on, in place of those that lie ahead.
    pub(crate) fn replace_limits(&mut self, id: &[u8; 16], at: Timestamp, steps: &[LimitChange]) -> Result<()> {
        execute(self.connection, FORGET_LATER_LIMITS, &values![id, at])?;
        steps.iter().try_for_each(|step| self.record_limits(id, step.at, &step.limits))
    }

    pub(crate) fn update_destination(&mut self, destination: Destination) -> Result<Arc<Destination>> {
        let mut values = edited_values(&destination, self.keyring)?;
        values.bind(destination.id.as_bytes());
        execute(self.connection, UPDATE, &values)?;
        let destination = Arc::new(destination);
        self.destinations.set(destination.id, Some(Arc::clone(&destination)));
        Ok(destination)
    }

    fn patch_destination(
        &mut self,
        patch: &DestinationPatch,
        creation: &Creation,
    ) -> Result<Created<Option<Arc<Destination>>>> {
        let Some(current) = self.destinations.get(patch.id) else { return Ok(Created::New(None)) };
        let Some(edited) = patch.applied_to(&current) else { return Ok(Created::New(None)) };
        let moves = edited.settings.limit_group != current.settings.limit_group;
        if moves && !self.may_join(&edited)? {
            return Ok(Created::New(None));
        }
        self.create_once(creation, |this| {
            if moves {
                this.leave(&current, patch.now)?;
                this.join(&edited, patch.now)?;
            }
            // The audit judges each send by the limits that applied when it started.
            if let Some(steps) = limit_steps(&current.limits_from(patch.now), edited.limits_from(patch.now)) {
                this.replace_limits(patch.id.as_bytes(), patch.now, &steps)?;
            }
            this.update_destination(edited).map(Some)
        })
    }

    fn pause_destination(&mut self, pause: &Pause) -> Result<bool> {
        let paused = self.destinations.get(pause.id).and_then(|current| pause.applied_to(&current));
        let Some(paused) = paused else { return Ok(false) };
        self.record(&Activity::of_pause(&paused))?;
        self.update_destination(paused)?;
        Ok(true)
    }

    fn hold_destination(&mut self, hold: &Hold) -> Result<()> {
        let &Hold { id, until, ref reason, now, .. } = hold;
        let Some(current) = self.destinations.get(id).filter(|current| hold.extends(current)) else { return Ok(()) };
        if Activity::is_new_hold(current.held_until, now) {
            self.record(&Activity::of_hold(id, until, reason, now).of_destination(&current))?;
        }
        // Not a whole update: thousands of destinations may ask for a hold each second.
        execute(self.connection, HOLD, &values![until, reason, id.as_bytes()])?;
        let held = Destination { held_until: Some(until), held_reason: Some(reason.clone()), ..(*current).clone() };
        self.destinations.set(id, Some(Arc::new(held)));
        Ok(())
    }

    fn change_breaker(&mut self, change: &BreakerChange) -> Result<bool> {
        let Some(current) = self.destinations.get(change.id) else { return Ok(false) };
        let Some(changed) = change.applied_to(&current) else { return Ok(false) };
        if let Some(activity) = Activity::of_breaker(&current, &changed) {
            self.record(&activity)?;
        }
        self.update_destination(changed)?;
        Ok(true)
    }

    fn delete_destination(&mut self, deletion: &DestinationDeletion) -> Result<Deletion> {
        let &DestinationDeletion { id, now, .. } = deletion;
        let Some(current) = self.destinations.get(id) else { return Ok(Deletion::Missing) };
        if !deletion.applies_to(current.updated_at) {
            return Ok(Deletion::Changed);
        }
        execute(self.connection, TOMBSTONE, &values![now, now, id.as_bytes()])?;
        execute(self.connection, FORGET, &values![id.as_bytes()])?;
        self.leave(&current, now)?;
        // In the same transaction, so that no delivery waits at a deleted destination.
        let values = values![now, id.as_bytes()];
        let read = |row: &rusqlite::Row<'_>| Ok((row.state(0)?, row.int(1)?));
        for (state, deliveries) in query(self.connection, WAITING_BY_STATE, &values![id.as_bytes()], read)? {
            self.changes.moved_many(id, deliveries, [state, DeliveryState::Cancelled], now);
        }
        execute(self.connection, CANCEL_WAITING, &values)?;
        self.destinations.set(id, None);
        Ok(Deletion::Deleted)
    }
}
