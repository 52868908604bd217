//! How the two libraries, rusqlite and sqlx, read a column. The tables are STRICT, so columns have the types of the
//! schema, and need not be checked for each value.

use sqlx::{Row as _, sqlite::SqliteRow};
use weir_store::rows::Row;

use crate::error::{Error, Result};

impl Row<Error> for rusqlite::Row<'_> {
    fn optional_int(&self, column: usize) -> Result<Option<i64>> {
        Ok(self.get_ref(column)?.as_i64_or_null().map_err(rusqlite::Error::from)?)
    }

    fn optional_text(&self, column: usize) -> Result<Option<String>> {
        Ok(self.get(column)?)
    }

    fn optional_bytes(&self, column: usize) -> Result<Option<&[u8]>> {
        Ok(self.get_ref(column)?.as_blob_or_null().map_err(rusqlite::Error::from)?)
    }

    fn flag(&self, column: usize) -> Result<bool> {
        Ok(self.int(column)? == 1)
    }
}

impl Row<Error> for SqliteRow {
    fn optional_int(&self, column: usize) -> Result<Option<i64>> {
        Ok(self.try_get_unchecked(column)?)
    }

    fn optional_text(&self, column: usize) -> Result<Option<String>> {
        Ok(self.try_get_unchecked(column)?)
    }

    fn optional_bytes(&self, column: usize) -> Result<Option<&[u8]>> {
        Ok(self.try_get_unchecked(column)?)
    }

    fn flag(&self, column: usize) -> Result<bool> {
        Ok(self.int(column)? == 1)
    }
}
