//! The commands of the program, one file per command.

mod api;
mod audit;
mod completions;
mod demo;
mod health;
mod migrate;
mod output;
mod restored;
mod serve;
mod verify;

pub(crate) use self::api::client::ApiError;
use crate::{
    cli::{Command, Exit},
    config::Role,
};

pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    let exit = match command {
        Command::Serve(flags) => serve::run(&flags, Role::Serve).await,
        Command::Api(flags) => serve::run(&flags, Role::Api).await,
        Command::Scheduler(flags) => serve::run(&flags, Role::Scheduler).await,
        Command::Worker(flags) => serve::run(&flags, Role::Worker).await,
        Command::Demo(arguments) => demo::run(&arguments).await,
        Command::Audit(arguments) => audit::run(arguments).await,
        Command::Verify(arguments) => verify::run(&arguments),
        Command::Health(flags) => health::run(&flags).await,
        Command::Migrate(flags) => migrate::run(&flags).await,
        Command::Restored(flags) => restored::run(&flags).await,
        Command::Completions { shell } => completions::run(shell),
        Command::Call(command) => api::run(command).await,
    };
    output::unless_closed(exit)
}
