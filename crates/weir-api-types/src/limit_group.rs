//! Limit groups: budgets that several destinations share.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::{Binding, Hold, LimitChange, Override, RateLimit, RecentReservations};

/// A budget that several destinations share, because the receiver counts them as one account.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitGroup {
    #[schema(pattern = "^lgr_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "lgr_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    #[schema(example = "Stripe")]
    pub name: String,
    /// Null: its members may be of any tenant.
    #[schema(example = "acme")]
    pub tenant: Option<String>,
    /// Of the sends of all members together; empty: unlimited.
    pub rate_limits: Vec<RateLimit>,
    /// The maximum number of sends of all members that are started and not yet settled; null: only theirs.
    pub max_in_flight: Option<u32>,
    /// The limits in force in place of those of the settings; null: those of the settings are.
    #[serde(rename = "override")]
    pub overridden: Option<Override>,
    /// Nothing is sent before its end; null: none.
    pub hold: Option<Hold>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
}

/// A limit group whose limits are overridden.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverriddenLimitGroup {
    #[serde(flatten)]
    pub limit_group: LimitGroup,
    /// The override that was in force before and has ended with this one.
    pub replaced: Option<Override>,
}

/// A limit group that is held.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct HeldLimitGroup {
    #[serde(flatten)]
    pub limit_group: LimitGroup,
    /// The hold that was in force before and has ended with this one.
    pub replaced: Option<Hold>,
}

/// A limit group with its figures.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitGroupRow {
    #[serde(flatten)]
    pub limit_group: LimitGroup,
    /// How many destinations are in it.
    pub members: u64,
    /// Pending and retrying deliveries of all members.
    pub backlog: u64,
    pub delivering: u64,
    /// The age of the oldest waiting delivery; null if there is none.
    pub oldest_age_s: Option<f64>,
    /// The rate that the limits and their margins allow; null if unlimited.
    pub configured_per_s: Option<f64>,
    /// The strictest limit.
    pub binding: Option<Binding>,
    /// The sends of the last 10 to 20 seconds, per second.
    pub achieved_per_s: f64,
    /// The new deliveries of the last minute, per second; in the first minute of a flood, of the time since it began.
    pub arrivals_per_s: f64,
    /// The share of the rate that is used, 0 to 1; null if unlimited.
    pub utilisation: Option<f64>,
    /// The estimated time until nothing waits at any member; null if that never happens or is unknown.
    pub drain_eta_s: Option<f64>,
    /// Whether all backlogs get empty at the rate of arrivals; null if unknown.
    pub drains: Option<bool>,
}

/// A limit group with its members.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitGroupOverview {
    pub as_of: Timestamp,
    #[serde(flatten)]
    pub row: LimitGroupRow,
    /// What callers outside Weir take beside the members.
    pub reservations: RecentReservations,
    /// The members that the key sees, the largest backlog first.
    #[schema(max_items = 1000)]
    pub data: Vec<LimitGroupMember>,
}

impl LimitGroupOverview {
    /// What a member may send of the rate, and with whom it shares it, for people. `None`: the group is unlimited, or the
    /// destination is no member. `rate` writes a number per second.
    pub fn share_in_words(&self, destination: &str, rate: impl Fn(f64) -> String) -> Option<String> {
        let member = self.data.iter().find(|member| member.id == destination)?;
        let (whole, share) = (rate(self.row.configured_per_s?), rate(member.share_per_s?));
        let others = self.data.iter().filter(|other| other.id != destination && other.backlog > 0).count();
        let with = match others {
            // Members of tenants that the key does not see may have one too.
            _ if self.row.members > self.data.len() as u64 => "with members that this key does not all see".to_owned(),
            0 => "and no other member has a backlog".to_owned(),
            1 => "with 1 other that has a backlog".to_owned(),
            others => format!("with {others} others that have a backlog"),
        };
        Some(format!("shares {whole} of {} {with}: about {share}", self.row.limit_group.name))
    }
}

/// A destination in a limit group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitGroupMember {
    #[schema(pattern = "^dst_[0-7][0-9a-hjkmnp-tv-z]{25}$", example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    pub name: String,
    pub url: String,
    pub tenant: String,
    pub weight: u32,
    pub backlog: u64,
    pub achieved_per_s: f64,
    /// The part of the group's rate that it may use now: by its weight among the members with a backlog, and with what
    /// others leave, but no more than its own limits and limit keys allow. Null if the group is unlimited.
    pub share_per_s: Option<f64>,
    /// The part of the group's rate that it uses, 0 to 1; null if unlimited.
    pub utilisation: Option<f64>,
    pub drain_eta_s: Option<f64>,
    /// Whether its backlog gets empty at the rate of arrivals; null if unknown.
    pub drains: Option<bool>,
    /// Why its backlog is not sent faster, as in the overview of destinations: `group` if the group binds, `limit` or `key` if its own limits or those of its limit keys do.
    #[schema(
        pattern = "^(paused|breaker|refused_within_limit|held|ordered|failing|slow|adaptive|group|key|limit|queue_away|store_slow|store_unwritable|no_worker|no_scheduler|workers_full|not_started|not_published)$",
        example = "group"
    )]
    pub reason: Option<String>,
}

/// What happened at all members of a limit group together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitGroupHistory {
    /// The length of the buckets.
    #[schema(pattern = "^(10s|1m|1h)$", example = "10s")]
    pub step: String,
    pub from: Timestamp,
    pub to: Timestamp,
    /// One for each step from `from` to `to`.
    #[schema(max_items = 1500)]
    pub data: Vec<LimitGroupHistoryBucket>,
    /// The limits in force at `from`, and their changes in the range, with the begin and the end of overrides.
    pub limit_changes: Vec<LimitChange>,
}

/// One bucket of a limit group's history.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LimitGroupHistoryBucket {
    /// The beginning of the bucket.
    pub at: Timestamp,
    /// Sends that started.
    pub sends: u64,
    /// Attempts that succeeded.
    pub delivered: u64,
    /// Attempts that did not succeed, including those of unknown outcome and those that could not connect.
    pub failed: u64,
    /// New deliveries.
    pub arrivals: u64,
}
