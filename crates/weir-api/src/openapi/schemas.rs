//! Types that exist only for the document: parameters, and bodies that are read field by field or borrowed from the
//! request. Tests compare them with the fields that are read.

#![expect(dead_code, reason = "used only as schemas, never constructed")]

use std::collections::BTreeMap;

use serde_json::Value;
use utoipa::{IntoParams, ToResponse, ToSchema};

use super::strings::{
    AttemptErrorText, DestinationIdText, EventPatternText, EventTypeText, ReplayableStateText, SecretText, TenantText,
    WaitingStateText,
};
use crate::problem::ProblemDocument;

/// The current state does not allow this operation
#[derive(ToResponse)]
#[response(description = "The current state does not allow this operation", content_type = "application/problem+json")]
pub(crate) struct Refused(ProblemDocument<'static>);

/// The page of a list.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct PageParameters {
    /// The maximum number of rows of the page.
    #[param(minimum = 1, maximum = 200, default = 50)]
    limit: Option<u32>,
    /// The `next_cursor` of the previous page of the same list.
    cursor: Option<String>,
}

/// A time range.
#[derive(IntoParams)]
#[into_params(parameter_in = Query)]
pub(crate) struct RangeParameters {
    /// At or after this instant (RFC 3339).
    #[param(format = DateTime)]
    from: Option<String>,
    /// Before this instant (RFC 3339). The range is empty if `to` is not after `from`.
    #[param(format = DateTime)]
    to: Option<String>,
}

/// The trace of the request.
#[derive(IntoParams)]
#[into_params(parameter_in = Header)]
pub(crate) struct TraceParameters {
    /// The producer's span (W3C Trace Context). Receivers get the same trace in a header of this name. A value that
    /// does not follow the specification is ignored.
    #[param(example = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")]
    traceparent: Option<String>,
}

/// A new destination.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationRequest {
    /// `https`, or `http` if the server allows it. Without user name and fragment, and not a private address.
    #[schema(max_length = 2048, format = "uri", example = "https://example.com/hooks")]
    url: String,
    #[schema(max_length = 200, default = "")]
    name: Option<String>,
    #[schema(default = "default")]
    tenant: Option<TenantText>,
    /// Exact (`video.created`), a prefix (`video.*`) or `*`. `*` does not include alerts (`weir.*`).
    #[schema(min_items = 1, max_items = 100, default = json!(["*"]))]
    event_types: Option<Vec<EventPatternText>>,
    /// At most one limit per period; `[]` means unlimited.
    #[schema(max_items = 4, default = json!([]))]
    rate_limits: Option<Vec<RateLimitRequest>>,
    /// The maximum number of sends that are started and not yet settled at one time.
    #[schema(minimum = 1, maximum = 10_000, default = 64)]
    max_in_flight: Option<u32>,
    /// Time limit of one attempt, including the body of the response.
    #[schema(minimum = 100, maximum = 120_000, default = 15_000)]
    timeout_ms: Option<u32>,
    retry: Option<RetryRequest>,
    /// `null` disables the breaker. If absent, the defaults apply.
    breaker: Option<BreakerRequest>,
    /// Thresholds that override the thresholds of all destinations; `null` disables a threshold.
    alerts: Option<Alerts>,
    /// Events with the same `ordering_key` are delivered one after the other, in the order in which they were stored:
    /// the next event waits until the previous one is delivered or has ended otherwise. Events with other keys or
    /// without a key do not wait.
    #[schema(default = false)]
    ordered: Option<bool>,
    /// Only with `ordered`. After this many failed attempts an event no longer blocks the later events of its key. It
    /// is then retried outside the order. `null`: it blocks them until it has ended.
    #[schema(minimum = 1, maximum = 100)]
    skip_after_attempts: Option<u32>,
    /// Headers added to every request. Values are write-only. Names that Weir sets itself are refused.
    #[schema(default = json!({}))]
    headers: Option<BTreeMap<String, String>>,
    /// `whsec_` and the base64 of 24 to 64 bytes, or `whsk_` and the base64 of an Ed25519 private key (its 32 bytes,
    /// optionally followed by the public key). If absent, a `whsec_` secret is generated.
    secret: Option<SecretText>,
    signature: Option<SignatureRequest>,
    /// Nothing is sent while the destination is paused; its deliveries wait.
    #[schema(default = false)]
    paused: Option<bool>,
}

/// A JSON merge patch: only the given fields change, and `null` restores the default.
#[derive(ToSchema)]
#[schema(as = DestinationPatch)]
#[serde(deny_unknown_fields)]
pub(crate) struct DestinationPatchRequest {
    /// Must not be null. A URL with another origin removes the headers that this patch does not set.
    #[schema(max_length = 2048, format = "uri")]
    url: Option<String>,
    #[schema(max_length = 200)]
    name: Option<String>,
    tenant: Option<TenantText>,
    /// Replaces the whole array.
    #[schema(min_items = 1, max_items = 100)]
    event_types: Option<Vec<EventPatternText>>,
    /// Replaces the whole array. Takes effect within 100 ms and does not reset the windows.
    #[schema(max_items = 4)]
    rate_limits: Option<Vec<RateLimitRequest>>,
    #[schema(minimum = 1, maximum = 10_000)]
    max_in_flight: Option<u32>,
    #[schema(minimum = 100, maximum = 120_000)]
    timeout_ms: Option<u32>,
    /// Merged member by member. `schedule_ms` replaces `base_ms` and `cap_ms`, and the other way round.
    retry: Option<RetryRequest>,
    /// Merged member by member; `null` disables the breaker. A change of the breaker or the URL, or `paused: false`,
    /// closes an open breaker.
    breaker: Option<BreakerRequest>,
    /// Merged member by member; a `null` member disables its threshold. `"alerts": null` restores the thresholds of all
    /// destinations.
    alerts: Option<Alerts>,
    /// `false` releases the deliveries that wait for an earlier one, within seconds, and removes `skip_after_attempts`.
    /// `true` orders the events that are stored from then on.
    ordered: Option<bool>,
    #[schema(minimum = 1, maximum = 100)]
    skip_after_attempts: Option<u32>,
    /// Merged header by header; `null` removes a header, `***` keeps its value.
    headers: Option<BTreeMap<String, Option<String>>>,
    /// Must not be null. Replaces the secret at once and ends a rotation that is in progress.
    secret: Option<SecretText>,
    /// Merged member by member; a new style starts with its defaults.
    signature: Option<SignatureRequest>,
    /// Takes effect within 100 ms.
    paused: Option<bool>,
}

/// At most `limit` sends in every window of one `period`, or `limit + burst − 1` if `burst` is above 1. An edit that
/// raises the burst of an active destination takes effect gradually: the burst fills at the rate of the limit.
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

/// The circuit breaker, which stops sends to a failing destination. An attempt fails if the response is not 2xx.
/// `Retry-After` and 410 have separate rules.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
struct BreakerRequest {
    /// The breaker opens if more than this share of the attempts of the last minute failed, with at least
    /// `min_attempts` attempts.
    #[schema(minimum = 0, maximum = 1, default = 0.5)]
    failure_ratio: Option<f64>,
    #[schema(minimum = 1, maximum = 100_000, default = 20)]
    min_attempts: Option<u32>,
    /// The breaker opens after this many failures in a row.
    #[schema(minimum = 1, maximum = 100_000, default = 10)]
    consecutive: Option<u32>,
    /// Nothing is sent for this time after the breaker opens. Then one probe is sent at a time.
    #[schema(minimum = 100, maximum = 86_400_000, default = 30_000)]
    open_ms: Option<u32>,
    /// Each failed probe doubles the open time, up to this time.
    #[schema(minimum = 100, maximum = 86_400_000, default = 1_800_000)]
    open_max_ms: Option<u32>,
    /// The destination is paused when every probe has failed for this time; `null`: never.
    #[schema(minimum = 1, maximum = 31_536_000, default = 432_000)]
    pause_after_s: Option<u32>,
}

/// The thresholds above which a destination raises alerts; `null` disables a threshold.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Alerts {
    /// The number of waiting deliveries.
    #[schema(minimum = 1, maximum = 1_000_000_000)]
    backlog_depth: Option<u32>,
    /// The age of the oldest waiting delivery.
    #[schema(minimum = 1, maximum = 31_536_000)]
    oldest_age_s: Option<u32>,
    /// Raise an alert if the backlog, at the destination's limit, drains only after some of its deliveries have expired
    /// (by `ttl_s`, or without one by `retry.max_age_s`).
    #[schema(default = true)]
    drain_beyond_ttl: Option<bool>,
    /// The number of dead letters since the last alert about dead letters.
    #[schema(minimum = 1, maximum = 1_000_000_000, default = 1)]
    dead_letters: Option<u32>,
}

/// The retry policy: the number of attempts, their age limit and their delays.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
struct RetryRequest {
    #[schema(minimum = 1, maximum = 100, default = 16)]
    max_attempts: Option<u32>,
    /// No retry after this time, counted from the event's creation or its `deliver_at`.
    #[schema(minimum = 1, maximum = 2_592_000, default = 259_200)]
    max_age_s: Option<u32>,
    /// The delay after attempt n is random, up to `base_ms` · 2^(n−1).
    #[schema(minimum = 1, maximum = 2_592_000_000_u64, default = 10_000)]
    base_ms: Option<u32>,
    /// The longest delay.
    #[schema(minimum = 1, maximum = 2_592_000_000_u64, default = 3_600_000)]
    cap_ms: Option<u32>,
    /// Replaces `base_ms` and `cap_ms`: the delay after attempt n is the n-th value. The last value repeats.
    #[schema(min_items = 1, max_items = 100)]
    schedule_ms: Option<Vec<u32>>,
}

/// The signature of requests. The key of every HMAC is the text after `whsec_`, decoded from base64.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
struct SignatureRequest {
    /// `standard`: Standard Webhooks, in `webhook-signature`. `timestamped`: `t=<unix seconds>,v1=<hex>`, the
    /// HMAC-SHA256 of `{unix seconds}.{body}`. `prefixed`: `sha256=<hex>`, the HMAC-SHA256 of `{unix seconds}.{body}`
    /// if `timestamp_header` is set, and of the body otherwise. During a rotation the second signature follows after a
    /// space (`standard`), `,v1=` (`timestamped`) or `,sha256=` (`prefixed`).
    #[schema(pattern = "^(standard|timestamped|prefixed)$", default = "standard")]
    style: Option<String>,
    /// The header of the signature; not for `standard`. Headers that Weir or HTTP sets are refused.
    #[schema(default = "webhook-signature", example = "x-signature")]
    header: Option<String>,
    /// Only for `prefixed`: the header with the signed time, in unix seconds; `webhook-timestamp` is allowed.
    timestamp_header: Option<String>,
}

/// A rotation of the secret.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RotateSecretRequest {
    /// How long the previous secret still signs; 0: not at all.
    #[schema(minimum = 0, maximum = 2_592_000, default = 86_400)]
    overlap_s: Option<u32>,
    /// The new secret. If absent, a secret of the same kind is generated.
    secret: Option<SecretText>,
}

/// The deliveries to cancel; by default all waiting deliveries.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PurgeRequest {
    /// `pending`, `retrying` or both.
    #[schema(min_items = 1, default = json!(["pending", "retrying"]))]
    states: Option<Vec<WaitingStateText>>,
    /// Only events of this type: exact (`video.created`), a prefix (`video.*`) or `*`.
    event_type: Option<EventPatternText>,
    /// Only events created before this instant (RFC 3339).
    #[schema(format = DateTime)]
    before: Option<String>,
}

/// The deliveries to send again; by default all dead and failed ones.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReplayRequest {
    /// One or more of `failed`, `dead`, `cancelled` and `delivered`.
    #[schema(min_items = 1, default = json!(["dead", "failed"]))]
    states: Option<Vec<ReplayableStateText>>,
    /// Only deliveries to this destination: `dst_…`.
    destination: Option<DestinationIdText>,
    /// Only this tenant.
    tenant: Option<TenantText>,
    /// Only events of this type: exact (`video.created`), a prefix (`video.*`) or `*`.
    event_type: Option<EventPatternText>,
    /// Only deliveries whose last attempt had this error, as in the list of deliveries: `timeout`, `5xx`, `503`.
    error: Option<AttemptErrorText>,
    /// Only events created at or after this instant (RFC 3339).
    #[schema(format = DateTime)]
    from: Option<String>,
    /// Only events created before this instant (RFC 3339).
    #[schema(format = DateTime)]
    to: Option<String>,
}

/// An event to send.
#[derive(ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct EventRequest {
    /// Dot-separated words. The prefix `weir.` is reserved.
    r#type: EventTypeText,
    /// Any JSON value; delivered byte for byte.
    #[schema(example = json!({"id": 7}))]
    data: Value,
    #[schema(default = "default")]
    tenant: Option<TenantText>,
    /// A second event with the same key and tenant is not stored; the answer shows the first event.
    #[schema(min_length = 1, max_length = 255)]
    idempotency_key: Option<String>,
    /// Deliver to these destinations instead of all destinations of the tenant whose `event_types` match.
    #[schema(min_items = 1, max_items = 1000)]
    destinations: Option<Vec<DestinationIdText>>,
    /// No attempt starts before this instant (RFC 3339), at most 365 days ahead. An instant in the past means now.
    /// `retry.max_age_s` and `ttl_s` count from this instant.
    #[schema(format = DateTime)]
    deliver_at: Option<String>,
    /// The lifetime of the event. A delivery that is not claimed by then, because of a limit, a pause or a retry that
    /// is not yet due, becomes `expired`.
    #[schema(minimum = 1, maximum = 31_536_000)]
    ttl_s: Option<u32>,
    /// The object whose latest state the event carries. A waiting delivery (`pending` or `retrying`) with the same
    /// destination, type and key becomes `superseded` by the delivery of this event. A delivery that is in progress
    /// continues, but is not retried if it fails.
    #[schema(min_length = 1, max_length = 255, example = "video-7")]
    coalesce_key: Option<String>,
    /// An `ordered` destination gets the events of one key one after the other, in the order in which they were stored.
    /// So if a producer sends an event after it got the 202 of another one, the other one comes first. The events of a
    /// batch keep their order.
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

/// A problem that also contains the results of the events, as in the answer to a batch with valid events.
#[derive(ToSchema)]
pub(crate) struct BatchProblem {
    #[schema(inline)]
    #[serde(flatten)]
    problem: ProblemDocument<'static>,
    /// Absent if the body has no list of events.
    #[schema(required = false)]
    events: Vec<crate::ingest::BatchItem>,
}
