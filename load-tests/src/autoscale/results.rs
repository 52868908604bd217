//! The autoscaling section of `RESULTS.md`. `sections` puts it into the page.

use std::path::Path;

use super::{picture, play::Played, summary};
use crate::sections;

/// The scenario whose chart is shown.
const PICTURED: &str = "steps";

/// Writes the section and the chart. The rows of scenarios that were not played this time stay.
pub(super) fn write(folder: &Path, played: &[Played], kind: &str) -> anyhow::Result<()> {
    let names: Vec<&str> = played.iter().map(|played| played.name.as_str()).collect();
    sections::rewrite(folder, sections::AUTOSCALING, |old| {
        summary::markdown(played, kind) + &old.map(|old| rows_of_others(old, &names)).unwrap_or_default()
    })?;
    if let Some(pictured) = played.iter().find(|played| played.name == PICTURED) {
        std::fs::write(folder.join("autoscale.svg"), picture::draw(&pictured.trace))?;
    }
    Ok(())
}

/// The table rows of a section, except those of the named scenarios.
fn rows_of_others(section: &str, names: &[&str]) -> String {
    let rows = section.lines().filter(|line| {
        let scenario = line.strip_prefix("| ").and_then(|row| row.split_once(" |"));
        scenario.is_some_and(|(scenario, _)| scenario != "scenario" && !names.contains(&scenario))
    });
    rows.map(|row| format!("{row}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_scenarios_that_were_not_played_stay() {
        let old = "## A\n\n| scenario | promise | measured | |\n|---|---|---|---|\n| steps | p | 1 | met |\n| capped | p | 2 | met |";
        assert_eq!(rows_of_others(old, &["capped"]), "| steps | p | 1 | met |\n");
    }
}
