//! The sections of `RESULTS.md` that other commands than the bench write. The bench keeps them.

use std::path::Path;

use anyhow::Context;

/// The names of the sections, in the order of the page.
const ALL: [&str; 6] = [AUTOSCALING, ADAPTIVE, ADAPTIVE_EMBEDDED, ADAPTIVE_SCALED, SHEDDING, BUDGETS];
pub(crate) const AUTOSCALING: &str = "autoscaling";
pub(crate) const ADAPTIVE: &str = "adaptive";
pub(crate) const ADAPTIVE_EMBEDDED: &str = "adaptive, embedded";
pub(crate) const ADAPTIVE_SCALED: &str = "adaptive, scaled";
pub(crate) const SHEDDING: &str = "shedding";
pub(crate) const BUDGETS: &str = "budgets";

fn marks(name: &str) -> (String, String) {
    (format!("<!-- {name} -->"), format!("<!-- end of {name} -->"))
}

/// Rewrites a section of `RESULTS.md` in this folder, from what it was.
pub(crate) fn rewrite(
    folder: &Path,
    name: &str,
    section_from: impl FnOnce(Option<&str>) -> String,
) -> anyhow::Result<()> {
    let path = folder.join("RESULTS.md");
    let page = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let section = section_from(section(&page, name));
    std::fs::write(&path, with_section(&page, name, &section)).context("cannot write the results")
}

/// The new page with the sections of the old page.
pub(crate) fn keep(old: &str, new: &str) -> String {
    let kept = |page: String, name: &str| match section(old, name) {
        Some(kept) => with_section(&page, name, kept),
        None => page,
    };
    ALL.into_iter().fold(new.to_owned(), kept)
}

fn section<'a>(page: &'a str, name: &str) -> Option<&'a str> {
    let (begins, ends) = marks(name);
    let (_, after) = page.split_once(&begins)?;
    Some(after.split_once(&ends)?.0.trim())
}

/// The page with this section in place of the old section, or at the end.
fn with_section(page: &str, name: &str, section: &str) -> String {
    let (begins, ends) = marks(name);
    let section = format!("{begins}\n{}\n{ends}\n", section.trim());
    match page.split_once(&begins).and_then(|(before, after)| Some((before, after.split_once(&ends)?.1))) {
        Some((before, after)) => format!("{before}{section}{after}", after = after.strip_prefix('\n').unwrap_or(after)),
        None => format!("{}\n\n{section}", page.trim_end()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_in_place_and_kept_when_the_rest_is_rewritten() {
        let page = with_section("# Results\n\n| a |\n", AUTOSCALING, "## Autoscaling\n");
        let page = with_section(&page, ADAPTIVE, "## Adaptive rate");
        let expected = |autoscaling: &str| {
            format!(
                "# Results\n\n| a |\n\n<!-- autoscaling -->\n{autoscaling}\n<!-- end of autoscaling -->\n\n<!-- adaptive \
                 -->\n## Adaptive rate\n<!-- end of adaptive -->\n"
            )
        };
        assert_eq!(page, expected("## Autoscaling"));
        let page = with_section(&page, AUTOSCALING, "## Again");
        assert_eq!(page, expected("## Again"));
        assert_eq!(keep(&page, "# Results\n\n| a |\n"), page);
        assert_eq!(keep("# Old\n", "# New\n"), "# New\n");
    }
}
