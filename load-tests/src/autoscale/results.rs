//! The autoscaling section of `RESULTS.md`. The bench writes the rest of the file and keeps this section.

use std::path::Path;

use anyhow::Context;

use super::{picture, play::Played, summary};

const BEGINS: &str = "<!-- autoscaling -->";
const ENDS: &str = "<!-- end of autoscaling -->";
/// The scenario whose chart is shown.
const PICTURED: &str = "steps";

/// Writes the section and the chart. The rows of scenarios that were not played this time stay.
pub(super) fn write(folder: &Path, played: &[Played], kind: &str) -> anyhow::Result<()> {
    let path = folder.join("RESULTS.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let names: Vec<&str> = played.iter().map(|played| played.name.as_str()).collect();
    let kept = section(&page).map(|old| rows_of_others(old, &names)).unwrap_or_default();
    std::fs::write(&path, with_section(&page, &(summary::markdown(played, kind) + &kept)))?;
    if let Some(pictured) = played.iter().find(|played| played.name == PICTURED) {
        std::fs::write(folder.join("autoscale.svg"), picture::draw(&pictured.trace))?;
    }
    Ok(())
}

/// The new page with the section of the old page, if there is one.
pub(crate) fn keep_section(old: &str, new: &str) -> String {
    match section(old) {
        Some(kept) => with_section(new, kept),
        None => new.to_owned(),
    }
}

fn section(page: &str) -> Option<&str> {
    let (_, after) = page.split_once(BEGINS)?;
    Some(after.split_once(ENDS)?.0.trim())
}

/// The table rows of a section, except those of the named scenarios.
fn rows_of_others(section: &str, names: &[&str]) -> String {
    let rows = section.lines().filter(|line| {
        let scenario = line.strip_prefix("| ").and_then(|row| row.split_once(" |"));
        scenario.is_some_and(|(scenario, _)| scenario != "scenario" && !names.contains(&scenario))
    });
    rows.map(|row| format!("{row}\n")).collect()
}

/// The page with this section in place of the old section, or at the end.
fn with_section(page: &str, section: &str) -> String {
    let section = format!("{BEGINS}\n{}\n{ENDS}\n", section.trim());
    match page.split_once(BEGINS).and_then(|(before, after)| Some((before, after.split_once(ENDS)?.1))) {
        Some((before, after)) => format!("{before}{section}{}", after.trim_start_matches('\n')),
        None => format!("{}\n\n{section}", page.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_section_is_replaced_in_place_and_kept_when_the_rest_is_rewritten() {
        let first = with_section("# Results\n\n| a |\n", "## Autoscaling\n");
        assert_eq!(first, format!("# Results\n\n| a |\n\n{BEGINS}\n## Autoscaling\n{ENDS}\n"));
        let second = with_section(&first, "## Again");
        assert_eq!(second, format!("# Results\n\n| a |\n\n{BEGINS}\n## Again\n{ENDS}\n"));
        assert_eq!(keep_section(&second, "# New\n"), format!("# New\n\n{BEGINS}\n## Again\n{ENDS}\n"));
        assert_eq!(keep_section("# Old\n", "# New\n"), "# New\n");
    }

    #[test]
    fn rows_of_scenarios_that_were_not_played_stay() {
        let old = "## A\n\n| scenario | promise | measured | |\n|---|---|---|---|\n| steps | p | 1 | met |\n| capped | p | 2 | met |";
        assert_eq!(rows_of_others(old, &["capped"]), "| steps | p | 1 | met |\n");
    }
}
