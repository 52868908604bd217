//! Counts the assertions about speed that the tests did not judge.
//!
//! A test judges how fast Weir is, and how well it uses a limit, only if the machine lost no time to other programs
//! (`crates/weir/tests/end_to_end/support/machine.rs`). A run that judged too little proves nothing, so it fails.

use std::path::Path;

use anyhow::{Context, ensure};
use tempfile::NamedTempFile;

/// A test appends one line for each assertion to the file that this variable names.
const VARIABLE: &str = "WEIR_TEST_JUDGEMENTS";
const JUDGED: &str = "judged";
const NOT_JUDGED: &str = "not judged";
/// One in this many assertions may be left unjudged.
const TOLERATED: usize = 10;

pub(crate) struct Judgements(NamedTempFile);

impl Judgements {
    pub(crate) fn new() -> anyhow::Result<Self> {
        Ok(Self(NamedTempFile::with_prefix("weir-judgements-").context("cannot make a temporary file")?))
    }

    /// The variable for the tests.
    pub(crate) fn env(&self) -> anyhow::Result<(&'static str, String)> {
        Ok((VARIABLE, crate::servers::utf8(self.0.path())?))
    }

    /// Prints how many assertions were not judged. Fails if more than a tenth was not.
    pub(crate) fn report(&self) -> anyhow::Result<()> {
        let (judged, not_judged) = read(self.0.path())?;
        if judged + not_judged == 0 {
            return Ok(());
        }
        let all = judged + not_judged;
        eprintln!(
            "\n=== {not_judged} of {all} assertions about speed were not judged, because the machine stood still"
        );
        ensure!(
            not_judged * TOLERATED <= all,
            "the machine stood still too often: {not_judged} of {all} assertions about speed were not judged; run the tests \
             again while the machine does nothing else"
        );
        Ok(())
    }
}

fn read(path: &Path) -> anyhow::Result<(usize, usize)> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let count = |word| text.lines().filter(|line| *line == word).count();
    Ok((count(JUDGED), count(NOT_JUDGED)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_a_tenth_of_unjudged_assertions_fails() {
        let judgements = Judgements::new().unwrap();
        judgements.report().expect("no test of speed ran");
        std::fs::write(judgements.0.path(), format!("{JUDGED}\n").repeat(9) + NOT_JUDGED + "\n").unwrap();
        judgements.report().expect("a tenth is tolerated");
        std::fs::write(judgements.0.path(), format!("{JUDGED}\n").repeat(8) + NOT_JUDGED + "\n").unwrap();
        assert!(judgements.report().unwrap_err().to_string().contains("1 of 9"));
    }
}
