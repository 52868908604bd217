//! `weir completions`: the completion script of a shell.

use clap::CommandFactory as _;
use clap_complete::{Shell, generate};

use super::output;
use crate::{
    cli::{Cli, CompletedShell},
    exit::Exit,
};

pub(super) fn run(shell: CompletedShell) -> anyhow::Result<Exit> {
    let shell = match shell {
        CompletedShell::Bash => Shell::Bash,
        CompletedShell::Zsh => Shell::Zsh,
        CompletedShell::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    generate(shell, &mut Cli::command(), "weir", &mut script);
    output::print(&String::from_utf8(script)?)?;
    Ok(Exit::Done)
}
