//! What can be wrong with a configuration. Every message names the setting, where it came from, and what to do about it.

use std::{fmt, net::SocketAddr, path::PathBuf};

use super::key::Key;

/// Where a value came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Origin {
    Flag,
    Environment,
    File(PathBuf),
    Default,
}

/// A setting and where its value came from, in the words its author used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) key: Key,
    pub(crate) origin: Origin,
}

impl fmt::Display for Named {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.origin {
            Origin::Flag => write!(f, "{}", self.key.flag()),
            Origin::Environment => write!(f, "{} in the environment", self.key.env()),
            Origin::File(path) => write!(f, "`{}` in {}", self.key.name(), path.display()),
            Origin::Default => write!(f, "`{}` by default", self.key.name()),
        }
    }
}

/// Why Weir does not start.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ConfigError {
    #[error("{named}: {problem}")]
    Invalid { named: Named, problem: String },

    #[error("{} is not a setting of Weir{}; unset it, or use one of {}", .name, did_you_mean(.nearest), all_env())]
    UnknownVariable { name: String, nearest: Option<String> },

    #[error("`{}` in {} is not a setting of Weir{}; remove it, or use one of {}", .name, .path.display(), did_you_mean(.nearest), all_names())]
    UnknownKey { name: String, path: PathBuf, nearest: Option<String> },

    #[error("cannot read the configuration file {}: {reason}; name another with --config or WEIR_CONFIG", .path.display())]
    Unreadable { path: PathBuf, reason: String },

    #[error("the configuration file {} is not TOML: {reason}", .path.display())]
    NotToml { path: PathBuf, reason: String },

    #[error(
        "{named}: {listen} can be reached from other machines, and no API key is set, so that anyone could send; set WEIR_API_KEYS (or --api-keys), or listen on 127.0.0.1"
    )]
    OpenToAll { named: Named, listen: SocketAddr },

    #[error(
        "`weir {role}` runs one role of several processes, which share PostgreSQL and Redis: set WEIR_DATABASE_URL=postgres://… and WEIR_REDIS_URL=redis://… (or --database-url and --redis-url), or use `weir serve`, which runs all roles in one process"
    )]
    RoleAlone { role: &'static str },

    #[error(
        "redis_url is set, and database_url is a SQLite file, which one process has for itself: set WEIR_DATABASE_URL=postgres://…, or unset WEIR_REDIS_URL for the queue in the process"
    )]
    RedisAlone,

    #[error(
        "database_url is PostgreSQL, which several processes may share, and redis_url is not set, without which they would not keep one rate: set WEIR_REDIS_URL=redis://…, or use a SQLite file"
    )]
    PostgresAlone,
}

fn did_you_mean(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(" (did you mean {name}?)")).unwrap_or_default()
}

fn all_env() -> String {
    Key::ALL.map(Key::env).join(", ")
}

fn all_names() -> String {
    Key::ALL.map(Key::name).join(", ")
}
