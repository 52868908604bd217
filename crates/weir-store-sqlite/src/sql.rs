//! Statements over many rows: built once per size, so that SQLite prepares each of them once.
//!
//! sqlx hands every statement to another thread, which costs more than a row does. A batch of n rows is therefore one
//! statement whose size is the next power of two, filled up with rows of NULL that match and insert nothing ([`padded`]).
//! `LIMIT +?` instead of `LIMIT ?`: for a bare parameter SQLite plans the statement anew each time a value is bound.
//! `OR ROLLBACK`, because the group is rolled back after an error anyway, and undoing one statement alone would cost
//! each of them a journal.

use std::sync::{Arc, OnceLock};

use sqlx::{
    Arguments as _, AssertSqlSafe, Sqlite, SqliteConnection,
    encode::Encode,
    sqlite::{SqliteArguments, SqliteRow},
    types::Type,
};

/// The most rows in one statement: 2 to this power. With at most 16 values a row, well below SQLite's 32,766.
const LARGEST: usize = 9;
pub(crate) const MAX_ROWS: usize = 1 << LARGEST;

/// A statement with a repeated part.
pub(crate) struct Batch {
    head: &'static str,
    row: &'static str,
    separator: &'static str,
    tail: &'static str,
    built: [OnceLock<Arc<str>>; LARGEST + 1],
}

impl Batch {
    pub(crate) const fn new(
        head: &'static str,
        row: &'static str,
        separator: &'static str,
        tail: &'static str,
    ) -> Self {
        Self { head, row, separator, tail, built: [const { OnceLock::new() }; LARGEST + 1] }
    }

    /// The statement for `rows`, a power of two up to [`MAX_ROWS`].
    pub(crate) fn sql(&self, rows: usize) -> Arc<str> {
        let power = (rows.max(1).ilog2() as usize).min(LARGEST);
        let built = self.built[power].get_or_init(|| {
            let rows = vec![self.row; 1 << power].join(self.separator);
            format!("{}{}{}", self.head, rows, self.tail).into()
        });
        Arc::clone(built)
    }
}

/// The size of the statement that takes `rows`, at most [`MAX_ROWS`], with the rest filled by NULLs.
pub(crate) fn padded(rows: usize) -> usize {
    rows.clamp(1, MAX_ROWS).next_power_of_two()
}

/// The values of one statement, in order.
#[derive(Default)]
pub(crate) struct Values {
    values: SqliteArguments,
    error: Option<sqlx::Error>,
}

impl Values {
    pub(crate) fn with_capacity(values: usize) -> Self {
        let mut this = Self::default();
        this.values.reserve(values, 0);
        this
    }

    fn push<'t>(&mut self, value: impl Encode<'t, Sqlite> + Type<Sqlite>) -> &mut Self {
        if let Err(error) = self.values.add(value) {
            self.error.get_or_insert(sqlx::Error::Encode(error));
        }
        self
    }

    pub(crate) fn int(&mut self, value: i64) -> &mut Self {
        self.push(value)
    }

    pub(crate) fn optional_int(&mut self, value: Option<i64>) -> &mut Self {
        self.push(value)
    }

    pub(crate) fn blob(&mut self, value: &[u8]) -> &mut Self {
        self.push(value)
    }

    pub(crate) fn text(&mut self, value: &str) -> &mut Self {
        self.push(value)
    }

    pub(crate) fn optional_text(&mut self, value: Option<&str>) -> &mut Self {
        self.push(value)
    }

    pub(crate) fn nulls(&mut self, count: usize) -> &mut Self {
        for _ in 0..count {
            self.push(None::<i64>);
        }
        self
    }

    fn finish(self) -> Result<SqliteArguments, sqlx::Error> {
        self.error.map_or(Ok(self.values), Err)
    }
}

/// Runs a statement; how many rows it changed.
pub(crate) async fn execute(
    connection: &mut SqliteConnection,
    sql: Arc<str>,
    values: Values,
) -> Result<u64, sqlx::Error> {
    let done = sqlx::query_with(AssertSqlSafe(sql), values.finish()?).execute(connection).await?;
    Ok(done.rows_affected())
}

/// Runs a statement to its end; its rows. To the end, because one that stops at its first row may not have changed all.
pub(crate) async fn fetch<'c>(
    connection: impl sqlx::Executor<'c, Database = Sqlite>,
    sql: impl Into<Arc<str>>,
    values: Values,
) -> Result<Vec<SqliteRow>, sqlx::Error> {
    sqlx::query_with(AssertSqlSafe(sql.into()), values.finish()?).fetch_all(connection).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_is_filled_up_to_the_next_power_of_two() {
        assert_eq!([1, 2, 3, 100, 512].map(padded), [1, 2, 4, 128, 512]);
    }

    #[test]
    fn the_repeated_part_is_joined() {
        let batch = Batch::new("VALUES ", "(?)", ", ", ";");
        assert_eq!(&*batch.sql(1), "VALUES (?);");
        assert_eq!(&*batch.sql(4), "VALUES (?), (?), (?), (?);");
    }
}
