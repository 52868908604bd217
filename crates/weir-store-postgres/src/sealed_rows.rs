//! The rotation of keys in a database that processes use: each step is one short transaction.

use async_trait::async_trait;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, postgres::PgRow};
use tokio::sync::Mutex;
use weir_sealing::{Column, Form, KeyId, Keyring};
use weir_store::{
    StoreResult,
    rows::Row as _,
    sealing::{Renewed, SealedRow, SealedRows, head_of},
};

use crate::{
    PostgresStore,
    errors::store_error,
    open::{OpenError, classify, options, server},
    rows::{Read, Unreadable, uuid},
    sealing_keys::keys,
    writer::connect,
};

const REMOVE_KEY: &str = "DELETE FROM sealing_keys WHERE key_id = $1";

/// The sealed rows of a database, on a connection of their own.
#[derive(Debug)]
pub struct PostgresSealedRows(Mutex<PgConnection>);

impl PostgresStore {
    /// Opens the sealed rows of a database that a process of this version has opened before, and may have open now.
    pub async fn sealed_rows(url: &str) -> Result<PostgresSealedRows, OpenError> {
        let options = options(url)?;
        let server = server(&options);
        let connection = connect(&options).await.map_err(|error| classify(&server, &error))?;
        Ok(PostgresSealedRows(connection.into()))
    }
}

/// The condition for one row, and the expression for its number.
fn key(column: &Column) -> (String, &'static str) {
    let number = column.number.unwrap_or("0");
    (format!("{} = $1 AND {number} = $2", column.id), number)
}

fn read_head(row: &PgRow) -> Read<(SealedRow, Vec<u8>)> {
    let head = row.optional_bytes(2)?.unwrap_or_default().to_owned();
    Ok((SealedRow { id: row.id(0)?, number: row.small(1)? }, head))
}

impl PostgresSealedRows {
    async fn read_heads(&self, column: &Column, after: SealedRow, limit: u32) -> Read<Vec<(SealedRow, Vec<u8>)>> {
        let &Column { table, column: value, id, .. } = column;
        let (_, number) = key(column);
        let then = column.number.map(|number| format!(", {number}")).unwrap_or_default();
        // The first condition is for the index.
        let sql = format!(
            "SELECT {id}, {number}, {} FROM {table}
             WHERE {id} >= $1 AND ({id}, {number}) > ($1, $2) AND {value} IS NOT NULL ORDER BY {id}{then} LIMIT $3",
            head_of(column)
        );
        let heads = sqlx::query(AssertSqlSafe(sql))
            .bind(uuid(&after.id))
            .bind(i32::try_from(after.number).unwrap_or(i32::MAX))
            .bind(i64::from(limit));
        heads.fetch_all(&mut *self.0.lock().await).await?.iter().map(read_head).collect()
    }

    async fn renew_rows(&self, column: &Column, rows: &[SealedRow], keyring: &Keyring) -> Result<Renewed, sqlx::Error> {
        let (condition, _) = key(column);
        let &Column { table, column: value, .. } = column;
        // The type of the column, not of the form: PostgreSQL keeps the texts of receivers as bytes.
        let is_text = column.form == Form::Text && column.number.is_none();
        let bytes = if is_text { "convert_from($3, 'UTF8')" } else { "$3" };
        let select = format!("SELECT {value} FROM {table} WHERE {condition} AND {value} IS NOT NULL FOR NO KEY UPDATE");
        let update = format!("UPDATE {table} SET {value} = {bytes} WHERE {condition}");
        let mut connection = self.0.lock().await;
        let mut transaction = connection.begin().await?;
        let mut renewed = Renewed::default();
        for row in rows {
            let number = i32::try_from(row.number).unwrap_or(i32::MAX);
            let select = sqlx::query(AssertSqlSafe(select.as_str())).bind(uuid(&row.id)).bind(number);
            let Some(stored) = select.fetch_optional(&mut *transaction).await? else { continue };
            let stored = stored.optional_bytes(0).map_err(sqlx::Error::from)?.unwrap_or_default();
            match keyring.renewed(column, &row.authenticated(column), stored) {
                Ok(None) => {}
                Ok(Some(value)) => {
                    let update =
                        sqlx::query(AssertSqlSafe(update.as_str())).bind(uuid(&row.id)).bind(number).bind(value);
                    update.execute(&mut *transaction).await?;
                    renewed.rows += 1;
                }
                Err(error) => {
                    renewed.unopened += 1;
                    renewed.last_error = Some(error);
                }
            }
        }
        transaction.commit().await?;
        Ok(renewed)
    }
}

#[async_trait]
impl SealedRows for PostgresSealedRows {
    async fn sealing_keys(&self) -> StoreResult<Vec<KeyId>> {
        keys(&mut *self.0.lock().await).await.map_err(|error| store_error(&error))
    }

    async fn remove_sealing_key(&self, key: KeyId) -> StoreResult<()> {
        let remove = sqlx::query(REMOVE_KEY).bind(key.to_string());
        remove.execute(&mut *self.0.lock().await).await.map(drop).map_err(|error| store_error(&error))
    }

    async fn heads(&self, column: &Column, after: SealedRow, limit: u32) -> StoreResult<Vec<(SealedRow, Vec<u8>)>> {
        let failed = |error: Unreadable| store_error(&error.into());
        self.read_heads(column, after, limit).await.map_err(failed)
    }

    async fn renew(&self, column: &Column, rows: &[SealedRow], keyring: &Keyring) -> StoreResult<Renewed> {
        self.renew_rows(column, rows, keyring).await.map_err(|error| store_error(&error))
    }

    async fn clean_up(&self) -> StoreResult<Option<String>> {
        Ok(Some(
            "The files of PostgreSQL, its write-ahead log and its backups may have values from before, until they are \
             overwritten: see docs/operations/encryption.md"
                .to_owned(),
        ))
    }
}
