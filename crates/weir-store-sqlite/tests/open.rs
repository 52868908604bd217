//! Failures to open a file, and their error messages.

#![expect(clippy::unwrap_used, reason = "a test may stop anywhere, in its helpers too")]

use std::path::Path;

use sqlx::{Connection as _, SqliteConnection, sqlite::SqliteConnectOptions};
use weir_store::{History as _, conformance::migrations_in};
use weir_store_sqlite::{OpenError, SqliteStore};

/// The error of opening `path`. Its message names the setting and a remedy.
async fn refused(path: &Path) -> OpenError {
    let error = SqliteStore::open(path).await.unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("database_url: "), "{message}");
    assert!(message.contains(';'), "{message}");
    error
}

#[tokio::test]
async fn a_missing_file_is_created() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    let store = SqliteStore::open(&path).await.unwrap();
    store.check().await.unwrap();
    store.close().await;
    assert!(path.exists());
    assert!(!directory.path().join("weir.db-wal").exists(), "closing copies the WAL into the file");
}

#[tokio::test]
async fn a_closed_store_refuses_further_work() {
    let directory = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&directory.path().join("weir.db")).await.unwrap();
    store.close().await;
    store.close().await;
    assert!(store.check().await.is_err());
}

#[tokio::test]
async fn a_file_is_open_in_one_engine_at_a_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    let first = SqliteStore::open(&path).await.unwrap();
    assert!(matches!(refused(&path).await, OpenError::InUse { .. }));
    assert!(matches!(SqliteStore::migrate(&path).await, Err(OpenError::InUse { .. })));
    first.close().await;
    SqliteStore::open(&path).await.unwrap().close().await;
}

#[tokio::test]
async fn a_dropped_store_releases_its_file() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    drop(SqliteStore::open(&path).await.unwrap());
    SqliteStore::open(&path).await.unwrap().close().await;
}

#[tokio::test]
async fn the_error_names_a_missing_directory() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    let error = refused(&missing.join("weir.db")).await;
    assert!(matches!(error, OpenError::NoDirectory { directory } if directory == missing));
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn a_directory_without_write_permission_is_reported() {
    // Permissions do not stop the superuser, but even the superuser cannot create files in /proc.
    assert!(matches!(refused(Path::new("/proc/weir.db")).await, OpenError::NotWritable { .. }));
}

#[tokio::test]
async fn a_file_that_is_not_a_database_is_not_changed() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("notes.txt");
    let notes = "these are notes, not a database\n".repeat(200);
    std::fs::write(&path, &notes).unwrap();
    assert!(matches!(refused(&path).await, OpenError::NotADatabase { .. }));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), notes);
    assert!(matches!(refused(directory.path()).await, OpenError::NotADatabase { .. }));
}

async fn connect(path: &Path) -> SqliteConnection {
    SqliteConnection::connect_with(&SqliteConnectOptions::new().filename(path)).await.unwrap()
}

/// Applies a migration of a newer program. `oldest_program` is the marker for the programs that may still use the file.
async fn migrated_later(path: &Path, oldest_program: i64) {
    SqliteStore::migrate(path).await.unwrap();
    let mut connection = connect(path).await;
    for statement in [
        "ALTER TABLE destinations ADD COLUMN colour TEXT",
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
            VALUES (9999, 'later', TRUE, x'00', 0)",
    ] {
        sqlx::query(statement).execute(&mut connection).await.unwrap();
    }
    let mark = sqlx::query("UPDATE schema_marker SET oldest_program = ?").bind(oldest_program);
    mark.execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_that_excludes_this_program_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    migrated_later(&path, 9999).await;
    assert!(matches!(refused(&path).await, OpenError::NewerSchema { found: 9999, .. }));
}

#[tokio::test]
async fn a_newer_schema_that_allows_this_program_is_opened_unchanged() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    migrated_later(&path, 1).await;
    assert_eq!(SqliteStore::migrate(&path).await.unwrap(), []);
    SqliteStore::open(&path).await.unwrap().close().await;
    let mut connection = connect(&path).await;
    let newest = sqlx::query_scalar::<_, i64>("SELECT max(version) FROM _sqlx_migrations");
    assert_eq!(newest.fetch_one(&mut connection).await.unwrap(), 9999);
}

#[tokio::test]
async fn a_schema_that_was_changed_by_hand_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    SqliteStore::migrate(&path).await.unwrap();
    let mut connection = connect(&path).await;
    sqlx::query("UPDATE _sqlx_migrations SET checksum = x'00'").execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
    assert!(matches!(refused(&path).await, OpenError::ForeignSchema { version: 1, .. }));
}

#[tokio::test]
async fn migrate_returns_the_applied_migrations() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("weir.db");
    let applied = SqliteStore::migrate(&path).await.unwrap();
    assert_eq!(applied, migrations_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/sqlite")));
    assert_eq!(applied.first(), Some(&(1, "initial".to_owned())));
    assert!(SqliteStore::migrate(&path).await.unwrap().is_empty());
    SqliteStore::open(&path).await.unwrap().close().await;
}
