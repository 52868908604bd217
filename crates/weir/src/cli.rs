//! The command line: what can be asked of the program, and how it ends.

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};
use url::Url;

use crate::config::{ConfigError, Key, VERIFY_ENV};

/// Outbound webhooks at exactly the rate the other side can take.
#[derive(Debug, Parser)]
#[command(name = "weir", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 done, 1 the job found a failure, 2 wrong use or configuration.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run everything in one process: API, scheduler, workers
    Serve(SettingFlags),
    /// Show the main job on real HTTP with live progress, and audit it; needs nothing, leaves nothing behind
    Demo(DemoArgs),
    /// Audit a running server: did every destination keep its limits, how well were they used, how long did events take
    Audit(AuditArgs),
    /// Check the signature of a request as it was received: exit code 0 if it is good, 1 if not
    Verify(VerifyArgs),
    /// Bring the database to this version's schema, then stop
    Migrate(SettingFlags),
    /// After restoring a backup, before anything starts: count sends that the backup does not know of as started until now
    Restored(SettingFlags),
    /// Run the API alone, beside other processes (needs PostgreSQL and Redis)
    Api(SettingFlags),
    /// Run a scheduler alone, beside other processes (needs PostgreSQL and Redis)
    Scheduler(SettingFlags),
    /// Run a worker alone, beside other processes (needs PostgreSQL and Redis)
    Worker(SettingFlags),
}

/// The settings as flags; each wins over its environment variable, which wins over the file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SettingFlags {
    /// Read this configuration file [env: WEIR_CONFIG] [default: weir.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Listen here; without API keys the API accepts only a loopback address [env: WEIR_LISTEN] [default: 127.0.0.1:8080;
    /// for a scheduler or worker, which serve health and metrics, any free port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Serve the metrics here, and no longer where the API is; health too [env: WEIR_METRICS_LISTEN] [default: with everything else]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_listen: Option<String>,
    /// Keep the records here: sqlite://FILE or postgres://… [env: WEIR_DATABASE_URL] [default: sqlite://weir.db]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Keep the queue in Redis, or in the Cluster of these nodes [env: WEIR_REDIS_URL] [default: in the process]
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
    /// Ask every client for one of these keys; the environment hides them better [env: WEIR_API_KEYS]
    #[arg(long, value_name = "KEY,…")]
    api_keys: Option<String>,
    /// Answer requests that name these hosts, besides loopback ones [env: WEIR_HOSTS]
    #[arg(long, value_name = "HOST,…")]
    hosts: Option<String>,
    /// Accept destinations with plain http URLs [env: WEIR_ALLOW_HTTP] [default: false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_http: Option<String>,
    /// Accept destinations in these networks, although they are private [env: WEIR_ALLOW_NETWORKS]
    #[arg(long, value_name = "CIDR,…")]
    allow_networks: Option<String>,
    /// Refuse destinations in these networks, public or allowed ones too [env: WEIR_DENY_NETWORKS]
    #[arg(long, value_name = "CIDR,…")]
    deny_networks: Option<String>,
    /// Accept destinations on these ports only [env: WEIR_ALLOW_PORTS] [default: any]
    #[arg(long, value_name = "PORT|FROM-TO,…")]
    allow_ports: Option<String>,
    /// Log what this filter lets through, such as info,weir_worker=debug [env: WEIR_LOG] [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Write log lines as text or json [env: WEIR_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Refuse events larger than this [env: WEIR_MAX_EVENT_BYTES] [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    max_event_bytes: Option<String>,
    /// Hold this much of request bodies in memory at one time [env: WEIR_BODY_BUDGET_BYTES] [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    body_budget_bytes: Option<String>,
    /// Keep this many connections of clients at one time; others wait [env: WEIR_MAX_CONNECTIONS] [default: 4096]
    #[arg(long, value_name = "N")]
    max_connections: Option<String>,
    /// Make this many attempts at one time; auto: as the limit of open files allows, at most 8192 [env: WEIR_WORKER_CAPACITY]
    /// [default: auto]
    #[arg(long, value_name = "N")]
    worker_capacity: Option<String>,
    /// Let what is in flight finish for this long on shutdown [env: WEIR_SHUTDOWN_GRACE_S] [default: 25]
    #[arg(long, value_name = "SECONDS")]
    shutdown_grace_s: Option<String>,
    /// Keep what was delivered for this long, with its attempts and its events; or: forever [env: WEIR_RETENTION_DELIVERED_DAYS]
    /// [default: 14]
    #[arg(long, value_name = "DAYS")]
    retention_delivered_days: Option<String>,
    /// Keep what was cancelled for this long; or: forever [env: WEIR_RETENTION_CANCELLED_DAYS] [default: 14]
    #[arg(long, value_name = "DAYS")]
    retention_cancelled_days: Option<String>,
    /// Keep dead letters, dead and failed, for this long [env: WEIR_RETENTION_DEAD_DAYS] [default: forever]
    #[arg(long, value_name = "DAYS")]
    retention_dead_days: Option<String>,
}

impl SettingFlags {
    /// The flags that were given, as texts: all sources are parsed by the same code, with the same messages.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (Key, String)> {
        let given = |key: Key| match key {
            Key::Listen => &self.listen,
            Key::MetricsListen => &self.metrics_listen,
            Key::DatabaseUrl => &self.database_url,
            Key::RedisUrl => &self.redis_url,
            Key::ApiKeys => &self.api_keys,
            Key::Hosts => &self.hosts,
            Key::AllowHttp => &self.allow_http,
            Key::AllowNetworks => &self.allow_networks,
            Key::DenyNetworks => &self.deny_networks,
            Key::AllowPorts => &self.allow_ports,
            Key::Log => &self.log,
            Key::LogFormat => &self.log_format,
            Key::MaxEventBytes => &self.max_event_bytes,
            Key::BodyBudgetBytes => &self.body_budget_bytes,
            Key::MaxConnections => &self.max_connections,
            Key::WorkerCapacity => &self.worker_capacity,
            Key::ShutdownGraceS => &self.shutdown_grace_s,
            Key::RetentionDeliveredDays => &self.retention_delivered_days,
            Key::RetentionCancelledDays => &self.retention_cancelled_days,
            Key::RetentionDeadDays => &self.retention_dead_days,
        };
        Key::ALL.into_iter().filter_map(move |key| Some((key, given(key).clone()?)))
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    /// Send for this long
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub(crate) seconds: u32,
    /// Draw the sends against the caps into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print the audit as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AuditArgs {
    /// The server's address
    #[arg(long, default_value = "http://127.0.0.1:8080", value_parser = server_url)]
    pub(crate) url: Url,
    /// A key of the server [default: the first of WEIR_API_KEYS in the environment]
    #[arg(long, value_name = "KEY")]
    pub(crate) api_key: Option<String>,
    /// Audit this destination only, by id or name; may be repeated
    #[arg(long = "destination", value_name = "ID|NAME")]
    pub(crate) destinations: Vec<String>,
    /// Leave out sends before this time (RFC 3339) [default: a day before --to]
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<weir_core::Timestamp>,
    /// Leave out sends at and after this time (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<weir_core::Timestamp>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Draw the sends against the caps into this file
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Clone, Args)]
pub(crate) struct VerifyArgs {
    /// The secret (whsec_…, whsk_…) or public key (whpk_…); the environment hides it better
    #[arg(long, value_name = "SECRET", env = VERIFY_ENV, hide_env_values = true)]
    pub(crate) secret: Option<String>,
    /// How the destination signs
    #[arg(long, value_name = "STYLE", default_value = "standard", value_parser = ["standard", "timestamped", "prefixed"])]
    pub(crate) style: String,
    /// The `webhook-id` header; for the standard style
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// The `webhook-timestamp` header; for the prefixed style the destination's timestamp header, left out when it has none
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    pub(crate) timestamp: Option<i64>,
    /// The whole value of the signature's header
    #[arg(long, value_name = "SIGNATURE")]
    pub(crate) signature: String,
    /// The body, byte for byte as it was received; - is standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) body: PathBuf,
    /// Accept a time this far from now, in the past and in the future
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub(crate) tolerance_s: u32,
}

// By hand: a secret must not be printed.
impl std::fmt::Debug for VerifyArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifyArgs").field("style", &self.style).field("id", &self.id).finish_non_exhaustive()
    }
}

fn server_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{error}; give one such as http://127.0.0.1:8080"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(format!("`{other}` is not http or https")),
    }
}

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    /// The job found a failure, or could not be done.
    Failure,
    /// Wrong use or configuration.
    Misuse,
}

impl Exit {
    /// What an error that ends the program amounts to.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        let misuse = |cause: &(dyn std::error::Error + 'static)| {
            cause.is::<ConfigError>()
                || cause.is::<Misuse>()
                || cause.is::<weir_store_sqlite::OpenError>()
                || cause.is::<weir_store_postgres::OpenError>()
                || cause.is::<weir_queue_redis::OpenError>()
        };
        if error.chain().any(misuse) { Self::Misuse } else { Self::Failure }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failure => 1,
            Exit::Misuse => 2,
        })
    }
}

/// A request that only another command line or configuration can mend.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(pub(crate) String);

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_setting_has_its_flag_and_its_help_names_the_variable() {
        let mut command = Cli::command();
        let serve = command.find_subcommand_mut("serve").unwrap();
        for key in Key::ALL {
            let flag = key.flag();
            let argument =
                serve.get_arguments().find(|argument| Some(flag.trim_start_matches("--")) == argument.get_long());
            let help = argument.and_then(|argument| argument.get_help()).map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("[env: {}]", key.env())), "{flag}: {help}");
        }
    }

    #[test]
    fn errors_of_use_and_configuration_end_with_their_own_code() {
        assert_eq!(Exit::of_error(&Misuse("no key".to_owned()).into()), Exit::Misuse);
        assert_eq!(Exit::of_error(&ConfigError::RoleAlone { role: "api" }.into()), Exit::Misuse);
        assert_eq!(Exit::of_error(&anyhow::anyhow!("disk full")), Exit::Failure);
    }

    #[test]
    fn an_audit_needs_a_url_of_http() {
        assert!(Cli::try_parse_from(["weir", "audit", "--url", "ftp://x"]).is_err());
        assert!(Cli::try_parse_from(["weir", "audit", "--from", "2026-11-21T07:30:00Z"]).is_ok());
        assert!(Cli::try_parse_from(["weir", "audit", "--from", "yesterday"]).is_err());
    }
}
