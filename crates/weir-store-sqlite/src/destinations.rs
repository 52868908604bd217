//! Destinations: read from the cache, edited through the writer, counted from indexes.

use std::{num::NonZeroU32, sync::Arc, time::Duration};

use async_trait::async_trait;
use rusqlite::{Connection, Row};
use sqlx::sqlite::SqliteRow;
use weir_core::{
    DeliveryState, Destination, DestinationId, Timestamp, destination::Settings, order::DeliveryOrder,
    pattern::EventPattern, signing::Signing,
};
use weir_store::{
    BreakerChange, DestinationCounts, DestinationPatch, Destinations, EditPlace, EditedDestination, LimitChange, Page,
    PageRequest, StoreResult, paused_by_weir, stored::limits_json,
};

use crate::{
    SqliteStore,
    edits::Edit,
    error::{Error, Result},
    history::first_id,
    rows::{self, Columns as _, count, destination_id, int, limits, optional_time, small, text, time},
    sql::{Values, execute, fetch, query},
    writer::Transaction,
};

#[async_trait]
impl Destinations for SqliteStore {
    async fn create_destination(&self, destination: Destination) -> StoreResult<Arc<Destination>> {
        self.ask(destination, |edit| Edit::operation(Edit::Create(edit))).await
    }

    async fn destination(&self, id: DestinationId) -> StoreResult<Option<Arc<Destination>>> {
        Ok(self.destinations.get(id))
    }

    async fn destinations(&self, ids: &[DestinationId]) -> StoreResult<Vec<Option<Arc<Destination>>>> {
        Ok(self.destinations.get_many(ids))
    }

    async fn list_destinations(&self, tenant: Option<&str>, page: PageRequest) -> StoreResult<Page<Arc<Destination>>> {
        let limit = page.limit as usize;
        let before = page.before.map(DestinationId::from_bytes);
        let mut rows = self.destinations.page(tenant, before, limit + 1);
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|last| *last.id.as_bytes());
        Ok(Page { rows, next })
    }

    async fn patch_destination(&self, patch: DestinationPatch) -> StoreResult<Option<Arc<Destination>>> {
        self.ask(patch, |edit| Edit::operation(Edit::Patch(edit))).await
    }

    async fn pause_destination(&self, id: DestinationId, reason: &str, now: Timestamp) -> StoreResult<bool> {
        self.ask((id, reason.to_owned(), now), |edit| Edit::operation(Edit::Pause(edit))).await
    }

    async fn hold_destination(&self, id: DestinationId, until: Timestamp, reason: &str) -> StoreResult<()> {
        self.ask((id, until, reason.to_owned()), |edit| Edit::operation(Edit::Hold(edit))).await
    }

    async fn change_breaker(&self, change: BreakerChange) -> StoreResult<bool> {
        self.ask(change, |edit| Edit::operation(Edit::ChangeBreaker(edit))).await
    }

    async fn delete_destination(&self, id: DestinationId, now: Timestamp) -> StoreResult<bool> {
        self.ask((id, now), |edit| Edit::operation(Edit::Delete(edit))).await
    }

    async fn destination_counts(&self, id: DestinationId) -> StoreResult<DestinationCounts> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        let counted = fetch(&self.readers, COUNTS, values, read_count).await?;
        Ok(counted.into_iter().fold(DestinationCounts::default(), |sum, of_state| DestinationCounts {
            pending: sum.pending + of_state.pending,
            retrying: sum.retrying + of_state.retrying,
            delivering: sum.delivering + of_state.delivering,
            oldest_created_at: [sum.oldest_created_at, of_state.oldest_created_at].into_iter().flatten().min(),
        }))
    }

    async fn recent_sends(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64> {
        let mut values = Values::default();
        values.blob(id.as_bytes()).int(now.before(window).as_nanos()).int(now.as_nanos());
        let counted = fetch(&self.readers, RECENT_SENDS, values, |row| count(row, 0)).await?;
        Ok(counted.first().copied().unwrap_or(0))
    }

    async fn recent_arrivals(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64> {
        let mut values = Values::default();
        values
            .blob(id.as_bytes())
            .owned_blob(first_id(now.before(window).as_millis()))
            .owned_blob(first_id(now.as_millis() + 1));
        let counted = fetch(&self.readers, RECENT_ARRIVALS, values, |row| count(row, 0)).await?;
        Ok(counted.first().copied().unwrap_or(0))
    }

    async fn edited_after(&self, place: EditPlace, limit: u32) -> StoreResult<Vec<EditedDestination>> {
        let mut values = Values::default();
        values.int(place.updated_at.as_nanos()).blob(place.id.as_bytes()).int(limit.into());
        let read = |row: &SqliteRow| Ok(EditPlace { updated_at: time(row, 0)?, id: destination_id(row, 1)? });
        let places = fetch(&self.readers, EDITED, values, read).await?;
        let edited = |place: EditPlace| EditedDestination { place, destination: self.destinations.get(place.id) };
        Ok(places.into_iter().map(edited).collect())
    }

    async fn limit_changes(&self, id: DestinationId) -> StoreResult<Vec<LimitChange>> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        let change = |row: &SqliteRow| Ok(LimitChange { at: time(row, 0)?, limits: limits(&text(row, 1)?)? });
        Ok(fetch(&self.readers, LIMIT_CHANGES, values, change).await?)
    }
}

/// Read from the indexes alone. The oldest delivery of each state has the smallest id.
pub(crate) const COUNTS: &str = "
WITH counted (state, deliveries, oldest) AS (
    SELECT state, count(*), min(id) FROM deliveries INDEXED BY deliveries_due
    WHERE destination_id = ?1 AND state IN (0, 2) GROUP BY state
    UNION ALL
    SELECT 1, count(*), min(id) FROM deliveries INDEXED BY deliveries_claimed WHERE destination_id = ?1 AND state = 1
)
SELECT state, deliveries, (SELECT created_at FROM deliveries WHERE id = oldest) FROM counted";

pub(crate) const RECENT_SENDS: &str = "
SELECT count(*) FROM attempts INDEXED BY attempts_of_destination
WHERE destination_id = ? AND sent_at > ? AND sent_at <= ?";

/// The ids of deliveries begin with the time of their event.
pub(crate) const RECENT_ARRIVALS: &str = "
SELECT count(*) FROM deliveries INDEXED BY deliveries_of_destination
WHERE destination_id = ? AND id >= ? AND id < ?";

pub(crate) const EDITED: &str = "
SELECT updated_at, id FROM destinations WHERE (updated_at, id) > (?, ?) ORDER BY updated_at, id LIMIT ?";

const LIMIT_CHANGES: &str = "SELECT at, rate_limits FROM limit_changes WHERE destination_id = ? ORDER BY at";

/// Counts with only the field of the row's state set.
fn read_count(row: &SqliteRow) -> Result<DestinationCounts> {
    let mut counts = DestinationCounts { oldest_created_at: optional_time(row, 2)?, ..DestinationCounts::default() };
    let field = match rows::state(row, 0)? {
        DeliveryState::Pending => &mut counts.pending,
        DeliveryState::Retrying => &mut counts.retrying,
        DeliveryState::Delivering => &mut counts.delivering,
        _ => return Err(Error::Corrupt("a state")),
    };
    *field = count(row, 1)?;
    Ok(counts)
}

/// The columns are in the order of `destination_values`, followed by `created_at` and `id`.
const INSERT: &str = "
INSERT INTO destinations (tenant, name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, signing,
    paused, paused_reason, held_until, held_reason, updated_at, breaker, breaker_state, alerts, ordered, skip_after_attempts,
    created_at, id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

const UPDATE: &str = "
UPDATE destinations SET (tenant, name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, signing,
    paused, paused_reason, held_until, held_reason, updated_at, breaker, breaker_state, alerts, ordered, skip_after_attempts)
    = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
WHERE id = ? AND deleted_at IS NULL";

const INSERT_LIMIT_CHANGE: &str = "INSERT INTO limit_changes (destination_id, at, rate_limits) VALUES (?, ?, ?)";

const SELECT_ALL: &str = "
SELECT tenant, name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, signing,
    paused, paused_reason, held_until, held_reason, updated_at, created_at, id, breaker, breaker_state,
    alerts, ordered, skip_after_attempts
FROM destinations WHERE deleted_at IS NULL";

const TOMBSTONE: &str = "UPDATE destinations SET deleted_at = ?, updated_at = ? WHERE id = ? AND deleted_at IS NULL";

/// Deliveries in flight are not cancelled; they end by themselves.
const CANCEL_WAITING: &str = "
UPDATE deliveries INDEXED BY deliveries_due SET state = 6, updated_at = ? WHERE destination_id = ? AND state IN (0, 2)";

fn destination_values(destination: &Destination) -> Result<Values<'_>> {
    let settings = &destination.settings;
    let patterns: Vec<String> = settings.event_types.iter().map(ToString::to_string).collect();
    let mut values = Values::default();
    values
        .text(&settings.tenant)
        .text(&settings.name)
        .text(settings.url.as_str())
        .owned_text(serde_json::to_string(&patterns)?)
        .owned_text(limits_json(&settings.rate_limits))
        .int(settings.max_in_flight.into())
        .int(settings.timeout_ms.into())
        .owned_text(serde_json::to_string(&settings.retry)?)
        .owned_text(serde_json::to_string(&settings.headers)?)
        .owned_text(settings.signing.to_stored()?)
        .int(settings.paused.into())
        .optional_text(destination.paused_reason.as_deref())
        .optional_int(destination.held_until.map(Timestamp::as_nanos))
        .optional_text(destination.held_reason.as_deref())
        .int(destination.updated_at.as_nanos())
        .owned_text(serde_json::to_string(&settings.breaker)?)
        .owned_text(serde_json::to_string(&destination.breaker)?)
        .owned_text(serde_json::to_string(&settings.alerts)?)
        .int(settings.order.is_by_key().into())
        .optional_int(settings.order.skip_after_attempts().map(|most| most.get().into()));
    Ok(values)
}

fn read_destination(row: &Row<'_>) -> Result<Destination> {
    let patterns: Vec<String> = serde_json::from_str(&text(row, 3)?).map_err(|_| Error::Corrupt("event types"))?;
    let event_types: std::result::Result<Vec<EventPattern>, _> =
        patterns.iter().map(|pattern| pattern.parse()).collect();
    let settings = Settings {
        tenant: text(row, 0)?,
        name: text(row, 1)?,
        url: text(row, 2)?.parse().map_err(|_| Error::Corrupt("a url"))?,
        event_types: event_types.map_err(|_| Error::Corrupt("event types"))?,
        rate_limits: limits(&text(row, 4)?)?,
        max_in_flight: small(row, 5)?,
        timeout_ms: small(row, 6)?,
        retry: serde_json::from_str(&text(row, 7)?).map_err(|_| Error::Corrupt("a retry policy"))?,
        headers: serde_json::from_str(&text(row, 8)?).map_err(|_| Error::Corrupt("headers"))?,
        signing: Signing::from_stored(&text(row, 9)?).ok_or(Error::Corrupt("signing settings"))?,
        paused: int(row, 10)? == 1,
        breaker: serde_json::from_str(&text(row, 17)?).map_err(|_| Error::Corrupt("a breaker"))?,
        alerts: serde_json::from_str(&text(row, 19)?).map_err(|_| Error::Corrupt("alerts"))?,
        order: DeliveryOrder::new(int(row, 20)? == 1, skip_after_attempts(row)?),
    };
    Ok(Destination {
        settings,
        paused_reason: row.optional_text(11)?,
        held_until: optional_time(row, 12)?,
        held_reason: row.optional_text(13)?,
        updated_at: time(row, 14)?,
        created_at: time(row, 15)?,
        id: destination_id(row, 16)?,
        breaker: serde_json::from_str(&text(row, 18)?).map_err(|_| Error::Corrupt("a breaker's state"))?,
    })
}

fn skip_after_attempts(row: &Row<'_>) -> Result<Option<NonZeroU32>> {
    let Some(most) = row.optional_int(21)? else { return Ok(None) };
    let most = u32::try_from(most).ok().and_then(NonZeroU32::new);
    most.map(Some).ok_or(Error::Corrupt("a number of attempts"))
}

/// Every destination that is not deleted, for the cache.
pub(crate) fn load(connection: &Connection) -> Result<Vec<Destination>> {
    query(connection, SELECT_ALL, &Values::default(), read_destination)
}

impl Transaction<'_, '_> {
    pub(crate) fn create_destination(&mut self, destination: &Destination) -> Result<Arc<Destination>> {
        let mut values = destination_values(destination)?;
        values.int(destination.created_at.as_nanos()).blob(destination.id.as_bytes());
        execute(self.connection, INSERT, &values)?;
        self.record_limits(destination, destination.created_at)?;
        let destination = Arc::new(destination.clone());
        self.destinations.set(destination.id, Some(Arc::clone(&destination)));
        Ok(destination)
    }

    fn record_limits(&mut self, destination: &Destination, at: Timestamp) -> Result<()> {
        let mut values = Values::default();
        values
            .blob(destination.id.as_bytes())
            .int(at.as_nanos())
            .owned_text(limits_json(&destination.settings.rate_limits));
        execute(self.connection, INSERT_LIMIT_CHANGE, &values).map(drop)
    }

    fn update_destination(&mut self, destination: Destination) -> Result<Arc<Destination>> {
        let mut values = destination_values(&destination)?;
        values.blob(destination.id.as_bytes());
        execute(self.connection, UPDATE, &values)?;
        let destination = Arc::new(destination);
        self.destinations.set(destination.id, Some(Arc::clone(&destination)));
        Ok(destination)
    }

    pub(crate) fn patch_destination(&mut self, patch: &DestinationPatch) -> Result<Option<Arc<Destination>>> {
        let Some(current) = self.destinations.get(patch.id) else { return Ok(None) };
        let Some(edited) = patch.applied_to(&current) else { return Ok(None) };
        if edited.settings.rate_limits != current.settings.rate_limits {
            self.record_limits(&edited, patch.now)?;
        }
        self.update_destination(edited).map(Some)
    }

    pub(crate) fn pause_destination(&mut self, id: DestinationId, reason: &str, now: Timestamp) -> Result<bool> {
        let paused = self.destinations.get(id).and_then(|current| paused_by_weir(&current, reason, now));
        let Some(paused) = paused else { return Ok(false) };
        self.update_destination(paused)?;
        Ok(true)
    }

    pub(crate) fn hold_destination(&mut self, id: DestinationId, until: Timestamp, reason: &str) -> Result<()> {
        let current = self.destinations.get(id).filter(|current| current.held_until.is_none_or(|held| held < until));
        let Some(current) = current else { return Ok(()) };
        let mut held = Destination::clone(&current);
        held.held_until = Some(until);
        held.held_reason = Some(reason.to_owned());
        self.update_destination(held)?;
        Ok(())
    }

    pub(crate) fn change_breaker(&mut self, change: &BreakerChange) -> Result<bool> {
        let Some(current) = self.destinations.get(change.id) else { return Ok(false) };
        let Some(changed) = change.applied_to(&current) else { return Ok(false) };
        self.update_destination(changed)?;
        Ok(true)
    }

    pub(crate) fn delete_destination(&mut self, id: DestinationId, now: Timestamp) -> Result<bool> {
        let mut values = Values::default();
        values.int(now.as_nanos()).int(now.as_nanos()).blob(id.as_bytes());
        if execute(self.connection, TOMBSTONE, &values)? == 0 {
            return Ok(false);
        }
        let mut values = Values::default();
        values.int(now.as_nanos()).blob(id.as_bytes());
        execute(self.connection, CANCEL_WAITING, &values)?;
        self.destinations.set(id, None);
        Ok(true)
    }
}
