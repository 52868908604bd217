//! The migrations in `migrations/sqlite`, built into the program.
//!
//! A released migration never changes: sqlx stores its checksum in the file and refuses a different text. A file that a
//! newer program migrated can be opened if its marker allows this program ([`weir_store::schema`]).

use sqlx::{
    SqlSafeStr as _, SqliteConnection,
    migrate::{Migrate as _, MigrateError, MigrationType, Migrator},
};
use weir_store::schema::{Migration, Migrations, migration};

/// The migration that brought sealed rows.
pub(crate) const SEALED: i64 = 29;

pub(crate) const MIGRATIONS: Migrations = Migrations(&[
    migration(1, "initial", include_str!("../../../migrations/sqlite/0001_initial.sql")),
    migration(2, "attempt details", include_str!("../../../migrations/sqlite/0002_attempt_details.sql")),
    migration(3, "activity", include_str!("../../../migrations/sqlite/0003_activity.sql")),
    migration(4, "counters and traffic", include_str!("../../../migrations/sqlite/0004_counters_and_traffic.sql")),
    migration(6, "operational events", include_str!("../../../migrations/sqlite/0006_operational_events.sql")),
    migration(9, "session secret", include_str!("../../../migrations/sqlite/0009_session_secret.sql")),
    migration(13, "minimum interval", include_str!("../../../migrations/sqlite/0013_minimum_interval.sql")),
    migration(15, "released holds", include_str!("../../../migrations/sqlite/0015_released_holds.sql")),
    migration(16, "bodies", include_str!("../../../migrations/sqlite/0016_bodies.sql")),
    migration(20, "makers of keys", include_str!("../../../migrations/sqlite/0020_makers_of_keys.sql")),
    migration(21, "uses of keys", include_str!("../../../migrations/sqlite/0021_uses_of_keys.sql")),
    migration(28, "shedding", include_str!("../../../migrations/sqlite/0028_shedding.sql")),
    migration(29, "sealing keys", include_str!("../../../migrations/sqlite/0029_sealing_keys.sql")),
    migration(31, "egress", include_str!("../../../migrations/sqlite/0031_egress.sql")),
    migration(33, "filters", include_str!("../../../migrations/sqlite/0033_filters.sql")),
    migration(34, "adaptive", include_str!("../../../migrations/sqlite/0034_adaptive.sql")),
    migration(35, "event types", include_str!("../../../migrations/sqlite/0035_event_types.sql")),
    migration(36, "limit groups", include_str!("../../../migrations/sqlite/0036_limit_groups.sql")),
    migration(38, "costs", include_str!("../../../migrations/sqlite/0038_costs.sql")),
    migration(39, "throttled", include_str!("../../../migrations/sqlite/0039_throttled.sql")),
    migration(40, "reservations", include_str!("../../../migrations/sqlite/0040_reservations.sql")),
    migration(41, "limit keys", include_str!("../../../migrations/sqlite/0041_limit_keys.sql")),
]);

fn migrator() -> Migrator {
    let migration = |one: &Migration| {
        let sql = one.sql.into_sql_str();
        sqlx::migrate::Migration::new(one.version, one.description.into(), MigrationType::Simple, sql, false)
    };
    Migrator::with_migrations(MIGRATIONS.0.iter().map(migration).collect())
}

/// Applies the missing migrations. Returns their versions and descriptions.
pub(crate) async fn migrate(connection: &mut SqliteConnection) -> Result<Vec<(i64, String)>, MigrateError> {
    let before = applied(connection).await?;
    // A newer program has migrated the file: its marker says whether this one may use it.
    let newer = MIGRATIONS.newer_version(&before);
    if let Some(version) = newer
        && !MIGRATIONS.may_use(oldest_program(connection).await?)
    {
        return Err(MigrateError::VersionMissing(version));
    }
    let mut migrator = migrator();
    // The migrations of the newer program are unknown here, and stay.
    migrator.set_ignore_missing(newer.is_some());
    migrator.run_direct(None, connection, false).await?;
    Ok(MIGRATIONS.missing(&before))
}

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

#[cfg(test)]
mod tests {
    use sqlx::{Connection as _, sqlite::SqliteConnectOptions};
    use weir_core::DestinationId;
    use weir_store::{Counters as _, StateCounts};

    use super::*;
    use crate::{SqliteStore, files::create};

    /// The deliveries of a program that knew only the first migration: their states, for each destination.
    const LEFT_BEHIND: [(u8, &[u8]); 2] = [(1, &[0, 0, 2, 3]), (2, &[1, 5, 8])];

    fn id(last: u8) -> Vec<u8> {
        [&[7; 15][..], &[last]].concat()
    }

    #[tokio::test]
    async fn the_deliveries_of_an_earlier_version_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("weir.db");
        drop(create(&path).unwrap());
        let options = SqliteConnectOptions::new().filename(&path);
        let mut connection = SqliteConnection::connect_with(&options).await.unwrap();
        migrator().run_to(1, &mut connection).await.unwrap();
        let mut number = 0;
        for (destination, states) in LEFT_BEHIND {
            for state in states {
                number += 1;
                let insert = "INSERT INTO deliveries (id, event_id, destination_id, state, attempts, next_attempt_at,
                    created_at, updated_at) VALUES (?1, ?1, ?2, ?3, 0, 0, 0, 0)";
                let insert = sqlx::query(insert).bind(id(number)).bind(id(destination)).bind(*state);
                insert.execute(&mut connection).await.unwrap();
            }
        }
        connection.close().await.unwrap();

        let store = SqliteStore::open(&path).await.unwrap();
        let ids = [1, 2, 3].map(|last| DestinationId::from_bytes(id(last).try_into().unwrap()));
        let expected = [[2, 0, 1, 1, 0, 0, 0, 0, 0], [0, 1, 0, 0, 0, 1, 0, 0, 1], [0; 9]].map(StateCounts::new);
        assert_eq!(store.counts(&ids).await.unwrap(), expected);
        store.close().await;
    }
}
