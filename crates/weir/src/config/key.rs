//! The names of the settings. The key, the variable and the flag follow from one name: `listen` in `weir.toml`,
//! `WEIR_LISTEN`, `--listen`.

/// The prefix of Weir's environment variables.
pub(crate) const ENV_PREFIX: &str = "WEIR_";
/// The path of the configuration file. This variable has no key in the file.
pub(crate) const CONFIG_ENV: &str = "WEIR_CONFIG";
/// The secret for `weir verify`. It is no setting of a server, and a server ignores it.
pub(crate) const VERIFY_ENV: &str = "WEIR_VERIFY_SECRET";
/// The server, the key and the profile of the commands that call a server. They are no settings of a server, and a
/// server ignores them.
pub(crate) const URL_ENV: &str = "WEIR_URL";
pub(crate) const API_KEY_ENV: &str = "WEIR_API_KEY";
pub(crate) const PROFILE_ENV: &str = "WEIR_PROFILE";
pub(crate) const CLIENT_ENV: [&str; 3] = [URL_ENV, API_KEY_ENV, PROFILE_ENV];

/// A setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Key {
    Listen,
    MetricsListen,
    DatabaseUrl,
    RedisUrl,
    RedisPrefix,
    ApiKeys,
    Hosts,
    PublicUrl,
    TrustedProxies,
    Dashboard,
    AllowHttp,
    AllowNetworks,
    DenyNetworks,
    AllowPorts,
    Log,
    LogFormat,
    MaxEventBytes,
    BodyBudgetBytes,
    MaxConnections,
    MaxConnectionsPerAddress,
    MaxDestinations,
    MaxDestinationsPerEvent,
    WorkerCapacity,
    ShutdownGraceS,
    RetentionDeliveredDays,
    RetentionCancelledDays,
    RetentionDeadDays,
}

impl Key {
    pub(crate) const ALL: [Self; 27] = [
        Self::Listen,
        Self::MetricsListen,
        Self::DatabaseUrl,
        Self::RedisUrl,
        Self::RedisPrefix,
        Self::ApiKeys,
        Self::Hosts,
        Self::PublicUrl,
        Self::TrustedProxies,
        Self::Dashboard,
        Self::AllowHttp,
        Self::AllowNetworks,
        Self::DenyNetworks,
        Self::AllowPorts,
        Self::Log,
        Self::LogFormat,
        Self::MaxEventBytes,
        Self::BodyBudgetBytes,
        Self::MaxConnections,
        Self::MaxConnectionsPerAddress,
        Self::MaxDestinations,
        Self::MaxDestinationsPerEvent,
        Self::WorkerCapacity,
        Self::ShutdownGraceS,
        Self::RetentionDeliveredDays,
        Self::RetentionCancelledDays,
        Self::RetentionDeadDays,
    ];

    /// The name in `weir.toml`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Listen => "listen",
            Self::MetricsListen => "metrics_listen",
            Self::DatabaseUrl => "database_url",
            Self::RedisUrl => "redis_url",
            Self::RedisPrefix => "redis_prefix",
            Self::ApiKeys => "api_keys",
            Self::Hosts => "hosts",
            Self::PublicUrl => "public_url",
            Self::TrustedProxies => "trusted_proxies",
            Self::Dashboard => "dashboard",
            Self::AllowHttp => "allow_http",
            Self::AllowNetworks => "allow_networks",
            Self::DenyNetworks => "deny_networks",
            Self::AllowPorts => "allow_ports",
            Self::Log => "log",
            Self::LogFormat => "log_format",
            Self::MaxEventBytes => "max_event_bytes",
            Self::BodyBudgetBytes => "body_budget_bytes",
            Self::MaxConnections => "max_connections",
            Self::MaxConnectionsPerAddress => "max_connections_per_address",
            Self::MaxDestinations => "max_destinations",
            Self::MaxDestinationsPerEvent => "max_destinations_per_event",
            Self::WorkerCapacity => "worker_capacity",
            Self::ShutdownGraceS => "shutdown_grace_s",
            Self::RetentionDeliveredDays => "retention_delivered_days",
            Self::RetentionCancelledDays => "retention_cancelled_days",
            Self::RetentionDeadDays => "retention_dead_days",
        }
    }

    /// The name of the environment variable.
    pub(crate) fn env(self) -> String {
        format!("{ENV_PREFIX}{}", self.name().to_ascii_uppercase())
    }

    /// The name of the flag.
    pub(crate) fn flag(self) -> String {
        format!("--{}", self.name().replace('_', "-"))
    }

    pub(crate) fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.name() == name)
    }

    pub(crate) fn of_env(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|key| key.env() == name)
    }
}

/// The known name that is most similar to `unknown`, if any is similar.
pub(crate) fn nearest(unknown: &str, known: impl Iterator<Item = String>) -> Option<String> {
    let unknown = unknown.to_ascii_lowercase();
    let distances = known.map(|name| (distance(&unknown, &name.to_ascii_lowercase()), name));
    distances.filter(|(distance, _)| *distance <= 3).min().map(|(_, name)| name)
}

/// The number of letters to insert, delete or change to turn one word into the other (Levenshtein distance).
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (n, letter) in from.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = n + 1;
        for column in 1..=to.len() {
            let changed = diagonal + usize::from(letter != to[column - 1]);
            diagonal = row[column];
            row[column] = changed.min(diagonal + 1).min(row[column - 1] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_variable_and_flag_follow_from_one_name() {
        assert_eq!(Key::DatabaseUrl.env(), "WEIR_DATABASE_URL");
        assert_eq!(Key::DatabaseUrl.flag(), "--database-url");
        for key in Key::ALL {
            assert_eq!(Key::of_name(key.name()), Some(key));
            assert_eq!(Key::of_env(&key.env()), Some(key));
        }
    }

    #[test]
    fn a_misspelled_name_finds_the_nearest_and_nonsense_finds_none() {
        let known = || Key::ALL.into_iter().map(Key::env);
        assert_eq!(nearest("WEIR_LISTN", known()).as_deref(), Some("WEIR_LISTEN"));
        assert_eq!(nearest("WEIR_API_KEY", known()).as_deref(), Some("WEIR_API_KEYS"));
        assert_eq!(nearest("WEIR_SOMETHING_ELSE", known()), None);
    }
}
