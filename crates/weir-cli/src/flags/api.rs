//! The flags of the commands that call the API of a running server.
//!
//! Structs that derive `Serialize` have the names of the API: they are sent as the parameters or the body of a request,
//! without the flags that are not set.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use clap_complete::engine::ArgValueCompleter;
use serde::Serialize;
use url::Url;
use weir_core::event::MAX_COST;

use super::{
    complete::{destination_names, profile_names},
    time::{ComingTime, PastTime},
};

/// The heading of the flags that all of these commands have.
const COMMON: &str = "Common options";

/// The server, and the key for it.
#[derive(Debug, Clone, Args)]
pub struct ServerFlags {
    /// URL of the server [env: WEIR_URL] [default: that of the profile, or http://127.0.0.1:8080]
    #[arg(long, value_name = "URL", value_parser = server_url, global = true, help_heading = COMMON)]
    pub server: Option<Url>,
    /// File with the API key [default: the key in WEIR_API_KEY or of the profile]
    #[arg(long, value_name = "FILE", global = true, help_heading = COMMON)]
    pub key_file: Option<PathBuf>,
    /// API key. Other users can see it in the list of processes: prefer --key-file or WEIR_API_KEY
    #[arg(long, value_name = "KEY", alias = "api-key", conflicts_with = "key_file", global = true, help_heading = COMMON)]
    pub key: Option<KeyText>,
    /// Profile of ~/.config/weir/config.toml [env: WEIR_PROFILE] [default: the `profile` that the file names]
    #[arg(long, value_name = "NAME", global = true, help_heading = COMMON, add = ArgValueCompleter::new(profile_names))]
    pub profile: Option<String>,
}

/// An API key. It is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct KeyText(pub String);

impl From<&str> for KeyText {
    fn from(key: &str) -> Self {
        Self(key.to_owned())
    }
}

impl std::fmt::Debug for KeyText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("KeyText(…)")
    }
}

pub fn server_url(text: &str) -> Result<Url, String> {
    let url: Url = text.parse().map_err(|error| format!("{error}; use a URL such as http://127.0.0.1:8080"))?;
    match url.scheme() {
        "http" | "https" => Ok(url),
        other => Err(format!("the scheme is `{other}`; use http or https")),
    }
}

/// A command of the API with the flags that all of them have.
#[derive(Debug, Clone, Args)]
pub struct ApiArgs<C: Subcommand> {
    #[command(flatten)]
    pub call: CallFlags,
    #[command(subcommand)]
    pub command: C,
}

#[derive(Debug, Clone, Args)]
pub struct CallFlags {
    #[command(flatten)]
    pub server: ServerFlags,
    /// Print the JSON of the API instead of a table or text
    #[arg(long, global = true, help_heading = COMMON)]
    pub json: bool,
}

/// How much of a list is shown.
#[derive(Debug, Clone, Copy, Args)]
pub struct PageFlags {
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Show all of them
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
}

/// The answer to the question that a command asks before it changes much.
#[derive(Debug, Clone, Copy, Args)]
pub struct Consent {
    /// Do not ask for confirmation
    #[arg(long, short)]
    pub yes: bool,
}

#[derive(Debug, Clone, Subcommand)]
pub enum EventCommand {
    /// Post an event
    Post(PostArgs),
    /// List events
    List {
        #[command(flatten)]
        filter: EventFilter,
        #[command(flatten)]
        page: PageFlags,
    },
    /// Show an event, its data and its deliveries
    Show {
        #[arg(value_name = "EVENT")]
        id: String,
    },
}

#[derive(Debug, Clone, Args)]
pub struct PostArgs {
    #[command(flatten)]
    pub event: EventFields,
    /// The data, as JSON [default: null]
    #[arg(value_name = "DATA", conflicts_with = "file")]
    pub data: Option<String>,
    /// Read the data from this file; - is standard input
    #[arg(long, value_name = "FILE")]
    pub file: Option<PathBuf>,
    /// Deliver to this destination only, by id or name; may be repeated [default: all whose event types match]
    #[arg(long = "destination", value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
    pub destinations: Vec<String>,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct EventFields {
    /// The type, such as video.created
    #[arg(value_name = "TYPE")]
    pub r#type: String,
    /// The tenant [default: that of the key, or `default`]
    #[arg(long)]
    pub tenant: Option<String>,
    /// A second event with the same key is not stored
    #[arg(long, value_name = "KEY")]
    pub idempotency_key: Option<String>,
    /// Send nothing before this time: 10m (from now), tomorrow, a date, or RFC 3339
    #[arg(long, value_name = "TIME")]
    pub deliver_at: Option<ComingTime>,
    /// Deliveries that are not sent within this time expire
    #[arg(long, value_name = "SECONDS")]
    pub ttl_s: Option<u32>,
    /// Supersede waiting deliveries of this type and key
    #[arg(long, value_name = "KEY")]
    pub coalesce_key: Option<String>,
    /// Keep the order of events with this key, at ordered destinations
    #[arg(long, value_name = "KEY")]
    pub ordering_key: Option<String>,
    /// The limit key, in place of the one in the data, at destinations with limit keys
    #[arg(long, value_name = "KEY")]
    pub limit_key: Option<String>,
    /// How much of limits that count costs each send takes, 1 to 1000 [default: 1]
    #[arg(long, value_name = "POINTS", value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_COST)))]
    pub cost: Option<u32>,
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct EventFilter {
    /// Only the event with this idempotency key
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// Only events of this type: exact (video.created), a prefix (video.*) or *
    #[arg(long, value_name = "PATTERN")]
    r#type: Option<String>,
    /// Only this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only events created since: 2h (ago), yesterday, a date, or RFC 3339
    #[arg(long, visible_alias = "since", value_name = "TIME")]
    from: Option<PastTime>,
    /// Only events created before this time: as for --from
    #[arg(long, visible_alias = "until", value_name = "TIME")]
    to: Option<PastTime>,
}

/// Which deliveries are listed or replayed.
#[derive(Debug, Clone, Args, Serialize)]
pub struct DeliveryFilter {
    /// Only deliveries to this destination, by id or name
    #[arg(long, value_name = "ID|NAME", add = ArgValueCompleter::new(destination_names))]
    pub destination: Option<String>,
    /// Only this tenant
    #[arg(long)]
    tenant: Option<String>,
    /// Only events of this type: exact (video.created), a prefix (video.*) or *
    #[arg(long, value_name = "PATTERN")]
    event_type: Option<String>,
    /// Only deliveries whose last attempt had this error: timeout, connect, dns, tls, 5xx, 503, …
    #[arg(long, value_name = "ERROR")]
    error: Option<String>,
    /// Only events created since: 2h (ago), yesterday, a date, or RFC 3339
    #[arg(long, visible_alias = "since", value_name = "TIME")]
    from: Option<PastTime>,
    /// Only events created before this time: as for --from
    #[arg(long, visible_alias = "until", value_name = "TIME")]
    to: Option<PastTime>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum DeliveryCommand {
    /// List deliveries
    List {
        #[command(flatten)]
        filter: DeliveryFilter,
        /// Only deliveries with this limit key; needs --destination
        #[arg(long, value_name = "KEY", requires = "destination")]
        limit_key: Option<String>,
        /// Only deliveries of this event
        #[arg(long, value_name = "EVENT")]
        event: Option<String>,
        /// Only these states, separated by commas: pending, delivering, retrying, delivered, failed, dead, cancelled,
        /// superseded, expired
        #[arg(long, value_name = "STATE,…")]
        state: Option<String>,
        /// Show the oldest first
        #[arg(long)]
        oldest: bool,
        #[command(flatten)]
        page: PageFlags,
    },
    /// Count what is dead or failed, by destination and error
    Groups {
        #[command(flatten)]
        filter: DeliveryFilter,
        /// Only this state: dead or failed [default: both]
        #[arg(long)]
        state: Option<String>,
    },
    /// Show a delivery with its attempts
    Show {
        #[arg(value_name = "DELIVERY")]
        id: String,
    },
    /// Send deliveries again now, within the limits of their destinations
    Retry {
        #[arg(value_name = "DELIVERY", required = true)]
        ids: Vec<String>,
    },
    /// Cancel waiting deliveries
    Cancel {
        #[arg(value_name = "DELIVERY", required = true)]
        ids: Vec<String>,
    },
    /// Settle dead letters that nobody will send again: the named ones, or all that match
    Discard {
        #[arg(value_name = "DELIVERY", conflicts_with_all = ["destination", "tenant", "event_type", "error", "from", "to", "states", "dry_run"])]
        ids: Vec<String>,
        #[command(flatten)]
        filter: DeliveryFilter,
        /// Only this state: dead or failed; may be repeated [default: both]
        #[arg(long = "state", value_name = "STATE")]
        states: Vec<String>,
        /// Why, for the activity log
        #[arg(long)]
        reason: Option<String>,
        /// Only count the dead letters
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        consent: Consent,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum ReplayCommand {
    /// Send ended deliveries again, beside live traffic
    Create {
        #[command(flatten)]
        filter: DeliveryFilter,
        /// Only deliveries with this limit key; needs --destination
        #[arg(long, value_name = "KEY", requires = "destination")]
        limit_key: Option<String>,
        /// Only this state: dead, failed, cancelled or delivered; may be repeated [default: dead and failed]
        #[arg(long = "state", value_name = "STATE")]
        states: Vec<String>,
        /// Only count the deliveries
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        consent: Consent,
    },
    /// List replays with their progress
    List {
        #[command(flatten)]
        page: PageFlags,
    },
    /// Show the progress of a replay
    Show {
        #[arg(value_name = "REPLAY")]
        id: String,
    },
    /// Cancel a replay; its unsent deliveries return to their previous state
    Cancel {
        #[arg(value_name = "REPLAY")]
        id: String,
    },
}

#[derive(Debug, Clone, Subcommand)]
pub enum KeyCommand {
    /// List the API keys that are stored
    List {
        #[command(flatten)]
        page: PageFlags,
    },
    /// Create an API key and show it, once
    Create(KeyFields),
    /// Delete an API key; it is refused within a second
    Delete {
        #[arg(value_name = "KEY_ID")]
        id: String,
        #[command(flatten)]
        consent: Consent,
    },
}

#[derive(Debug, Clone, Args, Serialize)]
pub struct KeyFields {
    /// What the key is for
    #[arg(value_name = "NAME")]
    name: String,
    /// What the key may do
    #[arg(long, value_name = "ROLE", value_parser = ["ingest", "read", "operate", "admin"])]
    role: String,
    /// A tenant whose data the key may see and change; may be repeated [default: all tenants]
    #[arg(long = "tenant", value_name = "TENANT")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tenants: Vec<String>,
    /// When the key stops being valid: 90d (from now), a date, or RFC 3339 [default: never]
    #[arg(long, value_name = "TIME")]
    expires_at: Option<ComingTime>,
}

/// The most destinations that one command follows: each costs the server two requests a second.
const MAX_FOLLOWED: usize = 20;

#[derive(Debug, Clone, Args)]
pub struct TailArgs {
    #[command(flatten)]
    pub call: CallFlags,
    /// The destinations, by id or name; at most 20
    #[arg(value_name = "ID|NAME", required = true, num_args = 1..=MAX_FOLLOWED, add = ArgValueCompleter::new(destination_names))]
    pub destinations: Vec<String>,
    /// Begin with this many of the latest attempts
    #[arg(long, short = 'n', value_name = "N", default_value_t = 10)]
    pub lines: usize,
}
