//! Errors of the configuration. Every message names the setting, its source, and the remedy.

use std::{fmt, net::SocketAddr, path::PathBuf};

use super::names::{flag, variable};

/// The source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment,
    File(PathBuf),
    /// A file that holds the value alone, and what names it, such as `WEIR_API_KEYS_FILE`.
    SecretFile {
        path: PathBuf,
        named_by: String,
    },
    Default,
}

/// A setting and the source of its value, shown as it is written in that source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SettingSource {
    pub(super) name: &'static str,
    pub(super) origin: Origin,
}

impl fmt::Display for SettingSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.name;
        match &self.origin {
            Origin::Flag => f.write_str(&flag(name)),
            Origin::Environment => write!(f, "{} in the environment", variable(name)),
            Origin::File(path) => write!(f, "`{name}` in {}", path.display()),
            Origin::SecretFile { path, named_by } => write!(f, "{} ({named_by})", path.display()),
            Origin::Default => write!(f, "`{name}` by default"),
        }
    }
}

/// Why Weir does not start.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{setting}: {problem}")]
    Invalid { setting: SettingSource, problem: String },

    #[error("{name} is not a setting of Weir{}; unset it, or use one of {known}", did_you_mean(.nearest))]
    UnknownVariable { name: String, nearest: Option<String>, known: String },

    #[error("`{name}` in {} is not a setting of Weir{}; remove it, or use one of {known}", .path.display(), did_you_mean(.nearest))]
    UnknownKey { name: String, path: PathBuf, nearest: Option<String>, known: String },

    #[error("cannot read the configuration file {}: {reason}; set another file with --config or WEIR_CONFIG", .path.display())]
    Unreadable { path: PathBuf, reason: String },

    #[error("the configuration file {} is not valid TOML: {reason}", .path.display())]
    NotToml { path: PathBuf, reason: String },

    #[error(
        "{setting}: other machines can reach {listen}, and no API key is set, so anyone could send events; set WEIR_API_KEYS (or --api-keys), or listen on 127.0.0.1"
    )]
    OpenToAll { setting: SettingSource, listen: SocketAddr },

    #[error(
        "{setting}: other machines can reach {listen}, and a key of fewer than {least} characters can be guessed; use longer ones, for example from `openssl rand -hex 32`, or listen on 127.0.0.1"
    )]
    ShortKey { setting: SettingSource, listen: SocketAddr, least: usize },

    #[error(
        "`weir {role}` runs one role and shares PostgreSQL and Redis with other processes: set WEIR_DATABASE_URL=postgres://… and WEIR_REDIS_URL=redis://… (or --database-url and --redis-url), or use `weir serve`, which runs all roles in one process"
    )]
    RoleAlone { role: &'static str },

    #[error(
        "redis_url is set, but database_url is a SQLite file, which only one process can use: set WEIR_DATABASE_URL=postgres://…, or unset WEIR_REDIS_URL to keep the queue in the process"
    )]
    RedisAlone,

    #[error(
        "database_url is PostgreSQL, which several processes may share, but redis_url is not set, and without Redis they cannot keep a common rate limit: set WEIR_REDIS_URL=redis://…, or use a SQLite file"
    )]
    PostgresAlone,
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(" (did you mean {name}?)")).unwrap_or_default()
}
