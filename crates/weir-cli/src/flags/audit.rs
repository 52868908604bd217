//! The flags of `weir audit`.

use std::path::PathBuf;

use clap::Args;
use clap_complete::engine::ArgValueCompleter;
use url::Url;

use super::{
    api::{ServerFlags, server_url},
    complete::destination_names,
    time::PastTime,
};

#[derive(Debug, Clone, Args)]
pub struct AuditArgs {
    #[command(flatten)]
    pub server: ServerFlags,
    /// The former name of --server
    #[arg(long, value_name = "URL", value_parser = server_url, hide = true, conflicts_with = "server")]
    pub url: Option<Url>,
    /// Audit only this destination, by id or name; may be repeated
    #[arg(long = "destination", value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
    pub destinations: Vec<String>,
    /// Audit only the sends of this limit key of the destination, by its own limits; `""` is that of events without one
    #[arg(long, value_name = "KEY", requires = "destinations")]
    pub limit_key: Option<String>,
    /// Ignore sends before this time: 2h (ago), yesterday, a date, or RFC 3339 [default: a day before --to]
    #[arg(long, visible_alias = "since", value_name = "TIME")]
    pub from: Option<PastTime>,
    /// Ignore sends at or after this time: as for --from [default: now]
    #[arg(long, visible_alias = "until", value_name = "TIME")]
    pub to: Option<PastTime>,
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,
    /// Write a chart of the sends and the limits to this file (SVG)
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}
