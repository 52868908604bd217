//! The exit codes of the program.

use std::process::ExitCode;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Exit {
    Done,
    /// The command failed, or found a failure.
    Failure,
    /// Wrong command line or configuration.
    Misuse,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(match exit {
            Exit::Done => 0,
            Exit::Failure => 1,
            Exit::Misuse => 2,
        })
    }
}

/// An error in the command line or the configuration.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Misuse(pub String);
