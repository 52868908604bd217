//! The catalogue of event types: single rows, few and rarely changed.

use async_trait::async_trait;
use rusqlite::Connection;
use weir_core::{activity::Activity, event_types::EventType};
use weir_store::{
    CatalogueTotals, EventTypeChange, EventTypes, KnownEventType, StoreResult,
    rows::{self, Corrupt, EVENT_TYPE_COLUMNS},
};

use crate::{
    SqliteStore,
    edit::Durable,
    error::Result,
    sql::{Values, execute, fetch, query, values},
};

const TOTALS: &str = "SELECT version, types, schema_bytes FROM event_type_catalogue";

const SET_TOTALS: &str = "UPDATE event_type_catalogue SET version = ?, types = ?, schema_bytes = ?";

const KNOWN: &str = "SELECT name, version, CASE WHEN version > ? THEN schema END FROM event_types";

const SIZE: &str = "SELECT version, coalesce(octet_length(schema), 0) FROM event_types WHERE name = ?";

const SET: &str =
    "INSERT OR REPLACE INTO event_types (name, version, created_at, updated_at, description, example, schema)
    VALUES (?, ?, ?, ?, ?, ?, ?)";

const DELETE: &str = "DELETE FROM event_types WHERE name = ?";

#[async_trait]
impl EventTypes for SqliteStore {
    async fn event_types_version(&self) -> StoreResult<u64> {
        let found = fetch(&self.readers, TOTALS, Values::default(), rows::catalogue_totals).await?;
        Ok(found.first().map_or(0, |totals| totals.version))
    }

    async fn known_event_types(&self, after: u64) -> StoreResult<Vec<KnownEventType>> {
        Ok(fetch(&self.readers, KNOWN, values![after as i64], rows::known_event_type).await?)
    }

    async fn event_type(&self, name: &str) -> StoreResult<Option<EventType>> {
        let sql = format!("SELECT {EVENT_TYPE_COLUMNS} FROM event_types WHERE name = ?");
        Ok(fetch(&self.readers, sql, values![name], rows::event_type).await?.pop())
    }

    async fn event_types(&self, q: Option<&str>, after: Option<&str>, limit: u32) -> StoreResult<Vec<EventType>> {
        let values = values![after.unwrap_or_default(), q.unwrap_or_default(), limit];
        let sql = format!(
            "SELECT {EVENT_TYPE_COLUMNS} FROM event_types
             WHERE name > ? AND instr(lower(name), lower(?)) > 0 ORDER BY name LIMIT +?"
        );
        Ok(fetch(&self.readers, sql, values, rows::event_type).await?)
    }

    async fn set_event_type(
        &self,
        expected: Option<u64>,
        event_type: EventType,
        activity: Activity,
    ) -> StoreResult<EventTypeChange> {
        self.edit(Durable::Yes, move |transaction| {
            let change = set(transaction.connection, expected, event_type.clone())?;
            transaction.recorded(change, |change| matches!(change, EventTypeChange::Made(_)), &activity)
        })
        .await
    }

    async fn delete_event_type(&self, name: &str, expected: u64, activity: Activity) -> StoreResult<bool> {
        let name = name.to_owned();
        self.edit(Durable::Yes, move |transaction| {
            let is_deleted = delete(transaction.connection, expected, &name)?;
            transaction.recorded(is_deleted, |is_deleted| *is_deleted, &activity)
        })
        .await
    }
}

fn set(connection: &Connection, expected: Option<u64>, mut event_type: EventType) -> Result<EventTypeChange> {
    let before = size(connection, &event_type.name)?;
    if before.map(|(version, _)| version) != expected {
        return Ok(EventTypeChange::Outdated);
    }
    let [example, schema] =
        [&event_type.example, &event_type.schema].map(|json| json.as_ref().map(ToString::to_string));
    let bytes = schema.as_ref().map_or(0, String::len) as u64;
    let Some(totals) = totals(connection)?.changed(before.map(|(_, bytes)| bytes), Some(bytes)) else {
        return Ok(EventTypeChange::Full);
    };
    event_type.version = totals.version;
    let EventType { name, description, created_at, updated_at, .. } = &event_type;
    let values = values![name, totals.version as i64, created_at, updated_at, description, example, schema];
    execute(connection, SET, &values)?;
    drop(values);
    set_totals(connection, totals)?;
    Ok(EventTypeChange::Made(Box::new(event_type)))
}

fn delete(connection: &Connection, expected: u64, name: &str) -> Result<bool> {
    let Some((_, bytes)) = size(connection, name)?.filter(|(version, _)| *version == expected) else {
        return Ok(false);
    };
    execute(connection, DELETE, &values![name])?;
    let totals = totals(connection)?.changed(Some(bytes), None);
    set_totals(connection, totals.ok_or(Corrupt("the size of the catalogue"))?)?;
    Ok(true)
}

fn size(connection: &Connection, name: &str) -> Result<Option<(u64, u64)>> {
    Ok(query(connection, SIZE, &values![name], |row| rows::event_type_size(row))?.pop())
}

fn totals(connection: &Connection) -> Result<CatalogueTotals> {
    let found = query(connection, TOTALS, &Values::default(), |row| rows::catalogue_totals(row))?.pop();
    Ok(found.ok_or(Corrupt("the size of the catalogue"))?)
}

fn set_totals(connection: &Connection, totals: CatalogueTotals) -> Result<()> {
    let values = values![totals.version as i64, totals.types as i64, totals.schema_bytes as i64];
    execute(connection, SET_TOTALS, &values).map(drop)
}
