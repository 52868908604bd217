//! The rotation of keys in a file, which another process may have open: each step is one short transaction.

use std::path::Path;

use async_trait::async_trait;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, params};
use weir_sealing::{Column, Form, KeyId, Keyring};
use weir_store::{
    StoreResult,
    sealing::{Renewed, SealedRow, SealedRows, head_of},
};

use crate::{
    SqliteStore,
    error::{OpenError, Result},
    files::DatabaseFiles,
    open::{classify, writing_connection},
    sealing_keys::keys,
};

/// The pages of the log after which it is copied into the file: 16 MiB.
const LOG_PAGES: u32 = 4_096;

/// The sealed rows of a file.
#[derive(Debug)]
pub struct SqliteSealedRows(Mutex<Connection>);

impl SqliteStore {
    /// Opens the sealed rows of a file that a process of this version has opened before, and may have open now.
    pub fn sealed_rows(path: &Path) -> std::result::Result<SqliteSealedRows, OpenError> {
        let connection = writing_connection(path).map_err(|error| classify(path, &error.into()))?;
        // What is replaced is overwritten, not only unlinked. The log stays small also while no other process copies it.
        connection
            .execute_batch(&format!("PRAGMA secure_delete = ON; PRAGMA wal_autocheckpoint = {LOG_PAGES}"))
            .map_err(|error| classify(path, &error.into()))?;
        Ok(SqliteSealedRows(connection.into()))
    }
}

fn read_row(row: &rusqlite::Row<'_>) -> rusqlite::Result<SealedRow> {
    Ok(SealedRow { id: row.get(0)?, number: row.get(1)? })
}

/// The bytes of a text or a blob.
fn bytes(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<Vec<u8>> {
    Ok(row.get_ref(column)?.as_bytes()?.to_owned())
}

/// The condition for one row, and the expression for its number.
fn key(column: &Column) -> (String, &'static str) {
    let number = column.number.unwrap_or("0");
    (format!("{} = ?1 AND {number} = ?2", column.id), number)
}

impl SqliteSealedRows {
    fn read_heads(&self, column: &Column, after: SealedRow, limit: u32) -> Result<Vec<(SealedRow, Vec<u8>)>> {
        let &Column { table, column: value, id, .. } = column;
        let (_, number) = key(column);
        let then = column.number.map(|number| format!(", {number}")).unwrap_or_default();
        // The first condition is for the index.
        let sql = format!(
            "SELECT {id}, {number}, {} FROM {table}
             WHERE {id} >= ?1 AND ({id}, {number}) > (?1, ?2) AND {value} IS NOT NULL ORDER BY {id}{then} LIMIT ?3",
            head_of(column)
        );
        let connection = self.0.lock();
        let mut statement = connection.prepare_cached(&sql)?;
        let heads =
            statement.query_map(params![after.id, after.number, limit], |row| Ok((read_row(row)?, bytes(row, 2)?)))?;
        Ok(heads.collect::<rusqlite::Result<_>>()?)
    }

    fn renew_rows(&self, column: &Column, rows: &[SealedRow], keyring: &Keyring) -> Result<Renewed> {
        let (condition, _) = key(column);
        let &Column { table, column: value, .. } = column;
        let (select, update) = (
            format!("SELECT {value} FROM {table} WHERE {condition} AND {value} IS NOT NULL"),
            format!("UPDATE {table} SET {value} = ?3 WHERE {condition}"),
        );
        let mut connection = self.0.lock();
        let transaction = connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
        let mut renewed = Renewed::default();
        for row in rows {
            let key = params![row.id, row.number];
            let stored = transaction.prepare_cached(&select)?.query_row(key, |row| bytes(row, 0)).optional()?;
            let Some(stored) = stored else { continue };
            match keyring.renewed(column, &row.authenticated(column), &stored) {
                Ok(None) => {}
                Ok(Some(value)) => {
                    let mut update = transaction.prepare_cached(&update)?;
                    match column.form {
                        Form::Bytes => update.execute(params![row.id, row.number, value])?,
                        Form::Text => update.execute(params![row.id, row.number, String::from_utf8_lossy(&value)])?,
                    };
                    renewed.rows += 1;
                }
                Err(error) => {
                    renewed.unopened += 1;
                    renewed.last_error = Some(error);
                }
            }
        }
        transaction.commit()?;
        Ok(renewed)
    }
}

#[async_trait]
impl SealedRows for SqliteSealedRows {
    async fn sealing_keys(&self) -> StoreResult<Vec<KeyId>> {
        Ok(keys(&self.0.lock())?)
    }

    async fn remove_sealing_key(&self, key: KeyId) -> StoreResult<()> {
        let removed = self.0.lock().execute("DELETE FROM sealing_keys WHERE key_id = ?", [key.to_string()]);
        Ok(removed.map(drop).map_err(crate::error::Error::from)?)
    }

    async fn heads(&self, column: &Column, after: SealedRow, limit: u32) -> StoreResult<Vec<(SealedRow, Vec<u8>)>> {
        Ok(self.read_heads(column, after, limit)?)
    }

    async fn renew(&self, column: &Column, rows: &[SealedRow], keyring: &Keyring) -> StoreResult<Renewed> {
        Ok(self.renew_rows(column, rows, keyring)?)
    }

    /// Free pages may have clear values from before. Only a rewrite of the whole file removes them, which would keep a
    /// running process from writing for too long. The log is emptied in any case.
    async fn clean_up(&self) -> StoreResult<Option<String>> {
        let path = std::path::PathBuf::from(self.0.lock().path().unwrap_or_default());
        let files = DatabaseFiles::lock(&path).await;
        let connection = self.0.lock();
        let clean = |sql| connection.execute_batch(sql).map_err(crate::error::Error::from);
        if files.is_ok() {
            clean("VACUUM")?;
        }
        clean("PRAGMA wal_checkpoint(TRUNCATE)")?;
        Ok(files.is_err().then(|| {
            "Weir runs, so free pages of the file were not overwritten: they may have values from before. To overwrite \
             them, stop Weir and run this command once more"
                .to_owned()
        }))
    }
}
