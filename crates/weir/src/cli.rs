//! The command line: the commands, their flags, and the exit codes.

pub(crate) mod api;
pub(crate) mod destinations;
pub(crate) mod limit;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand, builder::PossibleValuesParser};
use url::Url;
use weir_core::signing::{CUSTOM, STANDARD, style_names};

use self::api::{ApiCommand, ServerFlags, server_url};
use crate::{
    commands::ApiError,
    config::{ConfigError, Key, VERIFY_ENV},
};

/// Outbound webhooks at exactly the rate the other side can take.
#[derive(Debug, Parser)]
#[command(name = "weir", version, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 success, 1 failure, 2 wrong command line or configuration.")]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run API, scheduler and worker in one process
    Serve(SettingFlags),
    /// Send events at limited rates over real HTTP, show the progress and audit the result; needs no setup, leaves no
    /// files
    Demo(DemoArgs),
    /// Audit a running server: whether each limit was kept, how well it was used, and how long deliveries took
    Audit(AuditArgs),
    /// Check the signature of a received request: exit code 0 if it is valid, 1 if not
    Verify(VerifyArgs),
    /// Ask the process with the same settings on this machine whether it is ready: exit code 0 if it is, 1 if not. For
    /// health checks of containers. Asks the metrics listener if one is set, otherwise the main listener
    Health(SettingFlags),
    /// Migrate the database to the schema of this version, then exit
    Migrate(SettingFlags),
    /// Mark a database that was restored from a backup, before any process starts: limits then continue as if sends had
    /// started until now
    Restored(SettingFlags),
    /// Run only the API; other processes run the other roles (needs PostgreSQL and Redis)
    Api(SettingFlags),
    /// Run only a scheduler; other processes run the other roles (needs PostgreSQL and Redis)
    Scheduler(SettingFlags),
    /// Run only a worker; other processes run the other roles (needs PostgreSQL and Redis)
    Worker(SettingFlags),
    #[command(flatten)]
    Call(ApiCommand),
    /// Print the completion script for a shell, such as: source <(weir completions bash)
    Completions {
        #[arg(value_name = "SHELL", value_parser = clap::value_parser!(CompletedShell))]
        shell: CompletedShell,
    },
}

/// The shells for which there are completions.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
pub(crate) enum CompletedShell {
    Bash,
    Zsh,
    Fish,
}

/// The settings as flags. A flag overrides its environment variable, and the variable overrides the configuration file.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct SettingFlags {
    /// Configuration file [env: WEIR_CONFIG] [default: weir.toml, if it exists]
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Address to listen on; without API keys the API must listen on a loopback address [env: WEIR_LISTEN]
    /// [default: 127.0.0.1:8080; for a scheduler or worker, which serve health and metrics, any free port]
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Separate address for metrics, which are then not served on the listen address; serves health too
    /// [env: WEIR_METRICS_LISTEN] [default: none]
    #[arg(long, value_name = "ADDRESS:PORT")]
    metrics_listen: Option<String>,
    /// Database: sqlite://FILE or postgres://… [env: WEIR_DATABASE_URL] [default: sqlite://weir.db]
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Redis for the queue, or several nodes of a Redis Cluster [env: WEIR_REDIS_URL]
    /// [default: none, the queue is in the process]
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
    /// Prefix of all keys in Redis; several installations may share a Redis if each has its own [env: WEIR_REDIS_PREFIX]
    /// [default: weir]
    #[arg(long, value_name = "PREFIX")]
    redis_prefix: Option<String>,
    /// API keys; a request must send one of them. Beyond loopback they have at least 16 characters. The environment
    /// variable hides them better [env: WEIR_API_KEYS]
    #[arg(long, value_name = "KEY,…")]
    api_keys: Option<String>,
    /// Host names that requests may address, besides loopback hosts [env: WEIR_HOSTS]
    #[arg(long, value_name = "HOST,…")]
    hosts: Option<String>,
    /// Where browsers and producers reach the API, for links, the cookie of the dashboard and `WEIR_HOSTS` [env:
    /// WEIR_PUBLIC_URL]
    #[arg(long, value_name = "URL")]
    public_url: Option<String>,
    /// Believe `X-Forwarded-For` of reverse proxies in these networks [env: WEIR_TRUSTED_PROXIES]
    #[arg(long, value_name = "CIDR,…")]
    trusted_proxies: Option<String>,
    /// Serve the dashboard at `/` [env: WEIR_DASHBOARD] [default: on]
    #[arg(long, value_name = "on|off")]
    dashboard: Option<String>,
    /// Accept destinations with plain http URLs [env: WEIR_ALLOW_HTTP] [default: false]
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    allow_http: Option<String>,
    /// Accept destinations in these private networks [env: WEIR_ALLOW_NETWORKS]
    #[arg(long, value_name = "CIDR,…")]
    allow_networks: Option<String>,
    /// Refuse destinations in these networks, even if they are public or allowed [env: WEIR_DENY_NETWORKS]
    #[arg(long, value_name = "CIDR,…")]
    deny_networks: Option<String>,
    /// Accept only destinations on these ports [env: WEIR_ALLOW_PORTS] [default: any]
    #[arg(long, value_name = "PORT|FROM-TO,…")]
    allow_ports: Option<String>,
    /// Log filter, such as info,weir_worker=debug [env: WEIR_LOG] [default: info]
    #[arg(long, value_name = "FILTER")]
    log: Option<String>,
    /// Format of log lines: text or json [env: WEIR_LOG_FORMAT] [default: text]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<String>,
    /// Refuse events larger than this size [env: WEIR_MAX_EVENT_BYTES] [default: 1048576]
    #[arg(long, value_name = "BYTES")]
    max_event_bytes: Option<String>,
    /// Memory for the bodies of all open requests; further requests get 503 [env: WEIR_BODY_BUDGET_BYTES]
    /// [default: 268435456]
    #[arg(long, value_name = "BYTES")]
    body_budget_bytes: Option<String>,
    /// Maximum number of client connections at one time; idle ones make room [env: WEIR_MAX_CONNECTIONS]
    /// [default: 4096]
    #[arg(long, value_name = "N")]
    max_connections: Option<String>,
    /// Maximum number of connections of one client address at one time; auto: a quarter of all connections
    /// [env: WEIR_MAX_CONNECTIONS_PER_ADDRESS] [default: auto]
    #[arg(long, value_name = "N")]
    max_connections_per_address: Option<String>,
    /// Maximum number of destinations of a tenant [env: WEIR_MAX_DESTINATIONS] [default: 10000]
    #[arg(long, value_name = "N")]
    max_destinations: Option<String>,
    /// Refuse events for more destinations than this [env: WEIR_MAX_DESTINATIONS_PER_EVENT] [default: 10000]
    #[arg(long, value_name = "N")]
    max_destinations_per_event: Option<String>,
    /// Maximum number of attempts of a worker at one time; auto: as many as the limit of open files allows, up to 8192
    /// [env: WEIR_WORKER_CAPACITY] [default: auto]
    #[arg(long, value_name = "N")]
    worker_capacity: Option<String>,
    /// Time for attempts in flight to finish on shutdown [env: WEIR_SHUTDOWN_GRACE_S] [default: 25]
    #[arg(long, value_name = "SECONDS")]
    shutdown_grace_s: Option<String>,
    /// Delete delivered deliveries, with their attempts and events, after this time; or: forever
    /// [env: WEIR_RETENTION_DELIVERED_DAYS] [default: 14]
    #[arg(long, value_name = "DAYS")]
    retention_delivered_days: Option<String>,
    /// Delete cancelled deliveries after this time; or: forever [env: WEIR_RETENTION_CANCELLED_DAYS] [default: 14]
    #[arg(long, value_name = "DAYS")]
    retention_cancelled_days: Option<String>,
    /// Delete dead letters (dead and failed deliveries) after this time; or: forever [env: WEIR_RETENTION_DEAD_DAYS]
    /// [default: forever]
    #[arg(long, value_name = "DAYS")]
    retention_dead_days: Option<String>,
}

impl SettingFlags {
    /// The flags that are set, as texts: the same code parses flags, environment and file, with the same messages.
    pub(crate) fn texts(&self) -> impl Iterator<Item = (Key, String)> {
        // The match is exhaustive, so a new key needs a flag.
        let flag = |key: Key| match key {
            Key::Listen => &self.listen,
            Key::MetricsListen => &self.metrics_listen,
            Key::DatabaseUrl => &self.database_url,
            Key::RedisUrl => &self.redis_url,
            Key::RedisPrefix => &self.redis_prefix,
            Key::ApiKeys => &self.api_keys,
            Key::Hosts => &self.hosts,
            Key::PublicUrl => &self.public_url,
            Key::TrustedProxies => &self.trusted_proxies,
            Key::Dashboard => &self.dashboard,
            Key::AllowHttp => &self.allow_http,
            Key::AllowNetworks => &self.allow_networks,
            Key::DenyNetworks => &self.deny_networks,
            Key::AllowPorts => &self.allow_ports,
            Key::Log => &self.log,
            Key::LogFormat => &self.log_format,
            Key::MaxEventBytes => &self.max_event_bytes,
            Key::BodyBudgetBytes => &self.body_budget_bytes,
            Key::MaxConnections => &self.max_connections,
            Key::MaxConnectionsPerAddress => &self.max_connections_per_address,
            Key::MaxDestinations => &self.max_destinations,
            Key::MaxDestinationsPerEvent => &self.max_destinations_per_event,
            Key::WorkerCapacity => &self.worker_capacity,
            Key::ShutdownGraceS => &self.shutdown_grace_s,
            Key::RetentionDeliveredDays => &self.retention_delivered_days,
            Key::RetentionCancelledDays => &self.retention_cancelled_days,
            Key::RetentionDeadDays => &self.retention_dead_days,
        };
        Key::ALL.into_iter().filter_map(move |key| Some((key, flag(key).clone()?)))
    }
}

#[derive(Debug, Clone, Args)]
pub(crate) struct DemoArgs {
    /// Duration of the demo in seconds
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(3..=3600))]
    pub(crate) seconds: u32,
    /// Write a chart of the sends and the limits to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Print the audit as JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Serve the dashboard during the demo, print its address, and continue to serve it after the audit until Ctrl-C
    #[arg(long, conflicts_with = "json")]
    pub(crate) dashboard: bool,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct AuditArgs {
    #[command(flatten)]
    pub(crate) server: ServerFlags,
    /// The former name of --server
    #[arg(long, value_name = "URL", value_parser = server_url, hide = true, conflicts_with = "server")]
    pub(crate) url: Option<Url>,
    /// Audit only this destination, by id or name; may be repeated
    #[arg(long = "destination", value_name = "ID|NAME")]
    pub(crate) destinations: Vec<String>,
    /// Ignore sends before this time (RFC 3339) [default: a day before --to]
    #[arg(long, value_name = "TIME")]
    pub(crate) from: Option<weir_core::Timestamp>,
    /// Ignore sends at or after this time (RFC 3339) [default: now]
    #[arg(long, value_name = "TIME")]
    pub(crate) to: Option<weir_core::Timestamp>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a chart of the sends and the limits to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
}

#[derive(Clone, Args)]
pub(crate) struct VerifyArgs {
    /// The secret, or the public key (whpk_…, or hex for discord); the environment variable hides it better
    #[arg(long, value_name = "SECRET", env = VERIFY_ENV, hide_env_values = true)]
    pub(crate) secret: Option<String>,
    /// The signature style of the destination
    #[arg(long, value_name = "STYLE", default_value = STANDARD, value_parser = named_styles())]
    pub(crate) style: String,
    /// The style as JSON, as `signature` of the destination has it; for custom styles
    #[arg(long, value_name = "JSON", conflicts_with = "style")]
    pub(crate) format: Option<String>,
    /// The `webhook-id` header, or the id header of the style; for styles that sign it
    #[arg(long, value_name = "ID")]
    pub(crate) id: Option<String>,
    /// The `webhook-timestamp` header, or the timestamp header of the style, as it was received; for styles that sign it
    #[arg(long, value_name = "TIME", allow_negative_numbers = true)]
    pub(crate) timestamp: Option<String>,
    /// The URL of the destination as Weir shows it; for styles that sign it
    #[arg(long, value_name = "URL")]
    pub(crate) url: Option<String>,
    /// The complete value of the signature header
    #[arg(long, value_name = "SIGNATURE")]
    pub(crate) signature: String,
    /// The body, byte for byte as received; - is standard input
    #[arg(long, value_name = "FILE", default_value = "-")]
    pub(crate) body: PathBuf,
    /// Accept a signed time up to this many seconds in the past or in the future
    #[arg(long, value_name = "N", default_value_t = 300)]
    pub(crate) tolerance_s: u32,
}

/// The styles whose format is known by their name.
fn named_styles() -> PossibleValuesParser {
    PossibleValuesParser::new(style_names().filter(|name| *name != CUSTOM))
}

// Written by hand: a secret must not be printed.
impl std::fmt::Debug for VerifyArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("VerifyArgs").field("style", &self.style).field("id", &self.id).finish_non_exhaustive()
    }
}

/// The exit codes of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    /// The command failed, or found a failure.
    Failure,
    /// Wrong command line or configuration.
    Misuse,
}

impl Exit {
    /// The exit code for an error that ends the program.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        let misuse = |cause: &(dyn std::error::Error + 'static)| {
            cause.is::<ConfigError>()
                || cause.downcast_ref::<ApiError>().is_some_and(ApiError::is_misuse)
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

/// An error in the command line or the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(pub(crate) String);

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_passes_the_checks_of_clap() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_setting_has_a_flag_whose_help_names_the_variable() {
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
    fn errors_of_use_and_configuration_have_their_own_exit_code() {
        assert_eq!(Exit::of_error(&Misuse("no key".to_owned()).into()), Exit::Misuse);
        assert_eq!(Exit::of_error(&ConfigError::RoleAlone { role: "api" }.into()), Exit::Misuse);
        assert_eq!(Exit::of_error(&anyhow::anyhow!("disk full")), Exit::Failure);
    }

    #[test]
    fn an_audit_needs_an_http_url() {
        assert!(Cli::try_parse_from(["weir", "audit", "--url", "ftp://x"]).is_err());
        assert!(Cli::try_parse_from(["weir", "audit", "--from", "2026-11-21T07:30:00Z"]).is_ok());
        assert!(Cli::try_parse_from(["weir", "audit", "--from", "yesterday"]).is_err());
    }
}
