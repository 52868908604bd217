//! Load tests: drives a running Weir over its HTTP API, judges the arrivals, and measures Weir against the bare ceiling
//! of the same machine.
//!
//! Client, receiver and judge are this process; the engine runs in other processes, as in production. `run` plays
//! [scenarios](scenario), [records](recording) every event and arrival, and [judges](judge) the recording afterwards.
//! `autoscale` does the same while a controller scales workers by the rules of the manifests. `receivers` sends to
//! [real rate limiters](receivers). `adaptive` plays the pacers of `weir-pace-trials` in virtual time, and [Weir's](adaptive)
//! on real sockets. `bench` measures figures, each
//! against a ceiling of the same run, because figures of different machines or times cannot be compared.
//!
//! # Files
//!
//! `prove` is the command `run`, `shed` measures decisions of load shedding, `compare` sets two reports side by side,
//! `pages` writes them, `sections` keeps what several commands write into one page. `engine` is the Weir
//! under test, `client` the bare client, `receiver` the bare receiver, `recording` what is judged. `clock`, `process`
//! and `figures` measure.

mod adaptive;
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
mod sections;
mod shed;

use std::{path::PathBuf, process::ExitCode};

use anyhow::bail;
use clap::{Parser, Subcommand};
use tokio::signal::unix::{SignalKind, signal};

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
    /// Play adaptive rate and its opponents in virtual time, and write their section of load-tests/RESULTS.md; or adaptive
    /// rate alone on real sockets: exit 1 when a receiver did not get what is wanted
    Adaptive(adaptive::AdaptiveArgs),
    /// Measure what load shedding costs beside two other designs, and flood a running Weir
    Shed(shed::ShedArgs),
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
    // Dropping a command stops the processes that it started.
    let ended = tokio::select! {
        ended = act(Cli::parse().command) => ended,
        interrupted = interrupted() => interrupted,
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("weir-load-tests: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// Returns whether every promise was kept and every topic measured. A command that could not run at all is an error.
async fn act(command: Command) -> anyhow::Result<bool> {
    match command {
        Command::Bench(args) => bench::run(&args).await,
        Command::Run(args) => prove::run(&args).await,
        Command::Autoscale(args) => autoscale::run(&args).await,
        Command::Receivers(args) => receivers::run(&args).await,
        Command::Adaptive(args) => adaptive::run(&args).await,
        Command::Shed(args) => shed::run(&args).await,
        Command::List => {
            print!("{}", prove::list()?);
            Ok(true)
        }
        Command::Compare { a, b } => {
            print!("{}", compare::compare(&a, &b)?);
            Ok(true)
        }
    }
}

/// Ends with an error at ctrl-c or SIGTERM.
async fn interrupted() -> anyhow::Result<bool> {
    let mut terminate = signal(SignalKind::terminate())?;
    tokio::select! {
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminate.recv() => bail!("terminated"),
    }
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
