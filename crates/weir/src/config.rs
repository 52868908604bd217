//! The configuration, parsed once into [`Settings`]. Flags override the environment, the environment overrides
//! `weir.toml`, and the file overrides the defaults.
//!
//! An unknown key or variable is refused by name: a misspelled limit or API key that is silently ignored is worse than
//! a server that does not start.

mod check;
mod error;
mod flags;
mod names;
mod parse;
#[cfg(test)]
mod reference;
mod servers;
mod settings;
mod sources;
mod values;

use std::{ffi::OsString, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use weir_cli::commands::connection::API_KEY_ENV;
use weir_core::{address::AddressPolicy, retention::Retention};
use weir_sealing::Keyring;
use weir_store::DestinationLimits;

pub(crate) use check::Checked;
pub(crate) use error::ConfigError;
pub(crate) use flags::SettingFlags;
pub(crate) use names::VERIFY_ENV;
pub(crate) use servers::{DatabaseServer, RedisServer, TlsFiles};
pub(crate) use settings::Settings;

use names::variable;
use sources::unknown_variable;
use values::SourceValues;

/// Nobody guesses a key of this length: 16 random letters and digits are 95 bits.
const MIN_KEY_CHARS: usize = 16;

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

/// A password. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Password(String);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password(…)")
    }
}

/// The combination of store and queue: a file and an in-process queue, or servers that any number of processes share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Backing {
    Embedded { database: PathBuf },
    Scaled { postgres: Box<DatabaseServer>, redis: Box<RedisServer> },
}

/// The role of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum ProcessRole {
    /// API, scheduler and worker.
    Serve,
    Api,
    Scheduler,
    Worker,
}

impl ProcessRole {
    pub(crate) fn name(self) -> &'static str {
        self.into()
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
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::EnumString)]
#[strum(serialize_all = "lowercase")]
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
    pub(crate) fn load(flags: &SettingFlags, role: ProcessRole) -> Result<Self, ConfigError> {
        Self::load_from(flags, role, std::env::vars_os())
    }

    /// The settings of a process that reads no flags, environment or file.
    pub(crate) fn defaults() -> Result<Self, ConfigError> {
        Self::from_sources(SourceValues::default(), ProcessRole::Serve)
    }

    /// The format of the log, also if other settings are wrong.
    pub(crate) fn log_format(flags: &SettingFlags, role: ProcessRole) -> LogFormat {
        let (values, _) = SourceValues::read_all(flags, std::env::vars_os());
        values.or_defaults(role).parse("log_format", parse::log_format).unwrap_or(LogFormat::Text)
    }

    /// The address on which a process with these settings answers health checks. Other settings are not read, because
    /// this process does not start a role. Without settings this is the default address of the API.
    pub(crate) fn health_listen(flags: &SettingFlags) -> Result<SocketAddr, ConfigError> {
        Self::health_listen_of(SourceValues::read(flags, std::env::vars_os())?)
    }

    fn health_listen_of(values: SourceValues) -> Result<SocketAddr, ConfigError> {
        let values = values.or_defaults(ProcessRole::Serve);
        let metrics_listen = values.parse("metrics_listen", parse::optional_listen)?;
        metrics_listen.map_or_else(|| values.parse("listen", parse::listen), Ok)
    }

    fn load_from(
        flags: &SettingFlags,
        role: ProcessRole,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        Self::from_sources(SourceValues::read(flags, environment)?, role)
    }

    fn from_sources(values: SourceValues, role: ProcessRole) -> Result<Self, ConfigError> {
        let values = values.or_defaults(role);
        let settings = Self::parse(&values)?;
        let faults = servers::unfit(&settings, &values).into_iter().chain(settings.exposure(&values, role));
        faults.into_iter().next().map_or(Ok(settings), Err)
    }

    /// Why the API of these settings would be open to those who must not use it.
    fn exposure(&self, values: &SourceValues, role: ProcessRole) -> Option<ConfigError> {
        // It may be a misspelled `WEIR_API_KEYS`, without which the API would be open.
        if role.serves_api() && self.api_keys.is_empty() && values.has_client_key {
            return Some(unknown_variable(API_KEY_ENV, Some(variable("api_keys"))));
        }
        // Without keys everyone who can connect can use the API, so it may listen only on loopback.
        let listen = self.listen;
        let is_open = role.serves_api() && !listen.ip().to_canonical().is_loopback();
        if is_open && self.api_keys.is_empty() {
            return Some(ConfigError::OpenToAll { setting: values.source("listen"), listen });
        }
        // No throttle makes a short key safe: whoever has many addresses can try as many keys.
        if is_open && self.api_keys.iter().any(|key| key.0.len() < MIN_KEY_CHARS) {
            return Some(ConfigError::ShortKey { setting: values.source("api_keys"), listen, least: MIN_KEY_CHARS });
        }
        None
    }

    /// What an operator should know of these settings.
    pub(crate) fn warnings(&self, role: ProcessRole) -> Vec<String> {
        let is_open = role.serves_api() && !self.listen.ip().to_canonical().is_loopback();
        if is_open && self.keyring().first_id().is_none() {
            return vec![
                "other machines can use the API, and the secrets of destinations are in the database in clear: set \
                 WEIR_ENCRYPTION_KEYS"
                    .to_owned(),
            ];
        }
        Vec::new()
    }

    /// The keys of sealed rows.
    pub(crate) fn keyring(&self) -> Keyring {
        self.encryption_keys.clone().sealing_payloads(self.encrypt_bodies)
    }

    pub(crate) fn addresses(&self) -> AddressPolicy {
        AddressPolicy {
            allow_http: self.allow_http,
            allow_networks: self.allow_networks.clone(),
            deny_networks: self.deny_networks.clone(),
            allow_ports: self.allow_ports.clone(),
            allow_proxies: self.egress_allow.clone(),
        }
    }

    pub(crate) fn destination_limits(&self) -> DestinationLimits {
        DestinationLimits { of_tenant: self.max_destinations, of_event: self.max_destinations_per_event }
    }

    /// How long attempts in flight may take to finish on shutdown.
    pub(crate) fn shutdown_grace(&self) -> Duration {
        Duration::from_secs(self.shutdown_grace_s)
    }

    pub(crate) fn retention(&self) -> Retention {
        let time = |days: Option<u64>| days.map(|days| Duration::from_secs(days * 86_400));
        Retention {
            delivered: time(self.retention_delivered_days),
            cancelled: time(self.retention_cancelled_days),
            dead: time(self.retention_dead_days),
        }
    }

    /// The store and queue for the role. A process with a single role shares both with other processes.
    pub(crate) fn backing(&self, role: ProcessRole) -> Result<Backing, ConfigError> {
        match (&self.database_url, &self.redis_url) {
            (DatabaseUrl::Postgres(postgres), Some(redis)) => {
                let postgres = Box::new(DatabaseServer::of(self, postgres));
                Ok(Backing::Scaled { postgres, redis: Box::new(RedisServer::of(self, redis)) })
            }
            (DatabaseUrl::Sqlite(database), None) if role == ProcessRole::Serve => {
                Ok(Backing::Embedded { database: database.clone() })
            }
            (DatabaseUrl::Sqlite(_), None) => Err(ConfigError::RoleAlone { role: role.name() }),
            (DatabaseUrl::Sqlite(_), Some(_)) => Err(ConfigError::RedisAlone),
            (DatabaseUrl::Postgres(_), None) => Err(ConfigError::PostgresAlone),
        }
    }
}

#[cfg(test)]
mod tests;
