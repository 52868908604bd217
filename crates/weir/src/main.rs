//! Weir: outbound webhooks under exact rate limits.
//!
//! # Files
//!
//! `cli` declares the commands, `commands` runs them: `commands/serve`, `commands/migrate`, `commands/health`,
//! `commands/verify`. Commands that call a server are in the crate `weir-cli`. `config` reads the settings, `backends` opens store and queue, `engine` starts and stops
//! the roles. `listener` accepts connections (`phases`, `timed_stream`) and `intake` has threads for them, `clock`
//! makes engine time, `logs` writes lines.
//!
//! `sd_notify` reports to systemd, `commands/serve/reload` reads the settings again.
//!
//! `exit` has the exit codes of errors, `stage` tasks that stop together.

mod backends;
mod cli;
mod clock;
mod commands;
mod config;
mod engine;
mod exit;
mod heartbeat;
mod intake;
mod listener;
mod logs;
mod metrics;
mod open_files;
mod sd_notify;
mod stage;
mod traces;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};

use cli::Cli;
use exit::Exit;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // A shell that asks for completions is answered here, and the process ends.
    weir_cli::completions::answer(Cli::command);
    // A wrong command line ends here, with clap's message and exit code 2.
    let cli = Cli::parse();
    let exit = run(cli).unwrap_or_else(|error| {
        logs::fail(&format!("{error:#}"));
        exit::of_error(&error)
    });
    exit.into()
}

fn run(cli: Cli) -> anyhow::Result<Exit> {
    // reqwest and the worker share this TLS provider. The call fails only if one is installed already, and none is.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(commands::run(cli.command))
}
