//! `weir audit`: requests the audits of the destinations from a running server and shows them as a table, as JSON or as
//! a chart.
//!
//! Without `--from` and `--to`, the audit covers the last day. The server computes it (`GET
//! /v1/destinations/{id}/audit`, implemented in `weir_core::audit`); this command only collects and shows the results.

mod report;

use std::path::Path;

use anyhow::Context as _;

pub use report::Audited;

use super::{
    client::{Client, Fields},
    connection::Connection,
    destinations_of, with_remedy,
};
use crate::{
    exit::Exit,
    flags::audit::AuditArgs,
    output::{self, Screen},
};

/// Audits the selected destinations. Ends with [`Exit::Failure`] if any limit was exceeded.
pub(super) async fn run(arguments: AuditArgs) -> anyhow::Result<Exit> {
    let mut server = arguments.server.clone();
    server.server = server.server.or_else(|| arguments.url.clone());
    let client = Client::new(Connection::find(&server)?)?;
    let audited = audits(&client, &arguments).await.map_err(with_remedy)?;
    if let Some(file) = &arguments.svg {
        draw(file, "Sends and limits", &audited)?;
    }
    if arguments.json {
        output::print(&serde_json::to_string_pretty(&audited)?)?;
    } else {
        let screen = Screen::of_stdout();
        output::show(&in_words(&audited, screen), screen)?;
    }
    Ok(exit(&audited))
}

/// The table of audits with the verdict.
pub(super) fn in_words(audited: &[Audited], screen: Screen) -> String {
    let violations: u64 = audited.iter().map(|audited| audited.report.violations()).sum();
    let possible: u64 = audited.iter().map(|audited| audited.report.possible_violations()).sum();
    format!("{}\n{}{}", table(audited, screen), report::unknown(audited), verdict(violations, possible))
}

/// [`Exit::Failure`] if any limit was exceeded.
pub(super) fn exit(audited: &[Audited]) -> Exit {
    if audited.iter().all(|audited| audited.report.violations() == 0) { Exit::Done } else { Exit::Failure }
}

/// The table of audits, for a screen.
pub fn table(audited: &[Audited], screen: Screen) -> String {
    report::table(audited, screen)
}

async fn audits(client: &Client, arguments: &AuditArgs) -> anyhow::Result<Vec<Audited>> {
    let mut range = Fields::new();
    for (name, time) in [("from", arguments.from), ("to", arguments.to)] {
        range.extend(time.map(|time| (name.to_owned(), time.0.to_string().into())));
    }
    let limit_key = arguments.limit_key.clone();
    range.extend(limit_key.iter().map(|key| ("key".to_owned(), key.as_str().into())));
    let mut audited = Vec::new();
    for destination in destinations_of(client, &arguments.destinations).await? {
        let report = client.get(&["v1", "destinations", &destination.id, "audit"], &range).await?.read()?;
        audited.push(Audited {
            id: destination.id,
            name: destination.settings.name,
            limit_key: limit_key.clone(),
            report,
        });
    }
    Ok(audited)
}

/// Writes a chart of the sends and the limits of every destination.
pub fn draw(file: &Path, title: &str, audited: &[Audited]) -> anyhow::Result<()> {
    std::fs::write(file, report::chart_svg(title, audited))
        .with_context(|| format!("cannot write the chart to {} (--svg)", file.display()))
}

/// The verdict on certain violations, and on violations that depend on sends of unknown outcome.
fn verdict(violations: u64, possible: u64) -> String {
    let certain = match violations {
        0 => "Every limit was kept in every sliding window.".to_owned(),
        1 => "1 send BROKE a limit.".to_owned(),
        several => format!("{several} sends BROKE a limit."),
    };
    match possible {
        0 => certain,
        possible => format!(
            "{certain} If the sends of unknown outcome started at their latest instant, {possible} more did not fit."
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn the_verdict_separates_certain_and_possible_violations() {
        assert_eq!(verdict(0, 0), "Every limit was kept in every sliding window.");
        assert_eq!(verdict(2, 0), "2 sends BROKE a limit.");
        let possible = verdict(0, 8);
        assert!(
            possible.starts_with("Every limit was kept") && possible.ends_with("8 more did not fit."),
            "{possible}"
        );
    }
}
