//! Opens a database: checks the server and its version, migrates the schema, and starts the connections with their
//! settings.

use std::{
    fmt,
    hash::{BuildHasher as _, Hasher as _, RandomState},
    str::FromStr as _,
    sync::Arc,
    time::Duration,
};

use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, PgConnection, PgPool, Row as _,
    migrate::MigrateError,
    postgres::{PgConnectOptions, PgPoolOptions},
    raw_sql,
};
use tokio::time::Instant;
use weir_core::{InstallationId, Timestamp};
use weir_sealing::{KeyId, Keyring};
use weir_store::{Obstacle, StoreError};

use crate::{
    PostgresStore, Shared, errors,
    heads::Heads,
    partitions::days_around,
    prune::Pruning,
    replica::{CHECK_TIMEOUT, Replica},
    schema, sealing_keys,
    writer::{COMMIT_TIMEOUT, CONNECT_TIMEOUT, PING_TIMEOUT, Writers, connect, recoverable, within},
};

/// The oldest supported server, as a `server_version_num`.
const OLDEST_SERVER: i32 = 140_000;
/// A connection that was idle for longer may be lost, and is pinged before use.
const TRUSTED_FOR: Duration = Duration::from_secs(1);
/// Connections for edits and for reads of the API, unless a setting says otherwise.
pub const DEFAULT_POOL: u32 = 6;
/// The connections of a process for edits and for reads of the API.
#[derive(Debug, Clone)]
pub struct Connections {
    /// At most so many, to the primary and to the replica each.
    pub pool: u32,
    /// The URL of a streaming replica for the reads that may use one.
    pub replica: Option<String>,
}

impl Default for Connections {
    fn default() -> Self {
        Self { pool: DEFAULT_POOL, replica: None }
    }
}

/// The number of writers for each kind of operation. With two, one works while the other waits for the disk or for an
/// answer.
const POSTING: usize = 2;
const CLAIMING: usize = 2;
const SETTLING: usize = 2;

/// The settings of every connection. Each statement looks up keys that it names, so a nested loop over indexes is the
/// right plan. Statistics could suggest another one: for a table that was empty at its last ANALYZE a scan seems cheap,
/// and the server would keep that plan while a backlog grows. Plans are generic, so each is made once. JIT compilation
/// would cost more than it saves.
const SETTINGS: [(&str, &str); 10] = [
    ("enable_hashjoin", "off"),
    ("enable_mergejoin", "off"),
    ("enable_seqscan", "off"),
    ("plan_cache_mode", "force_generic_plan"),
    ("jit", "off"),
    // The planner counts rows, not pages: otherwise it reads the dense primary key and leaves out the rows of other
    // destinations, instead of looking up the rows of one destination.
    ("seq_page_cost", "0.1"),
    ("random_page_cost", "0.1"),
    // Set independently of the server's default: an event is acknowledged only when it is on disk.
    ("synchronous_commit", "on"),
    ("statement_timeout", "30s"),
    // An open transaction keeps vacuum from removing the dead rows of the hot table.
    ("idle_in_transaction_session_timeout", "30s"),
];

/// The server of a URL, without the password, so that it can be shown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Server {
    host: String,
    port: u16,
    database: String,
    user: String,
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // An IPv6 address stands in brackets, as in a URL.
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

/// Why a database could not be opened. Each message names the setting and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("database_url: invalid URL ({reason}); write it as postgres://user:password@host:5432/database")]
    InvalidUrl { reason: String },
    #[error(
        "database_url: no PostgreSQL server answers at {server} ({reason}); start it, or name another host and port"
    )]
    Unreachable { server: Server, reason: String },
    #[error(
        "database_url: {server} refuses the user {} ({reason}); check the user and the password, or the certificate if the \
         server asks for one", .server.user
    )]
    Refused { server: Server, reason: String },
    #[error(
        "database_url: {server} has no database {}; create it with `createdb {}`, or name another",
        .server.database, .server.database
    )]
    NoDatabase { server: Server },
    #[error(
        "database_url: {server} runs PostgreSQL {found}; upgrade it to version 14 or later, or name another server"
    )]
    TooOld { server: Server, found: String },
    #[error(
        "database_url: {} at {server} takes no writes, because {obstacle} ({reason}); remove the cause, or name another \
         server: after a failover the new primary",
        .server.database
    )]
    CannotWrite { server: Server, obstacle: Obstacle, reason: String },
    #[error(
        "database_url: the user {} may not change the schema of {} ({reason}); make it the owner of the database, or grant \
         it CREATE on the schema",
        .server.user, .server.database
    )]
    NotAllowed { server: Server, reason: String },
    #[error(
        "database_url: {} was written by a newer Weir (schema {found}, this one knows {known}); start that version or a \
         later one, or restore the backup made before the upgrade",
        .server.database
    )]
    NewerSchema { server: Server, found: i64, known: i64 },
    #[error(
        "database_url: the schema of {} was changed by hand (migration {version} differs); restore a backup, or name \
         another database",
        .server.database
    )]
    ForeignSchema { server: Server, version: i64 },
    #[error(
        "database_url: at {server} a connection pooler gives Weir no sessions of its own, or drops their settings ({reason}), \
         without which acknowledged events could be lost; connect to PostgreSQL itself: each process pools its \
         connections already, and WEIR_DATABASE_POOL bounds them"
    )]
    Pooler { server: Server, reason: String },
    #[error(
        "encryption_keys: rows of {} are sealed with the key {key}, which WEIR_ENCRYPTION_KEYS does not have; add that key \
         behind the others (docs/operations/encryption.md). Nothing was changed",
        .server.database
    )]
    KeyMissing { server: Server, key: KeyId },
    #[error("database_url: {} at {server} cannot be opened: {reason}; see the log of the server", .server.database)]
    Failed { server: Server, reason: String },
}

impl PostgresStore {
    /// Opens the database of a `postgres://` URL and migrates its schema. `now` decides which days get partitions.
    /// Several processes may open one database, also at the same time.
    ///
    /// Each session starts with the settings of its connection, and a pooler that drops them is refused.
    pub async fn open(url: &str, now: Timestamp) -> Result<Self, OpenError> {
        Self::open_with(url, Connections::default(), now, Keyring::default()).await
    }

    /// Like [`Self::open`], with these connections for edits and for reads of the API, and the keys of sealed rows.
    pub async fn open_with(
        url: &str,
        connections: Connections,
        now: Timestamp,
        keyring: Keyring,
    ) -> Result<Self, OpenError> {
        let options = options(url)?;
        let replica = connections.replica.as_deref().map(self::options).transpose()?;
        let server = server(&options);
        // Migrate before any connection uses the tables.
        let (mut connection, _) = migrate(&server, &options).await?;
        let missing =
            sealing_keys::check_keys(&mut connection, &keyring).await.map_err(|error| classify(&server, &error))?;
        let heads = Heads::read(&mut connection).await.map_err(|error| classify(&server, &error))?;
        connection.close().await.map_err(|error| classify(&server, &error))?;
        if let Some(key) = missing {
            return Err(OpenError::KeyMissing { server, key });
        }
        let shared = Arc::new(Shared { keyring, heads, ..Shared::default() });
        let pool = pool(connections.pool, CONNECT_TIMEOUT, options.clone(), Some(Arc::clone(&shared)));
        // The server of the replica may be away.
        let replica = replica.map(|options| Replica::new(self::pool(connections.pool, CHECK_TIMEOUT, options, None)));
        // Only what was acknowledged waits for the disk: events, edits and durable claims.
        let recoverable = recoverable(&options);
        let store = Self {
            pool,
            replica,
            pruning: Pruning::default(),
            posts: Writers::spawn(POSTING, &options, &shared),
            claims: Writers::spawn(CLAIMING, &recoverable, &shared),
            durable_claims: Writers::spawn(1, &options, &shared),
            releases: Writers::spawn(1, &recoverable, &shared),
            settles: Writers::spawn(SETTLING, &recoverable, &shared),
            lookups: Writers::spawn(1, &options, &shared),
            beats: Writers::spawn(1, &recoverable, &shared),
            shared,
        };
        // Make the partitions that the first events need.
        store.make_partitions(now).await.map_err(|error| classify(&server, &error))?;
        Ok(store)
    }

    /// Migrates the schema of a database without opening the store. Returns the versions and descriptions of the
    /// applied migrations.
    pub async fn migrate(url: &str) -> Result<Vec<(i64, String)>, OpenError> {
        let options = options(url)?;
        let server = server(&options);
        let (connection, applied) = migrate(&server, &options).await?;
        connection.close().await.map_err(|error| classify(&server, &error))?;
        Ok(applied)
    }

    /// The id of the installation, after migrating the schema: what all processes of this database have in common, and
    /// no process of another one has. It is read before the store is opened, because the queue needs it, and opening
    /// the store needs the clock of the queue.
    pub async fn installation(url: &str) -> Result<InstallationId, OpenError> {
        let options = options(url)?;
        let server = server(&options);
        let failed = |error: sqlx::Error| classify(&server, &error);
        let (mut connection, _) = migrate(&server, &options).await?;
        let id: Vec<u8> = sqlx::query_scalar("SELECT uuid_send(id) FROM installation")
            .fetch_one(&mut connection)
            .await
            .map_err(failed)?;
        connection.close().await.map_err(failed)?;
        let wrong = |_| failed(sqlx::Error::Decode("the id of the installation is no UUID".into()));
        Ok(InstallationId::from_bytes(id.try_into().map_err(wrong)?))
    }

    /// Makes the missing partitions of the days around `now`, and marks the schema once bodies are stored without heads.
    pub(crate) async fn make_partitions(&self, now: Timestamp) -> Result<(), sqlx::Error> {
        let mut connection = self.pool.acquire().await?;
        let made = within(COMMIT_TIMEOUT, async {
            self.shared.heads.mark(&mut connection, now).await?;
            self.shared.partitions.ensure(&mut connection, days_around(now)).await
        })
        .await;
        // After a timeout the connection may still be in the middle of a statement.
        if made.is_err() {
            connection.close_on_drop();
        }
        made
    }

    /// Finishes the accepted operations and closes the connections. Later calls are refused.
    pub async fn close(&self) {
        self.posts.close().await;
        self.claims.close().await;
        self.durable_claims.close().await;
        self.releases.close().await;
        self.settles.close().await;
        self.lookups.close().await;
        self.beats.close().await;
        drop(self.pruning.lock().await.take());
        self.pool.close().await;
        if let Some(replica) = &self.replica {
            replica.pool.close().await;
        }
    }
}

/// A pool, which connects at its first use. With `shared` it leaves a server that the address has left.
fn pool(most: u32, acquire_timeout: Duration, options: PgConnectOptions, shared: Option<Arc<Shared>>) -> PgPool {
    PgPoolOptions::new()
        .max_connections(most)
        .acquire_timeout(acquire_timeout)
        // A ping before each use would cost as much as most reads.
        .test_before_acquire(false)
        .before_acquire(move |connection, of| {
            let has_left =
                shared.as_ref().is_some_and(|shared| shared.server.has_left(Instant::now().checked_sub(of.age)));
            Box::pin(async move {
                Ok(!has_left && (of.idle_for < TRUSTED_FOR || within(PING_TIMEOUT, connection.ping()).await.is_ok()))
            })
        })
        .connect_lazy_with(options)
}

pub(crate) fn options(url: &str) -> Result<PgConnectOptions, OpenError> {
    let invalid = |reason: String| OpenError::InvalidUrl { reason };
    if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
        return Err(invalid("it does not begin with postgres://".to_owned()));
    }
    let options = PgConnectOptions::from_str(url).map_err(|error| invalid(error.to_string()))?;
    // The client would look up the brackets of an IPv6 address as a part of its name.
    let bare = options.get_host().trim_matches(['[', ']']).to_owned();
    let options = if bare == options.get_host() { options } else { options.host(&bare) };
    let has_name = options.get_application_name().is_some();
    let options = if has_name { options } else { options.application_name("weir") };
    Ok(options.options(SETTINGS).disable_statement_logging())
}

pub(crate) fn server(options: &PgConnectOptions) -> Server {
    let user = options.get_username().to_owned();
    Server {
        host: options.get_host().to_owned(),
        port: options.get_port(),
        database: options.get_database().map_or_else(|| user.clone(), str::to_owned),
        user,
    }
}

/// Refuses a pooler that gives the sessions of the server to transactions (PgBouncer: `pool_mode = transaction`). There the
/// locks, settings and prepared statements of one process would be those of another. What one connection sets, another
/// one must not see, and it itself must still see it while the other one is in a transaction. Simple statements: a pooler
/// may refuse prepared ones, for a reason that nobody would understand.
async fn check_session(
    server: &Server,
    connection: &mut PgConnection,
    options: &PgConnectOptions,
) -> Result<(), OpenError> {
    let failed = |error: sqlx::Error| classify(server, &error);
    let mark = format!("{:016x}", RandomState::new().build_hasher().finish());
    let seen_by = async |connection: &mut PgConnection| {
        let rows = raw_sql("SELECT current_setting('weir.session', true)").fetch_all(connection).await?;
        let seen = rows.first().and_then(|row| row.try_get::<Option<String>, _>(0).ok().flatten());
        Ok::<_, sqlx::Error>(seen.as_deref() == Some(&mark))
    };
    let mut other = connect(options).await.map_err(failed)?;
    raw_sql(AssertSqlSafe(format!("SET weir.session = '{mark}'"))).execute(&mut *connection).await.map_err(failed)?;
    raw_sql("BEGIN").execute(&mut other).await.map_err(failed)?;
    let (by_other, by_itself) =
        (seen_by(&mut other).await.map_err(failed)?, seen_by(connection).await.map_err(failed)?);
    raw_sql("ROLLBACK").execute(&mut other).await.map_err(failed)?;
    other.close().await.map_err(failed)?;
    if by_other || !by_itself {
        let reason = "it pools transactions, not sessions".to_owned();
        return Err(OpenError::Pooler { server: server.clone(), reason });
    }
    Ok(())
}

async fn check_version(server: &Server, connection: &mut PgConnection) -> Result<(), OpenError> {
    let known = "SELECT current_setting('server_version'), current_setting('server_version_num')::integer,
        current_setting('plan_cache_mode'), current_setting('synchronous_commit')";
    let (found, number, plans, commit): (String, i32, String, String) =
        sqlx::query_as(known).fetch_one(connection).await.map_err(|error| classify(server, &error))?;
    if number < OLDEST_SERVER {
        return Err(OpenError::TooOld { server: server.clone(), found });
    }
    // These two settings stand for all: a connection has all of them or none.
    if (plans.as_str(), commit.as_str()) != ("force_generic_plan", "on") {
        let reason = format!("plan_cache_mode is {plans}, and synchronous_commit is {commit}");
        return Err(OpenError::Pooler { server: server.clone(), reason });
    }
    Ok(())
}

/// Migrates on a connection of its own, which the caller must close: that releases its lock. It has no statement timeout,
/// because a migration, or the wait for another process that migrates, may take longer than other statements may.
async fn migrate(server: &Server, options: &PgConnectOptions) -> Result<(PgConnection, Vec<(i64, String)>), OpenError> {
    let without_timeout = options.clone().options([("statement_timeout", "0")]);
    let mut connection = connect(&without_timeout).await.map_err(|error| classify(server, &error))?;
    check_session(server, &mut connection, options).await?;
    check_version(server, &mut connection).await?;
    let applied = schema::migrate(&mut connection).await.map_err(|error| {
        let server = server.clone();
        match error {
            MigrateError::VersionMissing(found) => {
                OpenError::NewerSchema { server, found, known: schema::MIGRATIONS.latest() }
            }
            MigrateError::VersionMismatch(version) => OpenError::ForeignSchema { server, version },
            MigrateError::Execute(error) | MigrateError::ExecuteMigration(error, _) => classify(&server, &error),
            other => OpenError::Failed { server, reason: other.to_string() },
        }
    })?;
    Ok((connection, applied))
}

pub(crate) fn classify(server: &Server, error: &sqlx::Error) -> OpenError {
    let (server, reason) = (server.clone(), error.to_string());
    let code = match error {
        sqlx::Error::Database(database) => database.code(),
        sqlx::Error::Io(_) | sqlx::Error::Tls(_) => return OpenError::Unreachable { server, reason },
        _ => None,
    };
    // PgBouncer refuses settings that it would not pass on.
    if reason.contains("unsupported startup parameter") || reason.contains("unsupported options startup parameter") {
        return OpenError::Pooler { server, reason };
    }
    match code.as_deref() {
        Some("28P01" | "28000") => OpenError::Refused { server, reason },
        Some("3D000") => OpenError::NoDatabase { server },
        Some("42501") => OpenError::NotAllowed { server, reason },
        _ => match errors::store_error(error) {
            StoreError::CannotWrite { obstacle, reason } => OpenError::CannotWrite { server, obstacle, reason },
            // The server exists but cannot be used now: it starts, stops, or has too many connections.
            StoreError::Unavailable(reason) => OpenError::Unreachable { server, reason },
            error @ (StoreError::Sealed(_) | StoreError::Failed(_)) => {
                OpenError::Failed { server, reason: error.to_string() }
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::database::Database;

    async fn settings(options: &PgConnectOptions) -> [String; 5] {
        let mut connection = options.connect().await.unwrap();
        let names =
            ["synchronous_commit", "enable_seqscan", "plan_cache_mode", "statement_timeout", "application_name"];
        let shown = "SELECT array_agg(current_setting(name) ORDER BY position)
            FROM unnest($1) WITH ORDINALITY AS r (name, position)";
        let shown: Vec<String> = sqlx::query_scalar(shown).bind(names).fetch_one(&mut connection).await.unwrap();
        shown.try_into().unwrap()
    }

    #[tokio::test]
    async fn acknowledged_writes_wait_for_the_disk_and_recoverable_writes_do_not() {
        let database = Database::create().await;
        let options = options(&database.url()).unwrap();
        assert_eq!(settings(&options).await, ["on", "off", "force_generic_plan", "30s", "weir"]);
        assert_eq!(settings(&recoverable(&options)).await, ["off", "off", "force_generic_plan", "30s", "weir"]);
    }

    #[tokio::test]
    async fn settings_of_the_url_do_not_override_those_of_the_store() {
        let database = Database::create().await;
        let url = format!(
            "{}?application_name=billing&options=-c%20synchronous_commit%3Doff%20-c%20enable_seqscan%3Don",
            database.url()
        );
        let options = options(&url).unwrap();
        assert_eq!(settings(&options).await, ["on", "off", "force_generic_plan", "30s", "billing"]);
    }

    #[test]
    fn an_ipv6_address_is_looked_up_without_its_brackets_and_shown_with_them() {
        let options = options("postgres://weir@[fd00::1]:5433/weir").unwrap();
        assert_eq!(options.get_host(), "fd00::1");
        assert_eq!(server(&options).to_string(), "[fd00::1]:5433");
    }
}
