//! The flags of the commands that show how things stand: `weir overview`, `alerts`, `activity`, `preview`, `simulate` and `open`.

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use serde::Serialize;

use super::{
    api::{CallFlags, PageFlags, ServerFlags},
    complete::destination_names,
    limit::LimitText,
    limit_keys::KeyFlags,
    time::{PastTime, Span},
};

#[derive(Debug, Clone, Args)]
pub struct OverviewArgs {
    #[command(flatten)]
    pub call: CallFlags,
    #[command(flatten)]
    pub filter: OverviewFilter,
    #[command(flatten)]
    pub page: PageFlags,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct OverviewFilter {
    /// Only this tenant
    #[arg(long)]
    pub tenant: Option<String>,
    /// Only destinations in this state: active, waiting (with a backlog), paused, held or breaker
    #[arg(long)]
    state: Option<String>,
    /// Only destinations with this text in the name or the URL
    #[arg(long = "search", short = 's', value_name = "TEXT")]
    q: Option<String>,
    /// The order: trouble (first what needs a person), name, backlog or oldest_age
    #[arg(long, value_name = "ORDER", default_value = "trouble")]
    sort: String,
}

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AlertsArgs {
    #[command(flatten)]
    pub call: CallFlags,
    #[command(subcommand)]
    pub command: Option<AlertCommand>,
    /// Only this tenant
    #[arg(long)]
    pub tenant: Option<String>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum AlertCommand {
    /// Show the thresholds of all destinations
    Thresholds,
    /// Set thresholds of all destinations. Those that are not named keep their values
    Set(Thresholds),
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct Thresholds {
    /// Raise an alert when this many deliveries wait; or: off
    #[arg(long, value_name = "N", value_parser = threshold)]
    backlog_depth: Option<Threshold>,
    /// Raise an alert when the oldest delivery has waited this many seconds; or: off
    #[arg(long, value_name = "SECONDS", value_parser = threshold)]
    oldest_age_s: Option<Threshold>,
    /// Raise an alert when a backlog drains only after deliveries have expired
    #[arg(long, value_name = "true|false")]
    drain_beyond_ttl: Option<bool>,
    /// Raise an alert after this many dead letters (dead or failed); or: off
    #[arg(long, value_name = "N", value_parser = threshold)]
    dead_letters: Option<Threshold>,
}

/// A threshold, or none, which is `null` in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Threshold(pub Option<u32>);

fn threshold(text: &str) -> Result<Threshold, String> {
    match text {
        "off" => Ok(Threshold(None)),
        text => text.parse().map(|number| Threshold(Some(number))).map_err(|_| "use a whole number, or off".to_owned()),
    }
}

impl Thresholds {
    /// The thresholds that are named, also those that are turned off.
    pub fn named(&self) -> Vec<(&'static str, serde_json::Value)> {
        let number = |threshold: Threshold| threshold.0.map_or(serde_json::Value::Null, Into::into);
        let numbers = [
            ("backlog_depth", self.backlog_depth),
            ("oldest_age_s", self.oldest_age_s),
            ("dead_letters", self.dead_letters),
        ];
        let numbers = numbers.into_iter().filter_map(|(name, value)| Some((name, number(value?))));
        numbers.chain(self.drain_beyond_ttl.map(|value| ("drain_beyond_ttl", value.into()))).collect()
    }
}

#[derive(Debug, Clone, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct SheddingArgs {
    #[command(flatten)]
    pub call: CallFlags,
    #[command(subcommand)]
    pub command: Option<SheddingCommand>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum SheddingCommand {
    /// Set limits. Those that are not named keep their values
    Set(ShedLimits),
}

#[derive(Debug, Clone, Args)]
pub struct ShedLimits {
    /// on, dry-run (count what would be refused), off; or auto: what the setting WEIR_SHED says
    #[arg(long, value_parser = ["on", "dry-run", "off", "auto"])]
    pub mode: Option<String>,
    /// How long an event may wait for the store before fewer events are let in
    #[arg(long, value_name = "MS")]
    pub target_ms: Option<u32>,
    /// Requests of a class in flight in each process: control, ingest, read or heavy, such as heavy=4 or heavy=auto
    #[arg(long, value_name = "CLASS=N", value_parser = shed_limit)]
    pub class: Vec<ShedLimit>,
    /// Requests of a client in flight in all processes: a tenant, the id of a key, or default, such as acme=32, with a
    /// weight acme=32:4, a fair share acme=auto:4, or acme=none to remove its limit
    #[arg(long, value_name = "CLIENT=N[:WEIGHT]", value_parser = shed_limit)]
    pub client: Vec<ShedLimit>,
}

/// A limit of a class or a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShedLimit {
    pub of: String,
    /// `None`: there is no limit of its own any more.
    pub limit: Option<(Threshold, Option<u32>)>,
}

fn shed_limit(text: &str) -> Result<ShedLimit, String> {
    let wanted = || "use NAME=NUMBER or NAME=auto, such as heavy=4".to_owned();
    let (of, limit) = text.rsplit_once('=').filter(|(of, _)| !of.is_empty()).ok_or_else(wanted)?;
    let of = of.to_owned();
    if limit == "none" {
        return Ok(ShedLimit { of, limit: None });
    }
    let (number, weight) = limit.split_once(':').map_or((limit, None), |(number, weight)| (number, Some(weight)));
    let number = if number == "auto" { None } else { Some(number.parse().map_err(|_| wanted())?) };
    let weight = weight.map(str::parse).transpose().map_err(|_| wanted())?;
    Ok(ShedLimit { of, limit: Some((Threshold(number), weight)) })
}

#[derive(Debug, Clone, Args)]
pub struct ActivityArgs {
    #[command(flatten)]
    pub call: CallFlags,
    #[command(flatten)]
    pub filter: ActivityFilter,
    #[command(flatten)]
    pub page: PageFlags,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct ActivityFilter {
    /// Only this destination, by id or name, with its deliveries and replays
    #[arg(long, value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
    pub destination: Option<String>,
    /// Only what this key did: its name or id; weir: Weir itself
    #[arg(long, value_name = "NAME")]
    actor: Option<String>,
    /// Only since: 2h (ago), yesterday, a date, or RFC 3339
    #[arg(long, visible_alias = "since", value_name = "TIME")]
    from: Option<PastTime>,
    /// Only before this time: as for --from
    #[arg(long, visible_alias = "until", value_name = "TIME")]
    to: Option<PastTime>,
}

#[derive(Debug, Clone, Args)]
pub struct PreviewArgs {
    #[command(flatten)]
    pub call: CallFlags,
    #[command(flatten)]
    pub tried: TriedFlags,
    /// As those of `weir destinations edit`: what they do not name stays.
    #[command(flatten)]
    pub keys: KeyFlags,
}

/// A destination, and what is tried at it.
#[derive(Debug, Clone, Args)]
pub struct TriedFlags {
    /// The destination, by id or name
    #[arg(value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
    pub destination: String,
    #[command(flatten)]
    pub settings: PreviewSettings,
    /// Try no limits, and no minimum interval
    #[arg(long, conflicts_with_all = ["rate_limits", "min_interval_ms"])]
    pub unlimited: bool,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct PreviewSettings {
    /// A limit, such as 20/s, or 300/minute:5 with a burst; one for each period [default: the current limits]
    #[arg(long = "limit", value_name = "N/PERIOD[:BURST|:window][+MARGIN]")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rate_limits: Vec<LimitText>,
    /// The least time between two sends
    #[arg(long, value_name = "MS")]
    min_interval_ms: Option<u32>,
    /// Most sends that are under way at one time
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
}

#[derive(Debug, Clone, Args)]
pub struct SimulateArgs {
    #[command(flatten)]
    pub call: CallFlags,
    #[command(flatten)]
    pub tried: TriedFlags,
    #[command(flatten)]
    pub past: PastFlags,
    /// Let no attempt fail: each delivery is sent once
    #[arg(long)]
    pub no_failures: bool,
    /// The time within which 99 of 100 deliveries should be answered: 10s, 5m, 1h [default: 60s]
    #[arg(long, value_name = "TIME")]
    pub target_p99: Option<Span>,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct PastFlags {
    /// Deliveries that were due since: 2h (ago), yesterday, a date, or RFC 3339 [default: a day before --to]
    #[arg(long, visible_alias = "since", value_name = "TIME")]
    from: Option<PastTime>,
    /// Deliveries that were due before this time: as for --from [default: now]
    #[arg(long, visible_alias = "until", value_name = "TIME")]
    to: Option<PastTime>,
    /// How many times the traffic: 2, or 0.5 [default: 1]
    #[arg(long, value_name = "FACTOR")]
    scale: Option<f64>,
}

#[derive(Debug, Clone, Args)]
pub struct StatusArgs {
    #[command(flatten)]
    pub call: CallFlags,
}

#[derive(Debug, Clone, Args)]
pub struct OpenArgs {
    #[command(flatten)]
    pub server: ServerFlags,
    /// A destination by id or name, or the id of a delivery, an event or a replay [default: the overview]
    #[arg(value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
    pub what: Option<String>,
    /// Only print the address
    #[arg(long)]
    pub print: bool,
}
