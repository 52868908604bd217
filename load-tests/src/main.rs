//! Load tests: drives a running Weir over its HTTP API, judges the arrivals, and measures Weir against the bare ceiling
//! of the same machine.
//!
//! Client, receiver and judge are this process; the engine runs in other processes, as in production. `run` plays
//! [scenarios](scenario), [records](recording) every event and arrival, and [judges](judge) the recording afterwards.
//! `autoscale` does the same while a controller scales workers by the rules of the manifests. `receivers` sends to
//! [real rate limiters](receivers). `bench` measures figures, each against a ceiling of the same run, because figures
//! of different machines or times cannot be compared.
//!
//! # Files
//!
//! `prove` is the command `run`, `compare` sets two reports side by side, `pages` writes them. `engine` is the Weir
//! under test, `client` the bare client, `receiver` the bare receiver, `recording` what is judged. `clock`, `process`
//! and `figures` measure.

mod autoscale;
mod bench;
mod client;
mod clock;
mod compare;
mod engine;
mod figures;
mod judge;
mod pages;
mod process;
mod prove;
mod receiver;
mod receivers;
mod recording;
mod run;
mod scenario;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Tests and measures Weir on this machine.
#[derive(Debug, Parser)]
#[command(name = "weir-load-tests")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Measure all figures on every set-up and write load-tests/RESULTS.md: exit 1 when a topic could not be measured
    Bench(bench::BenchArgs),
    /// Play scenarios and judge them: exit 1 when a promise was broken
    Run(prove::RunArgs),
    /// Test the autoscaling of workers with real processes and the rules of the manifests: exit 1 when a promise was
    /// broken
    Autoscale(autoscale::AutoscaleArgs),
    /// Send to real rate limiters at their limits: exit 1 when more was refused, or less of a limit used, than is wanted
    Receivers(receivers::ReceiversArgs),
    /// List the scenarios with a description of each
    List,
    /// Compare two reports side by side
    Compare {
        /// The folder of a report, or its report.json
        a: PathBuf,
        b: PathBuf,
    },
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

/// Exit code 0 on success, 1 when a promise was broken or a topic not measured. A command that could not run at all is
/// an error.
async fn act(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Bench(args) => {
            if !bench::run(&args).await? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Run(args) => {
            if !prove::run(&args).await? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Autoscale(args) => {
            if !autoscale::run(&args).await? {
                return Ok(ExitCode::FAILURE);
            }
        }
        Command::Receivers(args) => {
            if !receivers::run(&args).await? {
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
    fn the_command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }
}
