//! `weir audit`: asks a running server for the audits of its destinations, and shows them as a table, as JSON, as a picture.
//!
//! The judging is the server's (`GET /v1/destinations/{id}/audit`, one implementation in `weir_core::audit`); this command
//! collects, shows and draws.

mod client;
mod report;

use std::io::Write;

use anyhow::Context;
use serde_json::json;

pub(super) use report::{Audited, picture, table};

use crate::cli::{AuditArgs, Exit};
use client::Client;

/// Audits what was asked for. [`Exit::Failure`] when any destination was sent more than its limits allowed.
pub(super) async fn run(args: &AuditArgs) -> anyhow::Result<Exit> {
    let client = Client::new(args)?;
    let mut audited = Vec::new();
    for destination in client.destinations(&args.destinations).await? {
        let report = client.audit(&destination).await?;
        audited.push(Audited { id: destination.id, name: destination.name, report });
    }
    let violations: u64 = audited.iter().map(|audited| audited.report.violations()).sum();

    if let Some(path) = &args.svg {
        std::fs::write(path, picture("Sends against the cap", &audited))
            .with_context(|| format!("cannot write the picture to {} (--svg)", path.display()))?;
    }
    let mut out = std::io::stdout().lock();
    if args.json {
        let document = json!({ "destinations": audited, "violations": violations });
        serde_json::to_writer_pretty(&mut out, &document)?;
        writeln!(out)?;
    } else {
        writeln!(out, "{}", table(&audited))?;
        writeln!(out, "{}", verdict(audited.len(), violations))?;
    }
    Ok(if violations == 0 { Exit::Done } else { Exit::Failure })
}

fn verdict(destinations: usize, violations: u64) -> String {
    let destinations = match destinations {
        1 => "1 destination".to_owned(),
        several => format!("{several} destinations"),
    };
    match violations {
        0 => format!("{destinations}: every limit was kept in every sliding window"),
        1 => format!("{destinations}: 1 send BROKE a limit"),
        several => format!("{destinations}: {several} sends BROKE a limit"),
    }
}
