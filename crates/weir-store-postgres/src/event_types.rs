//! The catalogue of event types: single rows, few and rarely changed.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};
use weir_core::{activity::Activity, event_types::EventType};
use weir_store::{
    CatalogueTotals, EventTypeChange, EventTypes, KnownEventType, StoreResult,
    rows::{self, EVENT_TYPE_COLUMNS},
};

use crate::{PostgresStore, activity::record, edit::change};

const VERSION: &str = "SELECT version, types, schema_bytes FROM event_type_catalogue";

/// Changes wait for each other here.
const TOTALS: &str = "SELECT version, types, schema_bytes FROM event_type_catalogue FOR UPDATE";

const SET_TOTALS: &str = "UPDATE event_type_catalogue SET version = $1, types = $2, schema_bytes = $3";

const KNOWN: &str = "SELECT name, version, CASE WHEN version > $1 THEN schema END FROM event_types";

const SIZE: &str = "SELECT version, coalesce(octet_length(schema), 0)::bigint FROM event_types WHERE name = $1";

const SET: &str = "INSERT INTO event_types (name, version, created_at, updated_at, description, example, schema)
    VALUES ($1, $2, $3, $4, $5, $6, $7)
    ON CONFLICT (name) DO UPDATE SET version = excluded.version, created_at = excluded.created_at,
        updated_at = excluded.updated_at, description = excluded.description, example = excluded.example,
        schema = excluded.schema";

const DELETE: &str = "DELETE FROM event_types WHERE name = $1";

#[async_trait]
impl EventTypes for PostgresStore {
    async fn event_types_version(&self) -> StoreResult<u64> {
        let found = self.read(sqlx::query(VERSION), rows::catalogue_totals).await?;
        Ok(found.first().map_or(0, |totals| totals.version))
    }

    async fn known_event_types(&self, after: u64) -> StoreResult<Vec<KnownEventType>> {
        self.read(sqlx::query(KNOWN).bind(after as i64), rows::known_event_type).await
    }

    async fn event_type(&self, name: &str) -> StoreResult<Option<EventType>> {
        let sql = format!("SELECT {EVENT_TYPE_COLUMNS} FROM event_types WHERE name = $1");
        Ok(self.read(sqlx::query(AssertSqlSafe(sql)).bind(name), rows::event_type).await?.pop())
    }

    async fn event_types(&self, q: Option<&str>, after: Option<&str>, limit: u32) -> StoreResult<Vec<EventType>> {
        let sql = format!(
            "SELECT {EVENT_TYPE_COLUMNS} FROM event_types
             WHERE name > $1 AND strpos(lower(name), lower($2)) > 0 ORDER BY name LIMIT $3"
        );
        let list = sqlx::query(AssertSqlSafe(sql)).bind(after.unwrap_or_default()).bind(q.unwrap_or_default());
        self.read(list.bind(i64::from(limit)), rows::event_type).await
    }

    async fn set_event_type(
        &self,
        expected: Option<u64>,
        event_type: EventType,
        activity: Activity,
    ) -> StoreResult<EventTypeChange> {
        self.edit(|connection| change(set(connection, expected, &event_type, &activity))).await
    }

    async fn delete_event_type(&self, name: &str, expected: u64, activity: Activity) -> StoreResult<bool> {
        self.edit(|connection| change(delete(connection, expected, name, &activity))).await
    }
}

async fn set(
    connection: &mut PgConnection,
    expected: Option<u64>,
    event_type: &EventType,
    activity: &Activity,
) -> Result<EventTypeChange, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let totals = totals(&mut transaction).await?;
    let before = size(&mut transaction, &event_type.name).await?;
    if before.map(|(version, _)| version) != expected {
        transaction.rollback().await?;
        return Ok(EventTypeChange::Outdated);
    }
    let [example, schema] =
        [&event_type.example, &event_type.schema].map(|json| json.as_ref().map(ToString::to_string));
    let bytes = schema.as_ref().map_or(0, String::len) as u64;
    let Some(totals) = totals.changed(before.map(|(_, bytes)| bytes), Some(bytes)) else {
        transaction.rollback().await?;
        return Ok(EventTypeChange::Full);
    };
    sqlx::query(SET)
        .bind(&event_type.name)
        .bind(totals.version as i64)
        .bind(event_type.created_at.as_nanos())
        .bind(event_type.updated_at.as_nanos())
        .bind(&event_type.description)
        .bind(example)
        .bind(schema)
        .execute(&mut *transaction)
        .await?;
    set_totals(&mut transaction, totals).await?;
    record(&mut transaction, activity).await?;
    transaction.commit().await?;
    Ok(EventTypeChange::Made(Box::new(EventType { version: totals.version, ..event_type.clone() })))
}

async fn delete(
    connection: &mut PgConnection,
    expected: u64,
    name: &str,
    activity: &Activity,
) -> Result<bool, sqlx::Error> {
    let mut transaction = connection.begin().await?;
    let totals = totals(&mut transaction).await?;
    let before = size(&mut transaction, name).await?.filter(|(version, _)| *version == expected);
    let changed = before.and_then(|(_, bytes)| totals.changed(Some(bytes), None));
    let Some(totals) = changed else {
        transaction.rollback().await?;
        return Ok(false);
    };
    sqlx::query(DELETE).bind(name).execute(&mut *transaction).await?;
    set_totals(&mut transaction, totals).await?;
    record(&mut transaction, activity).await?;
    transaction.commit().await?;
    Ok(true)
}

async fn size(connection: &mut PgConnection, name: &str) -> Result<Option<(u64, u64)>, sqlx::Error> {
    let found = sqlx::query(SIZE).bind(name).fetch_optional(connection).await?;
    Ok(found.as_ref().map(rows::event_type_size).transpose()?)
}

async fn totals(connection: &mut PgConnection) -> Result<CatalogueTotals, sqlx::Error> {
    Ok(rows::catalogue_totals(&sqlx::query(TOTALS).fetch_one(connection).await?)?)
}

async fn set_totals(connection: &mut PgConnection, totals: CatalogueTotals) -> Result<(), sqlx::Error> {
    let CatalogueTotals { version, types, schema_bytes } = totals;
    let set = sqlx::query(SET_TOTALS).bind(version as i64).bind(types as i64).bind(schema_bytes as i64);
    set.execute(connection).await.map(drop)
}
