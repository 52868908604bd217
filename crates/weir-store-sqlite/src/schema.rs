//! The migrations in `migrations/sqlite`, built into the program.
//!
//! A released migration never changes: sqlx stores its checksum in the file and refuses a different text. A file that a
//! newer program migrated can be opened if its marker allows this program (migrations/README.md).

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

/// Applies the missing migrations. Returns their versions and descriptions.
pub(crate) async fn migrate(connection: &mut SqliteConnection) -> Result<Vec<(i64, String)>, MigrateError> {
    let before = applied(connection).await?;
    let newest = before.iter().copied().max().unwrap_or(0);
    let newer = newest > latest();
    if newer && oldest_program(connection).await? > latest() {
        return Err(MigrateError::VersionMissing(newest));
    }
    let mut migrator = migrator();
    migrator.set_ignore_missing(newer);
    migrator.run_direct(None, connection, false).await?;
    let fresh = MIGRATIONS.iter().filter(|(version, ..)| !before.contains(version));
    Ok(fresh.map(|&(version, description, _)| (version, description.to_owned())).collect())
}

/// A program may use the database if it knows the migration with this number. Migrations that break older programs
/// raise the number.
async fn oldest_program(connection: &mut SqliteConnection) -> Result<i64, MigrateError> {
    Ok(sqlx::query_scalar("SELECT oldest_program FROM schema_marker").fetch_one(connection).await?)
}

/// The versions that were applied to a file. Does not create the table that records them.
async fn applied(connection: &mut SqliteConnection) -> Result<Vec<i64>, MigrateError> {
    let known = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = '_sqlx_migrations'";
    if sqlx::query(known).fetch_optional(&mut *connection).await?.is_none() {
        return Ok(Vec::new());
    }
    let rows = connection.list_applied_migrations("_sqlx_migrations").await?;
    Ok(rows.into_iter().map(|row| row.version).collect())
}
