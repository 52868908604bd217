//! What the program can be asked to do, one file per command.

mod audit;
mod demo;
mod migrate;
mod serve;

use crate::{
    cli::{Command, Exit},
    config::ConfigError,
};

pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Serve(flags) => serve::run(&flags).await,
        Command::Demo(arguments) => demo::run(&arguments).await,
        Command::Audit(arguments) => audit::run(arguments).await,
        Command::Migrate(flags) => migrate::run(&flags).await,
        Command::Api(_) => Err(ConfigError::OneRole { role: "api" }.into()),
        Command::Scheduler(_) => Err(ConfigError::OneRole { role: "scheduler" }.into()),
        Command::Worker(_) => Err(ConfigError::OneRole { role: "worker" }.into()),
    }
}
