//! How many attempts a worker may make at one time: each may hold a connection, and so a file.

use weir_worker::DEFAULT_CAPACITY;

/// Files that everything else may hold open: the stores, the queue, clients of the API.
const RESERVED: u64 = 512;
/// Room for attempts wherever the limit is.
const LEAST: u64 = 64;

/// Raises the limit of open files as far as it goes, and answers how many attempts fit below it.
#[cfg(unix)]
pub(crate) fn capacity() -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return DEFAULT_CAPACITY };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    fitting(if raised { hard } else { soft })
}

#[cfg(not(unix))]
pub(crate) fn capacity() -> usize {
    DEFAULT_CAPACITY
}

/// Three quarters of what is left, since connections that stand unused are files as well.
fn fitting(files: u64) -> usize {
    let fit = (files.saturating_sub(RESERVED) / 4).saturating_mul(3).max(LEAST);
    usize::try_from(fit).unwrap_or(usize::MAX).min(DEFAULT_CAPACITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_bounds_the_attempts() {
        assert_eq!(fitting(1_024), 384);
        assert_eq!(fitting(100), 64);
        assert_eq!(fitting(1 << 20), DEFAULT_CAPACITY);
        assert_eq!(fitting(u64::MAX), DEFAULT_CAPACITY);
    }
}
