//! The exit codes of the program.

use std::process::ExitCode;

use crate::config::ConfigError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    Done,
    /// The command failed, or found a failure.
    Failure,
    /// Wrong command line or configuration.
    Misuse,
}

impl Exit {
    /// The exit code for an error that ends the program.
    pub(crate) fn of_error(error: &anyhow::Error) -> Self {
        let misuse = |cause: &(dyn std::error::Error + 'static)| {
            cause.is::<Misuse>()
                || cause.is::<ConfigError>()
                || cause.is::<weir_store_sqlite::OpenError>()
                || cause.is::<weir_store_postgres::OpenError>()
                || cause.is::<weir_queue_redis::OpenError>()
        };
        if error.chain().any(misuse) { Self::Misuse } else { Self::Failure }
    }
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
pub(crate) struct Misuse(pub(crate) String);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_use_and_configuration_have_their_own_exit_code() {
        assert_eq!(Exit::of_error(&Misuse("no key".to_owned()).into()), Exit::Misuse);
        assert_eq!(Exit::of_error(&ConfigError::RoleAlone { role: "api" }.into()), Exit::Misuse);
        assert_eq!(Exit::of_error(&anyhow::anyhow!("disk full")), Exit::Failure);
    }
}
