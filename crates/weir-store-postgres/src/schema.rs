//! The migrations in `migrations/postgres`, built into the program.
//!
//! A migration never changes once released: sqlx keeps its checksum in the database and refuses another text. Several
//! processes may start at once; one migrates, the others wait for its lock.

use sqlx::{
    PgConnection, SqlSafeStr as _,
    migrate::{Migrate as _, MigrateError, Migration, MigrationType, Migrator},
};

/// Version, description, text.
const MIGRATIONS: &[(i64, &str, &str)] =
    &[(1, "initial", include_str!("../../../migrations/postgres/0001_initial.sql"))];

/// The newest version this program knows.
pub(crate) fn latest() -> i64 {
    MIGRATIONS.iter().map(|&(version, ..)| version).max().unwrap_or(0)
}

fn migrator() -> Migrator {
    let migration = |&(version, description, sql): &(i64, &'static str, &'static str)| {
        Migration::new(version, description.into(), MigrationType::Simple, sql.into_sql_str(), false)
    };
    Migrator::with_migrations(MIGRATIONS.iter().map(migration).collect())
}

/// Brings the schema up to date. Answers the versions and descriptions that were applied now. The lock is the session's,
/// so an error must be followed by the end of the connection.
pub(crate) async fn migrate(connection: &mut PgConnection) -> Result<Vec<(i64, String)>, MigrateError> {
    // The migrator takes this lock too, which is no harm; it is taken here so that what is read next stays true.
    connection.lock().await?;
    let before = applied(connection).await?;
    if let Some(&newer) = before.iter().find(|&&version| version > latest()) {
        return Err(MigrateError::VersionMissing(newer));
    }
    migrator().run_direct(None, connection, false).await?;
    connection.unlock().await?;
    let fresh = MIGRATIONS.iter().filter(|(version, ..)| !before.contains(version));
    Ok(fresh.map(|&(version, description, _)| (version, description.to_owned())).collect())
}

/// The versions a database has, without making the table that records them.
async fn applied(connection: &mut PgConnection) -> Result<Vec<i64>, MigrateError> {
    let known: bool =
        sqlx::query_scalar("SELECT to_regclass('_sqlx_migrations') IS NOT NULL").fetch_one(&mut *connection).await?;
    if !known {
        return Ok(Vec::new());
    }
    let rows = connection.list_applied_migrations("_sqlx_migrations").await?;
    Ok(rows.into_iter().map(|row| row.version).collect())
}
