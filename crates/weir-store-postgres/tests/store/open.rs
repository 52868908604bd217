//! Errors when a database is opened, and their messages.

use sqlx::{AssertSqlSafe, raw_sql};
use weir_store::{History as _, conformance::migrations_in};
use weir_store_postgres::{OpenError, PostgresStore};

use crate::{database::Database, fixtures::NOW};

/// The error of opening `url`. Its message names the setting and the remedy, and does not contain the password.
async fn refused(url: &str) -> OpenError {
    let error = PostgresStore::open(url, NOW).await.unwrap_err();
    let message = error.to_string();
    assert!(message.starts_with("database_url: "), "{message}");
    assert!(message.contains(';'), "{message}");
    assert!(!message.contains("swordfish"), "{message}");
    error
}

/// The URL with another user.
fn as_user(url: &str, user: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let host = rest.rsplit_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{user}:swordfish@{host}")
}

#[tokio::test]
async fn an_invalid_url_is_reported() {
    for url in ["", "sqlite://weir.db", "postgres://user:swordfish@host:port/weir"] {
        assert!(matches!(refused(url).await, OpenError::InvalidUrl { .. }), "{url}");
    }
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_named() {
    // The port is bound and not listening, so no other process can listen on it.
    let held = tokio::net::TcpSocket::new_v4().unwrap();
    held.bind((std::net::Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let nobody = held.local_addr().unwrap();
    let error = refused(&format!("postgres://weir:swordfish@{nobody}/weir")).await;
    assert!(matches!(error, OpenError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&nobody.to_string()), "{error}");
}

#[tokio::test]
async fn a_refused_user_is_named() {
    let database = Database::create().await;
    let error = refused(&as_user(&database.url(), "weir_nobody")).await;
    assert!(matches!(error, OpenError::Refused { .. }), "{error}");
    assert!(error.to_string().contains("weir_nobody"), "{error}");
}

#[tokio::test]
async fn a_missing_database_is_named() {
    let database = Database::create().await;
    let error = refused(&database.url_with("weir_test_missing")).await;
    assert!(matches!(error, OpenError::NoDatabase { .. }), "{error}");
    assert!(error.to_string().contains("createdb weir_test_missing"), "{error}");
}

#[tokio::test]
async fn a_user_who_may_not_change_the_schema_is_named() {
    let database = Database::create().await;
    let mut connection = database.connect().await;
    let user = format!("weir_test_reader_{}", std::process::id());
    let make = format!(
        "DROP ROLE IF EXISTS {user}; CREATE ROLE {user} LOGIN PASSWORD 'swordfish';
        REVOKE CREATE ON SCHEMA public FROM PUBLIC"
    );
    raw_sql(AssertSqlSafe(make)).execute(&mut connection).await.unwrap();
    let error = refused(&as_user(&database.url(), &user)).await;
    raw_sql(AssertSqlSafe(format!("DROP ROLE {user}"))).execute(&mut connection).await.unwrap();
    assert!(matches!(error, OpenError::NotAllowed { .. }), "{error}");
}

/// Changes the database like a newer program. The marker says which programs may still use it.
async fn migrated_later(database: &Database, oldest_program: i32) {
    PostgresStore::migrate(&database.url()).await.unwrap();
    let newer = format!(
        "ALTER TABLE destinations ADD COLUMN colour text;
        INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
        VALUES (9999, 'later', TRUE, '', 0);
        UPDATE schema_marker SET oldest_program = {oldest_program}"
    );
    raw_sql(AssertSqlSafe(newer)).execute(&mut database.connect().await).await.unwrap();
}

#[tokio::test]
async fn a_newer_schema_that_excludes_this_version_is_refused() {
    let database = Database::create().await;
    migrated_later(&database, 9999).await;
    assert!(matches!(refused(&database.url()).await, OpenError::NewerSchema { found: 9999, .. }));
}

#[tokio::test]
async fn a_newer_schema_that_allows_this_version_is_opened_and_not_changed() {
    let database = Database::create().await;
    migrated_later(&database, 1).await;
    assert_eq!(PostgresStore::migrate(&database.url()).await.unwrap(), []);
    PostgresStore::open(&database.url(), NOW).await.unwrap().close().await;
    let newest = sqlx::query_scalar::<_, i64>("SELECT max(version) FROM _sqlx_migrations");
    assert_eq!(newest.fetch_one(&mut database.connect().await).await.unwrap(), 9999);
}

#[tokio::test]
async fn a_schema_that_was_changed_by_hand_is_refused() {
    let database = Database::create().await;
    PostgresStore::migrate(&database.url()).await.unwrap();
    let foreign = "UPDATE _sqlx_migrations SET checksum = ''";
    sqlx::query(foreign).execute(&mut database.connect().await).await.unwrap();
    assert!(matches!(refused(&database.url()).await, OpenError::ForeignSchema { version: 1, .. }));
}

/// Migration 41 had another text in unreleased programs.
#[tokio::test]
async fn the_former_text_of_a_migration_is_accepted() {
    let database = Database::create().await;
    PostgresStore::migrate(&database.url()).await.unwrap();
    let former = "UPDATE _sqlx_migrations SET checksum = decode('63124f87b549c5b125c0c41d489979e14de12f23517154a8dfb64762f\
        0940236af0fd8d85cb8850ca6a76cc2d465115b', 'hex') WHERE version = 41";
    sqlx::query(former).execute(&mut database.connect().await).await.unwrap();
    assert_eq!(PostgresStore::migrate(&database.url()).await.unwrap(), []);
}

#[tokio::test]
async fn an_installation_has_one_id_and_each_database_another() {
    let (one, other) = (Database::create().await, Database::create().await);
    let url = one.url();
    let (first, second) = tokio::join!(PostgresStore::installation(&url), PostgresStore::installation(&url));
    let id = first.unwrap();
    assert_eq!(second.unwrap(), id);
    assert_ne!(PostgresStore::installation(&other.url()).await.unwrap(), id);
    let more = sqlx::query("INSERT INTO installation VALUES (DEFAULT, gen_random_uuid())");
    assert!(more.execute(&mut one.connect().await).await.is_err(), "there is one row");
}

#[tokio::test]
async fn migrate_returns_the_applied_migrations() {
    let database = Database::create().await;
    let applied = PostgresStore::migrate(&database.url()).await.unwrap();
    assert_eq!(applied, migrations_in(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/postgres")));
    assert_eq!(applied.first(), Some(&(1, "initial".to_owned())));
    assert!(PostgresStore::migrate(&database.url()).await.unwrap().is_empty());
    PostgresStore::open(&database.url(), NOW).await.unwrap().check().await.unwrap();
}
