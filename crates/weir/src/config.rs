//! The configuration: flags over environment over `weir.toml` over defaults, parsed once into [`Settings`].
//!
//! Nothing is guessed: an unknown key or variable is refused by name, since a limit or a key that is silently not in force
//! is worse than a server that does not start.

mod error;
mod key;
mod parse;
mod sources;

use std::{ffi::OsString, fmt, net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use ipnet::IpNet;
use url::Host;
use weir_core::retention::Retention;

pub(crate) use error::ConfigError;
pub(crate) use key::{Key, VERIFY_ENV};

use crate::cli::SettingFlags;
use error::Named;
use sources::Given;

const DEFAULT_DATABASE_URL: &str = "sqlite://weir.db";
const DEFAULT_MAX_EVENT_BYTES: &str = "1048576";
const DEFAULT_BODY_BUDGET_BYTES: &str = "268435456";
/// Many times the pools of a few dozen producers, and with a buffer of 8 KiB each no more than 32 MiB.
const DEFAULT_MAX_CONNECTIONS: &str = "4096";
const DEFAULT_SHUTDOWN_GRACE_S: &str = "25";
const DEFAULT_RETENTION_DAYS: &str = "14";
/// Instead of a number of attempts.
const AUTO: &str = "auto";
/// Instead of a number of days.
const FOREVER: &str = "forever";

/// Everything a person can choose of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    /// `None`: metrics are served where everything else is.
    pub(crate) metrics_listen: Option<SocketAddr>,
    pub(crate) database_url: DatabaseUrl,
    /// `None`: the queue is in the process.
    pub(crate) redis_url: Option<ServerUrl>,
    /// Empty: everyone may ask, and `listen` is a loopback address.
    pub(crate) api_keys: Vec<ApiKey>,
    /// The hosts that requests may name besides loopback ones.
    pub(crate) hosts: Vec<Host<String>>,
    /// Whether destinations may have plain http URLs.
    pub(crate) allow_http: bool,
    /// Networks that destinations may be in although they are private.
    pub(crate) allow_networks: Vec<IpNet>,
    /// Networks that destinations may not be in, whatever else allows it.
    pub(crate) deny_networks: Vec<IpNet>,
    /// The ports that destinations may have; empty: any.
    pub(crate) allow_ports: Vec<RangeInclusive<u16>>,
    /// A filter that `tracing-subscriber` understands.
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) max_event_bytes: usize,
    /// The request bodies in memory at one time.
    pub(crate) body_budget_bytes: usize,
    pub(crate) max_connections: usize,
    /// How many attempts a worker makes at one time; `None`: as the limit of open files allows.
    pub(crate) worker_capacity: Option<usize>,
    /// How long what is in flight may take to finish on shutdown.
    pub(crate) shutdown_grace: Duration,
    pub(crate) retention: Retention,
}

/// Where the records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DatabaseUrl {
    Sqlite(PathBuf),
    Postgres(ServerUrl),
}

/// The URL of a server. Never shown: it may hold a password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerUrl(String);

impl AsRef<str> for ServerUrl {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ServerUrl(…)")
    }
}

/// The store and the queue that go together: one file and one process, or servers that any number of processes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Backing {
    Embedded { database: PathBuf },
    Scaled { postgres: ServerUrl, redis: ServerUrl },
}

/// What a process does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// Everything.
    Serve,
    Api,
    Scheduler,
    Worker,
}

impl Role {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Serve => "serve",
            Self::Api => "api",
            Self::Scheduler => "scheduler",
            Self::Worker => "worker",
        }
    }

    pub(crate) const fn serves_api(self) -> bool {
        matches!(self, Self::Serve | Self::Api)
    }

    pub(crate) const fn schedules(self) -> bool {
        matches!(self, Self::Serve | Self::Scheduler)
    }

    pub(crate) const fn works(self) -> bool {
        matches!(self, Self::Serve | Self::Worker)
    }

    /// The others serve their health and metrics only, on any free port unless told which.
    const fn default_listen(self) -> &'static str {
        if self.serves_api() { "127.0.0.1:8080" } else { "127.0.0.1:0" }
    }
}

/// How log lines are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// A key that opens the API. Never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ApiKey(String);

impl AsRef<str> for ApiKey {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApiKey(…)")
    }
}

impl Settings {
    /// Reads flags, this process's environment and the configuration file.
    pub(crate) fn load(flags: &SettingFlags, role: Role) -> Result<Self, ConfigError> {
        Self::load_from(flags, role, std::env::vars_os())
    }

    fn load_from(
        flags: &SettingFlags,
        role: Role,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        Self::from_given(&Given::read(flags, environment)?, role)
    }

    fn from_given(given: &Given, role: Role) -> Result<Self, ConfigError> {
        let settings = Self {
            listen: typed(given, Key::Listen, role.default_listen(), parse::listen)?,
            metrics_listen: typed(given, Key::MetricsListen, "", parse::optional_listen)?,
            database_url: typed(given, Key::DatabaseUrl, DEFAULT_DATABASE_URL, parse::database_url)?,
            redis_url: typed(given, Key::RedisUrl, "", parse::redis_url)?,
            api_keys: typed(given, Key::ApiKeys, "", parse::api_keys)?,
            hosts: typed(given, Key::Hosts, "", parse::hosts)?,
            allow_http: typed(given, Key::AllowHttp, "false", parse::truth)?,
            allow_networks: typed(given, Key::AllowNetworks, "", parse::networks)?,
            deny_networks: typed(given, Key::DenyNetworks, "", parse::networks)?,
            allow_ports: typed(given, Key::AllowPorts, "", parse::ports)?,
            log: typed(given, Key::Log, "info", parse::log)?,
            log_format: typed(given, Key::LogFormat, "text", parse::log_format)?,
            max_event_bytes: typed(given, Key::MaxEventBytes, DEFAULT_MAX_EVENT_BYTES, |text| {
                parse::number(text, 1_024, 64 * 1_024 * 1_024)
            })?,
            body_budget_bytes: typed(given, Key::BodyBudgetBytes, DEFAULT_BODY_BUDGET_BYTES, |text| {
                parse::number(text, 1_024 * 1_024, 64 * 1_024 * 1_024 * 1_024)
            })?,
            max_connections: typed(given, Key::MaxConnections, DEFAULT_MAX_CONNECTIONS, |text| {
                parse::number(text, 1, 1_000_000)
            })?,
            worker_capacity: typed(given, Key::WorkerCapacity, AUTO, parse::capacity)?,
            shutdown_grace: typed(given, Key::ShutdownGraceS, DEFAULT_SHUTDOWN_GRACE_S, |text| {
                parse::number(text, 0, 3_600).map(Duration::from_secs)
            })?,
            retention: Retention {
                delivered: typed(given, Key::RetentionDeliveredDays, DEFAULT_RETENTION_DAYS, parse::days)?,
                cancelled: typed(given, Key::RetentionCancelledDays, DEFAULT_RETENTION_DAYS, parse::days)?,
                dead: typed(given, Key::RetentionDeadDays, FOREVER, parse::days)?,
            },
        };
        if role.serves_api() && settings.api_keys.is_empty() && !settings.listen.ip().to_canonical().is_loopback() {
            let (named, _) = given.get(Key::Listen, role.default_listen());
            return Err(ConfigError::OpenToAll { named, listen: settings.listen });
        }
        Ok(settings)
    }

    /// Which store and queue the role runs on. A single role shares both with the other processes.
    pub(crate) fn backing(&self, role: Role) -> Result<Backing, ConfigError> {
        match (&self.database_url, &self.redis_url) {
            (DatabaseUrl::Postgres(postgres), Some(redis)) => {
                Ok(Backing::Scaled { postgres: postgres.clone(), redis: redis.clone() })
            }
            (DatabaseUrl::Sqlite(database), None) if role == Role::Serve => {
                Ok(Backing::Embedded { database: database.clone() })
            }
            (DatabaseUrl::Sqlite(_), None) => Err(ConfigError::RoleAlone { role: role.name() }),
            (DatabaseUrl::Sqlite(_), Some(_)) => Err(ConfigError::RedisAlone),
            (DatabaseUrl::Postgres(_), None) => Err(ConfigError::PostgresAlone),
        }
    }
}

fn typed<T>(
    given: &Given,
    key: Key,
    default: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, ConfigError> {
    let (named, text): (Named, String) = given.get(key, default);
    parse(&text).map_err(|problem| ConfigError::Invalid { named, problem })
}

#[cfg(test)]
mod tests;
