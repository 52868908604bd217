//! The migrations in `migrations/sqlite`, built into the program.
//!
//! A migration never changes once released: sqlx keeps its checksum in the file and refuses another text.

use sqlx::{
    SqlSafeStr as _, SqliteConnection,
    migrate::{Migrate as _, MigrateError, Migration, MigrationType, Migrator},
};

/// Version, description, text.
const MIGRATIONS: &[(i64, &str, &str)] = &[(1, "initial", include_str!("../../../migrations/sqlite/0001_initial.sql"))];

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

/// Brings the schema up to date. Answers the versions and descriptions that were applied now.
pub(crate) async fn migrate(connection: &mut SqliteConnection) -> Result<Vec<(i64, String)>, MigrateError> {
    let before = applied(connection).await?;
    if let Some(&newer) = before.iter().find(|&&version| version > latest()) {
        return Err(MigrateError::VersionMissing(newer));
    }
    migrator().run_direct(None, connection, false).await?;
    let fresh = MIGRATIONS.iter().filter(|(version, ..)| !before.contains(version));
    Ok(fresh.map(|&(version, description, _)| (version, description.to_owned())).collect())
}

/// The versions a file has, without making the table that records them.
async fn applied(connection: &mut SqliteConnection) -> Result<Vec<i64>, MigrateError> {
    let known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '_sqlx_migrations'";
    if sqlx::query(known).fetch_optional(&mut *connection).await?.is_none() {
        return Ok(Vec::new());
    }
    let rows = connection.list_applied_migrations("_sqlx_migrations").await?;
    Ok(rows.into_iter().map(|row| row.version).collect())
}
