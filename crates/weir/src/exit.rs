//! The exit code of an error.

pub(crate) use weir_cli::exit::{Exit, Misuse};

use crate::config::ConfigError;

/// The exit code for an error that ends the program.
pub(crate) fn of_error(error: &anyhow::Error) -> Exit {
    let misuse = |cause: &(dyn std::error::Error + 'static)| {
        cause.is::<Misuse>()
            || cause.is::<ConfigError>()
            || cause.is::<weir_store_sqlite::OpenError>()
            || cause.is::<weir_store_postgres::OpenError>()
            || cause.is::<weir_queue_redis::OpenError>()
    };
    if error.chain().any(misuse) { Exit::Misuse } else { Exit::Failure }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_use_and_configuration_have_their_own_exit_code() {
        assert_eq!(of_error(&Misuse("no key".to_owned()).into()), Exit::Misuse);
        assert_eq!(of_error(&ConfigError::RoleAlone { role: "api" }.into()), Exit::Misuse);
        assert_eq!(of_error(&anyhow::anyhow!("disk full")), Exit::Failure);
    }
}
