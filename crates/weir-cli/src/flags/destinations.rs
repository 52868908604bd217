//! The flags of `weir destinations`.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use serde::Serialize;
use serde_json::Value;

use super::{
    api::{Consent, PageFlags},
    complete::destination_names,
    limit::LimitText,
    limit_keys::KeyFlags,
    temporary::{Lasts, OverrideFlags},
    time::PastTime,
};

#[derive(Debug, Clone, Subcommand)]
pub enum DestinationCommand {
    /// List destinations
    List {
        #[command(flatten)]
        filter: DestinationFilter,
        #[command(flatten)]
        page: PageFlags,
    },
    /// Show a destination, its settings and its backlog
    Show(One),
    /// Create a destination and show its secret
    Create {
        /// Where deliveries are sent
        #[arg(value_name = "URL")]
        url: Option<String>,
        /// The tenant [default: that of the key, or `default`]
        #[arg(long)]
        tenant: Option<String>,
        /// Start paused: nothing is sent
        #[arg(long)]
        paused: bool,
        #[command(flatten)]
        changes: Box<Changes>,
    },
    /// Edit a destination. New limits are in effect within 100 ms; the edit is refused if another one came between
    Edit {
        #[command(flatten)]
        one: One,
        /// Another URL. An edit to another host drops headers that it does not repeat
        #[arg(long)]
        url: Option<String>,
        #[command(flatten)]
        changes: Box<Changes>,
    },
    /// Send nothing until `resume`; deliveries wait
    Pause(Several),
    /// Send again, also after an open breaker or during a hold
    Resume(Several),
    /// End the wait that a receiver has asked for (Retry-After, a used-up quota)
    Release(Several),
    /// Other limits for a while, in place of those of the settings; they end by themselves
    Override {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        instead: OverrideFlags,
    },
    /// Send nothing for a while; it ends by itself
    Hold {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        lasts: Lasts,
    },
    /// Delete destinations: what waits is cancelled, the history stays
    Delete {
        #[command(flatten)]
        several: Several,
        #[command(flatten)]
        consent: Consent,
    },
    /// Send a test event to a destination
    Test(One),
    /// Say whether an event would pass the filter of a destination, and which conditions hold
    TryFilter {
        #[command(flatten)]
        one: One,
        /// The data of an event (JSON)
        #[arg(long, value_name = "JSON", value_parser = json, required_unless_present = "event", conflicts_with = "event")]
        data: Option<Value>,
        /// An event whose data to try
        #[arg(long, value_name = "ID")]
        event: Option<String>,
        /// Another filter than that of the destination (JSON)
        #[arg(long, value_name = "JSON", value_parser = json)]
        filter: Option<Value>,
    },
    /// Cancel the waiting deliveries of a destination
    Purge {
        #[command(flatten)]
        one: One,
        #[command(flatten)]
        filter: PurgeFilter,
        /// Only count the deliveries
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        consent: Consent,
    },
    /// Show the secret that signs
    Secret(One),
    /// Make a new secret; both secrets sign during the overlap
    RotateSecret {
        #[command(flatten)]
        one: One,
        /// How long the previous secret signs too [default: a day]
        #[arg(long, value_name = "SECONDS")]
        overlap_s: Option<u32>,
        /// Read the new secret from this file; - is standard input [default: a secret is made]
        #[arg(long, value_name = "FILE")]
        secret_file: Option<PathBuf>,
        /// Rotate although the previous secret still signs, which it then does no more
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        consent: Consent,
    },
}

#[derive(Debug, Clone, Args)]
pub struct One {
    /// The destination, by id or name
    #[arg(value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
    pub destination: String,
}

#[derive(Debug, Clone, Args)]
pub struct Several {
    /// The destinations, by id or name
    #[arg(value_name = "ID|NAME", required = true, add = ArgValueCompleter::new(destination_names))]
    pub destinations: Vec<String>,
}

/// The settings that `create` and `edit` have in common.
#[derive(Debug, Clone, Args)]
pub struct Changes {
    #[command(flatten)]
    pub fields: Fields,
    /// Remove all limits, and the minimum interval
    #[arg(long, conflicts_with_all = ["rate_limits", "min_interval_ms"])]
    pub unlimited: bool,
    /// Remove the minimum interval
    #[arg(long, conflicts_with = "min_interval_ms")]
    pub no_min_interval: bool,
    /// Reach the destination as the installation does
    #[arg(long, conflicts_with = "proxy")]
    pub default_proxy: bool,
    #[command(flatten)]
    pub keys: KeyFlags,
    #[command(flatten)]
    pub adaptive: AdaptiveFlags,
    #[command(flatten)]
    pub tls: TlsFiles,
    /// Remove the filter: deliver every event of the types
    #[arg(long, conflicts_with = "filter")]
    pub no_filter: bool,
    /// Read the secret from this file; - is standard input [default: `create` makes one]
    #[arg(long, value_name = "FILE")]
    pub secret_file: Option<PathBuf>,
    /// Read further settings (JSON, as in the API) from this file; - is standard input. Flags override them
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// The pace that finds itself.
#[derive(Debug, Clone, Args)]
pub struct AdaptiveFlags {
    /// Find the pace below the limits by what the receiver takes
    #[arg(long)]
    pub adaptive: bool,
    #[command(flatten)]
    pub bounds: AdaptiveBounds,
    /// Let only the limits bound the pace
    #[arg(long, conflicts_with_all = ["adaptive", "adaptive_min_per_s", "adaptive_max_per_s", "adaptive_latency"])]
    pub no_adaptive: bool,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct AdaptiveBounds {
    /// The adaptive pace is never slower than this [default: 0.0167, one a minute]
    #[arg(long = "adaptive-min-per-s", id = "adaptive_min_per_s", value_name = "N")]
    min_per_s: Option<f64>,
    /// The adaptive pace is never faster than this [default: up to the limits]
    #[arg(long = "adaptive-max-per-s", id = "adaptive_max_per_s", value_name = "N")]
    max_per_s: Option<f64>,
    /// Whether late answers bound the requests in flight too [default: true]
    #[arg(long = "adaptive-latency", id = "adaptive_latency", value_name = "true|false")]
    latency: Option<bool>,
}

/// Certificates and a key, in PEM.
#[derive(Debug, Clone, Args)]
pub struct TlsFiles {
    /// Trust the authorities in this file (PEM) for the destination, instead of the public ones
    #[arg(long, value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Show the receiver the certificate in this file (PEM, with the chain behind it)
    #[arg(long, value_name = "FILE")]
    pub client_certificate_file: Option<PathBuf>,
    /// The key of the client certificate (PEM, without a password)
    #[arg(long, value_name = "FILE")]
    pub client_key_file: Option<PathBuf>,
    /// Remove the authorities and the client certificate
    #[arg(long, conflicts_with_all = ["ca_file", "client_certificate_file", "client_key_file"])]
    pub no_tls: bool,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct Fields {
    /// A name for people
    #[arg(long)]
    name: Option<String>,
    /// Deliver events of this type: video.created, video.* or *; may be repeated [default: *]
    #[arg(long = "event-type", value_name = "PATTERN")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    event_types: Vec<String>,
    /// Deliver only events whose data matches (JSON), such as '{"/amount": {"gte": 100}}'
    #[arg(long, value_name = "JSON", value_parser = json)]
    filter: Option<Value>,
    /// A limit, such as 10/second, 10/s or 190/10s, or 300/minute:5 with a burst, or 300/minute:window for sends that
    /// need not be even, or 10/second+50ms with a margin for a network with jitter; one for each period
    #[arg(long = "limit", value_name = "N/PERIOD[:BURST|:window][+MARGIN]")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rate_limits: Vec<LimitText>,
    /// The least time between two sends, for receivers that refuse a request too soon after another
    #[arg(long, value_name = "MS")]
    min_interval_ms: Option<u32>,
    /// Share the budget of this limit group, by id or name; none leaves the group
    #[arg(long, value_name = "ID|NAME|none")]
    limit_group: Option<String>,
    /// Its part of the group's rate, beside the weights of the other members [default: 1]
    #[arg(long, value_name = "N")]
    weight: Option<u32>,
    /// Most sends that are under way at one time
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
    /// Time limit of one attempt
    #[arg(long, value_name = "MS")]
    timeout_ms: Option<u32>,
    /// Deliver events of one ordering key one after the other
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    ordered: Option<bool>,
    /// Let later events pass one that has failed this often
    #[arg(long, value_name = "N")]
    skip_after_attempts: Option<u32>,
    /// Count refusals (429, a used-up quota) against the most attempts
    #[arg(long, value_name = "true|false", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    refusals_count: Option<bool>,
    /// A header of every request; may be repeated. Others can see it in the list of processes: prefer --file
    #[arg(long = "header", value_name = "NAME:VALUE", value_parser = header)]
    #[serde(serialize_with = "as_object", skip_serializing_if = "Vec::is_empty")]
    headers: Vec<(String, String)>,
    /// Sign as the receivers of this sender verify: standard, stripe, github, slack, …; a custom style comes with --file
    #[arg(long, value_name = "STYLE")]
    #[serde(serialize_with = "as_style", skip_serializing_if = "Option::is_none")]
    signature: Option<String>,
    /// The form of the body: envelope, data, cloudevents or cloudevents-binary
    #[arg(long, value_name = "FORMAT")]
    #[serde(serialize_with = "as_format", skip_serializing_if = "Option::is_none")]
    body: Option<String>,
    /// Reach the destination through this HTTP proxy, or `direct` without that of the installation. Others can see a password
    /// in the list of processes: prefer --file
    #[arg(long, value_name = "URL|direct")]
    proxy: Option<String>,
}

impl Fields {
    /// The header that two flags name. One of them would be lost.
    pub fn header_given_twice(&self) -> Option<&str> {
        let names = self.headers.iter().map(|(name, _)| name);
        let twice = |(index, name): &(usize, &String)| self.headers[..*index].iter().any(|(other, _)| other == *name);
        names.enumerate().find(twice).map(|(_, name)| name.as_str())
    }
}

fn json(text: &str) -> Result<Value, String> {
    serde_json::from_str(text).map_err(|error| format!("this is no JSON: {error}"))
}

fn header(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once(':').ok_or("use a name and a value, such as x-api-key:secret")?;
    Ok((name.trim().to_ascii_lowercase(), value.trim().to_owned()))
}

fn as_object<S: serde::Serializer>(headers: &[(String, String)], serializer: S) -> Result<S::Ok, S::Error> {
    headers.iter().map(|(name, value)| (name, value)).collect::<BTreeMap<_, _>>().serialize(serializer)
}

fn as_style<S: serde::Serializer>(style: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    BTreeMap::from([("style", style)]).serialize(serializer)
}

fn as_format<S: serde::Serializer>(format: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    BTreeMap::from([("format", format)]).serialize(serializer)
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct DestinationFilter {
    /// Only this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only destinations with exactly this name
    #[arg(long)]
    name: Option<String>,
    /// Only destinations with exactly this URL
    #[arg(long)]
    url: Option<String>,
    /// Only this state: active, paused, held or breaker
    #[arg(long)]
    state: Option<String>,
    /// Only destinations with this text in the name or the URL
    #[arg(long = "search", short = 's', value_name = "TEXT")]
    q: Option<String>,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct PurgeFilter {
    /// Only this state: pending or retrying [default: both]
    #[arg(long = "state", value_name = "STATE")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    states: Vec<String>,
    /// Only events of this type: exact (video.created), a prefix (video.*) or *
    #[arg(long, value_name = "PATTERN")]
    event_type: Option<String>,
    /// Only deliveries with this limit key
    #[arg(long, value_name = "KEY")]
    limit_key: Option<String>,
    /// Only events created before this time: 2h (ago), yesterday, a date, or RFC 3339
    #[arg(long, value_name = "TIME")]
    before: Option<PastTime>,
}
