//! The flags of `weir limit-groups`.

use clap::{Args, Subcommand};
use serde::Serialize;

use super::{
    api::{Consent, PageFlags},
    limit::LimitText,
    temporary::{Lasts, OverrideFlags},
    time::{PastTime, Span},
};

#[derive(Debug, Clone, Subcommand)]
pub enum LimitGroupCommand {
    /// List the groups with their use and their backlog
    List {
        #[command(flatten)]
        page: PageFlags,
    },
    /// Show a group and its members: the share of each, and why it is not sent faster
    Show(OneGroup),
    /// Create a group; destinations join it with `weir destinations edit --limit-group`
    Create {
        #[arg(value_name = "NAME")]
        name: String,
        /// The tenant [default: that of the key, or `default`]
        #[arg(long)]
        tenant: Option<String>,
        /// Its members may be of any tenant
        #[arg(long, conflicts_with = "tenant")]
        all_tenants: bool,
        #[command(flatten)]
        budget: Budget,
    },
    /// Edit a group. New limits are in effect within 100 ms; the edit is refused if another one came between
    Edit {
        #[command(flatten)]
        one: OneGroup,
        /// Another name
        #[arg(long)]
        name: Option<String>,
        #[command(flatten)]
        budget: Budget,
        /// Remove all limits
        #[arg(long, conflicts_with = "rate_limits")]
        unlimited: bool,
        /// Bound the sends in flight only by those of the members
        #[arg(long, conflicts_with = "max_in_flight")]
        no_max_in_flight: bool,
    },
    /// Show what arrived at all members together and what was sent, and the limits that were in force
    History {
        #[command(flatten)]
        one: OneGroup,
        #[command(flatten)]
        range: Range,
        /// The length of a row: 10s, 1m or 1h [default: as short as the range allows]
        #[arg(long, value_name = "STEP", value_parser = ["10s", "1m", "1h"])]
        step: Option<String>,
    },
    /// Audit the sends of all members against the limits of the group. Exits with 1 if a limit was exceeded
    Audit {
        #[command(flatten)]
        one: OneGroup,
        #[command(flatten)]
        range: Range,
    },
    /// Reserve a slot for a call of your own: start it in the interval that is printed. Exits with 1 without a slot in time
    Reserve {
        #[command(flatten)]
        one: OneGroup,
        /// The tenant of the group, where the key may not list groups; `*`: a group for all tenants
        #[arg(long)]
        tenant: Option<String>,
        /// How long to wait for a slot, such as 10s; at most 30s [default: not at all]
        #[arg(long, value_name = "TIME")]
        wait: Option<Span>,
        /// How much of each limit with the unit `cost` the call takes [default: 1]
        #[arg(long, value_name = "N")]
        cost: Option<u32>,
    },
    /// List the slots that callers outside Weir have reserved
    Reservations {
        #[command(flatten)]
        one: OneGroup,
        #[command(flatten)]
        page: PageFlags,
    },
    /// Other limits for a while, in place of those of the settings; they end by themselves
    Override {
        #[command(flatten)]
        one: OneGroup,
        #[command(flatten)]
        instead: OverrideFlags,
    },
    /// Send nothing to any member for a while; it ends by itself
    Hold {
        #[command(flatten)]
        one: OneGroup,
        #[command(flatten)]
        lasts: Lasts,
    },
    /// Delete a group, which must have no members
    Delete {
        #[command(flatten)]
        one: OneGroup,
        #[command(flatten)]
        consent: Consent,
    },
}

#[derive(Debug, Clone, Args)]
pub struct OneGroup {
    /// The group, by id or name
    #[arg(value_name = "ID|NAME")]
    pub group: String,
}

/// A part of the past.
#[derive(Debug, Clone, Args, Serialize)]
pub struct Range {
    /// Only since: 2h (ago), yesterday, a date, or RFC 3339
    #[arg(long, visible_alias = "since", value_name = "TIME")]
    from: Option<PastTime>,
    /// Only before this time: as for --from [default: now]
    #[arg(long, visible_alias = "until", value_name = "TIME")]
    to: Option<PastTime>,
}

/// What the members share.
#[derive(Debug, Clone, Args, Serialize)]
pub struct Budget {
    /// A limit of the sends of all members together, as that of a destination; one for each period
    #[arg(long = "limit", value_name = "N/PERIOD[:BURST|:window][+MARGIN]")]
    #[serde(skip_serializing_if = "Vec::is_empty")]
    rate_limits: Vec<LimitText>,
    /// Most sends of all members that are under way at one time
    #[arg(long, value_name = "N")]
    max_in_flight: Option<u32>,
}
