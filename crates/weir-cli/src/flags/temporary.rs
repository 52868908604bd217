//! The flags of what lasts for a while, of a destination or a limit group: other limits, or a hold.

use clap::{ArgGroup, Args};
use serde::Serialize;

use super::{
    limit::LimitText,
    time::{ComingTime, Span},
};

/// How long something lasts, and why.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("lasts").required(true).args(["for_span", "until", "end"]))]
pub struct Lasts {
    /// For how long, such as 2h
    #[arg(long = "for", value_name = "SPAN", conflicts_with_all = ["until", "end"])]
    pub for_span: Option<Span>,
    /// Until when: a time, or a span from now
    #[arg(long, value_name = "TIME", conflicts_with = "end")]
    pub until: Option<ComingTime>,
    /// Why; whoever sees the destination or group sees it
    #[arg(long, value_name = "TEXT", required_unless_present = "end", conflicts_with = "end")]
    pub reason: Option<String>,
    /// End it now
    #[arg(long)]
    pub end: bool,
}

/// Other limits, and how long they last.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("overridden").required(true).multiple(true)
    .args(["rate_limits", "unlimited", "max_in_flight", "end"]))]
pub struct OverrideFlags {
    #[command(flatten)]
    pub limits: OtherLimits,
    /// No limit until the end
    #[arg(long, conflicts_with_all = ["rate_limits", "end"])]
    pub unlimited: bool,
    #[command(flatten)]
    pub lasts: Lasts,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct OtherLimits {
    /// A limit until the end, such as 50/second; repeat it for several
    #[arg(long = "limit", value_name = "N/PERIOD", conflicts_with = "end")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rate_limits: Vec<LimitText>,
    /// The most sends in flight until the end
    #[arg(long, value_name = "N", conflicts_with = "end")]
    max_in_flight: Option<u32>,
}
