//! What cargo-nextest prints about its tests: each test with its time, and a last line that counts them.

use std::{cmp::Reverse, collections::BTreeMap, time::Duration};

/// How many of the slowest tests are named.
const SLOWEST: usize = 20;

#[derive(Debug, Default)]
pub(crate) struct Results {
    /// `weir-core audit::tests::a_window_is_exact` or `weir::end_to_end alone::caps::a_burst_is_bounded`.
    tests: Vec<(String, Duration)>,
    /// The last line of each step, under the title of the step.
    pub(crate) summaries: Vec<(&'static str, String)>,
}

impl Results {
    /// Reads a line of the step `title`.
    pub(crate) fn read(&mut self, title: &'static str, line: &str) {
        if let Some(test) = passed(line.trim()) {
            self.tests.push(test);
        } else if line.trim().starts_with("Summary [") {
            self.summaries.push((title, line.to_owned()));
        }
    }

    /// The times of the tests of each crate, added up, the slowest first. Tests run side by side, so their sum over all
    /// crates means nothing.
    pub(crate) fn crates(&self) -> Vec<String> {
        let mut crates = BTreeMap::<&str, Duration>::new();
        for (name, time) in &self.tests {
            *crates.entry(name.split([' ', ':']).next().unwrap_or_default()).or_default() += *time;
        }
        table(crates.into_iter().collect(), usize::MAX)
    }

    pub(crate) fn slowest(&self) -> Vec<String> {
        table(self.tests.iter().map(|(name, time)| (&**name, *time)).collect(), SLOWEST)
    }
}

/// The test and the time of `PASS [   0.021s] ( 1/20) weir-chart axis::tests::times_get_labels`.
fn passed(line: &str) -> Option<(String, Duration)> {
    let (seconds, rest) = line.strip_prefix("PASS [")?.split_once("s]")?;
    let (_, name) = rest.split_once(") ")?;
    Some((name.to_owned(), Duration::from_secs_f64(seconds.trim().parse().ok()?)))
}

fn table(mut times: Vec<(&str, Duration)>, most: usize) -> Vec<String> {
    times.sort_by_key(|(_, time)| Reverse(*time));
    times.iter().take(most).map(|(name, time)| format!("{:>8.1} s  {name}", time.as_secs_f64())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slowest_tests_and_the_last_line_are_read() {
        let mut results = Results::default();
        for line in [
            "    Starting 3 tests across 2 binaries",
            "        PASS [   2.021s] ( 1/3) weir-chart axis::tests::times_get_labels",
            "        PASS [   1.500s] ( 2/3) weir::end_to_end alone::caps::a_burst_is_bounded",
            "        PASS [   1.000s] ( 3/3) weir cli::tests::a_flag",
            "     Summary [   2.030s] 3 tests run: 3 passed, 0 skipped",
        ] {
            results.read("All", line);
        }
        assert_eq!(
            results.summaries,
            [("All", "     Summary [   2.030s] 3 tests run: 3 passed, 0 skipped".to_owned())]
        );
        assert_eq!(results.crates(), ["     2.5 s  weir", "     2.0 s  weir-chart"]);
        assert_eq!(results.slowest()[0], "     2.0 s  weir-chart axis::tests::times_get_labels");
    }
}
