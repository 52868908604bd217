//! Load tests: drives a running Weir over its HTTP API, judges what arrives, and measures it beside the bare ceiling of the
//! same machine.
//!
//! Client, receiver and judge are this process; the engine is others, as it would be in production. `run` plays
//! [scenarios](scenario), records [everything](recording) that happens, and [judges](judge) it when it is over. `autoscale` does so while
//! workers come and go as the manifests have it. `bench` takes figures, which are worth something only side by side, so that every run
//! measures its own ceiling first.

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
mod recording;
mod run;
mod scenario;

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};

/// Proves and measures Weir on this machine.
#[derive(Debug, Parser)]
#[command(name = "weir-load-tests")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The whole table of figures on both set-ups, into load-tests/RESULTS.md: exit 1 when a topic could not be measured
    Bench(bench::BenchArgs),
    /// Play scenarios and judge them: exit 1 when a promise was broken
    Run(prove::RunArgs),
    /// Prove the autoscaling of workers with real processes, as the manifests have it: exit 1 when a promise was broken
    Autoscale(autoscale::AutoscaleArgs),
    /// The scenarios and what they are about
    List,
    /// Two reports side by side
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

/// 0 when all is well, 1 when a promise was broken; what could not be done at all is an error.
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
