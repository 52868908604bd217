//! The figures of destinations: backlog, overview, preview of other limits, and the stream.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_core::Timestamp;

use crate::{AdaptiveRate, Override, RateLimit, WaitsFor, references};

/// The backlog of a destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Backlog {
    /// Pending deliveries. All fields include deliveries that wait for their `deliver_at`.
    pub pending: u64,
    pub retrying: u64,
    pub delivering: u64,
    /// The age of the oldest of these deliveries; null if there is none.
    pub oldest_age_s: Option<f64>,
    /// The rate that the limits, their margins and the minimum interval allow; null if unlimited.
    pub configured_per_s: Option<f64>,
    /// The rate at which it can send now, as in a preview: the slots of the strictest limit, or what `max_in_flight`
    /// and the recent answer time allow. 0 while the destination is paused or held or its breaker is not closed, and a
    /// growing share after the breaker has closed; null if there is no limit and no recent answer.
    pub effective_per_s: Option<f64>,
    /// The sends of the last ten seconds, per second.
    pub achieved_per_s: f64,
    /// The new deliveries of the last minute, per second; in the first minute of a flood, of the time since it began.
    pub arrivals_per_s: f64,
    /// The estimated time until nothing waits, with the deliveries that arrive meanwhile; null if that never happens or
    /// is unknown, or while the destination is paused or its breaker is not closed.
    pub drain_eta_s: Option<f64>,
    /// Whether the backlog gets empty at the rate of arrivals; null if unknown, or while the destination is paused or its
    /// breaker is not closed. Deliveries that arrived all at once do not count as arrivals.
    pub drains: Option<bool>,
    /// The limit key that was asked for. Then `oldest_age_s` is of what waits, the rates are those of the last minute,
    /// `effective_per_s` is the `share_per_s` of the list of keys, and `drain_eta_s` is without new events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, example = "cus_1")]
    pub limit_key: Option<String>,
    /// What bounds this limit key, as in the list of keys. Absent if nothing waits or nothing bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = String, required = false, pattern = "^(paused|key|destination|destination_paused|destination_held|destination_breaker)$", example = "key")]
    pub binding: Option<String>,
    /// Of a limit key: more than 20,000 deliveries of it or of all keys wait, so the numbers may be too low or the rate may
    /// be shared with more keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = bool, required = false)]
    pub is_partial: Option<bool>,
}

/// One page of the overview.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Overview {
    pub as_of: Timestamp,
    pub totals: OverviewTotals,
    /// How many destinations the filters keep, and how many of them are before this page.
    pub matches: u64,
    pub skipped: u64,
    pub data: Vec<OverviewRow>,
    /// The `cursor` of the next page; null on the last page. Rows may move between two pages.
    pub next_cursor: Option<String>,
    /// The `cursor` of the page before; null on the first page.
    pub previous_cursor: Option<String>,
}

/// The sums over all destinations of the tenant, or of all that the key sees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverviewTotals {
    pub destinations: u64,
    pub backlog: u64,
    /// Dead and failed deliveries that were not sent again.
    pub undelivered: u64,
    pub achieved_per_s: f64,
    pub arrivals_per_s: f64,
    /// How many are paused, are held, have a breaker that is not closed, and have a backlog that more arrives for than
    /// may be sent: as `state` filters them.
    pub paused: u64,
    pub held: u64,
    pub breaker: u64,
    pub never_drains: u64,
}

/// A destination of the overview.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverviewRow {
    pub destination: BriefDestination,
    pub pending: u64,
    pub retrying: u64,
    pub delivering: u64,
    /// Dead and failed deliveries that were not sent again.
    pub undelivered: u64,
    /// Pending and retrying deliveries.
    pub backlog: u64,
    /// The age of the oldest of them; null if there is none.
    pub oldest_age_s: Option<f64>,
    /// The rate that the limits, their margins and the minimum interval allow; null if unlimited.
    pub configured_per_s: Option<f64>,
    /// The rate that is possible now, as in a preview: the slots of the strictest limit, the adaptive pace, or what the
    /// receiver answers while `max_in_flight` is reached. 0 while the destination is paused or held or its breaker is not closed, and a growing
    /// share after the breaker has closed; null if unlimited.
    pub effective_per_s: Option<f64>,
    /// The sends of the last 10 to 20 seconds, per second.
    pub achieved_per_s: f64,
    /// The new deliveries of the last minute, per second; in the first minute of a flood, of the time since it began.
    pub arrivals_per_s: f64,
    /// The share of this rate that is used, 0 to 1; null if unlimited.
    pub utilisation: Option<f64>,
    /// The strictest limit, or the minimum interval.
    pub binding: Option<Binding>,
    /// The estimated time until nothing waits, with the deliveries that arrive meanwhile; null if that never happens or
    /// is unknown, or while the destination is paused or its breaker is not closed.
    pub drain_eta_s: Option<f64>,
    /// Whether the backlog gets empty at the rate of arrivals; null if unknown, or while the destination is paused or its
    /// breaker is not closed.
    pub drains: Option<bool>,
    /// Why the backlog is not sent faster: it is paused, its breaker is not closed, the receiver refuses sends that keep
    /// the limit, it is held, deliveries wait for
    /// earlier ones of their key, its attempts fail (`failing`: none of the last minute succeeded), it answers slowly (`max_in_flight`), its adaptive pace, its share of its limit group, the own limits of the limit keys that wait (`key`; also if
    /// they are paused), or its limit. Or Weir itself does not send, or not
    /// as fast as it may: Redis does not answer, the database is slow or takes no writes, no worker or no scheduler runs, the workers have
    /// no free places, they hold its permits and start none, or the schedulers publish none. Null: nothing waits, or
    /// only for its retry.
    #[schema(
        pattern = "^(paused|breaker|refused_within_limit|held|ordered|failing|slow|adaptive|group|key|limit|queue_away|store_slow|store_unwritable|no_worker|no_scheduler|workers_full|not_started|not_published)$",
        example = "limit"
    )]
    pub reason: Option<String>,
    /// The present adaptive pace and why; null: the destination is not adaptive, or has not sent yet.
    pub adaptive_rate: Option<AdaptiveRate>,
    /// Refusals within the limit, also while nothing waits; null if none are known.
    pub refused_within_limit: Option<RefusedWithinLimit>,
    /// The last half hour, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(required = false)]
    pub recent: Option<RecentMinutes>,
}

impl OverviewRow {
    /// The deliveries in flight. The others of them wait for room, with permits that were published ahead.
    pub fn in_flight(&self) -> u64 {
        self.delivering.min(self.destination.max_in_flight.into())
    }
}

/// What happened at a destination in each of the last 30 minutes, the last of which has not ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RecentMinutes {
    /// The beginning of the first minute.
    pub from: Timestamp,
    /// Sends that started.
    pub sends: Vec<u64>,
    /// Attempts that did not succeed.
    pub failed: Vec<u64>,
    /// New deliveries.
    pub arrivals: Vec<u64>,
}

/// What happened at all destinations of the tenant, or at all that the key sees.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverviewHistory {
    pub as_of: Timestamp,
    pub data: Vec<OverviewMinute>,
}

/// One minute of all destinations.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct OverviewMinute {
    /// Its beginning.
    pub at: Timestamp,
    /// Sends that started.
    pub sends: u64,
    /// Attempts that succeeded.
    pub delivered: u64,
    /// Attempts that did not succeed.
    pub failed: u64,
    /// New deliveries.
    pub arrivals: u64,
    /// Deliveries that wait at its end.
    pub backlog: u64,
}

/// The row of one destination, measured anew, and what explains it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DestinationOverview {
    pub as_of: Timestamp,
    #[serde(flatten)]
    pub row: OverviewRow,
    /// How long the receiver takes to answer, on average over the last minute or two, or over five if it answered little.
    /// While `max_in_flight` is reached without an answer yet, by the rate of the sends. Null if it is not known.
    #[schema(example = 1_250.0)]
    pub answer_time_ms: Option<f64>,
    /// What keeps the destination from being sent to: a pause, a hold or a breaker.
    pub waits_for: Option<WaitsFor>,
    /// The setting that would let it send faster; null unless `reason` is `slow` or `limit`.
    pub advice: Option<Advice>,
    /// The last failed attempt; null while the breaker is closed, unless `reason` is `failing`.
    pub last_failure: Option<LastFailure>,
    /// How its last failed deliveries failed, the most frequent error first; empty while the breaker is closed, unless
    /// `reason` is `failing`.
    pub failures: Vec<ErrorCount>,
}

/// A setting that would let a destination send faster, and what it would do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Advice {
    /// `max_in_flight`, `min_interval_ms`, or `limit`: that of the rate limit of `period`.
    #[schema(pattern = "^(max_in_flight|limit|min_interval_ms)$", example = "max_in_flight")]
    pub setting: String,
    #[schema(example = 14)]
    pub value: u32,
    #[schema(pattern = "^(second|minute|hour|day)$", example = "second")]
    pub period: Option<String>,
    /// The rate with it; null if nothing bounds it any more.
    #[schema(example = 10.0)]
    pub effective_per_s: Option<f64>,
    /// What bounds the rate then.
    pub binding: Option<Binding>,
    /// When the backlog drains then; null if never, or if it is not known.
    pub drain_eta_s: Option<f64>,
    pub drains: Option<bool>,
}

/// A failed attempt, in short.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LastFailure {
    #[schema(example = "dlv_01h2xcejqtf2nbrexx3vqjhp41")]
    pub delivery_id: String,
    /// The number of the attempt within its delivery.
    pub number: u32,
    /// When it was sent, or when its result was recorded if nothing was sent.
    pub at: Timestamp,
    pub status_code: Option<u16>,
    #[schema(example = "timeout")]
    pub error_kind: Option<String>,
    pub error: Option<String>,
    /// The first 200 characters of the answer.
    #[schema(example = "upstream connect error")]
    pub answer: Option<String>,
}

/// How often an error occurred.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ErrorCount {
    /// The status, or the error in one word: the value of the filter `error` of deliveries.
    #[schema(example = "503")]
    pub error: String,
    pub count: u64,
}

/// What the overview shows of a destination.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BriefDestination {
    #[schema(example = "dst_01h2xcejqtf2nbrexx3vqjhp41")]
    pub id: String,
    pub name: String,
    #[schema(format = "uri", example = "https://example.com/hooks")]
    pub url: String,
    pub tenant: String,
    /// The limits in force: those of the settings, or of the override.
    pub rate_limits: Vec<RateLimit>,
    /// Null: none.
    #[schema(minimum = 1, maximum = 60_000)]
    pub min_interval_ms: Option<u32>,
    pub max_in_flight: u32,
    pub ordered: bool,
    pub paused: bool,
    pub paused_reason: Option<String>,
    pub breaker_state: String,
    pub breaker_reason: Option<String>,
    pub next_probe_at: Option<Timestamp>,
    pub held_until: Option<Timestamp>,
    pub held_reason: Option<String>,
    /// The override that the limits come from.
    #[serde(rename = "override")]
    pub overridden: Option<Override>,
}

/// The overview at one instant.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Snapshot {
    pub as_of: Timestamp,
    /// Another text after a change of any figure, also of a destination that the snapshot does not show. The ages and the
    /// ends of holds alone do not change it.
    #[schema(example = "5f1d8a0c77e2b3a4")]
    pub version: String,
    pub totals: OverviewTotals,
    pub destinations: Vec<OverviewRow>,
}

/// What changed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct StreamChange {
    pub at: Timestamp,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub destination_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub replay_id: Option<String>,
    /// `created`, `edited`, `deleted` of an edit; the state of a breaker; `running`, `ended` of a replay.
    pub state: String,
    /// Why a breaker is not closed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The receiver refuses sends (429, or 503 or 403 with `Retry-After` or a used-up quota) although they keep the limits
/// by Weir's clock.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct RefusedWithinLimit {
    /// `jitter`: it counts exactly, and the network delays one request more than the next. `spacing`: it wants a least
    /// time between two sends. `lower_limit`: it admits fewer than the limit.
    pub cause: String,
    /// The recent sends that were looked at.
    pub sends: u32,
    /// How many of them were refused.
    pub refused: u32,
    /// The setting that helps: `margin_ms` or `limit` of the rate limit of `period`, or `min_interval_ms` of the
    /// destination.
    pub setting: String,
    /// Its value: for a limit, what the receiver was seen to admit.
    #[schema(example = 102)]
    pub value: u32,
    pub period: Option<String>,
    /// All of it in one sentence.
    pub text: String,
}

/// How a destination would send its backlog with the proposed settings, and with the current ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    #[serde(flatten)]
    pub proposed: Forecast,
    pub now: Forecast,
    /// Why Weir itself does not send, or not as fast as it may; null if it does. The backlog then drains by the recent
    /// rate, if that is lower than what the settings allow.
    #[schema(
        pattern = "^(queue_away|store_slow|store_unwritable|no_worker|no_scheduler|workers_full|not_started|not_published)$",
        example = json!(null)
    )]
    pub fault: Option<String>,
    /// Of a destination with limits for single limit keys: what these allow what waits, and when an edit of `key_limits` acts,
    /// in words. Null for others.
    pub key_limits: Option<String>,
    /// If limits of keys are proposed: the 20 keys with the longest backlogs, with the proposed settings and `now`.
    pub keys: Option<Vec<KeyPreview>>,
}

/// What a limit key that waits may send with the proposed settings, and with the current ones.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyPreview {
    /// `""`: events without a key.
    #[schema(example = "cus_1")]
    pub key: String,
    pub waiting: u64,
    #[serde(flatten)]
    pub proposed: KeyForecast,
    pub now: KeyForecast,
}

/// What one limit key may send, as in the list of keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct KeyForecast {
    /// Null: nothing bounds it.
    pub share_per_s: Option<f64>,
    #[schema(
        value_type = Option<String>, example = "key",
        pattern = "^(paused|key|destination|group|destination_paused|destination_held|destination_breaker)$"
    )]
    pub binding: Option<String>,
    /// The time until nothing of this key waits, without new events; null if nobody can say.
    pub drain_eta_s: Option<f64>,
}

/// How a destination would send its backlog.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Forecast {
    /// The sustained rate: slots of a limit are (window + slot width + margin) / limit apart, those of a minimum interval
    /// the interval and a slot width, and `max_in_flight` allows as many sends as there are answers. Null if there is no limit and no recent answer.
    pub effective_per_s: Option<f64>,
    /// What bounds this rate.
    pub binding: Option<Binding>,
    /// How many sends per second the margins of the limits take from the rate; null if nothing else bounds it.
    pub margins_cost_per_s: Option<f64>,
    /// How many sends per second the minimum interval takes from the rate that is left; null if nothing else bounds it.
    pub min_interval_costs_per_s: Option<f64>,
    /// The estimated time until nothing waits, with the deliveries that arrive meanwhile; null if that never happens or
    /// is unknown.
    pub drain_eta_s: Option<f64>,
    /// Whether the backlog gets empty at the rate of arrivals; null if unknown.
    pub drains: Option<bool>,
    /// Whether deliveries expire before they are sent, judged by the newest of them.
    pub would_expire: bool,
    /// When the first of them expires.
    pub first_expiry_at: Option<Timestamp>,
}

/// What bounds a rate: a limit, the minimum interval, `max_in_flight`, the adaptive pace, the limit group, or limit keys.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(untagged)]
pub enum Binding {
    Limit(BindingLimit),
    Other(OtherBinding),
}

/// The limit that bounds a rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct BindingLimit {
    #[schema(minimum = 1, maximum = 1_000_000)]
    pub limit: u32,
    #[schema(schema_with = references::period)]
    pub period: String,
    /// `cost`: the limit counts costs. Absent: it counts requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = references::unit)]
    pub unit: Option<String>,
}

/// `max_in_flight`: the destination answers too slowly for it. `min_interval`: its `min_interval_ms`. `adaptive`: its
/// adaptive pace. `group`: its share of its limit group. `key`: the own limits of the limit keys that wait, together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OtherBinding {
    MaxInFlight,
    MinInterval,
    Adaptive,
    Group,
    Key,
}
