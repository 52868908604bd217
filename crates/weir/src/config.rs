//! The configuration, parsed once into [`Settings`]. Flags override the environment, the environment overrides
//! `weir.toml`, and the file overrides the defaults.
//!
//! An unknown key or variable is refused by name: a misspelled limit or API key that is silently ignored is worse than
//! a server that does not start.

mod error;
mod key;
mod parse;
mod sources;

use std::{ffi::OsString, fmt, net::SocketAddr, ops::RangeInclusive, path::PathBuf, time::Duration};

use ipnet::IpNet;
use url::Host;
use weir_api::PublicUrl;
use weir_core::retention::Retention;
use weir_store::DestinationLimits;

pub(crate) use error::ConfigError;
pub(crate) use key::{API_KEY_ENV, Key, PROFILE_ENV, URL_ENV, VERIFY_ENV};
pub(crate) use sources::place_and_reason;

use crate::cli::SettingFlags;
use error::SettingSource;
use sources::SourceValues;

const DEFAULT_DATABASE_URL: &str = "sqlite://weir.db";
const DEFAULT_MAX_EVENT_BYTES: &str = "1048576";
const DEFAULT_BODY_BUDGET_BYTES: &str = "268435456";
/// Far more connections than a few dozen producers open; with a buffer of 8 KiB each they need at most 32 MiB.
const DEFAULT_MAX_CONNECTIONS: &str = "4096";
/// Of a tenant and of an event: one event is then one commit of a fraction of a second.
const DEFAULT_MAX_DESTINATIONS: &str = "10000";
const DEFAULT_SHUTDOWN_GRACE_S: &str = "25";
const DEFAULT_RETENTION_DAYS: &str = "14";
/// Accepted instead of a number of attempts or connections.
const AUTO: &str = "auto";
/// Accepted instead of a number of days.
const FOREVER: &str = "forever";

/// The settings of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    /// `None`: metrics are served on `listen`.
    pub(crate) metrics_listen: Option<SocketAddr>,
    pub(crate) database_url: DatabaseUrl,
    /// `None`: the queue is in the process.
    pub(crate) redis_url: Option<ServerUrl>,
    /// Empty: requests need no key, and `listen` is a loopback address.
    pub(crate) api_keys: Vec<ApiKey>,
    /// The hosts that requests may address, besides loopback hosts.
    pub(crate) hosts: Vec<Host<String>>,
    /// Where browsers and producers reach the API; `None`: at its listener, without a path and over http.
    pub(crate) public_url: Option<PublicUrl>,
    /// Whether the API serves the dashboard.
    pub(crate) dashboard: bool,
    /// Whether destinations may have plain http URLs.
    pub(crate) allow_http: bool,
    /// Private networks in which destinations are allowed.
    pub(crate) allow_networks: Vec<IpNet>,
    /// Networks in which destinations are refused, even if another setting allows them.
    pub(crate) deny_networks: Vec<IpNet>,
    /// The allowed ports of destinations; empty: any port.
    pub(crate) allow_ports: Vec<RangeInclusive<u16>>,
    /// A filter that `tracing-subscriber` understands.
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) max_event_bytes: usize,
    /// The bytes of request bodies in memory at one time.
    pub(crate) body_budget_bytes: usize,
    pub(crate) max_connections: usize,
    /// The maximum for one client address; `None`: a quarter of all connections.
    pub(crate) max_connections_per_address: Option<usize>,
    pub(crate) destination_limits: DestinationLimits,
    /// The maximum number of attempts that a worker makes at one time; `None`: as many as the limit of open files
    /// allows.
    pub(crate) worker_capacity: Option<usize>,
    /// How long attempts in flight may take to finish on shutdown.
    pub(crate) shutdown_grace: Duration,
    pub(crate) retention: Retention,
}

/// The database of the store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DatabaseUrl {
    Sqlite(PathBuf),
    Postgres(ServerUrl),
}

/// The URL of a server. It is never shown, because it may hold a password.
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

/// The combination of store and queue: a file and an in-process queue, or servers that any number of processes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Backing {
    Embedded { database: PathBuf },
    Scaled { postgres: ServerUrl, redis: ServerUrl },
}

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// API, scheduler and worker.
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

    /// Roles without the API serve only health and metrics, by default on any free port.
    const fn default_listen(self) -> &'static str {
        if self.serves_api() { "127.0.0.1:8080" } else { "127.0.0.1:0" }
    }
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// An API key. It is never shown.
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
    /// Reads the flags, the environment of this process and the configuration file.
    pub(crate) fn load(flags: &SettingFlags, role: Role) -> Result<Self, ConfigError> {
        Self::load_from(flags, role, std::env::vars_os())
    }

    /// The address on which a process with these settings answers health checks. Other settings are not read, because
    /// this process does not start a role. Without settings this is the default address of the API.
    pub(crate) fn health_listen(flags: &SettingFlags) -> Result<SocketAddr, ConfigError> {
        Self::health_listen_of(&SourceValues::read(flags, std::env::vars_os())?)
    }

    fn health_listen_of(values: &SourceValues) -> Result<SocketAddr, ConfigError> {
        let metrics_listen = parse_setting(values, Key::MetricsListen, "", parse::optional_listen)?;
        let listen = || parse_setting(values, Key::Listen, Role::Serve.default_listen(), parse::listen);
        metrics_listen.map_or_else(listen, Ok)
    }

    fn load_from(
        flags: &SettingFlags,
        role: Role,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        Self::from_sources(&SourceValues::read(flags, environment)?, role)
    }

    fn from_sources(values: &SourceValues, role: Role) -> Result<Self, ConfigError> {
        // Each value comes from its strongest source, or is the default. The first invalid value ends the reading.
        let settings = Self {
            listen: parse_setting(values, Key::Listen, role.default_listen(), parse::listen)?,
            metrics_listen: parse_setting(values, Key::MetricsListen, "", parse::optional_listen)?,
            database_url: parse_setting(values, Key::DatabaseUrl, DEFAULT_DATABASE_URL, parse::database_url)?,
            redis_url: parse_setting(values, Key::RedisUrl, "", parse::redis_url)?,
            api_keys: parse_setting(values, Key::ApiKeys, "", parse::api_keys)?,
            hosts: parse_setting(values, Key::Hosts, "", parse::hosts)?,
            public_url: parse_setting(values, Key::PublicUrl, "", parse::public_url)?,
            dashboard: parse_setting(values, Key::Dashboard, "on", parse::on_or_off)?,
            allow_http: parse_setting(values, Key::AllowHttp, "false", parse::boolean)?,
            allow_networks: parse_setting(values, Key::AllowNetworks, "", parse::networks)?,
            deny_networks: parse_setting(values, Key::DenyNetworks, "", parse::networks)?,
            allow_ports: parse_setting(values, Key::AllowPorts, "", parse::ports)?,
            log: parse_setting(values, Key::Log, "info", parse::log)?,
            log_format: parse_setting(values, Key::LogFormat, "text", parse::log_format)?,
            max_event_bytes: parse_setting(values, Key::MaxEventBytes, DEFAULT_MAX_EVENT_BYTES, |text| {
                parse::number(text, 1_024, 64 * 1_024 * 1_024)
            })?,
            body_budget_bytes: parse_setting(values, Key::BodyBudgetBytes, DEFAULT_BODY_BUDGET_BYTES, |text| {
                parse::number(text, 1_024 * 1_024, 64 * 1_024 * 1_024 * 1_024)
            })?,
            max_connections: parse_setting(values, Key::MaxConnections, DEFAULT_MAX_CONNECTIONS, |text| {
                parse::number(text, 1, 1_000_000)
            })?,
            max_connections_per_address: parse_setting(
                values,
                Key::MaxConnectionsPerAddress,
                AUTO,
                parse::connections_per_address,
            )?,
            destination_limits: DestinationLimits {
                of_tenant: parse_setting(values, Key::MaxDestinations, DEFAULT_MAX_DESTINATIONS, parse::destinations)?,
                of_event: parse_setting(
                    values,
                    Key::MaxDestinationsPerEvent,
                    DEFAULT_MAX_DESTINATIONS,
                    parse::destinations,
                )?,
            },
            worker_capacity: parse_setting(values, Key::WorkerCapacity, AUTO, parse::capacity)?,
            shutdown_grace: parse_setting(values, Key::ShutdownGraceS, DEFAULT_SHUTDOWN_GRACE_S, |text| {
                parse::number(text, 0, 3_600).map(Duration::from_secs)
            })?,
            retention: Retention {
                delivered: parse_setting(values, Key::RetentionDeliveredDays, DEFAULT_RETENTION_DAYS, parse::days)?,
                cancelled: parse_setting(values, Key::RetentionCancelledDays, DEFAULT_RETENTION_DAYS, parse::days)?,
                dead: parse_setting(values, Key::RetentionDeadDays, FOREVER, parse::days)?,
            },
        };
        // It may be a misspelled `WEIR_API_KEYS`, without which the API would be open.
        if role.serves_api() && settings.api_keys.is_empty() && values.has_client_key {
            let nearest = Some(Key::ApiKeys.env());
            return Err(ConfigError::UnknownVariable { name: API_KEY_ENV.to_owned(), nearest });
        }
        // Without keys everyone who can connect can use the API, so it may listen only on loopback.
        if role.serves_api() && settings.api_keys.is_empty() && !settings.listen.ip().to_canonical().is_loopback() {
            let (setting, _) = values.get(Key::Listen, role.default_listen());
            return Err(ConfigError::OpenToAll { setting, listen: settings.listen });
        }
        Ok(settings)
    }

    /// The store and queue for the role. A process with a single role shares both with other processes.
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

fn parse_setting<T>(
    values: &SourceValues,
    key: Key,
    default: &str,
    parse: impl FnOnce(&str) -> Result<T, String>,
) -> Result<T, ConfigError> {
    let (setting, text): (SettingSource, String) = values.get(key, default);
    parse(&text).map_err(|problem| ConfigError::Invalid { setting, problem })
}

#[cfg(test)]
mod tests;
