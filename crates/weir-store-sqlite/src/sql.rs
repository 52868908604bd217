//! Statements over many rows, and functions to run statements on the writer's connection or a reader's.
//!
//! - A batch of n rows is one statement. Its size is the next power of two, padded with rows of NULL that match and
//!   insert nothing ([`padded`]). Each size is prepared once, and the cost to open a table with its indexes, which is
//!   higher than that of a row, is paid once.
//! - `LIMIT +?` instead of `LIMIT ?`: for a bare parameter SQLite plans the statement again each time a value is bound.
//! - `OR ROLLBACK`: an error rolls back the whole group in any case, and undoing single statements would need a journal
//!   for each statement.

use std::{
    borrow::Cow,
    ops::ControlFlow,
    sync::{Arc, OnceLock},
};

use rusqlite::{
    Connection, Row,
    types::{ToSqlOutput, Value, ValueRef},
};
use sqlx::{
    Arguments as _, AssertSqlSafe, SqlitePool,
    sqlite::{SqliteArguments, SqliteRow},
};

use weir_core::{DestinationId, Timestamp};
use weir_store::rows;

use crate::error::Result;

/// The most rows in one statement: 2 to this power. With at most 16 values a row, well below SQLite's 32,766.
const LARGEST: usize = 9;
pub(crate) const MAX_ROWS: usize = 1 << LARGEST;

/// A statement with one repeated part per row.
pub(crate) struct Batch {
    head: &'static str,
    row: &'static str,
    tail: &'static str,
    built: [OnceLock<Arc<str>>; LARGEST + 1],
}

impl Batch {
    pub(crate) const fn new(head: &'static str, row: &'static str, tail: &'static str) -> Self {
        Self { head, row, tail, built: [const { OnceLock::new() }; LARGEST + 1] }
    }

    /// The statement for these rows, at most [`MAX_ROWS`], and its values: those before the rows, and those that `row` adds
    /// for each.
    pub(crate) fn of<'v, R>(
        &self,
        mut values: Values<'v>,
        rows: &'v [R],
        mut row: impl FnMut(&mut Values<'v>, &'v R),
    ) -> (Arc<str>, Values<'v>) {
        let size = padded(rows.len());
        let columns = self.row.bytes().filter(|byte| *byte == b'?').count();
        values.0.reserve(columns * size);
        for one in rows {
            row(&mut values, one);
        }
        values.nulls(columns * (size - rows.len()));
        (self.sql(size), values)
    }

    /// The statement for the rows of these destinations, and its values.
    pub(crate) fn of_destinations<'v>(&self, ids: &'v [DestinationId]) -> (Arc<str>, Values<'v>) {
        self.of(Values::default(), ids, |values, id| {
            values.bind(id.as_bytes());
        })
    }

    /// The statement for `rows`, a power of two up to [`MAX_ROWS`].
    pub(crate) fn sql(&self, rows: usize) -> Arc<str> {
        let power = (rows.max(1).ilog2() as usize).min(LARGEST);
        let built = self.built[power].get_or_init(|| {
            let rows = vec![self.row; 1 << power].join(",");
            format!("{}{}{}", self.head, rows, self.tail).into()
        });
        Arc::clone(built)
    }
}

/// The size of the statement for `rows`, at most [`MAX_ROWS`]. The other rows are NULL.
pub(crate) fn padded(rows: usize) -> usize {
    rows.clamp(1, MAX_ROWS).next_power_of_two()
}

/// The values of one statement, in order. Borrowed where possible, so that only SQLite copies them.
#[derive(Default)]
pub(crate) struct Values<'v>(Vec<ToSqlOutput<'v>>);

/// `values![id, now]`: these values.
macro_rules! values {
    ($($value:expr),* $(,)?) => {{
        let mut values = $crate::sql::Values::default();
        values$(.bind($value))*;
        values
    }};
}
pub(crate) use values;

/// What can be a value of a statement.
pub(crate) trait Bind<'v> {
    fn value(self) -> ToSqlOutput<'v>;
}

macro_rules! bind {
    ($($type:ty = $value:ident => $output:expr;)*) => {
        $(impl<'v> Bind<'v> for $type {
            fn value(self) -> ToSqlOutput<'v> {
                let $value = self;
                ToSqlOutput::from($output)
            }
        })*
    };
}

bind! {
    i64 = value => value;
    i32 = value => value;
    i16 = value => value;
    u32 = value => value;
    u16 = value => value;
    u8 = value => value;
    bool = value => value;
    Timestamp = value => value.as_nanos();
    &'v Timestamp = value => value.as_nanos();
    String = value => value;
    Vec<u8> = value => value;
    [u8; 16] = value => value.to_vec();
    &'v str = value => value;
    &'v String = value => value.as_str();
    &'v [u8] = value => value;
    &'v Vec<u8> = value => value.as_slice();
}

impl<'v, const N: usize> Bind<'v> for &'v [u8; N] {
    fn value(self) -> ToSqlOutput<'v> {
        self.as_slice().value()
    }
}

impl<'v, T: ?Sized + ToOwned<Owned: Bind<'v>>> Bind<'v> for Cow<'v, T>
where
    &'v T: Bind<'v>,
{
    fn value(self) -> ToSqlOutput<'v> {
        match self {
            Self::Borrowed(value) => value.value(),
            Self::Owned(value) => value.value(),
        }
    }
}

impl<'v, T: Bind<'v>> Bind<'v> for Option<T> {
    fn value(self) -> ToSqlOutput<'v> {
        self.map_or(ToSqlOutput::Borrowed(ValueRef::Null), Bind::value)
    }
}

impl<'v> Bind<'v> for rows::Value<'v> {
    fn value(self) -> ToSqlOutput<'v> {
        match self {
            Self::Int(value) => value.value(),
            Self::Flag(value) => value.value(),
            Self::Text(value) => value.value(),
        }
    }
}

impl<'v> Values<'v> {
    pub(crate) fn bind(&mut self, value: impl Bind<'v>) -> &mut Self {
        self.0.push(value.value());
        self
    }

    fn nulls(&mut self, count: usize) {
        self.0.resize_with(self.0.len() + count, || ToSqlOutput::Borrowed(ValueRef::Null));
    }

    /// The same values for sqlx.
    fn arguments(self) -> Result<SqliteArguments> {
        let mut arguments = SqliteArguments::default();
        arguments.reserve(self.0.len(), 0);
        for value in self.0 {
            let value = match value {
                ToSqlOutput::Owned(value) => value,
                ToSqlOutput::Borrowed(value) => value.try_into().map_err(rusqlite::Error::from)?,
                _ => Value::Null,
            };
            let added = match value {
                Value::Null => arguments.add(None::<i64>),
                Value::Integer(value) => arguments.add(value),
                Value::Real(value) => arguments.add(value),
                Value::Text(value) => arguments.add(value),
                Value::Blob(value) => arguments.add(value),
            };
            added.map_err(sqlx::Error::Encode)?;
        }
        Ok(arguments)
    }
}

/// Runs a statement on the writer's connection. Returns the number of changed rows.
pub(crate) fn execute(connection: &Connection, sql: &str, values: &Values<'_>) -> Result<u64> {
    let mut statement = connection.prepare_cached(sql)?;
    for (index, value) in values.0.iter().enumerate() {
        statement.raw_bind_parameter(index + 1, value)?;
    }
    Ok(statement.raw_execute()? as u64)
}

/// Runs a statement on the writer's connection to its end. Returns its rows, converted by `read`.
pub(crate) fn query<T>(
    connection: &Connection,
    sql: &str,
    values: &Values<'_>,
    mut read: impl FnMut(&Row<'_>) -> Result<T>,
) -> Result<Vec<T>> {
    let mut all = Vec::new();
    visit_rows(connection, sql, values, |row| {
        all.push(read(row)?);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(all)
}

/// Reads rows on the writer's connection one by one until `visit` breaks. Not for statements that change rows: an
/// unfinished statement may have changed only some of them.
pub(crate) fn visit_rows(
    connection: &Connection,
    sql: &str,
    values: &Values<'_>,
    mut visit: impl FnMut(&Row<'_>) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut statement = connection.prepare_cached(sql)?;
    for (index, value) in values.0.iter().enumerate() {
        statement.raw_bind_parameter(index + 1, value)?;
    }
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        if visit(row)?.is_break() {
            break;
        }
    }
    Ok(())
}

/// Runs a statement on a reader's connection. Returns its rows, converted by `read`.
pub(crate) async fn fetch<T>(
    readers: &SqlitePool,
    sql: impl Into<Arc<str>>,
    values: Values<'_>,
    read: impl FnMut(&SqliteRow) -> Result<T>,
) -> Result<Vec<T>> {
    let rows = sqlx::query_with(AssertSqlSafe(sql.into()), values.arguments()?).fetch_all(readers).await?;
    rows.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_padded_to_the_next_power_of_two() {
        assert_eq!([1, 2, 3, 100, 512].map(padded), [1, 2, 4, 128, 512]);
    }

    #[test]
    fn the_repeated_part_is_joined() {
        let batch = Batch::new("VALUES ", "(?)", ";");
        assert_eq!(&*batch.sql(1), "VALUES (?);");
        assert_eq!(&*batch.sql(4), "VALUES (?),(?),(?),(?);");
    }
}
