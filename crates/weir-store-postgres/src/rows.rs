//! How sqlx reads a column, and ids as parameters.
//!
//! The schema fixes the types of the columns, so sqlx need not check them for each value. Integers of every width are
//! read as `i64`. Ids and texts in `bytea` columns are read by their bytes.

use sqlx::{
    Row as _,
    postgres::{PgArguments, PgRow},
    query::Query,
    types::Uuid,
};
use weir_core::claim::ProcessId;
use weir_sealing::Unopened;
use weir_store::rows::{Corrupt, Row, Value};

/// Why a row could not be read. Only a type of this crate can be the error of a [`Row`] here. It becomes the error of
/// the statement.
#[derive(Debug)]
pub(crate) struct Unreadable(sqlx::Error);

impl From<Corrupt> for Unreadable {
    fn from(corrupt: Corrupt) -> Self {
        Self(sqlx::Error::Decode(corrupt.into()))
    }
}

impl From<Unopened> for Unreadable {
    fn from(unopened: Unopened) -> Self {
        Self(sqlx::Error::Decode(unopened.into()))
    }
}

impl From<sqlx::Error> for Unreadable {
    fn from(error: sqlx::Error) -> Self {
        Self(error)
    }
}

impl From<Unreadable> for sqlx::Error {
    fn from(Unreadable(error): Unreadable) -> Self {
        error
    }
}

pub(crate) type Read<T> = Result<T, Unreadable>;

impl Row<Unreadable> for PgRow {
    fn optional_int(&self, column: usize) -> Read<Option<i64>> {
        Ok(self.try_get_unchecked(column)?)
    }

    fn optional_text(&self, column: usize) -> Read<Option<String>> {
        Ok(self.try_get_unchecked(column)?)
    }

    fn optional_bytes(&self, column: usize) -> Read<Option<&[u8]>> {
        Ok(self.try_get_unchecked(column)?)
    }

    fn flag(&self, column: usize) -> Read<bool> {
        Ok(self.try_get_unchecked(column)?)
    }
}

pub(crate) fn process_id(row: &PgRow, column: usize) -> Read<ProcessId> {
    Ok(i32::try_from(row.int(column)?).map(ProcessId).map_err(|_| Corrupt("a process"))?)
}

/// The element of `all` whose ordinal is in the row, with its index. Ordinals count from 1.
pub(crate) fn named<'a, T>(row: &PgRow, column: usize, all: &'a [T]) -> Read<(usize, &'a T)> {
    let index = usize::try_from(row.int(column)? - 1).map_err(|_| Corrupt("an ordinal"))?;
    Ok((index, all.get(index).ok_or(Corrupt("an ordinal"))?))
}

/// One parameter of a statement over many rows.
pub(crate) fn column<'r, R, T>(rows: &'r [R], value: impl Fn(&'r R) -> T) -> Vec<T> {
    rows.iter().map(value).collect()
}

/// An id as a parameter.
pub(crate) const fn uuid(id: &[u8; 16]) -> Uuid {
    Uuid::from_bytes(*id)
}

pub(crate) type Statement = Query<'static, sqlx::Postgres, PgArguments>;

pub(crate) fn bind(statement: Statement, value: Value<'_>) -> Statement {
    match value {
        Value::Int(value) => statement.bind(value),
        Value::Flag(value) => statement.bind(value),
        Value::Text(value) => statement.bind(value.map(|text| text.into_owned())),
    }
}

/// The error of a value that JSON cannot express.
pub(crate) fn unwritable(error: serde_json::Error) -> sqlx::Error {
    sqlx::Error::Encode(error.into())
}
