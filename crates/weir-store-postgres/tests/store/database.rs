//! A database for each test, on the server that `WEIR_TEST_POSTGRES_URL` names.

use std::sync::atomic::{AtomicU32, Ordering};

use sqlx::{AssertSqlSafe, Connection as _, PgConnection, raw_sql};

const VARIABLE: &str = "WEIR_TEST_POSTGRES_URL";

/// A new, empty database, which is dropped with this value.
pub(crate) struct Database {
    server: String,
    name: String,
}

impl Database {
    pub(crate) async fn create() -> Self {
        static CREATED: AtomicU32 = AtomicU32::new(0);
        let server = std::env::var(VARIABLE).unwrap_or_else(|_| {
            panic!(
                "these tests need a PostgreSQL server: run them with `cargo xtask test`, which provides the servers, or set \
                 {VARIABLE} to the URL of one, such as postgres://postgres@localhost/postgres"
            )
        });
        let name = format!("weir_test_{}_{}", std::process::id(), CREATED.fetch_add(1, Ordering::Relaxed));
        let database = Self { server, name };
        // An earlier process with the same id may have left a database.
        database.on_server(&format!("DROP DATABASE IF EXISTS {} WITH (FORCE)", database.name)).await;
        database.on_server(&format!("CREATE DATABASE {}", database.name)).await;
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
        PgConnection::connect(&self.url()).await.expect("a connection to the test's database")
    }

    async fn on_server(&self, sql: &str) {
        run(&self.server, sql).await;
    }
}

async fn run(url: &str, sql: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap_or_else(|error| panic!("{VARIABLE}: {error}"));
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
