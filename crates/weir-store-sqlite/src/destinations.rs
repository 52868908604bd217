//! Destinations: read from memory, edited through the writer, counted by index.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use sqlx::{SqliteConnection, sqlite::SqliteRow};
use weir_core::{Destination, DestinationId, Timestamp, destination::Settings, pattern::EventPattern};
use weir_store::{DestinationCounts, DestinationPatch, Destinations, LimitChange, Page, PageRequest, StoreResult};

use crate::{
    SqliteStore,
    edits::Edit,
    rows::{
        self, corrupt, count, destination_id, int, limits, limits_json, optional_text, optional_time, small, text, time,
    },
    sql::{Values, execute, fetch},
    store_error,
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

    async fn delete_destination(&self, id: DestinationId, now: Timestamp) -> StoreResult<bool> {
        self.ask((id, now), |edit| Edit::operation(Edit::Delete(edit))).await
    }

    async fn destination_counts(&self, id: DestinationId) -> StoreResult<DestinationCounts> {
        let mut values = Values::default();
        values.blob(id.as_bytes()).blob(id.as_bytes());
        let rows = fetch(&self.readers, COUNTS, values).await.map_err(|error| store_error(&error))?;
        read_counts(&rows).map_err(|error| store_error(&error))
    }

    async fn recent_sends(&self, id: DestinationId, now: Timestamp, window: Duration) -> StoreResult<u64> {
        let mut values = Values::default();
        values.blob(id.as_bytes()).int(now.before(window).as_nanos()).int(now.as_nanos());
        let rows = fetch(&self.readers, RECENT_SENDS, values).await.map_err(|error| store_error(&error))?;
        rows.first().map_or(Ok(0), |row| count(row, 0)).map_err(|error| store_error(&error))
    }

    async fn limit_changes(&self, id: DestinationId) -> StoreResult<Vec<LimitChange>> {
        let mut values = Values::default();
        values.blob(id.as_bytes());
        let rows = fetch(&self.readers, LIMIT_CHANGES, values).await.map_err(|error| store_error(&error))?;
        let change = |row: &SqliteRow| Ok(LimitChange { at: time(row, 0)?, limits: limits(&text(row, 1)?)? });
        rows.iter().map(change).collect::<Result<_, sqlx::Error>>().map_err(|error| store_error(&error))
    }
}

/// Both parts are read from their index alone; the oldest of each state is the one with the smallest id.
pub(crate) const COUNTS: &str = "
WITH counted (state, deliveries, oldest) AS (
    SELECT state, count(*), min(id) FROM deliveries INDEXED BY deliveries_due
    WHERE destination_id = ? AND state IN (0, 2) GROUP BY state
    UNION ALL
    SELECT 1, count(*), min(id) FROM deliveries INDEXED BY deliveries_claimed WHERE destination_id = ? AND state = 1
)
SELECT state, deliveries, (SELECT created_at FROM deliveries WHERE id = oldest) FROM counted";

pub(crate) const RECENT_SENDS: &str = "
SELECT count(*) FROM attempts INDEXED BY attempts_of_destination
WHERE destination_id = ? AND sent_at > ? AND sent_at <= ?";

const LIMIT_CHANGES: &str = "SELECT at, rate_limits FROM limit_changes WHERE destination_id = ? ORDER BY at";

fn read_counts(rows: &[SqliteRow]) -> Result<DestinationCounts, sqlx::Error> {
    use weir_core::DeliveryState::{Delivering, Pending, Retrying};
    let mut counts = DestinationCounts::default();
    for row in rows {
        let deliveries = count(row, 1)?;
        match rows::state(row, 0)? {
            Pending => counts.pending = deliveries,
            Retrying => counts.retrying = deliveries,
            Delivering => counts.delivering = deliveries,
            _ => return Err(corrupt("a state")),
        }
        let oldest = optional_time(row, 2)?;
        counts.oldest_created_at = match (counts.oldest_created_at, oldest) {
            (Some(known), Some(other)) => Some(known.min(other)),
            (known, other) => known.or(other),
        };
    }
    Ok(counts)
}

/// Everything of a destination but its id, in the order of `settings_values` and what follows it.
const INSERT: &str = "
INSERT INTO destinations (tenant, name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, secret,
    paused, paused_reason, held_until, held_reason, updated_at, created_at, id)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

const UPDATE: &str = "
UPDATE destinations SET (tenant, name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, secret,
    paused, paused_reason, held_until, held_reason, updated_at) = (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
WHERE id = ? AND deleted_at IS NULL";

const INSERT_LIMIT_CHANGE: &str = "INSERT INTO limit_changes (destination_id, at, rate_limits) VALUES (?, ?, ?)";

const SELECT_LIVE: &str = "
SELECT tenant, name, url, event_types, rate_limits, max_in_flight, timeout_ms, retry, headers, secret,
    paused, paused_reason, held_until, held_reason, updated_at, created_at, id
FROM destinations WHERE deleted_at IS NULL";

const TOMBSTONE: &str = "UPDATE destinations SET deleted_at = ?, updated_at = ? WHERE id = ? AND deleted_at IS NULL";

const CANCEL_WAITING: &str = "
UPDATE deliveries INDEXED BY deliveries_due SET state = 6, updated_at = ? WHERE destination_id = ? AND state IN (0, 2)";

fn unwritable(error: serde_json::Error) -> sqlx::Error {
    sqlx::Error::Encode(error.into())
}

fn destination_values(destination: &Destination) -> Result<Values, sqlx::Error> {
    let settings = &destination.settings;
    let patterns: Vec<String> = settings.event_types.iter().map(ToString::to_string).collect();
    let mut values = Values::default();
    values
        .text(&settings.tenant)
        .text(&settings.name)
        .text(settings.url.as_str())
        .text(&serde_json::to_string(&patterns).map_err(unwritable)?)
        .text(&limits_json(&settings.rate_limits))
        .int(settings.max_in_flight.into())
        .int(settings.timeout_ms.into())
        .text(&serde_json::to_string(&settings.retry).map_err(unwritable)?)
        .text(&serde_json::to_string(&settings.headers).map_err(unwritable)?)
        .text(&settings.secret.reveal())
        .int(settings.paused.into())
        .optional_text(destination.paused_reason.as_deref())
        .optional_int(destination.held_until.map(Timestamp::as_nanos))
        .optional_text(destination.held_reason.as_deref())
        .int(destination.updated_at.as_nanos());
    Ok(values)
}

fn read_destination(row: &SqliteRow) -> Result<Destination, sqlx::Error> {
    let patterns: Vec<String> = serde_json::from_str(&text(row, 3)?).map_err(|_| corrupt("event types"))?;
    let event_types: Result<Vec<EventPattern>, _> = patterns.iter().map(|pattern| pattern.parse()).collect();
    let settings = Settings {
        tenant: text(row, 0)?,
        name: text(row, 1)?,
        url: text(row, 2)?.parse().map_err(|_| corrupt("a url"))?,
        event_types: event_types.map_err(|_| corrupt("event types"))?,
        rate_limits: limits(&text(row, 4)?)?,
        max_in_flight: small(row, 5)?,
        timeout_ms: small(row, 6)?,
        retry: serde_json::from_str(&text(row, 7)?).map_err(|_| corrupt("a retry policy"))?,
        headers: serde_json::from_str(&text(row, 8)?).map_err(|_| corrupt("headers"))?,
        secret: text(row, 9)?.parse().map_err(|_| corrupt("a secret"))?,
        paused: int(row, 10)? == 1,
    };
    Ok(Destination {
        settings,
        paused_reason: optional_text(row, 11)?,
        held_until: optional_time(row, 12)?,
        held_reason: optional_text(row, 13)?,
        updated_at: time(row, 14)?,
        created_at: time(row, 15)?,
        id: destination_id(row, 16)?,
    })
}

/// Every live destination, for the memory the engine starts with.
pub(crate) async fn load(connection: &mut SqliteConnection) -> Result<Vec<Destination>, sqlx::Error> {
    fetch(connection, SELECT_LIVE, Values::default()).await?.iter().map(read_destination).collect()
}

impl Transaction<'_, '_> {
    pub(crate) async fn create_destination(
        &mut self,
        destination: &Destination,
    ) -> Result<Arc<Destination>, sqlx::Error> {
        let mut values = destination_values(destination)?;
        values.int(destination.created_at.as_nanos()).blob(destination.id.as_bytes());
        execute(self.connection, INSERT.into(), values).await?;
        self.record_limits(destination, destination.created_at).await?;
        let destination = Arc::new(destination.clone());
        self.destinations.set(destination.id, Some(Arc::clone(&destination)));
        Ok(destination)
    }

    async fn record_limits(&mut self, destination: &Destination, at: Timestamp) -> Result<(), sqlx::Error> {
        let mut values = Values::default();
        values.blob(destination.id.as_bytes()).int(at.as_nanos()).text(&limits_json(&destination.settings.rate_limits));
        execute(self.connection, INSERT_LIMIT_CHANGE.into(), values).await.map(drop)
    }

    async fn update_destination(&mut self, destination: Destination) -> Result<Arc<Destination>, sqlx::Error> {
        let mut values = destination_values(&destination)?;
        values.blob(destination.id.as_bytes());
        execute(self.connection, UPDATE.into(), values).await?;
        let destination = Arc::new(destination);
        self.destinations.set(destination.id, Some(Arc::clone(&destination)));
        Ok(destination)
    }

    pub(crate) async fn patch_destination(
        &mut self,
        patch: &DestinationPatch,
    ) -> Result<Option<Arc<Destination>>, sqlx::Error> {
        let current = self.destinations.get(patch.id).filter(|now| now.updated_at == patch.expected_updated_at);
        let Some(current) = current else { return Ok(None) };
        let mut edited = Destination::clone(&current);
        edited.settings = patch.settings.clone();
        edited.updated_at = patch.now;
        if !edited.settings.paused {
            edited.paused_reason = None;
        }
        if edited.settings.rate_limits != current.settings.rate_limits {
            self.record_limits(&edited, patch.now).await?;
        }
        self.update_destination(edited).await.map(Some)
    }

    pub(crate) async fn pause_destination(
        &mut self,
        id: DestinationId,
        reason: &str,
        now: Timestamp,
    ) -> Result<bool, sqlx::Error> {
        let current = self.destinations.get(id).filter(|current| !current.settings.paused);
        let Some(current) = current else { return Ok(false) };
        let mut paused = Destination::clone(&current);
        paused.settings.paused = true;
        paused.paused_reason = Some(reason.to_owned());
        paused.updated_at = now;
        self.update_destination(paused).await?;
        Ok(true)
    }

    pub(crate) async fn hold_destination(
        &mut self,
        id: DestinationId,
        until: Timestamp,
        reason: &str,
    ) -> Result<(), sqlx::Error> {
        let current = self.destinations.get(id).filter(|current| current.held_until.is_none_or(|held| held < until));
        let Some(current) = current else { return Ok(()) };
        let mut held = Destination::clone(&current);
        held.held_until = Some(until);
        held.held_reason = Some(reason.to_owned());
        self.update_destination(held).await?;
        Ok(())
    }

    pub(crate) async fn delete_destination(&mut self, id: DestinationId, now: Timestamp) -> Result<bool, sqlx::Error> {
        let mut values = Values::default();
        values.int(now.as_nanos()).int(now.as_nanos()).blob(id.as_bytes());
        if execute(self.connection, TOMBSTONE.into(), values).await? == 0 {
            return Ok(false);
        }
        let mut values = Values::default();
        values.int(now.as_nanos()).blob(id.as_bytes());
        execute(self.connection, CANCEL_WAITING.into(), values).await?;
        self.destinations.set(id, None);
        Ok(true)
    }
}
