//! What a finding is, and how it names what it is about.

use serde::Serialize;

/// Examples in one finding.
pub(super) const NAMED: usize = 3;

/// How serious a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Severity {
    /// It keeps Weir from its work.
    Problem,
    Note,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    /// `store`, `queue`, `clock`, `processes`, `versions`, `lag`, `backlog`, `receivers`, `limits`, `disk` or `server`.
    pub(super) subject: &'static str,
    /// What is wrong, and why.
    pub(super) found: String,
    pub(super) next_step: String,
}

pub(super) fn finding(
    severity: Severity,
    subject: &'static str,
    found: impl Into<String>,
    next_step: impl Into<String>,
) -> Finding {
    Finding { severity, subject, found: found.into(), next_step: next_step.into() }
}

/// `Acme, Bolt and 3 more`.
pub(super) fn listed<'a>(titles: impl Iterator<Item = &'a str>) -> String {
    let titles: Vec<_> = titles.collect();
    let first = titles.iter().take(NAMED).copied().collect::<Vec<_>>().join(", ");
    match titles.len() {
        many if many > NAMED => format!("{first} and {} more", many - NAMED),
        _ => first,
    }
}
