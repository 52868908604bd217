//! Load tests: drives a running Weir over its HTTP API and measures it beside the bare ceiling of the same machine.
//!
//! Client, receiver and harness are this process; the engine is a child process, as it would be in production. Figures are
//! worth something only side by side, so that every run measures its own ceiling first.

mod bench;
mod client;
mod clock;
mod engine;
mod figures;
mod receiver;
mod report;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

/// Measures Weir on this machine.
#[derive(Debug, Parser)]
#[command(name = "weir-load-tests")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The ceiling, end-to-end rates, latency, an idle crowd and a backlog, in one run
    Bench(BenchArgs),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct BenchArgs {
    /// The binary to measure
    #[arg(long, value_name = "PATH", default_value = "target/release/weir")]
    weir: PathBuf,
    /// Measure on the PostgreSQL and the Redis of WEIR_DATABASE_URL and WEIR_REDIS_URL [default: SQLite, a fresh file each time]
    #[arg(long)]
    scaled: bool,
    /// Make databases in this folder [default: the system's for temporary files]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// Write the figures to this file as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Send for this long when measuring a rate
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// How many destinations idle
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..))]
    idle: u64,
    /// How many deliveries wait
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    backlog: u64,
}

#[tokio::main]
async fn main() -> ExitCode {
    let Command::Bench(args) = Cli::parse().command;
    match bench::run(&args).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("weir-load-tests: {error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
