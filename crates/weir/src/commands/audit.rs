//! `weir audit`: did every destination of a running server keep its limits?
//!
//! The judging is the server's (`GET /v1/destinations/{id}/audit`, one implementation in `weir_core::audit`); this command
//! collects, shows and draws. It ends with exit code 1 when any limit was exceeded.

mod client;
mod table;

use std::path::Path;

use anyhow::Context as _;
use serde::Serialize;
use weir_core::{
    audit::AuditReport,
    chart::{self, Panel},
};

pub(super) use self::table::table;
use self::client::Client;
use crate::cli::{AuditArgs, Exit};

/// A destination and its audit.
#[derive(Debug, Serialize)]
pub(super) struct Audited {
    pub(super) id: String,
    pub(super) name: String,
    #[serde(flatten)]
    pub(super) report: AuditReport,
}

pub(super) async fn run(arguments: AuditArgs) -> anyhow::Result<Exit> {
    let audited = Client::new(&arguments)?.audits(&arguments).await?;
    if let Some(file) = &arguments.svg {
        draw(file, "Sends against the caps", &audited)?;
    }
    if arguments.json {
        println!("{}", serde_json::to_string_pretty(&audited)?);
    } else {
        println!("{}", table(&audited));
    }
    let kept = audited.iter().all(|audited| audited.report.violations() == 0);
    Ok(if kept { Exit::Done } else { Exit::Failure })
}

/// Draws the sends of every destination against its cap.
pub(super) fn draw(file: &Path, title: &str, audited: &[Audited]) -> anyhow::Result<()> {
    let notes: Vec<_> = audited.iter().map(|audited| note(&audited.report)).collect();
    let panels: Vec<_> = audited
        .iter()
        .zip(&notes)
        .map(|(audited, note)| Panel { title: &audited.name, note, series: audited.report.series.as_ref() })
        .collect();
    std::fs::write(file, chart::svg(title, &panels))
        .with_context(|| format!("cannot write the picture to {} (--svg)", file.display()))
}

fn note(report: &AuditReport) -> String {
    let limits: Vec<_> = report
        .rate_limits
        .iter()
        .map(|limit| {
            let worst = limit.worst_sliding_window.map_or(0, |window| window.sends);
            format!("{}, worst sliding window {worst}", table::cap(limit))
        })
        .collect();
    let cap = if limits.is_empty() { "no limit".to_owned() } else { limits.join(" · ") };
    format!("{} sends, {cap}", report.sends)
}
