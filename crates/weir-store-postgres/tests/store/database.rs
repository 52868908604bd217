//! A database for each test, on the server that `WEIR_TEST_POSTGRES_URL` names.

use std::{
    fs,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    path::Path,
    sync::atomic::{AtomicU32, Ordering},
};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, query, query_scalar, raw_sql};

use crate::{PostgresStore, fixtures::NOW};

const VARIABLE: &str = "WEIR_TEST_POSTGRES_URL";

/// A new database, which is dropped with this value.
pub(crate) struct Database {
    server: String,
    name: String,
}

impl Database {
    /// An empty database.
    pub(crate) async fn create() -> Self {
        Self::create_like("template1").await
    }

    /// A database with the schema and with the partitions around [`NOW`]: a copy of a template, because migrations take longer than a copy.
    pub(crate) async fn migrated() -> Self {
        Self::create_like(&template(&server()).await).await
    }

    async fn create_like(template: &str) -> Self {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let name = format!("weir_test_{}_{}", std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        let database = Self { server: server(), name };
        // An earlier process with the same id may have left a database.
        run(&database.server, &format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", database.name)).await;
        run(&database.server, &format!("CREATE DATABASE {} TEMPLATE {template}", database.name)).await;
        database
    }

    /// The URL of the server, with this database.
    pub(crate) fn url(&self) -> String {
        self.url_with(&self.name)
    }

    /// The URL of the server, with another database.
    pub(crate) fn url_with(&self, name: &str) -> String {
        let (base, query) =
            self.server.split_once('?').map_or((&self.server[..], None), |(base, query)| (base, Some(query)));
        let after_scheme = base.find("://").map_or(0, |at| at + 3);
        let end = base[after_scheme..].find('/').map_or(base.len(), |at| after_scheme + at);
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        format!("{}/{name}{query}", &base[..end])
    }

    /// A connection of the test's own.
    pub(crate) async fn connect(&self) -> PgConnection {
        connect(&self.url()).await
    }
}

fn server() -> String {
    std::env::var(VARIABLE).unwrap_or_else(|_| {
        panic!(
            "these tests need a PostgreSQL server: run them with `cargo xtask test`, which provides the servers, or set \
             {VARIABLE} to the URL of one, such as postgres://postgres@localhost/postgres"
        )
    })
}

/// The name of the database that has these migrations. The first test makes it, and the others wait. It stays on
/// the server.
async fn template(server: &str) -> String {
    let mut hasher = DefaultHasher::new();
    hash(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../migrations/postgres")), &mut hasher);
    NOW.hash(&mut hasher);
    let name = format!("weir_template_{:x}", hasher.finish());
    let mut connection = connect(server).await;
    let lock = query("SELECT pg_advisory_lock(hashtext($1))").bind(&name);
    lock.execute(&mut connection).await.expect("the lock of the template");
    let exists = query_scalar::<_, bool>("SELECT EXISTS (SELECT FROM pg_database WHERE datname = $1)").bind(&name);
    if !exists.fetch_one(&mut connection).await.expect("the names of the databases") {
        let made = Database::create().await;
        PostgresStore::open(&made.url(), NOW).await.expect("the schema").close().await;
        // A database with this name is complete.
        run(server, &format!("ALTER DATABASE {} RENAME TO {name}", made.name)).await;
    }
    connection.close().await.expect("the lock is free");
    name
}

/// Hashes the names and texts of all files in a folder.
fn hash(folder: &Path, hasher: &mut DefaultHasher) {
    let entries = fs::read_dir(folder).expect("the folder of the migrations");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    for path in paths {
        path.hash(hasher);
        if path.is_dir() { hash(&path, hasher) } else { fs::read(&path).expect("a migration").hash(hasher) }
    }
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap_or_else(|error| panic!("{VARIABLE}: {error}"))
}

async fn run(url: &str, sql: &str) {
    let mut connection = connect(url).await;
    raw_sql(AssertSqlSafe(sql)).execute(&mut connection).await.expect("a database made or dropped");
    connection.close().await.expect("closed");
}

impl Drop for Database {
    fn drop(&mut self) {
        let (url, sql) = (self.server.clone(), format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", self.name));
        // On a thread and a runtime of its own, because the runtime of the test must not be blocked and may be shutting
        // down.
        let dropped = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(run(&url, &sql));
        });
        if dropped.join().is_err() {
            eprintln!("the database {} was not dropped", self.name);
        }
    }
}
