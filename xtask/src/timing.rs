//! How long the tests of each crate ran, without the build, and which of the tests that ran one at a time were slowest.

use std::{cmp::Reverse, time::Duration};

/// How many of the slowest tests are named.
const SLOWEST: usize = 20;

/// Run times by crate, in the order in which the crates ran, and by test.
#[derive(Debug, Default)]
pub(crate) struct Timing {
    by_crate: Vec<(String, Duration)>,
    by_test: Vec<(String, Duration)>,
}

impl Timing {
    /// A test program of this crate has run.
    pub(crate) fn add(&mut self, name: &str, time: Duration) {
        match self.by_crate.iter_mut().find(|(known, _)| known == name) {
            Some((_, total)) => *total += time,
            None => self.by_crate.push((name.to_owned(), time)),
        }
    }

    /// The times of tests that ran one at a time.
    pub(crate) fn add_tests(&mut self, times: Vec<(String, Duration)>) {
        self.by_test.extend(times);
    }

    /// Adds the times of another step.
    pub(crate) fn join(&mut self, other: Self) {
        other.by_crate.iter().for_each(|(name, time)| self.add(name, *time));
        self.add_tests(other.by_test);
    }

    /// A table of the crates, the slowest first. Crates run side by side, so their sum means nothing.
    pub(crate) fn crates(&self) -> Vec<String> {
        table(&self.by_crate, usize::MAX)
    }

    /// A table of the slowest tests.
    pub(crate) fn slowest_tests(&self) -> Vec<String> {
        table(&self.by_test, SLOWEST)
    }
}

fn table(times: &[(String, Duration)], most: usize) -> Vec<String> {
    let mut times = times.to_vec();
    times.sort_by_key(|(_, time)| Reverse(*time));
    times.iter().take(most).map(|(name, time)| format!("{:>8.1} s  {name}", time.as_secs_f64())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_programs_of_a_crate_are_added_up_and_the_slowest_comes_first() {
        let mut timing = Timing::default();
        timing.add("weir-core", Duration::from_secs(3));
        timing.add("weir-store", Duration::from_secs(2));
        let mut all = Timing::default();
        all.add("weir-store", Duration::from_secs(6));
        all.join(timing);
        assert_eq!(all.crates(), ["     8.0 s  weir-store", "     3.0 s  weir-core"]);
    }

    #[test]
    fn only_the_slowest_tests_are_named() {
        let mut timing = Timing::default();
        timing.add_tests((0..30).map(|n| (format!("test_{n}"), Duration::from_secs(n))).collect());
        let slowest = timing.slowest_tests();
        assert_eq!((slowest.len(), slowest[0].as_str()), (SLOWEST, "    29.0 s  test_29"));
    }
}
