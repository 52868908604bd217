//! The command line: the commands and their flags. Those that call the API of a running server are in the crate `weir-cli`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, builder::PossibleValuesParser};
use weir_core::signing::{CUSTOM, STANDARD, style_names};

use weir_cli::flags::{ApiCommand, CompletedShell};

use crate::config::{SettingFlags, VERIFY_ENV};

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
    /// Check the signature of a received request: exit code 0 if it is valid, 1 if not
    Verify(VerifyArgs),
    /// Ask the process with the same settings on this machine whether it is ready: exit code 0 if it is, 1 if not. For
    /// health checks of containers. Asks the metrics listener if one is set, otherwise the main listener
    Health(SettingFlags),
    /// Check the settings without starting anything: every fault at once, and the values that are in force
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
    /// Migrate the database to the schema of this version, then exit
    Migrate(SettingFlags),
    /// Mark a database that was restored from a backup, before any process starts: limits then continue as if sends had
    /// started until now
    Restored(SettingFlags),
    /// Back up the database while Weir runs: a checked copy of a SQLite file. For PostgreSQL, print the command that does it
    Backup(BackupArgs),
    /// Rotate the keys that encrypt secrets in the database (WEIR_ENCRYPTION_KEYS), while Weir runs
    Secrets {
        #[command(subcommand)]
        command: SecretsCommand,
    },
    /// Run only the API; other processes run the other roles (needs PostgreSQL and Redis)
    Api(SettingFlags),
    /// Run only a scheduler; other processes run the other roles (needs PostgreSQL and Redis)
    Scheduler(SettingFlags),
    /// Run only a worker; other processes run the other roles (needs PostgreSQL and Redis)
    Worker(SettingFlags),
    #[command(flatten)]
    Call(Box<ApiCommand>),
    /// Print the completion script for a shell, such as: source <(weir completions bash)
    Completions {
        #[arg(value_name = "SHELL", value_parser = clap::value_parser!(CompletedShell))]
        shell: CompletedShell,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Show every fault of the settings, and the values that are in force, without secrets: exit code 0 if a process
    /// would start with them, 2 if not. Neither the database nor Redis is asked
    Check(CheckArgs),
}

#[derive(Debug, Clone, Subcommand)]
pub(crate) enum SecretsCommand {
    /// Show how many values each key has encrypted: exit code 0 if all are as the settings say, 1 if a rotation is needed
    Check(SettingFlags),
    /// Encrypt every value with the first key; if `none` is the first, decrypt every value. Safe to interrupt: run it again
    Rotate(SettingFlags),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct CheckArgs {
    /// The process that would start
    #[arg(long, value_name = "ROLE", default_value = "serve", value_parser = ["serve", "api", "scheduler", "worker"])]
    pub(crate) role: String,
    #[command(flatten)]
    pub(crate) settings: SettingFlags,
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BackupArgs {
    #[command(flatten)]
    pub(crate) settings: SettingFlags,
    /// The new file, or a folder, in which the file is named after the time. No file is replaced
    #[arg(long, value_name = "FILE|FOLDER", default_value = ".")]
    pub(crate) into: PathBuf,
    /// Afterwards remove all but the newest N backups of the folder [default: keep all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keep: Option<u32>,
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

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_passes_the_checks_of_clap() {
        Cli::command().debug_assert();
    }

    /// Such an argument would be read as the other one, and reading it would panic.
    #[test]
    fn no_argument_has_the_name_of_a_flag_that_every_command_has() {
        fn check(command: &clap::Command, mut globals: Vec<clap::Id>) {
            let arguments = command.get_arguments();
            globals.extend(
                arguments.filter(|argument| argument.is_global_set()).map(|argument| argument.get_id().clone()),
            );
            for below in command.get_subcommands() {
                let same = below.get_arguments().find(|argument| globals.contains(argument.get_id()));
                assert!(same.is_none(), "{}: {same:?}", below.get_name());
                check(below, globals.clone());
            }
        }
        check(&Cli::command(), Vec::new());
    }

    #[test]
    fn an_audit_needs_an_http_url() {
        assert!(Cli::try_parse_from(["weir", "audit", "--url", "ftp://x"]).is_err());
        assert!(Cli::try_parse_from(["weir", "audit", "--from", "2026-11-21T07:30:00Z"]).is_ok());
        assert!(Cli::try_parse_from(["weir", "audit", "--from", "soon"]).is_err());
    }

    #[test]
    fn times_and_nouns_are_written_as_people_write_them() {
        for words in [
            "weir audit --from yesterday",
            "weir delivery list --since 2h --until 10m",
            "weir destination list",
            "weir event list --from 2026-11-26",
            "weir replay list",
            "weir key create ci --role read --expires-at 90d",
            "weir tail Acme Bolt",
            "weir alerts --tenant acme",
            "weir alert set --backlog-depth off --dead-letters 5",
            "weir preview Acme --limit 20/s",
            "weir simulate Acme --limit 20/second --from yesterday --scale 2 --target-p99 5m",
            "weir shedding",
            "weir shedding set --mode dry-run --class heavy=4 --client acme=32:4 --client default=auto",
        ] {
            assert!(Cli::try_parse_from(words.split(' ')).is_ok(), "{words}");
        }
        let many = std::iter::repeat_n("Acme", 21);
        assert!(Cli::try_parse_from(["weir", "tail"].into_iter().chain(many)).is_err());
    }
}
