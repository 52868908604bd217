//! The configuration: flags over environment over `weir.toml` over defaults, parsed once into [`Settings`].
//!
//! Nothing is guessed: an unknown key or variable is refused by name, since a limit or a key that is silently not in force
//! is worse than a server that does not start.

mod error;
mod key;
mod parse;
mod sources;

use std::{ffi::OsString, fmt, net::SocketAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;

pub(crate) use error::ConfigError;
pub(crate) use key::Key;

use crate::cli::SettingFlags;
use error::Named;
use sources::Given;

const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
const DEFAULT_DATABASE_URL: &str = "sqlite://weir.db";
const DEFAULT_MAX_EVENT_BYTES: &str = "1048576";
const DEFAULT_SHUTDOWN_GRACE_S: &str = "25";

/// Everything a person can choose of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) listen: SocketAddr,
    pub(crate) database_url: DatabaseUrl,
    /// Empty: everyone may ask, and `listen` is a loopback address.
    pub(crate) api_keys: Vec<ApiKey>,
    /// Whether destinations may have plain http URLs.
    pub(crate) allow_http: bool,
    /// Networks that destinations may be in although they are private.
    pub(crate) allow_networks: Vec<IpNet>,
    /// A filter that `tracing-subscriber` understands.
    pub(crate) log: String,
    pub(crate) log_format: LogFormat,
    pub(crate) max_event_bytes: usize,
    /// How long what is in flight may take to finish on shutdown.
    pub(crate) shutdown_grace: Duration,
}

/// Where the records are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DatabaseUrl {
    Sqlite(PathBuf),
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
    pub(crate) fn load(flags: &SettingFlags) -> Result<Self, ConfigError> {
        Self::load_from(flags, std::env::vars_os())
    }

    fn load_from(
        flags: &SettingFlags,
        environment: impl Iterator<Item = (OsString, OsString)>,
    ) -> Result<Self, ConfigError> {
        Self::from_given(&Given::read(flags, environment)?)
    }

    fn from_given(given: &Given) -> Result<Self, ConfigError> {
        if let Some((named, text)) = given.find(Key::RedisUrl) {
            return Err(ConfigError::Invalid { named, problem: parse::redis_url(&text) });
        }
        let settings = Self {
            listen: typed(given, Key::Listen, DEFAULT_LISTEN, parse::listen)?,
            database_url: typed(given, Key::DatabaseUrl, DEFAULT_DATABASE_URL, parse::database_url)?,
            api_keys: typed(given, Key::ApiKeys, "", parse::api_keys)?,
            allow_http: typed(given, Key::AllowHttp, "false", parse::truth)?,
            allow_networks: typed(given, Key::AllowNetworks, "", parse::allow_networks)?,
            log: typed(given, Key::Log, "info", parse::log)?,
            log_format: typed(given, Key::LogFormat, "text", parse::log_format)?,
            max_event_bytes: typed(given, Key::MaxEventBytes, DEFAULT_MAX_EVENT_BYTES, |text| {
                parse::number(text, 1_024, 64 * 1_024 * 1_024)
            })?,
            shutdown_grace: typed(given, Key::ShutdownGraceS, DEFAULT_SHUTDOWN_GRACE_S, |text| {
                parse::number(text, 0, 3_600).map(Duration::from_secs)
            })?,
        };
        if settings.api_keys.is_empty() && !settings.listen.ip().to_canonical().is_loopback() {
            let (named, _) = given.get(Key::Listen, DEFAULT_LISTEN);
            return Err(ConfigError::OpenToAll { named, listen: settings.listen });
        }
        Ok(settings)
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
