//! How many attempts a worker may make at one time. Each attempt may hold a connection, which is an open file.

use weir_worker::DEFAULT_CAPACITY;

/// Open files reserved for the store, the queue and the clients of the API.
const RESERVED: u64 = 512;
/// The minimum capacity, if that is at most a quarter of the limit: more would leave none for the clients of the API.
const MIN_CAPACITY: u64 = 64;

/// Raises the soft limit of open files to the hard limit and returns how many attempts fit below it.
#[cfg(unix)]
pub(crate) fn capacity() -> usize {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};

    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return DEFAULT_CAPACITY };
    let raised = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_ok();
    let files = if raised { hard } else { soft };
    if files < RESERVED {
        tracing::warn!(
            files,
            "the limit of open files is low: few deliveries are sent at one time, and clients may not be able to connect; raise it (ulimit -n, LimitNOFILE)"
        );
    }
    capacity_for(files)
}

#[cfg(not(unix))]
pub(crate) fn capacity() -> usize {
    DEFAULT_CAPACITY
}

/// Three quarters of the files that are not reserved, because idle connections are open files too.
fn capacity_for(files: u64) -> usize {
    let capacity = (files.saturating_sub(RESERVED) / 4).saturating_mul(3).max(MIN_CAPACITY.min(files / 4)).max(1);
    usize::try_from(capacity).unwrap_or(usize::MAX).min(DEFAULT_CAPACITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_of_open_files_bounds_the_attempts() {
        assert_eq!(capacity_for(1_024), 384);
        assert_eq!(capacity_for(512), 64);
        assert_eq!(capacity_for(100), 25, "clients need some too");
        assert_eq!(capacity_for(3), 1);
        assert_eq!(capacity_for(1 << 20), DEFAULT_CAPACITY);
        assert_eq!(capacity_for(u64::MAX), DEFAULT_CAPACITY);
    }
}
