//! The commands of the program, one file per command.

mod backup;
mod config;
mod demo;
mod health;
mod migrate;
mod restored;
mod secrets;
mod serve;
mod verify;

use crate::{
    cli::{Command, ConfigCommand},
    config::ProcessRole,
    exit::Exit,
};

pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    let exit = match command {
        Command::Serve(flags) => serve::run(&flags, ProcessRole::Serve).await,
        Command::Api(flags) => serve::run(&flags, ProcessRole::Api).await,
        Command::Scheduler(flags) => serve::run(&flags, ProcessRole::Scheduler).await,
        Command::Worker(flags) => serve::run(&flags, ProcessRole::Worker).await,
        Command::Demo(arguments) => demo::run(&arguments).await,
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Health(flags) => health::run(&flags).await,
        Command::Config { command: ConfigCommand::Check(arguments) } => config::check(&arguments),
        Command::Migrate(flags) => migrate::run(&flags).await,
        Command::Backup(arguments) => backup::run(arguments).await,
        Command::Secrets { command } => secrets::run(command).await,
        Command::Restored(flags) => restored::run(&flags).await,
        Command::Completions { shell } => weir_cli::completions::run(shell),
        Command::Call(command) => weir_cli::commands::run(*command).await,
    };
    weir_cli::output::unless_closed(exit)
}
