//! Load tests: drives a running Weir over its HTTP API, judges what arrives, and measures it beside the bare ceiling of the
//! same machine.
//!
//! Client, receiver and judge are this process; the engine is others, as it would be in production. `run` plays
//! [scenarios](scenario), records [everything](recording) that happens, and [judges](judge) it when it is over. `bench` takes
//! figures, which are worth something only side by side, so that every run measures its own ceiling first.

mod bench;
mod client;
mod clock;
mod compare;
mod engine;
mod figures;
mod judge;
mod pages;
mod prove;
mod receiver;
mod recording;
mod report;
mod run;
mod scenario;

use std::{path::PathBuf, process::ExitCode};

use clap::{Args, Parser, Subcommand};

/// Proves and measures Weir on this machine.
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
    /// The whole table of figures on both set-ups, into load-tests/RESULTS.md: exit 1 when a topic could not be measured
    Full(bench::FullArgs),
    /// Play scenarios and judge them: exit 1 when a promise was broken
    Run(prove::RunArgs),
    /// The scenarios and what they are about
    List,
    /// Two reports side by side
    Compare {
        /// The folder of a report, or its report.json
        a: PathBuf,
        b: PathBuf,
    },
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
    match act(Cli::parse().command).await {
        Ok(code) => code,
        Err(error) => {
            eprintln!("weir-load-tests: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// 0 when all is well, 1 when a promise was broken; what could not be done at all is an error.
async fn act(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Bench(args) => {
            if let Err(error) = bench::run(&args).await {
                eprintln!("weir-load-tests: {error:#}");
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Full(args) => {
            if !bench::full(&args).await? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Run(args) => {
            if !prove::run(&args).await? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::List => print!("{}", prove::list()?),
        Command::Compare { a, b } => print!("{}", compare::compare(&a, &b)?),
    }
    Ok(ExitCode::SUCCESS)
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
