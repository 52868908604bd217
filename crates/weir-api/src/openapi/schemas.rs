//! Shapes that exist for the document only: bodies that are read field by field or borrowed from the request, and the
//! audit, which is serialised where it is made. Tests hold them to what is really read and shown.

#![expect(dead_code, reason = "described, never made")]

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::{IntoParams, ToResponse, ToSchema};

use crate::problem::ProblemDocument;

/// The state does not allow this
#[derive(ToResponse)]
#[response(description = "The state does not allow this", content_type = "application/problem+json")]
pub(crate) struct Refused(ProblemDocument<'static>);

/// Which page of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParameters {
    /// The most rows of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// The `next_cursor` of the page before. Of this list only.
    cursor: Option<String>,
}

/// Which time.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RangeParameters {
    /// From this instant on (RFC 3339).
    #[param(format = DateTime)]
    from: Option<String>,
    /// Before this instant (RFC 3339).
    #[param(format = DateTime)]
    to: Option<String>,
}

/// The trace.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct TraceParameters {
    /// The span that the events come from (W3C Trace Context). Receivers are told of the same trace, by a header of this name. What
    /// does not follow that specification is ignored.
    #[param(example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    traceparent: Option<String>,
}

/// A destination to make.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationRequest {
    /// `https`, or `http` where the server allows it. No user name, no fragment, no private address.
    #[schema(max_length = 2048, format = "uri", example = "https://example.com/hooks")]
    url: String,
    #[schema(max_length = 200, default = "")]
    name: Option<String>,
    #[schema(max_length = 128, default = "default")]
    tenant: Option<String>,
    /// Exact (`video.created`), a prefix (`video.*`) or `*`, which leaves out Weir's own `weir.*`.
    #[schema(min_items = 1, max_items = 100, default = json!(["*"]))]
    event_types: Option<Vec<String>>,
    /// At most one per period; `[]` is unlimited.
    #[schema(max_items = 4, default = json!([]))]
    rate_limits: Option<Vec<RateLimitRequest>>,
    /// Sends started and not yet settled at one time.
    #[schema(minimum = 1, maximum = 10_000, default = 64)]
    max_in_flight: Option<u32>,
    /// For one attempt, to the end of the answer's body.
    #[schema(minimum = 100, maximum = 120_000, default = 15_000)]
    timeout_ms: Option<u32>,
    retry: Option<RetryRequest>,
    /// `null` turns it off; absent, the defaults hold.
    breaker: Option<BreakerRequest>,
    /// What is named here differs from the thresholds of all destinations; `null` is never.
    alerts: Option<Alerts>,
    /// Events with the same `ordering_key` are delivered one after the other, as they were stored: the next waits until the one
    /// before is delivered or has ended otherwise. Other keys go on, and so do events without a key.
    #[schema(default = false)]
    ordered: Option<bool>,
    /// With `ordered` only. An event that has failed so often no longer holds up the others of its key: they go on, and it is
    /// tried again by itself, outside of the order. `null`: it holds them up until it has ended.
    #[schema(minimum = 1, maximum = 100)]
    skip_after_attempts: Option<u32>,
    /// Added to every request. Values are write-only. Names that Weir sets itself are refused.
    #[schema(default = json!({}))]
    headers: Option<BTreeMap<String, String>>,
    /// `whsec_` and the base64 of 24 to 64 bytes, or `whsk_` and the base64 of an Ed25519 private key (its 32 bytes, alone
    /// or with the public key's). A `whsec_` is made when absent.
    secret: Option<String>,
    signature: Option<SignatureRequest>,
    /// Nothing is sent while it is paused; events wait.
    #[schema(default = false)]
    paused: Option<bool>,
}

/// A JSON merge patch: only the fields that are named change, and `null` brings back the default.
#[derive(ToSchema)]
#[schema(as = DestinationPatch)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationPatchRequest {
    /// May not be null. One of another origin drops the headers that this patch does not give anew.
    #[schema(max_length = 2048, format = "uri")]
    url: Option<String>,
    #[schema(max_length = 200)]
    name: Option<String>,
    #[schema(max_length = 128)]
    tenant: Option<String>,
    /// Replaced whole.
    #[schema(min_items = 1, max_items = 100)]
    event_types: Option<Vec<String>>,
    /// Replaced whole. In effect within 100 ms, with no reset of the window.
    #[schema(max_items = 4)]
    rate_limits: Option<Vec<RateLimitRequest>>,
    #[schema(minimum = 1, maximum = 10_000)]
    max_in_flight: Option<u32>,
    #[schema(minimum = 100, maximum = 120_000)]
    timeout_ms: Option<u32>,
    /// Merged member by member; `schedule_ms` and the other two replace each other.
    retry: Option<RetryRequest>,
    /// Merged member by member; `null` turns it off. A breaker that is open closes when this, the URL or `paused: false` changes.
    breaker: Option<BreakerRequest>,
    /// Merged member by member, of which `null` is never; `"alerts": null` brings the thresholds of all back.
    alerts: Option<Alerts>,
    /// `false` lets go what waits for its turn, within seconds, and drops `skip_after_attempts`; `true` orders what is stored from
    /// then on.
    ordered: Option<bool>,
    #[schema(minimum = 1, maximum = 100)]
    skip_after_attempts: Option<u32>,
    /// Merged header by header; null drops one, `***` keeps its value.
    headers: Option<BTreeMap<String, Option<String>>>,
    /// May not be null. Replaces the secret at once, and ends what is left of a rotation.
    secret: Option<String>,
    /// Merged member by member; another style begins with its defaults.
    signature: Option<SignatureRequest>,
    /// In effect within 100 ms.
    paused: Option<bool>,
}

/// At most `limit` sends in every window of one `period`; `limit + burst − 1` when `burst` is above 1. An edit that raises the burst of
/// a destination that sends takes effect with time: the burst fills at the rate of the limit.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
struct RateLimitRequest {
    #[schema(minimum = 1, maximum = 1_000_000)]
    limit: u32,
    #[schema(pattern = "^(second|minute|hour|day)$", example = "second")]
    period: String,
    #[schema(minimum = 1, maximum = 1_000_000, default = 1)]
    burst: Option<u32>,
}

/// When a destination is left alone because it fails. An attempt fails when it is not answered with 2xx; `Retry-After` and 410
/// are seen to in their own ways.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
struct BreakerRequest {
    /// It opens when more than this part of the last minute's attempts failed, of `min_attempts` at least.
    #[schema(minimum = 0, maximum = 1, default = 0.5)]
    failure_ratio: Option<f64>,
    #[schema(minimum = 1, maximum = 100_000, default = 20)]
    min_attempts: Option<u32>,
    /// It opens after so many failures in a row.
    #[schema(minimum = 1, maximum = 100_000, default = 10)]
    consecutive: Option<u32>,
    /// Then nothing is sent for so long, before one probe at a time.
    #[schema(minimum = 100, maximum = 86_400_000, default = 30_000)]
    open_ms: Option<u32>,
    /// Each failed probe doubles the time up to this.
    #[schema(minimum = 100, maximum = 86_400_000, default = 1_800_000)]
    open_max_ms: Option<u32>,
    /// A destination whose every probe has failed for so long is paused; `null`: never.
    #[schema(minimum = 1, maximum = 31_536_000, default = 432_000)]
    pause_after_s: Option<u32>,
}

/// The thresholds above which operators are told of a destination; `null`: never.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Alerts {
    /// Deliveries that wait.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    backlog_depth: Option<u32>,
    /// Of the oldest delivery that waits.
    #[schema(minimum = 1, maximum = 31_536_000)]
    oldest_age_s: Option<u32>,
    /// Whether a backlog is too high that drains, at the destination's limit, only after deliveries of it have expired: by
    /// their `ttl_s`, or where they have none by `retry.max_age_s`.
    #[schema(default = true)]
    drain_beyond_ttl: Option<bool>,
    /// Dead letters since the last alert about them.
    #[schema(minimum = 1, maximum = 1_000_000_000, default = 1)]
    dead_letters: Option<u32>,
}

/// How often, how long and how far apart a delivery is tried.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
struct RetryRequest {
    #[schema(minimum = 1, maximum = 100, default = 16)]
    max_attempts: Option<u32>,
    /// From the event's creation, or its `deliver_at`.
    #[schema(minimum = 1, maximum = 2_592_000, default = 259_200)]
    max_age_s: Option<u32>,
    /// After attempt n: a random delay up to `base_ms` · 2^(n−1).
    #[schema(minimum = 1, maximum = 2_592_000_000_u64, default = 10_000)]
    base_ms: Option<u32>,
    /// The longest delay.
    #[schema(minimum = 1, maximum = 2_592_000_000_u64, default = 3_600_000)]
    cap_ms: Option<u32>,
    /// Instead of base and cap: after attempt n the n-th of these, the last one repeated.
    #[schema(min_items = 1, max_items = 100)]
    schedule_ms: Option<Vec<u32>>,
}

/// How what is sent is signed. The key of every HMAC is what follows `whsec_`, decoded from base64.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
struct SignatureRequest {
    /// `standard`: Standard Webhooks, in `webhook-signature`. `timestamped`: `t=<unix seconds>,v1=<hex>`, the HMAC-SHA256 of
    /// `{unix seconds}.{body}`. `prefixed`: `sha256=<hex>`, of the same with a `timestamp_header`, of the body alone without.
    /// During a rotation the first has a space, the second `,v1=`, the third `,sha256=` before the other signature.
    #[schema(pattern = "^(standard|timestamped|prefixed)$", default = "standard")]
    style: Option<String>,
    /// The header of the signature; not for `standard`. None that Weir or HTTP sets.
    #[schema(default = "webhook-signature", example = "x-signature")]
    header: Option<String>,
    /// Of `prefixed` only: the header of the signed time, in unix seconds; `webhook-timestamp` may be named.
    timestamp_header: Option<String>,
}

/// A rotation of the secret.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RotateSecretRequest {
    /// How long the secret before signs too; 0: not at all.
    #[schema(minimum = 0, maximum = 2_592_000, default = 86_400)]
    overlap_s: Option<u32>,
    /// The new secret. When absent one is made, of the kind of the one before.
    secret: Option<String>,
}

/// What to cancel; everything that waits by default.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PurgeRequest {
    /// `pending`, `retrying` or both.
    #[schema(min_items = 1, default = json!(["pending", "retrying"]))]
    states: Option<Vec<String>>,
    /// Of events of this type: exact (`video.created`), a prefix (`video.*`) or `*`.
    event_type: Option<String>,
    /// Of events created before this instant (RFC 3339).
    #[schema(format = DateTime)]
    before: Option<String>,
}

/// What to send again; everything that is dead or failed by default.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayRequest {
    /// Some of `failed`, `dead`, `cancelled` and `delivered`.
    #[schema(min_items = 1, default = json!(["dead", "failed"]))]
    states: Option<Vec<String>>,
    /// To this destination: `dst_…`.
    destination: Option<String>,
    /// Of this tenant only.
    tenant: Option<String>,
    /// Of events of this type: exact (`video.created`), a prefix (`video.*`) or `*`.
    event_type: Option<String>,
    /// Whose last attempt ended so, as in the list of deliveries: `timeout`, `5xx`, `503`.
    error: Option<String>,
    /// Of events created from this instant on (RFC 3339).
    #[schema(format = DateTime)]
    from: Option<String>,
    /// Of events created before this instant (RFC 3339).
    #[schema(format = DateTime)]
    to: Option<String>,
}

/// An event to send.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventRequest {
    /// Dot-separated words. `weir.` is Weir's own.
    #[schema(max_length = 128, example = "video.created")]
    r#type: String,
    /// Any JSON value; sent byte for byte.
    #[schema(example = json!({"id": 7}))]
    data: Value,
    #[schema(max_length = 128, default = "default")]
    tenant: Option<String>,
    /// A second event with the same key and tenant is answered with the first, and not stored.
    #[schema(min_length = 1, max_length = 255)]
    idempotency_key: Option<String>,
    /// Instead of every destination of the tenant whose `event_types` match.
    #[schema(min_items = 1, max_items = 1000)]
    destinations: Option<Vec<String>>,
    /// No delivery is attempted before this instant (RFC 3339), at most 365 days ahead; one in the past is now. What
    /// `retry.max_age_s` and `ttl_s` bound counts from here.
    #[schema(format = DateTime)]
    deliver_at: Option<String>,
    /// How long the event is worth sending. A delivery that has not been claimed by then, because of a limit, a pause or a
    /// retry that is not due yet, becomes `expired`.
    #[schema(minimum = 1, maximum = 31_536_000)]
    ttl_s: Option<u32>,
    /// Names what the event is the latest state of. A delivery that waits (`pending` or `retrying`) for the same destination
    /// with the same type and key becomes `superseded` in favour of this event's. One under way goes on, and is not tried
    /// again if it fails.
    #[schema(min_length = 1, max_length = 255, example = "video-7")]
    coalesce_key: Option<String>,
    /// A destination that is `ordered` gets the events of one key one after the other, in the order in which they were stored: an
    /// event whose 202 came before another was sent comes before it, and the events of a batch come in its order.
    #[schema(min_length = 1, max_length = 255, example = "account-42")]
    ordering_key: Option<String>,
}

/// Events to send.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct BatchRequest {
    #[schema(min_items = 1, max_items = 1000)]
    events: Vec<EventRequest>,
}

/// A problem with the answer that a batch with valid events would have had.
#[derive(ToSchema)]
pub(crate) struct BatchProblem {
    #[schema(inline)]
    #[serde(flatten)]
    problem: ProblemDocument<'static>,
    events: Vec<crate::ingest::BatchItem>,
}

/// The judgement on a destination's recorded send starts.
#[derive(ToSchema)]
pub(crate) struct Audit {
    /// The range that was judged.
    #[schema(format = DateTime)]
    from: String,
    /// Null: up to now.
    #[schema(format = DateTime)]
    to: Option<String>,
    /// Those of unknown outcome included.
    sends: u64,
    /// One for each limit that was in force in the range: the shortest period first, in it the last limit first.
    rate_limits: Vec<LimitAudit>,
    /// The earliest sends of unknown outcome: who made them died before the answer, and they may have started. They count at
    /// their latest instant: those of one crash share it, so that what is too much only with them is a possible violation.
    #[schema(max_items = 100)]
    unknown_sends: Vec<UnknownSend>,
    /// How many sends of unknown outcome there are.
    unknown_sends_total: u64,
    delivery_latency_ms: Latency,
    /// For a picture; null when nothing was sent.
    series: Option<Series>,
}

/// The judgement on one limit, over the time that it was in force.
#[derive(ToSchema)]
struct LimitAudit {
    limit: u32,
    #[schema(pattern = "^(second|minute|hour|day)$")]
    period: String,
    burst: u32,
    /// The fullest period by the UTC calendar, of windows that this limit judges.
    worst_calendar_window: Option<Window>,
    /// The fullest half-open window of one period's length, wherever it begins, of those that this limit judges: the largest
    /// limit of its period in force during a window does, and a limit counts until 100 ms after it was replaced.
    worst_sliding_window: Option<Window>,
    /// How many sends were one too many in a window that this limit judges, whatever became of those of unknown outcome.
    violations: u64,
    /// How many more were if those of unknown outcome started at their latest instant, as the windows count them.
    possible_violations: u64,
    /// Sends ÷ (limit × span ÷ period), gaps longer than one period left out.
    utilisation: Option<f64>,
}

/// A send whose outcome nobody could record.
#[derive(ToSchema)]
struct UnknownSend {
    delivery_id: String,
    /// Of the delivery's attempts.
    number: u32,
    /// It started no later than this, if it did.
    #[schema(format = DateTime)]
    latest_at: String,
}

/// A window and how many sends it holds.
#[derive(ToSchema)]
struct Window {
    #[schema(format = DateTime)]
    start: String,
    sends: u64,
}

/// From an event's creation, or its `deliver_at`, to the end of the answer, in milliseconds, to a thousandth.
#[derive(ToSchema)]
struct Latency {
    p50: Option<f64>,
    p95: Option<f64>,
    p99: Option<f64>,
    max: Option<f64>,
}

/// Sends per bucket.
#[derive(ToSchema)]
struct Series {
    #[schema(format = DateTime)]
    start: String,
    bucket_ms: u64,
    counts: Vec<u32>,
    caps: Vec<SeriesCap>,
}

/// The most that one bucket may hold, from an instant on.
#[derive(ToSchema)]
struct SeriesCap {
    #[schema(format = DateTime)]
    at: String,
    /// Null: unlimited.
    sends: Option<u64>,
}
