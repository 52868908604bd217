//! How long the tests of each crate ran, without the build.
//!
//! Cargo prints a heading before it runs a test program: `Running unittests src/lib.rs
//! (target/debug/deps/weir_core-…)`, then `Running tests/store.rs (…)` for the integration tests of the same package,
//! and `Doc-tests weir_core`. A step that runs only integration tests prints no name of a package, so the step names it.

use std::time::{Duration, Instant};

/// Run times by crate, in the order in which the crates ran.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    by_crate: Vec<(String, Duration)>,
    /// The crate of integration tests without unit tests before them.
    package: Option<String>,
    running_since: Option<Instant>,
}

impl Timing {
    /// The tests of a step for this package, or for the workspace.
    pub(crate) fn of(package: Option<&str>) -> Self {
        Self { package: package.map(str::to_owned), ..Self::default() }
    }

    /// Reads a line of cargo's, printed at `now`.
    pub(crate) fn read(&mut self, line: &str, now: Instant) {
        let line = line.trim_start();
        if let Some(name) = line.strip_prefix("Doc-tests ") {
            self.start(Some(crate_name(name)), now);
        } else if let Some(program) = line.strip_prefix("Running unittests ") {
            self.start(program_name(program).map(crate_name), now);
        } else if line.starts_with("Running tests/") {
            self.start(None, now);
        }
    }

    /// A test program starts. `None`: it belongs to the same crate as the one before.
    fn start(&mut self, name: Option<String>, now: Instant) {
        self.stop(now);
        self.running_since = Some(now);
        let last = || self.by_crate.last().map(|(name, _)| name.clone());
        let name = name.or_else(last).or_else(|| self.package.clone()).unwrap_or_default();
        if self.by_crate.last().is_none_or(|(last, _)| *last != name) {
            self.by_crate.push((name, Duration::ZERO));
        }
    }

    /// The last test program has ended.
    pub(crate) fn stop(&mut self, now: Instant) {
        if let (Some(since), Some((_, total))) = (self.running_since.take(), self.by_crate.last_mut()) {
            *total += now - since;
        }
    }

    /// The sums of several steps.
    pub(crate) fn add(&mut self, other: Self) {
        for (name, time) in other.by_crate {
            match self.by_crate.iter_mut().find(|(known, _)| *known == name) {
                Some((_, total)) => *total += time,
                None => self.by_crate.push((name, time)),
            }
        }
    }

    /// A table of the crates, the slowest first, and the sum.
    pub(crate) fn table(&self) -> Vec<String> {
        let mut by_crate = self.by_crate.clone();
        by_crate.sort_by_key(|(_, time)| std::cmp::Reverse(*time));
        let all = by_crate.iter().map(|(_, time)| *time).sum();
        by_crate.push(("all".to_owned(), all));
        let row = |(name, time): &(String, Duration)| format!("{name:24} {:>8.1} s", time.as_secs_f64());
        by_crate.iter().map(row).collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_crate.is_empty()
    }
}

/// `weir_core` of `src/lib.rs (target/debug/deps/weir_core-0123456789abcdef)`.
fn program_name(program: &str) -> Option<&str> {
    let (_, path) = program.rsplit_once(['/', '\\'])?;
    Some(path.split_once('-')?.0)
}

fn crate_name(name: &str) -> String {
    name.trim().replace('_', "-")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::step::now;

    #[test]
    fn integration_and_documentation_tests_count_for_their_crate() {
        let start = now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut timing = Timing::default();
        timing.read("   Compiling weir-core v0.1.0", at(0));
        timing.read("     Running unittests src/lib.rs (target/debug/deps/weir_core-c0ffee)", at(10));
        timing.read("     Running unittests src/lib.rs (target/debug/deps/weir_store-c0ffee)", at(12));
        timing.read("     Running tests/restart.rs (target/debug/deps/restart-c0ffee)", at(15));
        timing.read("   Doc-tests weir_core", at(20));
        timing.stop(at(21));
        let mut all = Timing::default();
        all.add(timing);
        assert_eq!(
            all.table(),
            [
                "weir-store                    8.0 s",
                "weir-core                     3.0 s",
                "all                          11.0 s"
            ]
        );
    }

    #[test]
    fn integration_tests_alone_count_for_the_package_of_their_step() {
        let start = now();
        let mut timing = Timing::of(Some("weir"));
        timing.read("     Running tests/end_to_end/main.rs (target/release/deps/end_to_end-c0ffee)", start);
        timing.stop(start + Duration::from_secs(2));
        assert_eq!(timing.table()[0], "weir                          2.0 s");
    }
}
