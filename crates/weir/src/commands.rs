//! What the program can be asked to do, one file per command.

mod audit;
mod demo;
mod migrate;
mod serve;

use crate::cli::{Command, Exit, Misuse};

pub(crate) async fn run(command: Command) -> anyhow::Result<Exit> {
    match command {
        Command::Serve(flags) => serve::run(&flags).await,
        Command::Demo(arguments) => demo::run(arguments).await,
        Command::Audit(arguments) => audit::run(arguments).await,
        Command::Migrate(flags) => migrate::run(&flags).await,
        Command::Api(_) => Err(alone("api")),
        Command::Scheduler(_) => Err(alone("scheduler")),
        Command::Worker(_) => Err(alone("worker")),
    }
}

fn alone(role: &str) -> anyhow::Error {
    Misuse(format!("`weir {role}` needs PostgreSQL and Redis, which this build has not; run `weir serve`")).into()
}
