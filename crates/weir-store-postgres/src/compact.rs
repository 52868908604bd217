//! Gives the disk of indexes back. PostgreSQL keeps the pages of an index: the due index keeps the size of the longest
//! backlog, and the indexes that begin with the destination are filled to one half, because each destination has its own
//! place for new entries. An index that is much larger than its entries is rebuilt, while it is in use.
//!
//! The process that prunes does this, on the connection of the lock, after each pass of the retention. A rebuild reads
//! the table and writes the index once more; by the ratio, an index that grows is rebuilt each time that it has about
//! doubled. A rebuild that failed leaves an invalid index, which the next pass drops.

use std::time::Duration;

use sqlx::{AssertSqlSafe, PgConnection, postgres::PgRow, raw_sql};
use weir_store::rows::Row as _;

use crate::{rows::Read, writer::within};

/// An index is rebuilt if it would give back so many bytes...
const WORTH_IT: i64 = 8 * 1024 * 1024;
/// ...and takes so many times what its entries need.
const TIMES_TOO_LARGE: f64 = 1.5;

/// A rebuild also waits for older transactions. The retention waits for it.
const LONGEST: Duration = Duration::from_secs(900);
const SETTINGS: &str = "SET statement_timeout = '900s'";

/// The most indexes that one pass rebuilds, and the most that it drops: with hundreds of days of partitions the retention
/// would wait for days. The next pass goes on, and the largest gain comes first.
const AT_ONCE: i64 = 8;

/// What rebuilds that were interrupted have left. They are used by no statement, but every write pays for them.
const LEFT_BEHIND: &str = "
SELECT i.indexrelid::regclass::text FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE NOT i.indisvalid AND c.relname ~ '_cc(new|old)[0-9]*$' AND (i.indrelid = 'deliveries'::regclass
    OR i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent IN ('events'::regclass, 'attempts'::regclass)))
LIMIT $1";

/// The indexes that are too large. Their columns have fixed lengths, aligned to 8 bytes; an entry has 12 bytes more.
/// Vacuum and ANALYZE count the entries. While a transaction is older than a minute none is named: a rebuild would wait
/// for its end.
const TOO_LARGE: &str = "
SELECT name, bytes FROM (
    SELECT i.indexrelid::regclass::text AS name, pg_relation_size(i.indexrelid) AS bytes, c.reltuples * (
        SELECT 12 + sum(8 * ceil(a.attlen / 8.0)) FROM pg_attribute a
        WHERE a.attrelid = i.indexrelid HAVING min(a.attlen) > 0
    ) * 100 / coalesce((
        SELECT option_value::integer FROM pg_options_to_table(c.reloptions) WHERE option_name = 'fillfactor'
    ), 90) AS needed
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
    WHERE i.indisvalid AND c.reltuples >= 0 AND (i.indrelid = 'deliveries'::regclass
        OR i.indrelid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent IN ('events'::regclass, 'attempts'::regclass)))
) one
WHERE bytes - needed > $1 AND bytes > needed * $2 AND NOT EXISTS (
    SELECT FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()
        AND xact_start < clock_timestamp() - interval '1 minute'
)
ORDER BY bytes - needed DESC LIMIT $3";

/// Returns how many bytes were given back.
pub(crate) async fn compact(connection: &mut PgConnection) -> Result<u64, sqlx::Error> {
    raw_sql(SETTINGS).execute(&mut *connection).await?;
    let name = |row: &PgRow| row.text(0);
    let left = sqlx::query(LEFT_BEHIND).bind(AT_ONCE).fetch_all(&mut *connection).await?;
    for index in left.iter().map(name).collect::<Read<Vec<_>>>()? {
        run(connection, format!("DROP INDEX CONCURRENTLY IF EXISTS {index}")).await?;
    }
    let too_large = sqlx::query(TOO_LARGE).bind(WORTH_IT).bind(TIMES_TOO_LARGE).bind(AT_ONCE);
    let too_large = too_large.fetch_all(&mut *connection).await?;
    let mut freed = 0;
    for row in &too_large {
        let (index, before) = (row.text(0)?, row.int(1)?);
        run(connection, format!("REINDEX INDEX CONCURRENTLY {index}")).await?;
        let size = sqlx::query("SELECT pg_relation_size($1::text::regclass)").bind(&index);
        let after = size.fetch_one(&mut *connection).await?.int(0)?;
        tracing::info!(index, before, after, "rebuilt an index that took more disk than its entries need");
        freed += u64::try_from(before - after).unwrap_or_default();
    }
    Ok(freed)
}

/// The names come from the catalog, in the form in which a statement can use them.
async fn run(connection: &mut PgConnection, statement: String) -> Result<(), sqlx::Error> {
    within(LONGEST, async { raw_sql(AssertSqlSafe(statement)).execute(connection).await.map(drop) }).await
}
